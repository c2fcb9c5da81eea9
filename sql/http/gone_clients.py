"""Ends requests whose client has closed the connection, also while nothing is read from it.

aiohttp notices the end of a connection when it reads. It does not read while it has as much as a
request may hold in memory: a body that the engine takes slowly, or further requests that were sent
behind this one. So the system is asked: it knows that the other side has closed, whatever is still
to be read.
"""

from __future__ import annotations

import asyncio
import select

from aiohttp import web

from common.tasks import Periodic

LOOK_S = 0.5
_GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR


class GoneClients:
    """Looks after the requests that are being answered."""

    def __init__(self) -> None:
        self._handlers: dict[asyncio.Task[web.StreamResponse], asyncio.BaseTransport] = {}
        self._look = Periodic("gone-sql-clients", LOOK_S, self._end_abandoned)

    def start(self) -> None:
        self._look.start()

    async def close(self) -> None:
        await self._look.close()

    def watch(
        self, handler: asyncio.Task[web.StreamResponse], transport: asyncio.BaseTransport | None
    ) -> None:
        """Cancel `handler` when the other side of `transport` has closed it."""
        if transport is None:  # it has closed it already
            handler.cancel()
            return
        self._handlers[handler] = transport
        handler.add_done_callback(self._handlers.pop)

    def _end_abandoned(self) -> None:
        if not self._handlers:
            return
        poll = select.poll()
        watched = {}
        for handler, transport in self._handlers.items():
            sock = transport.get_extra_info("socket")
            if sock is not None and not transport.is_closing() and sock.fileno() >= 0:
                poll.register(sock.fileno(), _GONE)
                watched[sock.fileno()] = handler
        for fd, _ in poll.poll(0):
            watched[fd].cancel()
