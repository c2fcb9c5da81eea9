"""Counts the log into `partition_minutes`, once a minute; several views are built on that table.

What must hold:
* Every row of a live topic is counted once. A window of minutes is counted by one insert, which is
  one part, and the table itself tells where the last window ended: a window that a crash interrupts
  is not stored.
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
from typing import Protocol
from uuid import uuid4

from common.clock import DAY_MS, MINUTE_MS, SECOND_MS
from common.tasks import Periodic
from sql.queries import query
from storage.engine import Engine, EngineError

log = logging.getLogger(__name__)

_DAY_MINUTES = DAY_MS // MINUTE_MS
_DELAY_MS = 1_000  # after a minute ends, before it is counted
_CLOCK_TOLERANCE_MS = 5 * MINUTE_MS  # how far append_time may stay ahead of the clock
_WINDOW_ROWS = 1_000_000  # partitions times minutes: limits the memory that a window needs

ROW_BYTES = "ifNull(length(key), 0) + ifNull(length(value), 0)"
"""Bytes of key and value of a row, for every ClickHouse from 24.8 on."""
ROW_BYTES_BY_SIZES = "ifNull(key.size, 0) + ifNull(value.size, 0)"
"""The same for the ClickHouse that is in chDB, which stores the sizes of strings apart: the values
are not read (measured: 0.11 instead of 0.26 us of CPU for a row of 100 bytes)."""


class NotYet(Exception):
    """Another broker may still write rows of the minutes that are over."""


class AppendTimes(Protocol):
    """Assigns the append_time of rows."""

    async def no_row_before(self, time_ms: int) -> None:
        """Returns when no row can get an append_time below `time_ms` any more.

        A later call with a lower time replaces the promise of an earlier one. Raises `NotYet`
        where other brokers have not promised it.
        """


class CountedMinutes:
    """Up to which minute the log of one ClickHouse is counted."""

    def __init__(self, engine: Engine, clock_ms: Callable[[], int]) -> None:
        self._engine = engine
        self._clock_ms = clock_ms
        self.token_prefix = "minutes-"

    async def end_ms(self) -> int | None:
        """The end of the last counted minute; None before the first time. Raises `EngineError`.

        Minutes that lie in the future are deleted first, because the clock was ahead.
        """
        counted = await self.last_end_ms()
        now_ms = self._clock_ms()
        if counted is None or counted <= now_ms + _CLOCK_TOLERANCE_MS:
            return counted
        log.warning(
            "the clock is %d s behind the last minute that was counted, so it was ahead then;"
            " minutes that lie in the future are counted again when they are over",
            (counted - now_ms) // SECOND_MS,
        )
        await self._engine.execute(
            "ALTER TABLE partition_minutes DELETE"
            " WHERE minute >= toStartOfMinute(fromUnixTimestamp64Milli({now_ms:Int64}, 'UTC'))"
            " SETTINGS mutations_sync = 1",
            {"now_ms": now_ms},
        )
        # The tokens of the windows that were deleted are still known.
        self.token_prefix = f"minutes-{uuid4()}-"
        return await self.last_end_ms()

    async def last_end_ms(self) -> int | None:
        """The end of the last minute in the table."""
        rows = await self._engine.rows(
            "SELECT toUnixTimestamp(max(minute)) AS last FROM partition_minutes HAVING last > 0"
        )
        return rows[0][0] * SECOND_MS + MINUTE_MS if rows else None


class Rollup(Periodic):
    """Keeps `partition_minutes` up to the last full minute."""

    def __init__(
        self,
        engine: Engine,
        appends: AppendTimes,
        clock_ms: Callable[[], int],
        row_bytes: str = ROW_BYTES,
    ) -> None:
        super().__init__("rollup", self._pause_s, self._count_or_log, at_once=True)
        self._engine = engine
        self._appends = appends
        self._clock_ms = clock_ms
        self._counted = CountedMinutes(engine, clock_ms)
        self._row_bytes = row_bytes
        self._complete_ms: int | None = None

    def is_complete(self) -> bool:
        """Whether all minutes that are over were counted when this was done last."""
        return self._complete_ms == self._end_ms()

    async def open(self) -> None:
        """Keep new rows out of the minutes that are counted. Must precede the first append.

        Raises `EngineError`.
        """
        await self._appends.no_row_before(await self._counted.end_ms() or 0)

    async def count(self) -> None:
        """Count all minutes that are over and not counted yet. Raises `EngineError` and `NotYet`.

        If the caller is cancelled, the window that is being counted is still stored.
        """
        await self._forget_deleted_topics()
        counted = await self._counted.end_ms()
        end = self._end_ms()
        if counted is not None and counted >= end:
            await self._appends.no_row_before(counted)
            self._complete_ms = end
            return
        await self._appends.no_row_before(end)
        step = await self._window_ms()
        start = counted
        if start is None or end - start > step:
            start = await self._first_minute(start or 0, end)
        while start < end:
            until = min(start + step, end)
            await self._count_window(start, until)
            if await self._counted.last_end_ms() != until:
                return  # another broker counted a window from here: the next round continues
            start = until
        self._complete_ms = end

    def _end_ms(self) -> int:
        """The end of the last minute that is over."""
        now_ms = self._clock_ms()
        return now_ms - now_ms % MINUTE_MS

    async def _count_or_log(self) -> None:
        try:
            await self.count()
        except NotYet as error:
            log.info("counting the log is postponed: %s", error)
        except EngineError as error:
            log.error("the log could not be counted; retrying in a minute: %s", error)

    def _pause_s(self) -> float:
        left_ms = MINUTE_MS - self._clock_ms() % MINUTE_MS
        return (left_ms + _DELAY_MS) / SECOND_MS

    async def _count_window(self, start_ms: int, end_ms: int) -> None:
        # A window begins where the stored one before it ended. So an insert that failed, but may be
        # stored, is repeated with the same token, and a new window never has an old token.
        token = f"{self._counted.token_prefix}{start_ms}"
        await self._engine.execute(
            query("count_minutes", token=token, row_bytes=self._row_bytes),
            {"start_ms": start_ms, "end_ms": end_ms},
        )

    async def _first_minute(self, start_ms: int, end_ms: int) -> int:
        """The first minute in this time that has rows; the last minute when none has."""
        rows = await self._engine.rows(
            "SELECT toUnixTimestamp64Milli(min(append_time)) FROM messages"
            " WHERE append_time >= fromUnixTimestamp64Milli({start_ms:Int64}, 'UTC')"
            " AND append_time < fromUnixTimestamp64Milli({end_ms:Int64}, 'UTC')"
            " HAVING count() > 0",
            {"start_ms": start_ms, "end_ms": end_ms},
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
        rows = await self._engine.rows(
            "SELECT topic_id FROM partition_minutes"
            " WHERE topic != '' AND topic_id NOT IN (SELECT topic_id FROM topics)"
            " GROUP BY topic, topic_id, partition"
        )
        if rows:
            await self._engine.execute(
                "ALTER TABLE partition_minutes DELETE WHERE has({gone:Array(UUID)}, topic_id)"
                " SETTINGS mutations_sync = 1",
                {"gone": sorted({topic_id for (topic_id,) in rows})},
            )
