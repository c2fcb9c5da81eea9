"""Materialized views on the log: their names, ranges of the log, and statements about them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from brokerhouse.storage.engine import Parameter
from brokerhouse.storage.parameters import quoted

Handle = Any
Query = Callable[[Handle, str, str, Mapping[str, Parameter]], bytes]
"""Runs a statement in a format, with parameters, blocking. Raises `EngineError`."""

PARTITION_KEY = "cityHash64(topic_id, partition)"
"""A partition as one number."""
_MAX_INT64 = 2**63 - 1
_IDENTIFIER = r"(?:`(?:[^`\\]|\\.)*`|[A-Za-z_]\w*)"
_TARGET = re.compile(rf"\ATO ({_IDENTIFIER}\.{_IDENTIFIER})[ (]")
_CREATE = re.compile(rf"\ACREATE MATERIALIZED VIEW {_IDENTIFIER}\.{_IDENTIFIER} ")


class View(NamedTuple):
    """A materialized view."""

    database: str
    name: str

    def __str__(self) -> str:
        return f"{self.database}.{self.name}"

    @property
    def quoted(self) -> str:
        return f"{quoted(self.database)}.{quoted(self.name)}"

    def parameters(self) -> dict[str, Parameter]:
        return {"database": self.database, "view": self.name}


@dataclass(frozen=True, slots=True)
class LogRange:
    """The offsets first <= o < end of one partition; `key`: see `PARTITION_KEY`."""

    topic: str
    topic_id: str
    partition: int
    key: int
    first: int
    end: int


class ViewStatements:
    """Runs statements on a handle, in the database that has the log."""

    def __init__(self, database: str, query: Query) -> None:
        self.database = database
        self._query = query

    def rows(
        self, handle: Handle, sql: str, parameters: Mapping[str, Parameter] | None = None
    ) -> list[list[Any]]:
        text = self._query(
            handle,
            f"{sql} SETTINGS output_format_json_quote_64bit_integers = 0"
            if sql.startswith("SELECT")
            else sql,
            "JSONCompactEachRow",
            parameters or {},
        )
        return [json.loads(line) for line in text.splitlines()]

    def run(
        self, handle: Handle, sql: str, parameters: Mapping[str, Parameter] | None = None
    ) -> None:
        self._query(handle, sql, "Null", parameters or {})

    def has_table(self, handle: Handle, table: str) -> bool:
        """Whether the database has this table: those of an older version lack some."""
        found = self.rows(
            handle,
            "SELECT 1 FROM system.tables"
            " WHERE database = {database:String} AND name = {table:String}",
            {"database": self.database, "table": table},
        )
        return bool(found)


def target_of(definition: str) -> str | None:
    """The table that a view writes to, as its definition names it; None: a table of its own."""
    head = _CREATE.match(definition)
    named = _TARGET.match(definition[head.end() :]) if head else None
    return named[1] if named else None


def condition(ranges: Sequence[LogRange]) -> str:
    """Of the rows in these ranges: of numbers alone, so that it can stand inside a string."""
    layers: list[list[LogRange]] = []
    seen: dict[int, int] = {}
    for one in ranges:  # a layer has at most one range of each partition
        number = seen[one.key] = seen.get(one.key, -1) + 1
        if number == len(layers):
            layers.append([])
        layers[number].append(one)
    return " OR ".join(f"({_of_layer(layer)})" for layer in layers)


def _of_layer(ranges: Sequence[LogRange]) -> str:
    keys = ", ".join(f"toUInt64({one.key})" for one in ranges)
    firsts = ", ".join(f"toInt64({one.first})" for one in ranges)
    ends = ", ".join(f"toInt64({one.end})" for one in ranges)
    return (
        f"offset >= transform({PARTITION_KEY}, [{keys}], [{firsts}], toInt64({_MAX_INT64}))"
        f" AND offset < transform({PARTITION_KEY}, [{keys}], [{ends}], toInt64(0))"
    )
