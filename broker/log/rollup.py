"""Counts the log into `partition_minutes`, once a minute; several views are built on that table.

Views read what is not counted yet from the log. So that this is never much, the minute that is not
over is counted in parts, into `partition_seconds`: each as soon as it has ten million rows, or four
million when few rows come, because counting slows producers that keep every core busy. When the
minute is over, its parts are added up, so no row is read twice for that.

What must hold:
* Every row of a live topic is counted once. A window of minutes, or within a minute, is counted by
  one insert, which is one part, and the tables tell where the last window ended: a window that a
  crash interrupts is not stored.
* Windows in `partition_seconds` are of the first minute that `partition_minutes` does not have.
  They begin with that minute and leave no gap, and are deleted minutes after it is counted, and
  all of a minute together: a query that began before still finds them.
* A window is counted when no more rows can be added to it. Rows carry the wall clock, which can be
  set back, so the appender first promises that no new row is older than the end of the window.
* In a cluster one broker counts for a whole shard, and every broker keeps the promise: a minute is
  counted when all have promised to write no more rows into it (`NotYet` otherwise). The broker
  that counts next uses the same token for the same window, so a window that two brokers begin is
  counted once.
* A clock that was years ahead and is set right must not hold append_time back for years: minutes
  that lie in the future are deleted from the table, and counted again when they are over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

from brokerhouse.common.clock import DAY_MS, MINUTE_MS, SECOND_MS
from brokerhouse.common.tasks import Periodic
from brokerhouse.sql.queries import query
from brokerhouse.storage.engine import Engine, EngineError
from brokerhouse.storage.schema_files import ROW_BYTES

log = logging.getLogger(__name__)

_DAY_MINUTES = DAY_MS // MINUTE_MS
_DELAY_MS = 1_000  # after a minute ends, before it is counted
_CLOCK_TOLERANCE_MS = 5 * MINUTE_MS  # how far append_time may stay ahead of the clock
_WINDOW_ROWS = 1_000_000  # partitions times minutes: limits the memory that a window needs
_LOOK_MS = 1_000  # how often the number of new rows is looked at
_MANY_NEW_ROWS = 10_000_000
"""So many new rows are counted even while many more come. Counting them takes more than a second of
a core, which a burst that is over sooner does not pay meanwhile."""
_MANY_WHEN_QUIET = 4_000_000
"""So many new rows are counted when few come."""
_FEW_ROWS = 200_000  # from one look to the next: a broker that takes so many has cores to spare
_SECONDS_KEPT_MS = 10 * MINUTE_MS  # after their minute: longer than a query takes to begin


class NotYet(Exception):
    """Another broker may still write rows of the minutes that are over."""


class AppendTimes(Protocol):
    """Assigns the append_time of rows."""

    async def no_row_before(self, time_ms: int) -> None:
        """Returns when no row can get an append_time below `time_ms` any more.

        A later call with a lower time replaces the promise of an earlier one. Raises `NotYet`
        where other brokers have not promised it.
        """


class NewRows(Protocol):
    """Looks how many rows are new, without reading the log."""

    def begin(self, time_ms: int) -> None:
        """From now on no row gets an append_time below `time_ms`."""

    async def since(self, time_ms: int) -> int:
        """Rows with an append_time from `time_ms` on, or fewer."""


class AppendedRows:
    """`NewRows` of the only broker: what it has appended since no row can be older."""

    def __init__(self, appended: Callable[[], int]) -> None:
        self._appended = appended
        self._before: dict[int, int] = {}

    def begin(self, time_ms: int) -> None:
        self._before.setdefault(time_ms, self._appended())

    async def since(self, time_ms: int) -> int:
        self.begin(time_ms)
        self._before = {time: rows for time, rows in self._before.items() if time >= time_ms}
        return self._appended() - self._before[time_ms]


class PartRows:
    """`NewRows` of a shard that several brokers write to, by the parts without older rows.

    The shard is asked when a number of `blocks` has changed: those that each broker has stored.
    """

    def __init__(self, engine: Engine, blocks: Callable[[], object]) -> None:
        self._engine = engine
        self._blocks = blocks
        self._asked: tuple[int, object] | None = None
        self._rows = 0

    def begin(self, time_ms: int) -> None:
        """The shard knows what it has."""

    async def since(self, time_ms: int) -> int:
        asked = (time_ms, self._blocks())
        if asked != self._asked:
            rows = await self._engine.rows(query("rows_since"), {"time_ms": time_ms})
            self._rows, self._asked = rows[0][0], asked
        return self._rows


@dataclass(frozen=True, slots=True)
class CountedUntil:
    """How far the log is counted: every row before `until_ms`, whole minutes before `minutes_ms`.

    0: not at all.
    """

    minutes_ms: int
    until_ms: int


class CountedMinutes:
    """Up to which time the log of one ClickHouse is counted."""

    def __init__(self, engine: Engine, clock_ms: Callable[[], int]) -> None:
        self._engine = engine
        self._clock_ms = clock_ms
        self.token_prefix = "minutes-"

    async def ends(self) -> CountedUntil:
        """How far the log is counted. Raises `EngineError`.

        What lies in the future is deleted first, because the clock was ahead.
        """
        counted = await self.stored_ends()
        now_ms = self._clock_ms()
        if counted.until_ms <= now_ms + _CLOCK_TOLERANCE_MS:
            return counted
        log.warning(
            "the clock was set back by %d s; minutes after now are counted again when they end",
            (counted.until_ms - now_ms) // SECOND_MS,
        )
        # In this order: windows of a minute that is not counted any more would leave gaps.
        for table in ("partition_seconds", "partition_minutes"):
            await self._engine.execute(
                query("delete_future_minutes", table=table), {"now_ms": now_ms}
            )
        # The tokens of the windows that were deleted are still known.
        self.token_prefix = f"minutes-{uuid4()}-"
        return await self.stored_ends()

    async def stored_ends(self) -> CountedUntil:
        """The same, whatever time it is."""
        ((last_s, seconds_ms),) = await self._engine.rows(query("counted_until"))
        if last_s == 0:
            return CountedUntil(0, 0)
        minutes_ms = last_s * SECOND_MS + MINUTE_MS
        return CountedUntil(minutes_ms, max(minutes_ms, seconds_ms))


class Rollup(Periodic):
    """Keeps `partition_minutes` up to the last full minute, `partition_seconds` near to now.

    `late_ms`: how old the promises of other brokers may be.
    """

    def __init__(
        self,
        engine: Engine,
        appends: AppendTimes,
        clock_ms: Callable[[], int],
        new_rows: NewRows,
        row_bytes: str = ROW_BYTES,
        late_ms: int = 0,
        counted: CountedMinutes | None = None,
    ) -> None:
        """`counted`: what the appender was started with, if that is in this process."""
        super().__init__("rollup", self._pause_s, self._count_or_log, at_once=True)
        self._engine = engine
        self._appends = appends
        self._clock_ms = clock_ms
        self._counted = counted or CountedMinutes(engine, clock_ms)
        self._new_rows = new_rows
        self._row_bytes = row_bytes
        self._late_ms = late_ms
        self._until_ms = 0
        self._seen_rows = 0
        self._complete_ms: int | None = None

    def is_complete(self) -> bool:
        """Whether all minutes that are over were counted when this was done last."""
        return self._complete_ms == self._end_ms()

    async def count(self) -> None:
        """Count all minutes that are over and not counted yet. Raises `EngineError` and `NotYet`.

        If the caller is cancelled, the window that is being counted is still stored.
        """
        await self._forget_deleted_topics()
        counted = await self._counted.ends()
        end = self._end_ms()
        if counted.minutes_ms >= end:
            await self._appends.no_row_before(counted.until_ms)
            await self._note(counted, end)
            return
        await self._no_row_before(end)
        step = await self._window_ms()
        start, counted_ms = counted.minutes_ms, counted.until_ms
        if end - start > step:
            start = await self._first_minute(start, end)
        while start < end:
            until = min(start + step, end)
            await self._count_window(start, until, max(start, counted_ms))
            if (await self._counted.stored_ends()).minutes_ms != until:
                return  # another broker counted a window from here: the next round continues
            start = until
        await self._note(CountedUntil(end, end), end)
        await self._drop_seconds(end - _SECONDS_KEPT_MS)

    async def count_new(self) -> None:
        """Count what is new of the minute that is not over, if that is much and it is time to.

        Does nothing if a whole minute is not counted yet, or while another broker may still write
        rows of that time. Raises `EngineError`.
        """
        if self._until_ms == 0 or not await self._are_many_new():
            return
        counted = await self._counted.ends()
        end = self._clock_ms() - self._late_ms
        end -= end % SECOND_MS
        if counted.minutes_ms != self._end_ms() or end <= counted.until_ms:
            return
        try:
            await self._no_row_before(end)
        except NotYet:
            return
        await self._engine.execute(
            query(
                "count_seconds",
                token=f"{self._counted.token_prefix}{counted.until_ms}",
                row_bytes=self._row_bytes,
            ),
            {"minute_ms": counted.minutes_ms, "start_ms": counted.until_ms, "end_ms": end},
        )
        # If the window of another broker was stored instead, the next call finds its end.
        await self._note(CountedUntil(counted.minutes_ms, end), counted.minutes_ms)

    async def _note(self, counted: CountedUntil, complete_ms: int) -> None:
        self._until_ms, self._complete_ms = counted.until_ms, complete_ms
        self._seen_rows = await self._new_rows.since(self._until_ms)

    async def _no_row_before(self, time_ms: int) -> None:
        await self._appends.no_row_before(time_ms)
        self._new_rows.begin(time_ms)

    async def _are_many_new(self) -> bool:
        rows = await self._new_rows.since(self._until_ms)
        came, self._seen_rows = rows - self._seen_rows, rows
        return rows >= (_MANY_WHEN_QUIET if came < _FEW_ROWS else _MANY_NEW_ROWS)

    def _is_due(self) -> bool:
        """Whether a minute has been over for a moment and is not counted."""
        return self._complete_ms != _minute_of(self._clock_ms() - _DELAY_MS)

    def _end_ms(self) -> int:
        """The end of the last minute that is over."""
        return _minute_of(self._clock_ms())

    async def _count_or_log(self) -> None:
        try:
            await (self.count() if self._is_due() else self.count_new())
        except NotYet as error:
            log.info("cannot count the log yet, retrying in a minute: %s", error)
        except EngineError as error:
            log.error("cannot count the log; retrying in a minute: %s", error)

    def _pause_s(self) -> float:
        left_ms = MINUTE_MS - self._clock_ms() % MINUTE_MS
        pause_ms = left_ms + _DELAY_MS
        return (pause_ms if self._is_due() else min(pause_ms, _LOOK_MS)) / SECOND_MS

    async def _count_window(self, start_ms: int, end_ms: int, from_ms: int) -> None:
        """`from_ms`: what is older is counted in `partition_seconds`."""
        # A window begins where the stored one before it ended. So an insert that failed, but may be
        # stored, is repeated with the same token, and a new window never has an old token.
        token = f"{self._counted.token_prefix}{start_ms}"
        await self._engine.execute(
            query("count_minutes", token=token, row_bytes=self._row_bytes),
            {"start_ms": start_ms, "end_ms": end_ms, "from_ms": from_ms},
        )

    async def _drop_seconds(self, before_ms: int) -> None:
        """Drop the windows of minutes before this time, all of a minute together."""
        rows = await self._engine.rows(
            query("minutes_in_seconds"), {"before_s": before_ms // SECOND_MS}
        )
        for (minute,) in rows:
            await self._engine.execute(
                f"ALTER TABLE partition_seconds DROP PARTITION ID '{minute}'"
            )

    async def _first_minute(self, start_ms: int, end_ms: int) -> int:
        """The first minute in this time that has rows; the last minute when none has."""
        rows = await self._engine.rows(
            query("first_append_time"), {"start_ms": start_ms, "end_ms": end_ms}
        )
        if not rows:
            return end_ms - MINUTE_MS
        first: int = rows[0][0]
        return first - first % MINUTE_MS

    async def _window_ms(self) -> int:
        """How much is counted at once: up to a day, less where there are many partitions."""
        rows = await self._engine.rows("SELECT sum(partitions) FROM topics")
        partitions: int = rows[0][0]
        minutes = _WINDOW_ROWS // max(partitions, 1)
        return min(max(minutes, 1), _DAY_MINUTES) * MINUTE_MS

    async def _forget_deleted_topics(self) -> None:
        rows = await self._engine.rows(query("deleted_topics_in_minutes"))
        if rows:
            await self._engine.execute(
                query("forget_minutes_of_topics"),
                {"gone": sorted({topic_id for (topic_id,) in rows})},
            )


def _minute_of(time_ms: int) -> int:
    return time_ms - time_ms % MINUTE_MS
