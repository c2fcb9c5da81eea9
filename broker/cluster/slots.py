"""What this broker does with the slots that it owns: it opens logs and groups, and lets go of them.

`Slots` is the `SlotOwner` of broker/cluster/ownership.py. What must hold:
* A slot is served only between the end of `take` and the begin of `give_up` or `lost`, and only by
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
from functools import partial
from uuid import UUID

from broker.cluster.leases import BrokerReport, BrokerSession
from broker.cluster.shard_host import ShardHost
from broker.cluster.topics import Partition, SharedCatalog
from broker.log.appender import Appended
from broker.log.checkpoints import CHECKPOINTS, Key, read_checkpoints
from broker.log.ends import log_ends
from broker.log.fence import fence
from broker.log.partition import PartitionLog
from broker.log.places import Place, next_offset
from broker.log.topic import Topic
from broker.producer_ids import ProducerIds
from common.clock import DAY_MS
from coordinator.coordinator import GroupCoordinator
from protocol._batches import BatchHeader
from protocol.errors import CoordinatorLoadInProgress, NotCoordinator, NotLeaderOrFollower
from storage.engine import Engine, EngineError
from storage.row_lane import RowLane, TableRows
from storage.shards import Shard
from storage.slot_map import Slot, slot_of_group, slot_of_partition

log = logging.getLogger(__name__)


class Slots:
    """The slots of this broker, and all that is served because of them."""

    def __init__(
        self,
        stores: Mapping[str, ShardHost],
        shards: Mapping[str, Shard],
        slots: int,
        producer_ids: ProducerIds,
        session_id: Callable[[], int],
        lease: Callable[[], Callable[[], bool]],
        lasts: Callable[[], bool],
        sessions: Callable[[], Mapping[int, BrokerSession]],
        end_session: Callable[[int, str], None],
        patience_s: float,
    ) -> None:
        """`slots`: how many the cluster has. `session_id`: that of this broker now, 0 for none.

        `lasts`: whether that session may serve; `lease` gives the same for the session of now, and
        of no later one. `sessions`: as they were read last. `patience_s`: how long slots that are
        given up may hang on a shard that does not answer, before `end_session` lets others fence.
        """
        self._stores = stores
        self._shards = shards
        self._count = slots
        self._producer_ids = producer_ids
        self._session_id = session_id
        self._lease = lease
        self.lasts = lasts
        self._sessions = sessions
        self._end_session = end_session
        self._patience_s = patience_s
        self._mine: dict[int, Slot] = {}
        self._serving: set[int] = set()
        self._stores_of: dict[PartitionLog, tuple[ShardHost, ...]] = {}
        self.catalog: SharedCatalog

    # SlotOwner

    def report(self) -> BrokerReport:
        floors = {name: store.floor_ms() for name, store in self._stores.items()}
        return BrokerReport(
            day=min(floors.values()) // DAY_MS,
            lanes={name: store.resolved for name, store in self._stores.items()},
            append_floors=floors,
            away=frozenset(name for name, shard in self._shards.items() if shard.away),
            topics_seen=self.catalog.seen,
        )

    async def fence(self, session: BrokerSession, shard: str) -> None:
        """Nothing of that session comes to this shard any more. Raises `EngineError`."""
        lanes = session.lanes.get(shard)
        if lanes is None:
            return  # it never wrote there
        day = session.append_floors.get(shard, session.day * DAY_MS) // DAY_MS
        store = self._store(shard)
        await fence(
            store.engine,
            session.session_id,
            lanes,
            day,
            catch_up=self._shards[shard].expect_foreign_writes,
        )

    async def take(self, slots: Mapping[int, Slot]) -> None:
        """Serve these. Raises `EngineError`: none of them is served."""
        session_id, lease = self._session_id(), self._lease()
        wanted = {number: slot for number, slot in slots.items() if number not in self._serving}
        for name in {name for slot in wanted.values() for name in slot.shards}:
            store = self._store(name)
            self._shards[name].expect_foreign_writes()
            await store.begin(session_id, lease, partial(self._days, session_id, name))
        self._mine.update(wanted)
        for name in {slot.shards[0] for slot in wanted.values()}:
            there = {number for number, slot in wanted.items() if slot.shards[0] == name}
            await self._stores[name].groups.take(self._groups_in(there))

        def begin(opened: list[PartitionLog]) -> None:
            if self._session_id() != session_id:
                self.closed(opened)
                raise EngineError("the session ended while its slots were read")
            self._serving.update(wanted)
            log.info("%d slots are served, with %d partitions", len(wanted), len(opened))

        await self.catalog.take(
            lambda topic, partition: self.slot_of(topic.topic_id, partition) in wanted, begin
        )

    async def give_up(self, slots: Collection[int]) -> None:
        """Serve these no more; returns when nothing of them is in flight."""
        leaving = set(slots)
        logs: list[PartitionLog] = []

        def stop() -> None:
            self._serving -= leaving
            logs.extend(self._logs_in(leaving))
            for partition in logs:
                self._close(partition)

        session_id = self._session_id()
        await self.catalog.stop_leading(stop)
        letting_go = [
            *(self._release(store, logs) for store in self._stores.values()),
            *(
                self._stores[name].groups.give_up(self._groups_in(leaving))
                for name in {self._mine[one].shards[0] for one in leaving & self._mine.keys()}
            ),
        ]
        try:
            async with asyncio.timeout(self._patience_s):
                await asyncio.gather(*letting_go)
        except TimeoutError:
            self._end_session(
                session_id, "a shard does not answer, and its slots are to be given up"
            )
            return
        self._forget(leaving, logs)

    def lost(self) -> None:
        """The session is over."""
        leaving = set(self._mine)
        logs = self._logs_in(leaving)
        for partition in logs:
            self._close(partition)
        for store in self._stores.values():
            store.abandon()
        self._serving.clear()
        self._forget(leaving, logs)

    def broken_sessions(self) -> set[int]:
        """Sessions of which a lane has ended by a defect: only a new one helps."""
        writing = (store.writing for store in self._stores.values())
        return {one.session_id for one in writing if one is not None and one.appender.has_ended}

    def _days(self, session_id: int, shard: str) -> range:
        """Days since 1970 that a fence of this session covers: by its row, as it was read last."""
        session = self._sessions().get(session_id)
        floor_ms = None if session is None else session.append_floors.get(shard)
        return range(0) if floor_ms is None else range(floor_ms // DAY_MS, floor_ms // DAY_MS + 2)

    # What is asked of what is served

    def slot_of(self, topic_id: UUID, partition: int) -> int:
        return slot_of_partition(topic_id, partition, self._count)

    def append(
        self, partition: PartitionLog, records: bytes, header: BatchHeader
    ) -> asyncio.Future[Appended]:
        """As `Appender.append`, on the shard of the partition."""
        stores = self._stores_of.get(partition)
        appender = None if stores is None else stores[-1].appender
        if appender is None:
            refused: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
            refused.set_exception(NotLeaderOrFollower(f"this broker does not lead {partition}"))
            return refused
        return appender.append(partition, records, header)

    def coordinator_of(self, group_id: str) -> GroupCoordinator:
        """Raises `NotCoordinator` and `CoordinatorLoadInProgress`."""
        number = self._group(group_id)
        slot = self._mine.get(number)
        if slot is None or not self.lasts():
            raise NotCoordinator(f"another broker looks after group {group_id!r}")
        if number not in self._serving:
            raise CoordinatorLoadInProgress(f"group {group_id!r} is being read")
        return self._stores[slot.shards[0]].groups

    def coordinators(self) -> Iterable[GroupCoordinator]:
        return [store.groups for store in self._stores.values()]

    async def forget_topic(self, topic: str, topic_id: UUID) -> None:
        for store in self._stores.values():
            await store.groups.forget_topic(topic, topic_id)

    # Places

    def engines(self, partition: PartitionLog) -> Sequence[Engine]:
        return [store.engine for store in self._places(partition)]

    async def of_offset(self, partition: PartitionLog, offset: int) -> Place:
        # Read before the question: rows that come after it are not what it is about.
        end = partition.high_watermark
        stores = self._places(partition)
        if len(stores) == 1:
            return Place(stores[0].engine)
        firsts = await asyncio.gather(
            *(next_offset(store.engine, partition, offset) for store in stores)
        )
        found = sorted(
            (first, place)
            for place, first in enumerate(firsts)
            if first is not None and first < end
        )
        if not found:
            return Place(stores[-1].engine, end)
        ends = [first for first, _ in found[1:]]
        return Place(stores[found[0][1]].engine, ends[0] if ends else end)

    def lanes(self, partition: PartitionLog) -> Collection[RowLane]:
        """Of every shard that may have rows of it. Raises `EngineError`."""
        return [store.rows for store in self._places(partition)]

    def _places(self, partition: PartitionLog) -> list[ShardHost]:
        """Each store that may have rows, once; a slot may come back to where it was."""
        stores = self._stores_of.get(partition)
        if stores is None:
            raise EngineError(f"this broker does not lead {partition}")
        return list(dict.fromkeys(stores))

    def _store(self, name: str) -> ShardHost:
        store = self._stores.get(name)
        if store is None:
            raise EngineError(f"shard {name} is not in this broker's file: add it and restart")
        return store

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
            found = await self._read_ends([self._stores[name] for name in names], some)
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

    async def settled(self) -> None:
        await asyncio.gather(
            *(store.appender.settled() for store in self._stores.values() if store.appender)
        )

    async def _read_ends(
        self, stores: Sequence[ShardHost], partitions: Sequence[Partition]
    ) -> tuple[dict[Key, int], dict[Key, int]]:
        ends: dict[Key, int] = {}
        starts: dict[Key, int] = {}
        wanted = [(topic.name, topic.topic_id, number) for topic, number in partitions]
        for store in stores:
            before = {key: (end, starts[key]) for key, end in ends.items()}
            checkpoints = await read_checkpoints(store.engine)
            found = await log_ends(store.engine, wanted)
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
            await store.rows.store(TableRows(CHECKPOINTS, lacking))
        return ends, starts

    def _opened(
        self, topic: Topic, partition: int, start: int, end: int, first_fresh: int
    ) -> PartitionLog:
        slot = self._slot(topic, partition)
        made = PartitionLog(topic, partition, start, end, first_fresh, slot.epoch)
        stores = tuple(self._stores[name] for name in slot.shards)
        made.earlier = [one.engine for one in dict.fromkeys(stores) if one is not stores[-1]]
        self._stores_of[made] = stores
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

    async def _release(self, store: ShardHost, logs: Iterable[PartitionLog]) -> None:
        appender = store.appender
        here = [one for one in logs if self._stores_of.get(one, (None,))[-1] is store]
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
        self._stores_of.pop(partition, None)

    def _group(self, group_id: str) -> int:
        return slot_of_group(group_id, self._count)

    def _groups_in(self, slots: Collection[int]) -> Callable[[str], bool]:
        return lambda group_id: self._group(group_id) in slots
