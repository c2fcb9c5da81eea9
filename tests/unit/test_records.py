"""Record batches and columns: the compiled modules and the reference agree, also on batches that
kafka-python and aiokafka build."""

from __future__ import annotations

import random
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import crc32c
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioKafkaBuilder
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from brokerhouse.protocol.columns import COLUMNS
from brokerhouse.protocol.compression import decompress
from brokerhouse.protocol.errors import (
    InvalidRecord,
    RecordsWithoutKey,
)
from tests.reference.decode_batches import INDEXES_TOLD
from tests.support import record_batches as make
from tests.support.record_batches import Batch, Mutation, Record, Row, batch_of
from tests.support.record_codecs import (
    BOTH,
    COMPILED,
    REFERENCE,
    TOPIC_ID,
    append,
    block_of,
    fields,
    outcome,
)

# --- the two modules agree ---


def test_both_modules_write_and_read_the_same_columns() -> None:
    assert COMPILED.BlockBuilder.COLUMNS == COLUMNS
    assert REFERENCE.BlockBuilder.COLUMNS == COLUMNS


@given(st.lists(make.batches(), max_size=4))
def test_headers_of_batches_are_read_as_written(batches: list[Batch]) -> None:
    data = b"".join(batch.data for batch in batches)
    compiled, reference = COMPILED.parse_headers(data), REFERENCE.parse_headers(memoryview(data))
    assert [fields(header) for header in compiled] == [fields(header) for header in reference]
    assert [data[header.start : header.end] for header in reference] == [b.data for b in batches]
    inside, end = b"before" + data + b"after", 6 + len(data)
    for module in (COMPILED, REFERENCE):
        found = [inside[one.start : one.end] for one in module.parse_headers(inside, 6, end)]
        assert found == [batch.data for batch in batches]
    for batch, header in zip(batches, reference, strict=True):
        for name, value in asdict(batch).items():
            if name not in ("payload", "last_offset_delta"):
                assert getattr(header, name) == value
        assert header.last_offset_delta == batch.count - 1
    for ours, theirs in zip(compiled, reference, strict=True):
        for name in ("codec", "timestamp_type", "transactional", "control", "last_sequence"):
            assert getattr(ours, name) == getattr(theirs, name)
        COMPILED.check_crc(data, ours)
        REFERENCE.check_crc(data, theirs)


@given(st.lists(make.batches(), min_size=1, max_size=3), make.mutations())
def test_damaged_batches_are_accepted_or_refused_alike(
    batches: list[Batch], mutations: list[Mutation]
) -> None:
    data = make.spoil(b"".join(batch.data for batch in batches), mutations)

    def headers(module: Any) -> list[dict[str, Any]]:
        return [fields(header) for header in module.parse_headers(data)]

    def checked(module: Any) -> None:
        for header in module.parse_headers(data):
            module.check_crc(data, header)

    def inside(module: Any) -> list[dict[str, Any]]:
        around = b"before" + data + b"after"
        return [fields(header) for header in module.parse_headers(around, 6, 6 + len(data))]

    assert outcome(lambda: headers(COMPILED)) == outcome(lambda: headers(REFERENCE))
    assert outcome(lambda: inside(COMPILED)) == outcome(lambda: inside(REFERENCE))
    assert outcome(lambda: checked(COMPILED)) == outcome(lambda: checked(REFERENCE))


@given(st.binary(max_size=200))
def test_random_bytes_are_not_a_batch(data: bytes) -> None:
    expected = outcome(lambda: [fields(header) for header in REFERENCE.parse_headers(data)])
    assert outcome(lambda: [fields(h) for h in COMPILED.parse_headers(data)]) == expected


PLACES = st.tuples(
    st.sampled_from(["", "a", "b", "topic-ä", "x" * 200]),
    st.sampled_from([0, 1, 2**31 - 1]),
    st.one_of(st.just(0), st.integers(0, 2**62)),
    st.none() | st.sampled_from([-(2**63), -1, 0, 1_700_000_000_000, 2**63 - 1]),
    st.sampled_from([-(2**31), -1, 0, 1, 2**31 - 1]),
    st.sampled_from([-1, 0, 2**63 - 1]),
)


@given(st.lists(st.tuples(make.batches(), PLACES), max_size=5), st.integers(*make.INT64))
def test_both_modules_decode_batches_into_the_same_block(
    batches: list[tuple[Batch, tuple[str, int, int, int | None, int, int]]], append_time_ms: int
) -> None:
    blocks = []
    for module in BOTH:
        builder = module.BlockBuilder(append_time_ms)
        for batch, (topic, partition, offset, log_time_ms, epoch, start) in batches:
            append(
                module,
                builder,
                batch,
                offset,
                topic,
                partition,
                log_time_ms,
                epoch,
                transaction_start=start,
            )
        assert builder.rows == sum(batch.count for batch, _ in batches)
        blocks.append(builder.finish())
        assert builder.bytes == len(blocks[-1])
        assert builder.finish() == blocks[-1]
    assert blocks[0] == blocks[1]


@given(make.batches(), make.mutations(), st.integers(-1, 1))
def test_damaged_records_are_accepted_or_refused_alike_and_a_refusal_changes_nothing(
    batch: Batch, mutations: list[Mutation], lie: int
) -> None:
    spoilt = replace(batch, payload=make.spoil(batch.payload, mutations), count=batch.count + lie)
    results = []
    for module in BOTH:
        builder = module.BlockBuilder(0)
        append(module, builder, batch, topic="before")
        before = builder.rows, builder.bytes, builder.finish()
        result, _ = outcome(partial(append, module, builder, spoilt, topic="spoilt"))
        if result is not None:
            assert result is InvalidRecord
            assert (builder.rows, builder.bytes, builder.finish()) == before
        append(module, builder, batch, topic="after")
        results.append((result, builder.finish()))
    assert results[0] == results[1]


@given(st.lists(st.sampled_from([None, b"", b"key"]), min_size=1, max_size=12))
def test_records_without_a_key_are_found_alike_and_change_nothing(
    keys: list[bytes | None],
) -> None:
    batch = batch_of(*(Record(key=key, headers=((b"h", None),)) for key in keys))
    keyless = tuple(index for index, key in enumerate(keys) if key is None)
    blocks = []
    for module in BOTH:
        builder = module.BlockBuilder(0)
        append(module, builder, batch, topic="before")
        before = builder.rows, builder.bytes, builder.finish()
        if keyless:
            with pytest.raises(RecordsWithoutKey) as refused:
                append(module, builder, batch, topic="compacted", keyed=True)
            assert (refused.value.indexes, refused.value.count) == (keyless, len(keyless))
            assert (builder.rows, builder.bytes, builder.finish()) == before
        else:
            append(module, builder, batch, topic="compacted", keyed=True)
        append(module, builder, batch, topic="after")
        blocks.append(builder.finish())
    assert blocks[0] == blocks[1]


def test_only_the_first_of_many_records_without_a_key_are_named(module: Any) -> None:
    batch = batch_of(*(Record() for _ in range(2 * INDEXES_TOLD)))
    with pytest.raises(RecordsWithoutKey) as refused:
        append(module, module.BlockBuilder(0), batch, keyed=True)
    assert refused.value.indexes == tuple(range(INDEXES_TOLD))
    assert refused.value.count == 2 * INDEXES_TOLD


@given(st.binary(max_size=60), st.integers(-2, 8))
def test_random_bytes_are_not_records(payload: bytes, count: int) -> None:
    results = [outcome(partial(block_of, module, Batch(payload, count))) for module in BOTH]
    assert results[0] == results[1]


@given(make.partition_rows(), st.integers(0, 12), st.sampled_from([0, 61, 90, 200, 2**31, 2**40]))
def test_both_modules_encode_rows_into_the_same_batches_and_read_them_back(
    rows: list[Row], split: int, max_batch_bytes: int
) -> None:
    block = make.read_block(rows[:split]) + make.read_block(rows[split:])
    batches = COMPILED.encode_batches(block, max_batch_bytes)
    reference = REFERENCE.encode_batches(block, max_batch_bytes)
    assert [fields(batch) for batch in batches] == [fields(batch) for batch in reference]
    found = [make.decoded(batch.data) for batch in batches]
    assert [row for rows_ in found for row in rows_] == rows
    for batch, rows_ in zip(batches, found, strict=True):
        assert (batch.base_offset, batch.last_offset) == (rows_[0].offset, rows_[-1].offset)
        assert batch.max_timestamp == max(row.timestamp_ms for row in rows_)
        assert len(rows_) == 1 or len(batch.data) <= max_batch_bytes
        assert len(rows_) == 1 or not any(row.control for row in rows_)


@given(make.partition_rows(), make.mutations())
def test_damaged_blocks_are_accepted_or_refused_alike(
    rows: list[Row], mutations: list[Mutation]
) -> None:
    block = make.spoil(make.read_block(rows), mutations)

    def batches(module: Any) -> list[dict[str, Any]]:
        return [fields(batch) for batch in module.encode_batches(block, 1000)]

    results = [outcome(partial(batches, module)) for module in BOTH]
    assert results[0] == results[1]
    assert results[0][0] in (None, ValueError)


@pytest.mark.parametrize("size", [1535, 1536, 1537, 3072, 5000, 20_000])
def test_the_checksum_of_long_data_is_crc32c(size: int) -> None:
    data = random.Random(size).randbytes(size)
    expected = crc32c.crc32c(data)
    assert COMPILED.crc32c(data) == COMPILED.crc32c(data, hardware=False) == expected


@given(st.binary(max_size=600), st.integers(0, 8))
def test_the_checksum_is_crc32c_with_the_instruction_and_without(data: bytes, start: int) -> None:
    view = memoryview(data)[start:]
    expected = crc32c.crc32c(bytes(view))
    assert COMPILED.crc32c(view) == expected
    assert COMPILED.crc32c(view, hardware=False) == expected
    assert REFERENCE.crc32c(view) == expected


# --- batches that clients build ---


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_batches_of_kafka_python_and_aiokafka_are_read(module: Any, codec: int) -> None:
    for builder in (
        KafkaPythonBuilder(2, codec, False, 5, 1, 100, 1 << 20),
        AioKafkaBuilder(2, codec, False, 5, 1, 100, 1 << 20),
    ):
        for index in range(20):
            builder.append(
                index, timestamp=1000 - index, key=None, value=b"v" * 100, headers=[("h", None)]
            )
        data = bytes(builder.build())
        (header,) = module.parse_headers(data)
        module.check_crc(data, header)
        assert (header.codec, header.count, header.last_sequence) == (codec, 20, 119)
        payload = decompress(header.codec, memoryview(data)[61:], 1 << 20)
        block = module.BlockBuilder(0)
        block.append("t", TOPIC_ID, 0, 7, 3, header, payload, None)
        expected = module.BlockBuilder(0)
        rows = [Record(-index, None, b"v" * 100, ((b"h", None),)) for index in range(20)]
        batch = batch_of(
            *rows, base_timestamp=1000, producer_id=5, producer_epoch=1, base_sequence=100
        )
        append(module, expected, batch, 7, "t")
        assert block.finish() == expected.finish()


def test_kafka_python_reads_what_is_encoded(module: Any) -> None:
    rows = [
        Row(5, -1, key=None, value=b"", headers=(("ä".encode(), None), (b"", b"")), leader_epoch=4),
        Row(9, 2**62, key=b"k", value=None, headers=((b"x", b"1"), (b"x", b"2")), leader_epoch=4),
    ]
    (encoded,) = module.encode_batches(make.read_block(rows), 1 << 20)
    batch = KafkaPythonBatch(encoded.data)
    assert batch.validate_crc()
    assert (batch.base_offset, batch.leader_epoch, batch.max_timestamp) == (5, 4, 2**62)
    assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in batch] == [
        (5, -1, None, b"", [("ä", None), ("", b"")]),
        (9, 2**62, b"k", None, [("x", b"1"), ("x", b"2")]),
    ]
