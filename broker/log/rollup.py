"""Counts the log into `partition_minutes`, once a minute, for the views on top of it.

What holds:
* Every row of a live topic is counted once. A window is one insert and one part, and where the
  last one ended is read from the table itself: what a crash cuts off was never there.
* A window is counted when no row can come into it any more. Rows carry the wall clock, which can
  be set back, so the appender is told first: from now on no row below this time.
* With several brokers one counts for all (`counts`), and every broker keeps the promise: a minute
  is counted when all have said that no row can come into it (`NotYet` otherwise). Whoever counts
  next uses the same token for the same window, so a window that two begin is counted once.
* A clock that was years ahead, and is put right, does not hold append_time for years: minutes that
  are still to come are taken out of the table, and counted when they are over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from uuid import uuid4

from storage.engine import Engine, EngineError

log = logging.getLogger(__name__)

_MINUTE_MS = 60_000
_DAY_MINUTES = 24 * 60
_DELAY_MS = 1_000  # into a minute, before the last one is counted
_CLOCK_TOLERANCE_MS = 5 * _MINUTE_MS  # how far append_time may stay ahead of the clock
_WINDOW_ROWS = 1_000_000  # partitions times minutes: what a window may take in memory

# The settings make it one block, however many rows it has.
_COUNT = """
    INSERT INTO partition_minutes
        (topic, topic_id, partition, minute, records, bytes, min_offset, max_offset,
         first_append_time, last_append_time)
    WITH
        fromUnixTimestamp64Milli({start_ms:Int64}, 'UTC') AS start_time,
        fromUnixTimestamp64Milli({end_ms:Int64}, 'UTC') AS end_time
    SELECT
        topic, topic_id, partition, toStartOfMinute(append_time) AS minute, count(),
        sum(ifNull(length(key), 0) + ifNull(length(value), 0)), min(offset), max(offset),
        min(append_time), max(append_time)
    FROM messages
    WHERE append_time >= start_time AND append_time < end_time
        AND topic_id IN (SELECT topic_id FROM topics)
    GROUP BY topic, topic_id, partition, minute
    UNION ALL
    SELECT
        '', toUUID('00000000-0000-0000-0000-000000000000'), -1,
        toDateTime(end_time - INTERVAL 1 MINUTE, 'UTC'), 0, 0, 0, -1, end_time, end_time
    SETTINGS max_threads = 1, max_insert_threads = 1, min_insert_block_size_bytes = 0,
        min_insert_block_size_rows = 1000000000, insert_deduplication_token = '%s'
"""


class NotYet(Exception):
    """Another broker may still write rows of the minutes that are over."""


def _always() -> bool:
    return True


class Rollup:
    """Keeps `partition_minutes` up to the last full minute."""

    def __init__(
        self,
        engine: Engine,
        no_row_before: Callable[[int], Awaitable[None]],
        clock_ms: Callable[[], int],
        counts: Callable[[], bool] = _always,
    ) -> None:
        """`no_row_before(t)` returns when no row with an append_time below `t` can come any more.

        A later call with a lower time takes back what an earlier one promised. It raises `NotYet`
        where that is for other brokers to say. `counts`: whether this is the broker that counts.
        """
        self._engine = engine
        self._no_row_before = no_row_before
        self._clock_ms = clock_ms
        self._counts = counts
        self._taken_back = ""
        self.task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Keep new rows out of the minutes that are counted. Before the first append.

        Raises `EngineError`.
        """
        await self._no_row_before(await self.counted_until() or 0)

    def start(self) -> None:
        """Count from now on. `task` ends only by a defect."""
        self.task = asyncio.create_task(self._run(), name="rollup")

    async def close(self) -> None:
        """Stop. The window that is being counted is counted."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])

    async def count(self) -> None:
        """Count all minutes that are over and not counted yet. Raises `EngineError`."""
        await self._forget_deleted_topics()
        counted = await self.counted_until()
        now_ms = self._clock_ms()
        end = now_ms - now_ms % _MINUTE_MS
        if counted is not None and counted >= end:
            await self._no_row_before(counted)
            return
        await self._no_row_before(end)
        step = await self._window_ms()
        start = counted
        if start is None or end - start > step:
            start = await self._first_minute(start or 0, end)
        while start < end:
            until = min(start + step, end)
            await self._count_window(start, until)
            if await self._last_minute() != until:
                return  # another broker counted a window from here: the next round goes on from it
            start = until

    async def _run(self) -> None:
        while True:
            try:
                if self._counts():
                    await self.count()
            except NotYet as error:
                log.info("the log is counted later: %s", error)
            except EngineError as error:
                log.error("the log could not be counted, again in a minute: %s", error)
            left_ms = _MINUTE_MS - self._clock_ms() % _MINUTE_MS
            await asyncio.sleep((left_ms + _DELAY_MS) / 1000)

    async def _count_window(self, start_ms: int, end_ms: int) -> None:
        # As a window begins where the stored one before it ended, one that failed and may be stored
        # all the same is repeated with the same token, and a new one never has an old token.
        token = f"minutes-{self._taken_back}{start_ms}"
        await self._engine.execute(_COUNT % token, {"start_ms": start_ms, "end_ms": end_ms})

    async def counted_until(self) -> int | None:
        """Up to where the log is counted, in ms; None before the first time."""
        counted = await self._last_minute()
        now_ms = self._clock_ms()
        if counted is None or counted <= now_ms + _CLOCK_TOLERANCE_MS:
            return counted
        log.warning(
            "the clock is %d s behind the last minute that was counted: that was ahead of its time"
            " and is counted again when it is over",
            (counted - now_ms) // 1000,
        )
        await self._engine.execute(
            "ALTER TABLE partition_minutes DELETE"
            " WHERE minute >= toStartOfMinute(fromUnixTimestamp64Milli({now_ms:Int64}, 'UTC'))"
            " SETTINGS mutations_sync = 1",
            {"now_ms": now_ms},
        )
        self._taken_back = f"{uuid4()}-"
        return await self._last_minute()

    async def _last_minute(self) -> int | None:
        """The end of the last minute in the table."""
        rows = await self._engine.rows(
            "SELECT toUnixTimestamp(max(minute)) AS last FROM partition_minutes HAVING last > 0"
        )
        return rows[0][0] * 1000 + _MINUTE_MS if rows else None

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
            return end_ms - _MINUTE_MS
        first: int = rows[0][0]
        return first - first % _MINUTE_MS

    async def _window_ms(self) -> int:
        """How much is counted at once: up to a day, less where there are many partitions."""
        rows = await self._engine.rows("SELECT sum(partitions) FROM topics")
        partitions: int = rows[0][0]
        minutes = _WINDOW_ROWS // max(partitions, 1)
        return min(max(minutes, 1), _DAY_MINUTES) * _MINUTE_MS

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
                {"gone": sorted({str(topic_id) for (topic_id,) in rows})},
            )
