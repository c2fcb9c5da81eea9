"""A protocol whose connections all read into one buffer.

`asyncio.Protocol` gets a new `bytes` for whatever arrives, which is an allocation and a copy for
each read. A `BufferedProtocol` names the place instead. One place is enough for all: a transport
reads into it and calls `buffer_updated` before the event loop turns to another one
(https://docs.python.org/3/library/asyncio-protocol.html#buffered-streaming-protocols).
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod

_READ_BYTES = 256 << 10
"""What one turn of the event loop takes from a socket at most; as uvloop does by default."""


def shared_buffer() -> memoryview:
    """A buffer for all connections of one event loop."""
    return memoryview(bytearray(_READ_BYTES))


class SharedBufferProtocol(asyncio.BufferedProtocol):
    def __init__(self, buffer: memoryview) -> None:
        self._buffer = buffer

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(self._buffer[:nbytes])

    @abstractmethod
    def data_received(self, data: memoryview) -> None:
        """`data` is overwritten after the call: copy what is kept."""
