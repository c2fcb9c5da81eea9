"""Queries of cold reads that stay open between one segment of a partition and the next.

To begin a query costs as much as to read 40,000 small records (6 ms of CPU, measured). So a query
that has given a segment is not ended: it waits here until the next segment is wanted, which it
continues. It sees the table as it was when it began, and never goes past the end that it began
with. It is closed when nobody has continued it for a while, when too many others wait, or when rows
of its partition have been removed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from broker.log.partition import PartitionLog
from common.counted_lines import counted
from storage.engine import EngineError, NativeBlock

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class OpenRead:
    """A query of one partition that has not given all its rows."""

    partition: PartitionLog
    position: int
    """It has given all rows below this offset."""
    end: int
    """It gives no row from this offset on."""
    chunks: AsyncGenerator[NativeBlock, None]


_KEPT_MAX = 4
"""Queries that wait. Each keeps a reader of the engine."""
_KEPT_S = 1.0
"""So long a consumer may take to ask for more."""


class OpenReads:
    """The queries that wait, the one that has waited longest first."""

    def __init__(self) -> None:
        self._waiting: dict[OpenRead, asyncio.TimerHandle] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def take(self, partition: PartitionLog, offset: int) -> OpenRead | None:
        """The query that goes on at `offset`; it belongs to the caller then."""
        for read, timer in self._waiting.items():
            if read.partition is partition and read.position == offset:
                timer.cancel()
                del self._waiting[read]
                return read
        return None

    def keep(self, read: OpenRead) -> None:
        """Keep a query that can be continued, for some time."""
        loop = asyncio.get_running_loop()
        self._waiting[read] = loop.call_later(_KEPT_S, self._end, read)
        if len(self._waiting) > _KEPT_MAX:
            self._end(next(iter(self._waiting)))

    def forget(self, partition: PartitionLog) -> None:
        for read in [read for read in self._waiting if read.partition is partition]:
            self._end(read)

    def close_soon(self, read: OpenRead) -> None:
        """Close a query that is not kept here."""
        task = asyncio.create_task(_close(read))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        for read in tuple(self._waiting):
            self._end(read)
        await asyncio.gather(*self._closing)

    def _end(self, read: OpenRead) -> None:
        self._waiting.pop(read).cancel()
        self.close_soon(read)


async def _close(read: OpenRead) -> None:
    try:
        await read.chunks.aclose()
    except EngineError as error:
        log.info(
            "a cold read of %s could not be closed: %s", read.partition, error, extra=counted()
        )
