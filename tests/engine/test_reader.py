"""Cold reads over a real engine: what was appended, read once for many, within a budget."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brokerhouse.broker.log import reader as reader_module
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.reader import ColdReader
from brokerhouse.broker.log.row_sources import RowSource
from brokerhouse.broker.log.tail_cache import TailCache
from brokerhouse.protocol._batches import parse_headers
from brokerhouse.protocol.compression import compress
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import Engine, EngineError
from tests.support import record_batches
from tests.support.alone import OneShard
from tests.support.log_parts import (
    ScriptedEngine,
    append,
    header_of,
    make_appender,
    make_log,
    make_topic,
    numbered,
    plain,
    rows_of,
    tail_rows,
)
from tests.support.record_batches import Batch, batch_of

ALL = 1 << 40
LIMIT_S = 60.0


@pytest.fixture
async def reader(scripted: ScriptedEngine) -> AsyncIterator[ColdReader]:
    made = ColdReader(OneShard(scripted), 64 << 20)
    yield made
    scripted.read_gate.set()
    await made.close()


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with much data, with little."""
    monkeypatch.setattr(reader_module, "_SEGMENT_BYTES", 20_000)
    monkeypatch.setattr(reader_module, "_CHUNK_BYTES", 5_000)
    monkeypatch.setattr(reader_module, "_BATCH_BYTES", 3_000)
    monkeypatch.setattr(reader_module, "_AHEAD_BYTES", 3_000)


async def filled(
    engine: EmbeddedEngine,
    *batches: Batch,
    log: PartitionLog | None = None,
    tail_bytes: int = 64 << 20,
) -> PartitionLog:
    """A partition with these batches, in order."""
    log = log or make_log()
    appender = make_appender(engine, cache=TailCache(tail_bytes))
    for batch in batches:
        append(appender, log, batch.data)
    await appender.close()
    return log


async def read_all(reader: ColdReader, log: PartitionLog, max_bytes: int = ALL) -> list[bytes]:
    """As a consumer that starts at the beginning."""
    found: list[bytes] = []
    offset = log.log_start_offset
    while offset < log.high_watermark:
        batches = await reader.read(log, offset, max_bytes)
        assert batches, f"nothing at {offset}"
        found += batches
        last = header_of(batches[-1])
        offset = last.base_offset + last.last_offset_delta + 1
    return found


async def several_segments(
    engine: EmbeddedEngine, *, thousands: int = 35, tail_bytes: int = 64 << 20
) -> PartitionLog:
    """ClickHouse reads 8,192 rows at once, so a segment is that long at least."""
    batches = (plain(*[b"%d" % n] * 1000) for n in range(thousands))
    return await filled(engine, *batches, tail_bytes=tail_bytes)


def kept_bytes(reader: ColdReader) -> int:
    return sum(len(b.data) for segment in reader._segments.values() for b in segment.batches)


# --- What comes back ---


@st.composite
def appended(draw: st.DrawFn) -> list[Batch]:
    """Batches as producers send them, idempotent and not, with every codec."""
    following = {7: 0, 8: 2**31 - 5}
    batches = []
    for _ in range(draw(st.integers(1, 6))):
        records = draw(st.lists(record_batches.records(), min_size=1, max_size=5))
        producer = draw(st.sampled_from([-1, -1, 7, 8]))
        fields = {"base_timestamp": draw(st.sampled_from([-1, 0, 1_700_000_000_000, -(2**63)]))}
        if producer >= 0:
            fields |= {"producer_id": producer, "producer_epoch": 3}
            fields |= {"base_sequence": following[producer]}
            following[producer] = (following[producer] + len(records)) % 2**31
        batch = batch_of(*records, **fields)
        if codec := draw(st.integers(0, 4)):
            batch = replace(batch, payload=compress(codec, batch.payload), attributes=codec)
        batches.append(batch)
    return batches


@given(appended(), st.booleans(), st.sampled_from([1, 500, ALL]))
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_a_cold_read_gives_the_same_records_as_the_tail_cache(
    engine: EmbeddedEngine,
    batches: list[Batch],
    log_append_time: bool,
    max_bytes: int,
) -> None:
    """Each example has a topic of its own."""
    configs = {"message.timestamp.type": "LogAppendTime"} if log_append_time else {}
    log = await filled(engine, *batches, log=make_log(make_topic(configs=configs), end=10))
    log.log_start_offset = 10
    reader = ColdReader(OneShard(engine), 1 << 20)
    cold = rows_of(await read_all(reader, log, max_bytes))
    assert cold == tail_rows(log, 10)
    assert len(cold) == sum(batch.count for batch in batches)
    await reader.close()


@pytest.mark.usefixtures("small_segments")
async def test_a_read_from_any_offset_begins_with_the_batch_that_holds_it(
    engine: EmbeddedEngine, reader: ColdReader
) -> None:
    rnd = random.Random(1)
    log = await filled(
        engine, *(plain(*[rnd.randbytes(200)] * rnd.randrange(1, 30)) for _ in range(60))
    )
    expected = {row.offset: row for row in tail_rows(log)}
    for _ in range(100):
        offset = rnd.randrange(log.high_watermark)
        batches = await reader.read(log, offset, rnd.choice([0, 1000, 10_000]))
        first = header_of(batches[0])
        assert first.base_offset <= offset <= first.base_offset + first.last_offset_delta
        rows = rows_of(batches)
        assert [row.offset for row in rows] == list(
            range(first.base_offset, first.base_offset + len(rows))
        )
        assert rows == [expected[row.offset] for row in rows]


@pytest.mark.parametrize("max_bytes", [-1, 0, 1, 10_000, 10**6])
async def test_a_read_returns_at_most_max_bytes_but_always_one_batch(
    engine: EmbeddedEngine, reader: ColdReader, small_segments: None, max_bytes: int
) -> None:
    log = await filled(engine, *(plain(*[b"x" * 100] * 50) for _ in range(40)))
    offset = 0
    while offset < log.high_watermark:
        batches = await reader.read(log, offset, max_bytes)
        assert len(batches) == 1 or sum(map(len, batches)) <= max_bytes
        last = header_of(batches[-1])
        offset = last.base_offset + last.last_offset_delta + 1
    assert offset == 2000


async def test_large_records_are_read_one_by_one(
    engine: EmbeddedEngine, reader: ColdReader
) -> None:
    rnd = random.Random(1)
    values = [rnd.randbytes(1 << 20) for _ in range(20)]
    log = await filled(engine, *(plain(value) for value in values))
    found = await read_all(reader, log, 1)
    assert [row.value for row in rows_of(found)] == values
    assert len(found) == 20
    assert kept_bytes(reader) < 64 << 20


async def test_the_first_read_of_large_records_reads_few_of_them(
    engine: EmbeddedEngine, scripted: ScriptedEngine, reader: ColdReader
) -> None:
    """With a limit of less than one: a fetch of 1,000 of them once took 8.9 s."""
    rnd = random.Random(1)
    log = await filled(engine, *(plain(rnd.randbytes(500_000)) for _ in range(50)), tail_bytes=1)
    await engine.execute("OPTIMIZE TABLE messages FINAL")
    found = await reader.read(log, 0, 100_000)
    assert len(rows_of(found)) == 1
    assert 500_000 <= scripted.read_bytes < 20 << 20  # of 25 MB
    assert scripted.reads == 1


async def test_many_small_records_take_few_queries(
    engine: EmbeddedEngine, scripted: ScriptedEngine, reader: ColdReader
) -> None:
    values = [b"%d" % n for n in range(60_000)]
    log = await filled(engine, *(plain(*values[n : n + 500]) for n in range(0, 60_000, 500)))
    found = rows_of(await read_all(reader, log, 100_000))
    assert [row.value for row in found] == values
    assert [row.offset for row in found] == list(range(60_000))
    assert scripted.reads <= 3


async def test_the_beginning_of_a_range_larger_than_the_budget_is_kept(
    engine: EmbeddedEngine, scripted: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "_PIECE_BYTES", 600_000)
    reader = ColdReader(OneShard(scripted), 3_000_000)
    log = await filled(engine, *(plain(*[b"%04d" % n * 256] * 1000) for n in range(8)))
    other = await filled(engine, *(plain(*[b"x" * 1000] * 1000) for _ in range(2)))
    for _ in range(3):
        await reader.read(log, 0, 1)
        await loads_done(reader)
        kept = sorted(piece.first for one, piece in reader._segments.items() if one[0] is log)
        assert kept[0] == 0
        assert len(kept) > 2
        await reader.read(log, kept[-1], 1)  # used last, so kept longest
        await reader.read(other, 0, 1)
        await loads_done(reader)
        assert reader._cached(log, 0) is None
        assert reader._cached(log, kept[-1]) is not None  # and is read once more, with the others
    assert reader.size == kept_bytes(reader) <= 3_000_000
    assert sum(map(len, reader._by_partition.values())) == len(reader._segments)
    await reader.close()


async def test_a_large_range_is_kept_in_pieces(
    engine: EmbeddedEngine, scripted: ScriptedEngine, reader: ColdReader
) -> None:
    log = await filled(engine, *(plain(*[b"%04d" % n * 256] * 1000) for n in range(8)))
    await reader.read(log, 0, 1)
    pieces = sorted(reader._segments.values(), key=lambda piece: piece.first)
    assert len(pieces) > 1
    assert [piece.first for piece in pieces] == [0, *(piece.end for piece in pieces[:-1])]
    assert pieces[-1].end == 8000
    assert rows_of(await read_all(reader, log)) == tail_rows(log)
    assert scripted.reads == 1


async def test_a_read_skips_offsets_that_were_removed(
    engine: EmbeddedEngine, reader: ColdReader
) -> None:
    log = await filled(engine, plain(*(b"%d" % n for n in range(100))))
    await engine.execute("DELETE FROM messages WHERE offset % 10 != 5")
    rows = rows_of(await reader.read(log, 0, ALL))
    assert [row.offset for row in rows] == list(range(5, 100, 10))
    assert [row.offset for row in rows_of(await reader.read(log, 6, ALL))][-1] == 95


async def test_a_range_without_rows_is_read_as_empty(
    engine: EmbeddedEngine, scripted: ScriptedEngine, reader: ColdReader
) -> None:
    log = await filled(engine, plain(b"a", b"b"))
    await engine.execute("DELETE FROM messages WHERE 1")
    for _ in range(2):
        assert await reader.read(log, 0, ALL) == []
    assert scripted.reads == 2, "that there was nothing is not kept"


async def test_reads_end_below_the_high_watermark(
    engine: EmbeddedEngine, reader: ColdReader
) -> None:
    log = await filled(engine, plain(b"a", b"b", b"c"))
    log.high_watermark = 2  # what another owner wrote above it was never acknowledged
    assert [row.value for row in rows_of(await reader.read(log, 0, ALL))] == [b"a", b"b"]
    log.high_watermark = 3
    assert [row.value for row in rows_of(await reader.read(log, 2, ALL))] == [b"c"]


async def test_a_read_tells_partitions_and_topics_of_one_name_apart(
    engine: EmbeddedEngine, reader: ColdReader
) -> None:
    topic = make_topic("same", 2)
    logs = [make_log(topic, 0), make_log(topic, 1), make_log(make_topic("same", 2), 0)]
    for number, log in enumerate(logs):
        await filled(engine, plain(b"%d" % number), log=log)
    for number, log in enumerate(logs):
        assert [row.value for row in rows_of(await reader.read(log, 0, ALL))] == [b"%d" % number]


async def test_batches_of_a_read_have_their_producers_and_sequences(
    engine: EmbeddedEngine, reader: ColdReader
) -> None:
    log = await filled(
        engine,
        numbered(0, 3, 7),
        numbered(2**31 - 2, 4, 8),
        plain(b"x"),
        numbered(3, 2, 7),
    )
    found = await read_all(reader, log)
    assert [
        (h.producer_id, h.producer_epoch, h.base_sequence, h.count)
        for h in parse_headers(b"".join(found))
    ] == [(7, 0, 0, 3), (8, 0, 2**31 - 2, 2), (8, 0, 0, 2), (-1, -1, -1, 1), (7, 0, 3, 2)]
    assert rows_of(found) == tail_rows(log)


# --- Sharing, keeping, reading ahead ---


async def test_readers_of_the_same_offset_share_one_query(
    engine: EmbeddedEngine, scripted: ScriptedEngine, reader: ColdReader
) -> None:
    log = await filled(engine, *(numbered(n * 10, 10, 7) for n in range(20)))
    found = await asyncio.gather(*(reader.read(log, 0, ALL) for _ in range(50)))
    assert all(batches == found[0] for batches in found)
    assert scripted.reads == 1
    # Another offset of what was read needs no query either.
    assert rows_of(await reader.read(log, 150, ALL))[-1].offset == 199
    assert scripted.reads == 1


@pytest.mark.usefixtures("small_segments")
async def test_a_reader_that_catches_up_finds_the_next_range_read_ahead(
    engine: EmbeddedEngine, scripted: ScriptedEngine, reader: ColdReader
) -> None:
    log = await several_segments(engine, tail_bytes=0)
    await reader.read(log, 0, 1)
    assert scripted.reads == 1
    await loads_done(reader)
    (first,) = reader._segments.values()
    assert first.end < log.high_watermark
    await reader.read(log, first.end - 1, 1)  # near its end: the next range is begun
    await loads_done(reader)
    assert len(reader._segments) == 2
    scripted.read_gate.clear()
    scripted.chunk_gate.clear()
    async with asyncio.timeout(LIMIT_S):
        (batch,) = await reader.read(log, first.end, 1)
    assert header_of(batch).base_offset == first.end


async def test_consecutive_ranges_are_read_by_one_query(
    engine: EmbeddedEngine, scripted: ScriptedEngine, reader: ColdReader, small_segments: None
) -> None:
    log = await several_segments(engine, tail_bytes=0)
    found = rows_of(await read_all(reader, log, 10_000))
    assert [row.offset for row in found] == list(range(35_000))
    assert len(reader._segments) > 3
    assert scripted.reads == 1


async def test_a_read_of_a_whole_range_reads_the_next_one_ahead(
    engine: EmbeddedEngine, scripted: ScriptedEngine, reader: ColdReader, small_segments: None
) -> None:
    log = await several_segments(engine, tail_bytes=0)
    await reader.read(log, 0, ALL)
    await loads_done(reader)
    assert len(reader._segments) == 2


async def loads_done(reader: ColdReader) -> None:
    while loads := list(reader._loads.values()):
        await asyncio.wait(loads)
        await asyncio.sleep(0)


@pytest.mark.usefixtures("small_segments")
async def test_ranges_that_the_tail_cache_has_are_not_read_ahead(
    engine: EmbeddedEngine, scripted: ScriptedEngine, reader: ColdReader
) -> None:
    log = await several_segments(engine)
    await reader.read(log, 0, 1)
    (first,) = reader._segments.values()
    for tail_start, kept in ((first.end // 1000 * 1000, 1), (first.end // 1000 * 1000 + 1000, 2)):
        while log.tail.start_offset != tail_start:
            log.tail.drop_first()
        await reader.read(log, first.end - 1, 1)
        await loads_done(reader)
        assert len(reader._segments) == kept


@pytest.mark.usefixtures("small_segments")
async def test_a_range_whose_read_ahead_failed_is_queried_by_the_next_reader(
    engine: EmbeddedEngine, scripted: ScriptedEngine, reader: ColdReader
) -> None:
    log = await several_segments(engine, tail_bytes=0)
    await reader.read(log, 0, 1)
    (first,) = reader._segments.values()
    for _ in range(6):  # more often than there are places for reading ahead
        scripted.failing_chunks = scripted.failing_reads = 1  # the open query, then a new one
        await reader.read(log, first.end - 1, 1)
        await loads_done(reader)
        assert list(reader._segments.values()) == [first]
    scripted.failing_chunks = 0
    (batch,) = await reader.read(log, first.end, 1)
    assert header_of(batch).base_offset == first.end
    assert len(await read_all(reader, log, 1)) > 10


async def test_a_query_that_fails_between_two_ranges_is_started_again(
    engine: EmbeddedEngine, scripted: ScriptedEngine, reader: ColdReader, small_segments: None
) -> None:
    log = await several_segments(engine, tail_bytes=0)
    await reader.read(log, 0, 1)
    scripted.failing_chunks = 1
    found = rows_of(await read_all(reader, log))
    assert [row.offset for row in found] == list(range(35_000))
    assert (scripted.failing_chunks, scripted.reads) == (0, 2)


async def test_rows_removed_between_two_ranges_are_not_read(
    engine: EmbeddedEngine, scripted: ScriptedEngine, reader: ColdReader, small_segments: None
) -> None:
    log = await several_segments(engine, tail_bytes=0)
    await reader.read(log, 0, 1)
    (first,) = reader._segments.values()
    await reader.read(log, first.end - 1, 1)  # the next range is being read, or was
    await engine.execute("DELETE FROM messages WHERE offset % 2 = 0")
    reader.forget(log)
    found = rows_of(await read_all(reader, log))
    assert [row.offset for row in found] == list(range(1, 35_000, 2))


async def test_open_queries_are_closed_when_no_reader_continues(
    engine: EmbeddedEngine,
    scripted: ScriptedEngine,
    reader: ColdReader,
    small_segments: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader_module, "_KEPT_S", 0.05)
    log = await several_segments(engine, tail_bytes=0)
    await reader.read(log, 0, 1)
    assert scripted.open_reads == 1
    async with asyncio.timeout(LIMIT_S):
        while scripted.open_reads:
            await scripted.next_close()
    monkeypatch.setattr(reader_module, "_KEPT_S", LIMIT_S)  # a busy machine may be slow to go on
    assert len(await read_all(reader, log)) > 10
    assert scripted.reads == 2


async def test_few_queries_stay_open_however_many_partitions_are_read(
    engine: EmbeddedEngine, scripted: ScriptedEngine, reader: ColdReader, small_segments: None
) -> None:
    logs = [await several_segments(engine, thousands=20, tail_bytes=0) for _ in range(6)]
    for log in logs:
        await reader.read(log, 0, 1)
    async with asyncio.timeout(LIMIT_S):
        while scripted.open_reads > 4:
            await scripted.next_close()
    for log in logs:
        assert len(rows_of(await read_all(reader, log))) == 20_000
    await reader.close()
    assert scripted.open_reads == 0


@pytest.mark.usefixtures("small_segments")
async def test_kept_ranges_stay_within_the_budget(engine: EmbeddedEngine) -> None:
    reader = ColdReader(OneShard(engine), 300_000)
    rnd = random.Random(1)
    logs = [await several_segments(engine, thousands=20) for _ in range(3)]
    segments = 0
    for _ in range(30):
        log = rnd.choice(logs)
        await reader.read(log, rnd.randrange(log.high_watermark), rnd.choice([1, 10_000]))
        assert kept_bytes(reader) <= 300_000
        assert kept_bytes(reader) == reader.size
        segments = max(segments, len(reader._segments))
    assert segments > 1
    for log in logs:
        assert rows_of(await read_all(reader, log)) == tail_rows(log)
    await reader.close()


async def test_a_range_larger_than_the_budget_is_read_all_the_same(
    engine: EmbeddedEngine,
) -> None:
    reader = ColdReader(OneShard(engine), 0)
    one = await filled(engine, plain(*[b"x" * 1000] * 100))
    other = await filled(engine, plain(*[b"y" * 1000] * 100))
    for log in (one, other, one):
        assert rows_of(await read_all(reader, log)) == tail_rows(log)
        assert len(reader._segments) <= 1
    await reader.close()


async def test_ranges_used_last_are_kept_longest(
    engine: EmbeddedEngine, scripted: ScriptedEngine
) -> None:
    reader = ColdReader(OneShard(scripted), 25_000)
    logs = [await filled(engine, plain(*[b"x" * 100] * 100)) for _ in range(3)]
    first, second, third = logs
    await reader.read(first, 0, ALL)
    await reader.read(second, 0, ALL)
    await reader.read(first, 0, ALL)
    await reader.read(third, 0, ALL)  # the second gives way
    reads = scripted.reads
    await reader.read(first, 0, ALL)
    await reader.read(third, 0, ALL)
    assert scripted.reads == reads
    await reader.read(second, 0, ALL)
    assert scripted.reads == reads + 1
    await reader.close()


# --- Where a range ends ---


class MovedRows:
    """`RowSources` of a partition whose slot was moved: the first engine has its rows to `end`."""

    def __init__(self, engine: EmbeddedEngine, end: int) -> None:
        self._engine = engine
        self._end = end

    async def of_offset(self, partition: PartitionLog, offset: int) -> RowSource:
        return RowSource(self._engine, self._end if offset < self._end else None)

    def engines(self, partition: PartitionLog) -> Sequence[Engine]:
        return (self._engine,)

    at_rest = engines


async def test_a_read_continues_past_rows_removed_at_the_end_of_a_range(
    engine: EmbeddedEngine,
) -> None:
    log = await filled(engine, plain(*[b"x"] * 50), plain(*[b"y"] * 50), tail_bytes=0)
    await engine.execute("DELETE FROM messages WHERE offset IN (48, 49)")
    reader = ColdReader(MovedRows(engine, 50), 1 << 20)
    for offset in (0, 47, 48, 49, 50):
        batches = await reader.read(log, offset, ALL)
        assert batches, f"nothing at {offset}"
        expected = [n for n in range(50) if n < 48] if offset < 48 else [*range(50, 100)]
        assert [row.offset for row in rows_of(batches)] == expected
    await reader.close()


# --- What goes wrong ---


async def test_a_client_that_disconnects_does_not_end_the_read_of_others(
    engine: EmbeddedEngine, scripted: ScriptedEngine, reader: ColdReader
) -> None:
    log = await filled(engine, plain(b"a", b"b"))
    scripted.read_gate.clear()
    readers = [asyncio.create_task(reader.read(log, 0, ALL)) for _ in range(4)]
    await scripted.next_read()
    for leaving in readers[:2]:
        leaving.cancel()
    results = await asyncio.gather(*readers[:2], return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError] * 2
    scripted.read_gate.set()
    for batches in await asyncio.gather(*readers[2:]):
        assert [row.value for row in rows_of(batches)] == [b"a", b"b"]
    assert scripted.reads == 1


async def test_a_read_whose_clients_all_disconnected_is_kept_for_the_next_reader(
    engine: EmbeddedEngine, scripted: ScriptedEngine, reader: ColdReader
) -> None:
    log = await filled(engine, plain(b"a"))
    scripted.read_gate.clear()
    leaving = asyncio.create_task(reader.read(log, 0, ALL))
    await scripted.next_read()
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    scripted.read_gate.set()
    await loads_done(reader)
    assert [row.value for row in rows_of(await reader.read(log, 0, ALL))] == [b"a"]
    assert scripted.reads == 1


async def test_a_failed_read_fails_for_all_waiting_readers_and_not_for_the_next_one(
    engine: EmbeddedEngine, scripted: ScriptedEngine, reader: ColdReader
) -> None:
    log = await filled(engine, plain(b"a"))
    scripted.failing_reads = 1
    results = await asyncio.gather(
        *(reader.read(log, 0, ALL) for _ in range(5)), return_exceptions=True
    )
    assert [type(result) for result in results] == [EngineError] * 5
    assert [row.value for row in rows_of(await reader.read(log, 0, ALL))] == [b"a"]


async def test_closing_the_reader_cancels_waiting_reads(
    engine: EmbeddedEngine, scripted: ScriptedEngine
) -> None:
    reader = ColdReader(OneShard(scripted), 1 << 20)
    log = await filled(engine, plain(b"a"))
    scripted.read_gate.clear()
    waiting = asyncio.create_task(reader.read(log, 0, ALL))
    await scripted.next_read()
    async with asyncio.timeout(LIMIT_S):
        await reader.close()
        (result,) = await asyncio.gather(waiting, return_exceptions=True)
    assert isinstance(result, asyncio.CancelledError)
    scripted.read_gate.set()


async def test_records_appended_during_a_read_are_read_next(
    engine: EmbeddedEngine, reader: ColdReader
) -> None:
    log = await filled(engine, plain(b"0"))
    for number in range(1, 20):
        assert len(rows_of(await read_all(reader, log))) == number
        await filled(engine, plain(b"%d" % number), log=log)
    assert rows_of(await read_all(reader, log)) == tail_rows(log)
