"""Statements that run in a thread of the pool while the event loop reads or writes their data.

What must hold:
* A result is streamed in constant memory: the engine writes the finished document into a pipe (INTO
  OUTFILE), the loop reads it as fast as the client does, and a full pipe makes the engine wait.
* A statement that is abandoned is killed: the engine does not notice a closed pipe by itself. Its
  pipe is read to the end, because a write that fails looks to the engine like one of a table (see
  storage/free_space.py).
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Mapping
from contextlib import suppress

from brokerhouse.common.tasks import cancel
from brokerhouse.sql.http.engine import Handle, Summary, run
from brokerhouse.sql.http.errors import SqlError, sql_error
from brokerhouse.sql.http.handles import OpenStatement, give_back
from brokerhouse.sql.http.pool import KILL_AGAIN_S, StatementPool
from brokerhouse.sql.http.text import InsertData, OutputClause, identifier, output_clauses

PIPE_BYTES = 1024 * 1024

_F_SETPIPE_SZ = 1031  # fcntl.F_SETPIPE_SZ is Linux only


class _Running:
    """A statement in a thread of the pool; the engine knows it by a mark in its text.

    It takes the permit over, and gives it and the handle back when its thread is free.
    """

    def __init__(self, pool: StatementPool, opened: OpenStatement) -> None:
        self._pool = pool
        self._opened = opened
        self._permit = opened.permit
        self._abandoned = False
        self.mark = opened.context.mark
        self.done: asyncio.Future[Summary]

    def _begin(self, call: Callable[[], Summary], pipe_end: int) -> None:
        def in_thread() -> Summary:
            try:
                if self._abandoned:
                    raise sql_error(394, "QUERY_WAS_CANCELLED", "Query was cancelled")
                return call()
            except SqlError as error:
                raise self._pool.reason(self.mark, error) from error
            finally:
                os.close(pipe_end)
                give_back(self._opened.handle, self._opened.context)

        self.done = asyncio.wrap_future(self._pool.submit(in_thread))
        self._permit = self._permit.hand_over()
        self.done.add_done_callback(self._thread_free)

    def _thread_free(self, done: asyncio.Future[Summary]) -> None:
        self._permit.give_back()
        if not done.cancelled():
            # Marks the exception as retrieved: after `abandon` nobody waits for `done`.
            done.exception()


class RunningQuery(_Running):
    """A query, and the pipe that its result comes through."""

    def __init__(self, pool: StatementPool, opened: OpenStatement, sql: bytes, fmt: str) -> None:
        super().__init__(pool, opened)
        self._out, into = _pipe()
        os.set_blocking(self._out, False)
        params = opened.context.text_params()

        def call() -> Summary:
            return _write_result(opened.handle, sql, fmt, into, self.mark, params)

        self._begin(call, into)

    async def read(self) -> bytes:
        """The next bytes of the result; empty at its end, after an error too: see `done`."""
        while True:
            try:
                return os.read(self._out, PIPE_BYTES)
            except BlockingIOError:
                await _ready(self._out, asyncio.get_running_loop().add_reader)

    def close(self) -> None:
        """After the last byte was read."""
        if self._out >= 0:
            os.close(self._out)
            self._out = -1

    def abandon(self) -> None:
        """Nobody needs the rest: stop the query, in the background if need be."""
        self._abandoned = True
        if self.done.done():
            self.close()
        else:
            self._pool.finish_later(self._stop())

    async def _stop(self) -> None:
        rest = asyncio.create_task(self._read_to_the_end())
        try:
            await self._pool.end(self.mark, self.done)
        finally:
            await cancel(rest)
            self.close()

    async def _read_to_the_end(self) -> None:
        while self._out >= 0 and await self.read():
            pass


class RunningInsert(_Running):
    """An INSERT, and the pipe that its data goes through. Atomic up to one block of the engine.

    Not by chDB's streaming insert, which reports success when the table refuses the rows
    (measured, chdb 4.4: a full disk, a constraint).
    """

    def __init__(self, pool: StatementPool, opened: OpenStatement, head: InsertData) -> None:
        super().__init__(pool, opened)
        out_of, self._in = _pipe()
        os.set_blocking(self._in, False)
        source = f"FROM INFILE '/dev/fd/{out_of}'".encode()
        text = self.mark + head.statement(source)
        params = opened.context.text_params()

        def call() -> Summary:
            return Summary.of(run(opened.handle, text, "TabSeparated", params))

        self._begin(call, out_of)

    async def write(self, data: bytes) -> None:
        """Hand data to the engine as fast as it reads. Raises SqlError if it reads no more."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._in, rest[:PIPE_BYTES]) :]
            except BlockingIOError:
                await _ready(self._in, asyncio.get_running_loop().add_writer)
            except BrokenPipeError:
                await asyncio.shield(self.done)
                return

    async def finish(self) -> Summary:
        """All data was written. Raises SqlError if the engine refuses it."""
        self._close()
        return await asyncio.shield(self.done)

    def abandon(self) -> None:
        """The data will not be complete: keep nothing of it."""
        self._abandoned = True
        self._pool.finish_later(self._stop())

    async def _stop(self) -> None:
        # The engine would take the end of the pipe for the end of the data, so it is told before.
        while self._in >= 0 and not self.done.done() and not await self._pool.kill(self.mark):
            # The statement has not begun or has just ended: wait a moment to see which.
            await asyncio.wait([self.done], timeout=KILL_AGAIN_S)
        self._close()
        await asyncio.wait([self.done])

    def _close(self) -> None:
        if self._in >= 0:
            os.close(self._in)
            self._in = -1


def _pipe() -> tuple[int, int]:
    out, into = os.pipe()
    # Past the system's limit for unprivileged users the pipe stays small, and works.
    with suppress(OSError):
        fcntl.fcntl(into, _F_SETPIPE_SZ, PIPE_BYTES)
    return out, into


def _write_result(
    handle: Handle, sql: bytes, fmt: str, fd: int, mark: bytes, params: Mapping[str, str]
) -> Summary:
    """Run a query and write its result into the pipe."""
    for clause in output_clauses(sql):
        text = mark + _directed(sql, clause, fmt, fd)
        report = handle.classify_query(text)
        if report["statement_count"] == 1 and report["query_class"].name == "CONTROL":
            # Some statements (SHOW) write nothing when the format of the call itself is Null.
            return Summary.of(run(handle, text, "TabSeparated", params))
    # Some statements (EXPLAIN AST) take no output clause; their result is as short as their text.
    result = run(handle, mark + sql, fmt, params)
    with suppress(BrokenPipeError), open(fd, "wb", closefd=False) as out:
        out.write(result.bytes())
    return Summary.of(result)


def _directed(sql: bytes, clause: OutputClause, fmt: str, fd: int) -> bytes:
    outfile = f" INTO OUTFILE '/dev/fd/{fd}' APPEND ".encode()
    if clause.format is None:
        outfile += b"FORMAT " + identifier(fmt) + b" "
    return sql[: clause.position] + outfile + sql[clause.position :]


async def _ready(fd: int, watch: Callable[..., None]) -> None:
    """Wait for one end of a pipe; `watch` is the loop's add_reader or add_writer."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    watch(fd, _wake, ready)
    try:
        await ready
    finally:
        if watch == loop.add_reader:
            loop.remove_reader(fd)
        else:
            loop.remove_writer(fd)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
