"""Materialized views on the log that fail: they are stopped, and what they miss is remembered.

ClickHouse fills a materialized view inside the insert into its table. An error of a view must not
keep acknowledged records out of the log, so the insert goes on without that view
(`materialized_views_ignore_errors`), and the view would lack the rows of the insert without a word.
So behind each insert the engine's log of views is read. A view with an error is detached, and the
first offset that it missed is stored for each partition, also of inserts that follow. `repair`
fills it from there and attaches it again.

After a kill between an insert and the look behind it, the engine's log of views is gone, and the
rows are in the table, so they are not inserted again. The journal finds them at the next start, and
the views have them or lack them (storage/view_doubts.py).

Sources: https://clickhouse.com/docs/operations/system-tables/query_views_log,
https://clickhouse.com/docs/operations/settings/settings#additional_table_filters
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from brokerhouse.common.counted_lines import counted
from brokerhouse.sql.queries import query
from brokerhouse.storage.log_views import (
    PARTITION_KEY,
    Handle,
    LogRange,
    Query,
    View,
    ViewStatements,
    condition,
    target_of,
)
from brokerhouse.storage.parameters import quoted
from brokerhouse.storage.view_doubts import InDoubt, ViewDoubts, ViewInDoubt

log = logging.getLogger(__name__)

A = TypeVar("A")
T = TypeVar("T")
_STOPPING, _STOPPED, _ENDED = "stopping", "stopped", "ended"


class UnknownView(Exception):
    """No view of this name has failed."""


class ViewGuard:
    """Wraps the inserts into the table `messages` of a database. Methods block their thread."""

    def __init__(self, database: str, run: Query) -> None:
        self._table = f"{database}.messages"
        self._database = database
        self._run = run
        self._sql = ViewStatements(database, run)
        self._doubts = ViewDoubts(self._sql)
        self._lock = threading.Lock()
        """Held while rows go into the table."""
        self._repairs = threading.Lock()
        """Held while a failed view is repaired or dropped: two would fill it twice."""
        self._failed: dict[View, str] | None = None
        self._since: str | None = None
        """When an insert began whose views have not been looked at."""
        self._inserted = ""
        """The statement of an insert that has succeeded, and the look behind it has not."""

    def insert(self, handle: Handle, statement: str, path: str) -> None:
        """Run an insert of the Native block in the file `path`. Raises `EngineError`.

        May be repeated with the same block if it has failed.
        """
        with self._lock:
            views, now = self._views(handle)
            if views and self._since is None:
                self._since = now
            if statement != self._inserted:  # its token is known, but views would be filled again
                self._run(handle, statement, "Null", {})
                self._inserted = statement
            if self._since is not None:
                self._look(handle, views)
            for view in self._known_failed(handle):
                self._note_missed(handle, view, path)
            self._since, self._inserted = None, ""

    # Looking

    def _views(self, handle: Handle) -> tuple[set[View], str]:
        """The views that the next insert fills, and the engine's time."""
        (row,) = self._sql.rows(
            handle,
            query("views_of_log"),
            {"database": self._database},
        )
        databases, names, now = row
        return {View(*one) for one in zip(databases, names, strict=True)}, now

    def _known_failed(self, handle: Handle) -> dict[View, str]:
        """The views that have failed and were not repaired, and how far that has come."""
        if self._failed is None:
            if not self._sql.has_table(handle, "failed_view_versions"):
                return {}  # the tables of an older version, which are about to be completed
            rows = self._sql.rows(
                handle,
                query("failed_views_not_repaired", database=self._database, ended=_ENDED),
            )
            self._failed = {View(database, name): state for database, name, state in rows}
        return self._failed

    def _look(self, handle: Handle, views: set[View]) -> None:
        """Stop the views that the insert could not fill."""
        self._sql.run(handle, "SYSTEM FLUSH LOGS query_views_log")
        rows = self._sql.rows(
            handle,
            query("views_not_filled"),
            {"since": self._since or ""},
        )
        by_name = {str(view): view for view in views}
        for name, error in rows:
            view = by_name.get(name.replace("`", ""))
            if view is None:
                log.error("view %s was not filled: %s", name, error, extra=counted(name))
            else:
                self._stop(handle, view, error)

    def _stop(self, handle: Handle, view: View, error: str) -> None:
        """The view has failed: `_note_missed` detaches it when it is known what it misses."""
        known = self._known_failed(handle)
        if self._failed is None:
            log.error(
                "view %s was not filled, and the table that stores this is missing: %s",
                view,
                error,
                extra=counted(view),
            )
            return
        self._store(handle, view, _STOPPING, error)
        known[view] = _STOPPING

    def _store(self, handle: Handle, view: View, state: str, error: str) -> None:
        """Note the state of a view that exists."""
        self._sql.run(
            handle,
            query("store_failed_view", database=self._database),
            {**view.parameters(), "state": state, "error": error},
        )

    def _note_missed(self, handle: Handle, view: View, path: str) -> None:
        """Store the first offset of each partition that the view did not get, and stop the view."""
        self._sql.run(
            handle,
            query("store_missed_block", database=self._database),
            {**view.parameters(), "path": path},
        )
        self._finish_stop(handle, view)

    def found_after_kill(self, handle: Handle, ranges: Sequence[LogRange]) -> None:
        """The table has these rows, and it is not known that their insert has ended.

        Before any other insert. Failed views lack them, all others may.
        """
        with self._lock:
            views, _ = self._views(handle)
            known = self._known_failed(handle)
            for view in known:
                self._store_offsets(handle, view, [(one, one.first) for one in ranges])
                self._finish_stop(handle, view)
            self._doubts.note(handle, views - known.keys(), ranges)

    def _finish_stop(self, handle: Handle, view: View) -> None:
        """Detach a view that has failed, now that it is stored what it misses."""
        known = self._known_failed(handle)
        if known[view] == _STOPPING:
            ((error,),) = self._sql.rows(handle, self._stored("error"), view.parameters())
            self._store(handle, view, _STOPPED, error)
            self._sql.run(handle, f"DETACH TABLE {view.quoted} PERMANENTLY")
            known[view] = _STOPPED
            log.error(
                "view %s failed and was stopped; `brokerhouse views repair %s` fills it again: %s",
                view,
                view,
                error,
                extra=counted(view),
            )

    # Repairing

    def repair(
        self,
        handle: Handle,
        view: View,
        change: Callable[[], None] | None = None,
        in_doubt: InDoubt | None = None,
    ) -> int:
        """Fill a failed view with what it missed, and attach it. The number of rows of the log.

        `change` gives the view another query, before. `in_doubt`: what becomes of records in doubt,
        if there are some. Raises `UnknownView`, `ViewInDoubt`, what `change` raises, and
        `EngineError`: also where the view would fail again, and then nothing is filled.
        """
        with self._repairs:
            with self._lock:
                is_stopped = self._check_failed(handle, view)
                doubts = self._doubts.of(handle, view)
                if doubts:
                    self._check_answer(handle, view, in_doubt)
                if change is not None and is_stopped:
                    self._change(handle, view, change)
                elif change is not None:
                    change()
            filled = 0
            if in_doubt is InDoubt.FILL and doubts:
                filled = self._fill(handle, view, doubts)
                for one in self._doubts.behind(handle, view):
                    self._doubts.forget(handle, one, doubts)  # filled with it
            self._doubts.forget(handle, view, doubts)
            if is_stopped:
                filled += self._fill_missed(handle, view)  # the most, while records come in
                with self._lock:
                    filled += self._fill_missed(handle, view)
                    self._sql.run(handle, f"ATTACH TABLE {view.quoted}")
                    self._end(handle, view)
        log.info("view %s is filled again; records that it had missed: %d", view, filled)
        return filled

    def drop(self, handle: Handle, view: View) -> None:
        """Drop a failed view, with the table of its own. Raises `UnknownView`, `EngineError`."""
        with self._repairs, self._lock:
            if self._check_failed(handle, view):
                self._sql.run(handle, f"ATTACH TABLE {view.quoted}")
                self._end(handle, view)
            self._doubts.forget(handle, view, self._doubts.of(handle, view))
            self._sql.run(handle, f"DROP TABLE IF EXISTS {view.quoted}")

    def _check_failed(self, handle: Handle, view: View) -> bool:
        """Whether the view is stopped. Raises `UnknownView` if it is not even in doubt."""
        is_stopped = view in self._known_failed(handle)
        if not is_stopped and not self._doubts.of(handle, view):
            raise UnknownView(f"no view {view} has failed")
        return is_stopped

    def _check_answer(self, handle: Handle, view: View, in_doubt: InDoubt | None) -> None:
        if in_doubt is None:
            raise ViewInDoubt(
                f"view {view} is in doubt: look whether its table has the records, then repair it"
                " with --in-doubt keep if it has them, with --in-doubt fill if it lacks them"
            )
        views, _ = self._views(handle)
        is_direct = view in views or view in self._known_failed(handle)
        if in_doubt is InDoubt.FILL and not is_direct:
            raise ViewInDoubt(
                f"view {view} does not read messages: insert the missing rows into its table by"
                " hand, then repair it with --in-doubt keep"
            )

    def _change(self, handle: Handle, view: View, change: Callable[[], None]) -> None:
        ((error,),) = self._sql.rows(handle, self._stored("error"), view.parameters())
        self._sql.run(handle, f"ATTACH TABLE {view.quoted}")
        try:
            change()
            self._store(handle, view, _STOPPED, error)
        finally:
            self._sql.run(handle, f"DETACH TABLE {view.quoted} PERMANENTLY")

    def _stored(self, columns: str) -> str:
        """A query for columns of the version of a view that counts."""
        return query("failed_view", columns=columns, database=self._database)

    def _fill_missed(self, handle: Handle, view: View) -> int:
        missed = self._missed(handle, view)
        if not missed:
            return 0
        filled = self._fill(handle, view, missed)
        self._store_offsets(handle, view, [(one, one.end) for one in missed], replace=True)
        return filled

    def _fill(self, handle: Handle, view: View, ranges: Sequence[LogRange]) -> int:
        """Fill the view with the rows of these ranges. Their number."""
        wanted = condition(ranges)
        definition, select, inner = self._definition(handle, view)
        settings = f"SETTINGS additional_table_filters = {{'{self._table}': '{wanted}'}}"
        self._sql.run(handle, f"SELECT * FROM ({select}) {settings}")  # whether it fails again
        described = self._sql.rows(handle, f"DESCRIBE ({select})")
        columns = ", ".join(quoted(row[0]) for row in described)
        into = target_of(definition) or View(view.database, inner).quoted
        self._sql.run(handle, f"INSERT INTO {into} ({columns}) SELECT * FROM ({select}) {settings}")
        rows = self._sql.rows(handle, f"SELECT count() FROM {self._table} WHERE {wanted}")
        return int(rows[0][0])

    def _definition(self, handle: Handle, view: View) -> tuple[str, str, str]:
        """The statement that made the view, its SELECT, and the name of a table of its own."""
        statement = (
            self._stored("definition, query, target")
            if view in self._known_failed(handle)
            else query("definition_of_view")
        )
        ((definition, select, inner),) = self._sql.rows(handle, statement, view.parameters())
        return definition, select, inner

    def _store_offsets(
        self,
        handle: Handle,
        view: View,
        firsts: Sequence[tuple[LogRange, int]],
        *,
        replace: bool = False,
    ) -> None:
        """Store from which offset on the view lacks a partition; `replace`: what is stored."""
        self._sql.run(
            handle,
            query("store_missed_offsets", database=self._database),
            {
                **view.parameters(),
                "replace": int(replace),
                "topics": [one.topic for one, _ in firsts],
                "ids": [one.topic_id for one, _ in firsts],
                "partitions": [str(one.partition) for one, _ in firsts],
                "firsts": [str(first) for _, first in firsts],
            },
        )

    def _missed(self, handle: Handle, view: View) -> list[LogRange]:
        """What there is in the table now that the view does not have."""
        rows = self._sql.rows(
            handle,
            query("missed_ranges", database=self._database, partition_key=PARTITION_KEY),
            view.parameters(),
        )
        return [LogRange(*row) for row in rows]

    def _end(self, handle: Handle, view: View) -> None:
        """The view is filled again."""
        self._store(handle, view, _ENDED, "")
        self._sql.run(
            handle,
            query("forget_missed_offsets", database=self._database),
            view.parameters(),
        )
        self._known_failed(handle).pop(view, None)


class FailedViews:
    """The same for callers on an event loop."""

    def __init__(self, guard: ViewGuard, open_handle: Callable[[], Handle]) -> None:
        """`open_handle`: a handle with all privileges."""
        self._guard = guard
        self._open_handle = open_handle

    async def found_after_kill(self, ranges: Sequence[LogRange]) -> None:
        """See `ViewGuard.found_after_kill`."""
        await asyncio.to_thread(self._with_handle, self._guard.found_after_kill, ranges)

    async def repair(
        self,
        database: str,
        name: str,
        change: Callable[[], None] | None = None,
        in_doubt: InDoubt | None = None,
    ) -> int:
        """See `ViewGuard.repair`."""
        repair = partial(self._guard.repair, change=change, in_doubt=in_doubt)
        return await asyncio.to_thread(self._with_handle, repair, View(database, name))

    async def drop(self, database: str, name: str) -> None:
        """See `ViewGuard.drop`."""
        await asyncio.to_thread(self._with_handle, self._guard.drop, View(database, name))

    def _with_handle(self, work: Callable[[Handle, A], T], argument: A) -> T:
        handle = self._open_handle()
        try:
            return work(handle, argument)
        finally:
            handle.close()
