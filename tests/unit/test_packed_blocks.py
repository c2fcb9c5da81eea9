"""Packed blocks of the log: their bytes, the Native blocks that they become, what is refused."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerhouse.protocol import _packed_blocks
from brokerhouse.protocol.packed_blocks import HEAD, RUN, BadPackedBlock, is_packed, native_bytes
from brokerhouse.storage._merge_blocks import merge_blocks
from tests.reference import packed_blocks
from tests.reference.packed_blocks import read_packed
from tests.support import record_batches as make
from tests.support.block_types import written_into
from tests.support.other_threads import runs_beside
from tests.support.record_batches import Batch, Record, batch_of
from tests.support.record_codecs import COMPILED, REFERENCE, append

Appends = Sequence[tuple[str, Batch]]


JOINS: list[Callable[[Sequence[bytes]], bytes]] = [
    _packed_blocks.join_packed,
    partial(written_into, _packed_blocks.join_packed_into),
    packed_blocks.join_packed,
]


@pytest.fixture(params=JOINS, ids=["compiled", "into", "reference"])
def join(request: pytest.FixtureRequest) -> Any:
    """Each implementation in turn."""
    return request.param


def builders(appends: Appends, append_time_ms: int = 7) -> Iterator[Any]:
    """One of each implementation, with the same batches."""
    for module in (COMPILED, REFERENCE):
        builder = module.BlockBuilder(append_time_ms)
        for number, (topic, batch) in enumerate(appends):
            append(
                module,
                builder,
                batch,
                number * 1000,
                topic,
                number % 3,
                9 if number % 4 == 3 else None,
                number,
                transaction_start=number - 1,
            )
        yield builder


def packed(appends: Appends, append_time_ms: int = 7) -> bytes:
    """The packed block, which both implementations make alike."""
    ours, theirs = (builder.pack() for builder in builders(appends, append_time_ms))
    assert ours == theirs
    return bytes(ours)


def native(appends: Appends, append_time_ms: int = 7) -> bytes:
    return bytes(next(builders(appends, append_time_ms)).finish())


def batch(*values: bytes | None) -> Batch:
    return batch_of(*(Record(value=value) for value in values))


# --- rows ---


@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.sampled_from("abc"), make.batches()), min_size=1, max_size=4),
            st.integers(*make.INT64),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_packed_blocks_become_the_native_block_of_their_rows(
    blocks: list[tuple[list[tuple[str, Batch]], int]],
) -> None:
    data = [packed(*one) for one in blocks]
    whole = [native(*one) for one in blocks]
    for one, expected in zip(data, whole, strict=True):
        assert is_packed(one)
        assert not is_packed(expected)
        assert native_bytes(one) == len(expected)
        assert [join([one]) for join in JOINS] == [expected] * 3
    assert [join(data) for join in JOINS] == [merge_blocks(whole)] * 3


@pytest.mark.parametrize("topics", [255, 256, 300, 65536])
def test_many_topics_widen_the_indexes_of_a_packed_block(topics: int) -> None:
    """Topics of the blocks together count, with the empty name."""
    one = batch(b"v")
    half = topics // 2
    data, whole = [], []
    for names in (range(half), range(half - 1, topics - 1), range(topics - 1, topics)):
        builder = COMPILED.BlockBuilder(0)
        for number in names:
            append(COMPILED, builder, one, number, f"topic-{number}")
        data.append(builder.pack())
        whole.append(builder.finish())
    assert _packed_blocks.join_packed(data) == merge_blocks(whole)


def test_headers_are_counted_across_blocks_without_headers() -> None:
    with_headers = batch_of(
        Record(headers=((b"h", b"x"), (b"i", None))), Record(), Record(headers=((b"", b""),))
    )
    blocks: list[Appends] = [
        [("a", batch(b"1"))],
        [("a", with_headers)],
        [("a", batch(b"2", None))],
        [("a", batch(b"3")), ("a", with_headers)],
    ]
    for some in (blocks, blocks[1:], blocks[:1], [blocks[0], blocks[2]]):
        expected = merge_blocks([native(one) for one in some])
        assert [join([packed(one) for one in some]) for join in JOINS] == [expected] * 3
    assert len(packed(blocks[0])) + 8 < len(native(blocks[0]))


def test_a_packed_block_of_small_records_is_much_smaller() -> None:
    appends = [("topic", batch(*[b"x" * 100] * 1000))]
    assert len(packed(appends)) == 1000 * 112 + 4 + 72 + 72 + 7  # rows, start, numbers, run, topics
    assert len(native(appends)) > 1000 * 185


def test_a_builder_packs_what_it_has_so_far() -> None:
    """As `finish`: it changes nothing, and later batches are added to these."""
    builder = COMPILED.BlockBuilder(7)
    append(COMPILED, builder, batch(b"1"), 0, "a")
    assert builder.pack() == builder.pack()
    append(COMPILED, builder, batch(b"2"), 1, "b")
    expected = builder.finish()
    assert _packed_blocks.join_packed([builder.pack()]) == expected == builder.finish()


@pytest.mark.parametrize("module", [COMPILED, REFERENCE], ids=["compiled", "reference"])
def test_a_builder_without_rows_packs_no_block(module: Any) -> None:
    with pytest.raises(ValueError, match="no rows"):
        module.BlockBuilder(0).pack()


def test_packing_and_joining_blocks_releases_the_gil() -> None:
    builder = COMPILED.BlockBuilder(0)
    append(COMPILED, builder, batch(*[b"x" * 1000] * 20_000), 0, "a")
    block = builder.pack()
    assert runs_beside(builder.pack)
    assert runs_beside(lambda: _packed_blocks.join_packed([block] * 3))


# --- what is refused ---


def test_joining_no_blocks_is_refused(join: Any) -> None:
    with pytest.raises(ValueError, match="no blocks"):
        join([])


@pytest.mark.parametrize("wrong", [None, "text", bytearray(b"\0"), memoryview(b"\0"), 1])
def test_a_packed_block_that_is_not_bytes_is_refused(wrong: Any) -> None:
    good = packed([("a", batch(b"1"))])
    for blocks in ([wrong], [good, wrong], [wrong, good]):
        with pytest.raises(TypeError):
            _packed_blocks.join_packed(blocks)


def test_a_buffer_that_is_too_small_is_not_written() -> None:
    good = packed([("a", batch(b"1"))])
    buffer = bytearray(native_bytes(good) - 1)
    with pytest.raises(ValueError, match="do not fit"):
        _packed_blocks.join_packed_into([good], lambda size: buffer)
    assert not any(buffer)


def refused(block: bytes) -> None:
    """By each implementation, also behind a sound block."""
    sound = packed([("a", batch(b"1"))])
    for join in JOINS:
        for blocks in ([block], [sound, block], [block, sound]):
            with pytest.raises(BadPackedBlock):
                join(blocks)


def two_topics() -> bytes:
    headers = batch_of(Record(key=b"k", headers=((b"h", b"x"),)), Record(value=None))
    return packed([("a", headers), ("b", batch(b"1", b"2"))])


def test_a_block_that_is_cut_or_too_long_is_refused() -> None:
    block = two_topics()
    for size in range(len(block)):
        refused(block[:size])
    refused(block + b"\0")


def test_a_packed_block_with_a_wrong_size_is_refused() -> None:
    """A claimed size that is wrong is refused, however large, and takes no memory."""
    block = two_topics()
    start = 3  # behind the zero, the number of rows and the format
    for number in range(2, 9):
        at = start + 8 * number
        (size,) = struct.unpack_from("<Q", block, at)
        for wrong in (size - 1, size + 1, size + 72, 0, 1 << 31, 1 << 62, (1 << 64) - 1):
            if wrong != size and wrong >= 0:
                refused(block[:at] + struct.pack("<Q", wrong) + block[at + 8 :])


def test_a_packed_block_with_a_wrong_count_is_refused() -> None:
    block = two_topics()
    assert read_packed(block).count == 4
    for rows in (b"\0", b"\3", b"\5", b"\xff\xff\x03", b"\xff" * 9 + b"\1", b"\xff" * 10):
        refused(block[:1] + rows + block[2:])
    for number in (b"\0", b"\2", b"\xff"):
        refused(block[:2] + number + block[3:])
    refused(b"\1" + block[1:])
    runs = 3 + HEAD.size
    for run in (runs, runs + RUN.size):
        for count in (0, 1, 3, 4, -1, -(1 << 63), (1 << 63) - 1):
            refused(block[: run + 8] + struct.pack("<q", count) + block[run + 16 :])
        for topic in (3, 255, (1 << 32) - 1):
            refused(block[: run + 32] + struct.pack("<I", topic) + block[run + 36 :])


def test_counts_of_runs_that_wrap_around_are_refused() -> None:
    block = two_topics()
    first = 3 + HEAD.size
    second = first + RUN.size
    counts = struct.pack("<q", (1 << 63) - 1), struct.pack("<q", -(1 << 63) + 5)
    spoilt = bytearray(block)
    spoilt[first + 8 : first + 16], spoilt[second + 8 : second + 16] = counts
    refused(bytes(spoilt))


def test_a_topic_longer_than_the_topics_is_refused() -> None:
    block = two_topics()
    names = b"\0\1a\1b"
    assert block.count(names) == 1
    for wrong in (b"\0\1a\2b", b"\0\1a\x80\x80", b"\0\4a\1b", b"\xff" * 5):
        refused(block.replace(names, wrong))
