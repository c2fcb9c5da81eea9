"""Frames from a byte stream: its pieces may have any size, and a claimed length uses no memory."""

import random
import struct
import tracemalloc
from itertools import chain, pairwise, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerhouse.protocol._frames import FrameError, FrameReader

LIMIT = 1000


def framed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    """The stream cut at these places."""
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    return [stream[a:b] for a, b in pairwise(places)]


bodies = st.lists(st.binary(max_size=40) | st.just(b"x" * LIMIT), max_size=8)


@given(bodies, st.lists(st.integers(0, 400), max_size=12))
def test_any_cut_of_the_stream_gives_the_same_frames(bodies: list[bytes], cuts: list[int]) -> None:
    reader = FrameReader(LIMIT)
    found = [frame for piece in pieces(framed(*bodies), cuts) for frame in reader.feed(piece)]
    assert found == bodies
    assert reader.buffered == 0


@given(bodies)
def test_one_byte_at_a_time_gives_each_frame_with_its_last_byte(bodies: list[bytes]) -> None:
    reader = FrameReader(LIMIT)
    for body in bodies:
        *before, last = framed(body)
        assert [reader.feed(bytes([byte])) for byte in before] == [[]] * len(before)
        assert reader.feed(bytes([last])) == [body]


def test_no_bytes_give_no_frames() -> None:
    assert FrameReader(LIMIT).feed(b"") == []


def test_a_frame_that_is_not_complete_is_counted_as_buffered() -> None:
    reader = FrameReader(LIMIT)
    assert reader.feed(framed(b"whole") + framed(b"a part")[:7]) == [b"whole"]
    assert reader.buffered == 7
    assert reader.feed(framed(b"a part")[7:]) == [b"a part"]
    assert reader.buffered == 0


def test_a_frame_survives_when_the_buffer_it_was_read_from_is_overwritten() -> None:
    reader = FrameReader(LIMIT)
    data = bytearray(framed(b"first") + framed(b"a part")[:7])
    (frame,) = reader.feed(memoryview(data))
    data[:] = bytes(len(data))
    assert frame == b"first"
    assert type(frame) is bytes
    assert reader.feed(framed(b"a part")[7:]) == [b"a part"]


LARGE = 1 << 20
large_bodies = st.lists(
    st.integers(0, LARGE).map(lambda size: random.Random(size).randbytes(size)), max_size=4
)


@given(large_bodies, st.lists(st.integers(1, 1 << 18), min_size=1, max_size=20))
def test_the_rest_of_a_large_frame_can_be_received_into_it(
    bodies: list[bytes], sizes: list[int]
) -> None:
    reader, stream, found = FrameReader(LARGE), memoryview(framed(*bodies)), list[bytes]()
    shared = memoryview(bytearray(1 << 18))
    for size in chain(sizes, repeat(1 << 16)):  # 4 MB byte by byte would take minutes
        if not stream:
            break
        place = reader.place(len(shared))
        assert place is None or len(place) <= len(shared)
        room = shared if place is None else place
        count = min(size, len(room), len(stream))
        room[:count], stream = stream[:count], stream[count:]
        found += reader.feed(shared, count) if place is None else reader.received(count)
        assert reader.buffered <= LARGE + 4
    assert found == bodies
    assert reader.buffered == 0


def test_a_small_frame_cannot_be_received_in_place() -> None:
    reader = FrameReader(LARGE)
    assert reader.place(LARGE) is None
    large = framed(b"x" * LARGE)
    reader.feed(large[:-100])
    assert reader.place(LARGE) is None  # the rest is small
    assert reader.feed(large[-100:]) == [large[4:]]
    assert reader.place(LARGE) is None


def test_no_more_bytes_are_received_in_place_than_the_frame_lacks() -> None:
    reader = FrameReader(LARGE)
    with pytest.raises(ValueError, match="not received in the place"):
        reader.received(1)
    reader.feed(framed(b"x" * LARGE)[: 1 << 18])
    place = reader.place(LARGE)
    assert place is not None
    for size in (-1, len(place) + 1):
        with pytest.raises(ValueError, match="not received in the place"):
            reader.received(size)
    with pytest.raises(ValueError, match="fewer bytes"):
        reader.feed(b"abc", 4)


def test_a_frame_of_exactly_the_limit_is_taken() -> None:
    assert FrameReader(LIMIT).feed(framed(b"x" * LIMIT)) == [b"x" * LIMIT]


@pytest.mark.parametrize("length", [LIMIT + 1, 100 << 20, 2**31 - 1, -1, -(2**31)])
def test_a_frame_size_over_the_limit_is_refused_before_its_bytes_arrive(length: int) -> None:
    with pytest.raises(FrameError, match=f"a request has {length} bytes, at most {LIMIT} are"):
        FrameReader(LIMIT).feed(struct.pack(">i", length))


def test_a_frame_size_over_the_limit_is_refused_with_its_fourth_byte() -> None:
    reader = FrameReader(LIMIT)
    *before, last = framed(b"good") + struct.pack(">i", LIMIT + 1)
    for byte in before:
        reader.feed(bytes([byte]))
    with pytest.raises(FrameError):
        reader.feed(bytes([last]))


def test_a_claimed_frame_size_allocates_no_memory_until_its_bytes_arrive() -> None:
    tracemalloc.start()
    try:
        readers = [FrameReader(100 << 20) for _ in range(100)]
        for reader in readers:
            reader.feed(struct.pack(">i", 100 << 20) + b"only this")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    assert {reader.buffered for reader in readers} == {13}
