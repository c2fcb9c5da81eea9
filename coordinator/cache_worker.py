"""The worker of the shared cache keeps groups and offsets up to date in the background.

Every few seconds it reads the rows that other brokers have stored, and writes the heartbeats that
this broker has received. If a client asks about a group of another broker, it reads sooner: see
`read_anew`. Every hour it removes deleted rows from the tables."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from common.tasks import Outage, event_within
from coordinator.membership import SharedCache
from coordinator.offsets import CommittedOffsets
from storage.engine import EngineError

log = logging.getLogger(__name__)

_CLEAN_UP_EVERY_S = 3600.0
_RECENT_S = 0.5
_READ_LIMIT_S = 1.0


class CacheWorker:
    """Keeps the cache up to date with other brokers, and writes heartbeats.

    It keeps `offsets` up to date too.
    """

    def __init__(
        self,
        cache: SharedCache,
        offsets: CommittedOffsets,
        serves_all: Callable[[], bool],
        poll_s: float = 5.0,
        heartbeats_s: float = 5.0,
    ) -> None:
        """`serves_all`: whether no other broker stores anything, so that nothing is read."""
        self.task: asyncio.Task[None] | None = None
        self._cache = cache
        self._offsets = offsets
        self._serves_all = serves_all
        self._poll_s = poll_s
        self._heartbeats = _Interval(heartbeats_s)
        self._clean_up = _Interval(_CLEAN_UP_EVERY_S)
        self._closing = asyncio.Event()
        self._reading = asyncio.Lock()
        self._read_s = -_RECENT_S
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

    async def read_anew(self) -> None:
        """Read what other brokers had stored half a second ago, unless that has been read already.

        If that fails or takes long, what was read before has to do.
        """
        try:
            async with asyncio.timeout(_READ_LIMIT_S):
                await self._read()
        except (TimeoutError, EngineError) as error:
            self._outage.failed(error)

    async def _read(self) -> None:
        async with self._reading:
            began_s = time.monotonic()
            if began_s - self._read_s >= _RECENT_S:
                await self._cache.refresh()
                self._read_s = began_s

    async def _read_all(self) -> None:
        async with self._reading:
            began_s = time.monotonic()
            if await self._cache.refresh():
                await self._offsets.refresh()
            self._read_s = began_s

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
        if not self._serves_all():
            await self._read_all()
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
