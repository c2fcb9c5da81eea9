"""A protocol whose connections all read into one buffer.

`asyncio.Protocol` gets a new `bytes` for whatever arrives, which is an allocation and a copy for
each read. A `BufferedProtocol` names the place instead. One place is enough for all: a transport
reads into it and calls `buffer_updated` before the event loop turns to another one
(https://docs.python.org/3/library/asyncio-protocol.html#buffered-streaming-protocols). The rest of
a large frame is received where the frame is put together.
"""

from __future__ import annotations

import asyncio

from protocol._frames import FrameReader

_READ_BYTES = 256 << 10
"""What one turn of the event loop takes from a socket at most; as uvloop does by default."""


def shared_buffer() -> memoryview:
    """A buffer for all connections of one event loop."""
    return memoryview(bytearray(_READ_BYTES))


class SharedBufferProtocol(asyncio.BufferedProtocol):
    """Gives its subclass whole frames: `buffer_updated` has to call `_read`."""

    def __init__(self, buffer: memoryview, frame_max_bytes: int) -> None:
        self._shared = buffer
        self._frames = FrameReader(frame_max_bytes)
        self._has_place = False

    def get_buffer(self, sizehint: int) -> memoryview:
        place = self._frames.place(_READ_BYTES)
        if place is None:
            self._has_place = False
            return self._shared
        self._has_place = True
        return place

    def _read(self, nbytes: int) -> list[bytes]:
        """The frames that what was just received completes. Raises `FrameError`."""
        if self._has_place:
            return self._frames.received(nbytes)
        return self._frames.feed(self._shared, nbytes)
