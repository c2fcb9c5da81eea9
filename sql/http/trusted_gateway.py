"""Runs the SQL of brokers on the embedded engine: every grant, no fence around it.

The gateway of gateway.py with all rights, for `brokerhouse engine`. Only that command may make one.
Handles, threads and streams work in the same way. Inserts are different: a body becomes one part,
stored atomically, as in embedded.py; so it is complete in memory before the engine sees any of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from sql.http.access import Action, Role, only_statement
from sql.http.engine import Handle, SqlEngine, Summary, new_mark, run
from sql.http.errors import SqlError, sql_error
from sql.http.gateway import SqlGateway
from sql.http.handles import (
    ExternalTable,
    StatementContext,
    give_back,
    load_table,
    prepare,
)
from sql.http.settings import SqlLimits
from sql.http.text import InsertData, identifier, tokens
from storage.embedded import INSERT_SETTINGS

INSERT_MAX_BYTES = 1 << 30
DEFAULT_DATABASE = "default"


class WatchedEngine(SqlEngine, Protocol):
    def watched_write(self, handle: Handle) -> AbstractContextManager[None]:
        """Around an insert. Raises `StorageFault` if a write of it may have failed."""


class InsertBody:
    """The data of one insert, in memory (a file that has no name)."""

    def __init__(self) -> None:
        """Raises MEMORY_LIMIT_EXCEEDED."""
        try:
            self._file = os.memfd_create("insert")
        except OSError as error:
            raise _no_memory(error) from error
        self._size = 0

    def write(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > INSERT_MAX_BYTES:
            raise sql_error(
                307, "TOO_MANY_BYTES", f"An insert can have {INSERT_MAX_BYTES} bytes here"
            )
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            raise _no_memory(error) from error

    @property
    def source(self) -> bytes:
        return b"FROM INFILE '/proc/self/fd/%d'" % self._file

    def close(self) -> None:
        os.close(self._file)


def _no_memory(error: OSError) -> SqlError:
    return sql_error(
        241, "MEMORY_LIMIT_EXCEEDED", f"No memory for the data of an insert: {error.strerror}"
    )


class TrustedHandles:
    """Handles with every grant."""

    def __init__(self, engine: SqlEngine) -> None:
        self._engine = engine

    def new(self, role: Role, tables: Sequence[ExternalTable] = ()) -> Handle:
        # The second is ClickHouse's default, but not chDB's.
        handle: Handle = self._engine.handle(INSERT_SETTINGS, "SET implicit_select = 0")
        try:
            run(handle, b"USE " + identifier(DEFAULT_DATABASE), "Null")
            for table in tables:
                load_table(handle, table)
        except BaseException:
            handle.close()
            raise
        return handle

    def judge(self, handle: Handle, sql: bytes, params: Mapping[str, str], role: Role) -> Action:
        """Only how to run the statement; SqlError if it does not parse."""
        query_class = only_statement(handle, sql)
        if query_class == "READ_ONLY":
            if self._engine.read_nice:
                run(handle, b"SET os_thread_priority = %d" % self._engine.read_nice, "Null")
            return Action.READ
        words = tokens(sql)
        first, second = next(words), next(words, None)
        of_session = first.is_word(b"SET", b"USE") or (
            first.is_word(b"CREATE") and second is not None and second.is_word(b"TEMPORARY")
        )
        return Action.SESSION if of_session else Action.WRITE


class TrustedGateway(SqlGateway):
    """Runs the statements of brokers, which may do everything."""

    def __init__(self, engine: WatchedEngine, limits: SqlLimits) -> None:
        handles = TrustedHandles(engine)
        super().__init__(engine, limits, handles)
        self._trusted = handles
        self._watched = engine

    async def insert(
        self, context: StatementContext, head: InsertData, body: InsertBody
    ) -> Summary:
        """Insert a complete body, which is closed then; the caller holds a permit.

        Runs to its end even if the caller is cancelled. Raises SqlError and `StorageFault`.
        """

        def call() -> Summary:
            try:
                params = context.text_params()
                handle = prepare(self._trusted, context)
                try:
                    with self._watched.watched_write(handle):
                        text = new_mark() + head.statement(body.source)
                        return Summary.of(run(handle, text, "Null", params))
                finally:
                    give_back(handle, context)
            finally:
                body.close()

        return await self.pool.call(call)
