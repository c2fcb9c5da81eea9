"""Record batches to columns: what is accepted, what is refused, and what a refusal leaves."""

from __future__ import annotations

import resource
from dataclasses import replace
from typing import Any

import pytest

from brokerhouse.protocol.columns import COLUMNS
from brokerhouse.protocol.errors import (
    InvalidRecord,
)
from tests.support import record_batches as make
from tests.support.other_threads import runs_beside
from tests.support.record_batches import Batch, Record, Row, batch_of
from tests.support.record_codecs import (
    COMPILED,
    REFERENCE,
    TOPIC_ID,
    append,
    block_of,
    header_of,
)


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
def test_a_batch_with_malformed_records_is_refused(module: Any, name: str) -> None:
    payload, count = SPOILT[name]
    builder = module.BlockBuilder(0)
    append(module, builder, batch_of(Record()))
    before = builder.finish()
    with pytest.raises(InvalidRecord):
        append(module, builder, Batch(payload, count))
    assert builder.finish() == before


def test_a_number_in_more_bytes_than_it_needs_is_read(module: Any) -> None:
    payload = record_bytes(b"\x80" * 9 + b"\0", b"\x80\x80\x80\x80\0", NULL, NULL, b"\x80\0")
    assert block_of(module, Batch(payload, 1)) == block_of(
        module, batch_of(Record(0, None, None, ()))
    )


def test_the_last_offset_delta_must_be_that_of_the_last_record(module: Any) -> None:
    for delta in (-1, 0, 2, 2**31 - 1):
        with pytest.raises(InvalidRecord):
            block_of(module, replace(batch_of(Record(), Record()), last_offset_delta=delta))


def test_the_attributes_of_a_record_are_ignored(module: Any) -> None:
    strange = record_bytes(ZERO, ZERO, NULL, NULL, ZERO, attributes=b"\xff")
    assert block_of(module, Batch(strange, 1)) == block_of(
        module, batch_of(Record(0, None, None, ()))
    )


def test_a_claimed_record_count_allocates_no_memory(module: Any) -> None:
    batch = Batch(bytes(700), 2**31 - 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InvalidRecord, match="700 bytes, too few for its 2147483647 records"):
        block_of(module, batch)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16_384


def test_a_refused_batch_leaks_no_memory() -> None:
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


def test_a_refused_batch_does_not_change_the_batches_around_it(module: Any) -> None:
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


@pytest.mark.parametrize(
    "topics",
    [
        254,
        255,
        256,
        *(pytest.param(topics, marks=pytest.mark.test_all) for topics in (65_535, 65_536)),
    ],
)
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


def test_an_offset_beyond_the_last_possible_one_raises_a_value_error(module: Any) -> None:
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
    assert block.endswith(COLUMNS[-1][1].encode())


def test_reading_records_and_writing_batches_releases_the_gil() -> None:
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
