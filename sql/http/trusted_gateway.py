"""Runs the SQL of brokers on the embedded engine: every grant, no fence around it.

The gateway of gateway.py with all rights, for `brokerhouse engine`. Only that command may make one.
Threads and streams work in the same way. Inserts are different: a body becomes one part, stored
atomically, as in embedded.py; so it is complete in memory before the engine sees any of it. Handles
are kept: a broker sends the same few settings with many small statements, and to prepare a handle
for them takes longer than to run one (measured, chdb-core 26.9: 1.3 ms and 0.8 ms of CPU).
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Protocol

from brokerhouse.sql.http.access import Action, Role, only_statement
from brokerhouse.sql.http.engine import Handle, Result, SqlEngine, Summary, new_mark, run
from brokerhouse.sql.http.errors import SqlError, sql_error
from brokerhouse.sql.http.gateway import SqlGateway
from brokerhouse.sql.http.handles import (
    ExternalTable,
    StatementContext,
    give_back,
    load_table,
    prepare,
    prepared,
)
from brokerhouse.sql.http.settings import SqlLimits
from brokerhouse.sql.http.text import InsertData, identifier, tokens
from brokerhouse.storage.block_intake import BlockIntake
from brokerhouse.storage.clickhouse import PING
from brokerhouse.storage.embedded import INSERT_SETTINGS
from brokerhouse.storage.journal_statements import changes_tables, needed_by, reads_only_system

INSERT_MAX_BYTES = 1 << 30
HANDLES_KEPT = 32
_TAKES_ROWS = re.compile(rb"\b(?:SELECT|DELETE|UPDATE|PARTITION)\b", re.IGNORECASE)
"""In a statement that changes tables: it reads or removes rows as well."""
DEFAULT_DATABASE = "default"
_SMALL_SETTINGS = {"validate_mutation_query": "0"}
"""A change of the registry takes effect at once, or fails. So ClickHouse need not try it before, as
it does for changes in the background: that takes 2.0 of 7.2 ms (measured, chdb-core 26.9).
https://clickhouse.com/docs/reference/settings/session-settings/validate"""
_OUTFILE = re.compile(rb"\bOUTFILE\b", re.IGNORECASE)


class WatchedEngine(SqlEngine, Protocol):
    def watched_write(self, handle: Handle) -> AbstractContextManager[None]:
        """Around an insert. Raises `StorageFault` if a write of it may have failed."""


class InsertBody:
    """The data of one insert, in memory."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._size = 0

    def write(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > INSERT_MAX_BYTES:
            raise sql_error(
                307, "TOO_MANY_BYTES", f"An insert can have {INSERT_MAX_BYTES} bytes here"
            )
        if data:
            self._pieces.append(data)

    def whole(self) -> bytes:
        data = b"".join(self._pieces)
        self._pieces = deque((data,))
        return data

    def to_file(self) -> int:
        """Move the data into a file that has no name. Raises MEMORY_LIMIT_EXCEEDED."""
        try:
            file = os.memfd_create("insert")
        except OSError as error:
            raise _no_memory(error) from error
        try:
            while self._pieces:
                rest = memoryview(self._pieces.popleft())
                while rest:
                    rest = rest[os.write(file, rest) :]
        except OSError as error:
            os.close(file)
            raise _no_memory(error) from error
        return file


def _no_memory(error: OSError) -> SqlError:
    return sql_error(
        241, "MEMORY_LIMIT_EXCEEDED", f"No memory for the data of an insert: {error.strerror}"
    )


class KeptHandle:
    """A prepared handle, which is kept for the next statement that needs the same preparation.

    Not if a statement has failed on it (see handles.py) or has changed what it is prepared for.
    """

    def __init__(self, handle: Handle, keep: Callable[[KeptHandle], bool]) -> None:
        """`keep` returns whether the handle is kept; if not, it is closed."""
        self._handle = handle
        self._keep = keep
        self.is_spoilt = False
        self.nice = 0

    def query(self, sql: bytes | str, format: str, *, params: dict[str, str]) -> Result:  # noqa: A002
        try:
            return self._handle.query(sql, format, params=params)
        except BaseException:
            self.is_spoilt = True
            raise

    def classify_query(self, sql: bytes | str) -> dict[str, Any]:
        return self._handle.classify_query(sql)

    def close(self) -> None:
        if self.is_spoilt or not self._keep(self):
            self._handle.close()


_Preparation = tuple[str | None, tuple[tuple[str, str], ...]]
"""The database and the settings of a statement."""


class TrustedHandles:
    """Handles with every grant."""

    def __init__(self, engine: SqlEngine) -> None:
        self._engine = engine
        self._kept: deque[tuple[_Preparation, KeptHandle]] = deque()
        self._lock = threading.Lock()
        self._closed = False

    def ready(self, context: StatementContext) -> Handle:
        if context.read_only or context.tables:  # it will be changed further
            return prepared(self.new(context.role, context.tables), context)
        wanted = context.database, tuple(sorted(context.settings.items()))
        with self._lock:
            for one in self._kept:
                if one[0] == wanted:
                    self._kept.remove(one)
                    return one[1]
        kept = KeptHandle(self.new(context.role), partial(self._keep, wanted))
        return prepared(kept, context)

    def _keep(self, preparation: _Preparation, handle: KeptHandle) -> bool:
        with self._lock:
            if self._closed:
                return False
            self._kept.append((preparation, handle))
            oldest = self._kept.popleft()[1] if len(self._kept) > HANDLES_KEPT else None
        if oldest is not None:
            oldest.is_spoilt = True
            oldest.close()
        return True

    def close(self) -> None:
        """Close the handles that are kept; from now on none is."""
        with self._lock:
            self._closed = True
        while self._kept:
            self._kept.pop()[1].close()

    def new(self, role: Role, tables: Sequence[ExternalTable] = (), mark: bytes = b"") -> Handle:
        # The second is ClickHouse's default, but not chDB's. The results are short, or in formats
        # that are not written by several threads anyway.
        handle: Handle = self._engine.handle(
            INSERT_SETTINGS, "SET implicit_select = 0, output_format_parallel_formatting = 0"
        )
        try:
            run(handle, b"USE " + identifier(DEFAULT_DATABASE), "Null")
            for table in tables:
                load_table(handle, table, mark)
        except BaseException:
            handle.close()
            raise
        return handle

    def judge(
        self, handle: Handle, sql: bytes, params: Mapping[str, str], role: Role, mark: bytes = b""
    ) -> Action:
        """Only how to run the statement; SqlError if it does not parse."""
        query_class = only_statement(handle, sql)
        is_read = query_class == "READ_ONLY"
        self._set_nice(handle, self._engine.read_nice if is_read else 0)
        if is_read:
            return Action.READ
        first, *following = islice(tokens(sql), 4)
        named = [one for one in following if not one.is_word(b"OR", b"REPLACE")]
        of_session = first.is_word(b"SET", b"USE") or (
            first.is_word(b"CREATE") and bool(named) and named[0].is_word(b"TEMPORARY")
        )
        if of_session and isinstance(handle, KeptHandle):
            handle.is_spoilt = True
        return Action.SESSION if of_session else Action.WRITE

    def _set_nice(self, handle: Handle, nice: int) -> None:
        before = handle.nice if isinstance(handle, KeptHandle) else 0
        if nice != before:
            run(handle, b"SET os_thread_priority = %d" % nice, "Null")
        if isinstance(handle, KeptHandle):
            handle.nice = nice


def is_small(context: StatementContext, sql: bytes) -> bool:
    """Whether a statement is a ping, or reads or changes the registry alone.

    Of these an idle cluster asks several a second, and their results are short.
    """
    if context.read_only or context.session is not None or context.tables:
        return False
    return sql == PING.encode() or (
        _OUTFILE.search(sql) is None
        and not reads_only_system(sql)
        and needed_by(sql, context.database) == ()
    )


class _OnceHandles(TrustedHandles):
    """Handles that are not kept: no two inserts have the same settings."""

    def ready(self, context: StatementContext) -> Handle:
        return prepared(self.new(context.role, context.tables), context)


class TrustedGateway(SqlGateway):
    """Runs the statements of brokers, which may do everything."""

    def __init__(self, engine: WatchedEngine, limits: SqlLimits, blocks: BlockIntake) -> None:
        handles = TrustedHandles(engine)
        super().__init__(engine, limits, handles)
        self._trusted = handles
        self._blocks = blocks
        self._for_inserts = _OnceHandles(engine)
        self._watched = engine

    async def close(self) -> None:
        await super().close()
        await asyncio.to_thread(self._trusted.close)

    async def _call_or_end(
        self, mark: bytes, call: Callable[[], tuple[bytes, Summary]]
    ) -> tuple[bytes, Summary]:
        """To its end: a broker that has lost its connection may rely on the statement."""
        return await self.pool.call(call)

    async def run_small(
        self, context: StatementContext, sql: bytes, fmt: str
    ) -> tuple[Action, bytes, Summary]:
        """Run a statement that `is_small`, also to its end if the caller is cancelled meanwhile.

        One turn of one thread, without a pipe: that saves a third of what such a statement costs.
        """
        context = replace(context, settings={**_SMALL_SETTINGS, **context.settings})

        def call() -> tuple[Action, bytes, Summary]:
            handle, action, _ = self._open(context, sql)
            try:
                result = run(handle, new_mark() + sql, fmt, context.text_params())
                return action, result.bytes(), Summary.of(result)
            finally:
                give_back(handle, context)

        return await self.pool.call(call)

    async def insert(
        self, context: StatementContext, head: InsertData, body: InsertBody
    ) -> Summary:
        """Insert a complete body, which is empty then; the caller holds a permit.

        Runs to its end even if the caller is cancelled. Raises SqlError and `StorageFault`.
        """
        await self._see_acknowledged(context, head.statement())

        def call() -> Summary:
            params = context.text_params()
            file = body.to_file()
            try:
                source = b"FROM INFILE '/proc/self/fd/%d'" % file
                handle = prepare(self._for_inserts, context)
                try:
                    with self._watched.watched_write(handle):
                        text = new_mark() + head.statement(source)
                        return Summary.of(run(handle, text, "Null", params))
                finally:
                    give_back(handle, context)
            finally:
                os.close(file)

        return await self.pool.call(call)

    async def _drain_for(self, context: StatementContext, sql: bytes) -> None:
        if changes_tables(sql, context.database) and not _TAKES_ROWS.search(sql):
            return  # `tables_may_change` has tried it
        await self._blocks.drained(needed_by(sql, context.database))
