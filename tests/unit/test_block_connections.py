"""Listeners of the engine: which inserts go past the HTTP library, and what becomes of the rest."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from brokerhouse.sql.http import block_connections
from brokerhouse.sql.http.access import Role
from brokerhouse.sql.http.block_connections import BlockTarget, EngineListeners, KnownHeads
from brokerhouse.sql.http.body import STALL_S
from brokerhouse.sql.http.request import SqlRequest
from brokerhouse.sql.http.token_inserts import TokenInsert
from brokerhouse.storage.engine import NotSent, StorageFault
from tests.support.waiting import until_async

LIMIT_S = 10.0
TARGET = BlockTarget("t", "a, b")
PATH = "/?query=INSERT+INTO+t+%28a%2C+b%29+FORMAT+Native&x=1"
HEADERS = {
    "Host": "127.0.0.1:1",
    "Authorization": "Basic eA==",
    "User-Agent": "brokerhouse",
    "Connection": "keep-alive",
    "Content-Length": "4",
}
WANTED = SqlRequest("POST", "1", Role.WRITER, query=b"INSERT INTO t (a, b) FORMAT Native")
INSERT = TokenInsert("t", "1-1-1", "a, b")
OTHERS = b"from the library"


class Receiver:
    """Keeps the blocks that it is given."""

    def __init__(self) -> None:
        self.heads = KnownHeads()
        self.blocks: list[tuple[str, bytes]] = []
        self.outcome: bool | Exception = True
        self.may_append = asyncio.Event()
        self.may_append.set()

    async def append(self, target: BlockTarget, block: bytes, token: str) -> bool:
        assert target == TARGET
        await self.may_append.wait()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        if self.outcome:
            self.blocks.append((token, block))
        return self.outcome


class Library(asyncio.Protocol):
    """In place of aiohttp: keeps what it is given, and answers each piece."""

    received: bytes = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        Library.received += data
        assert isinstance(self._transport, asyncio.WriteTransport)
        self._transport.write(OTHERS)


def insert(token: str, body: bytes, **headers: str) -> bytes:
    lines = {**HEADERS, "Content-Length": str(len(body)), **headers}
    head = f"POST {PATH}&insert_deduplication_token={token}&query_id=q-{token} HTTP/1.1\r\n"
    return (
        head + "".join(f"{name}: {value}\r\n" for name, value in lines.items()) + "\r\n"
    ).encode() + body


def stored(token: str) -> bytes:
    return b"HTTP/1.1 200 OK\r\nX-ClickHouse-Query-Id: q-%b\r\nContent-Length: 0\r\n\r\n" % (
        token.encode()
    )


def learn(
    heads: KnownHeads,
    *,
    path: str = PATH,
    headers: dict[str, str] | None = None,
    wanted: SqlRequest = WANTED,
    found: TokenInsert = INSERT,
    remote: str = "127.0.0.1",
    rest: str = "&query_id=1",
) -> bool:
    request: web.Request = make_mocked_request(
        "POST",
        f"{path}&insert_deduplication_token={found.token}{rest}",
        headers=CIMultiDict(headers or HEADERS),
    ).clone(remote=remote)
    return heads.learn(request, wanted, found)


@pytest.fixture
def receiver() -> Receiver:
    receiver = Receiver()
    assert learn(receiver.heads)
    Library.received = b""
    return receiver


@pytest.fixture
async def listeners(receiver: Receiver) -> AsyncIterator[EngineListeners]:
    listeners = EngineListeners(receiver, Library)
    yield listeners
    receiver.may_append.set()
    await listeners.close()


class Clock:
    """The time that listeners see; it moves when a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(block_connections, "time", clock)
    return clock


@pytest.fixture
async def port(listeners: EngineListeners) -> int:
    return await listeners.listen("127.0.0.1", 0)


async def until_received(listeners: EngineListeners, size: int) -> None:
    """So many bytes have come that are not answered."""
    await until_async(lambda: sum(len(one._received) for one in listeners.connections) == size)


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def answers(self, expected: bytes) -> bool:
        async with asyncio.timeout(LIMIT_S):
            return await self._reader.readexactly(len(expected)) == expected

    async def ended(self) -> bytes:
        async with asyncio.timeout(LIMIT_S):
            return await self._reader.read()


@pytest.fixture
async def client(port: int) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    yield Client(reader, writer)
    writer.close()


async def test_blocks_of_known_inserts_bypass_the_http_library(
    receiver: Receiver, client: Client
) -> None:
    for number in range(3):
        client.writer.write(insert(f"1-1-{number}", b"block %d" % number))
        assert await client.answers(stored(f"1-1-{number}"))
    assert receiver.blocks == [(f"1-1-{n}", b"block %d" % n) for n in range(3)]
    assert not Library.received


@pytest.mark.parametrize("step", [1, 50, 1000])
async def test_an_insert_that_arrives_in_pieces_is_appended(
    receiver: Receiver, client: Client, step: int
) -> None:
    request = insert("1-1-1", b"\r\n\r\n" * 100)
    for at in range(0, len(request), step):
        client.writer.write(request[at : at + step])
        await client.writer.drain()
        await asyncio.sleep(0)
    assert await client.answers(stored("1-1-1"))
    assert receiver.blocks == [("1-1-1", b"\r\n\r\n" * 100)]


async def test_pipelined_inserts_are_answered_in_order(receiver: Receiver, client: Client) -> None:
    receiver.may_append.clear()
    for number in range(3):
        client.writer.write(insert(f"1-1-{number}", b"x"))
        await asyncio.sleep(0.01)
    receiver.may_append.set()
    for number in range(3):
        assert await client.answers(stored(f"1-1-{number}"))
    assert [token for token, _ in receiver.blocks] == ["1-1-0", "1-1-1", "1-1-2"]


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /ping HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01 TLS",
        b"P",
        b"POST /" + b"x" * 17_000,
        insert("1-1-1", b"x", Authorization="Basic eg=="),
        insert("1-1-1", b"x", Host="other"),
        insert("1-1-1", b"x", **{"X-Forwarded-For": "::1"}),
        insert("1-1-1", b"x").replace(b"x=1", b"x=2"),
        insert("1-1-1", b"x").replace(b"POST /", b"POST /y"),
        insert("1-1-1", b"x").replace(b"Host", b"Content-Encoding: lz4\r\nHost"),
        insert("1-1-1", b"x").replace(b"Content-Length: 1", b"Content-Length: +1"),
        insert("1-1-1", b"x").replace(b"Content-Length: 1", b"Content-Length: 1\r\nExpect: x"),
        insert("1-1-1", b"x").replace(b"query_id=q-1-1-1", b"query_id=1&y=2"),
        insert("1-1-1", b"x").replace(b"query_id=q-1-1-1", b"query_id=1&query=SELECT"),
        insert("1-1-1", b"x").replace(b"x=1&", b"x=1#&"),
        insert("1-1-1", b"x").replace(b"x=1&", b"x=%31&"),
        insert("1-1-1", b"x").replace(b"insert_dedup", b"insert%5Fdedup"),
        insert("1-1-1", b"x").replace(b"POST /", b"POST http://127.0.0.1:1/"),
        insert("1-1-1", b"x").replace(b"POST /", b"post /"),
        insert("1-1-1", b"x").replace(b"HTTP/1.1", b"HTTP/1.0"),
        insert("1-1-1", b"x").replace(b"Length: 1", b"Length: 1\r\nContent-Length: 9"),
        insert("1-1-1", b"x").replace(b"Content-Length: 1", b"Content-Length: 1, 1"),
        insert("1-1-1", b"x").replace(b"Content-Length: 1", b"Content-Length: 1\r\n 2"),
        insert("1-1-1", b"x").replace(b"Content-Length: 1", b"Content-Length: \xb2"),
        insert("1-1-1", b"x").replace(b"Length: 1", b"Length: 1\r\nTransfer-Encoding: chunked"),
        insert("1-1-1", b"x").replace(b"Host", b"Transfer-Encoding: chunked\r\nHost"),
        insert("1-1-1", b"x").replace(b"keep-alive", b"keep-alive\r\n folded"),
        insert("1-1-1", b"x").replace(b"brokerhouse", b"brokerhouse\r\n folded"),
        insert("1-1-1", b"x").replace(b"brokerhouse", b" brokerhouse"),
        insert("1-1-1", b"x").replace(b"User-Agent", b"user-agent"),
        insert("1-1-1", b"x").replace(b"brokerhouse\r\n", b"brokerhouse\n"),
        insert("1%20", b"x"),
        insert("1-1-1", b"").replace(b"Content-Length: 0", b"Content-Length: 99999999"),
    ],
)
async def test_any_other_request_is_passed_to_the_http_library(
    receiver: Receiver, client: Client, request_: bytes
) -> None:
    client.writer.write(request_)
    if request_ == b"P":  # as an insert may begin
        await asyncio.sleep(0.05)
        assert not Library.received
        client.writer.write(b"UT /")
        request_ += b"UT /"
    assert await client.answers(OTHERS)
    assert request_.startswith(Library.received)
    client.writer.write(insert("1-1-2", b"x"))
    assert await client.answers(OTHERS), "the library keeps the connection"
    assert not receiver.blocks


@pytest.mark.parametrize("outcome", [False, NotSent("the journal is full")])
async def test_a_block_that_the_journal_refuses_is_passed_to_the_http_library(
    receiver: Receiver, client: Client, outcome: bool | Exception
) -> None:
    client.writer.write(insert("1-1-1", b"one"))
    assert await client.answers(stored("1-1-1"))
    receiver.outcome = outcome
    client.writer.write(insert("1-1-2", b"two"))
    assert await client.answers(OTHERS)
    assert Library.received == insert("1-1-2", b"two")


async def test_a_block_that_may_be_lost_is_not_acknowledged(
    receiver: Receiver, client: Client
) -> None:
    receiver.outcome = StorageFault("the disk")
    client.writer.write(insert("1-1-1", b"one"))
    assert await client.ended() == b""


async def test_an_unexpected_error_of_the_journal_closes_the_connection(
    receiver: Receiver, listeners: EngineListeners, client: Client
) -> None:
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    receiver.outcome = ZeroDivisionError("a mistake")
    client.writer.write(insert("1-1-1", b"one"))
    assert await client.ended() == b""
    gc.collect()
    assert "a mistake" in str(told)


async def test_a_stop_answers_the_inserts_that_are_being_appended_first(
    receiver: Receiver, listeners: EngineListeners, client: Client, port: int
) -> None:
    _, idle = await asyncio.open_connection("127.0.0.1", port)
    receiver.may_append.clear()
    client.writer.write(insert("1-1-1", b"one"))
    await asyncio.sleep(0.05)
    closing = asyncio.create_task(listeners.close())
    await asyncio.sleep(0.05)
    assert not closing.done()
    receiver.may_append.set()
    await closing
    assert await client.answers(stored("1-1-1"))
    assert await client.ended() == b""
    assert not listeners.connections
    idle.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_a_block_is_appended_even_if_its_client_disconnects(
    receiver: Receiver, listeners: EngineListeners, client: Client
) -> None:
    receiver.may_append.clear()
    client.writer.write(insert("1-1-1", b"one"))
    await asyncio.sleep(0.05)
    client.writer.transport.abort()
    await asyncio.sleep(0.05)
    receiver.may_append.set()
    await asyncio.sleep(0.05)
    assert receiver.blocks == [("1-1-1", b"one")]
    assert not listeners.connections


def test_only_heads_of_inserts_that_brokers_send_are_remembered() -> None:
    heads = KnownHeads()
    assert learn(heads)
    assert not learn(KnownHeads(), found=replace(INSERT, columns=None))
    assert not learn(KnownHeads(), wanted=replace(WANTED, query=b"INSERT INTO t (a, b)"))
    assert not learn(KnownHeads(), wanted=replace(WANTED, in_blocks=True))
    assert not learn(KnownHeads(), headers={**HEADERS, "Content-Encoding": "lz4"})
    assert not learn(KnownHeads(), headers={**HEADERS, "X-Forwarded-For": "::1"})


def test_a_head_is_known_only_for_the_address_that_sent_it() -> None:
    heads = KnownHeads()
    assert learn(heads, remote="10.0.0.1")
    headers = b"".join(
        f"{name}: {value}\r\n".encode() for name, value in list(HEADERS.items())[:-2]
    )
    assert heads.find("10.0.0.1", PATH.encode(), headers) == TARGET
    assert heads.find("10.0.0.2", PATH.encode(), headers) is None


@pytest.mark.parametrize(
    "rest",
    [
        "",
        "&query_id=1&x=2",
        "&query_id=1&database=other",
        "&query_id=1&query=INSERT+INTO+t+%28a%2C+b%29+FORMAT+Native",
        "&query_id=1#&query_id=1",
        "&x=2&query_id=1",
        "&query_id=a%20b",
    ],
)
def test_a_head_whose_variable_part_has_other_parameters_is_not_remembered(rest: str) -> None:
    """Else the next request would be served as if it said the same."""
    assert not learn(KnownHeads(), rest=rest)


@pytest.mark.parametrize(
    "path",
    [
        f"{PATH}&insert_deduplication_token=1-1-1#",  # what is after # does not count
        f"{PATH}#",
        PATH + "x" * 20_000,  # too long to be known again
    ],
)
def test_a_head_that_cannot_be_recognised_again_is_not_remembered(path: str) -> None:
    assert not learn(KnownHeads(), path=path)


def test_a_head_is_not_remembered_if_the_interface_read_another_token() -> None:
    heads = KnownHeads()
    path = f"{PATH}&insert_deduplication_token=2"
    assert learn(heads, path=path)  # the last one counts
    assert not learn(KnownHeads(), path=path, rest="0&query_id=1")


LOOKED_AT = (0, 1, 2, 500, 998, 999, 1000, 1001, 1099)


def test_the_number_of_known_heads_is_limited() -> None:
    heads = KnownHeads()
    headers = b"".join(
        f"{name}: {value}\r\n".encode() for name, value in list(HEADERS.items())[:-2]
    )

    def known() -> list[int]:
        return [
            number
            for number in LOOKED_AT
            if heads.find("127.0.0.1", f"{PATH}&n={number}".encode(), headers)
        ]

    for number in range(1000):
        assert learn(heads, path=f"{PATH}&n={number}")
    assert learn(heads, path=f"{PATH}&n=1")
    assert known() == [0, 1, 2, 500, 998, 999]
    assert learn(heads, path=f"{PATH}&n=1000")
    assert known() == [1, 2, 500, 998, 999, 1000], "the one that was learnt first is forgotten"


async def test_a_silent_connection_is_closed(
    receiver: Receiver, listeners: EngineListeners, client: Client, port: int, clock: Clock
) -> None:
    request = insert("1-1-1", b"one")
    others = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
    others[0][1].write(request[:20])
    others[1][1].write(request[:-1])
    receiver.may_append.clear()
    client.writer.write(appended := insert("1-1-2", b"two"))
    sent = 20 + len(request) - 1 + len(appended)
    await until_received(listeners, sent)
    clock.now += STALL_S
    listeners._look()
    async with asyncio.timeout(LIMIT_S):
        for reader, writer in others:
            with suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
    receiver.may_append.set()
    assert await client.answers(stored("1-1-2")), "it was being appended"
    clock.now += STALL_S
    listeners._look()
    with suppress(ConnectionError):
        assert await client.ended() == b""
    assert receiver.blocks == [("1-1-2", b"two")]


async def test_an_active_connection_is_kept_open(
    listeners: EngineListeners, client: Client, clock: Clock
) -> None:
    request = insert("1-1-1", b"x" * 20)
    for size in range(1, len(request)):
        client.writer.write(request[size - 1 : size])
        await until_received(listeners, size)
        clock.now += 0.9 * STALL_S
        listeners._look()
    client.writer.write(request[-1:])
    assert await client.answers(stored("1-1-1"))


async def test_a_client_that_does_not_read_its_answers_is_disconnected(
    receiver: Receiver, listeners: EngineListeners, client: Client
) -> None:
    client.writer.write(insert("1-1-1", b""))
    assert await client.answers(stored("1-1-1"))
    (connection,) = listeners.connections
    assert connection._transport is not None
    # Else the system holds megabytes of answers.
    sending = connection._transport.get_extra_info("socket")
    sending.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    reading = client.writer.transport
    assert isinstance(reading, asyncio.ReadTransport)
    reading.pause_reading()
    async with asyncio.timeout(LIMIT_S):
        while listeners.connections:
            client.writer.write(insert("1-1-1", b"") * 10)
            with suppress(ConnectionError):
                await client.writer.drain()
            await asyncio.sleep(0)


async def test_an_insert_that_arrives_during_a_stop_is_not_appended(
    receiver: Receiver, listeners: EngineListeners, client: Client
) -> None:
    receiver.may_append.clear()
    client.writer.write(insert("1-1-1", b"one") + insert("1-1-2", b"two"))
    await asyncio.sleep(0.05)
    closing = asyncio.create_task(listeners.close())
    await asyncio.sleep(0.05)
    receiver.may_append.set()
    await closing
    assert await client.answers(stored("1-1-1"))
    assert await client.ended() == b""
    assert receiver.blocks == [("1-1-1", b"one")]
