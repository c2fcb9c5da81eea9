"""Columns to record batches: where a new batch starts, and which blocks are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support import record_batches as make
from tests.support.record_batches import Row


def encoded(module: Any, *rows: Row, max_batch_bytes: int = 1 << 20) -> list[list[int]]:
    """The offsets of each batch that the rows become."""
    batches = module.encode_batches(make.read_block(rows), max_batch_bytes)
    return [[row.offset for row in make.decoded(batch.data)] for batch in batches]


CUT_OR_WRONG = r"cut|column|fit|too long|do not grow"
ROW = Row(10, 100, producer_id=5, producer_epoch=0, sequence=50)
NEXT = replace(ROW, offset=11, sequence=51)


def test_rows_of_one_producer_are_one_batch_despite_gaps_between_offsets(module: Any) -> None:
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
def test_a_new_batch_starts_at_a_row_that_is_marked(module: Any, change: dict[str, int]) -> None:
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
