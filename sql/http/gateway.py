"""The only way from HTTP requests with SQL to the embedded engine.

A statement gets a permit (pool.py) and a handle that can do what its role may (handles.py, or its
session's: sessions.py), is checked on it (access.py), and runs in a thread (running.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from brokerhouse.sql.http.access import Action, Role
from brokerhouse.sql.http.engine import Handle, SqlEngine, Summary, run
from brokerhouse.sql.http.errors import SqlError, engine_error, sql_error
from brokerhouse.sql.http.handles import (
    FencedHandles,
    Handles,
    OpenStatement,
    StatementContext,
    close_the_file_system,
    give_back,
    prepare,
)
from brokerhouse.sql.http.hidden_from_readers import AllColumnsWanted, without_private
from brokerhouse.sql.http.pool import Permit, StatementPool
from brokerhouse.sql.http.running import RunningInsert, RunningQuery
from brokerhouse.sql.http.sessions import Sessions
from brokerhouse.sql.http.settings import SqlLimits
from brokerhouse.sql.http.text import InsertData
from brokerhouse.storage.engine import EngineError
from brokerhouse.storage.journal_statements import reads_only_system
from brokerhouse.storage.log_views import View
from brokerhouse.storage.view_doubts import InDoubt, ViewInDoubt
from brokerhouse.storage.view_guard import UnknownView


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about the engine that answers contain."""

    version: str
    timezone: str
    content_types: Mapping[str, str]  # by format


class SqlGateway:
    """Belongs to an event loop; `close` ends it."""

    def __init__(self, engine: SqlEngine, limits: SqlLimits, handles: Handles) -> None:
        self.pool = StatementPool(engine, limits)
        self.sessions = Sessions(self.pool)
        self._engine = engine
        self._handles = handles

    async def start(self) -> Facts:
        """Prepare the engine for statements of users. Returns its facts."""
        return await self.pool.call_control(_make_ready)

    async def open(self, context: StatementContext, sql: bytes, permit: Permit) -> OpenStatement:
        """Get a handle for this statement, and check whether it may run. Raises SqlError.

        `permit` stays the caller's until the statement is started.
        """
        await self._see_acknowledged(context, sql)
        opening = asyncio.wrap_future(self.pool.submit(self._open, context, sql))
        try:
            handle, action, checked = await asyncio.shield(opening)
        except asyncio.CancelledError:
            await self.pool.end(context.mark, opening)
            with suppress(SqlError):
                handle, _, _ = await opening
                await self.pool.call(give_back, handle, context)
            raise
        return OpenStatement(handle, context, action, permit, checked)

    async def repair_view(
        self, database: str, name: str, query: str | None, in_doubt: InDoubt | None
    ) -> int:
        """See `FailedViews.repair`. `query`: of a writer, for the view. Raises `SqlError`."""
        change = None
        if query is not None:
            view = View(database, name).quoted
            change = partial(self._run_as_writer, f"ALTER TABLE {view} MODIFY QUERY {query}")
        with _view_errors():
            return await self._engine.failed_views.repair(database, name, change, in_doubt)

    async def drop_view(self, database: str, name: str) -> None:
        """See `FailedViews.drop`. Raises `SqlError`."""
        with _view_errors():
            await self._engine.failed_views.drop(database, name)

    def _run_as_writer(self, statement: str) -> None:
        """Within the fence around what a writer may run. Blocks; raises `SqlError`."""
        handle = self._handles.new(Role.WRITER)
        try:
            sql = statement.encode()
            self._handles.judge(handle, sql, {}, Role.WRITER)
            run(handle, sql, "Null")
        finally:
            handle.close()

    async def _see_acknowledged(self, context: StatementContext, sql: bytes) -> None:
        """Every record that was acknowledged until now is seen by the statement."""
        try:
            await self._drain_for(context, sql)
        except EngineError as error:
            # A statement about the engine itself may be needed to find out why.
            if not reads_only_system(sql):
                raise engine_error(RuntimeError(str(error))) from error

    async def _drain_for(self, context: StatementContext, sql: bytes) -> None:
        """Put what was acknowledged into the tables of a statement. Raises `EngineError`."""
        await self._engine.drained()

    def _open(self, context: StatementContext, sql: bytes) -> tuple[Handle, Action, bytes]:
        """The handle, how to run the statement on it, and what to run."""
        params = context.text_params()
        handle = prepare(self._handles, context)
        try:
            try:
                action = self._handles.judge(handle, sql, params, context.role, context.mark)
            except AllColumnsWanted as wanted:
                sql = without_private(sql, wanted.private)
                action = self._handles.judge(handle, sql, params, context.role, context.mark)
            if action is Action.SESSION and context.session is not None:
                context.session.will_hold(sql)
            if (
                action is Action.SESSION
                and context.session is not None
                and context.session.handle is None
            ):
                handle.close()
                context.session.handle = self._handles.new(context.role)
                handle = prepare(self._handles, context)
            if context.read_only and action is Action.WRITE:
                raise sql_error(
                    164,
                    "READONLY",
                    "Cannot execute query in readonly mode. Use POST to change data",
                )
            if context.read_only and context.role is Role.WRITER:
                run(handle, b"SET readonly = 2", "Null")
        except BaseException:
            give_back(handle, context)
            raise
        return handle, action, sql

    def start_read(self, opened: OpenStatement, sql: bytes, fmt: str) -> RunningQuery:
        """Start a query whose result is read from the returned stream. Takes the permit over."""
        return RunningQuery(self.pool, opened, sql, fmt)

    def start_insert(self, opened: OpenStatement, head: InsertData) -> RunningInsert:
        """Start an insert whose data is written to the returned stream. Takes the permit over."""
        return RunningInsert(self.pool, opened, head)

    async def execute(self, opened: OpenStatement, sql: bytes, fmt: str) -> tuple[bytes, Summary]:
        """Run a statement with a small result. If the caller is cancelled, it is killed, and the
        caller waits for that.
        """

        def call() -> tuple[bytes, Summary]:
            try:
                params = opened.context.text_params()
                result = run(opened.handle, opened.context.mark + sql, fmt, params)
                return result.bytes(), Summary.of(result)
            finally:
                give_back(opened.handle, opened.context)

        return await self._call_or_end(opened.context.mark, call)

    async def _call_or_end(
        self, mark: bytes, call: Callable[[], tuple[bytes, Summary]]
    ) -> tuple[bytes, Summary]:
        running = asyncio.wrap_future(self.pool.submit(call))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await self.pool.end(mark, running)
            with suppress(SqlError):
                await running
            raise

    async def close(self) -> None:
        """Wait for what runs and close every handle. Nobody may read a result any more."""
        await self.pool.stop()
        self.sessions.close()
        await self.pool.close()


@contextmanager
def _view_errors() -> Iterator[None]:
    try:
        yield
    except UnknownView as error:
        raise sql_error(60, "UNKNOWN_TABLE", str(error)) from error
    except ViewInDoubt as error:
        raise sql_error(36, "BAD_ARGUMENTS", str(error)) from error
    except EngineError as error:
        raise engine_error(RuntimeError(str(error))) from error


def people_gateway(engine: SqlEngine, limits: SqlLimits) -> SqlGateway:
    """With the fence of access.py around every statement."""
    return SqlGateway(engine, limits, FencedHandles(engine, limits))


def _make_ready(handle: Handle) -> Facts:
    close_the_file_system(handle)
    row = run(handle, b"SELECT version(), timezone()", "TSVRaw").bytes()
    version, timezone = row.decode().rstrip("\n").split("\t")
    types = run(
        handle, b"SELECT name, content_type FROM system.formats WHERE is_output", "TSVRaw"
    ).bytes()
    content_types = dict(line.split("\t", 1) for line in types.decode().splitlines())
    return Facts(version, timezone, content_types)
