"""Handles of the engine for one statement: restricted to a role, and clean when given back.

A handle belongs to one statement at a time. A handle on which a statement failed in `query` may
hold rows of it and give them out with the next result (measured, chdb-core 26.9), so its output
always goes to a pipe (running.py).

Everything here blocks, and runs in a thread of the pool.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from brokerhouse.sql.http.access import Action, Role, judge
from brokerhouse.sql.http.engine import WHOLE, Handle, SqlEngine, new_mark, run, set_statement
from brokerhouse.sql.http.errors import SYNTAX_ERROR, sql_error
from brokerhouse.sql.http.pool import Permit
from brokerhouse.sql.http.sessions import SqlSession
from brokerhouse.sql.http.settings import SqlLimits
from brokerhouse.sql.http.text import identifier, is_enclosed, literal
from brokerhouse.storage.free_space import PEOPLE_KEEP_FREE_BYTES

_TEMPORARY_BYTES = b"SELECT sum(total_bytes) FROM system.tables WHERE is_temporary"

# Expressions in VALUES data could call the function `file`; literals still work.
NO_EXPRESSIONS = {
    "input_format_values_interpret_expressions": "0",
    "input_format_values_deduce_templates_of_expressions": "0",
}


@dataclass(frozen=True, slots=True)
class ExternalTable:
    """Data that a client sends along with its query, as a temporary table."""

    name: str
    structure: bytes
    format: str
    data: bytes


@dataclass(slots=True)
class StatementContext:
    """Who sends a statement, and its parameters and settings: all but the SQL itself."""

    role: Role
    database: str | None
    settings: Mapping[str, str]
    params: Mapping[str, bytes]  # in the escaped form of ClickHouse's HTTP interface
    read_only: bool
    session: SqlSession | None = None
    tables: Sequence[ExternalTable] = ()
    mark: bytes = field(default_factory=new_mark)
    """Begins everything that the engine runs for the statement, so that it can be found."""

    def text_params(self) -> dict[str, str]:
        """Raises BAD_ARGUMENTS."""
        try:
            return {name: value.decode() for name, value in self.params.items()}
        except UnicodeDecodeError:
            raise sql_error(36, "BAD_ARGUMENTS", "Query parameters have to be UTF-8") from None


@dataclass(frozen=True, slots=True)
class OpenStatement:
    """A statement that may run: on `handle`, in a thread for which `permit` stands."""

    handle: Handle
    context: StatementContext
    action: Action
    permit: Permit
    sql: bytes
    """What runs: the statement, for readers without private columns."""


class Handles(Protocol):
    """Makes handles, and says what may run on them."""

    def new(self, role: Role, tables: Sequence[ExternalTable] = (), mark: bytes = b"") -> Handle:
        """A new handle that can do what this role may, and no more; `tables` are in it.

        `mark` begins what fills the tables.
        """

    def ready(self, context: StatementContext) -> Handle:
        """A handle with the database and the settings of this statement."""

    def judge(
        self, handle: Handle, sql: bytes, params: Mapping[str, str], role: Role, mark: bytes = b""
    ) -> Action:
        """How to run this statement. SqlError if it does not parse or this role may not run it.

        `mark` begins what the engine runs of it for that.
        """


class FencedHandles:
    """Handles for users, restricted as access.py says."""

    def __init__(self, engine: SqlEngine, limits: SqlLimits) -> None:
        self._engine = engine
        self._limits = limits

    def new(self, role: Role, tables: Sequence[ExternalTable] = (), mark: bytes = b"") -> Handle:
        """Takes 1 ms."""
        bounds = self._limits.bounds
        fence = (
            f"SET max_threads = {bounds.max_threads},"
            f" max_memory_usage = {bounds.max_memory_bytes},"
            f" max_execution_time = {bounds.max_execution_ms / 1000},"
            f" os_thread_priority = {self._engine.read_nice}, implicit_select = 0,"
            f" max_temporary_data_on_disk_size_for_query = {bounds.temporary_bytes},"
            f" min_free_disk_space_for_temporary_data = {PEOPLE_KEEP_FREE_BYTES},"
            " allow_introspection_functions = 0"
        )
        handle: Handle = self._engine.handle()
        try:
            if tables:
                # Readers may not make tables, so this is done for them, with a writer's rights.
                run(handle, b"SET ROLE writer", "Null")
                run(handle, f"{fence}, profile = 'sql'".encode(), "Null")
                loaded = self._load(handle, tables, mark)
                fence += f", max_memory_usage = {bounds.max_memory_bytes - loaded}"
            run(handle, f"SET ROLE {role.value}".encode(), "Null")
            profile = "sql"
            if role is Role.READER:
                fence += ", readonly = 2"
                profile = "sql_reader"
            run(handle, f"{fence}, profile = '{profile}'".encode(), "Null")
        except BaseException:
            handle.close()
            raise
        return handle

    def _load(self, handle: Handle, tables: Sequence[ExternalTable], mark: bytes) -> int:
        """Fill temporary tables. Returns how many bytes they take, which is a quarter at most of
        what the statement may use: no limit of the engine counts them once they are filled.
        """
        bytes_max = self._limits.bounds.max_memory_bytes // 4
        loaded = 0
        for table in tables:
            run(handle, b"SET max_memory_usage = %d" % max(bytes_max - loaded, 1), "Null")
            load_table(handle, table, mark)
            loaded = int(run(handle, _TEMPORARY_BYTES, "TSVRaw").bytes())
            if loaded > bytes_max:
                raise sql_error(
                    241,
                    "MEMORY_LIMIT_EXCEEDED",
                    f"External tables may take {bytes_max} bytes, and take {loaded}",
                )
        return loaded

    def ready(self, context: StatementContext) -> Handle:
        return prepared(self.new(context.role, context.tables, context.mark), context)

    def judge(
        self, handle: Handle, sql: bytes, params: Mapping[str, str], role: Role, mark: bytes = b""
    ) -> Action:
        iceberg = self._limits.bounds.iceberg_warehouse is not None
        return judge(handle, sql, params, role, mark=mark, iceberg=iceberg)


def prepare(handles: Handles, context: StatementContext) -> Handle:
    """A handle for this statement: new or its session's, with its database and settings."""
    session = context.session
    if session is None or session.handle is None:
        return handles.ready(context)
    session.restore = _undo(session.handle, context)
    return prepared(session.handle, context)


def prepared(handle: Handle, context: StatementContext) -> Handle:
    """The handle, with the database and the settings of this statement."""
    try:
        if context.database is not None:
            run(handle, b"USE " + identifier(context.database), "Null")
        if context.settings:
            run(handle, set_statement(context.settings), "Null")
    except BaseException:
        give_back(handle, context)
        raise
    return handle


def give_back(handle: Handle, context: StatementContext) -> None:
    """Close the handle, or leave it to its session as it was before this statement."""
    session = context.session
    if session is None or session.handle is not handle:
        handle.close()
        return
    statements, session.restore = session.restore, []
    for statement in statements:
        run(handle, statement, "Null")


def _undo(handle: Handle, context: StatementContext) -> list[bytes]:
    """Statements that take back what this one will set: the settings of a request do not become
    the session's.
    """
    statements = []
    if context.database is not None:
        current = run(handle, b"SELECT currentDatabase()" + WHOLE, "TSVRaw").bytes()[:-1].decode()
        statements.append(b"USE " + identifier(current))
    if context.settings:
        names = b", ".join(literal(name.encode()) for name in context.settings)
        rows = run(
            handle,
            b"SELECT name, value FROM system.settings WHERE name IN (" + names + b")" + WHOLE,
            "JSONCompactEachRow",
        )
        before = dict(json.loads(line) for line in rows.bytes().splitlines())
        if before:
            statements.append(set_statement(before))
    return statements


def load_table(handle: Handle, table: ExternalTable, mark: bytes) -> None:
    """Make a temporary table and fill it. Raises SqlError."""
    name = identifier(table.name)
    if not is_enclosed(table.structure):
        raise sql_error(
            SYNTAX_ERROR, "SYNTAX_ERROR", f"The structure of {table.name} is not a list of columns"
        )
    create = b"CREATE TEMPORARY TABLE " + name + b" (" + table.structure + b"\n) ENGINE = Memory"
    judge(handle, create, {}, Role.WRITER)
    run(handle, create, "Null")
    run(handle, set_statement(NO_EXPRESSIONS), "Null")
    fd = os.memfd_create("external table")
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(table.data)
        source = f" FROM INFILE '/proc/self/fd/{fd}' FORMAT ".encode()
        run(handle, mark + b"INSERT INTO " + name + source + identifier(table.format), "Null")
    finally:
        os.close(fd)


def close_the_file_system(handle: Handle) -> None:
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
