"""Cuts a byte stream into frames: a 4-byte big-endian length, then that many bytes.

The length is only a claim. Memory grows with the bytes that were received, never with the length
that was claimed, and a length above the limit ends the connection before any of the frame is read.
"""

from __future__ import annotations

import struct

_LENGTH = struct.Struct(">i")
_LENGTH_BYTES = _LENGTH.size


class FrameError(Exception):
    """The stream cannot come from a Kafka client; nothing after this point can be trusted."""


class FrameReader:
    """Collects received bytes and returns whole frames, in order."""

    __slots__ = ("_buffer", "_max_bytes", "_needed")

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes` is the longest frame accepted (Kafka's `socket.request.max.bytes`)."""
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._needed = _LENGTH_BYTES

    @property
    def buffered(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return len(self._buffer)

    def feed(self, data: bytes | memoryview) -> list[bytes]:
        """The frames that `data` completes; it may change afterwards. Raises `FrameError`."""
        if not self._buffer:  # as a rule; whole frames are copied once then
            frames, position = self._cut(data)
            self._buffer += data[position:] if position else data
            return frames
        self._buffer += data
        if len(self._buffer) < self._needed:
            return []
        frames, position = self._cut(self._buffer)
        del self._buffer[:position]
        return frames

    def _cut(self, data: bytes | bytearray | memoryview) -> tuple[list[bytes], int]:
        """The whole frames at the beginning of `data`, and where they end."""
        frames: list[bytes] = []
        position, size = 0, len(data)
        with memoryview(data) as view:
            while True:
                body = position + _LENGTH_BYTES
                if size < body:
                    self._needed = _LENGTH_BYTES
                    return frames, position
                (length,) = _LENGTH.unpack_from(data, position)
                if not 0 <= length <= self._max_bytes:
                    raise FrameError(f"a frame of {length} bytes, the limit is {self._max_bytes}")
                end = body + length
                if size < end:
                    self._needed = end - position
                    return frames, position
                frames.append(bytes(view[body:end]))
                position = end
