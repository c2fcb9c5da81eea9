"""Content codings of HTTP bodies, both ways, piece by piece and in bounded memory.

Served are those that clients of this interface use: gzip (curl, Python's clients), zstd and lz4 in
its frame format (clickhouse-connect, brokers), and deflate in the zlib format (the Go driver).
https://clickhouse.com/docs/interfaces/http

A decoder returns pieces of at most PIECE_BYTES, however much its input expands to: a compression
bomb costs the client's time and not the broker's memory. An encoder is a plain stream compressor.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Protocol

import lz4.frame

from brokerhouse.common.zstd import zstd

PIECE_BYTES = 1024 * 1024
# A frame names the window that its decoder has to keep. 128 MiB is what zstd itself accepts.
_ZSTD_OPTIONS: Mapping[int, int] = {zstd.DecompressionParameter.window_log_max: 27}


class CodingError(Exception):
    """The body is not what its Content-Encoding, or `decompress=1`, says.

    `code` and `name`: ClickHouse's.
    """

    def __init__(self, why: str, code: int = 354, name: str = "ZLIB_INFLATE_FAILED") -> None:
        super().__init__(why)
        self.code = code
        self.name = name


class UnknownCoding(Exception):
    """Content-Encoding names a coding that is not served."""


class Encoder(Protocol):
    def compress(self, data: bytes) -> bytes: ...
    def finish(self) -> bytes: ...


class Decompressor(Protocol):
    """What the stream decompressors of zlib (wrapped below), lz4 and zstd have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes | None: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class Coding(Protocol):
    def encoder(self) -> Encoder: ...
    def decompressor(self) -> Decompressor: ...


class Zstd:
    def encoder(self) -> Encoder:
        return _StreamEncoder(zstd.ZstdCompressor(level=1))

    def decompressor(self) -> Decompressor:
        return zstd.ZstdDecompressor(options=dict(_ZSTD_OPTIONS))


class Lz4:
    def encoder(self) -> Encoder:
        return _Lz4Encoder()

    def decompressor(self) -> Decompressor:
        decompressor: Decompressor = lz4.frame.LZ4FrameDecompressor()
        return decompressor


class Zlib:
    """`wbits`: 31 for gzip, 15 for deflate, which is zlib's own format (RFC 9110, 8.4.1.2)."""

    def __init__(self, wbits: int) -> None:
        self._wbits = wbits

    def encoder(self) -> Encoder:
        return _StreamEncoder(zlib.compressobj(1, zlib.DEFLATED, self._wbits))

    def decompressor(self) -> Decompressor:
        return _ZlibDecompressor(self._wbits)


class _Compressor(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...
    def flush(self) -> bytes: ...


class _StreamEncoder:
    def __init__(self, stream: _Compressor) -> None:
        self._stream = stream

    def compress(self, data: bytes) -> bytes:
        return self._stream.compress(data)

    def finish(self) -> bytes:
        return self._stream.flush()


class _Lz4Encoder:
    """lz4's frame begins by a call of its own."""

    def __init__(self) -> None:
        self._stream = lz4.frame.LZ4FrameCompressor()
        self._begun = False

    def compress(self, data: bytes) -> bytes:
        return self._begin() + bytes(self._stream.compress(data))

    def finish(self) -> bytes:
        return self._begin() + bytes(self._stream.flush())

    def _begin(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        return bytes(self._stream.begin())


class _ZlibDecompressor:
    """zlib's decompressor, keeping the input that it has not used as the other two do."""

    def __init__(self, wbits: int) -> None:
        self._zlib = zlib.decompressobj(wbits)
        self._more_output = False

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def needs_input(self) -> bool:
        return not self._more_output

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        piece = self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)
        # zlib may have taken all of its input and still hold output that did not fit.
        self._more_output = bool(self._zlib.unconsumed_tail) or len(piece) == max_length
        return piece


CODINGS: Mapping[str, Coding] = {
    "zstd": Zstd(),
    "lz4": Lz4(),
    "gzip": Zlib(31),
    "deflate": Zlib(15),
}
"""In the order of preference: the cheapest for the server first."""


def choose(accept_encoding: str) -> str | None:
    """The coding for an answer: of those that the client takes (RFC 9110, 12.5.3) the one that
    costs least.
    """
    accepted = set()
    for part in accept_encoding.lower().split(","):
        name, _, weight = part.partition(";")
        if weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
            accepted.add(name.strip())
    return next((name for name in CODINGS if name in accepted), None)


def decoder(content_encoding: str) -> Decoder | None:
    """For the body of a request; None when it is not encoded. Raises UnknownCoding."""
    name = content_encoding.strip().lower()
    if name in ("", "identity"):
        return None
    if name not in CODINGS:
        raise UnknownCoding(f"Unknown Content-Encoding {name}; known: {', '.join(CODINGS)}")
    return Decoder(CODINGS[name])


class Decoder:
    """Decodes one body: one or several streams of its coding, one after the other."""

    _ERRORS = (zlib.error, zstd.ZstdError, RuntimeError, EOFError)

    def __init__(self, coding: Coding) -> None:
        self._coding = coding
        self._stream: Decompressor | None = None

    def decompress(self, data: bytes) -> Iterator[bytes]:
        """The decoded bytes of `data`, in pieces of at most PIECE_BYTES. Raises CodingError."""
        while data or (self._stream is not None and not self._stream.needs_input):
            if self._stream is None:
                self._stream = self._coding.decompressor()
            try:
                piece = self._stream.decompress(data, PIECE_BYTES)
            except self._ERRORS as error:
                raise CodingError(str(error)) from error
            data = b""
            if piece:
                yield piece
            if self._stream.eof:
                data = self._stream.unused_data or b""
                self._stream = None

    def finish(self) -> None:
        """The body is over. Raises CodingError if a stream of it has not ended."""
        if self._stream is not None:
            raise CodingError("the compressed body ends in the middle")
