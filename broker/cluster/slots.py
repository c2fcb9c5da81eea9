"""What this broker does with the slots that it owns: it opens logs and groups, and lets go of them.

`Slots` is the `SlotOwner` of broker/cluster/ownership.py. What must hold:
* A slot is served only between the end of `serve_slots` and the begin of `give_up_slots` or
  `abandon_slots`, and only by
  appenders of the session that owns it.
* Logs are opened, and slots given up, under the lock of the catalog: no topic can appear in between
  and be missed.
* Where a log ends is read after the fence and the claim, from every shard that the slot has been
  on. A slot that has been moved begins on its new shard where it ended: the floor is stored there
  before the first record is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from uuid import UUID

from broker.cluster.leases import BrokerReport, BrokerSession
from broker.cluster.session import OwnSession, SessionOver, Tenure
from broker.cluster.shard_host import ShardHost, ShardHosts
from broker.cluster.topics import Partition, SharedCatalog
from broker.log.block import Appended
from broker.log.checkpoints import CHECKPOINTS, Key, read_checkpoints
from broker.log.ends import log_ends
from broker.log.fence import fence
from broker.log.partition import PartitionLog
from broker.log.row_sources import RowSource, next_stored_offset
from broker.log.topic import Topic
from broker.producer_ids import ProducerIds
from common.clock import DAY_MS
from coordinator.coordinator import GroupCoordinator
from protocol._batches import BatchHeader
from protocol.errors import CoordinatorLoadInProgress, NotCoordinator, NotLeaderOrFollower
from storage.engine import Engine, EngineError
from storage.row_lane import RowLane, TableRows
from storage.slot_map import Slot, slot_of_group, slot_of_partition

log = logging.getLogger(__name__)


class Slots:
    """The slots of this broker, and all that is served because of them."""

    def __init__(
        self,
        hosts: ShardHosts,
        session: OwnSession,
        slots: int,
        producer_ids: ProducerIds,
        patience_s: float,
    ) -> None:
        """`slots`: how many the cluster has.

        `patience_s`: how long slots that are given up may wait for a shard that does not answer,
        before the session ends and the others fence it.
        """
        self._hosts = hosts
        self._session = session
        self._count = slots
        self._producer_ids = producer_ids
        self._patience_s = patience_s
        self._mine: dict[int, Slot] = {}
        self._serving: set[int] = set()
        self._hosts_of: dict[PartitionLog, tuple[ShardHost, ...]] = {}
        self.catalog: SharedCatalog

    def may_serve(self) -> bool:
        return self._session.may_serve()

    # SlotOwner

    def report(self) -> BrokerReport:
        floors = {host.name: host.floor_ms() for host in self._hosts}
        return BrokerReport(
            day=min(floors.values()) // DAY_MS,
            lanes={host.name: host.resolved for host in self._hosts},
            append_floors=floors,
            away=frozenset(host.name for host in self._hosts if host.engine.away),
            topics_seen=self.catalog.seen,
        )

    def reachable_shards(self) -> Collection[str]:
        return [host.name for host in self._hosts.reachable()]

    async def fence_session(self, session: BrokerSession, shard: str) -> None:
        lanes = session.lanes.get(shard)
        if lanes is None:
            return  # it never wrote there
        day = session.append_floors.get(shard, session.day * DAY_MS) // DAY_MS
        engine = self._hosts.of(shard).engine
        await fence(engine, session.session_id, lanes, day, catch_up=engine.expect_foreign_writes)

    async def serve_slots(self, tenure: Tenure, slots: Mapping[int, Slot]) -> None:
        wanted = {number: slot for number, slot in slots.items() if number not in self._serving}
        for name in {name for slot in wanted.values() for name in slot.shards}:
            host = self._hosts.of(name)
            host.engine.expect_foreign_writes()
            await host.write_under(tenure)
        self._mine.update(wanted)
        for name in {slot.shards[0] for slot in wanted.values()}:
            there = {number for number, slot in wanted.items() if slot.shards[0] == name}
            await self._hosts.of(name).groups.load_groups(self._groups_in(there))

        def begin(opened: list[PartitionLog]) -> None:
            if tenure.is_over:
                self.closed(opened)
                raise EngineError("the session ended while its slots were read")
            self._serving.update(wanted)
            log.info("%d slots are served, with %d partitions", len(wanted), len(opened))

        await self.catalog.take(
            lambda topic, partition: self.slot_of(topic.topic_id, partition) in wanted, begin
        )

    async def give_up_slots(self, slots: Collection[int]) -> None:
        leaving = set(slots)
        logs: list[PartitionLog] = []

        def stop() -> None:
            self._serving -= leaving
            logs.extend(self._logs_in(leaving))
            for partition in logs:
                self._close(partition)

        await self.catalog.stop_leading(stop)
        letting_go = [
            *(self._release(host, logs) for host in self._hosts),
            *(
                self._hosts.of(name).groups.unload_groups(self._groups_in(leaving))
                for name in {self._mine[one].shards[0] for one in leaving & self._mine.keys()}
            ),
        ]
        try:
            async with asyncio.timeout(self._patience_s):
                await asyncio.gather(*letting_go)
        except TimeoutError:
            raise SessionOver("slots cannot be given up: a shard does not answer") from None
        self._forget(leaving, logs)

    def abandon_slots(self) -> None:
        leaving = set(self._mine)
        logs = self._logs_in(leaving)
        for partition in logs:
            self._close(partition)
        for host in self._hosts:
            host.abandon()
        self._serving.clear()
        self._forget(leaving, logs)

    # What is asked of what is served

    def slot_of(self, topic_id: UUID, partition: int) -> int:
        return slot_of_partition(topic_id, partition, self._count)

    def append(
        self, partition: PartitionLog, records: bytes, header: BatchHeader
    ) -> asyncio.Future[Appended]:
        """As `Appender.append`, on the shard of the partition."""
        hosts = self._hosts_of.get(partition)
        appender = None if hosts is None else hosts[-1].appender
        if appender is None:
            refused: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
            refused.set_exception(NotLeaderOrFollower(f"this broker does not lead {partition}"))
            return refused
        return appender.append(partition, records, header)

    def coordinator_of(self, group_id: str) -> GroupCoordinator:
        """Raises `NotCoordinator` and `CoordinatorLoadInProgress`."""
        number = self._group(group_id)
        slot = self._mine.get(number)
        if slot is None or not self.may_serve():
            raise NotCoordinator(f"another broker coordinates group {group_id!r}")
        if number not in self._serving:
            raise CoordinatorLoadInProgress(f"group {group_id!r} is being read")
        return self._hosts.of(slot.shards[0]).groups

    def coordinators(self) -> Iterable[GroupCoordinator]:
        return self._hosts.coordinators()

    # RowSources

    def engines(self, partition: PartitionLog) -> Sequence[Engine]:
        return [host.engine for host in self._places(partition)]

    async def of_offset(self, partition: PartitionLog, offset: int) -> RowSource:
        # Read before the question: rows that come after it are not what it is about.
        end = partition.high_watermark
        hosts = self._places(partition)
        if len(hosts) == 1:
            return RowSource(hosts[0].engine)
        firsts = await asyncio.gather(
            *(next_stored_offset(host.engine, partition, offset) for host in hosts)
        )
        found = sorted(
            (first, place)
            for place, first in enumerate(firsts)
            if first is not None and first < end
        )
        if not found:
            return RowSource(hosts[-1].engine, end)
        ends = [first for first, _ in found[1:]]
        return RowSource(hosts[found[0][1]].engine, ends[0] if ends else end)

    def lanes(self, partition: PartitionLog) -> Collection[RowLane]:
        """Of every shard that may have rows of it. Raises `EngineError`."""
        return [host.rows for host in self._places(partition)]

    def _places(self, partition: PartitionLog) -> list[ShardHost]:
        """Each host that may have rows, once; a slot may come back to where it was."""
        hosts = self._hosts_of.get(partition)
        if hosts is None:
            raise EngineError(f"this broker does not lead {partition}")
        return list(dict.fromkeys(hosts))

    # Logs

    def leads(self, topic: Topic, partition: int) -> bool:
        return self.slot_of(topic.topic_id, partition) in self._serving

    def fresh(self, topic: Topic, partition: int) -> PartitionLog:
        return self._opened(topic, partition, 0, 0, 0)

    def by_shard(self, partitions: Sequence[Partition]) -> Collection[Sequence[Partition]]:
        mine = [
            (topic, number)  # the others: the session may have ended meanwhile
            for topic, number in partitions
            if self.slot_of(topic.topic_id, number) in self._mine
        ]
        return self._on_shards(mine).values()

    async def open(self, partitions: Sequence[Partition]) -> list[PartitionLog]:
        """Read where these logs start and end. Raises `EngineError`."""
        by_shards = self._on_shards(partitions)
        # Producers with ids that are given from now on have no rows of earlier owners.
        first_fresh = await self._producer_ids.load() if partitions else 0
        ends: dict[Key, int] = {}
        starts: dict[Key, int] = {}
        for names, some in by_shards.items():
            found = await self._read_ends([self._hosts.of(name) for name in names], some)
            ends.update(found[0])
            starts.update(found[1])
        return [
            self._opened(topic, number, starts[key], ends[key], first_fresh)
            for topic, number in partitions
            for key in ((topic.topic_id, number),)
        ]

    def _on_shards(
        self, partitions: Iterable[Partition]
    ) -> Mapping[tuple[str, ...], Sequence[Partition]]:
        """The partitions by the shards that their slots have been on. Raises `EngineError`."""
        found: dict[tuple[str, ...], list[Partition]] = {}
        for topic, number in partitions:
            found.setdefault(self._slot(topic, number).shards, []).append((topic, number))
        return found

    def closed(self, partitions: Collection[PartitionLog]) -> None:
        for partition in partitions:
            self._forget_log(partition)

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
            # On a shard that it was moved to, a log has to begin where it ended.
            lacking = [
                (*key, starts[key], end)
                for key, (end, start) in before.items()
                for start_here, floor in (checkpoints.get(key, (0, 0)),)
                if end > max(found.get(key, 0), floor) or start > start_here
            ]
            await host.rows.store(TableRows(CHECKPOINTS, lacking))
        return ends, starts

    def _opened(
        self, topic: Topic, partition: int, start: int, end: int, first_fresh: int
    ) -> PartitionLog:
        slot = self._slot(topic, partition)
        made = PartitionLog(topic, partition, start, end, first_fresh, slot.epoch)
        hosts = tuple(self._hosts.of(name) for name in slot.shards)
        made.earlier = [one.engine for one in dict.fromkeys(hosts) if one is not hosts[-1]]
        self._hosts_of[made] = hosts
        return made

    def _slot(self, topic: Topic, partition: int) -> Slot:
        """Raises `EngineError`: the session may end while its logs are being read."""
        slot = self._mine.get(self.slot_of(topic.topic_id, partition))
        if slot is None:
            raise EngineError(f"this broker lost {topic.name}-{partition} while it was read")
        return slot

    def _logs_in(self, slots: Collection[int]) -> list[PartitionLog]:
        return [
            partition
            for partition in self.catalog.led()
            if self.slot_of(partition.topic_id, partition.partition) in slots
        ]

    def _close(self, partition: PartitionLog) -> None:
        partition.closed = NotLeaderOrFollower(f"another broker leads {partition} now")
        partition.wake()

    async def _release(self, host: ShardHost, logs: Iterable[PartitionLog]) -> None:
        appender = host.appender
        here = [one for one in logs if self._hosts_of.get(one, (None,))[-1] is host]
        if appender is not None and here:
            try:
                await appender.release(here)
            except NotLeaderOrFollower as error:
                log.info("%s", error)  # the session is over, and whoever follows fences it

    def _forget(self, slots: Collection[int], logs: Iterable[PartitionLog]) -> None:
        for number in slots:
            self._mine.pop(number, None)
        logs = list(logs)
        self.catalog.give_up(logs)
        for partition in logs:
            self._forget_log(partition)

    def _forget_log(self, partition: PartitionLog) -> None:
        self._hosts_of.pop(partition, None)

    def _group(self, group_id: str) -> int:
        return slot_of_group(group_id, self._count)

    def _groups_in(self, slots: Collection[int]) -> Callable[[str], bool]:
        return lambda group_id: self._group(group_id) in slots
