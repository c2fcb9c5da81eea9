"""The listeners of `brokerhouse engine`: inserts of brokers do not pass through the HTTP library.

A broker sends an insert for every block of a lane. To take one through aiohttp and the handlers of
this interface cost 0.55 ms of CPU, ten times what the journal needs for the block (measured, a
block of 40 KB). So each connection begins here. What is not an insert whose head is known goes to
aiohttp, and its connection with it.

What must hold:
* A head is known when the interface has served a request with the same bytes, from the same
  address, and found that a broker may send it and that it means one block for the journal. Only
  the token, the query's id and the length may differ. Everything else that decides about a request
  (login, database, settings) is in those bytes: no parameter follows the query's id, no header the
  length.
* A block that does not go into the journal is served by the interface, like any other request. The
  interface ends the connection after an insert whose head is known, so that the next one comes on
  a new connection, which begins here.
* A connection of which nothing is being appended, and that sends nothing for STALL_S, is closed.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from aiohttp import web

from brokerhouse.sql.http.body import STALL_S
from brokerhouse.sql.http.request import SqlRequest
from brokerhouse.sql.http.token_inserts import TokenInsert
from brokerhouse.storage.engine import EngineError, StorageFault

_HEAD_MAX_BYTES = 16 << 10
_BLOCK_MAX_BYTES = 1 << 20
"""Brokers compress larger blocks, which aiohttp passes on in pieces."""
_HEADS_MAX = 1000
_BEGINNING = b"POST /"
_TARGET = re.compile(
    rb"(/[^# \r\n]*)&insert_deduplication_token=([\w-]{1,500})&query_id=([\w-]{1,100})"
)
_HEAD = re.compile(
    rb"POST %b HTTP/1\.1\r\n((?:[^\r\n]+\r\n)+)Connection: keep-alive\r\n"
    rb"Content-Length: (\d{1,9})\r\n\r\n" % _TARGET.pattern
)
_HEADERS = [b"Host", b"Authorization", b"User-Agent", b"Connection", b"Content-Length"]
"""Of an insert as brokers send it (storage/insert_client.py), in this order."""
_STORED = b"HTTP/1.1 200 OK\r\nX-ClickHouse-Query-Id: %b\r\nContent-Length: 0\r\n\r\n"

_HeadKey = tuple[str, bytes, bytes]
"""The address of the client, the target of the request up to the token, the other headers."""


@dataclass(frozen=True, slots=True)
class BlockTarget:
    """Where the block of an insert goes; `columns` as in storage/engine.py."""

    table: str
    columns: str


class KnownHeads:
    """The heads of inserts that the interface has served, the last _HEADS_MAX of them."""

    def __init__(self) -> None:
        self._targets: dict[_HeadKey, BlockTarget] = {}

    def learn(self, request: web.Request, wanted: SqlRequest, insert: TokenInsert) -> bool:
        """Remember the head of a request that has passed the login, if it is as brokers send it.

        Whether the head is known now.
        """
        headers = request.raw_headers
        columns = insert.columns or ""
        statement = f"INSERT INTO {insert.table} ({columns}) FORMAT Native"
        parts = _TARGET.fullmatch(request.raw_path.encode("utf-8", "surrogateescape"))
        if (
            insert.columns is None
            or wanted.in_blocks
            or wanted.query != statement.encode()  # or the body begins with a rest of it
            or [name for name, _ in headers] != _HEADERS
            or request.remote is None
            or parts is None
            or parts[2] != insert.token.encode()
        ):
            return False
        constant = b"".join(b"%b: %b\r\n" % header for header in headers[:-2])
        if len(parts[1]) + len(constant) > _HEAD_MAX_BYTES:
            return False
        key = request.remote, parts[1], constant
        if key not in self._targets and len(self._targets) >= _HEADS_MAX:
            del self._targets[next(iter(self._targets))]  # of a broker that may be gone
        self._targets[key] = BlockTarget(insert.table, columns)
        return True

    def find(self, remote: str, path: bytes, headers: bytes) -> BlockTarget | None:
        return self._targets.get((remote, path, headers))


class BlockReceiver(Protocol):
    """What becomes of a block whose head is known: the interface of the engine."""

    @property
    def heads(self) -> KnownHeads: ...

    async def append(self, target: BlockTarget, block: bytes, token: str) -> bool:
        """Append to the journal. False: it has to be inserted directly.

        Raises `EngineError` when nothing was stored, and `StorageFault`.
        """


@dataclass(frozen=True, slots=True)
class _Insert:
    """The insert that a connection receives, by its head."""

    target: BlockTarget
    token: str
    query_id: bytes
    body_at: int
    end: int


class _BlockConnection(asyncio.Protocol):
    """One connection, until it is given to aiohttp."""

    def __init__(self, listeners: EngineListeners) -> None:
        self._listeners = listeners
        self._transport: asyncio.Transport | None = None
        self._remote = ""
        self._received = bytearray()
        self._insert: _Insert | None = None
        self._appending: asyncio.Task[None] | None = None
        self._is_lost = False
        self._is_closing = False
        self._heard_at = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is of another class
        peer = transport.get_extra_info("peername")
        self._remote = str(peer[0]) if peer else ""
        self._listeners.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._listeners.connections.discard(self)

    def pause_writing(self) -> None:
        self._abort()  # the client does not read its answers: no broker does that

    def data_received(self, data: bytes) -> None:
        self._heard_at = time.monotonic()
        self._received += data
        if self._appending is None:
            self._advance()
        elif len(self._received) > 2 * _BLOCK_MAX_BYTES:  # no broker does that
            self._abort()

    async def close(self) -> None:
        """Answer what is being appended, and close."""
        self._is_closing = True
        if self._appending is not None:
            await asyncio.wait([self._appending])
        if self._transport is not None and self in self._listeners.connections:
            self._transport.close()

    def abort_if_silent_since(self, time_s: float) -> None:
        if self._appending is None and self._heard_at <= time_s:
            self._abort()

    def _advance(self) -> None:
        """Go on with what was received, while nothing is being appended."""
        if self._is_closing or (self._insert is None and not self._read_head()):
            return
        insert = self._insert
        assert insert is not None
        if len(self._received) >= insert.end:
            with memoryview(self._received) as received:
                block = bytes(received[insert.body_at : insert.end])
            self._appending = asyncio.get_running_loop().create_task(self._append(insert, block))

    def _read_head(self) -> bool:
        """Whether `_insert` is known. Gives the connection to aiohttp if it will never be."""
        received = self._received
        end = received.find(b"\r\n\r\n", 0, _HEAD_MAX_BYTES)
        if end < 0:
            begins = received.startswith(_BEGINNING) or _BEGINNING.startswith(received)
            if not begins or len(received) >= _HEAD_MAX_BYTES:
                self._give_away()
            return False
        head = _HEAD.fullmatch(received, 0, end + 4)
        if head is None:
            self._give_away()
            return False
        path, token, query_id, headers, length = head.groups()
        target = self._listeners.receiver.heads.find(self._remote, bytes(path), bytes(headers))
        body_at = end + 4
        size = int(length)
        if target is None or size > _BLOCK_MAX_BYTES:
            self._give_away()
            return False
        self._insert = _Insert(
            target, bytes(token).decode(), bytes(query_id), body_at, body_at + size
        )
        return True

    async def _append(self, insert: _Insert, block: bytes) -> None:
        try:
            is_stored = await self._listeners.receiver.append(insert.target, block, insert.token)
        except EngineError:
            is_stored = False  # the interface will say why
        except BaseException as error:
            # Whether the block is stored is unknown, and the sender is told nothing.
            self._abort()
            if isinstance(error, StorageFault):
                return
            raise
        finally:
            self._appending = None
        if self._is_lost:
            return
        if not is_stored:
            self._give_away()
            return
        assert self._transport is not None
        self._transport.write(_STORED % insert.query_id)
        del self._received[: insert.end]
        self._insert = None
        if self._received:
            self._advance()

    def _give_away(self) -> None:
        """Let aiohttp serve what was received, and what will be."""
        transport = self._transport
        assert transport is not None
        self._listeners.connections.discard(self)
        protocol = self._listeners.others()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(bytes(self._received))

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class EngineListeners:
    """All listeners of one engine."""

    def __init__(self, receiver: BlockReceiver, others: Callable[[], asyncio.Protocol]) -> None:
        """`others` makes the protocol of aiohttp for one connection."""
        self.receiver = receiver
        self.others = others
        self.connections: set[_BlockConnection] = set()
        """Those that aiohttp does not have."""
        self._servers: list[asyncio.Server] = []
        self._timer: asyncio.TimerHandle | None = None

    async def listen(self, host: str, port: int) -> int:
        """The port that it listens on. Raises `OSError`."""
        server = await asyncio.get_running_loop().create_server(
            lambda: _BlockConnection(self), host, port, backlog=128
        )
        self._servers.append(server)
        if self._timer is None:
            self._look_later()
        return int(server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Accept no connection any more, and close those that aiohttp does not have."""
        if self._timer is not None:
            self._timer.cancel()
        for server in self._servers:
            server.close()
        waits: Sequence[_BlockConnection] = list(self.connections)
        await asyncio.gather(*(connection.close() for connection in waits))

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(STALL_S / 10, self._look)

    def _look(self) -> None:
        since = time.monotonic() - STALL_S
        for connection in list(self.connections):
            connection.abort_if_silent_since(since)
        self._look_later()
