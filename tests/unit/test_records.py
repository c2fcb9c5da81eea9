"""Record batches and columns: the compiled module against the reference, and both against batches
and blocks that the tests (and kafka-python, and aiokafka) write."""

from __future__ import annotations

import resource
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TypeVar

import crc32c
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioKafkaBuilder
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from protocol.columns import COLUMNS
from protocol.compression import decompress
from protocol.decode_batches import INDEXES_TOLD
from protocol.errors import (
    CorruptMessage,
    InvalidRecord,
    RecordsWithoutKey,
    UnsupportedForMessageFormat,
)
from tests.support import record_batches as make
from tests.support.record_batches import Batch, Mutation, Record, Row, batch_of
from tests.support.record_codecs import COMPILED, REFERENCE

T = TypeVar("T")
TOPIC_ID = bytes(range(16))
BOTH: list[Any] = [COMPILED, REFERENCE]
HEADER_FIELDS = [name for name in REFERENCE.BatchHeader.__slots__ if name not in ("start", "end")]


@pytest.fixture(params=BOTH, ids=["compiled", "reference"])
def module(request: pytest.FixtureRequest) -> Any:
    """Each of the two modules in turn. They have one interface and no common type to name it."""
    return request.param


def outcome(call: Callable[[], T]) -> tuple[type[Exception], None] | tuple[None, T]:
    """What a call gives, or the class of what it raises: enough to say that two agree."""
    try:
        return None, call()
    except Exception as error:
        return type(error), None


def fields(value: Any) -> dict[str, Any]:
    """A header or encoded batch of either module, as a dictionary."""
    names = type(value).__slots__ if hasattr(value, "__slots__") else None
    if names is None:
        kind = REFERENCE.BatchHeader if hasattr(value, "crc") else REFERENCE.EncodedBatch
        names = kind.__slots__
    return {name: getattr(value, name) for name in names}


def header_of(module: Any, batch: Batch) -> Any:
    (header,) = module.parse_headers(batch.data)
    return header


def append(
    module: Any,
    builder: Any,
    batch: Batch,
    base_offset: int = 0,
    topic: str = "topic",
    partition: int = 0,
    log_append_time_ms: int | None = None,
    leader_epoch: int = 3,
    keyed: bool = False,
) -> None:
    header = header_of(module, batch)
    payload = memoryview(batch.data)[header.start + 61 : header.end]
    builder.append(
        topic,
        TOPIC_ID,
        partition,
        base_offset,
        leader_epoch,
        header,
        payload,
        log_append_time_ms,
        keyed,
    )


def block_of(module: Any, *batches: Batch, log_append_time_ms: int | None = None) -> bytes:
    builder = module.BlockBuilder(1_700_000_000_000)
    offset = 0
    for batch in batches:
        append(module, builder, batch, offset, log_append_time_ms=log_append_time_ms)
        offset += batch.count
    block: bytes = builder.finish()
    return block


# --- the two modules agree ---


def test_both_modules_write_and_read_the_same_columns() -> None:
    assert COMPILED.BlockBuilder.COLUMNS == COLUMNS
    assert REFERENCE.BlockBuilder.COLUMNS == COLUMNS


@given(st.lists(make.batches(), max_size=4))
def test_headers_of_sound_batches_are_what_was_written(batches: list[Batch]) -> None:
    data = b"".join(batch.data for batch in batches)
    compiled, reference = COMPILED.parse_headers(data), REFERENCE.parse_headers(memoryview(data))
    assert [fields(header) for header in compiled] == [fields(header) for header in reference]
    assert [data[header.start : header.end] for header in reference] == [b.data for b in batches]
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
def test_spoilt_batches_are_taken_or_refused_alike(
    batches: list[Batch], mutations: list[Mutation]
) -> None:
    data = make.spoil(b"".join(batch.data for batch in batches), mutations)

    def headers(module: Any) -> list[dict[str, Any]]:
        return [fields(header) for header in module.parse_headers(data)]

    def checked(module: Any) -> None:
        for header in module.parse_headers(data):
            module.check_crc(data, header)

    assert outcome(lambda: headers(COMPILED)) == outcome(lambda: headers(REFERENCE))
    assert outcome(lambda: checked(COMPILED)) == outcome(lambda: checked(REFERENCE))


@given(st.binary(max_size=200))
def test_garbage_is_no_batch(data: bytes) -> None:
    expected = outcome(lambda: [fields(header) for header in REFERENCE.parse_headers(data)])
    assert outcome(lambda: [fields(h) for h in COMPILED.parse_headers(data)]) == expected


PLACES = st.tuples(
    st.sampled_from(["", "a", "b", "topic-ä", "x" * 200]),
    st.sampled_from([0, 1, 2**31 - 1]),
    st.one_of(st.just(0), st.integers(0, 2**62)),
    st.none() | st.sampled_from([-(2**63), -1, 0, 1_700_000_000_000, 2**63 - 1]),
    st.sampled_from([-(2**31), -1, 0, 1, 2**31 - 1]),
)


@given(st.lists(st.tuples(make.batches(), PLACES), max_size=5), st.integers(*make.INT64))
def test_sound_batches_become_the_same_block(
    batches: list[tuple[Batch, tuple[str, int, int, int | None, int]]], append_time_ms: int
) -> None:
    blocks = []
    for module in BOTH:
        builder = module.BlockBuilder(append_time_ms)
        for batch, (topic, partition, offset, log_append_time_ms, leader_epoch) in batches:
            append(
                module, builder, batch, offset, topic, partition, log_append_time_ms, leader_epoch
            )
        assert builder.rows == sum(batch.count for batch, _ in batches)
        blocks.append(builder.finish())
        assert builder.bytes == len(blocks[-1])
        assert builder.finish() == blocks[-1]
    assert blocks[0] == blocks[1]


@given(make.batches(), make.mutations(), st.integers(-1, 1))
def test_spoilt_records_are_taken_or_refused_alike_and_a_refusal_changes_nothing(
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
def test_records_without_a_key_are_told_apart_alike_and_change_nothing(
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


def test_of_many_records_without_a_key_only_the_first_are_named(module: Any) -> None:
    batch = batch_of(*(Record() for _ in range(2 * INDEXES_TOLD)))
    with pytest.raises(RecordsWithoutKey) as refused:
        append(module, module.BlockBuilder(0), batch, keyed=True)
    assert refused.value.indexes == tuple(range(INDEXES_TOLD))
    assert refused.value.count == 2 * INDEXES_TOLD


@given(st.binary(max_size=60), st.integers(-2, 8))
def test_garbage_is_no_records(payload: bytes, count: int) -> None:
    results = [outcome(partial(block_of, module, Batch(payload, count))) for module in BOTH]
    assert results[0] == results[1]


@given(make.partition_rows(), st.integers(0, 12), st.sampled_from([0, 61, 90, 200, 2**31, 2**40]))
def test_rows_become_the_same_batches_and_come_back(
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
def test_spoilt_blocks_are_taken_or_refused_alike(
    rows: list[Row], mutations: list[Mutation]
) -> None:
    block = make.spoil(make.read_block(rows), mutations)

    def batches(module: Any) -> list[dict[str, Any]]:
        return [fields(batch) for batch in module.encode_batches(block, 1000)]

    results = [outcome(partial(batches, module)) for module in BOTH]
    assert results[0] == results[1]
    assert results[0][0] in (None, ValueError)


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


# --- headers ---


def test_no_bytes_are_no_batches(module: Any) -> None:
    assert module.parse_headers(b"") == []


@pytest.mark.parametrize("magic", [0, 1])
def test_older_message_formats_are_named_as_such(module: Any, magic: int) -> None:
    with pytest.raises(UnsupportedForMessageFormat):
        module.parse_headers(replace(batch_of(Record()), magic=magic).data)
    with pytest.raises(UnsupportedForMessageFormat):
        module.parse_headers(bytes(16) + bytes([magic]))


@pytest.mark.parametrize("magic", [-128, -1, 3, 127])
def test_a_format_that_does_not_exist_is_corrupt(module: Any, magic: int) -> None:
    with pytest.raises(CorruptMessage):
        module.parse_headers(replace(batch_of(Record()), magic=magic).data)


def test_a_batch_cut_anywhere_is_corrupt(module: Any) -> None:
    data = batch_of(Record(), Record()).data
    for end in range(1, len(data)):
        with pytest.raises(CorruptMessage):
            module.parse_headers(data[:end])
        with pytest.raises(CorruptMessage):
            module.parse_headers(data + data[:end])


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48, 2**31 - 1])
def test_a_length_that_cannot_be_is_corrupt(module: Any, length: int) -> None:
    data = bytearray(batch_of(Record()).data)
    data[8:12] = length.to_bytes(4, signed=True)
    with pytest.raises(CorruptMessage):
        module.parse_headers(bytes(data))


def test_any_changed_bit_behind_the_crc_is_corrupt(module: Any) -> None:
    data = batch_of(Record(key=b"k")).data
    for bit in range(17 * 8, len(data) * 8):
        spoilt = bytearray(data)
        spoilt[bit // 8] ^= 1 << bit % 8
        (header,) = module.parse_headers(bytes(spoilt))
        with pytest.raises(CorruptMessage):
            module.check_crc(bytes(spoilt), header)


def test_a_header_of_other_records_is_a_mistake_of_the_caller(module: Any) -> None:
    data = batch_of(Record(), Record()).data
    (header,) = module.parse_headers(data)
    calls: list[Callable[[], object]] = [
        lambda: module.check_crc(data[:-1], header),
        lambda: module.stamp_batch(data[:-1], header, 0, 0, None),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="not one of these records"):
            call()


@pytest.mark.parametrize(
    ("base", "count", "last"),
    [(-1, 3, -1), (0, 1, 0), (2**31 - 1, 1, 2**31 - 1), (2**31 - 1, 2, 0), (2**31 - 2, 4, 1)],
)
def test_sequences_wrap_to_zero(module: Any, base: int, count: int, last: int) -> None:
    batch = batch_of(*[Record()] * count, producer_id=1, base_sequence=base)
    assert header_of(module, batch).last_sequence == last


# --- stamping ---


@given(make.batches(), st.integers(0, 2**63 - 1), st.integers(*make.INT32))
def test_stamping_sets_offset_and_epoch_and_leaves_what_the_crc_covers(
    batch: Batch, base_offset: int, leader_epoch: int
) -> None:
    data = b"xx" + batch.data + b"yy"
    expected = replace(batch, base_offset=base_offset, leader_epoch=leader_epoch).data
    for module in BOTH:
        header = moved(module, header_of(module, batch), 2)
        assert module.stamp_batch(data, header, base_offset, leader_epoch, None) == expected


@given(make.batches(), st.integers(*make.INT64))
def test_log_append_time_is_in_the_batch_and_in_its_crc(batch: Batch, now_ms: int) -> None:
    expected = replace(
        batch,
        base_offset=9,
        leader_epoch=1,
        attributes=batch.attributes | 8,
        max_timestamp=now_ms,
    ).data
    for module in BOTH:
        header = header_of(module, batch)
        assert module.stamp_batch(batch.data, header, 9, 1, now_ms) == expected


def moved(module: Any, header: Any, by: int) -> Any:
    values = fields(header)
    values["start"] += by
    values["end"] += by
    return module.BatchHeader(**values)


# --- records to rows ---


def record_bytes(*parts: bytes, length: int | None = None, attributes: bytes = b"\0") -> bytes:
    body = attributes + b"".join(parts)
    return make.varint(len(body) if length is None else length) + body


ZERO, NULL, ONE = make.varint(0), make.varint(-1), make.varint(1)
SPOILT: dict[str, tuple[bytes, int]] = {
    "no records": (b"", 0),
    "a negative count": (record_bytes(ZERO, ZERO, NULL, NULL, ZERO), -1),
    "a record less than the count": (record_bytes(ZERO, ZERO, NULL, NULL, ZERO), 2),
    "a record more than the count": (record_bytes(ZERO, ZERO, NULL, NULL, ZERO) * 2, 1),
    "a byte after the last record": (record_bytes(ZERO, ZERO, NULL, NULL, ZERO) + b"\0", 1),
    "a byte left over in a record": (record_bytes(ZERO, ZERO, NULL, NULL, ZERO, b"\0"), 1),
    "an empty record": (ZERO * 8, 1),
    "a negative record length": (NULL + bytes(8), 1),
    "a record longer than the batch": (
        record_bytes(ZERO, ZERO, NULL, NULL, ZERO, length=7),
        1,
    ),
    "a value that reaches into the next record": (
        record_bytes(ZERO, ZERO, NULL, make.varint(8), ZERO)
        + record_bytes(ZERO, ONE, NULL, NULL, ZERO),
        2,
    ),
    "the second offset delta not one": (record_bytes(ZERO, ZERO, NULL, NULL, ZERO) * 2, 2),
    "the first offset delta not zero": (record_bytes(ZERO, ONE, NULL, NULL, ZERO), 1),
    "a key longer than its record": (record_bytes(ZERO, ZERO, make.varint(9), NULL, ZERO), 1),
    "a key of length -2": (record_bytes(ZERO, ZERO, make.varint(-2), NULL, ZERO), 1),
    "a value longer than its record": (record_bytes(ZERO, ZERO, NULL, make.varint(9), ZERO), 1),
    "a value of length -2": (record_bytes(ZERO, ZERO, NULL, make.varint(-2), ZERO), 1),
    "a negative header count": (record_bytes(ZERO, ZERO, NULL, NULL, NULL), 1),
    "two thousand million headers": (
        record_bytes(ZERO, ZERO, NULL, NULL, make.varint(2**31 - 1)),
        1,
    ),
    "fewer headers than counted": (
        record_bytes(ZERO, ZERO, NULL, NULL, make.varint(2), ZERO, ZERO),
        1,
    ),
    "a header with a null key": (record_bytes(ZERO, ZERO, NULL, NULL, ONE, NULL, ZERO), 1),
    "a header key longer than its record": (
        record_bytes(ZERO, ZERO, NULL, NULL, ONE, make.varint(5), ZERO),
        1,
    ),
    "a header value of length -2": (
        record_bytes(ZERO, ZERO, NULL, NULL, ONE, ZERO, make.varint(-2)),
        1,
    ),
    "a header value longer than its record": (
        record_bytes(ZERO, ZERO, NULL, NULL, ONE, ZERO, make.varint(1)),
        1,
    ),
    "a length of six bytes": (b"\x8c\x80\x80\x80\x80\x00" + bytes(6), 1),
    "a length of 33 bits": (b"\x8c\x80\x80\x80\x10" + bytes(6), 1),
    "a timestamp delta of 65 bits": (record_bytes(b"\xff" * 9 + b"\2", ZERO, NULL, NULL, ZERO), 1),
    "a timestamp delta of eleven bytes": (
        record_bytes(b"\x80" * 10 + b"\0", ZERO, NULL, NULL, ZERO),
        1,
    ),
    "a number cut by the end": (record_bytes(ZERO, ZERO, NULL, NULL, b"\x80"), 1),
}


@pytest.mark.parametrize("name", SPOILT)
def test_records_are_invalid_when_there_is(module: Any, name: str) -> None:
    payload, count = SPOILT[name]
    builder = module.BlockBuilder(0)
    append(module, builder, batch_of(Record()))
    before = builder.finish()
    with pytest.raises(InvalidRecord):
        append(module, builder, Batch(payload, count))
    assert builder.finish() == before


def test_numbers_may_be_longer_than_they_need(module: Any) -> None:
    payload = record_bytes(b"\x80" * 9 + b"\0", b"\x80\x80\x80\x80\0", NULL, NULL, b"\x80\0")
    assert block_of(module, Batch(payload, 1)) == block_of(
        module, batch_of(Record(0, None, None, ()))
    )


def test_the_last_offset_delta_must_be_that_of_the_last_record(module: Any) -> None:
    for delta in (-1, 0, 2, 2**31 - 1):
        with pytest.raises(InvalidRecord):
            block_of(module, replace(batch_of(Record(), Record()), last_offset_delta=delta))


def test_a_records_attributes_mean_nothing(module: Any) -> None:
    strange = record_bytes(ZERO, ZERO, NULL, NULL, ZERO, attributes=b"\xff")
    assert block_of(module, Batch(strange, 1)) == block_of(
        module, batch_of(Record(0, None, None, ()))
    )


def test_a_claimed_count_takes_no_memory(module: Any) -> None:
    batch = Batch(bytes(700), 2**31 - 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InvalidRecord, match="claims 2147483647 records in 700 bytes"):
        block_of(module, batch)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16_384


def test_refusals_leak_nothing() -> None:
    sound = [Record(value=b"x" * 1000)] * 1000
    spoilt = Batch(make.encode_records(sound) + b"\0", 1000)
    block = make.read_block([Row(offset, value=b"x" * 1000) for offset in range(1000)])

    def refuse_everything() -> None:
        for _ in range(50):
            with pytest.raises(InvalidRecord):
                block_of(COMPILED, batch_of(*sound), spoilt)
            with pytest.raises(ValueError, match="cut"):
                COMPILED.encode_batches(block[:-1], 1 << 20)
            with pytest.raises(ValueError, match="offset"):
                COMPILED.encode_batches(block + block, 1 << 20)

    refuse_everything()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refuse_everything()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16_384


def test_a_refused_batch_leaves_the_batches_around_it(module: Any) -> None:
    good = batch_of(Record(headers=((b"a", None),)), Record(key=b"k"))
    bad = Batch(good.payload[:-1], 2)
    builder, expected = module.BlockBuilder(1), module.BlockBuilder(1)
    for index, topic in enumerate(["a", "b", "a", "c"]):
        append(module, builder, good, index * 10, topic, index)
        append(module, expected, good, index * 10, topic, index)
        with pytest.raises(InvalidRecord):
            append(module, builder, bad, index * 10, f"only in the refused batch {index}", index)
        assert builder.rows == expected.rows == 2 * (index + 1)
        assert builder.bytes == expected.bytes
    assert builder.finish() == expected.finish()


@pytest.mark.parametrize("topics", [254, 255, 256, 65_535, 65_536])
def test_many_topics_widen_the_indexes_of_the_dictionary(topics: int) -> None:
    batch = batch_of(Record(value=None))
    builder = COMPILED.BlockBuilder(0)
    reference = REFERENCE.BlockBuilder(0)
    ours, theirs = header_of(COMPILED, batch), header_of(REFERENCE, batch)
    for index in range(topics):
        builder.append(f"t{index}", TOPIC_ID, 0, 0, 0, ours, batch.payload, None)
        reference.append(f"t{index}", TOPIC_ID, 0, 0, 0, theirs, batch.payload, None)
    assert builder.bytes == len(builder.finish())
    assert builder.finish() == reference.finish()


def test_offsets_past_the_last_one_are_a_mistake_of_the_caller(module: Any) -> None:
    batch = batch_of(Record(), Record())
    builder = module.BlockBuilder(0)
    append(module, builder, batch, 2**63 - 2)
    for offset in (-1, 2**63 - 1):
        with pytest.raises(ValueError, match="out of range"):
            append(module, builder, batch, offset)
    for offset in (2**63, -(2**63) - 1):
        with pytest.raises(OverflowError):
            append(module, builder, batch, offset)
    assert builder.rows == 2


def test_a_topic_id_has_sixteen_bytes(module: Any) -> None:
    batch = batch_of(Record())
    builder = module.BlockBuilder(0)
    for size in (0, 15, 17):
        with pytest.raises(ValueError, match="16 bytes"):
            builder.append("t", bytes(size), 0, 0, 0, header_of(module, batch), batch.payload, None)


def test_an_empty_builder_gives_a_block_without_rows(module: Any) -> None:
    block = module.BlockBuilder(0).finish()
    assert block[:2] == bytes([len(COLUMNS), 0])
    assert block.endswith(b"DateTime64(3)")


def test_other_threads_run_while_records_are_read_and_batches_written() -> None:
    batch = batch_of(*[Record(value=b"x" * 100)] * 30_000)
    blocks = [
        make.read_block([Row(start + index, value=b"x" * 300) for index in range(300)])
        for start in range(0, 6000, 300)
    ]
    block = b"".join(blocks)
    for work in (
        lambda: block_of(COMPILED, batch),
        lambda: COMPILED.encode_batches(block, 1 << 20),
    ):
        assert runs_beside(work)


def take_a_turn(gate: threading.Event, turns: list[int]) -> None:
    gate.wait()
    turns.append(1)


def runs_beside(work: Callable[[], object]) -> bool:
    """Whether another thread gets a turn during `work`.

    No turn is ever forced, since the switch interval is far longer than the test: only a released
    GIL gives one.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(3600)
    try:
        for _ in range(200):
            gate, turns = threading.Event(), list[int]()
            thread = threading.Thread(target=take_a_turn, args=(gate, turns))
            thread.start()
            gate.set()
            work()
            had_a_turn = bool(turns)
            thread.join()
            if had_a_turn:
                return True
        return False
    finally:
        sys.setswitchinterval(interval)


# --- rows to batches ---


def encoded(module: Any, *rows: Row, max_batch_bytes: int = 1 << 20) -> list[list[int]]:
    """The offsets of each batch that the rows become."""
    batches = module.encode_batches(make.read_block(rows), max_batch_bytes)
    return [[row.offset for row in make.decoded(batch.data)] for batch in batches]


CUT_OR_WRONG = r"cut|column|fit|too long|do not grow"
ROW = Row(10, 100, producer_id=5, producer_epoch=0, sequence=50)
NEXT = replace(ROW, offset=11, sequence=51)


def test_rows_in_step_are_one_batch_and_gaps_do_not_end_it(module: Any) -> None:
    later = replace(ROW, offset=20, sequence=60)
    assert encoded(module, ROW, NEXT, later) == [[10, 11, 20]]
    far = replace(ROW, offset=10 + 2**31 - 1, producer_id=-1, sequence=-1)
    assert encoded(module, replace(ROW, producer_id=-1, sequence=-1), far) == [[10, far.offset]]


@pytest.mark.parametrize(
    "change",
    [
        {"producer_id": 6},
        {"producer_id": -1, "sequence": -1},
        {"producer_epoch": 1},
        {"transactional": True},
        {"control": True},
        {"timestamp_type": 1},
        {"leader_epoch": 1},
        {"sequence": 50},
        {"sequence": 52},
        {"sequence": -1},
        {"offset": 12},
        {"offset": 10 + 2**31, "sequence": 50 + 2**31 - 51},
    ],
    ids=str,
)
def test_a_new_batch_starts_where_a_row_says(module: Any, change: dict[str, int]) -> None:
    other = replace(NEXT, **change)  # type: ignore[arg-type]
    assert encoded(module, ROW, other) == [[10], [other.offset]]


def test_a_new_batch_starts_where_the_sequence_wraps(module: Any) -> None:
    rows = [replace(ROW, offset=i, sequence=(2**31 - 2 + i) % 2**31) for i in range(4)]
    assert encoded(module, *rows) == [[0, 1], [2, 3]]


def test_rows_of_a_producer_without_sequences_are_one_batch(module: Any) -> None:
    rows = [replace(ROW, offset=i, sequence=-1) for i in range(3)]
    assert encoded(module, *rows) == [[0, 1, 2]]


def test_every_control_row_is_a_batch(module: Any) -> None:
    rows = [replace(ROW, offset=i, sequence=-1, control=True) for i in range(3)]
    assert encoded(module, *rows, replace(ROW, offset=3)) == [[0], [1], [2], [3]]


def test_a_batch_has_one_log_append_time_and_any_create_times(module: Any) -> None:
    rows = [replace(ROW, offset=i, sequence=i, timestamp_ms=i // 2) for i in range(4)]
    assert encoded(module, *rows) == [[0, 1, 2, 3]]
    rows = [replace(row, timestamp_type=1) for row in rows]
    assert encoded(module, *rows) == [[0, 1], [2, 3]]


def test_a_batch_grows_to_the_limit_and_has_one_record_at_least(module: Any) -> None:
    rows = [Row(i, value=b"x" * 91) for i in range(5)]  # 100 bytes each in a batch
    for limit, expected in (
        (0, [[0], [1], [2], [3], [4]]),
        (260, [[0], [1], [2], [3], [4]]),
        (261, [[0, 1], [2, 3], [4]]),
        (361, [[0, 1, 2], [3, 4]]),
        (561, [[0, 1, 2, 3, 4]]),
    ):
        assert encoded(module, *rows, max_batch_bytes=limit) == expected


def test_a_batch_spans_blocks(module: Any) -> None:
    rows = [Row(i) for i in range(6)]
    parts = [make.read_block(part) for part in (rows[:2], [], rows[2:3], rows[3:])]
    (batch,) = module.encode_batches(b"".join(parts), 1 << 20)
    assert make.decoded(batch.data) == rows
    assert module.encode_batches(b"", 1 << 20) == []
    assert module.encode_batches(make.read_block([]), 1 << 20) == []


def test_rows_out_of_order_are_refused(module: Any) -> None:
    for offsets in ([1, 1], [2, 1]):
        with pytest.raises(ValueError, match="order of offset"):
            encoded(module, *[Row(offset) for offset in offsets])
    one = make.read_block([Row(1)])
    with pytest.raises(ValueError, match="order of offset"):
        module.encode_batches(one + one, 1 << 20)


def test_a_block_of_other_columns_is_refused_by_name(module: Any) -> None:
    block = make.read_block([Row(1)])
    for old, new, match in (
        (b"\x06offset", b"\x06offsex", "column 0 of the block is not `offset` Int64"),
        (
            b"producer_epoch\x05Int16",
            b"producer_epoch\x05Int61",
            "column 7.*`producer_epoch` Int16",
        ),
        (b"'LogAppendTime' = 1", b"'LogAppendTime' = 2", "column 2"),
        (b"\x0c\x01", b"\x0b\x01", "the block has 11 columns, expected 12"),
    ):
        assert old in block
        with pytest.raises(ValueError, match=match):
            module.encode_batches(block.replace(old, new), 1 << 20)


def test_a_block_cut_anywhere_is_refused(module: Any) -> None:
    block = make.read_block([Row(1, key=b"k", value=b"v", headers=((b"h", b"v"),))] * 1)
    for end in range(1, len(block)):
        with pytest.raises(ValueError, match=CUT_OR_WRONG):
            module.encode_batches(block[:end], 1 << 20)


@pytest.mark.parametrize("claim", [2**64 - 1, 2**63, 2**40])
def test_a_block_that_claims_more_rows_or_bytes_than_it_has_is_refused(
    module: Any, claim: int
) -> None:
    size = make.varint(claim)
    size = (
        b"\xff" * 9 + b"\1" if claim == 2**64 - 1 else b"\x80" * (claim.bit_length() // 7) + b"\1"
    )
    block = make.read_block([Row(1, value=b"value")])
    for old in (b"\x0c\x01", b"\0\5value"):
        new = old[:1] + size + old[2:]
        with pytest.raises(ValueError, match=CUT_OR_WRONG):
            module.encode_batches(block.replace(old, new), 1 << 20)
    ends = block.replace(
        bytes(8) + b"\x0bproducer_id", claim.to_bytes(8, "little") + b"\x0bproducer_id"
    )
    assert ends != block
    with pytest.raises(ValueError, match=CUT_OR_WRONG):
        module.encode_batches(ends, 1 << 20)
