"""Cold reads: ranges of the log from the engine, encoded back into record batches.

A read asks for rows by primary key and stops as soon as it has enough bytes. What it read beyond
the caller's limit is kept for the next fetch, and the range after it is read ahead, so a consumer
that catches up rarely waits for the engine. One budget in bytes bounds all of this.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections import OrderedDict
from contextlib import aclosing
from dataclasses import dataclass

from broker.log.partition import PartitionLog
from broker.log.partition_sql import IS_IN_RANGE, log_parameters
from broker.log.row_sources import RowSources
from protocol._encode_batches import EncodedBatch, encode_batches
from protocol.columns import READ_COLUMNS

log = logging.getLogger(__name__)

_SEGMENT_BYTES = 4 << 20
_CHUNK_BYTES = 1 << 20
_BATCH_BYTES = 1 << 19
_READ_AHEADS = 2
_SELECT = (
    f"SELECT {', '.join(name for name, _ in READ_COLUMNS)} FROM messages WHERE {IS_IN_RANGE}"
    " ORDER BY topic, partition, offset"
)


@dataclass(frozen=True, slots=True)
class _Segment:
    """Batches that cover the offsets first <= o < end of one partition, gaps included."""

    first: int
    end: int
    batches: list[EncodedBatch]
    size: int

    def read(self, offset: int, max_bytes: int) -> list[bytes]:
        """Whole batches from `offset` on, at least one if there is one."""
        index = bisect_left(self.batches, offset, key=lambda batch: batch.last_offset)
        found: list[bytes] = []
        size = 0
        for batch in self.batches[index:]:
            size += len(batch.data)
            if found and size > max_bytes:
                break
            found.append(batch.data)
        return found

    def is_past_half(self, offset: int) -> bool:
        return offset - self.first >= (self.end - self.first) // 2


class ColdReader:
    """Serves offsets that the tail cache no longer holds."""

    def __init__(self, row_sources: RowSources, max_bytes: int) -> None:
        """`max_bytes` bounds what is kept, over all partitions."""
        self._row_sources = row_sources
        self._max_bytes = max_bytes
        self._size = 0
        self._segments: OrderedDict[tuple[PartitionLog, int], _Segment] = OrderedDict()
        self._loads: dict[tuple[PartitionLog, int], asyncio.Task[_Segment]] = {}
        self._outdated: set[asyncio.Task[_Segment]] = set()
        self._read_ahead_slots = _READ_AHEADS

    async def read(self, partition: PartitionLog, offset: int, max_bytes: int) -> list[bytes]:
        """Whole batches from the one that holds `offset` on; about `max_bytes`, at least one.

        Empty when no row at or above `offset` is left below the high watermark. Raises
        `EngineError`.
        """
        while True:
            segment = self._cached(partition, offset)
            if segment is None:
                segment = await self._load(partition, offset)
            self._read_ahead(partition, segment, offset)
            found = segment.read(offset, max_bytes)
            if found or not offset < segment.end < partition.high_watermark:
                return found
            # The rows at the end of the segment have been removed.
            offset = segment.end
            cached = partition.tail.read(offset, max_bytes, at_least_one=True)
            if cached is not None:
                return cached

    def forget(self, partition: PartitionLog) -> None:
        """Rows of the partition have been removed: drop everything that was read before."""
        for key in [key for key in self._segments if key[0] is partition]:
            self._size -= self._segments.pop(key).size
        for key in [key for key in self._loads if key[0] is partition]:
            self._outdated.add(self._loads.pop(key))

    async def close(self) -> None:
        tasks = [*self._loads.values(), *self._outdated]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _cached(self, partition: PartitionLog, offset: int) -> _Segment | None:
        for key, segment in self._segments.items():
            if key[0] is partition and segment.first <= offset < segment.end:
                self._segments.move_to_end(key)
                return segment
        return None

    async def _load(self, partition: PartitionLog, offset: int) -> _Segment:
        # All callers of a range share one task; cancelling a caller does not cancel the task.
        key = (partition, offset)
        task = self._loads.get(key)
        if task is None:
            task = asyncio.create_task(self._read_segment(partition, offset))
            self._loads[key] = task
            task.add_done_callback(lambda done: self._loaded(key, done))
        return await asyncio.shield(task)

    def _loaded(self, key: tuple[PartitionLog, int], task: asyncio.Task[_Segment]) -> None:
        outdated = task in self._outdated
        if outdated:
            self._outdated.remove(task)
        else:
            del self._loads[key]
        if task.cancelled() or task.exception() is not None or outdated:
            return
        segment = task.result()
        if not segment.batches:
            return
        self._segments[key] = segment
        self._size += segment.size
        while self._size > self._max_bytes and len(self._segments) > 1:
            _, oldest = self._segments.popitem(last=False)
            self._size -= oldest.size

    def _read_ahead(self, partition: PartitionLog, segment: _Segment, offset: int) -> None:
        tail_start = partition.tail.start_offset
        end = partition.high_watermark if tail_start is None else tail_start
        if (
            segment.end >= end
            or not segment.is_past_half(offset)
            or self._read_ahead_slots == 0
            or self._cached(partition, segment.end) is not None
            or (partition, segment.end) in self._loads
        ):
            return
        self._read_ahead_slots -= 1
        key = (partition, segment.end)
        task = asyncio.create_task(self._read_segment(partition, segment.end))
        self._loads[key] = task
        task.add_done_callback(lambda done: self._loaded(key, done))
        task.add_done_callback(self._read_ahead_done)

    def _read_ahead_done(self, task: asyncio.Task[_Segment]) -> None:
        self._read_ahead_slots += 1
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("read-ahead failed; the next fetch reads again: %s", error)

    async def _read_segment(self, partition: PartitionLog, offset: int) -> _Segment:
        end = partition.high_watermark
        source = await self._row_sources.of_offset(partition, offset)
        if source.end is not None:
            end = min(end, source.end)
        chunks: list[bytes] = []
        size = 0
        complete = True
        params = log_parameters(partition) | {"first": offset, "end": end}
        async with aclosing(source.engine.read_native(_SELECT, params, _CHUNK_BYTES)) as stream:
            async for chunk in stream:
                chunks.append(chunk)
                size += len(chunk)
                if size >= _SEGMENT_BYTES:
                    complete = False
                    break
        if not chunks:
            return _Segment(offset, end, [], 0)
        batches = await asyncio.to_thread(encode_batches, b"".join(chunks), _BATCH_BYTES)
        size = sum(len(batch.data) for batch in batches)
        return _Segment(offset, end if complete else batches[-1].last_offset + 1, batches, size)
