"""ClickHouse's compressed blocks: what is encoded is decoded, and nothing damaged is."""

from __future__ import annotations

import random
import struct

import pytest

from brokerhouse.sql.http.codings import PIECE_BYTES, CodingError
from brokerhouse.sql.http.compressed_blocks import (
    BLOCK_BYTES,
    BlockDecoder,
    BlockEncoder,
    readable_block,
)

# The answer to `SELECT 1`, as ClickHouse's drivers accept it: checksum, method, sizes, LZ4.
ONE = bytes.fromhex("de79cf087fb63504 9db816df195b016b 82 0c000000 02000000 20310a")
RANDOM = random.Random(1).randbytes(3 * BLOCK_BYTES)
METHODS = ("LZ4", "ZSTD", "NONE")
HEAD_BYTES = 25


def decoded(body: bytes, step: int = 2**30, max_bytes: int = 2 * BLOCK_BYTES) -> bytes:
    decoder = BlockDecoder(max_bytes, lambda _: None)
    pieces = [
        piece
        for start in range(0, len(body), step)
        for piece in decoder.decompress(body[start : start + step])
    ]
    decoder.finish()
    assert all(0 < len(piece) <= PIECE_BYTES for piece in pieces)
    return b"".join(pieces)


def refusal(body: bytes, **arguments: int) -> int:
    """The code of the error that decoding this raises."""
    with pytest.raises(CodingError) as caught:
        decoded(body, **arguments)
    return caught.value.code


def block_sizes(body: bytes) -> list[int]:
    """Of every block, uncompressed."""
    sizes = []
    while body:
        compressed, size = struct.unpack_from("<II", body, 17)
        sizes.append(size)
        body = body[16 + compressed :]
    return sizes


def test_blocks_are_those_that_clickhouses_drivers_accept() -> None:
    assert BlockEncoder().compress(b"1\n") == ONE
    assert decoded(ONE) == b"1\n"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("step", [1000, 65_536, 2**30])
def test_an_encoded_block_is_decoded(method: str, step: int) -> None:
    encoder = BlockEncoder(method)
    data = RANDOM + bytes(5 * BLOCK_BYTES) + b"end"
    body = encoder.compress(data[:1000]) + encoder.compress(data[1000:]) + encoder.finish()
    assert decoded(body, step) == data


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1])
def test_data_of_a_size_around_the_block_size_is_decoded(method: str, size: int) -> None:
    body = BlockEncoder(method).compress(RANDOM[:size])
    expected = [min(BLOCK_BYTES, size - start) for start in range(0, size, BLOCK_BYTES)]
    assert block_sizes(body) == expected
    assert decoded(body, 7 if size < 100 else 4096) == RANDOM[:size]


@pytest.mark.parametrize("size", [0, 1, 14, 15, 16, 269, 270, 271, 524, 525, 526, 100_000])
def test_a_readable_block_contains_its_text_as_it_is(size: int) -> None:
    block = readable_block(RANDOM[:size])
    assert RANDOM[:size] in block
    assert decoded(block) == RANDOM[:size]


def test_an_unknown_method_for_answers_is_lz4() -> None:
    assert BlockEncoder("T64").compress(b"1\n") == BlockEncoder("lz4").compress(b"1\n")


@pytest.mark.parametrize("method", METHODS)
def test_a_changed_bit_anywhere_in_a_block_is_refused(method: str) -> None:
    body = bytearray(BlockEncoder(method).compress(b"some text, some text, some text"))
    for position in range(len(body)):
        body[position] ^= 0x10
        assert refusal(bytes(body)) in (33, 40, 89, 261)
        body[position] ^= 0x10


def test_a_block_with_a_wrong_checksum_yields_no_data() -> None:
    body = bytearray(BlockEncoder().compress(b"first") + BlockEncoder().compress(b"second"))
    body[-1] ^= 1
    decoder = BlockDecoder(BLOCK_BYTES, lambda _: None)
    pieces = decoder.decompress(bytes(body))
    assert next(pieces) == b"first"
    with pytest.raises(CodingError, match="checksum of a compressed block does not match"):
        next(pieces)


def test_the_check_of_checksums_can_be_turned_off() -> None:
    decoder = BlockDecoder(BLOCK_BYTES, lambda _: None, check_sums=False)
    assert list(decoder.decompress(bytes(16) + ONE[16:])) == [b"1\n"]


@pytest.mark.parametrize("method", METHODS)
def test_a_block_that_contradicts_its_head_is_refused(method: str) -> None:
    for size in (0, 4, 6, 1000):
        body = bytearray(BlockEncoder(method).compress(b"12345"))
        struct.pack_into("<I", body, 21, size)
        decoder = BlockDecoder(BLOCK_BYTES, lambda _: None, check_sums=False)
        with pytest.raises(CodingError) as caught:
            list(decoder.decompress(bytes(body)))
        assert caught.value.code == 271


@pytest.mark.parametrize("method", [0x00, 0x01, 0x91, 0xFF])
def test_an_unknown_compression_method_is_refused(method: int) -> None:
    body = bytearray(ONE)
    body[16] = method
    assert refusal(bytes(body)) == 89


def test_a_body_without_compressed_blocks_is_refused() -> None:
    assert refusal(b"SELECT 1") == 33
    assert refusal(b"SELECT 1 FROM messages WHERE topic = 'x'") == 89


def test_a_body_that_ends_within_a_block_is_refused() -> None:
    for size in range(1, len(ONE)):
        assert refusal(ONE + ONE[:size]) == 33


@pytest.mark.parametrize("field", [17, 21])
def test_a_block_larger_than_allowed_is_refused_by_its_head(field: int) -> None:
    head = bytearray(ONE[:HEAD_BYTES])
    struct.pack_into("<I", head, field, 1000)
    assert refusal(bytes(head), max_bytes=999) == 261
    assert refusal(bytes(head), max_bytes=1000) == 33
    struct.pack_into("<I", head, 17, 8)  # less than the head itself
    assert refusal(bytes(head)) == 261


def test_a_small_block_that_expands_to_more_than_it_says_is_refused() -> None:
    body = bytearray(BlockEncoder("ZSTD").compress(bytes(BLOCK_BYTES)))
    struct.pack_into("<I", body, 21, 1000)
    decoder = BlockDecoder(BLOCK_BYTES, lambda _: None, check_sums=False)
    with pytest.raises(CodingError, match="1000 bytes"):
        list(decoder.decompress(bytes(body)))


def test_memory_is_charged_before_a_block_is_read() -> None:
    held: list[int] = []
    decoder = BlockDecoder(2 * BLOCK_BYTES, held.append)
    small, large = BlockEncoder().compress(b"x" * 100), BlockEncoder().compress(RANDOM[:10_000])
    list(decoder.decompress(small + large[:HEAD_BYTES]))
    assert sum(held) == struct.unpack_from("<I", large, 17)[0] + 10_000
    list(decoder.decompress(large[HEAD_BYTES:] + small + large))
    assert len(held) == 2, "no block was larger than those before"
