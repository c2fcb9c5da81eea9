"""Accepts connections of the HTTP listener: so many at once, of which nobody can take all.

A connection waits, or a request of it is being handled. What must hold:

* When all places are taken, a new connection gets that of one that waits: the one that has waited
  longest, of the address with most connections. To wait costs a client nothing, whatever it does
  meanwhile: sending a head slowly, not reading an answer, keeping the connection for later.
* Requests with SQL never take all places (limits.py), and all others are handled at once.
  So a health check, a scrape and the user with a password are always let in.
* A head is complete after HEAD_S, and a connection without a request is closed after IDLE_S. Bodies
  have their own deadline (body.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import cast

from aiohttp import StreamReader, web, web_protocol
from aiohttp.typedefs import Handler

from brokerhouse.common.address import Address, client_network
from brokerhouse.common.counted_lines import counted
from brokerhouse.common.tasks import Periodic

log = logging.getLogger(__name__)

HEAD_S = 10.0
IDLE_S = 300.0
_LOOK_S = 1.0

# Requests that a client sends without waiting for an answer. Each may have a megabyte of URL and
# as much of headers, and aiohttp would read 32 of them into memory.
_PIPELINED_MAX = 1


class HttpListener:
    """Serves the application of a runner, from `listen` to `close`."""

    def __init__(self, max_connections: int) -> None:
        self._max_connections = max_connections
        self._visitors: dict[web_protocol.RequestHandler, _Visitor] = {}
        self._by_origin: Counter[str] = Counter()
        self._look = Periodic("http-connections", lambda: _LOOK_S, self._close_late)
        self._server: asyncio.Server | None = None

    def runner(self, app: web.Application) -> web.AppRunner:
        """Of the application, whose requests are noted here."""
        app.middlewares.insert(0, self._noted)
        return web.AppRunner(app, access_log=None)

    async def listen(self, runner: web.AppRunner, address: Address) -> int:
        """Returns the port. Raises OSError."""
        web_protocol.MAX_MSG_QUEUE_SIZE = _PIPELINED_MAX
        server = runner.server
        assert server is not None, "the runner was set up"
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Visitor(server(), self), address.host, address.port
        )
        self._look.start()
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Accept no more connections. The runner closes those that are open.

        It would wait 10 s for the rest of a body whose statement was refused before all of it came:
        such connections are closed here.
        """
        if self._server is not None:
            self._server.close()
        for visitor in tuple(self._visitors.values()):
            if not visitor.busy and visitor.sends_body:
                visitor.close()
        await self._look.close()

    @property
    def background(self) -> list[asyncio.Task[None]]:
        return self._look.background

    # --- places

    def enter(self, visitor: _Visitor) -> bool:
        """Give a place to a new connection. False if no other one can lose its place."""
        if len(self._visitors) >= self._max_connections:
            waiting = [one for one in self._visitors.values() if not one.busy]
            if not waiting:
                return False
            longest = min(waiting, key=lambda one: (-self._by_origin[one.origin], one.since))
            self._end(longest, "all places are taken, and it has waited longest")
        self._visitors[visitor.inner] = visitor
        self._by_origin[visitor.origin] += 1
        return True

    def leave(self, visitor: _Visitor) -> None:
        if self._visitors.pop(visitor.inner, None) is not None:
            self._by_origin -= Counter({visitor.origin: 1})

    def _end(self, visitor: _Visitor, why: str) -> None:
        log.info("closed an HTTP connection of %s: %s", visitor.origin, why, extra=counted())
        self.leave(visitor)
        visitor.abort()

    @web.middleware
    async def _noted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        visitor = self._visitors.get(request.protocol)
        if visitor is None:  # it has lost its place meanwhile
            return await handler(request)
        visitor.begin_request()
        try:
            return await handler(request)
        finally:
            visitor.end_request(request.content)

    # --- deadlines

    def _close_late(self) -> None:
        now = asyncio.get_running_loop().time()
        for visitor in tuple(self._visitors.values()):
            if visitor.is_late(now):
                self._end(visitor, "it sent no request in time")


class _Visitor(asyncio.Protocol):
    """One connection. aiohttp's protocol is `inner`."""

    def __init__(self, inner: web_protocol.RequestHandler, listener: HttpListener) -> None:
        self.inner = inner
        self.origin = ""
        self.busy = False
        self.since = asyncio.get_running_loop().time()
        """When it began to wait."""
        self._head_since: float | None = self.since
        self._body: StreamReader | None = None
        """Of the last request, which may have been answered before all of it came."""
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._is_in = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.origin = client_network(str(peer[0]) if peer else None)
        self._is_in = self._listener.enter(self)
        if self._is_in:
            self.inner.connection_made(transport)
        else:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if not self._is_in:
            return
        if not self.busy and not self.sends_body and self._head_since is None:
            self._head_since = asyncio.get_running_loop().time()
        self.inner.data_received(data)

    def eof_received(self) -> None:
        if self._is_in:
            self.inner.eof_received()

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.leave(self)
        if self._is_in:
            self.inner.connection_lost(exc)

    @property
    def sends_body(self) -> bool:
        """Whether the last request was answered before all of its body came."""
        return self._body is not None and not self._body.is_eof()

    def begin_request(self) -> None:
        self.busy = True
        self._head_since = self._body = None

    def end_request(self, body: StreamReader) -> None:
        self.busy, self._body = False, body
        self.since = asyncio.get_running_loop().time()

    def is_late(self, now: float) -> bool:
        """Whether its next request should have come, or its answer been read, before."""
        if self.busy:
            return False
        if self._head_since is not None and now - self._head_since > HEAD_S:
            return True
        return now - self.since > IDLE_S

    def close(self) -> None:
        """What has been written is sent first."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
