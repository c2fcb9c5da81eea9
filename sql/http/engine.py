"""The embedded engine as the HTTP interface sees it: handles, and statements that run on them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from brokerhouse.sql.http.errors import ENGINE_ERRORS, engine_error
from brokerhouse.sql.http.text import literal
from brokerhouse.storage.view_guard import FailedViews


class SqlEngine(Protocol):
    @property
    def read_nice(self) -> int:
        """Nice value of statements that give way to inserts; 0 where that is not allowed."""

    def handle(self, *statements: str) -> Any:
        """A new handle with every grant, on which `statements` have run."""

    async def drained(self) -> None:
        """Returns when every row that was acknowledged before is in its table.

        Raises `EngineError` if the engine refuses rows.
        """

    @property
    def failed_views(self) -> FailedViews:
        """Repairs materialized views that could not be filled."""


class Result(Protocol):
    def bytes(self) -> bytes: ...
    def rows_read(self) -> int: ...
    def bytes_read(self) -> int: ...
    def storage_rows_read(self) -> int: ...
    def storage_bytes_read(self) -> int: ...
    def rows_written(self) -> int: ...
    def bytes_written(self) -> int: ...


class Handle(Protocol):
    """A chDB connection, as far as it is used here. One thread at a time."""

    def query(self, sql: bytes | str, format: str, *, params: dict[str, str]) -> Result: ...  # noqa: A002
    def classify_query(self, sql: bytes | str) -> dict[str, Any]: ...
    def close(self) -> None: ...


def run(handle: Handle, sql: bytes, fmt: str, params: Mapping[str, str] | None = None) -> Result:
    """Run one statement, blocking. Raises SqlError."""
    try:
        return handle.query(sql, fmt, params=dict(params or {}))
    except ENGINE_ERRORS as error:
        raise engine_error(error) from error


WHOLE = b" SETTINGS limit = 0, offset = 0, use_query_cache = 0"
"""Ends a SELECT of the server's own whose rows must all arrive: a client may have set all three."""

MARK = b"/* brokerhouse "


def new_mark() -> bytes:
    """A comment that begins one statement, so that it can be found among those that run."""
    return MARK + uuid.uuid4().hex.encode() + b" */ "


def set_statement(settings: Mapping[str, str]) -> bytes:
    parts = [
        name.encode() + b" = " + literal(value.encode("utf-8", "surrogateescape"))
        for name, value in settings.items()
    ]
    return b"SET " + b", ".join(parts)


@dataclass(frozen=True, slots=True)
class Summary:
    """What the engine counted."""

    read_rows: int
    read_bytes: int
    written_rows: int
    written_bytes: int
    result_rows: int
    result_bytes: int

    @classmethod
    def of(cls, result: Result) -> Summary:
        return cls(
            read_rows=result.storage_rows_read(),
            read_bytes=result.storage_bytes_read(),
            written_rows=result.rows_written(),
            written_bytes=result.bytes_written(),
            result_rows=result.rows_read(),
            result_bytes=result.bytes_read(),
        )

    def as_header(self, elapsed_ns: int) -> str:
        """The value of X-ClickHouse-Summary."""
        return json.dumps(
            {
                "read_rows": str(self.read_rows),
                "read_bytes": str(self.read_bytes),
                "written_rows": str(self.written_rows),
                "written_bytes": str(self.written_bytes),
                "result_rows": str(self.result_rows),
                "result_bytes": str(self.result_bytes),
                "elapsed_ns": str(elapsed_ns),
            },
            separators=(",", ":"),
        )
