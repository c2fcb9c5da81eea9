"""The compression codecs of record batches: the records section as a producer sent it, and back.

`decompress` reads untrusted input. What must hold: it never produces more than `limit_bytes`,
and memory grows with the output, not with the size that a frame claims. A payload is exactly one
stream of its codec: it is corrupt if it is cut or if bytes follow the stream. (Kafka's own reader
ignores bytes after an LZ4 frame and librdkafka refuses them; no client sends them.)

Codec numbers are those of the batch attributes
(https://kafka.apache.org/documentation/#recordbatch).
"""

from __future__ import annotations

import gzip as gzip_file
import io
import struct
import zlib
from collections import deque
from enum import IntEnum
from typing import Final, Protocol

import cramjam
import lz4.frame

from brokerhouse.common.zstd import zstd
from brokerhouse.protocol.errors import CorruptMessage, MessageTooLarge, UnsupportedCompressionType


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_PIECE_BYTES: Final = 1 << 20
# In an LZ4 frame, after its magic number of 4 bytes:
# https://github.com/lz4/lz4/blob/dev/doc/lz4_Frame_format.md
_LZ4_FLAGS_AT: Final = 4
_LZ4_INDEPENDENT_BLOCKS: Final = 0x20
# A Zstandard frame names the window that its decoder must keep. 128 MiB is what zstd itself accepts
# by default (ZSTD_WINDOWLOG_LIMIT_DEFAULT), and the most that any of its levels asks for.
_ZSTD_WINDOW_LOG: Final = 27

# snappy-java's SnappyOutputStream: this magic, a version and the oldest reader's version (4 bytes
# each), then blocks of a 4-byte length and raw Snappy. The versions are not checked: some clients
# write them little-endian, which snappy-java and librdkafka accept.
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
# Three bytes of Snappy copy at most 64 bytes: a block that claims more is not valid.
_SNAPPY_BYTES_PER_3: Final = 64


class _Decompressor(Protocol):
    """What the stream decoders of zlib (wrapped below), lz4 and zstd have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes | None: ...
    def decompress(self, data: bytes | memoryview, max_length: int) -> bytes: ...


class _Gunzip:
    """zlib's decoder with the interface of the other two: it keeps input that it has not used."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    def decompress(self, data: bytes | memoryview, max_length: int) -> bytes:
        tail = self._zlib.unconsumed_tail
        return self._zlib.decompress(tail or data, max_length)


class Decompression:
    """The records section of a batch while it is decompressed, one piece after the other.

    Its errors are those of `decompress`.
    """

    def __init__(self, codec: int, payload: bytes | memoryview, limit_bytes: int) -> None:
        """`payload` must be compressed: `codec` is not 0."""
        self._pieces: _StreamPieces | _SnappyPieces
        if codec == Codec.GZIP:
            self._pieces = _StreamPieces("gzip", _Gunzip(), payload)
        elif codec == Codec.SNAPPY:
            self._pieces = _SnappyPieces(memoryview(payload), limit_bytes)
        elif codec == Codec.LZ4:
            _check_lz4_blocks(payload)
            self._pieces = _StreamPieces("lz4", lz4.frame.LZ4FrameDecompressor(), payload)
        elif codec == Codec.ZSTD:
            options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}
            self._pieces = _StreamPieces("zstd", zstd.ZstdDecompressor(options=options), payload)
        else:
            raise UnsupportedCompressionType(f"The compression codec {codec} does not exist.")
        # A decoder copies the input that it has not used: pieces as long as the input keep that
        # copying linear.
        self._least_bytes = len(payload)
        self._limit_bytes = limit_bytes
        self._whole: bytes | bytearray | None = None  # an output of one piece
        # BytesIO returns its buffer without a copy, so the output is in memory once.
        self._output = io.BytesIO()

    @property
    def claimed_bytes(self) -> int:
        """How long the output says that it is, if its codec always says so; else 0."""
        return self._pieces.claimed_bytes

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self._output.tell() if self._whole is None else len(self._whole)

    @property
    def is_finished(self) -> bool:
        return self._pieces.eof

    def advance(self, piece_bytes: int) -> None:
        """Decompress about `piece_bytes` more; more than that only if `payload` is longer, or for
        a Snappy block, which comes as a whole."""
        room = self._limit_bytes - self._output.tell()
        piece = self._pieces.next(min(max(piece_bytes, self._least_bytes), room + 1))
        if len(piece) > room:
            raise _too_large(self._limit_bytes)
        if self._pieces.eof and not self._output.tell():
            self._whole = piece  # as most batches do: nothing is copied
        else:
            self._output.write(piece)

    def so_far(self) -> memoryview:
        """What is decompressed. It must be released before the next piece."""
        return self._output.getbuffer() if self._whole is None else memoryview(self._whole)

    def result(self) -> bytes:
        """All of it, when it is finished."""
        return self._output.getvalue() if self._whole is None else bytes(self._whole)


def decompress(codec: int, payload: bytes | memoryview, limit_bytes: int) -> bytes:
    """The records section of a batch whose attributes name `codec`.

    Raises MessageTooLarge when it would be longer than `limit_bytes`, CorruptMessage when `payload`
    is not exactly one stream of that codec, UnsupportedCompressionType for codecs 5 to 7.
    """
    if codec == Codec.NONE:
        if len(payload) > limit_bytes:
            raise _too_large(limit_bytes)
        return bytes(payload)
    decompression = Decompression(codec, payload, limit_bytes)
    while not decompression.is_finished:
        decompression.advance(_PIECE_BYTES)
    return decompression.result()


def compress(codec: int, payload: bytes | memoryview) -> bytes:
    """`payload` as a client would send it; Snappy as the Java client frames it."""
    if codec == Codec.NONE:
        return bytes(payload)
    if codec == Codec.GZIP:
        return gzip_file.compress(payload, mtime=0)
    if codec == Codec.SNAPPY:
        return _compress_xerial(memoryview(payload))
    if codec == Codec.LZ4:
        return bytes(lz4.frame.compress(payload, block_linked=False))
    if codec == Codec.ZSTD:
        return zstd.compress(payload)
    raise UnsupportedCompressionType(f"The compression codec {codec} does not exist.")


def _check_lz4_blocks(payload: bytes | memoryview) -> None:
    """Kafka's own clients cannot read blocks that depend on earlier ones (KIP-57)."""
    if len(payload) > _LZ4_FLAGS_AT and not payload[_LZ4_FLAGS_AT] & _LZ4_INDEPENDENT_BLOCKS:
        raise CorruptMessage(
            "The record batch has an lz4 frame with dependent blocks, which Kafka does not allow."
        )


def _too_large(limit_bytes: int) -> MessageTooLarge:
    return MessageTooLarge(
        f"The record batch is larger than {limit_bytes} bytes when it is decompressed."
    )


class _StreamPieces:
    """The output of a stream decoder."""

    claimed_bytes = 0

    def __init__(self, name: str, decompressor: _Decompressor, payload: bytes | memoryview) -> None:
        self._name = name
        self._decompressor = decompressor
        self._input: bytes | memoryview = payload

    @property
    def eof(self) -> bool:
        return self._decompressor.eof

    def next(self, max_bytes: int) -> bytes:
        decompressor = self._decompressor
        try:
            piece = decompressor.decompress(self._input, max_bytes)
        except (zlib.error, RuntimeError, zstd.ZstdError, EOFError) as error:
            raise CorruptMessage(
                f"Cannot decompress the record batch with {self._name}: {error}"
            ) from error
        self._input = b""
        if decompressor.eof:
            if decompressor.unused_data:
                raise CorruptMessage(
                    f"The record batch has bytes after the end of its {self._name} stream."
                )
        elif not piece:
            raise CorruptMessage(f"The record batch ends in the middle of its {self._name} stream.")
        return piece


class _SnappyPieces:
    """The output of Snappy blocks, each of which says how long it will be."""

    def __init__(self, payload: memoryview, limit_bytes: int) -> None:
        if bytes(payload[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
            blocks = _xerial_blocks(payload)
        else:
            blocks = [payload]
        self._blocks = deque((block, _snappy_size(block)) for block in blocks)
        self.claimed_bytes = sum(size for _, size in self._blocks)
        if self.claimed_bytes > limit_bytes:
            raise _too_large(limit_bytes)

    @property
    def eof(self) -> bool:
        return not self._blocks

    def next(self, max_bytes: int) -> bytearray:
        """One block at least."""
        taken = [self._blocks.popleft()]
        size = taken[0][1]
        while self._blocks and size + self._blocks[0][1] <= max_bytes:
            size += self._blocks[0][1]
            taken.append(self._blocks.popleft())
        output = bytearray(size)
        position = 0
        with memoryview(output) as view:
            for block, block_size in taken:
                with view[position : position + block_size] as place:
                    _snappy_block(block, place)
                position += block_size
        return output


def _xerial_blocks(payload: memoryview) -> list[memoryview]:
    blocks: list[memoryview] = []
    position = len(_XERIAL_HEADER)
    if len(payload) < position:
        raise CorruptMessage("The record batch ends in the middle of its snappy header.")
    while position < len(payload):
        if len(payload) - position < 4:
            raise CorruptMessage(
                "The record batch ends in the middle of the length of a snappy block."
            )
        length = int.from_bytes(payload[position : position + 4])
        position += 4
        if not 0 < length <= len(payload) - position:
            raise CorruptMessage(
                f"A snappy block of {length} bytes does not fit into the record batch."
            )
        blocks.append(payload[position : position + length])
        position += length
    return blocks


def _snappy_size(block: memoryview) -> int:
    """The decompressed size that a raw Snappy block claims, in the varint at its start."""
    size = 0
    for index, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if size > len(block) * _SNAPPY_BYTES_PER_3 // 3:
                raise CorruptMessage(
                    f"A snappy block of {len(block)} bytes claims to hold {size} bytes, too many."
                )
            return size
    raise CorruptMessage("A snappy block of the record batch does not begin with its size.")


def _snappy_block(block: memoryview, target: memoryview) -> None:
    try:
        written = cramjam.snappy.decompress_raw_into(block, target)
    except cramjam.DecompressionError as error:
        raise CorruptMessage(f"Cannot decompress the record batch with snappy: {error}") from error
    if written != len(target):
        raise CorruptMessage(
            f"A snappy block of the record batch has {written} bytes, not {len(target)}."
        )


def _compress_xerial(payload: memoryview) -> bytes:
    framed = bytearray(_XERIAL_HEADER)
    for start in range(0, len(payload), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(payload[start : start + _XERIAL_BLOCK_BYTES]))
        framed += struct.pack(">i", len(block))
        framed += block
    return bytes(framed)
