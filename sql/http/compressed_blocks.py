"""ClickHouse's own compression of bodies: what `compress=1` and `decompress=1` ask for.

A body is a sequence of blocks, each of which stands alone:

    +----------+--------+-----------------+-------------------+-----------------+
    | checksum | method | compressed size | uncompressed size | compressed data |
    | 16 bytes | 1 byte | UInt32          | UInt32            |                 |
    +----------+--------+-----------------+-------------------+-----------------+
               |<-------------- compressed size, these bytes ------------------>|
               |<-------------- what the checksum is of ----------------------->|

Numbers are little-endian. The checksum is CityHash128 in version 1.0.2, which is what ClickHouse
uses. Methods: 0x82 LZ4, 0x90 ZSTD, 0x02 not compressed.
https://clickhouse.com/docs/native-protocol/basics#compression

Both ways work block by block. An encoder makes blocks of at most BLOCK_BYTES, as ClickHouse does. A
decoder has to hold a whole block, because it checks the block before it gives out any of it. So
blocks have a largest size, and what a decoder holds is counted by its caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct

import lz4.block
from clickhouse_cityhash.cityhash import CityHash128

from brokerhouse.common.zstd import zstd
from brokerhouse.sql.http.codings import PIECE_BYTES, CodingError

BLOCK_BYTES = 1024 * 1024
"""ClickHouse's max_compress_block_size."""

_CHECKSUM_BYTES = 16
_HEAD = Struct("<BII")  # method, compressed size, uncompressed size
_HALVES = Struct("<QQ")  # of a checksum
_BEFORE_DATA_BYTES = _CHECKSUM_BYTES + _HEAD.size

_LZ4, _ZSTD, _NONE = 0x82, 0x90, 0x02
_LZ4_LONG = 15  # literals, from which on their number has bytes of its own


def _compress_lz4(data: bytes) -> bytes:
    return bytes(lz4.block.compress(data, store_size=False))


def _compress_zstd(data: bytes) -> bytes:
    return bytes(zstd.compress(data, level=1))


_COMPRESS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "LZ4": (_LZ4, _compress_lz4),
    "LZ4HC": (_LZ4, _compress_lz4),  # the same format
    "ZSTD": (_ZSTD, _compress_zstd),
    "NONE": (_NONE, bytes),
}


def _decompress_lz4(data: bytes, size: int) -> bytes:
    return bytes(lz4.block.decompress(data, uncompressed_size=size))


def _decompress_zstd(data: bytes, size: int) -> bytes:
    # Without `max_length` a small block could expand to gigabytes.
    return bytes(zstd.ZstdDecompressor().decompress(data, max_length=size + 1))


def _as_it_is(data: bytes, _size: int) -> bytes:
    return data


_DECOMPRESS: dict[int, Callable[[bytes, int], bytes]] = {
    _LZ4: _decompress_lz4,
    _ZSTD: _decompress_zstd,
    _NONE: _as_it_is,
}
_DAMAGED = (zstd.ZstdError, lz4.block.LZ4BlockError, ValueError, OverflowError)


class BlockEncoder:
    """An `Encoder` (codings.py). What `compress` gets comes out at once, in blocks of its own."""

    def __init__(self, method: str = "LZ4") -> None:
        """`method` as the setting network_compression_method names it; LZ4 if it is unknown."""
        self._method, self._compress = _COMPRESS.get(method.upper(), _COMPRESS["LZ4"])

    def compress(self, data: bytes) -> bytes:
        starts = range(0, len(data), BLOCK_BYTES)
        return b"".join(self._block(data[start : start + BLOCK_BYTES]) for start in starts)

    def finish(self) -> bytes:
        return b""

    def _block(self, data: bytes) -> bytes:
        return _block(self._method, self._compress(data), len(data))


def readable_block(text: bytes) -> bytes:
    """A block of LZ4 in which `text` stands as it is: all of it is one run of literals.

    For errors: the Go driver looks for them in the bytes of the body, before they are decompressed.
    """
    more, last = divmod(len(text) - _LZ4_LONG, 255)
    if more < 0:
        run = bytes((len(text) << 4,))
    else:
        run = bytes((_LZ4_LONG << 4,)) + b"\xff" * more + bytes((last,))
    return _block(_LZ4, run + text, len(text))


def _block(method: int, compressed: bytes, size: int) -> bytes:
    head = _HEAD.pack(method, _HEAD.size + len(compressed), size)
    return _checksum(head + compressed) + head + compressed


class BlockDecoder:
    """A body that is a sequence of blocks, decoded.

    `max_bytes`: of one block, compressed and not. `hold` is called with the number of bytes
    whenever the decoder holds more than ever before; it raises if there is no room for them.
    """

    def __init__(
        self, max_bytes: int, hold: Callable[[int], None], *, check_sums: bool = True
    ) -> None:
        self._max_bytes = max_bytes
        self._hold = hold
        self._held_bytes = 0
        self._check_sums = check_sums
        self._rest = bytearray()
        self._needed = _BEFORE_DATA_BYTES
        """So much the rest has to have before there is something to do."""

    def decompress(self, data: bytes) -> Iterator[bytes]:
        """The decoded bytes of `data`, in pieces of at most PIECE_BYTES. Raises CodingError."""
        self._rest += data
        while len(self._rest) >= self._needed:
            method, size, uncompressed_size = _HEAD.unpack_from(self._rest, _CHECKSUM_BYTES)
            self._needed = _CHECKSUM_BYTES + self._checked(method, size, uncompressed_size)
            if len(self._rest) < self._needed:
                return
            block = bytes(self._rest[: self._needed])
            del self._rest[: self._needed]
            self._needed = _BEFORE_DATA_BYTES
            content = self._content(block, method, uncompressed_size)
            del block
            for start in range(0, len(content), PIECE_BYTES):
                yield content[start : start + PIECE_BYTES]

    def finish(self) -> None:
        """The body is over. Raises CodingError if its last block is not complete."""
        if self._rest:
            raise CodingError(
                f"the last compressed block has only {len(self._rest)} bytes of {self._needed}",
                33,
                "CANNOT_READ_ALL_DATA",
            )

    def _checked(self, method: int, size: int, uncompressed_size: int) -> int:
        """The compressed size of a block that may be read. Raises CodingError."""
        if method not in _DECOMPRESS:
            raise CodingError(
                f"0x{method:02x} is not a method of compression that is served: LZ4, ZSTD or NONE",
                89,
                "UNKNOWN_COMPRESSION_METHOD",
            )
        if size < _HEAD.size or max(size, uncompressed_size) > self._max_bytes:
            raise CodingError(
                f"a block of {size} bytes, uncompressed {uncompressed_size}, where at most"
                f" {self._max_bytes} are possible: the data is damaged, or has to be sent in"
                " smaller blocks",
                261,
                "TOO_LARGE_SIZE_COMPRESSED",
            )
        needed = size + uncompressed_size
        if needed > self._held_bytes:
            self._hold(needed - self._held_bytes)
            self._held_bytes = needed
        return size

    def _content(self, block: bytes, method: int, uncompressed_size: int) -> bytes:
        if self._check_sums and _checksum(block[_CHECKSUM_BYTES:]) != block[:_CHECKSUM_BYTES]:
            raise CodingError(
                "the checksum of a compressed block does not match: the data is damaged",
                40,
                "CHECKSUM_DOESNT_MATCH",
            )
        try:
            content = _DECOMPRESS[method](block[_BEFORE_DATA_BYTES:], uncompressed_size)
        except _DAMAGED as error:
            raise _cannot_decompress(str(error)) from error
        if len(content) != uncompressed_size:
            raise _cannot_decompress(f"it does not have {uncompressed_size} bytes uncompressed")
        return content


def _cannot_decompress(why: str) -> CodingError:
    return CodingError(
        f"a compressed block cannot be decompressed: {why}", 271, "CANNOT_DECOMPRESS"
    )


def _checksum(data: bytes) -> bytes:
    checksum: int = CityHash128(data)
    return _HALVES.pack(checksum >> 64, checksum & 0xFFFF_FFFF_FFFF_FFFF)
