"""Splits a stream of bytes into complete Native blocks.

A reader may stop at any time and must then have complete blocks, but HTTP does not know where a
block ends. This finds the end of each one by the sizes that precede every value. Nothing is
decoded. Format: https://clickhouse.com/docs/interfaces/formats/Native, as servers send it to
clients that announce no protocol revision: no block header, no LowCardinality, no sparse columns.

Python is fast enough here (measured: 1.9 ms for 8,192 records of 100 bytes, 11 ms for 8 MB).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import lru_cache

from brokerhouse.storage.native_types import (
    Fixed,
    Layout,
    Lists,
    Several,
    Strings,
    UnsupportedType,
    layout,
)

Steps = Generator[None, None, None]

_EXCEPTION = b"\r\n__exception__\r\n"
_EXCEPTION_BYTES = 64 * 1024


class NotNative(ValueError):
    """The bytes are not a Native block, or one of its columns cannot be skipped."""


class ServerException(Exception):
    """The server ended the stream with an exception; the text is the server's."""


class BlockStream:
    """Takes bytes as they arrive, and returns the blocks that are complete, unchanged."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._at = 0
        self._blocks: list[bytes] = []
        self._steps = self._read()
        next(self._steps)

    def feed(self, data: bytes) -> list[bytes]:
        """Raises `NotNative`."""
        self._buffer += data
        next(self._steps)
        blocks, self._blocks = self._blocks, []
        return blocks

    def finish(self) -> None:
        """The stream has ended. Raises `ServerException` or `NotNative` if it is incomplete."""
        if self._buffer.startswith(_EXCEPTION):
            message = bytes(self._buffer[len(_EXCEPTION) :]).decode(errors="replace")
            raise ServerException(message.strip())
        if self._buffer:
            raise NotNative(
                f"the answer ends in the middle of a block, after {len(self._buffer)} bytes of it"
            )

    def _read(self) -> Steps:
        while True:
            self._at = 0
            while not self._buffer:
                yield
            if self._buffer[0] == _EXCEPTION[0]:
                yield from self._maybe_exception()
            columns = yield from self._number()
            rows = yield from self._number()
            for _ in range(columns):
                yield from self._text()
                kind = yield from self._text()
                if rows:
                    yield from skipper(kind)(self, rows)
            while len(self._buffer) < self._at:
                yield
            if rows:
                self._blocks.append(bytes(self._buffer[: self._at]))
            del self._buffer[: self._at]

    def _maybe_exception(self) -> Steps:
        # A block of 13 columns and 10 rows begins like an exception, and then differs.
        while len(self._buffer) < len(_EXCEPTION) and _EXCEPTION.startswith(self._buffer):
            yield
        while self._buffer.startswith(_EXCEPTION):
            if len(self._buffer) > _EXCEPTION_BYTES:
                raise NotNative(f"the text of an exception has more than {_EXCEPTION_BYTES} bytes")
            yield

    def _number(self) -> Generator[None, None, int]:
        while (found := _varint(self._buffer, self._at)) is None:
            yield
        number, self._at = found
        return number

    def _text(self) -> Generator[None, None, str]:
        size = yield from self._number()
        end = self._at + size
        while len(self._buffer) < end:
            yield
        text = self._buffer[self._at : end]
        self._at = end
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise NotNative(
                f"the name or the type of a column is not UTF-8: {bytes(text[:64])!r}"
            ) from error

    def skip(self, size: int) -> None:
        self._at += size

    def skip_strings(self, count: int) -> Steps:
        buffer = self._buffer
        at = self._at
        while count:
            try:
                while count:
                    size = buffer[at]
                    if size < 0x80:
                        at += 1 + size
                    else:
                        found = _varint(buffer, at)
                        if found is None:
                            break
                        at = found[0] + found[1]
                    count -= 1
            except IndexError:
                pass  # the rest has not arrived
            if count:
                yield
        self._at = at

    def array_size(self, count: int) -> Generator[None, None, int]:
        """Skip the ends of `count` arrays, and return the end of the last one."""
        end = self._at + 8 * count
        while len(self._buffer) < end:
            yield
        self._at = end
        return int.from_bytes(self._buffer[end - 8 : end], "little")


Skipper = Callable[[BlockStream, int], Iterator[None]]


@lru_cache(maxsize=256)
def skipper(kind: str) -> Skipper:
    """A function that skips values of this type. Raises `NotNative` for an unsupported type."""
    try:
        return _skipper(layout(kind))
    except UnsupportedType as error:
        raise NotNative(f"cannot read past a column: {error}") from error


def _skipper(values: Layout) -> Skipper:
    match values:
        case Fixed(width):
            return _fixed(width)
        case Strings():
            return BlockStream.skip_strings
        case Several(parts):
            return _all(*map(_skipper, parts))
        case Lists(element):
            return _array(_skipper(element))
    raise UnsupportedType("type LowCardinality is not supported here")


def _fixed(width: int) -> Skipper:
    def skip(stream: BlockStream, count: int) -> Iterator[None]:
        stream.skip(width * count)
        return iter(())

    return skip


def _all(*parts: Skipper) -> Skipper:
    def skip(stream: BlockStream, count: int) -> Iterator[None]:
        for part in parts:
            yield from part(stream, count)

    return skip


def _array(item: Skipper) -> Skipper:
    def skip(stream: BlockStream, count: int) -> Iterator[None]:
        size = (yield from stream.array_size(count)) if count else 0
        yield from item(stream, size)

    return skip


def _varint(buffer: bytearray, at: int) -> tuple[int, int] | None:
    """A number and the position after it, or None if it has not arrived completely."""
    number = shift = 0
    for index in range(at, min(at + 10, len(buffer))):
        byte = buffer[index]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, index + 1
        shift += 7
    if len(buffer) - at >= 10:
        raise NotNative("a size has more than 64 bits")
    return None
