"""What a broker runs on one shard: the lanes that write to it, and the groups stored on it.

The appender belongs to one session of the broker: its tokens carry the session's id, and it is
abandoned when that session ends. Everything else outlives sessions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from uuid import uuid4

from broker.config import Settings
from broker.log.appender import Appender
from broker.log.rollup import Rollup
from broker.log.tail_cache import TailCache
from broker.log.write_lease import SessionWriteLease
from broker.wiring import append_limits, group_coordinator
from common.clock import wall_ms
from storage.engine import Engine, EngineError
from storage.row_lane import RowLane


@dataclass(slots=True)
class Writing:
    """The appender of a session. For what it promises see `ShardHost.floor_ms`."""

    session_id: int
    appender: Appender
    lease: Callable[[], bool]


class ShardHost:
    """One shard, as this broker uses it."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        settings: Settings,
        cache: TailCache,
        keeps_house: Callable[[], bool],
    ) -> None:
        """`keeps_house`: whether this broker is the one that does what one has to do for all."""
        self.name = name
        self.engine = engine
        self._settings = settings
        self._cache = cache
        self.keeps_house = keeps_house
        self.rows = RowLane(engine, settings.lanes, uuid4(), self._lasts)
        self.groups = group_coordinator(settings, engine, self.rows, self._lasts, keeps_house)
        self.writing: Writing | None = None
        self._floor_ms = 0
        self._beginning = asyncio.Lock()

    @property
    def appender(self) -> Appender | None:
        return None if self.writing is None else self.writing.appender

    @property
    def resolved(self) -> tuple[int, ...]:
        """For each lane, how many of its block numbers are known to be used up."""
        appender = self.appender
        return (0,) * self._settings.lanes if appender is None else appender.resolved

    def floor_ms(self) -> int:
        """A promise: no row of this session comes below this append_time from now on."""
        appender = self.appender
        found = wall_ms() if appender is None else appender.append_floor_ms()
        self._floor_ms = max(self._floor_ms, found)
        return self._floor_ms

    async def begin(
        self, session_id: int, lease: Callable[[], bool], days: Callable[[], range]
    ) -> None:
        """Have an appender of this session; see `SessionWriteLease`. Raises `EngineError`."""
        async with self._beginning:  # two would use the same tokens
            if self.writing is None or self.writing.session_id != session_id:
                self.writing = await self._begun(session_id, lease, days)

    async def _begun(
        self, session_id: int, lease: Callable[[], bool], days: Callable[[], range]
    ) -> Writing:
        counted = await Rollup(self.engine, _no_promise, wall_ms).counted_until()
        appender = Appender(
            self.engine,
            self._cache,
            self._settings.lanes,
            append_limits(self._settings),
            SessionWriteLease(session_id, lease, days),
        )
        self._floor_ms = max(self._floor_ms, counted or 0)
        await appender.no_row_before(self._floor_ms)
        if not lease():
            raise EngineError("the session ended before its first record")
        appender.start()
        return Writing(session_id, appender, lease)

    def abandon(self) -> None:
        """The session is over: nothing of it is sent any more."""
        if self.writing is not None:
            self.writing.appender.abandon()
            self.writing = None
        self.groups.abandon()

    async def no_row_before(self, time_ms: int) -> None:
        """This broker's part of the promise that the roll-up needs."""
        if self.appender is not None:
            await self.appender.no_row_before(max(self._floor_ms, time_ms))
        # Only now: a block that was on its way is of an earlier time, and a fence has to know.
        self._floor_ms = max(self._floor_ms, time_ms)

    async def close(self) -> None:
        """ShardHost what is queued, then stop."""
        await self.groups.close()
        await self.rows.close()
        if self.appender is not None:
            await self.appender.close()

    def _lasts(self) -> bool:
        return self.writing is not None and self.writing.lease()


async def _no_promise(_time_ms: int) -> None:
    """For a roll-up that is only asked up to where it has counted."""
