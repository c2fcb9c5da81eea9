"""Ends statements before they are done: the client has gone, or sends KILL QUERY.

* `GoneClients` ends requests whose client has closed the connection, also while nothing is read
  from it. aiohttp notices the end of a connection when it reads. It does not read while it has as
  much as a request may hold in memory: a body that the engine takes slowly, or further requests
  that were sent behind this one. So the system is asked: it knows that the other side has closed,
  unless its buffer is full, because the end comes after the data. So a client that sends much
  behind a request that is complete, without waiting for the answer, is taken for one that has gone.
* `StatementsById` ends a statement by the id that its client has given to it. So the JDBC driver
  ends a statement (`Statement.cancel`, the stop button of DBeaver), from a second connection. The
  engine does not know these ids: it finds statements by their marks. Any other KILL is refused
  (access.py). What must hold: without credentials a client ends only statements without credentials
  that came from its own address.
"""

from __future__ import annotations

import asyncio
import fcntl
import re
import select
import struct
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web

from brokerhouse.common.tasks import Periodic
from brokerhouse.sql.http.access import Role
from brokerhouse.sql.http.pool import StatementPool
from brokerhouse.sql.http.request import SqlRequest
from brokerhouse.sql.http.text import literal

LOOK_S = 0.5
SENT_AHEAD_MAX_BYTES = 32 * 1024
_GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR


class GoneClients:
    """Looks after the requests that are being answered."""

    def __init__(self) -> None:
        self._handlers: dict[asyncio.Task[web.StreamResponse], web.Request] = {}
        self._look = Periodic("gone-sql-clients", LOOK_S, self._end_abandoned)

    def start(self) -> None:
        self._look.start()

    async def close(self) -> None:
        await self._look.close()

    def watch(self, handler: asyncio.Task[web.StreamResponse], request: web.Request) -> None:
        """Cancel `handler` when the client of `request` has gone."""
        if request.transport is None:  # it has closed the connection already
            handler.cancel()
            return
        self._handlers[handler] = request
        handler.add_done_callback(self._handlers.pop)

    def _end_abandoned(self) -> None:
        if not self._handlers:
            return
        poll = select.poll()
        watched = {}
        for handler, request in self._handlers.items():
            transport = request.transport
            if transport is None or transport.is_closing():
                continue
            fd = transport.get_extra_info("socket").fileno()
            if request.content.is_eof() and _unread_bytes(fd) > SENT_AHEAD_MAX_BYTES:
                handler.cancel()
                transport.abort()
                continue
            poll.register(fd, _GONE)
            watched[fd] = handler
        for fd, _ in poll.poll(0):
            watched[fd].cancel()


def _unread_bytes(fd: int) -> int:
    """What the system has received and nobody has read."""
    (unread,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4))
    return int(unread)


_KILL = re.compile(
    rb"\s*KILL\s+QUERY\s+WHERE\s+query_id\s*=\s*'([^'\\]+)'\s*(?:A?SYNC\s*)?;?\s*", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, eq=False)
class _Statement:
    query_id: str
    role: Role
    remote: str | None
    mark: bytes
    ended: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def may_be_ended_by(self, wanted: SqlRequest, remote: str | None) -> bool:
        return wanted.role is Role.WRITER or (self.role, self.remote) == (wanted.role, remote)


class StatementsById:
    """The statements that run or wait for their turn."""

    def __init__(self, pool: StatementPool) -> None:
        self._pool = pool
        self._statements: set[_Statement] = set()

    @contextmanager
    def with_one(self, wanted: SqlRequest, remote: str | None, mark: bytes) -> Iterator[None]:
        """Inside, the statement that begins with `mark` can be ended."""
        statement = _Statement(wanted.query_id, wanted.role, remote, mark)
        self._statements.add(statement)
        try:
            yield
        finally:
            self._statements.remove(statement)
            statement.ended.set_result(None)

    def kill(self, wanted: SqlRequest, remote: str | None, sql: bytes) -> bytes | None:
        """Begin to end the statement that `sql` names. Returns the query for what `sql` answers;
        None if it is another statement than such a KILL.
        """
        found = _KILL.fullmatch(sql)
        if found is None or wanted.method != "POST":
            return None
        query_id = found[1].decode("utf-8", "replace")
        killed = [
            statement
            for statement in self._statements
            if statement.query_id == query_id and statement.may_be_ended_by(wanted, remote)
        ]
        for statement in killed:
            # One that waits for its turn is ended when it begins.
            self._pool.finish_later(self._pool.end(statement.mark, statement.ended))
        columns = b"'waiting' AS kill_status, %b AS query_id, currentUser() AS user, '' AS query"
        return b"SELECT " + columns % literal(found[1]) + b" WHERE %d" % bool(killed)
