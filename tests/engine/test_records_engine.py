"""Record batches through the real engine: what the blocks hold is what ClickHouse reads in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brokerhouse.protocol.columns import COLUMNS, READ_COLUMNS
from brokerhouse.protocol.errors import InvalidRecord
from brokerhouse.storage.schema_files import Rendering, schema_files
from tests.support import record_batches as make
from tests.support.chdb_process import ChdbProcess
from tests.support.record_batches import Batch, Record, Row, batch_of
from tests.support.record_codecs import COMPILED, REFERENCE

APPEND_TIME_MS = 1_700_000_000_123
INSERT = f"INSERT INTO messages ({', '.join(name for name, _ in COLUMNS)})"
SELECT = f"SELECT {', '.join(name for name, _ in READ_COLUMNS)} FROM messages"
TOPIC_ID = UUID("00112233-4455-6677-8899-aabbccddeeff")


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChdbProcess]:
    engine = ChdbProcess(tmp_path_factory.mktemp("chdb"))
    messages = schema_files()[0]
    engine.query(Rendering().fill_in(messages, messages.statement, [messages.subject]))
    yield engine
    engine.stop()


@pytest.fixture
def engine(process: ChdbProcess) -> ChdbProcess:
    """An engine whose `messages` is empty."""
    process.query("TRUNCATE TABLE messages")
    return process


def builder_of(*batches: Batch, module: Any = COMPILED, **more: Any) -> Any:
    builder = module.BlockBuilder(APPEND_TIME_MS)
    offset = 0
    for batch in batches:
        add(builder, batch, offset, module=module, **more)
        offset += batch.count
    return builder


def add(
    builder: Any,
    batch: Batch,
    offset: int,
    topic: str = "topic",
    partition: int = 0,
    log_append_time_ms: int | None = None,
    module: Any = COMPILED,
    leader_epoch: int = 3,
    transaction_start: int = -1,
) -> None:
    (header,) = module.parse_headers(batch.data)
    builder.append(
        topic,
        TOPIC_ID.bytes,
        partition,
        offset,
        leader_epoch,
        header,
        batch.payload,
        log_append_time_ms,
        False,
        transaction_start,
    )


def rows_in(engine: ChdbProcess, max_batch_bytes: int = 1 << 20) -> list[Row]:
    """The rows of the table, by way of a cold read and the batches made of it."""
    block = engine.query(f"{SELECT} ORDER BY topic, partition, offset")
    batches = COMPILED.encode_batches(block, max_batch_bytes)
    assert [batch.data for batch in batches] == [
        batch.data for batch in REFERENCE.encode_batches(block, max_batch_bytes)
    ]
    return [row for batch in batches for row in make.decoded(batch.data)]


def stored(batch: Batch, offset: int) -> list[Row]:
    return make.stored(batch, offset, leader_epoch=3)


def test_every_column_of_a_stored_record_has_the_right_value(engine: ChdbProcess) -> None:
    batch = batch_of(
        Record(-5, key=b"k", value=b"v", headers=((b"a", b"1"), (b"a", None), (b"", b""))),
        Record(2, key=None, value=None),
        attributes=0x10,
        base_timestamp=1000,
        producer_id=77,
        producer_epoch=6,
        base_sequence=2**31 - 1,
    )
    builder = COMPILED.BlockBuilder(APPEND_TIME_MS)
    add(builder, batch, 41, "päge", 9, transaction_start=40)
    engine.insert(INSERT, builder.finish())
    found = engine.query("SELECT * FROM messages ORDER BY offset", "JSONEachRow")
    first, second = (json.loads(line) for line in found.splitlines())
    assert first == {
        "topic": "päge",
        "topic_id": str(TOPIC_ID),
        "partition": 9,
        "offset": 41,
        "timestamp_ms": 995,
        "timestamp_type": "CreateTime",
        "key": "k",
        "value": "v",
        "headers": [
            {"key": "a", "value": "1"},
            {"key": "a", "value": None},
            {"key": "", "value": ""},
        ],
        "producer_id": 77,
        "producer_epoch": 6,
        "sequence": 2**31 - 1,
        "transactional": True,
        "control": False,
        "transaction_start": 40,
        "leader_epoch": 3,
        "append_time": "2023-11-14 22:13:20.123",
    }
    assert second == first | {
        "offset": 42,
        "timestamp_ms": 1002,
        "key": None,
        "value": None,
        "headers": [],
        "sequence": 0,
    }


def test_null_and_empty_keys_values_and_headers_read_back_as_they_were(engine: ChdbProcess) -> None:
    texts = [None, b"", b"\0", b"\xff\xfe", b"x" * 70_000]
    batch = batch_of(
        *[
            Record(key=key, value=value, headers=((b"", key), (b"h", value), (b"h", None)))
            for key in texts
            for value in texts
        ]
    )
    engine.insert(INSERT, builder_of(batch).finish())
    assert rows_in(engine) == stored(batch, 0)


def test_any_timestamp_reads_back_unchanged(engine: ChdbProcess) -> None:
    low, high = make.INT64
    deltas = [0, 1, -1, high, low, high - 5, low + 5]
    batches = [
        batch_of(*[Record(delta) for delta in deltas], base_timestamp=base)
        for base in (low, -1, 0, 1_700_000_000_000, high)
    ]
    engine.insert(INSERT, builder_of(*batches).finish())
    expected = [
        row for index, batch in enumerate(batches) for row in stored(batch, index * len(deltas))
    ]
    assert rows_in(engine) == expected
    assert {row.timestamp_ms for row in expected} >= {low, high, -1, 0}


def test_sequences_that_wrap_read_back_unchanged(engine: ChdbProcess) -> None:
    batch = batch_of(
        *[Record()] * 6, producer_id=2**63 - 1, producer_epoch=2**15 - 1, base_sequence=2**31 - 3
    )
    engine.insert(INSERT, builder_of(batch).finish())
    rows = rows_in(engine)
    assert rows == stored(batch, 0)
    assert [row.sequence for row in rows] == [2**31 - 3, 2**31 - 2, 2**31 - 1, 0, 1, 2]


def test_flags_and_log_append_time_read_back_unchanged(engine: ChdbProcess) -> None:
    marker = Record(key=b"\0\0\0\1", value=b"\0\0\0\0\0\0")
    batches = [
        batch_of(Record(), Record(5), attributes=0x10, producer_id=1, base_sequence=0),
        batch_of(marker, attributes=0x30, producer_id=1, producer_epoch=0),
        batch_of(marker, attributes=0x30, producer_id=2, producer_epoch=0),
        batch_of(Record(3), Record(4), attributes=0x08, max_timestamp=-7),
        batch_of(Record(3), Record(4)),
    ]
    builder = builder_of(*batches)
    add(builder, batches[-1], 8, log_append_time_ms=12345)
    engine.insert(INSERT, builder.finish())
    rows = rows_in(engine)
    assert [(row.transactional, row.control) for row in rows] == [
        *[(True, False)] * 2,
        *[(True, True)] * 2,
        *[(False, False)] * 6,
    ]
    assert [(row.timestamp_type, row.timestamp_ms) for row in rows[4:]] == [
        *[(1, -7)] * 2,
        (0, 1_700_000_000_003),
        (0, 1_700_000_000_004),
        *[(1, 12345)] * 2,
    ]


def test_batches_keep_the_gaps_that_compaction_left(engine: ChdbProcess) -> None:
    batch = batch_of(*[Record(key=b"%d" % index) for index in range(10)])
    engine.insert(INSERT, builder_of(batch).finish())
    engine.query("DELETE FROM messages WHERE offset IN (0, 3, 4, 9)")
    rows = stored(batch, 0)
    assert rows_in(engine) == [rows[offset] for offset in (1, 2, 5, 6, 7, 8)]


def test_a_block_has_rows_of_many_topics_and_none_of_refused_batches(
    engine: ChdbProcess,
) -> None:
    good = batch_of(Record(value=b"a"), Record(headers=((b"h", b"v"),)))
    builder = COMPILED.BlockBuilder(APPEND_TIME_MS)
    expected = []
    for index in range(600):  # more topics than one byte counts
        topic, partition = f"topic-{index % 300:03}", index // 300
        add(builder, good, index, topic, partition)
        expected += [(topic, partition, index), (topic, partition, index + 1)]
        with pytest.raises(InvalidRecord):
            add(builder, replace(good, payload=good.payload[:-1]), index, "refused")
    engine.insert(INSERT, builder.finish())
    found = engine.query("SELECT topic, partition, offset FROM messages", "JSONCompactEachRow")
    assert sorted(tuple(json.loads(line)) for line in found.splitlines()) == sorted(expected)


def test_each_batch_of_a_block_has_the_leader_epoch_it_was_given(engine: ChdbProcess) -> None:
    batch = batch_of(Record(), Record())
    builder = COMPILED.BlockBuilder(APPEND_TIME_MS)
    epochs = (0, 7, 2**31 - 1, 7)
    for partition, epoch in enumerate(epochs):
        add(builder, batch, 5, partition=partition, leader_epoch=epoch)
    engine.insert(INSERT, builder.finish())
    found = engine.query(
        "SELECT partition, leader_epoch, count() FROM messages GROUP BY ALL ORDER BY partition",
        "JSONCompactEachRow",
    )
    rows = [json.loads(line) for line in found.splitlines()]
    assert rows == [[partition, epoch, 2] for partition, epoch in enumerate(epochs)]


def test_inserting_a_block_without_rows_stores_no_row(engine: ChdbProcess) -> None:
    engine.insert(
        INSERT, COMPILED.BlockBuilder(0).finish(), builder_of(batch_of(Record())).finish()
    )
    assert engine.query("SELECT count() FROM messages", "CSV") == b"1\n"
    assert rows_in(engine) == stored(batch_of(Record()), 0)


def test_a_result_of_several_blocks_is_encoded_completely(engine: ChdbProcess) -> None:
    batch = batch_of(*[Record(index, value=b"%d" % index) for index in range(5000)])
    engine.insert(INSERT, builder_of(batch).finish())
    block = engine.query(f"{SELECT} ORDER BY offset SETTINGS max_block_size = 512")
    assert block.count(b"\x06offset\x05Int64") > 1
    for max_batch_bytes in (0, 5000, 1 << 20):
        batches = COMPILED.encode_batches(block, max_batch_bytes)
        rows = [row for one in batches for row in make.decoded(one.data)]
        assert rows == stored(batch, 0)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(make.batches(), min_size=1, max_size=4), now_ms=st.none() | st.just(99))
def test_any_valid_batches_read_back_unchanged(
    engine: ChdbProcess, batches: list[Batch], now_ms: int | None
) -> None:
    engine.query("TRUNCATE TABLE messages")
    engine.insert(INSERT, builder_of(*batches, log_append_time_ms=now_ms).finish())
    expected, offset = [], 0
    for batch in batches:
        rows = stored(batch, offset)
        if now_ms is not None:
            rows = [replace(row, timestamp_ms=now_ms, timestamp_type=1) for row in rows]
        expected += rows
        offset += batch.count
    assert rows_in(engine, 2000) == expected
