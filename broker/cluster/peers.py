"""Asks the other brokers of the cluster, as a Kafka client does: one connection to each.

Requests go to the address that the broker advertises. Whoever asks must be prepared to ask again:
`RequestTimedOut` says that a request may or may not have been carried out.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import struct
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from kafka.protocol.api_message import ApiMessage

from broker.leadership import BrokerEndpoint
from protocol.decoder import MalformedMessage
from protocol.errors import RequestTimedOut

log = logging.getLogger(__name__)

_TIMEOUT_S = 5.0
_RESPONSE_MAX_BYTES = 64 << 20
_LENGTH = struct.Struct(">i")


class Peers:
    """Connections to the other brokers; each is made when it is needed."""

    def __init__(self, node_id: int) -> None:
        self._name = f"brokerhouse-{node_id}"
        self._connections: dict[BrokerEndpoint, _Connection] = {}

    async def ask(
        self,
        broker: BrokerEndpoint,
        request: ApiMessage,
        response: type[ApiMessage],
        version: int,
    ) -> Any:
        """The answer of that broker. Raises `RequestTimedOut` if there is none."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await self._connection(broker).ask(request, response, version)
        except (TimeoutError, OSError, EOFError, MalformedMessage) as error:
            what = str(error) or type(error).__name__
            where = f"broker {broker.node_id} at {broker.host}:{broker.port}"
            raise RequestTimedOut(f"{where} did not answer: {what}") from error

    def _connection(self, broker: BrokerEndpoint) -> _Connection:
        found = self._connections.get(broker)
        if found is None or found.is_closed:
            self._connections = {
                at: one for at, one in self._connections.items() if not one.is_closed
            }
            found = self._connections[broker] = _Connection(broker, self._name)
        return found

    async def close(self) -> None:
        connections: Collection[_Connection] = self._connections.values()
        await asyncio.gather(*(one.close() for one in connections))


class _Connection:
    """A connection to one broker; closed for good when something goes wrong on it."""

    def __init__(self, broker: BrokerEndpoint, client_id: str) -> None:
        self._broker = broker
        self._client_id = client_id
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._opening = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None
        self.is_closed = False

    async def ask(self, request: ApiMessage, response: type[ApiMessage], version: int) -> Any:
        """Raises `OSError`, `EOFError` and `MalformedMessage`."""
        async with self._opening:
            if self._writer is None and not self.is_closed:
                await self._open()
        if self._writer is None or self.is_closed:
            raise EOFError("the connection is closed")
        number = next(self._numbers)
        request.API_VERSION = version
        request.with_header(correlation_id=number, client_id=self._client_id)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._writer.write(request.encode(header=True, framed=True))
            body = await answer
        finally:
            del self._waiting[number]
        try:
            return response.decode(body, version=version, header=True)
        except (ValueError, IndexError, struct.error) as error:
            raise MalformedMessage(str(error)) from error

    async def _open(self) -> None:
        try:
            reader, self._writer = await asyncio.open_connection(
                self._broker.host, self._broker.port
            )
        except BaseException:
            self.is_closed = True
            raise
        self._reading = asyncio.create_task(self._read(reader), name="peer")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                if not _LENGTH.size <= size <= _RESPONSE_MAX_BYTES:
                    raise EOFError(f"a response of {size} bytes")
                body = await reader.readexactly(size)
                (number,) = _LENGTH.unpack_from(body)
                answer = self._waiting.get(number)
                if answer is not None and not answer.done():
                    answer.set_result(body)
        except (OSError, EOFError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.is_closed = True
        if self._writer is not None:
            self._writer.close()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(EOFError(f"the connection ended: {error}"))

    async def close(self) -> None:
        self._fail(EOFError("this broker stops"))
        if self._reading is not None:
            self._reading.cancel()
            with suppress(asyncio.CancelledError):
                await self._reading
