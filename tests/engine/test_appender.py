"""Group commit over a real engine: offsets, producers, faults, restarts."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from brokerhouse.broker.log.appender import Appender
from brokerhouse.broker.log.block import Appended, Outcome, PendingAppend
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.tail_cache import TailCache
from brokerhouse.protocol.compression import compress
from brokerhouse.protocol.errors import (
    InvalidProducerEpoch,
    InvalidRecord,
    KafkaError,
    KafkaStorageError,
    MessageTooLarge,
    NotLeaderOrFollower,
    OutOfOrderSequenceNumber,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from brokerhouse.storage.embedded import EmbeddedEngine
from tests.support import log_parts
from tests.support.log_parts import (
    LIMITS,
    NOTHING_FRESH,
    ScriptedEngine,
    header_of,
    make_appender,
    make_log,
    make_topic,
    numbered,
    plain,
    rows_of,
    stored_values,
    tail_rows,
)
from tests.support.record_batches import Batch, Record, batch_of
from tests.support.seeds import seeds
from tests.support.waiting import LIMIT_S

PRODUCER = 7
LAST = 2**31 - 1


@pytest.fixture
async def appender(scripted: ScriptedEngine) -> AsyncIterator[Appender]:
    made = make_appender(scripted)
    yield made
    scripted.gate.set()
    await made.close()


def append(appender: Appender, log: PartitionLog, batch: Batch) -> asyncio.Future[Appended]:
    return log_parts.append(appender, log, batch.data)


async def outcomes(futures: Sequence[asyncio.Future[Appended]]) -> list[int | type[BaseException]]:
    """The base offset of each append, or the kind of its error."""
    results = await asyncio.gather(*futures, return_exceptions=True)
    return [
        type(result) if isinstance(result, BaseException) else result.base_offset
        for result in results
    ]


def recovered(log: PartitionLog, *, end: int | None = None) -> PartitionLog:
    """The same partition after a restart: offsets known, producers not."""
    return PartitionLog(
        log.topic, log.partition, 0, log.next_offset if end is None else end, NOTHING_FRESH
    )


# --- Offsets and order ---


@pytest.mark.parametrize("seed", seeds(3))
async def test_offsets_of_a_partition_are_dense_and_in_order_of_the_appends(
    engine: EmbeddedEngine, appender: Appender, seed: int
) -> None:
    rnd = random.Random(seed)
    logs = [make_log(make_topic(f"t{n % 4}", 8), n, end=rnd.choice([0, 5000])) for n in range(12)]
    expected: dict[PartitionLog, list[tuple[int, str]]] = defaultdict(list)
    ends = {log: log.next_offset for log in logs}
    sent = []
    for number in range(400):
        log = rnd.choice(logs)
        values = [f"{number}/{n}" for n in range(rnd.choice([1, 1, 2, 30]))]
        batch = plain(*(value.encode() for value in values))
        if codec := rnd.choice([0, 0, 1, 2, 3, 4]):
            batch = replace(batch, payload=compress(codec, batch.payload), attributes=codec)
        sent.append((append(appender, log, batch), ends[log]))
        expected[log] += [(ends[log] + n, value) for n, value in enumerate(values)]
        ends[log] += len(values)
        if rnd.random() < 0.1:
            await asyncio.sleep(0)
    assert await outcomes([done for done, _ in sent]) == [offset for _, offset in sent]
    for log in logs:
        assert await stored_values(engine, log) == expected[log]
        assert log.high_watermark == log.next_offset == ends[log]


async def test_appends_that_wait_for_an_insert_become_one_block(
    scripted: ScriptedEngine, appender: Appender
) -> None:
    log = make_log()
    scripted.gate.clear()
    first = append(appender, log, plain(b"first"))
    await scripted.next_insert()
    rest = [append(appender, log, plain(b"%d" % n)) for n in range(50)]
    scripted.gate.set()
    assert await outcomes([first, *rest]) == list(range(51))
    assert len(scripted.inserts) == 2


async def test_a_batch_is_neither_readable_nor_acknowledged_before_it_is_stored(
    scripted: ScriptedEngine, appender: Appender
) -> None:
    log = make_log()
    scripted.gate.clear()
    done = append(appender, log, plain(b"a", b"b"))
    await scripted.next_insert()
    assert not done.done()
    assert (log.high_watermark, log.tail.start_offset) == (0, None)
    scripted.gate.set()
    assert await done == Appended(0, -1)
    assert log.high_watermark == 2
    assert [row.value for row in tail_rows(log)] == [b"a", b"b"]


async def test_a_partition_keeps_to_one_lane_and_lanes_do_not_wait_for_each_other(
    scripted: ScriptedEngine, appender: Appender
) -> None:
    topic = make_topic(partitions=3)
    logs = [make_log(topic, n) for n in range(3)]
    scripted.gate.clear()
    futures = [append(appender, log, plain(b"x")) for log in logs]
    while len(scripted.inserting) < 3:
        await scripted.next_insert()
    assert sorted(insert.lane for insert in scripted.inserts) == [0, 1, 2]
    scripted.gate.set()
    await outcomes(futures)
    for _ in range(3):
        await append(appender, logs[1], plain(b"y"))
    assert len({insert.lane for insert in scripted.inserts[3:]}) == 1


async def test_every_block_has_its_own_token_also_after_a_restart(
    engine: EmbeddedEngine,
) -> None:
    tokens = set()
    for _ in range(2):
        scripted = ScriptedEngine(engine)
        appender = make_appender(scripted)
        logs = [make_log(make_topic(f"t{n}")) for n in range(6)]
        for _ in range(3):
            await outcomes([append(appender, log, plain(b"same")) for log in logs])
        await appender.close()
        tokens |= {insert.token for insert in scripted.inserts}
        assert len({insert.token for insert in scripted.inserts}) == len(scripted.inserts)
    assert len(tokens) >= 2 * 3


async def test_a_block_is_limited_in_rows_and_bytes(
    scripted: ScriptedEngine,
) -> None:
    limits = replace(LIMITS, block_max_rows=10, block_max_bytes=20_000)
    appender = make_appender(scripted, lanes=1, limits=limits)
    log = make_log()
    scripted.gate.clear()
    futures = [append(appender, log, plain(b"first"))]
    await scripted.next_insert()
    futures += [append(appender, log, plain(b"x", b"y", b"z")) for _ in range(8)]
    futures += [append(appender, log, plain(b"l" * 15_000)) for _ in range(4)]
    scripted.gate.set()
    await outcomes(futures)
    await appender.close()
    # 1, then 8 batches of 3 rows, 4 at a time, then 4 large ones, 2 at a time
    assert len(scripted.inserts) == 1 + 2 + 2


async def test_a_block_of_compressed_batches_is_limited_by_their_decompressed_size(
    engine: EmbeddedEngine, scripted: ScriptedEngine
) -> None:
    """A few bytes may decompress to many: a block must not become as large as all of them."""
    limits = replace(LIMITS, block_max_bytes=1 << 20, block_max_rows=3)
    appender = make_appender(scripted, lanes=1, limits=limits)
    log = make_log()
    scripted.gate.clear()
    futures = [append(appender, log, plain(b"first"))]
    await scripted.next_insert()
    large = plain(b"x" * (900 << 10))
    bomb = replace(large, payload=compress(4, large.payload), attributes=4)
    assert len(bomb.data) < 1000
    futures += [append(appender, log, bomb) for _ in range(10)]
    scripted.gate.set()
    assert await outcomes(futures) == list(range(11))
    await appender.close()
    assert max(insert.size for insert in scripted.inserts) < 2 << 20
    assert [offset for offset, _ in await stored_values(engine, log)] == list(range(11))


async def test_a_lingering_appender_gathers_one_block_and_closing_ends_the_wait(
    scripted: ScriptedEngine,
) -> None:
    appender = make_appender(scripted, limits=replace(LIMITS, linger_ms=100_000))
    log = make_log()
    futures = [append(appender, log, plain(b"x")) for _ in range(5)]
    async with asyncio.timeout(LIMIT_S):
        await appender.close()
    assert await outcomes(futures) == list(range(5))
    assert len(scripted.inserts) == 1


async def test_a_waiting_reader_is_woken_once_per_block_of_its_partition(
    scripted: ScriptedEngine, appender: Appender
) -> None:
    log, other = make_log(), make_log()
    woken: list[tuple[PartitionLog, int]] = []
    log.waiters.add(lambda changed: woken.append((changed, changed.high_watermark)))
    scripted.gate.clear()
    futures = [append(appender, log, plain(b"x"))]
    await scripted.next_insert()
    futures += [append(appender, log, plain(b"x", b"y")) for _ in range(5)]
    futures += [append(appender, other, plain(b"x"))]
    scripted.gate.set()
    await outcomes(futures)
    assert woken == [(log, 1), (log, 11)]


# --- What goes wrong with one batch is that batch's alone ---


async def test_a_corrupt_batch_in_the_middle_of_a_block_fails_alone(
    engine: EmbeddedEngine, scripted: ScriptedEngine, appender: Appender
) -> None:
    log = make_log()
    good = plain(b"good")
    lying = Batch(good.payload, 2)
    cut = replace(good, payload=good.payload[:-1])
    bad_codec = replace(good, attributes=1)
    scripted.gate.clear()
    futures = [append(appender, log, good)]
    await scripted.next_insert()
    for bad in (lying, cut, bad_codec):
        futures += [append(appender, log, good), append(appender, log, bad)]
    futures.append(append(appender, log, good))
    scripted.gate.set()
    found = await outcomes(futures)
    assert [outcome for outcome in found if isinstance(outcome, int)] == [0, 1, 2, 3, 4]
    assert [isinstance(outcome, int) for outcome in found] == [True, *[True, False] * 3, True]
    assert found[2] is InvalidRecord
    assert len(await stored_values(engine, log)) == 5
    assert len(scripted.inserts) == 2


async def test_a_block_whose_batches_all_failed_is_not_inserted(
    scripted: ScriptedEngine, appender: Appender
) -> None:
    log = make_log()
    lying = Batch(plain(b"x").payload, 2)
    assert await outcomes([append(appender, log, lying)]) == [InvalidRecord]
    assert scripted.inserts == []
    assert await append(appender, log, plain(b"x")) == Appended(0, -1)


async def test_a_batch_that_decompresses_beyond_the_limit_is_too_large(
    scripted: ScriptedEngine,
) -> None:
    appender = make_appender(scripted, limits=replace(LIMITS, decompressed_max_bytes=1 << 20))
    large = plain(b"x" * (2 << 20))
    for codec in (1, 2, 3, 4):
        bomb = replace(large, payload=compress(codec, large.payload), attributes=codec)
        assert await outcomes([append(appender, make_log(), bomb)]) == [MessageTooLarge]
    await appender.close()


async def test_a_cancelled_append_does_not_affect_others(
    engine: EmbeddedEngine, scripted: ScriptedEngine, appender: Appender
) -> None:
    log = make_log()
    scripted.gate.clear()
    first = append(appender, log, plain(b"first"))
    await scripted.next_insert()
    queued = append(appender, log, plain(b"queued"))
    last = append(appender, log, plain(b"last"))
    first.cancel()
    queued.cancel()
    scripted.gate.set()
    # What was queued is stored, with or without its caller.
    assert await last == Appended(2, -1)
    assert await stored_values(engine, log) == [(0, "first"), (1, "queued"), (2, "last")]


async def test_a_failing_callback_of_an_append_does_not_affect_others(
    engine: EmbeddedEngine, appender: Appender
) -> None:
    log = make_log()

    def told(outcome: Outcome) -> None:
        raise AssertionError("a defect")

    data = plain(b"first").data
    appender.append(PendingAppend(log, data, header_of(data), told))
    assert await append(appender, log, plain(b"second")) == Appended(1, -1)
    assert await append(appender, log, plain(b"third")) == Appended(2, -1)


async def test_a_queued_append_to_a_deleted_topic_is_refused(
    engine: EmbeddedEngine, scripted: ScriptedEngine, appender: Appender
) -> None:
    log, other = make_log(), make_log()
    scripted.gate.clear()
    first = append(appender, other, plain(b"x"))
    futures = [append(appender, log, plain(b"x")) for log in (log, log)]
    log.closed = UnknownTopicOrPartition("deleted")
    futures.append(append(appender, log, plain(b"x")))
    scripted.gate.set()
    assert await outcomes([first, *futures]) == [0, *[UnknownTopicOrPartition] * 3]
    assert await stored_values(engine, log) == []


# --- Timestamps ---


async def test_with_log_append_time_the_broker_sets_every_timestamp_of_the_batch(
    engine: EmbeddedEngine, appender: Appender
) -> None:
    topic = make_topic(configs={"message.timestamp.type": "LogAppendTime"})
    log = make_log(topic)
    records = [Record(timestamp_delta=n * 1000, value=b"%d" % n) for n in range(5)]
    appended = await append(appender, log, batch_of(*records, base_timestamp=5, max_timestamp=9))
    now_ms = appended.log_append_time_ms
    assert now_ms > 1_600_000_000_000
    rows = await engine.rows(
        "SELECT DISTINCT timestamp_ms, timestamp_type, toUnixTimestamp64Milli(append_time)"
        " FROM messages"
    )
    assert rows == [[now_ms, "LogAppendTime", now_ms]]
    assert {(row.timestamp_ms, row.timestamp_type) for row in tail_rows(log)} == {(now_ms, 1)}


async def test_with_create_time_timestamps_are_stored_as_sent(
    engine: EmbeddedEngine, appender: Appender
) -> None:
    log = make_log()
    records = [Record(timestamp_delta=delta) for delta in (0, -1000, 2**40)]
    appended = await append(appender, log, batch_of(*records, base_timestamp=-1))
    assert appended.log_append_time_ms == -1
    rows = await engine.rows("SELECT timestamp_ms, timestamp_type FROM messages ORDER BY offset")
    assert rows == [[-1 + delta, "CreateTime"] for delta in (0, -1000, 2**40)]
    assert [row.timestamp_ms for row in tail_rows(log)] == [-1, -1001, 2**40 - 1]


async def test_the_rows_of_a_block_share_one_append_time(
    engine: EmbeddedEngine, scripted: ScriptedEngine, appender: Appender
) -> None:
    log = make_log()
    scripted.gate.clear()
    futures = [append(appender, log, plain(b"x"))]
    await scripted.next_insert()
    futures += [append(appender, log, plain(b"x")) for _ in range(20)]
    scripted.gate.set()
    await outcomes(futures)
    assert len(await engine.rows("SELECT DISTINCT append_time FROM messages WHERE offset > 0")) == 1


# --- A block that is refused, or not known to be stored ---


async def test_after_a_refused_block_its_offsets_are_used_again(
    engine: EmbeddedEngine, scripted: ScriptedEngine, appender: Appender
) -> None:
    topic = make_topic(partitions=9)
    logs = [make_log(topic, n, end=100) for n in (0, 3, 6)]  # of one lane
    scripted.gate.clear()
    futures = [append(appender, logs[0], plain(b"before"))]
    await scripted.next_insert()
    scripted.faults += [None, "refused"]
    futures += [append(appender, log, plain(b"lost", b"lost")) for log in logs * 2]
    scripted.gate.set()
    assert await outcomes(futures) == [100, *[KafkaStorageError] * 6]
    assert [log.next_offset for log in logs] == [101, 100, 100]
    assert [log.high_watermark for log in logs] == [101, 100, 100]
    futures = [append(appender, log, plain(b"after")) for log in logs]
    assert await outcomes(futures) == [101, 100, 100]
    assert await stored_values(engine, logs[0]) == [(100, "before"), (101, "after")]
    assert [row.value for row in tail_rows(logs[0], 100)] == [b"before", b"after"]
    assert await stored_values(engine, logs[1]) == [(100, "after")]


async def test_a_refused_block_restores_the_sequences_of_its_producers(
    engine: EmbeddedEngine, scripted: ScriptedEngine, appender: Appender
) -> None:
    log = make_log()
    await append(appender, log, numbered(0, 5, PRODUCER))
    scripted.faults.append("refused")
    sent = [numbered(5, 5, PRODUCER), numbered(10, 5, PRODUCER), numbered(0, 1, 8)]
    futures = [append(appender, log, batch) for batch in sent]
    assert await outcomes(futures) == [KafkaStorageError] * 3
    # A batch that follows one that is not there is out of order; the retry in order is not.
    assert await outcomes([append(appender, log, sent[1])]) == [OutOfOrderSequenceNumber]
    assert await outcomes([append(appender, log, batch) for batch in sent]) == [5, 10, 15]
    assert len(await stored_values(engine, log)) == 16


async def test_after_a_refused_block_of_a_new_epoch_the_earlier_epoch_continues(
    scripted: ScriptedEngine, appender: Appender
) -> None:
    log = make_log()
    await append(appender, log, numbered(0, 5, PRODUCER))
    scripted.faults.append("refused")
    newer = numbered(0, 1, PRODUCER, epoch=1)
    assert await outcomes([append(appender, log, newer)]) == [KafkaStorageError]
    assert await outcomes([append(appender, log, numbered(5, 1, PRODUCER))]) == [5]
    assert await outcomes([append(appender, log, newer)]) == [6]
    late = numbered(6, 1, PRODUCER)
    assert await outcomes([append(appender, log, late)]) == [InvalidProducerEpoch]


async def test_a_second_batch_does_not_overtake_the_refused_first_batch_of_a_new_producer(
    engine: EmbeddedEngine, scripted: ScriptedEngine, appender: Appender
) -> None:
    """The client has sent the second batch before it hears that the first was refused."""
    log = make_log()
    first, second = numbered(0, 5, PRODUCER), numbered(5, 5, PRODUCER)
    scripted.gate.clear()
    scripted.faults.append("refused")
    futures = [append(appender, log, first)]
    await scripted.next_insert()
    futures.append(append(appender, log, second))
    scripted.gate.set()
    assert await outcomes(futures) == [KafkaStorageError, OutOfOrderSequenceNumber]
    assert await outcomes([append(appender, log, batch) for batch in (first, second)]) == [0, 5]
    values = [value for _, value in await stored_values(engine, log)]
    assert values == [f"{PRODUCER}/0/{n}" for n in range(10)]


async def test_after_a_refused_first_batch_a_new_epoch_may_begin(
    scripted: ScriptedEngine, appender: Appender
) -> None:
    log = make_log()
    scripted.faults.append("refused")
    assert await outcomes([append(appender, log, numbered(9, 5, PRODUCER))]) == [KafkaStorageError]
    assert await outcomes([append(appender, log, numbered(0, 5, PRODUCER, epoch=1))]) == [0]


async def test_sequences_of_a_producer_without_an_id_are_ignored(
    appender: Appender,
) -> None:
    """aiokafka numbers its batches all the same."""
    log = make_log()
    batches = [batch_of(Record(value=b"x"), base_sequence=number) for number in (0, 7, 7)]
    assert await outcomes([append(appender, log, batch) for batch in batches]) == [0, 1, 2]


async def test_a_duplicate_in_the_same_block_is_answered_with_the_offset_of_the_first(
    engine: EmbeddedEngine, scripted: ScriptedEngine, appender: Appender
) -> None:
    log = make_log()
    scripted.gate.clear()
    futures = [append(appender, log, plain(b"before"))]
    await scripted.next_insert()
    first, second = numbered(0, 3, PRODUCER), numbered(3, 2, PRODUCER)
    futures += [append(appender, log, batch) for batch in (first, second, first, second, first)]
    scripted.gate.set()
    assert await outcomes(futures) == [0, 1, 4, 1, 4, 1]
    assert len(await stored_values(engine, log)) == 6
    assert log.high_watermark == 6


async def test_a_duplicate_is_not_acknowledged_when_its_block_is_refused(
    engine: EmbeddedEngine, scripted: ScriptedEngine, appender: Appender
) -> None:
    log = make_log()
    scripted.faults.append("refused")
    batch = numbered(0, 3, PRODUCER)
    futures = [append(appender, log, batch) for _ in range(2)]
    assert await outcomes(futures) == [KafkaStorageError] * 2
    assert await stored_values(engine, log) == []
    assert await outcomes([append(appender, log, batch)]) == [0]


async def test_a_duplicate_alone_needs_no_insert(
    scripted: ScriptedEngine, appender: Appender
) -> None:
    log = make_log()
    batch = numbered(0, 3, PRODUCER)
    assert await outcomes([append(appender, log, batch)]) == [0]
    assert await outcomes([append(appender, log, batch)]) == [0]
    assert len(scripted.inserts) == 1


async def test_a_block_reported_as_refused_but_stored_is_acknowledged(
    engine: EmbeddedEngine, scripted: ScriptedEngine, appender: Appender
) -> None:
    log = make_log()
    scripted.faults.append("refused though stored")
    assert await outcomes([append(appender, log, plain(b"a", b"b"))]) == [0]
    assert await outcomes([append(appender, log, plain(b"c"))]) == [2]
    assert await stored_values(engine, log) == [(0, "a"), (1, "b"), (2, "c")]
    assert [row.value for row in tail_rows(log)] == [b"a", b"b", b"c"]


async def test_the_appender_asks_whether_a_refused_block_is_stored_until_the_engine_answers(
    engine: EmbeddedEngine, scripted: ScriptedEngine, appender: Appender
) -> None:
    log = make_log()
    scripted.faults.append("refused though stored")
    scripted.failing_rows += ["SELECT count()", "SELECT count()"]
    assert await outcomes([append(appender, log, plain(b"a"))]) == [0]
    assert not scripted.failing_rows
    assert len(await stored_values(engine, log)) == 1


@pytest.mark.parametrize(
    "faults",
    [
        ["unknown"],
        ["unknown though stored"],
        ["unknown", "unknown though stored", "unknown"],
        ["unknown though stored", "unknown though stored"],
        ["unknown", "refused though stored"],
    ],
    ids=", ".join,
)
async def test_a_block_of_unknown_outcome_is_repeated_with_its_token_and_stored_once(
    engine: EmbeddedEngine, scripted: ScriptedEngine, appender: Appender, faults: list[str]
) -> None:
    log = make_log()
    scripted.faults += faults
    futures = [append(appender, log, plain(b"a", b"b"))]
    await scripted.next_insert()
    futures.append(append(appender, log, plain(b"c")))
    assert await outcomes(futures) == [0, 2]
    assert await stored_values(engine, log) == [(0, "a"), (1, "b"), (2, "c")]
    tokens = [insert.token for insert in scripted.inserts]
    assert len(set(tokens[:-1])) == 1
    assert tokens[-1] != tokens[0]


@pytest.mark.parametrize(
    ("faults", "tokens"),
    [
        (["token used though stored"], 1),
        (["unknown though stored", "token used"], 1),
        (["unknown", "token used"], 2),
        (["token used", "token used"], 3),
        (["token used", "unknown", "token used though stored"], 2),
        (["torn", "torn"], 3),
    ],
)
async def test_a_block_whose_token_is_taken_but_whose_rows_are_missing_gets_another_token(
    engine: EmbeddedEngine,
    scripted: ScriptedEngine,
    appender: Appender,
    faults: list[str],
    tokens: int,
) -> None:
    log = make_log()
    scripted.faults += faults
    assert await outcomes([append(appender, log, plain(b"a", b"b"))]) == [0]
    assert len({insert.token for insert in scripted.inserts}) == tokens
    assert await outcomes([append(appender, log, plain(b"c"))]) == [2]
    assert await stored_values(engine, log) == [(0, "a"), (1, "b"), (2, "c")]
    assert max(appender.resolved) == tokens + 1


async def test_a_partition_inserts_no_other_block_while_an_outcome_is_unknown(
    scripted: ScriptedEngine, appender: Appender
) -> None:
    log = make_log()
    scripted.faults += ["unknown", "unknown"]
    first = append(appender, log, plain(b"a"))
    await scripted.next_insert()
    second = append(appender, log, plain(b"b"))
    await scripted.next_insert()
    assert not first.done()
    assert not second.done()
    assert {insert.token for insert in scripted.inserts} == {scripted.inserts[0].token}
    assert await outcomes([first, second]) == [0, 1]


async def test_an_unexpected_error_closes_only_the_partitions_of_its_block(
    scripted: ScriptedEngine, appender: Appender
) -> None:
    topic = make_topic(partitions=9)
    broken, same_lane = make_log(topic, 0), make_log(topic, 3)
    scripted.faults.append("defect")
    assert await outcomes([append(appender, broken, plain(b"a"))]) == [UnknownServerError]
    assert await outcomes([append(appender, same_lane, plain(b"a"))]) == [0]
    assert await outcomes([append(appender, broken, plain(b"a"))]) == [KafkaStorageError]
    assert len({insert.token for insert in scripted.inserts}) == 2  # the first may be stored


# --- Closing ---


async def test_closing_stores_queued_appends_and_refuses_later_ones(
    engine: EmbeddedEngine, scripted: ScriptedEngine
) -> None:
    appender = make_appender(scripted)
    log = make_log()
    scripted.gate.clear()
    futures = [append(appender, log, plain(b"0"))]
    await scripted.next_insert()
    futures += [append(appender, log, plain(b"%d" % n)) for n in range(1, 30)]
    closing = asyncio.create_task(appender.close())
    for _ in range(5):
        await asyncio.sleep(0)
    late = append(appender, log, plain(b"late"))
    scripted.gate.set()
    await closing
    assert all(future.done() for future in futures)
    assert await outcomes([*futures, late]) == [*range(30), NotLeaderOrFollower]
    assert await stored_values(engine, log) == [(n, str(n)) for n in range(30)]


async def test_closing_waits_until_an_unknown_outcome_is_known(
    engine: EmbeddedEngine, scripted: ScriptedEngine
) -> None:
    appender = make_appender(scripted)
    log = make_log()
    scripted.faults += ["unknown though stored", "unknown"]
    done = append(appender, log, plain(b"x"))
    await appender.close()
    assert done.result() == Appended(0, -1)
    assert await stored_values(engine, log) == [(0, "x")]


async def test_settled_returns_when_the_block_in_flight_is_stored(
    scripted: ScriptedEngine, appender: Appender
) -> None:
    log = make_log()
    await appender.settled()
    scripted.gate.clear()
    first = append(appender, log, plain(b"x"))
    await scripted.next_insert()
    settled = asyncio.create_task(appender.settled())
    await asyncio.wait([settled], timeout=0.05)
    assert not settled.done()
    append(appender, log, plain(b"y"))
    scripted.gate.set()
    await settled
    assert first.done()


# --- Producers over a restart ---


async def test_after_a_restart_a_retry_is_answered_with_its_offsets(
    engine: EmbeddedEngine, appender: Appender
) -> None:
    log = make_log()
    batches = [numbered(n * 3, 3, PRODUCER) for n in range(8)]
    for batch in batches:
        await append(appender, log, batch)
    log = recovered(log)
    found = await outcomes([append(appender, log, batch) for batch in batches[3:]])
    assert found == [9, 12, 15, 18, 21]
    assert await outcomes([append(appender, log, numbered(24, 3, PRODUCER))]) == [24]
    assert len(await stored_values(engine, log)) == 27


async def test_after_a_restart_a_gap_in_sequences_is_refused(appender: Appender) -> None:
    log = make_log()
    await append(appender, log, numbered(0, 3, PRODUCER))
    log = recovered(log)
    gap = numbered(4, 1, PRODUCER)
    assert await outcomes([append(appender, log, gap)]) == [OutOfOrderSequenceNumber]
    assert await outcomes([append(appender, log, numbered(3, 1, PRODUCER))]) == [3]


async def test_after_a_restart_retries_of_interleaved_producers_get_their_offsets(
    engine: EmbeddedEngine, appender: Appender
) -> None:
    log = make_log()
    rnd = random.Random(1)
    following = {7: 0, 8: 0, 9: 0}
    sent: dict[int, list[tuple[Batch, int]]] = {7: [], 8: [], 9: []}
    offset = 0
    for _ in range(60):
        producer = rnd.choice([7, 8, 9])
        batch = numbered(following[producer], rnd.randrange(1, 6), producer)
        following[producer] += batch.count
        sent[producer].append((batch, offset))
        offset += batch.count
        await append(appender, log, batch)
    log = recovered(log)
    for batches in sent.values():
        retries = batches[-5:]
        futures = [append(appender, log, batch) for batch, _ in retries]
        assert await outcomes(futures) == [at for _, at in retries]
    futures = [append(appender, log, numbered(following[n], 1, n)) for n in (7, 8, 9)]
    assert await outcomes(futures) == [offset, offset + 1, offset + 2]
    assert len(await stored_values(engine, log)) == offset + 3


async def test_after_a_restart_an_old_epoch_is_fenced_and_the_newest_continues(
    appender: Appender,
) -> None:
    log = make_log()
    await append(appender, log, numbered(0, 9, PRODUCER))
    await append(appender, log, numbered(0, 2, PRODUCER, epoch=3))
    log = recovered(log)
    old, new = numbered(9, 1, PRODUCER), numbered(2, 1, PRODUCER, epoch=3)
    assert await outcomes([append(appender, log, old)]) == [InvalidProducerEpoch]
    assert await outcomes([append(appender, log, new)]) == [11]
    retry = numbered(0, 2, PRODUCER, epoch=3)
    assert await outcomes([append(appender, log, retry)]) == [9]


async def test_after_a_restart_a_retry_whose_sequence_wraps_is_answered_with_its_offset(
    engine: EmbeddedEngine, appender: Appender
) -> None:
    log = make_log()
    batches = [
        numbered(LAST - 6, 5, PRODUCER),
        numbered(LAST - 1, 4, PRODUCER),
        numbered(2, 2, PRODUCER),
    ]
    assert await outcomes([append(appender, log, batch) for batch in batches]) == [0, 5, 9]
    log = recovered(log)
    assert await outcomes([append(appender, log, batch) for batch in batches]) == [0, 5, 9]
    assert await outcomes([append(appender, log, numbered(4, 1, PRODUCER))]) == [11]
    assert len(await stored_values(engine, log)) == 12


async def test_a_retry_after_all_sequences_were_used_is_answered_with_the_latest_offset(
    engine: EmbeddedEngine, appender: Appender
) -> None:
    log = make_log()
    around = 2**31
    await engine.execute(
        "INSERT INTO messages"
        " (topic, topic_id, offset, producer_id, producer_epoch, sequence, append_time)"
        " SELECT {topic:String}, {id:UUID}, arrayJoin([0, 1, {around:Int64}, {around:Int64} + 1])"
        " AS offset, 7, 0, offset % {around:Int64}, now64(3)",
        {"topic": log.topic.name, "id": str(log.topic_id), "around": around},
    )
    log = recovered(log, end=around + 2)
    assert await outcomes([append(appender, log, numbered(0, 2, PRODUCER))]) == [around]
    assert await outcomes([append(appender, log, numbered(2, 1, PRODUCER))]) == [around + 2]


async def test_after_a_restart_an_unknown_producer_may_begin_with_any_sequence(
    appender: Appender,
) -> None:
    log = recovered(make_log())
    assert await outcomes([append(appender, log, numbered(50, 1, PRODUCER))]) == [0]
    assert await outcomes([append(appender, log, numbered(51, 1, PRODUCER))]) == [1]


async def test_sequences_of_a_producer_are_counted_per_partition_and_topic_id(
    appender: Appender,
) -> None:
    log = make_log(make_topic("same", 2), 0)
    await append(appender, log, numbered(0, 9, PRODUCER))
    neighbour = recovered(make_log(log.topic, 1, end=100))
    again = recovered(make_log(make_topic("same", 2), 0, end=100))  # made again: another id
    for other in (neighbour, again):
        assert await outcomes([append(appender, other, numbered(0, 9, PRODUCER))]) == [100]


async def test_a_producer_whose_state_cannot_be_read_fails_alone_and_can_retry(
    engine: EmbeddedEngine, scripted: ScriptedEngine, appender: Appender
) -> None:
    log = make_log()
    await append(appender, log, numbered(0, 3, PRODUCER))
    log = recovered(log)
    scripted.failing_rows.append("GROUP BY producer_id")
    futures = [append(appender, log, numbered(3, 3, PRODUCER)), append(appender, log, plain(b"x"))]
    assert await outcomes(futures) == [KafkaStorageError, 3]
    assert await outcomes([append(appender, log, numbered(3, 3, PRODUCER))]) == [4]
    assert len(await stored_values(engine, log)) == 7


async def test_the_table_is_not_searched_for_a_producer_with_a_new_id(
    scripted: ScriptedEngine, appender: Appender
) -> None:
    log = make_log(first_fresh=PRODUCER)
    scripted.failing_rows.append("producer_id")
    assert await outcomes([append(appender, log, numbered(0, 3, PRODUCER))]) == [0]


async def test_a_producer_that_sends_no_batch_for_the_expiration_time_is_forgotten(
    scripted: ScriptedEngine,
) -> None:
    limits = replace(LIMITS, producer_id_expiration_ms=0)
    appender = make_appender(scripted, limits=limits)
    log = make_log()
    for producer in range(20):
        await append(appender, log, numbered(0, 1, producer))
    # Each insert takes longer than a millisecond, which is what expiry is counted in.
    assert len(log.producers) <= 2
    await appender.close()


async def test_a_producer_that_keeps_sending_is_not_forgotten(scripted: ScriptedEngine) -> None:
    log = make_log()
    appender = make_appender(scripted)
    for number in range(20):
        await append(appender, log, numbered(0, 1, 100 + number))
        await append(appender, log, numbered(number, 1, PRODUCER))
    # Its entry is the newest, whenever it was made.
    assert list(log.producers)[-1] == PRODUCER
    await appender.close()


# --- Everything at once ---


class Client:
    """An idempotent producer as clients are: up to five batches in flight, retries in order."""

    def __init__(self, producer_id: int, log: PartitionLog, rnd: random.Random) -> None:
        self.log = log
        self.batches: list[Batch] = []
        sequence = 0
        for _ in range(30):
            batch = numbered(sequence, rnd.randrange(1, 5), producer_id)
            sequence += batch.count
            self.batches.append(batch)
        self._rnd = rnd

    async def run(self, appender: Appender) -> dict[int, int]:
        """Sends everything; returns base sequence -> base offset as acknowledged."""
        acknowledged: dict[int, int] = {}
        waiting = list(self.batches)
        while waiting:
            sent = []
            for batch in waiting[:5]:
                sent.append((batch, append(appender, self.log, batch)))
                for _ in range(self._rnd.randrange(4)):
                    await asyncio.sleep(0)
            for batch, done in sent:
                try:
                    appended = await done
                except (KafkaStorageError, OutOfOrderSequenceNumber):
                    continue
                acknowledged[batch.base_sequence] = appended.base_offset
                waiting.remove(batch)
        return acknowledged


@pytest.mark.parametrize("seed", seeds(4))
async def test_with_random_faults_each_record_is_stored_once_and_in_order(
    engine: EmbeddedEngine, scripted: ScriptedEngine, appender: Appender, seed: int
) -> None:
    rnd = random.Random(seed)
    kinds = [None, None, None, "refused", "refused though stored", "unknown though stored"]
    scripted.faults += [rnd.choice(kinds) for _ in range(60)]
    logs = [make_log(make_topic("t", 4), n) for n in range(4)]
    clients = [Client(100 + n, logs[n % 4], random.Random(seed * 100 + n)) for n in range(8)]
    acknowledged = await asyncio.gather(*(client.run(appender) for client in clients))
    for log in logs:
        values = await stored_values(engine, log)
        assert [offset for offset, _ in values] == list(range(log.high_watermark))
        assert [row.value for row in tail_rows(log)] == [v.encode() for _, v in values]
        at = dict(values)
        for number, client in enumerate(clients):
            if client.log is log:
                mine = [value for _, value in values if value.startswith(f"{100 + number}/")]
                assert mine == [f"{100 + number}/0/{n}" for n in range(len(mine))]
                assert len(mine) == sum(batch.count for batch in client.batches)
                for sequence, offset in acknowledged[number].items():
                    assert at[offset] == f"{100 + number}/0/{sequence}"


async def test_the_tail_cache_holds_the_same_records_as_the_table(
    engine: EmbeddedEngine, appender: Appender
) -> None:
    cache = TailCache(1 << 20)
    appender = make_appender(engine, cache=cache)
    log = make_log(end=40)
    batches = [
        batch_of(
            Record(value=None, key=b"", headers=((b"h", None), (b"h", b""))),
            Record(value=b"", key=None),
            base_offset=12345,
        ),
        numbered(0, 3, PRODUCER),
    ]
    for batch in batches:
        await append(appender, log, batch)
    rows = tail_rows(log, 40)
    assert [row.offset for row in rows] == [40, 41, 42, 43, 44]
    assert rows[0].headers == ((b"h", None), (b"h", b""))
    assert [(row.key, row.value) for row in rows[:2]] == [(b"", None), (None, b"")]
    assert [row.sequence for row in rows] == [-1, -1, 0, 1, 2]
    assert {row.leader_epoch for row in rows} == {0}
    assert rows_of([log.tail.read(41, 1, at_least_one=True)[0]])[0].offset == 40  # type: ignore[index]
    await appender.close()


async def test_every_error_of_an_append_is_a_kafka_error(
    scripted: ScriptedEngine, appender: Appender
) -> None:
    log = make_log()
    scripted.faults += ["refused", "defect"]
    for _ in range(3):
        (outcome,) = await outcomes([append(appender, log, plain(b"x"))])
        assert isinstance(outcome, type)
        assert issubclass(outcome, KafkaError)
