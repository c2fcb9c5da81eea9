"""Records that compaction decided to remove are removed; records that must stay are not,
whatever a batch says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerhouse.broker.log import removals as removals_module
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.producer_states import ProducerStates
from brokerhouse.broker.log.reader import ColdReader
from brokerhouse.broker.log.removals import Piece, Range, Removals, clipped, pieces
from brokerhouse.broker.log.tail_cache import TailCache
from brokerhouse.common.clock import DAY_MS, wall_ms
from brokerhouse.protocol.errors import NotLeaderOrFollower
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import Engine
from brokerhouse.storage.row_lane import RowLane
from tests.support.alone import OneLane, OneShard
from tests.support.embedded_topics import catalog_on
from tests.support.log_parts import (
    ScriptedEngine,
    append,
    log_of,
    make_appender,
    rows_of,
    stored_values,
)
from tests.support.one_topic import create_topic
from tests.support.record_batches import Record, batch_of
from tests.support.small_tables import make_lane

ALL = 1 << 40
COMPACT = {"cleanup.policy": "compact"}


class Shard:
    """The only shard, of which another broker may be the housekeeper."""

    name = "shard"
    is_mine = True

    def __init__(self, engine: Engine) -> None:
        self.patient = engine

    def is_housekeeper(self) -> bool:
        return self.is_mine

    def reachable(self) -> tuple[Shard]:
        return (self,)


class CompactedTopics:
    """A log, and the part of the broker that removes."""

    def __init__(self, engine: EmbeddedEngine, lane: RowLane) -> None:
        self.engine = engine
        self.scripted = ScriptedEngine(engine)
        self.catalog = catalog_on(engine)
        self.reader = ColdReader(OneShard(self.scripted), 64 << 20)
        self.shard = Shard(engine)
        sources = OneShard(engine)
        states = ProducerStates(OneLane(lane), sources, DAY_MS, wall_ms)
        self.removals = Removals(self.shard, self.catalog, sources, self.reader, states)

    async def log(
        self,
        records: int = 10,
        *,
        partitions: int = 1,
        configs: dict[str, str] | None = None,
        tail_bytes: int = 64 << 20,
    ) -> PartitionLog:
        """Partition 0 of a new compacted topic, a batch per record; values are their offsets."""
        topic = await create_topic(self.catalog, f"t-{uuid4()}", partitions, configs or COMPACT)
        log = log_of(self.catalog, topic, 0)
        await self.append(log, records, tail_bytes)
        return log

    async def append(self, log: PartitionLog, records: int, tail_bytes: int = 64 << 20) -> None:
        appender = make_appender(self.engine, cache=TailCache(tail_bytes))
        first = log.next_offset
        for value in range(first, first + records):
            data = batch_of(Record(key=b"key", value=b"%d" % value)).data
            append(appender, log, data)
        await appender.close()

    async def decide(
        self, topic_id: UUID, *ranges: Range, partition: int = 0, batch_id: UUID | None = None
    ) -> UUID:
        """Write a batch as the job does, or a user with the SQL password."""
        batch_id = batch_id or uuid4()
        text = ",".join(f"({first},{last})" for first, last in ranges)
        await self.engine.execute(
            "INSERT INTO compaction_removals (run_id, batch_id, topic_id, partition, ranges)"
            f" SELECT generateUUIDv4(), {{batch_id:UUID}}, {{topic_id:UUID}}, {partition},"
            f" [{text}]::Array(Tuple(first Int64, last Int64))",
            {"batch_id": str(batch_id), "topic_id": str(topic_id)},
        )
        return batch_id

    async def noted(self) -> dict[UUID, tuple[int, str]]:
        """For each applied or refused batch: the number of rows removed, or the reason."""
        rows = await self.engine.rows(
            "SELECT batch_id, removed, refused FROM compaction_batches WHERE state != 'pending'"
        )
        return {UUID(str(b)): (removed, str(why)) for b, removed, why in rows}

    async def offsets(self, log: PartitionLog) -> list[int]:
        return [offset for offset, _ in await stored_values(self.engine, log)]


@pytest.fixture
async def house(engine: EmbeddedEngine) -> AsyncIterator[CompactedTopics]:
    lane = make_lane(engine)
    yield CompactedTopics(engine, lane)
    await lane.close()


async def test_rows_of_a_batch_are_removed_and_the_batch_is_noted(house: CompactedTopics) -> None:
    log = await house.log(10)
    batch = await house.decide(log.topic_id, (0, 2), (5, 5))
    await house.removals.round()
    assert await house.offsets(log) == [3, 4, 6, 7, 8, 9]
    assert await house.noted() == {batch: (4, "")}


async def test_other_partitions_and_topics_keep_their_rows(house: CompactedTopics) -> None:
    log = await house.log(5, partitions=2)
    sibling = log_of(house.catalog, log.topic, 1)
    await house.append(sibling, 5)
    other = await house.log(5)
    await house.decide(log.topic_id, (0, 3))
    await house.removals.round()
    assert await house.offsets(log) == [4]
    assert await house.offsets(sibling) == await house.offsets(other) == list(range(5))


async def test_compaction_keeps_the_last_record_and_the_end_of_the_log(
    house: CompactedTopics,
) -> None:
    log = await house.log(10)
    await house.decide(log.topic_id, (-(2**63), 2**63 - 1))
    await house.removals.round()
    assert await house.offsets(log) == [9]
    restarted = catalog_on(house.engine)
    await restarted.refresh()
    again = log_of(restarted, log.topic, 0)
    assert (again.log_start_offset, again.high_watermark) == (0, 10)


async def test_compaction_does_not_touch_rows_below_the_log_start(house: CompactedTopics) -> None:
    log = await house.log(10)
    log.log_start_offset = 4
    batch = await house.decide(log.topic_id, (0, 5))
    await house.removals.round()
    assert await house.offsets(log) == [0, 1, 2, 3, 6, 7, 8, 9]
    assert await house.noted() == {batch: (2, "")}


async def test_a_batch_for_a_topic_that_is_not_compacted_is_refused(house: CompactedTopics) -> None:
    log = await house.log(5, configs={"cleanup.policy": "delete"})
    batch = await house.decide(log.topic_id, (0, 3))
    await house.removals.round()
    assert await house.offsets(log) == list(range(5))
    assert await house.noted() == {
        batch: (0, f"The cleanup.policy of {log.topic.name} does not contain compact.")
    }


async def test_a_topic_with_the_cleanup_policies_compact_and_delete_is_compacted(
    house: CompactedTopics,
) -> None:
    log = await house.log(5, configs={"cleanup.policy": "compact,delete"})
    await house.decide(log.topic_id, (0, 1))
    await house.removals.round()
    assert await house.offsets(log) == [2, 3, 4]


async def test_batches_for_unknown_topics_and_partitions_are_refused_by_the_housekeeping_broker(
    house: CompactedTopics,
) -> None:
    log = await house.log(5)
    unknown = await house.decide(uuid4(), (0, 3))
    partition = await house.decide(log.topic_id, (0, 3), partition=7)
    house.shard.is_mine = False
    await house.removals.round()
    assert await house.noted() == {}
    house.shard.is_mine = True
    await house.removals.round()
    assert await house.noted() == {
        unknown: (0, "The topic does not exist."),
        partition: (0, f"The topic {log.topic.name!r} has no partition 7."),
    }


async def test_a_batch_for_a_partition_of_another_leader_is_left_to_that_leader(
    house: CompactedTopics,
) -> None:
    log = await house.log(5)
    batch = await house.decide(log.topic_id, (0, 0))
    house.catalog.logs.remove([log])
    await house.removals.round()
    assert await house.noted() == {}
    house.catalog.logs.add([log])
    log.close(NotLeaderOrFollower("handed over"))
    await house.removals.round()
    assert await house.noted() == {}
    log.closed = None
    await house.removals.round()
    assert await house.noted() == {batch: (1, "")}


async def test_a_batch_with_too_many_ranges_is_refused(
    house: CompactedTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removals_module, "_RANGES_MAX", 2)
    log = await house.log(10)
    batch = await house.decide(log.topic_id, (0, 0), (2, 2), (4, 4))
    await house.removals.round()
    assert await house.noted() == {batch: (0, "A batch may have 2 ranges. This one has 3.")}
    assert await house.offsets(log) == list(range(10))


async def test_unordered_overlapping_and_empty_ranges_remove_only_their_offsets(
    house: CompactedTopics,
) -> None:
    log = await house.log(10)
    await house.decide(log.topic_id, (6, 7), (1, 3), (2, 4), (3, 3), (8, 5), (-5, -1))
    await house.removals.round()
    assert await house.offsets(log) == [0, 5, 8, 9]


async def test_a_batch_that_was_partly_applied_is_completed(house: CompactedTopics) -> None:
    log = await house.log(10)
    batch = await house.decide(log.topic_id, (0, 4))
    await house.engine.execute(
        "DELETE FROM messages WHERE topic_id = {id:UUID} AND offset < 3", {"id": str(log.topic_id)}
    )
    await house.removals.round()
    assert await house.offsets(log) == [5, 6, 7, 8, 9]
    assert await house.noted() == {batch: (2, "")}
    await house.removals.round()
    assert len(await house.engine.rows("SELECT 1 FROM compaction_applied")) == 1


async def test_a_batch_written_after_rounds_without_batches_is_applied(
    house: CompactedTopics,
) -> None:
    log = await house.log(10)
    await house.removals.round()
    await house.removals.round()
    await house.decide(log.topic_id, (0, 0))
    await house.removals.round()
    assert await house.offsets(log) == list(range(1, 10))


async def test_many_batches_share_a_few_deletions(house: CompactedTopics) -> None:
    logs = [await house.log(6) for _ in range(4)]
    for log in logs:
        for offset in (0, 2, 4):
            await house.decide(log.topic_id, (offset, offset))
    await house.removals.round()
    assert [await house.offsets(log) for log in logs] == [[1, 3, 5]] * 4
    assert await house.engine.rows("SELECT count() FROM system.mutations") == [[1]]


async def test_removed_records_are_dropped_from_the_caches(house: CompactedTopics) -> None:
    log = await house.log(10, tail_bytes=0)
    kept = await house.log(10)
    assert len(rows_of(await read(house, log))) == 10
    await house.decide(log.topic_id, (0, 3), (5, 5))
    await house.decide(kept.topic_id, (0, 3), (5, 5))
    await house.removals.round()
    assert kept.tail.start_offset == 6
    assert kept.tail.read(5, ALL, at_least_one=True) is None
    tail = kept.tail.read(6, ALL, at_least_one=True)
    assert tail is not None
    assert [row.offset for row in rows_of(tail)] == [6, 7, 8, 9]
    for emptied in (log, kept):
        assert [row.offset for row in rows_of(await read(house, emptied))] == [4, 6, 7, 8, 9]
        # A consumer whose offset was removed continues.
        assert [row.offset for row in rows_of(await read(house, emptied, 1))] == [4, 6, 7, 8, 9]


async def test_a_read_that_began_before_a_removal_is_not_kept(house: CompactedTopics) -> None:
    log = await house.log(10, tail_bytes=0)
    house.scripted.read_gate.clear()
    reading = asyncio.create_task(read(house, log))
    await house.scripted.read_came.wait()
    await house.decide(log.topic_id, (0, 3))
    await house.removals.round()
    house.scripted.read_gate.set()
    await reading
    assert [row.offset for row in rows_of(await read(house, log))] == [4, 5, 6, 7, 8, 9]
    assert house.scripted.reads == 2
    assert house.reader._outdated == set()


async def test_batches_are_looked_for_less_often_while_no_topic_is_compacted(
    house: CompactedTopics,
) -> None:
    log = await house.log(configs={"cleanup.policy": "delete"})
    await house.removals._round_if_due()
    refused = await house.decide(log.topic_id, (0, 3))
    await house.removals._round_if_due()
    assert await house.noted() == {}
    compacted = await house.log()
    applied = await house.decide(compacted.topic_id, (0, 3))
    await house.removals._round_if_due()
    assert (await house.noted()).keys() == {refused, applied}
    assert await house.offsets(compacted) == [4, 5, 6, 7, 8, 9]


async def read(house: CompactedTopics, log: PartitionLog, offset: int = 0) -> list[bytes]:
    return await house.reader.read(log, offset, ALL)


@given(
    st.sets(st.integers(0, 60)),
    st.integers(0, 12),
)
def test_pieces_of_ranges_have_the_same_offsets_and_a_limited_size(
    offsets: set[int], numbers_max: int
) -> None:
    ranges = _ranges_of(offsets)
    found = list(pieces(ranges, numbers_max))
    assert sorted(offset for piece in found for offset in _offsets(piece)) == sorted(offsets)
    # One range by itself needs no numbers; one more may be taken while what is less stays small.
    assert all(len(piece.numbers) <= numbers_max for piece in found)


@given(
    st.lists(st.tuples(st.integers(-5, 40), st.integers(-5, 40))),
    st.integers(0, 10),
    st.integers(0, 40),
)
def test_clipped_ranges_ascend_and_lie_inside(ranges: list[Range], start: int, end: int) -> None:
    found = clipped(ranges, start, end)
    wanted = {o for first, last in ranges for o in range(first, last + 1) if start <= o < end}
    assert [o for first, last in found for o in range(first, last + 1)] == sorted(wanted)


def test_conditions_of_removals_stay_below_the_size_limit_of_a_query() -> None:
    ranges = [(n * 300 + 1, n * 300 + 1) for n in range(2**63 // 300 - 100_000, 2**63 // 300)]
    assert max(len(piece.condition) for piece in pieces(ranges)) < 256 * 1024 - 25_000


def _ranges_of(offsets: set[int]) -> list[Range]:
    found: list[Range] = []
    for offset in sorted(offsets):
        if found and found[-1][1] == offset - 1:
            found[-1] = found[-1][0], offset
        else:
            found.append((offset, offset))
    return found


def _offsets(piece: Piece) -> set[int]:
    span = range(piece.first, piece.last + 1)
    if not piece.numbers:
        return set(span)
    numbers = {piece.first + number for number in piece.numbers}
    return set(span) - numbers if piece.kept else numbers
