"""The open logs of a broker: those in the slots that it serves, each on its shards.

What must hold:
* A log is open only while its slot is served, and only appenders of the session that owns the slot
  write to it.
* Where a log ends is read after the fence and the claim, from every shard that the slot has been
  on. A slot that has been moved begins on its new shard where it ended: the floor is stored there
  before the first record is.
* Where the leader epoch of a log begins is stored before the log is open.

A single broker serves all slots, on one shard, from its start to its end.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from brokerhouse.broker.log.block import PendingAppend
from brokerhouse.broker.log.checkpoints import CHECKPOINTS, Key, read_checkpoints
from brokerhouse.broker.log.epoch_table import begin_epochs, first_epochs
from brokerhouse.broker.log.log_ends import log_ends
from brokerhouse.broker.log.open_logs import OpenLogs, Partition
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.row_sources import RowSource, source_of_offset
from brokerhouse.broker.log.topic import Topic
from brokerhouse.broker.log.transaction_recovery import recover_transactions
from brokerhouse.broker.log.transaction_tables import begun_rows
from brokerhouse.broker.log.write_lease import AWAY_AFTER_MS
from brokerhouse.broker.slots.shard_host import ShardHost, ShardHosts
from brokerhouse.broker.transactions.producer_ids import ProducerIds
from brokerhouse.common.counted_lines import counted
from brokerhouse.common.tasks import in_turns
from brokerhouse.coordinator.slots import OwnSlots
from brokerhouse.protocol.errors import NotLeaderOrFollower
from brokerhouse.storage.engine import Engine, EngineError
from brokerhouse.storage.row_lane import RowLane, TableRows
from brokerhouse.storage.slot_map import FIRST_EPOCH, Slot

log = logging.getLogger(__name__)


class SlotLogs(OpenLogs):
    """`OpenLogs` by slots; also `Appending`, `RowSources` and `RowLanes` of these logs."""

    def __init__(self, slots: OwnSlots, hosts: ShardHosts, producer_ids: ProducerIds) -> None:
        super().__init__(slots.may_serve)
        self._slots = slots
        self._hosts = hosts
        self._producer_ids = producer_ids
        self._hosts_of: dict[PartitionLog, tuple[ShardHost, ...]] = {}
        self._hosts_by_names: dict[tuple[str, ...], tuple[ShardHost, ...]] = {}

    # OpenLogs

    def leads(self, topic: Topic, partition: int) -> bool:
        return self._slots.of_partition(topic.topic_id, partition) in self._slots.serving

    async def open_new(self, created: Collection[Partition]) -> bool:
        opened: list[PartitionLog] = []
        try:
            async for topic, number in in_turns(created):
                slot = self._served(topic, number)
                if slot is not None:
                    opened.append(self._opened(topic, number, 0, 0, 0, slot))
            begun = [one for one in opened if one.leader_epoch != FIRST_EPOCH]
            await asyncio.gather(
                *(_store(hosts[-1], first_epochs(some)) for hosts, some in self._by_hosts(begun))
            )
        except EngineError as error:
            log.warning("cannot open %d new logs yet: %s", len(created), error, extra=counted())
            return False
        self._add_led(opened)
        return all(self._is_open(one) for one in opened)

    async def open_missing(self, topics: Collection[Topic]) -> bool:
        """A shard that does not answer delays only its own logs."""
        missing = [one for one in self.missing(topics) if self.leads(*one)]
        for partitions in self._by_shards(missing).values():
            try:
                opened = await self.read(partitions)
            except EngineError as error:
                self.why_not_open = str(error)
                log.warning("cannot open %d logs yet: %s", len(partitions), error, extra=counted())
            else:
                self._add_led(opened)
        return not any(self.leads(*one) for one in self.missing(topics))

    def _add_led(self, opened: Iterable[PartitionLog]) -> None:
        """A slot may have been given up meanwhile, or taken again: then others are its logs."""
        led = []
        for one in opened:
            slot = self._served(one.topic, one.partition)
            if slot is not None and slot.epoch == one.leader_epoch and not self._is_open(one):
                led.append(one)
        self.add(led)

    def _is_open(self, one: PartitionLog) -> bool:
        return self.find(one.topic_id, one.partition) is not None

    def add(self, logs: Iterable[PartitionLog]) -> None:
        logs = list(logs)
        super().add(logs)
        for one in logs:
            self._hosts_of[one] = self._hosts_on(self._slot(one.topic, one.partition))

    def remove(self, logs: Iterable[PartitionLog]) -> None:
        logs = list(logs)
        super().remove(logs)
        for one in logs:
            self._hosts_of.pop(one, None)

    # Opening and closing

    def in_slots(self, slots: Collection[int]) -> list[PartitionLog]:
        """The open logs in these slots."""
        return [
            one
            for one in self.all()
            if self._slots.of_partition(one.topic_id, one.partition) in slots
        ]

    async def read(self, partitions: Sequence[Partition]) -> list[PartitionLog]:
        """Logs in slots that are owned, as they start and end. Raises `EngineError`."""
        by_shards = self._by_shards(partitions)
        # Producers whose ids are assigned from now on have no rows of earlier owners.
        first_fresh = await self._producer_ids.load() if partitions else 0
        ends: dict[Key, int] = {}
        starts: dict[Key, int] = {}
        for names, some in by_shards.items():
            found = await self._read_ends([self._hosts.of(name) for name in names], some)
            ends.update(found[0])
            starts.update(found[1])
        opened = [
            self._opened(topic, number, starts[key], ends[key], first_fresh, slot)
            for topic, number in partitions
            for key, slot in (((topic.topic_id, number), self._slot(topic, number)),)
        ]
        for there, logs in self._by_hosts(opened):
            await _store(there[-1], await begin_epochs([host.engine for host in there], logs))
            await _recover_transactions(there, logs)
        return opened

    def _by_hosts(
        self, logs: Iterable[PartitionLog]
    ) -> Collection[tuple[Sequence[ShardHost], Sequence[PartitionLog]]]:
        """The logs by the shards that may have rows of them; the one they are on comes last.

        Raises `EngineError`.
        """
        found: defaultdict[tuple[ShardHost, ...], list[PartitionLog]] = defaultdict(list)
        for one in logs:
            found[self._hosts_on(self._slot(one.topic, one.partition))].append(one)
        return [(_each_once(hosts), some) for hosts, some in found.items()]

    async def release(self, logs: Collection[PartitionLog]) -> None:
        """Accept no more appends for these closed logs; returns when none is in flight.

        Raises `NotLeaderOrFollower` if that cannot be known: the next owner must fence this one.
        """
        there: defaultdict[ShardHost, list[PartitionLog]] = defaultdict(list)
        for one in logs:
            if one in self._hosts_of:
                there[self._hosts_of[one][-1]].append(one)
        await asyncio.gather(
            *(host.appender.release(some) for host, some in there.items() if host.appender)
        )

    def _by_shards(
        self, partitions: Iterable[Partition]
    ) -> Mapping[tuple[str, ...], Sequence[Partition]]:
        """The partitions by the shards that their slots have been on. Raises `EngineError`."""
        found: dict[tuple[str, ...], list[Partition]] = {}
        for topic, number in partitions:
            found.setdefault(self._slot(topic, number).shards, []).append((topic, number))
        return found

    async def _read_ends(
        self, hosts: Sequence[ShardHost], partitions: Sequence[Partition]
    ) -> tuple[dict[Key, int], dict[Key, int]]:
        ends: dict[Key, int] = {}
        starts: dict[Key, int] = {}
        wanted = [(topic.name, topic.topic_id, number) for topic, number in partitions]
        for host in hosts:
            before = {key: (end, starts[key]) for key, end in ends.items()}
            checkpoints = await read_checkpoints(host.engine)
            found = await log_ends(host.engine, wanted)
            for _, topic_id, number in wanted:
                key = topic_id, number
                start, floor = checkpoints.get(key, (0, 0))
                ends[key] = max(ends.get(key, 0), found.get(key, 0), floor)
                starts[key] = max(starts.get(key, 0), start)
            # On a shard that it was moved to, a log must begin where it ended before.
            lacking = [
                (*key, starts[key], end, False)
                for key, (end, start) in before.items()
                for start_here, floor in (checkpoints.get(key, (0, 0)),)
                if end > max(found.get(key, 0), floor) or start > start_here
            ]
            if lacking:
                await host.rows.store(TableRows(CHECKPOINTS, lacking))
        return ends, starts

    def _opened(
        self, topic: Topic, partition: int, start: int, end: int, first_fresh: int, slot: Slot
    ) -> PartitionLog:
        made = PartitionLog(topic, partition, start, end, first_fresh, slot.epoch)
        hosts = self._hosts_on(slot)
        if len(hosts) > 1:
            made.earlier = [one.engine for one in dict.fromkeys(hosts) if one is not hosts[-1]]
        return made

    def _served(self, topic: Topic, partition: int) -> Slot | None:
        """The slot of this partition, if this broker serves it."""
        number = self._slots.of_partition(topic.topic_id, partition)
        return self._slots.owned.get(number) if number in self._slots.serving else None

    def _slot(self, topic: Topic, partition: int) -> Slot:
        """Raises `EngineError`: the session may end while its logs are being read."""
        slot = self._slots.owned.get(self._slots.of_partition(topic.topic_id, partition))
        if slot is None:
            raise EngineError(f"this broker lost {topic.name}-{partition} while it opened the log")
        return slot

    def _hosts_on(self, slot: Slot) -> tuple[ShardHost, ...]:
        hosts = self._hosts_by_names.get(slot.shards)
        if hosts is None:
            hosts = tuple(self._hosts.of(name) for name in slot.shards)
            self._hosts_by_names[slot.shards] = hosts
        return hosts

    # Appending

    def append(self, append: PendingAppend) -> None:
        """As `Appender.append`, on the shard of the partition."""
        hosts = self._hosts_of.get(append.partition)
        appender = None if hosts is None else hosts[-1].appender
        if appender is None:
            append.answer(NotLeaderOrFollower(f"This broker does not lead {append.partition}."))
        else:
            appender.append(append)

    # Where the rows are

    def engines(self, partition: PartitionLog) -> Sequence[Engine]:
        return [host.engine for host in self.hosts(partition)]

    def at_rest(self, partition: PartitionLog) -> Sequence[Engine]:
        return [host.stored.at_rest for host in self.hosts(partition)]

    async def of_offset(self, partition: PartitionLog, offset: int) -> RowSource:
        hosts = self.hosts(partition)
        if len(hosts) == 1:
            return hosts[0].stored.source(partition, offset)
        engines = [host.engine for host in hosts]
        return await source_of_offset(engines, partition, offset, partition.high_watermark)

    def host_of(self, partition: PartitionLog) -> ShardHost:
        """The shard to which its records are written now. Raises `EngineError`."""
        hosts = self._hosts_of.get(partition)
        if hosts is None:
            raise EngineError(f"this broker does not lead {partition}")
        return hosts[-1]

    def lanes(self, partition: PartitionLog) -> Collection[RowLane]:
        """The row lane of every shard that may have rows of it. Raises `EngineError`."""
        return [host.rows for host in self.hosts(partition)]

    def hosts(self, partition: PartitionLog) -> Sequence[ShardHost]:
        """Each shard that may have rows, once: a slot may return to an earlier shard."""
        hosts = self._hosts_of.get(partition)
        if hosts is None:
            raise EngineError(f"this broker does not lead {partition}")
        return hosts if len(hosts) == 1 else list(dict.fromkeys(hosts))


def _each_once(hosts: Sequence[ShardHost]) -> Sequence[ShardHost]:
    return list(reversed(dict.fromkeys(reversed(hosts))))


async def _store(host: ShardHost, rows: TableRows) -> None:
    """Raises `EngineError`, also if it takes long: the catalog is locked. Then it goes on."""
    if not rows.rows:
        return
    try:
        async with asyncio.timeout(AWAY_AFTER_MS / 1000):
            await host.rows.store(rows)
    except TimeoutError:
        raise EngineError(f"shard {host.name} does not answer") from None


async def _recover_transactions(hosts: Sequence[ShardHost], logs: Sequence[PartitionLog]) -> None:
    """Of logs on these shards, which are being opened. Raises `EngineError`."""
    repairs = await recover_transactions([host.engine for host in hosts], logs)
    await asyncio.gather(*(host.rows.store(*repair) for host in hosts for repair in repairs))
    if len(hosts) > 1:  # what is open holds up those who read the new shard, too
        begun = [
            (one, producer_id, open_there)
            for one in logs
            for producer_id, open_there in one.transactions.open.items()
        ]
        await asyncio.gather(*(host.rows.store(begun_rows(begun)) for host in hosts))
