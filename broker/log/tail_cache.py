"""The newest record batches, as they go to consumers: encoded, with their offsets stamped.

Consumers that keep up are served from here and never reach the engine. One budget in bytes covers
all partitions; the oldest batch is dropped first. Batches that are no longer cached are read from
the engine (broker/log/reader.py). A batch stays until its rows are in the engine, so the cache may
be larger than its budget by what the journal holds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from typing import NamedTuple, Protocol

_ENTRY_OVERHEAD_BYTES = 250  # the objects around a batch, measured with sys.getsizeof


class CachedBatch(NamedTuple):
    base_offset: int
    last_offset: int
    data: bytes
    position: int = 0
    """Of its block or a later one, as `LogProgress` counts."""


_DROPPED = CachedBatch(-1, -1, b"")
"""In the place of a batch that was dropped, until its place is removed, too."""


class PartitionTail:
    """The cached batches of one partition, in offset order, without gaps."""

    __slots__ = ("_batches", "_head", "_hidden_below")

    def __init__(self) -> None:
        self._batches: list[CachedBatch] = []
        self._head = 0
        self._hidden_below = 0

    @property
    def start_offset(self) -> int | None:
        """The first offset that is served, or None when nothing is cached."""
        if self._head == len(self._batches):
            return None
        return max(self._batches[self._head].base_offset, self._hidden_below)

    @property
    def first_position(self) -> int:
        """The position of the first batch; there is one."""
        return self._batches[self._head].position

    def first_after(self, position: int) -> int | None:
        """The first offset whose batch came after this position; None if no batch did."""
        index = bisect_right(
            self._batches, position, lo=self._head, key=lambda batch: batch.position
        )
        return self._batches[index].base_offset if index < len(self._batches) else None

    def hide_below(self, offset: int) -> None:
        """Rows below `offset` have been removed: reads there have to ask the engine.

        `offset` lies below the end of the log.
        """
        self._hidden_below = max(self._hidden_below, offset)

    def read(self, offset: int, max_bytes: int, at_least_one: bool) -> list[bytes] | None:
        """Whole batches from the one that holds `offset` on, at most `max_bytes` of them.

        `at_least_one` returns the first batch whatever its size, so that a consumer with small
        limits makes progress (KIP-74). None when the cache does not reach back to `offset`.
        """
        start = self.start_offset
        if start is None or offset < start:
            return None
        index = bisect_left(
            self._batches, offset, lo=self._head, key=lambda batch: batch.last_offset
        )
        found: list[bytes] = []
        size = 0
        while index < len(self._batches):
            data = self._batches[index].data
            if size + len(data) > max_bytes and not (at_least_one and not found):
                break
            found.append(data)
            size += len(data)
            index += 1
        return found

    def append(self, batch: CachedBatch) -> None:
        self._batches.append(batch)

    def drop_first(self) -> None:
        self._batches[self._head] = _DROPPED
        self._head += 1
        if self._head > 64 and self._head * 2 > len(self._batches):
            del self._batches[: self._head]
            self._head = 0


class LogProgress(Protocol):
    """How far the log is stored, in numbers that only grow."""

    @property
    def appended(self) -> int:
        """The last block that was acknowledged."""

    @property
    def in_engine(self) -> int:
        """The last block that is in the engine, with all before it."""


class AllInEngine:
    """`LogProgress` where a block is acknowledged when it is in the engine."""

    appended = 0
    in_engine = 0


class TailCache:
    """The budget that all partitions share."""

    def __init__(self, max_bytes: int, progress: LogProgress | None = None) -> None:
        self.max_bytes = max_bytes
        self._progress = progress or AllInEngine()
        self.size = 0
        self._order: deque[tuple[PartitionTail, int]] = deque()

    def add(self, tail: PartitionTail, base_offset: int, last_offset: int, data: bytes) -> None:
        """Append a batch that is stored, and drop the oldest of all partitions to make room."""
        size = len(data) + _ENTRY_OVERHEAD_BYTES
        tail.append(CachedBatch(base_offset, last_offset, data, self._progress.appended))
        self._order.append((tail, size))
        self.size += size
        if self.size <= self.max_bytes:
            return
        in_engine = self._progress.in_engine
        while self.size > self.max_bytes and self._order[0][0].first_position <= in_engine:
            oldest, oldest_size = self._order.popleft()
            oldest.drop_first()
            self.size -= oldest_size
