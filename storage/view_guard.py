"""Materialized views on the log that fail: they are stopped, and what they miss is remembered.

ClickHouse fills a materialized view inside the insert into its table. An error of a view must not
keep acknowledged records out of the log, so the insert goes on without that view
(`materialized_views_ignore_errors`), and the view would lack the rows of the insert without a word.
So behind each insert the engine's log of views is read. A view with an error is detached, and the
first offset that it missed is stored for each partition, also of inserts that follow. `repair`
fills it from there and attaches it again.

A kill between an insert and the look behind it is not noticed: the insert is not repeated, because
its token is known, and the engine's log of views is gone.

Sources: https://clickhouse.com/docs/operations/system-tables/query_views_log,
https://clickhouse.com/docs/operations/settings/settings#additional_table_filters
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

from storage.engine import Parameter
from storage.parameters import quoted

log = logging.getLogger(__name__)

T = TypeVar("T")
Handle = Any
Query = Callable[[Handle, str, str, Mapping[str, Parameter]], bytes]
"""Runs a statement in a format, with parameters, blocking. Raises `EngineError`."""

_STOPPING, _STOPPED, _ENDED = "stopping", "stopped", "ended"
_MAX_INT64 = 2**63 - 1
_PARTITION = "cityHash64(topic_id, partition)"
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


class UnknownView(Exception):
    """No view of this name has failed."""


@dataclass(frozen=True, slots=True)
class _Missed:
    """What a view lacks of one partition: the offsets first <= o < end."""

    topic: str
    topic_id: str
    partition: int
    key: int
    first: int
    end: int


class ViewGuard:
    """Wraps the inserts into the table `messages` of a database. Methods block their thread."""

    def __init__(self, database: str, query: Query) -> None:
        self._table = f"{database}.messages"
        self._database = database
        self._query = query
        self._lock = threading.Lock()
        """Held while rows go into the table."""
        self._repairs = threading.Lock()
        """Held while a failed view is repaired or dropped: two would fill it twice."""
        self._failed: dict[View, str] | None = None
        self._since: str | None = None
        """When an insert began whose views have not been looked at."""

    def insert(self, handle: Handle, statement: str, path: str) -> None:
        """Run an insert of the Native block in the file `path`. Raises `EngineError`.

        May be repeated with the same block if it has failed.
        """
        with self._lock:
            views, now = self._views(handle)
            if views and self._since is None:
                self._since = now
            self._query(handle, statement, "Null", {})
            if self._since is not None:
                self._look(handle, views)
            for view in self._known_failed(handle):
                self._note_missed(handle, view, path)
            self._since = None

    # Looking

    def _views(self, handle: Handle) -> tuple[set[View], str]:
        """The views that the next insert fills, and the engine's time."""
        (row,) = self._rows(
            handle,
            "SELECT dependencies_database, dependencies_table, toString(now64(6, 'UTC'))"
            " FROM system.tables WHERE database = {database:String} AND name = 'messages'",
            {"database": self._database},
        )
        databases, names, now = row
        return {View(*one) for one in zip(databases, names, strict=True)}, now

    def _known_failed(self, handle: Handle) -> dict[View, str]:
        """The views that have failed and were not repaired, and how far that has come."""
        if self._failed is None:
            exists = self._rows(
                handle,
                "SELECT 1 FROM system.tables"
                " WHERE database = {database:String} AND name = 'failed_view_versions'",
                {"database": self._database},
            )
            if not exists:
                return {}  # the tables of an older version, which are about to be completed
            rows = self._rows(
                handle,
                f"SELECT database, view, state FROM {self._database}.failed_view_versions FINAL"
                f" WHERE state != '{_ENDED}'",
            )
            self._failed = {View(database, name): state for database, name, state in rows}
        return self._failed

    def _look(self, handle: Handle, views: set[View]) -> None:
        """Stop the views that the insert could not fill."""
        self._run(handle, "SYSTEM FLUSH LOGS query_views_log")
        rows = self._rows(
            handle,
            "SELECT view_name, any(exception) FROM system.query_views_log"
            " WHERE event_time_microseconds >= {since:DateTime64(6, 'UTC')}"
            " AND event_date >= toDate({since:DateTime64(6, 'UTC')}) - 1"
            " AND startsWith(status::String, 'Exception') GROUP BY view_name",
            {"since": self._since or ""},
        )
        by_name = {str(view): view for view in views}
        for name, error in rows:
            view = by_name.get(name.replace("`", ""))
            if view is None:
                log.error("view %s was not filled: %s", name, error)
            else:
                self._stop(handle, view, error)

    def _stop(self, handle: Handle, view: View, error: str) -> None:
        """The view has failed: `_note_missed` detaches it when it is known what it misses."""
        known = self._known_failed(handle)
        if self._failed is None:
            log.error("view %s was not filled, and there is no table to note it: %s", view, error)
            return
        self._store(handle, view, _STOPPING, error)
        known[view] = _STOPPING

    def _store(self, handle: Handle, view: View, state: str, error: str) -> None:
        """Note the state of a view that exists."""
        self._run(
            handle,
            f"INSERT INTO {self._database}.failed_view_versions"
            " (database, view, definition, query, target, state, error)"
            " SELECT database, name, create_table_query, as_select,"
            " concat('.inner_id.', toString(uuid)), {state:String}, {error:String}"
            " FROM system.tables WHERE database = {database:String} AND name = {view:String}",
            {**view.parameters(), "state": state, "error": error},
        )

    def _note_missed(self, handle: Handle, view: View, path: str) -> None:
        """Store the first offset of each partition that the view did not get, and stop the view."""
        offsets = f"{self._database}.failed_view_offsets"
        self._run(
            handle,
            f"INSERT INTO {offsets} (database, view, topic, topic_id, partition, first_offset)"
            " SELECT {database:String}, {view:String}, topic, topic_id, partition, min(offset)"
            " FROM file({path:String}, 'Native',"
            " 'topic String, topic_id UUID, partition Int32, offset Int64')"
            f" WHERE (topic_id, partition) NOT IN (SELECT topic_id, partition FROM {offsets} FINAL"
            " WHERE database = {database:String} AND view = {view:String})"
            " GROUP BY topic, topic_id, partition SETTINGS input_format_skip_unknown_fields = 1",
            {**view.parameters(), "path": path},
        )
        known = self._known_failed(handle)
        if known[view] == _STOPPING:
            ((error,),) = self._rows(handle, self._stored("error"), view.parameters())
            self._store(handle, view, _STOPPED, error)
            self._run(handle, f"DETACH TABLE {view.quoted} PERMANENTLY")
            known[view] = _STOPPED
            log.error(
                "view %s could not be filled, and is stopped: `brokerhouse views repair %s` fills"
                " it again: %s",
                view, view, error,
            )  # fmt: skip

    # Repairing

    def repair(self, handle: Handle, view: View, change: Callable[[], None] | None = None) -> int:
        """Fill a failed view with what it missed, and attach it. The number of rows of the log.

        `change` gives the view another query, before. Raises `UnknownView`, what `change` raises,
        and `EngineError`: also where the view would fail again, and then nothing is filled.
        """
        with self._repairs:
            with self._lock:
                self._check_failed(handle, view)
                if change is not None:
                    self._change(handle, view, change)
            filled = self._fill(handle, view)  # the most of it, while records come in
            with self._lock:
                filled += self._fill(handle, view)
                self._run(handle, f"ATTACH TABLE {view.quoted}")
                self._end(handle, view)
        log.info("view %s is filled again: it had missed %d records", view, filled)
        return filled

    def drop(self, handle: Handle, view: View) -> None:
        """Drop a failed view, with the table of its own. Raises `UnknownView`, `EngineError`."""
        with self._repairs, self._lock:
            self._check_failed(handle, view)
            self._run(handle, f"ATTACH TABLE {view.quoted}")
            self._end(handle, view)
            self._run(handle, f"DROP TABLE {view.quoted}")

    def _check_failed(self, handle: Handle, view: View) -> None:
        if view not in self._known_failed(handle):
            raise UnknownView(f"no view {view} has failed")

    def _change(self, handle: Handle, view: View, change: Callable[[], None]) -> None:
        ((error,),) = self._rows(handle, self._stored("error"), view.parameters())
        self._run(handle, f"ATTACH TABLE {view.quoted}")
        try:
            change()
            self._store(handle, view, _STOPPED, error)
        finally:
            self._run(handle, f"DETACH TABLE {view.quoted} PERMANENTLY")

    def _stored(self, columns: str) -> str:
        """A query for columns of the version of a view that counts."""
        return (
            f"SELECT {columns} FROM {self._database}.failed_view_versions FINAL"
            " WHERE database = {database:String} AND view = {view:String}"
        )

    def _fill(self, handle: Handle, view: View) -> int:
        missed = self._missed(handle, view)
        if not missed:
            return 0
        ((definition, query, inner),) = self._rows(
            handle, self._stored("definition, query, target"), view.parameters()
        )
        settings = (
            f"SETTINGS additional_table_filters = {{'{self._table}': '{_condition(missed)}'}}"
        )
        self._run(handle, f"SELECT * FROM ({query}) {settings}")  # whether it fails again
        described = self._rows(handle, f"DESCRIBE ({query})")
        columns = ", ".join(quoted(row[0]) for row in described)
        into = target_of(definition) or View(view.database, inner).quoted
        self._run(handle, f"INSERT INTO {into} ({columns}) SELECT * FROM ({query}) {settings}")
        rows = self._rows(handle, f"SELECT count() FROM {self._table} WHERE {_condition(missed)}")
        self._run(
            handle,
            f"INSERT INTO {self._database}.failed_view_offsets"
            " (database, view, topic, topic_id, partition, first_offset)"
            " SELECT {database:String}, {view:String}, one.1, toUUID(one.2), toInt32(one.3),"
            " toInt64(one.4) FROM (SELECT arrayJoin(arrayZip({topics:Array(String)},"
            " {ids:Array(String)}, {partitions:Array(String)}, {ends:Array(String)})) AS one)",
            {
                **view.parameters(),
                "topics": [one.topic for one in missed],
                "ids": [one.topic_id for one in missed],
                "partitions": [str(one.partition) for one in missed],
                "ends": [str(one.end) for one in missed],
            },
        )
        return int(rows[0][0])

    def _missed(self, handle: Handle, view: View) -> list[_Missed]:
        """What there is in the table now that the view does not have."""
        rows = self._rows(
            handle,
            f"SELECT m.topic, toString(topic_id), partition, {_PARTITION} AS key,"
            " any(first_offset), max(m.offset) + 1"
            f" FROM {self._table} AS m INNER JOIN"
            f" (SELECT topic_id, partition, first_offset FROM {self._database}.failed_view_offsets"
            " FINAL WHERE database = {database:String} AND view = {view:String}) AS f"
            " USING (topic_id, partition)"
            " WHERE m.offset >= first_offset GROUP BY m.topic, topic_id, partition",
            view.parameters(),
        )
        return [_Missed(*row) for row in rows]

    def _end(self, handle: Handle, view: View) -> None:
        """The view is filled again."""
        self._store(handle, view, _ENDED, "")
        self._run(
            handle,
            f"ALTER TABLE {self._database}.failed_view_offsets DELETE"
            " WHERE database = {database:String} AND view = {view:String}"
            " SETTINGS mutations_sync = 1",
            view.parameters(),
        )
        self._known_failed(handle).pop(view, None)

    # Statements

    def _rows(
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

    def _run(
        self, handle: Handle, sql: str, parameters: Mapping[str, Parameter] | None = None
    ) -> None:
        self._query(handle, sql, "Null", parameters or {})


class FailedViews:
    """The same for callers on an event loop."""

    def __init__(self, guard: ViewGuard, open_handle: Callable[[], Handle]) -> None:
        """`open_handle`: a handle with all privileges."""
        self._guard = guard
        self._open_handle = open_handle

    async def repair(
        self, database: str, name: str, change: Callable[[], None] | None = None
    ) -> int:
        """See `ViewGuard.repair`."""
        repair = partial(self._guard.repair, change=change)
        return await asyncio.to_thread(self._with_handle, repair, View(database, name))

    async def drop(self, database: str, name: str) -> None:
        """See `ViewGuard.drop`."""
        await asyncio.to_thread(self._with_handle, self._guard.drop, View(database, name))

    def _with_handle(self, work: Callable[[Handle, View], T], view: View) -> T:
        handle = self._open_handle()
        try:
            return work(handle, view)
        finally:
            handle.close()


def target_of(definition: str) -> str | None:
    """The table that a view writes to, as its definition names it; None: a table of its own."""
    head = _CREATE.match(definition)
    named = _TARGET.match(definition[head.end() :]) if head else None
    return named[1] if named else None


def _condition(missed: list[_Missed]) -> str:
    """Of the rows that are missed: of numbers alone, so that it can stand inside a string."""
    keys = ", ".join(f"toUInt64({one.key})" for one in missed)
    firsts = ", ".join(f"toInt64({one.first})" for one in missed)
    ends = ", ".join(f"toInt64({one.end})" for one in missed)
    return (
        f"offset >= transform({_PARTITION}, [{keys}], [{firsts}], toInt64({_MAX_INT64}))"
        f" AND offset < transform({_PARTITION}, [{keys}], [{ends}], toInt64(0))"
    )
