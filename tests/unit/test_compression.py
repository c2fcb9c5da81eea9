"""The codecs: they accept what clients send and nothing else, and no input takes much memory."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import cramjam
import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode

from brokerhouse.protocol.compression import Codec, compress, decompress
from brokerhouse.protocol.errors import CorruptMessage, MessageTooLarge, UnsupportedCompressionType
from tests.support import record_batches as make

MIB: Final = 1 << 20
ROOT: Final = Path(__file__).parents[2]
COMPRESSED: Final = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
TEXT: Final = b"".join(b"a line of some log, number %d\n" % number for number in range(5000))
XERIAL: Final = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)


def raw_snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def xerial(*blocks: bytes, header: bytes = XERIAL) -> bytes:
    return header + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


@pytest.mark.parametrize("codec", Codec)
@given(data=st.binary() | st.builds(bytes.__mul__, st.binary(), st.integers(0, 9999)))
def test_compressed_data_is_decompressed(codec: Codec, data: bytes) -> None:
    packed = compress(codec, memoryview(data))
    assert decompress(codec, packed, len(data)) == data
    assert decompress(codec, memoryview(packed), 2**40) == data


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_unsupported(codec: int) -> None:
    with pytest.raises(UnsupportedCompressionType):
        decompress(codec, b"", 100)
    with pytest.raises(UnsupportedCompressionType):
        compress(codec, b"")


# --- what clients send ---


@pytest.mark.parametrize(
    ("codec", "encode"),
    [
        (Codec.GZIP, gzip_encode),
        (Codec.SNAPPY, snappy_encode),
        (Codec.LZ4, lz4_encode),
        (Codec.ZSTD, zstd_encode),
    ],
)
def test_data_compressed_by_kafka_python_is_read(
    codec: Codec, encode: Callable[[bytes], bytes]
) -> None:
    assert decompress(codec, encode(TEXT), MIB) == TEXT


def test_snappy_without_framing_is_read() -> None:
    """As librdkafka sends it, and the clients built on it."""
    assert decompress(Codec.SNAPPY, raw_snappy(TEXT), MIB) == TEXT


def test_snappy_in_the_framing_of_the_java_client_is_read() -> None:
    blocks = [raw_snappy(TEXT[start : start + 32_768]) for start in range(0, len(TEXT), 32_768)]
    assert len(blocks) > 1
    assert decompress(Codec.SNAPPY, xerial(*blocks), MIB) == TEXT
    assert compress(Codec.SNAPPY, TEXT) == xerial(*blocks)


def test_snappy_framing_with_little_endian_versions_is_read() -> None:
    header = b"\x82SNAPPY\0" + struct.pack("<ii", 1, 1)
    assert decompress(Codec.SNAPPY, xerial(raw_snappy(TEXT), header=header), MIB) == TEXT


@pytest.mark.parametrize("content_checksum", [False, True])
@pytest.mark.parametrize("block_checksum", [False, True])
@pytest.mark.parametrize("store_size", [False, True])
@pytest.mark.parametrize("block_size", [4, 7])
def test_every_lz4_frame_that_kafka_knows_is_read(
    content_checksum: bool, block_checksum: bool, store_size: bool, block_size: int
) -> None:
    packed = lz4.frame.compress(
        TEXT,
        block_linked=False,
        content_checksum=content_checksum,
        block_checksum=block_checksum,
        store_size=store_size,
        block_size=block_size,
    )
    assert decompress(Codec.LZ4, packed, MIB) == TEXT


def test_an_lz4_frame_with_dependent_blocks_is_refused() -> None:
    """The Java client could not read it (KIP-57)."""
    with pytest.raises(CorruptMessage, match="dependent blocks"):
        decompress(Codec.LZ4, lz4.frame.compress(TEXT, block_linked=True, block_size=4), MIB)


def test_zstd_without_a_content_size_is_read() -> None:
    """As the Java client streams it."""
    packed = io.BytesIO()
    compressor = cramjam.zstd.Compressor()
    compressor.compress(TEXT)
    packed.write(bytes(compressor.finish()))
    assert decompress(Codec.ZSTD, packed.getvalue(), MIB) == TEXT


# --- what is corrupt ---


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("size", [0, 1, 100, 40_000])
def test_a_stream_cut_anywhere_is_corrupt(codec: Codec, size: int) -> None:
    packed = compress(codec, os.urandom(size))
    for end in {*range(min(len(packed), 40)), *range(max(0, len(packed) - 40), len(packed))}:
        if codec is Codec.SNAPPY and end in snappy_ends(packed):
            continue  # its framing has no end mark: the batch's record count tells
        with pytest.raises(CorruptMessage):
            decompress(codec, packed[:end], MIB)


def snappy_ends(packed: bytes) -> set[int]:
    """Where blocks of the Java client's framing end."""
    ends, at = {16}, 16
    while at < len(packed):
        at += 4 + struct.unpack_from(">i", packed, at)[0]
        ends.add(at)
    return ends


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("rest", [b"\0", b"\0" * 100, b"garbage", None])
def test_bytes_after_a_stream_are_corrupt(codec: Codec, rest: bytes | None) -> None:
    packed = compress(codec, TEXT)
    with pytest.raises(CorruptMessage):
        decompress(codec, packed + (packed if rest is None else rest), MIB)
    with pytest.raises(CorruptMessage):
        decompress(Codec.SNAPPY, raw_snappy(TEXT) + (rest or packed), MIB)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_an_empty_stream_is_corrupt(codec: Codec) -> None:
    with pytest.raises(CorruptMessage):
        decompress(codec, b"", MIB)


@pytest.mark.parametrize("codec", COMPRESSED)
@given(data=st.binary(max_size=300))
def test_random_bytes_are_corrupt(codec: Codec, data: bytes) -> None:
    try:
        decompress(codec, data, MIB)
    except (CorruptMessage, MessageTooLarge):
        return
    assert codec is Codec.SNAPPY  # which has no checksum: some garbage is a text


@pytest.mark.parametrize("codec", COMPRESSED)
@given(mutations=make.mutations())
def test_a_damaged_stream_is_read_or_corrupt(codec: Codec, mutations: list[make.Mutation]) -> None:
    packed = make.spoil(compress(codec, TEXT[:3000]), mutations)
    with suppress(CorruptMessage, MessageTooLarge):
        assert len(decompress(codec, packed, MIB)) <= MIB


@pytest.mark.parametrize(
    "payload",
    [
        XERIAL[:12],
        XERIAL + b"\0\0\0",
        xerial(b""),
        XERIAL + struct.pack(">i", -1),
        XERIAL + struct.pack(">i", 2**31 - 1) + b"x",
        xerial(raw_snappy(TEXT)[:-1]),
        xerial(raw_snappy(TEXT), b"\x05"),
        b"\xff" * 5,
        b"\x80",
        b"\x80\x80\x80\x80\x80\x01",
        b"\x05\x10abcd",
    ],
    ids=repr,
)
def test_snappy_framing_with_wrong_sizes_is_corrupt(payload: bytes) -> None:
    with pytest.raises(CorruptMessage):
        decompress(Codec.SNAPPY, payload, 2**40)


# --- what is too much ---


@pytest.mark.parametrize("codec", Codec)
def test_one_byte_over_the_limit_is_too_large(codec: Codec) -> None:
    for data in (TEXT, bytes(3 * MIB), os.urandom(3 * MIB)):
        packed = compress(codec, data)
        assert decompress(codec, packed, len(data)) == data
        for limit in (len(data) - 1, len(data) // 2, 1, 0):
            with pytest.raises(MessageTooLarge):
                decompress(codec, packed, limit)


MEASURE: Final = """
import resource, sys
from brokerhouse.protocol.compression import decompress
from brokerhouse.protocol.errors import KafkaError
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
payload = sys.stdin.buffer.read()
before = peak()
try:
    decompress(int(sys.argv[1]), payload, int(sys.argv[2]))
except KafkaError as error:
    print(type(error).__name__, peak() - before)
"""


def refusal(codec: Codec, payload: bytes, limit_bytes: int) -> tuple[str, int]:
    """The error of a payload, and how far refusing it raised the peak of a new process."""
    command = [sys.executable, "-c", MEASURE, str(int(codec)), str(limit_bytes)]
    done = subprocess.run(command, input=payload, capture_output=True, check=True, cwd=ROOT)
    error, peak_bytes = done.stdout.decode().split()
    return error, int(peak_bytes)


def unlinked_lz4(size: int, *, store_size: bool) -> bytes:
    return bytes(lz4.frame.compress(bytes(size), block_linked=False, store_size=store_size))


BOMBS: Final[dict[str, tuple[Codec, Callable[[], bytes]]]] = {
    "gzip": (Codec.GZIP, lambda: compress(Codec.GZIP, bytes(128 * MIB))),
    "snappy": (Codec.SNAPPY, lambda: raw_snappy(bytes(128 * MIB))),
    "framed snappy": (Codec.SNAPPY, lambda: xerial(*[raw_snappy(bytes(MIB))] * 128)),
    "lz4": (Codec.LZ4, lambda: unlinked_lz4(128 * MIB, store_size=False)),
    "lz4 that says its size": (Codec.LZ4, lambda: unlinked_lz4(128 * MIB, store_size=True)),
    "zstd": (Codec.ZSTD, lambda: compress(Codec.ZSTD, bytes(128 * MIB))),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_compression_bomb_uses_no_more_memory_than_the_limit(name: str) -> None:
    codec, bomb = BOMBS[name]
    payload = bomb()
    assert len(payload) < 8 * MIB
    error, peak_bytes = refusal(codec, payload, 8 * MIB)
    assert error == "MessageTooLarge"
    # The output, and what a decoder keeps of its input and of its window.
    assert peak_bytes < 8 * MIB + 2 * len(payload) + 8 * MIB


LZ4_CLAIM: Final = lz4.frame.compress(b"x", store_size=True)
CLAIMS: Final[dict[str, tuple[Codec, bytes]]] = {
    "snappy": (Codec.SNAPPY, b"\xff\xff\xff\xff\x07" + raw_snappy(b"x")[1:]),
    "framed snappy": (Codec.SNAPPY, xerial(b"\xff\xff\xff\xff\x07\0x")),
    # Frame header: size of 8 bytes; then a window of 128 MiB; or one segment as large as the size.
    "zstd": (Codec.ZSTD, b"\x28\xb5\x2f\xfd\xc0\x88" + b"\xff" * 7 + b"\x0f\x09\0\0x"),
    "zstd in one segment": (Codec.ZSTD, b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 7 + b"\x0f\x09\0\0x"),
    "a window over the limit": (Codec.ZSTD, b"\x28\xb5\x2f\xfd\0\x90\x09\0\0x"),
    "lz4": (Codec.LZ4, LZ4_CLAIM[:6] + b"\xff" * 7 + b"\x7f" + LZ4_CLAIM[14:]),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claimed_size_allocates_no_memory(name: str) -> None:
    codec, payload = CLAIMS[name]
    error, peak_bytes = refusal(codec, payload, 1 << 40)
    assert error == "CorruptMessage"
    assert peak_bytes < 8 * MIB


def test_a_claimed_size_within_the_window_limit_is_not_refused() -> None:
    """A frame with the largest window that zstd's own levels ask for, and little in it."""
    assert decompress(Codec.ZSTD, b"\x28\xb5\x2f\xfd\0\x88\x09\0\0x", 10) == b"x"
