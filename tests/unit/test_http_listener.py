"""The places of the HTTP listener alone: see also tests/clients/test_http_connections.py."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web

from brokerhouse.common.address import Address, client_network
from brokerhouse.sql.http import listener as listener_module
from brokerhouse.sql.http.listener import HttpListener

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@asynccontextmanager
async def listening(
    max_connections: int, done: asyncio.Event, begun: asyncio.Semaphore | None = None
) -> AsyncIterator[int]:
    """The port. A request is handled until `done` is set; `begun` is released for each."""

    async def handle(_request: web.Request) -> web.Response:
        if begun is not None:
            begun.release()
        await done.wait()
        return web.Response(text="Ok.\n")

    app = web.Application()
    app.router.add_get("/", handle)
    listener = HttpListener(max_connections)
    runner = listener.runner(app)
    await runner.setup()
    port = await listener.listen(runner, Address("127.0.0.1", 0))
    try:
        yield port
    finally:
        done.set()
        await listener.close()
        await runner.cleanup()


async def ended(reader: asyncio.StreamReader) -> None:
    """Returns when the server has closed the connection."""
    with suppress(ConnectionError):
        while await reader.read(65536):
            pass


@pytest.mark.parametrize("sent", [GET, b""], ids=["after a request", "without one"])
def test_an_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(listener_module, "IDLE_S", 0.5)
    monkeypatch.setattr(listener_module, "HEAD_S", 0.5)
    monkeypatch.setattr(listener_module, "_LOOK_S", 0.05)

    async def run() -> None:
        done = asyncio.Event()
        done.set()
        async with listening(10, done) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            async with asyncio.timeout(30):
                await ended(reader)
            writer.close()

    asyncio.run(run())


def test_the_rest_of_a_body_after_its_answer_is_not_read_as_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that is told of an error early sends the rest, and keeps the connection."""
    monkeypatch.setattr(listener_module, "_LOOK_S", 0.05)

    async def run() -> None:
        done = asyncio.Event()
        done.set()
        async with listening(10, done) as port, asyncio.timeout(30):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nab")
            await reader.readuntil(b"Ok.\n")
            writer.write(b"cd")
            monkeypatch.setattr(listener_module, "HEAD_S", 0.0)
            late_reader, late = await asyncio.open_connection("127.0.0.1", port)
            late.write(b"GET")
            await ended(late_reader)
            monkeypatch.setattr(listener_module, "HEAD_S", 10.0)
            writer.write(GET)
            assert (await reader.read(15)).startswith(b"HTTP/1.1 200")
            writer.close()
            late.close()

    asyncio.run(run())


def test_a_stop_does_not_wait_for_a_body_whose_request_was_answered() -> None:
    """aiohttp would read on for 10 s."""

    async def run() -> float:
        done = asyncio.Event()
        done.set()
        async with listening(10, done) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nab")
            await reader.readuntil(b"Ok.\n")
            stopped_at = asyncio.get_running_loop().time()
        writer.close()
        return asyncio.get_running_loop().time() - stopped_at

    assert asyncio.run(run()) < 5


def test_a_new_connection_is_refused_while_requests_use_all_places() -> None:
    async def run() -> None:
        done, begun = asyncio.Event(), asyncio.Semaphore(0)
        async with listening(2, done, begun) as port, asyncio.timeout(30):
            first = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            for _, writer in first:
                writer.write(GET)
                await writer.drain()
            for _ in first:
                await begun.acquire()
            reader, refused = await asyncio.open_connection("127.0.0.1", port)
            refused.write(GET)
            await ended(reader)
            done.set()
            for reader, writer in first:
                assert (await reader.read(15)).startswith(b"HTTP/1.1 200")
                writer.close()
            refused.close()

    asyncio.run(run())


def test_a_new_connection_replaces_an_idle_one_of_the_address_with_the_most() -> None:
    async def run() -> None:
        done = asyncio.Event()
        done.set()
        async with listening(3, done) as port, asyncio.timeout(30):
            other = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            new_reader, new = await asyncio.open_connection("127.0.0.1", port)
            new.write(GET)
            assert (await new_reader.read(15)).startswith(b"HTTP/1.1 200")
            await ended(held[0][0])
            other[1].write(GET)
            assert (await other[0].read(15)).startswith(b"HTTP/1.1 200")
            for _, writer in (other, *held, (new_reader, new)):
                writer.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("remote", "counted"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        (None, ""),
    ],
)
def test_ipv6_addresses_are_counted_by_network(remote: str | None, counted: str) -> None:
    assert client_network(remote) == counted
