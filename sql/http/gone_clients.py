"""Ends requests whose client has closed the connection, also while nothing is read from it.

aiohttp notices the end of a connection when it reads. It does not read while it has as much as a
request may hold in memory: a body that the engine takes slowly, or further requests that were sent
behind this one. So the system is asked: it knows that the other side has closed, unless its buffer
is full, because the end comes after the data. So a client that sends much behind a request that is
complete, without waiting for the answer, is taken for one that has gone.
"""

from __future__ import annotations

import asyncio
import fcntl
import select
import struct
import termios

from aiohttp import web

from common.tasks import Periodic

LOOK_S = 0.5
SENT_AHEAD_MAX_BYTES = 32 * 1024
_GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR


class GoneClients:
    """Looks after the requests that are being answered."""

    def __init__(self) -> None:
        self._handlers: dict[asyncio.Task[web.StreamResponse], web.Request] = {}
        self._look = Periodic("gone-sql-clients", LOOK_S, self._end_abandoned)

    def start(self) -> None:
        self._look.start()

    async def close(self) -> None:
        await self._look.close()

    def watch(self, handler: asyncio.Task[web.StreamResponse], request: web.Request) -> None:
        """Cancel `handler` when the client of `request` has gone."""
        if request.transport is None:  # it has closed the connection already
            handler.cancel()
            return
        self._handlers[handler] = request
        handler.add_done_callback(self._handlers.pop)

    def _end_abandoned(self) -> None:
        if not self._handlers:
            return
        poll = select.poll()
        watched = {}
        for handler, request in self._handlers.items():
            transport = request.transport
            if transport is None or transport.is_closing():
                continue
            fd = transport.get_extra_info("socket").fileno()
            if request.content.is_eof() and _unread_bytes(fd) > SENT_AHEAD_MAX_BYTES:
                handler.cancel()
                transport.abort()
                continue
            poll.register(fd, _GONE)
            watched[fd] = handler
        for fd, _ in poll.poll(0):
            watched[fd].cancel()


def _unread_bytes(fd: int) -> int:
    """What the system has received and nobody has read."""
    (unread,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4))
    return int(unread)
