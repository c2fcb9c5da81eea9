"""Accepts connections for the SQL interface: only so many at once."""

from __future__ import annotations

import asyncio

from aiohttp import web, web_protocol

from common.address import Address

# Requests that a client sends without waiting for an answer. Each may have a megabyte of URL and
# as much of headers, and aiohttp would read 32 of them into memory.
_PIPELINED_MAX = 1


class _Refused(asyncio.Protocol):
    """A connection that is closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


async def listen(runner: web.AppRunner, address: Address, max_connections: int) -> asyncio.Server:
    """Raises OSError."""
    web_protocol.MAX_MSG_QUEUE_SIZE = _PIPELINED_MAX
    server = runner.server
    assert server is not None, "the runner was set up"

    def accept() -> asyncio.BaseProtocol:
        return server() if len(server.connections) < max_connections else _Refused()

    loop = asyncio.get_running_loop()
    return await loop.create_server(accept, address.host, address.port)
