"""Answers to inserts as bytes: which are whole, which are none, and whether more may follow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from ssl import SSLContext

import pytest
from yarl import URL

from brokerhouse.storage.engine import NotSent
from brokerhouse.storage.insert_client import AnswerReader, InsertAnswer, InsertClient, NotAnAnswer

OK = b"HTTP/1.1 200 OK\r\n"
ID = b"X-ClickHouse-Query-Id: q-1\r\n"
BY_NAME = {b"x-clickhouse-query-id": b"q-1"}
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]


def read(data: bytes, step: int) -> InsertAnswer | None:
    reader = AnswerReader()
    for at in range(0, len(data), step):
        answer = reader.feed(data[at : at + step])
        if answer is not None:
            assert at + step >= len(data), "complete before its end"
            return answer
    return None


@pytest.mark.parametrize("step", [1, 2, 7, 10_000])
@pytest.mark.parametrize(
    ("data", "status", "body", "is_last"),
    [
        (OK + ID + b"Content-Length: 0\r\n\r\n", 200, b"", False),
        (OK + ID + b"content-length:  3 \r\n\r\nabc", 200, b"abc", False),
        (OK + ID + b"Connection: Close\r\nContent-Length: 1\r\n\r\na", 200, b"a", True),
        (b"HTTP/1.1 500\r\n" + ID + b"Content-Length: 2\r\n\r\nno", 500, b"no", False),
        (OK + ID + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 200, b"", False),
        (
            OK + ID + b"Transfer-Encoding: chunked\r\n\r\n3\r\na\r\n\r\n1;x=y\r\nb\r\n0\r\n\r\n",
            200,
            b"a\r\nb",
            False,
        ),
        (b"HTTP/1.1 204 No Content\r\n" + ID + b"\r\n", 204, b"", False),
        (
            OK + b"Empty:\r\n" + ID + b"Connection: x, close\r\nContent-Length: 0\r\n\r\n",
            200,
            b"",
            True,
        ),
        (b"HTTP/1.0 200 OK\r\n" + ID + b"Content-Length: 0\r\n\r\n", 200, b"", True),
    ],
)
def test_an_answer_cut_into_any_pieces_is_read_the_same(
    data: bytes, status: int, body: bytes, is_last: bool, step: int
) -> None:
    answer = read(data, step)
    assert answer is not None
    assert (answer.status, answer.body, answer.is_last) == (status, body, is_last)
    assert BY_NAME.items() <= answer.headers.items()
    for end in range(len(data)):
        assert read(data[:end], step) is None


@pytest.mark.parametrize("more", [b"HTTP/1.1", OK + b"\r\n", b"\r\n", b"\n", b"x", b"\0"])
@pytest.mark.parametrize(
    "data",
    [
        OK + b"Content-Length: 0\r\n\r\n",
        OK + b"Connection: close\r\nContent-Length: 2\r\n\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_a_connection_is_not_used_again_if_something_follows_the_answer(
    data: bytes, more: bytes
) -> None:
    whole = AnswerReader().feed(data)
    answer = AnswerReader().feed(data + more)
    assert whole is not None
    assert answer == replace(whole, is_last=True)


def test_a_reader_takes_one_answer_after_another() -> None:
    reader = AnswerReader()
    assert reader.feed(OK + b"A: 1\r\nContent-Length: 2\r\n\r\nab") == InsertAnswer(
        200, {b"a": b"1", b"content-length": b"2"}, b"ab", is_last=False
    )
    for _ in range(100):  # each has the whole limit
        assert reader.feed(b"HTTP/1.1 500 \r\nContent-Length: 60000\r\n\r\n") is None
        assert reader.feed(b"x" * 60_000) == InsertAnswer(
            500, {b"content-length": b"60000"}, b"x" * 60_000, is_last=False
        )


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    reader = AnswerReader()
    assert reader.feed(OK + ID + b"\r\nall of it") is None
    assert reader.end() == InsertAnswer(200, BY_NAME, b"all of it", is_last=True)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        OK,
        OK + b"Content-Length: 3\r\n\r\nab",
        OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n",
    ],
)
def test_a_connection_that_ends_within_an_answer_is_an_error(data: bytes) -> None:
    reader = AnswerReader()
    assert reader.feed(data) is None
    with pytest.raises(NotAnAnswer):
        reader.end()


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        OK + b"no colon\r\n\r\n",
        OK + b"Content-Length: -1\r\n\r\n",
        OK + b"Content-Length: 1, 1\r\n\r\na",
        OK + b"Content-Length: 99999999\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nx\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc",
        OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\nTrailer: 1\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nfffffff\r\n" + b"x" * 2_000_000,
        OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 500_000,
        OK + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * 2_000_000,
        OK + b"X: " + b"x" * 70_000,
        OK + b"X: " + b"x" * 70_000 + b"\r\nContent-Length: 0\r\n\r\n",
        OK + b"X: x\r\n" * 70_000 + b"Content-Length: 0\r\n\r\n",
        OK + b"\r\n" + b"x" * 2_000_000,
        OK + b"Content-Length: 1\r\nContent-Length: 0\r\n\r\na",
        OK + b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n0\r\n\r\n",
        OK + b"Content-Length : 0\r\n\r\n",
        OK + b"Content-Length: 0x1\r\n\r\na",
        OK + b"Content-Length: 0\r\n folded\r\n\r\n",
        OK + b"A: \0\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 101 Upgrade\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
    ],
)
def test_malformed_answers_are_errors(data: bytes) -> None:
    with pytest.raises(NotAnAnswer):
        AnswerReader().feed(data)


def _no_tls() -> SSLContext:
    raise AssertionError("not an https address")


@asynccontextmanager
async def talking_to(serve: object) -> AsyncIterator[InsertClient]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)  # type: ignore[arg-type]
    port = server.sockets[0].getsockname()[1]
    client = InsertClient(URL(f"http://127.0.0.1:{port}"), "d", "me", "é", 1.0, _no_tls)
    async with server:
        yield client
        client.close()


async def send(client: InsertClient, token: str) -> InsertAnswer:
    return await client.insert(
        "INSERT INTO t (a, b) FORMAT Native", {"x": "1"}, token, "q-1", b"body", timeout_s=5
    )


async def test_a_request_contains_the_statement_and_the_settings_of_its_insert() -> None:
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            requests.append(await reader.readuntil(b"\r\n\r\nbody"))
            writer.write(OK + b"Content-Length: 0\r\n\r\n")
        await reader.read()
        writer.close()

    async with talking_to(serve) as client:
        await send(client, "1-2-3")
        await send(client, "a&b")
    first, second = (one.decode().split("\r\n") for one in requests)
    assert first[0] == (
        "POST /?query=INSERT+INTO+t+%28a%2C+b%29+FORMAT+Native&database=d&x=1"
        "&insert_deduplication_token=1-2-3&query_id=q-1 HTTP/1.1"
    )
    assert "&insert_deduplication_token=a%26b&" in second[0]
    assert first[2:] == [
        "Authorization: Basic bWU6w6k=",
        "User-Agent: brokerhouse",
        "Connection: keep-alive",
        "Content-Length: 4",
        "",
        "body",
    ]


async def test_an_unexpected_answer_ends_the_connection() -> None:
    connections = 0
    taken, ended = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\nbody")
        writer.write(OK + ID + b"Content-Length: 0\r\n\r\n")
        await taken.wait()
        writer.write(OK + b"Content-Length: 0\r\n\r\n")
        with suppress(ConnectionError):
            await reader.read()  # the client ends it
        writer.close()
        ended.set()

    async with talking_to(serve) as client:
        for number in range(1, 4):
            answer = await send(client, str(number))
            assert answer.headers[b"x-clickhouse-query-id"] == b"q-1"
            taken.set()
            async with asyncio.timeout(5):
                await ended.wait()
            taken.clear()
            ended.clear()
            assert connections == number


async def test_a_closed_client_sends_nothing() -> None:
    client = InsertClient(URL("http://127.0.0.1:1"), "d", "me", "", 1.0, _no_tls)
    with pytest.raises(NotSent, match=r"^http://127\.0\.0\.1:1: "):
        await send(client, "1")
    client.close()
    with pytest.raises(NotSent, match="closed"):
        await send(client, "1")


async def test_an_insert_is_not_sent_if_the_client_is_closed_while_it_connects() -> None:
    received = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend(await reader.read())
        writer.close()

    async with talking_to(serve) as client:
        sending = asyncio.create_task(send(client, "1"))
        await asyncio.sleep(0)  # it connects
        client.close()
        with pytest.raises(NotSent, match="closed"):
            await sending
        await asyncio.sleep(0.05)
    assert not received


async def test_each_concurrent_insert_has_its_own_connection() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while not reader.at_eof():
            with suppress(asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\nbody")
                await asyncio.sleep(0.01)
                writer.write(OK + b"Content-Length: 0\r\n\r\n")
        writer.close()

    async with talking_to(serve) as client:
        for _ in range(5):
            await asyncio.gather(*(send(client, str(number)) for number in range(4)))
        assert connections == 4


async def test_an_insert_does_not_use_a_connection_that_the_server_has_closed() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\nbody")
        writer.write(OK + b"Content-Length: 0\r\n\r\n")
        writer.close()

    async with talking_to(serve) as client:
        for number in range(1, 6):
            await send(client, str(number))
            await asyncio.sleep(0.02)
            assert connections == number


async def test_a_request_whose_answer_does_not_come_ends_its_connection() -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\nbody")
        writer.write(OK + b"Content-Length: 1\r\n\r\n")
        with suppress(ConnectionError):
            await reader.read()
        ended.set()
        writer.close()

    async with talking_to(serve) as client:
        with pytest.raises(TimeoutError):
            await client.insert("INSERT", {}, "1", "q-1", b"body", timeout_s=0.1)
        async with asyncio.timeout(5):
            await ended.wait()
