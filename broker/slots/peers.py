"""Asks the other brokers of the cluster, as a Kafka client does, at the addresses they advertise.

A connection carries one request at a time: a broker answers the requests of a connection one after
another, and one may wait there for what another broker has to do first. It is closed when its time
is up: the other broker carries out no marker whose connection has gone (broker/log/block.py).

Whoever asks must be prepared to ask again: `RequestTimedOut` says that a request may or may not
have been carried out.
"""

from __future__ import annotations

import asyncio
import struct
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kafka.protocol.api_message import ApiMessage

from brokerhouse.broker.endpoints import BrokerEndpoint
from brokerhouse.protocol.errors import RequestTimedOut

_TIMEOUT_S = 5.0
_AT_ONCE = 32
"""Requests to one broker; more wait for their turn."""
_RESPONSE_MAX_BYTES = 64 << 20
_LENGTH = struct.Struct(">i")
_NO_ANSWER = (TimeoutError, OSError, EOFError, UnicodeError, ValueError, IndexError, struct.error)
"""Nobody answers there, or not as a broker does."""


class Peers:
    """Connections to the other brokers; each is made when it is needed."""

    def __init__(self, node_id: int, client_id: str | None = None) -> None:
        self._name = client_id or f"brokerhouse-{node_id}"
        self._idle: defaultdict[BrokerEndpoint, list[_Connection]] = defaultdict(list)
        self._turns: defaultdict[BrokerEndpoint, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(_AT_ONCE)
        )

    async def ask(
        self,
        broker: BrokerEndpoint,
        request: ApiMessage,
        response: type[ApiMessage],
        version: int,
        timeout_s: float | None = None,
    ) -> Any:
        """The answer of that broker. Raises `RequestTimedOut` if there is none.

        `timeout_s`: for a request that waits there; 5 s by default.
        """
        request.API_VERSION = version
        try:
            async with asyncio.timeout(timeout_s or _TIMEOUT_S), self._turns[broker]:
                return await self._ask(broker, request, response, version)
        except _NO_ANSWER as error:
            what = str(error) or type(error).__name__
            where = f"Broker {broker.node_id} at {broker.host}:{broker.port}"
            raise RequestTimedOut(f"{where} did not answer: {what}") from error

    async def _ask(
        self, broker: BrokerEndpoint, request: ApiMessage, response: type[ApiMessage], version: int
    ) -> Any:
        while idle := self._idle[broker]:
            try:
                async with self._used(broker, idle.pop()) as connection:
                    return await connection.ask(request, response, version)
            except (OSError, EOFError) as error:
                if isinstance(error, TimeoutError):
                    raise
                continue  # it was closed while it was idle
        opened = await _Connection.open(broker, self._name)
        async with self._used(broker, opened) as connection:
            return await connection.ask(request, response, version)

    @asynccontextmanager
    async def _used(
        self, broker: BrokerEndpoint, connection: _Connection
    ) -> AsyncIterator[_Connection]:
        """Idle again afterwards; closed if something goes wrong."""
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._idle[broker].append(connection)

    def close(self) -> None:
        """Nobody asks any more."""
        for connections in self._idle.values():
            for one in connections:
                one.close()
        self._idle.clear()


class _Connection:
    """A connection to one broker, for one request at a time."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._client_id = client_id
        self._number = 0

    @classmethod
    async def open(cls, broker: BrokerEndpoint, client_id: str) -> _Connection:
        return cls(*await asyncio.open_connection(broker.host, broker.port), client_id)

    async def ask(self, request: ApiMessage, response: type[ApiMessage], version: int) -> Any:
        self._number += 1
        request.with_header(correlation_id=self._number, client_id=self._client_id)
        self._writer.write(request.encode(header=True, framed=True))
        (size,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
        if not _LENGTH.size <= size <= _RESPONSE_MAX_BYTES:
            raise ValueError(
                f"its response has {size} bytes, at most {_RESPONSE_MAX_BYTES} are allowed"
            )
        body = await self._reader.readexactly(size)
        (number,) = _LENGTH.unpack_from(body)
        if number != self._number:
            raise ValueError(f"it answered request {number}, not {self._number}")
        return response.decode(body, version=version, header=True)

    def close(self) -> None:
        self._writer.close()
