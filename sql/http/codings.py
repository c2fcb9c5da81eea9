"""Content codings of HTTP bodies, both ways, piece by piece and in bounded memory.

A decoder gives out small pieces (at most a few MiB) however much its input expands to, so that a
compressed bomb costs a client's patience and not the broker's memory. For br no library here can do
that, so a request in it is refused; answers are given in it. An encoder is a plain stream
compressor. zstd, lz4 (frame format), gzip, deflate (zlib format), br, xz and bz2, as in ClickHouse:
https://clickhouse.com/docs/interfaces/http
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import cramjam
import lz4.frame
import zstandard

PIECE_BYTES = 1024 * 1024
_ZSTD_BITE_BYTES = 512
_ZSTD_WINDOW_BYTES = 128 * 1024 * 1024


class CodingError(Exception):
    """The body is not what its Content-Encoding says."""


class UnknownCoding(Exception):
    """Content-Encoding names something that is not served here."""


class Encoder(Protocol):
    def compress(self, data: bytes) -> bytes: ...
    def finish(self) -> bytes: ...


class Decoder(Protocol):
    def decompress(self, data: bytes) -> Iterator[bytes]:
        """Pieces of what `data` continues. Raises CodingError."""

    def finish(self) -> None:
        """The body is over. Raises CodingError if it should go on."""


class _Zlib:
    def __init__(self, wbits: int) -> None:
        self._stream = zlib.compressobj(1, zlib.DEFLATED, wbits)

    def compress(self, data: bytes) -> bytes:
        return self._stream.compress(data)

    def finish(self) -> bytes:
        return self._stream.flush()


class _Zstd:
    def __init__(self) -> None:
        self._stream = zstandard.ZstdCompressor(level=1).compressobj()

    def compress(self, data: bytes) -> bytes:
        return self._stream.compress(data)

    def finish(self) -> bytes:
        return self._stream.flush()


class _Lz4:
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


class _Brotli:
    def __init__(self) -> None:
        self._stream = cramjam.brotli.Compressor(level=1)

    def compress(self, data: bytes) -> bytes:
        self._stream.compress(data)
        return bytes(self._stream.flush())

    def finish(self) -> bytes:
        return bytes(self._stream.finish())


class _Stdlib:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def compress(self, data: bytes) -> bytes:
        compressed: bytes = self._stream.compress(data)
        return compressed

    def finish(self) -> bytes:
        rest: bytes = self._stream.flush()
        return rest


# In the order of preference: what costs the server least first.
ENCODERS: Mapping[str, Callable[[], Encoder]] = {
    "zstd": _Zstd,
    "lz4": _Lz4,
    "gzip": lambda: _Zlib(31),
    "deflate": lambda: _Zlib(15),
    "br": _Brotli,
    "xz": lambda: _Stdlib(lzma.LZMACompressor(preset=0)),
    "bz2": lambda: _Stdlib(bz2.BZ2Compressor(1)),
}


def choose(accept_encoding: str) -> str | None:
    """The coding for an answer: of those that the client takes (RFC 9110, 12.5.3) the one that
    costs least.
    """
    accepted = set()
    for part in accept_encoding.lower().split(","):
        name, _, weight = part.partition(";")
        if weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
            accepted.add(name.strip())
    return next((name for name in ENCODERS if name in accepted), None)


class _Multi:
    """Streams of the decompressors that tell the end of a member and what was left over; members
    may follow.
    """

    _errors = (zlib.error, lzma.LZMAError, OSError, RuntimeError, EOFError, ValueError)

    def __init__(self, fresh: Callable[[], Any], limited: Callable[[Any, bytes], bytes]) -> None:
        self._fresh = fresh
        self._limited = limited
        self._stream: Any = None

    def decompress(self, data: bytes) -> Iterator[bytes]:
        while True:
            if self._stream is None:
                if not data:
                    return
                self._stream = self._fresh()
            try:
                piece = self._limited(self._stream, data)
            except self._errors as error:
                raise CodingError(str(error)) from error
            if piece:
                yield piece
            if self._stream.eof:
                data = self._stream.unused_data or b""
                self._stream = None
            elif not piece and self._wants_more():
                return
            else:
                data = self._rest()

    def _wants_more(self) -> bool:
        return bool(getattr(self._stream, "needs_input", not self._rest()))

    def _rest(self) -> bytes:
        # zlib hands back what it has not read; the others keep it themselves.
        rest: bytes = getattr(self._stream, "unconsumed_tail", b"")
        return rest

    def finish(self) -> None:
        if self._stream is not None:
            raise CodingError("the compressed body ends in the middle")


class _Unzstd:
    """zstandard bounds no output, so its input is given in small bites: a block of 4 bytes can
    stand for 128 KiB.
    """

    def __init__(self) -> None:
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
        self._stream: Any = None

    def decompress(self, data: bytes) -> Iterator[bytes]:
        rest = memoryview(data)
        while rest:
            bite, rest = bytes(rest[:_ZSTD_BITE_BYTES]), rest[_ZSTD_BITE_BYTES:]
            while bite:
                if self._stream is None:
                    self._stream = self._decompressor.decompressobj()
                try:
                    piece = self._stream.decompress(bite)
                except zstandard.ZstdError as error:
                    raise CodingError(str(error)) from error
                if piece:
                    yield piece
                bite = b""
                if self._stream.eof:
                    bite, self._stream = self._stream.unused_data, None

    def finish(self) -> None:
        if self._stream is not None:
            raise CodingError("the compressed body ends in the middle")


def _stdlib_piece(stream: Any, data: bytes) -> bytes:
    piece: bytes = stream.decompress(data, PIECE_BYTES)
    return piece


_DECODERS: Mapping[str, Callable[[], Decoder]] = {
    "zstd": _Unzstd,
    "lz4": lambda: _Multi(lz4.frame.LZ4FrameDecompressor, _stdlib_piece),
    "gzip": lambda: _Multi(lambda: zlib.decompressobj(31), _stdlib_piece),
    "deflate": lambda: _Multi(lambda: zlib.decompressobj(15), _stdlib_piece),
    "xz": lambda: _Multi(lambda: lzma.LZMADecompressor(memlimit=_ZSTD_WINDOW_BYTES), _stdlib_piece),
    "bz2": lambda: _Multi(bz2.BZ2Decompressor, _stdlib_piece),
}


def decoder(content_encoding: str) -> Decoder | None:
    """For the body of a request; None when it is not encoded. Raises UnknownCoding."""
    name = content_encoding.strip().lower()
    if name in ("", "identity"):
        return None
    if name not in _DECODERS:
        raise UnknownCoding(f"Unknown Content-Encoding {name}; known: {', '.join(_DECODERS)}")
    return _DECODERS[name]()
