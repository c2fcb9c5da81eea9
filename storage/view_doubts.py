"""What materialized views have or lack, because the process was killed while it filled them.

ClickHouse makes the part of `messages` first, and those of the views behind it, each by itself. So
after a kill a view may have the rows of that insert, or not, and nothing tells which: its table may
be of any kind. Such a view goes on, and the ranges of the log are kept until somebody says whether
it has them. The same holds for the views on its table.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from enum import Enum

from brokerhouse.sql.queries import query
from brokerhouse.storage.log_views import (
    PARTITION_KEY,
    Handle,
    LogRange,
    View,
    ViewStatements,
    target_of,
)

log = logging.getLogger(__name__)

_NAMED_MAX = 5
"""So many views and ranges a line of the log names."""


class InDoubt(Enum):
    """What to do about records of which nobody knows whether a view has them."""

    FILL = "fill"  # it lacks them
    KEEP = "keep"  # it has them


class ViewInDoubt(Exception):
    """The view cannot be repaired like that. The message says what to do."""


class ViewDoubts:
    """Reads and writes `view_doubts`. Methods block their thread and raise `EngineError`."""

    def __init__(self, sql: ViewStatements) -> None:
        self._sql = sql
        self._table = f"{sql.database}.view_doubts"
        self._exists = False

    def note(self, handle: Handle, views: Iterable[View], ranges: Sequence[LogRange]) -> None:
        """These views, and those on their tables, have or lack these rows of the log."""
        found = set(views)
        for view in list(found):
            found |= self.behind(handle, view)
        if not found or not ranges:
            return
        log.error(
            "killed while records were written: %s may lack %s: `brokerhouse views list` has all",
            _some([str(view) for view in sorted(found)]),
            _some([f"{one.topic}-{one.partition} {one.first} to {one.end - 1}" for one in ranges]),
        )
        if not self._is_there(handle):
            log.error(
                "cannot store which views these are, because the table is missing: check them now"
            )
            return
        for view in found:
            self._sql.run(
                handle,
                query("store_view_doubts", table=self._table),
                {
                    **view.parameters(),
                    "topics": [one.topic for one in ranges],
                    "ids": [one.topic_id for one in ranges],
                    "partitions": [str(one.partition) for one in ranges],
                    "firsts": [str(one.first) for one in ranges],
                    "ends": [str(one.end) for one in ranges],
                },
            )

    def of(self, handle: Handle, view: View) -> list[LogRange]:
        if not self._is_there(handle):
            return []
        rows = self._sql.rows(
            handle,
            query("view_doubts", table=self._table, partition_key=PARTITION_KEY),
            view.parameters(),
        )
        return [LogRange(*row) for row in rows]

    def forget(self, handle: Handle, view: View, ranges: Sequence[LogRange]) -> None:
        """It is known now what the view has of these ranges."""
        if not ranges:
            return
        self._sql.run(
            handle,
            query("forget_view_doubts", table=self._table),
            {
                **view.parameters(),
                "ranges": [f"{one.topic_id} {one.partition} {one.first}" for one in ranges],
            },
        )

    def behind(self, handle: Handle, view: View) -> set[View]:
        """The views that are filled with what this one writes to its table, and those behind."""
        tables = self._sql.rows(handle, query("tables_and_views_on_them"))
        targets: dict[View, str] = {}
        on_table: dict[str, set[View]] = {}
        for database, name, inner, definition, databases, names in tables:
            one = View(database, name)
            targets[one] = target_of(definition) or View(database, inner).quoted
            on_table[_bare(one.quoted)] = {View(*on) for on in zip(databases, names, strict=True)}
        found: set[View] = set()
        waiting = [view]
        while waiting:
            target = _bare(targets.get(waiting.pop(), ""))
            new = on_table.get(target, set()) - found
            found |= new
            waiting += new
        return found

    def _is_there(self, handle: Handle) -> bool:
        if not self._exists:
            self._exists = self._sql.has_table(handle, "view_doubts")
        return self._exists


def _bare(name: str) -> str:
    """A name without the quotation marks that ClickHouse may leave out."""
    return name.replace("`", "")


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
