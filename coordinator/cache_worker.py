"""The worker of the shared cache: it keeps groups and offsets up to date in the background.

Every half second it reads what other brokers have stored. Every few seconds it writes the
heartbeats that this broker has heard, and every hour it drops rows that are deleted."""

from __future__ import annotations

import asyncio
import logging
import time

from common.tasks import Outage, event_within
from coordinator.membership import SharedCache
from coordinator.offsets import CommittedOffsets
from storage.engine import EngineError

log = logging.getLogger(__name__)

_CLEAN_UP_EVERY_S = 3600.0


class CacheWorker:
    """Keeps the cache up to date with other brokers, and writes heartbeats.

    It keeps `offsets` up to date too.
    """

    def __init__(
        self,
        cache: SharedCache,
        offsets: CommittedOffsets,
        *,
        poll_s: float = 0.5,
        heartbeats_s: float = 5.0,
    ) -> None:
        self.task: asyncio.Task[None] | None = None
        self._cache = cache
        self._offsets = offsets
        self._poll_s = poll_s
        self._heartbeats = _Interval(heartbeats_s)
        self._clean_up = _Interval(_CLEAN_UP_EVERY_S)
        self._closing = asyncio.Event()
        self._outage = Outage(
            log, "groups are not up to date; retrying", "groups are up to date again"
        )

    def start(self) -> None:
        """`task` runs until `close`, and ends earlier only because of a bug."""
        self.task = asyncio.create_task(self._run(), name="shared-cache")

    async def close(self) -> None:
        """Write the heartbeats that are left, then stop."""
        self._closing.set()
        if self.task is not None:
            await self.task

    async def _run(self) -> None:
        self._heartbeats.restart()
        self._clean_up.restart()
        while not await event_within(self._closing, self._poll_s):
            try:
                await self._round()
            except EngineError as error:
                self._outage.failed(error)
            else:
                self._outage.worked()
        try:
            await self._cache.heartbeats.write()
        except EngineError as error:
            log.error("the last heartbeats could not be written: %s", error)

    async def _round(self) -> None:
        if await self._cache.refresh():
            await self._offsets.refresh()
        if self._heartbeats.is_over():
            await self._cache.heartbeats.write()
        if self._clean_up.is_over():
            await self._cache.clean_up()


class _Interval:
    """A time interval that repeats."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.restart()

    def restart(self) -> None:
        self._ends_at = time.monotonic() + self._seconds

    def is_over(self) -> bool:
        """Whether the interval is over. If it is, the next one begins."""
        if time.monotonic() < self._ends_at:
            return False
        self.restart()
        return True
