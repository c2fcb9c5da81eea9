"""The ports for Kafka clients. They are bound first at a start, and accept clients last.

So a broker knows its own addresses before it is built, an address that is in use is an error at
once, and no client connects to a broker that is not ready.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from brokerhouse.broker.endpoints import BrokerEndpoint
from brokerhouse.broker.net.connection import Connection, Connections
from brokerhouse.broker.net.named_addresses import DEFAULT_LISTENER, NamedAddress
from brokerhouse.broker.settings.config import Settings
from brokerhouse.broker.start_error import StartError
from brokerhouse.common.address import is_wildcard

_BACKLOG = 1024


class ListenError(StartError):
    """The broker cannot listen on an address. The message says why, or what to change."""


class KafkaListener:
    """The listeners for Kafka clients. Create it with `bind`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._servers: list[tuple[NamedAddress, asyncio.Server]] = []
        self._connections: Connections | None = None

    @classmethod
    async def bind(cls, settings: Settings) -> KafkaListener:
        """Bind the addresses of the setting `kafka`; nobody can connect yet.

        Raises `ListenError`.
        """
        listener = cls(settings)
        try:
            for address in settings.listeners:
                await listener._bind(address)
        except BaseException:
            listener.close()
            raise
        return listener

    async def _bind(self, wanted: NamedAddress) -> None:
        with _listen_errors(wanted):
            server = await asyncio.get_running_loop().create_server(
                partial(self._connected, wanted.listener),
                wanted.host,
                wanted.port,
                backlog=_BACKLOG,
                start_serving=False,
            )
        port = int(server.sockets[0].getsockname()[1])
        self._servers.append((wanted._replace(port=port), server))

    @property
    def addresses(self) -> list[NamedAddress]:
        """Where it listens, with the ports that were picked."""
        return [address for address, _ in self._servers]

    def endpoint(self) -> BrokerEndpoint:
        """The addresses that clients connect to. Raises `ListenError` if a listener has none."""
        settings = self._settings
        advertised = {one.listener: one for one in settings.advertised_listeners}
        told = tuple(advertised.get(one.listener, one) for one in self.addresses)
        for one in told:
            if is_wildcard(one.host):
                named = "" if len(told) == 1 else f"{one.listener}://"
                raise ListenError(
                    f"{one.host} is not an address that clients can connect to:"
                    f" give --advertised {named}HOST:PORT"
                )
        first = told[0]
        named_ones = () if [one.listener for one in told] == [DEFAULT_LISTENER] else told
        return BrokerEndpoint(settings.node_id, first.host, first.port, settings.rack, named_ones)

    async def accept(self, connections: Connections) -> None:
        """Let clients connect. Raises `ListenError`."""
        self._connections = connections
        for address, server in self._servers:
            with _listen_errors(address):
                await server.start_serving()

    def close(self) -> None:
        """Accept no more clients; open connections stay open."""
        for _, server in self._servers:
            server.close()

    def _connected(self, listener: str) -> Connection:
        assert self._connections is not None, "a client has connected before `accept`"
        return self._connections.new(listener)


@contextmanager
def _listen_errors(address: NamedAddress) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ListenError(
            f"cannot listen for Kafka on {address.address}: {reason(error)}"
        ) from error


def reason(error: OSError) -> str:
    """Why the broker cannot listen on an address, in a few words."""
    if isinstance(error, socket.gaierror):
        return "no such host"
    return error.strerror or str(error)
