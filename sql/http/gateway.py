"""Runs people's SQL on the embedded engine: handles, threads, sessions, streams, cancellation.

What must hold:
* The event loop never waits for the engine: every call into it is made in a thread of a bounded
  pool, and a query keeps its place in the pool until its thread is free again, however it ends.
* A result is streamed in constant memory: the engine writes the finished document into a pipe (INTO
  OUTFILE), the loop reads it as fast as the client does, and the pipe holds the engine back.
* A query that nobody waits for any longer is killed; the engine does not notice a closed pipe by
  itself.
* A handle belongs to one statement at a time. A handle on which a statement failed in `query` may
  hold rows of it and give them out with the next result (measured, chdb-core 26.9), so its output
  always goes to a pipe.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from sql.http.access import (
    Action,
    Handle,
    Result,
    Role,
    SqlError,
    Statement,
    judge,
    run,
    sql_error,
)
from sql.http.text import (
    InsertData,
    OutputClause,
    identifier,
    is_enclosed,
    literal,
    output_clauses,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

PIPE_BYTES = 1024 * 1024
QUEUE_WAIT_S = 10.0
QUEUED_PER_RUNNING = 25
SESSIONS_MAX = 200
SESSION_TIMEOUT_S = 60
SESSION_TIMEOUT_MAX_S = 3600
TEMPORARY_BYTES = 10 * 1024**3  # on disk, of one query: the log is on the same disk
KILL_AGAIN_S = 0.5

_F_SETPIPE_SZ = 1031  # fcntl.F_SETPIPE_SZ is Linux only


# Expressions in VALUES data would reach the function `file`; literals are read all the same.
NO_EXPRESSIONS = {
    "input_format_values_interpret_expressions": "0",
    "input_format_values_deduce_templates_of_expressions": "0",
}


class Engine(Protocol):
    @property
    def read_nice(self) -> int:
        """Nice value of statements that give way to inserts; 0 where that is not allowed."""

    def handle(self, *statements: str) -> Any:
        """A new handle with every grant."""


@dataclass(frozen=True, slots=True)
class Limits:
    max_queries: int
    max_threads: int
    max_memory_bytes: int


@dataclass(frozen=True, slots=True)
class ExternalTable:
    """Data that a client sends along with its query, as a temporary table."""

    name: str
    structure: bytes
    format: str
    data: bytes


@dataclass(slots=True)
class Job:
    """What a client asks for, beside the SQL itself."""

    role: Role
    database: str | None
    settings: Mapping[str, str]
    params: Mapping[str, bytes]  # in the escaped form of ClickHouse's HTTP interface
    read_only: bool
    session: Session | None = None
    tables: Sequence[ExternalTable] = ()

    def text_params(self) -> dict[str, str]:
        try:
            return {name: value.decode() for name, value in self.params.items()}
        except UnicodeDecodeError:
            raise sql_error(36, "BAD_ARGUMENTS", "Query parameters have to be UTF-8") from None


@dataclass(frozen=True, slots=True)
class Summary:
    """What the engine counted."""

    read_rows: int = 0
    read_bytes: int = 0
    written_rows: int = 0
    written_bytes: int = 0
    result_rows: int = 0

    def as_header(self, elapsed_ns: int) -> str:
        return json.dumps(
            {
                "read_rows": str(self.read_rows),
                "read_bytes": str(self.read_bytes),
                "written_rows": str(self.written_rows),
                "written_bytes": str(self.written_bytes),
                "elapsed_ns": str(elapsed_ns),
            },
            separators=(",", ":"),
        )


@dataclass(slots=True)
class Session:
    """Keeps temporary tables and SET values between the statements of one client."""

    key: tuple[Role, str]
    busy: bool = False
    handle: Handle | None = None  # only once there is something to keep
    restore: list[bytes] = field(default_factory=list)  # what ends the settings of one request
    expiry: asyncio.TimerHandle | None = None


class SqlGateway:
    """The one way for people's SQL into the engine. Belongs to an event loop; `close` ends it."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self._engine = engine
        self._limits = limits
        self.pool = ThreadPoolExecutor(limits.max_queries, thread_name_prefix="sql")
        self._control = ThreadPoolExecutor(1, thread_name_prefix="sql-control")
        self._free = asyncio.Semaphore(limits.max_queries)
        self._queued = 0
        self._sessions: dict[tuple[Role, str], Session] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._control_handle: Handle | None = None
        self._closing = False

    # --- places in the pool

    async def take_place(self) -> None:
        """Wait for a thread. Raises TOO_MANY_SIMULTANEOUS_QUERIES when that takes too long."""
        limit = self._limits.max_queries * QUEUED_PER_RUNNING
        if self._closing or self._queued >= limit:
            raise self._too_many()
        self._queued += 1
        try:
            async with asyncio.timeout(QUEUE_WAIT_S):
                await self._free.acquire()
        except TimeoutError:
            raise self._too_many() from None
        finally:
            self._queued -= 1

    def give_place(self) -> None:
        self._free.release()

    def _too_many(self) -> SqlError:
        return sql_error(
            202, "TOO_MANY_SIMULTANEOUS_QUERIES",
            f"Too many simultaneous queries. Maximum: {self._limits.max_queries}",
        )  # fmt: skip

    # --- running

    async def open(self, job: Job, sql: bytes) -> tuple[Handle, Statement]:
        """A handle for this job and how the statement runs on it. The caller holds a place."""
        opening = asyncio.wrap_future(self.pool.submit(self._open, job, sql))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            with suppress(SqlError):
                handle, _ = await opening
                await self.in_thread(self.finish, handle, job)
            raise

    def _open(self, job: Job, sql: bytes) -> tuple[Handle, Statement]:
        params = job.text_params()
        handle = self._prepared(job)
        try:
            statement = self.judge(handle, sql, params, job.role)
            if (
                statement.action is Action.SESSION
                and job.session is not None
                and job.session.handle is None
            ):
                handle.close()
                job.session.handle = self._narrow(job.role)
                handle = self._prepared(job)
            if job.read_only and statement.action is Action.WRITE:
                raise sql_error(
                    164,
                    "READONLY",
                    "Cannot execute query in readonly mode. Use POST to change data",
                )
            if job.read_only and job.role is Role.WRITER:
                run(handle, b"SET readonly = 2", "Null")
        except BaseException:
            self.finish(handle, job)
            raise
        return handle, statement

    def judge(self, handle: Handle, sql: bytes, params: Mapping[str, str], role: Role) -> Statement:
        """How to run this statement. Raises SqlError if this role may not, or it does not parse."""
        return judge(handle, sql, params, role)

    def start_read(
        self, handle: Handle, job: Job, sql: bytes, fmt: str, after: Callable[[], None]
    ) -> RunningQuery:
        """Start a query whose result is read from the returned stream.

        `after` runs when its thread is free.
        """
        return RunningQuery(self, handle, job, sql, fmt, after)

    async def execute(
        self, handle: Handle, job: Job, sql: bytes, fmt: str
    ) -> tuple[bytes, Summary]:
        """Run a statement with a small result to its end, even if the caller is cancelled
        meanwhile.
        """

        def call() -> tuple[bytes, Summary]:
            try:
                result = run(handle, mark() + sql, fmt, job.text_params())
                return result.bytes(), summary(result)
            finally:
                self.finish(handle, job)

        return await self.in_thread(call)

    def start_insert(
        self, handle: Handle, job: Job, head: InsertData, after: Callable[[], None]
    ) -> RunningInsert:
        """Start an insert whose data is written to the returned stream."""
        return RunningInsert(self, handle, job, head, after)

    async def in_thread(self, function: Callable[..., T], *args: Any) -> T:
        """Run in the pool; a cancelled caller waits for the engine to return the handle."""
        future = asyncio.wrap_future(self.pool.submit(function, *args))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            with suppress(SqlError):
                await future
            raise

    # --- handles

    def _prepared(self, job: Job) -> Handle:
        """Blocking. A handle narrowed to the job's role, with its database and settings."""
        session = job.session
        if session is not None and session.handle is not None:
            handle = session.handle
            session.restore = _undo(handle, job)
        else:
            handle = self._narrow(job.role, job.tables)
        try:
            if job.database is not None:
                run(handle, b"USE " + identifier(job.database), "Null")
            if job.settings:
                run(handle, _set(job.settings), "Null")
        except BaseException:
            self.finish(handle, job)
            raise
        return handle

    def _narrow(self, role: Role, tables: Sequence[ExternalTable] = ()) -> Handle:
        """Blocking (1 ms). A new handle that can do what this role may, and no more."""
        limits = self._limits
        fence = (
            f"SET max_threads = {limits.max_threads}, max_memory_usage = {limits.max_memory_bytes},"
            f" os_thread_priority = {self._engine.read_nice}, implicit_select = 0,"
            f" max_temporary_data_on_disk_size_for_query = {TEMPORARY_BYTES},"
            " allow_introspection_functions = 0, profile = 'sql'"
        )
        handle: Handle = self._engine.handle()
        try:
            if tables:
                # Readers may not make tables, so this is done for them, with a writer's rights.
                run(handle, b"SET ROLE writer", "Null")
                run(handle, fence.encode(), "Null")
                for table in tables:
                    load_table(handle, table)
            run(handle, f"SET ROLE {role.value}".encode(), "Null")
            if role is Role.READER:
                fence += ", readonly = 2"
            run(handle, fence.encode(), "Null")
        except BaseException:
            handle.close()
            raise
        return handle

    def finish(self, handle: Handle, job: Job) -> None:
        """Blocking. Closes the handle, or gives it back to its session as the session left it."""
        session = job.session
        if session is None or session.handle is not handle:
            handle.close()
            return
        statements, session.restore = session.restore, []
        for statement in statements:
            run(handle, statement, "Null")

    # --- sessions

    @asynccontextmanager
    async def session(
        self, role: Role, session_id: str, timeout_s: int, *, must_exist: bool, last: bool
    ) -> AsyncIterator[Session]:
        """The session of this name, for one statement.

        Raises SESSION_NOT_FOUND or SESSION_IS_LOCKED.
        """
        key = (role, session_id)
        session = self._sessions.get(key)
        if session is None:
            if must_exist:
                raise sql_error(372, "SESSION_NOT_FOUND", f"Session {session_id} not found")
            self._make_room()
            session = self._sessions[key] = Session(key)
        if session.busy:
            raise sql_error(
                373, "SESSION_IS_LOCKED", f"Session {session_id} is locked by a concurrent client"
            )
        session.busy = True
        if session.expiry is not None:
            session.expiry.cancel()
        try:
            yield session
        finally:
            session.busy = False
            if last:
                self._expire(key)
            else:
                loop = asyncio.get_running_loop()
                session.expiry = loop.call_later(timeout_s, self._expire, key)

    def _make_room(self) -> None:
        """Sessions that hold nothing are forgotten first, the oldest of them first."""
        if len(self._sessions) < SESSIONS_MAX:
            return
        for key, session in self._sessions.items():
            if not session.busy and session.handle is None:
                self._expire(key)
                return
        raise sql_error(
            202,
            "TOO_MANY_SIMULTANEOUS_QUERIES",
            f"Too many sessions with SET values or temporary tables: {SESSIONS_MAX}",
        )

    def _expire(self, key: tuple[Role, str]) -> None:
        session = self._sessions.get(key)
        if session is None or session.busy:
            return
        del self._sessions[key]
        if session.expiry is not None:
            session.expiry.cancel()
        if session.handle is not None:
            self._control.submit(session.handle.close)

    # --- ending

    def own(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run in the background; a failure is logged, and `close` waits for it."""
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("ending a query failed", exc_info=error)

    async def kill(self, marker: bytes) -> bool:
        """Tell the engine to stop statements whose text begins so; whether there are any."""
        statement = b"KILL QUERY WHERE startsWith(query, '" + marker + b"') ASYNC"

        def call() -> bool:
            if self._control_handle is None:
                self._control_handle = self._engine.handle()
            return bool(run(self._control_handle, statement, "TabSeparated").bytes())

        return await asyncio.get_running_loop().run_in_executor(self._control, call)

    async def start(self) -> Facts:
        """Make the engine ready for people; gives what the HTTP interface tells about it."""

        def call() -> Facts:
            handle: Handle = self._engine.handle()
            try:
                _close_the_file_system(handle)
                row = (
                    run(handle, b"SELECT version(), timezone(), hostName()", "TSVRaw")
                    .bytes()
                    .decode()
                    .rstrip("\n")
                )
                version, timezone, host = row.split("\t")
                types = run(
                    handle,
                    b"SELECT name, content_type FROM system.formats WHERE is_output",
                    "TSVRaw",
                ).bytes()
                content_types = dict(line.split("\t", 1) for line in types.decode().splitlines())
                return Facts(version, timezone, host, content_types)
            finally:
                handle.close()

        return await asyncio.get_running_loop().run_in_executor(self._control, call)

    async def close(self) -> None:
        """Wait for what runs and close every handle. Nobody may read a result any more."""
        self._closing = True
        while self._tasks:
            await asyncio.wait(self._tasks)
        for key in tuple(self._sessions):
            self._sessions[key].busy = False
            self._expire(key)
        if self._control_handle is not None:
            self._control.submit(self._control_handle.close)
        await asyncio.to_thread(self.pool.shutdown)
        await asyncio.to_thread(self._control.shutdown)


@dataclass(frozen=True, slots=True)
class Facts:
    version: str
    timezone: str
    host: str
    content_types: Mapping[str, str]  # by format


MARK = b"/* brokerhouse "


def mark() -> bytes:
    """What a statement of people begins with, so that it can be found among those that run."""
    return MARK + uuid.uuid4().hex.encode() + b" */ "


class _Running:
    """A statement in a thread of the pool, which the engine knows by a mark in its text."""

    def __init__(self, gateway: SqlGateway, after: Callable[[], None]) -> None:
        self._gateway = gateway
        self._after = after
        self._abandoned = False
        self.marker = mark()
        self.done: asyncio.Future[Summary]

    def _begin(self, call: Callable[[], Summary], job: Job, handle: Handle, pipe_end: int) -> None:
        def in_thread() -> Summary:
            try:
                if self._abandoned:
                    raise sql_error(394, "QUERY_WAS_CANCELLED", "Query was cancelled")
                return call()
            finally:
                os.close(pipe_end)
                self._gateway.finish(handle, job)

        self.done = asyncio.wrap_future(self._gateway.pool.submit(in_thread))
        self.done.add_done_callback(self._thread_free)

    def _thread_free(self, done: asyncio.Future[Summary]) -> None:
        self._after()
        if not done.cancelled():
            # Whoever sees the statement to its end asks for it; after `abandon` nobody does.
            done.exception()

    async def _kill(self) -> bool:
        """Whether the engine knows that the statement has to end; False: ask again."""
        known = await self._gateway.kill(self.marker)
        if not known:
            # Not begun yet, or past its end: a moment later it is the one or the other.
            await asyncio.wait([self.done], timeout=KILL_AGAIN_S)
        return known or self.done.done()


class RunningQuery(_Running):
    """A query, and the pipe that its result comes through."""

    def __init__(
        self,
        gateway: SqlGateway,
        handle: Handle,
        job: Job,
        sql: bytes,
        fmt: str,
        after: Callable[[], None],
    ) -> None:
        super().__init__(gateway, after)
        self._out, into = _pipe()
        os.set_blocking(self._out, False)
        params = job.text_params()

        def call() -> Summary:
            return _write_result(handle, sql, fmt, into, self.marker, params)

        self._begin(call, job, handle, into)

    async def read(self) -> bytes:
        """The next bytes of the result; empty at its end, whether good or bad: see `done`."""
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
        """Nobody reads on: stop the query, in the background if need be."""
        self._abandoned = True
        self.close()
        if not self.done.done():
            self._gateway.own(self._stop())

    async def _stop(self) -> None:
        while not self.done.done():
            if await self._kill():
                await asyncio.wait([self.done], timeout=KILL_AGAIN_S)


class RunningInsert(_Running):
    """An INSERT, and the pipe that its data goes through. Atomic up to one block of the engine.

    Not by chDB's streaming insert, which answers as if all was well when the table refuses the rows
    (measured, chdb 4.4: a full disk, a constraint).
    """

    def __init__(
        self,
        gateway: SqlGateway,
        handle: Handle,
        job: Job,
        head: InsertData,
        after: Callable[[], None],
    ) -> None:
        super().__init__(gateway, after)
        out_of, self._in = _pipe()
        os.set_blocking(self._in, False)
        source = f"FROM INFILE '/dev/fd/{out_of}'".encode()
        text = self.marker + head.statement(source)
        params = job.text_params()

        def call() -> Summary:
            return summary(run(handle, text, "TabSeparated", params))

        self._begin(call, job, handle, out_of)

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
        self._gateway.own(self._stop())

    async def _stop(self) -> None:
        # The end of the pipe would be a good end to the engine, so it has to know before.
        while self._in >= 0 and not self.done.done() and not await self._kill():
            continue
        self._close()
        await asyncio.wait([self.done])

    def _close(self) -> None:
        if self._in >= 0:
            os.close(self._in)
            self._in = -1


def _pipe() -> tuple[int, int]:
    out, into = os.pipe()
    # Past the system's limit for unprivileged users it stays small, and works.
    with suppress(OSError):
        fcntl.fcntl(into, _F_SETPIPE_SZ, PIPE_BYTES)
    return out, into


def _close_the_file_system(handle: Handle) -> None:
    """Make `default` a database like others.

    chDB lays it over the local file system: every file is a table there, so that each use of the
    database needs the right to read files. Its tables stay (measured, chdb-core 26.9); the engine
    lays it anew at every start.
    """
    found = run(
        handle, b"SELECT engine, uuid FROM system.databases WHERE name = 'default'", "TSVRaw"
    )
    engine, uuid_text = found.bytes().decode().split()
    if engine == "Overlay":
        run(handle, b"DETACH DATABASE default", "Null")
        run(handle, f"ATTACH DATABASE default UUID '{uuid_text}' ENGINE = Atomic".encode(), "Null")


def load_table(handle: Handle, table: ExternalTable) -> None:
    name = identifier(table.name)
    if not is_enclosed(table.structure):
        raise sql_error(
            62, "SYNTAX_ERROR", f"The structure of {table.name} is not a list of columns"
        )
    create = b"CREATE TEMPORARY TABLE " + name + b" (" + table.structure + b"\n) ENGINE = Memory"
    judge(handle, create, {}, Role.WRITER)
    run(handle, create, "Null")
    run(handle, _set(NO_EXPRESSIONS), "Null")
    fd = os.memfd_create("external table")
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(table.data)
        source = f" FROM INFILE '/proc/self/fd/{fd}' FORMAT ".encode()
        run(handle, b"INSERT INTO " + name + source + identifier(table.format), "Null")
    finally:
        os.close(fd)


def _write_result(
    handle: Handle, sql: bytes, fmt: str, fd: int, marker: bytes, params: Mapping[str, str]
) -> Summary:
    """Run a query and write its result into the pipe."""
    for clause in output_clauses(sql):
        text = marker + _directed(sql, clause, fmt, fd)
        report = handle.classify_query(text)
        if report["statement_count"] == 1 and report["query_class"].name == "CONTROL":
            # Some statements (SHOW) write nothing when the format of the call itself is Null.
            return summary(run(handle, text, "TabSeparated", params))
    # Some statements (EXPLAIN AST) take no output clause; what they say is as short as their text.
    result = run(handle, marker + sql, fmt, params)
    with suppress(BrokenPipeError), open(fd, "wb", closefd=False) as out:
        out.write(result.bytes())
    return summary(result)


def _directed(sql: bytes, clause: OutputClause, fmt: str, fd: int) -> bytes:
    outfile = f" INTO OUTFILE '/dev/fd/{fd}' APPEND ".encode()
    if clause.format is None:
        outfile += b"FORMAT " + identifier(fmt) + b" "
    return sql[: clause.position] + outfile + sql[clause.position :]


def _set(settings: Mapping[str, str]) -> bytes:
    parts = [
        name.encode() + b" = " + literal(value.encode("utf-8", "surrogateescape"))
        for name, value in settings.items()
    ]
    return b"SET " + b", ".join(parts)


def _undo(handle: Handle, job: Job) -> list[bytes]:
    """Statements that take back what this job will set: settings of a request are not the
    session's.
    """
    statements = []
    if job.database is not None:
        current = run(handle, b"SELECT currentDatabase()", "TSVRaw").bytes()[:-1].decode()
        statements.append(b"USE " + identifier(current))
    if job.settings:
        names = b", ".join(literal(name.encode()) for name in job.settings)
        rows = run(
            handle,
            b"SELECT name, value FROM system.settings WHERE name IN (" + names + b")",
            "JSONCompactEachRow",
        )
        before = dict(json.loads(line) for line in rows.bytes().splitlines())
        if before:
            statements.append(_set(before))
    return statements


def summary(result: Result) -> Summary:
    return Summary(
        read_rows=result.storage_rows_read(),
        read_bytes=result.storage_bytes_read(),
        written_rows=result.rows_written(),
        written_bytes=result.bytes_written(),
        result_rows=result.rows_read(),
    )


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
