"""Where clients connect. The port is bound before anything is opened, and accepts clients last.

So a broker knows its own address before it is built, an address in use is reported at once, and no
client connects to a broker that is not ready.
"""

from __future__ import annotations

import asyncio
import socket

from broker.config import Settings
from broker.connection import Connection, Connections
from broker.leadership import BrokerEndpoint
from common.address import parse_address

_WILDCARD_HOSTS = frozenset({"0.0.0.0", "::"})
_BACKLOG = 1024


class ListenError(Exception):
    """The broker cannot listen on an address. The message says why, or what to change."""


class KafkaListener:
    """The listener for Kafka clients. Create it with `bind`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._server: asyncio.Server | None = None
        self._connections: Connections | None = None

    @classmethod
    async def bind(cls, settings: Settings) -> KafkaListener:
        """Bind the address of the setting `kafka`. Nobody can connect yet. Raises `ListenError`."""
        listener = cls(settings)
        address = parse_address(settings.kafka)
        try:
            listener._server = await asyncio.get_running_loop().create_server(
                listener._connected,
                address.host,
                address.port,
                backlog=_BACKLOG,
                start_serving=False,
            )
        except OSError as error:
            raise ListenError(f"cannot listen for Kafka on {address}: {reason(error)}") from error
        return listener

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def endpoint(self) -> BrokerEndpoint:
        """The address that clients connect to. Raises `ListenError` if there is none."""
        settings = self._settings
        host, port = parse_address(settings.kafka).host, self.port
        if settings.advertised is not None:
            host, port = parse_address(settings.advertised)
        elif host in _WILDCARD_HOSTS:
            raise ListenError(
                f"{host} is not an address that clients can connect to: give --advertised HOST:PORT"
            )
        return BrokerEndpoint(settings.node_id, host, port, settings.rack)

    async def accept(self, connections: Connections) -> None:
        """Let clients connect. Raises `ListenError`."""
        assert self._server is not None
        self._connections = connections
        try:
            await self._server.start_serving()
        except OSError as error:
            address = self._settings.kafka
            raise ListenError(f"cannot listen for Kafka on {address}: {reason(error)}") from error

    def close(self) -> None:
        """Accept no more clients; open connections stay open."""
        if self._server is not None:
            self._server.close()

    def _connected(self) -> Connection:
        assert self._connections is not None, "a client has connected before `accept`"
        return self._connections.new()


def reason(error: OSError) -> str:
    """Why the broker cannot listen on an address, in a few words."""
    if isinstance(error, socket.gaierror):
        return "no such host"
    return error.strerror or str(error)
