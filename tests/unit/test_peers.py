"""A broker asks another one: it answers, it does not, or something else listens there."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from kafka.protocol.producer import WriteTxnMarkersRequest, WriteTxnMarkersResponse

from brokerhouse.broker.endpoints import BrokerEndpoint
from brokerhouse.broker.slots import peers
from brokerhouse.broker.slots.peers import Peers
from brokerhouse.protocol.errors import RequestTimedOut

VERSION = 2
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[BrokerEndpoint]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield BrokerEndpoint(2, host, port)
    finally:
        server.close()


async def request_of(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    (number,) = struct.unpack_from(">i", await request_of(reader), 4)
    response = WriteTxnMarkersResponse(markers=[])
    response.API_VERSION = VERSION
    response.with_header(correlation_id=number)
    writer.write(response.encode(header=True, framed=True))


async def asked(peers: Peers, broker: BrokerEndpoint) -> None:
    request = WriteTxnMarkersRequest(markers=[])
    assert (await peers.ask(broker, request, WriteTxnMarkersResponse, VERSION)).markers == []


async def test_a_connection_to_a_peer_is_reused_and_replaced_when_it_is_lost() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        for _ in range(2):
            await answer(reader, writer)
        writer.close()

    asking = Peers(1)
    async with listening(serve) as broker:
        for _ in range(4):
            await asked(asking, broker)
    asking.close()
    assert connections == 2


async def test_a_slow_request_to_a_peer_does_not_delay_others() -> None:
    first = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not first.is_set():
            first.set()
            await request_of(reader)
            await asyncio.Event().wait()  # for ever
        await answer(reader, writer)

    asking = Peers(1)
    async with listening(serve) as broker:
        waiting = asyncio.create_task(asked(asking, broker))
        await first.wait()
        await asked(asking, broker)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    asking.close()


@pytest.mark.parametrize(
    "said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\4\0\0\0\7", b"\0\0\0\5\0\0\0\1\0"]
)
async def test_a_peer_that_does_not_answer_as_a_broker_is_an_error(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(said)
        if said:
            writer.close()
        else:
            await asyncio.Event().wait()  # for ever

    monkeypatch.setattr(peers, "_TIMEOUT_S", 0.2)
    asking = Peers(1)
    async with listening(serve) as broker:
        with pytest.raises(RequestTimedOut):
            await asked(asking, broker)
    with pytest.raises(RequestTimedOut):
        await asked(asking, BrokerEndpoint(2, "127.0.0.1", 1))
    with pytest.raises(RequestTimedOut):
        await asked(asking, BrokerEndpoint(2, "x" * 70 + ".example", 9092))
    asking.close()
