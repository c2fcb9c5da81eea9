"""Cold reads: ranges of the log from the engine, encoded back into record batches.

A range of a partition is read in segments. What a segment has beyond the caller's limit is kept for
the next fetch, and the segments that follow are read ahead, so a consumer that catches up rarely
waits for the engine. One budget in bytes bounds what is kept; with many partitions each has smaller
segments and fewer of them ahead.

To begin a query costs as much as to read 40,000 small records (6 ms of CPU, measured). So a query
that has given a segment is not ended: it waits in `OpenReads` until the next segment is wanted,
which it continues. It sees the table as it was when it began, and never goes past the end that it
began with. It is closed when nobody has continued it for a while, when too many others wait, or
when rows of its partition have been removed.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections import OrderedDict, defaultdict, deque
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.partition_sql import IS_IN_RANGE, log_parameters
from brokerhouse.broker.log.partition_transactions import AbortedTransaction
from brokerhouse.broker.log.row_sources import RowSources
from brokerhouse.broker.log.transaction_tables import stored_aborted
from brokerhouse.common.counted_lines import counted
from brokerhouse.common.timings import Timings
from brokerhouse.protocol._encode_batches import EncodedBatch, encode_batches
from brokerhouse.protocol.columns import READ_COLUMNS
from brokerhouse.sql.queries import query
from brokerhouse.storage.engine import EngineError, NativeBlock

log = logging.getLogger(__name__)

_SEGMENT_BYTES = 4 << 20
_PIECE_BYTES = 4 << 20
"""Larger segments are kept in pieces: the engine gives 8,192 rows at once, whatever their size."""
_AHEAD_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 20
_BATCH_BYTES = 1 << 19
_READ_AHEADS = 4
_LOADING_BYTES = 64 << 20
"""Reads that run at once hold about this much, or one of them runs: blocks of large rows are
large."""
_COLUMNS = ", ".join(name for name, _ in READ_COLUMNS)


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
        log.info("cannot close a cold read of %s: %s", read.partition, error, extra=counted())


@dataclass(frozen=True, slots=True)
class _Segment:
    """Batches that cover the offsets first <= o < end of one partition, gaps included."""

    first: int
    end: int
    batches: list[EncodedBatch]
    size: int

    def read(self, offset: int, max_bytes: int) -> tuple[list[bytes], int]:
        """Whole batches from `offset` on, at least one if there is one; bytes that follow them."""
        first = bisect_left(self.batches, offset, key=lambda batch: batch.last_offset)
        found: list[bytes] = []
        size = 0
        for batch in islice(self.batches, first, None):
            if found and size + len(batch.data) > max_bytes:
                break
            found.append(batch.data)
            size += len(batch.data)
        return found, self.size_from(first + len(found))

    def size_from(self, index: int) -> int:
        return sum(len(batch.data) for batch in islice(self.batches, index, None))

    def pieces(self) -> Iterator[_Segment]:
        """The same offsets in segments of about `_PIECE_BYTES`."""
        first, batches, size = self.first, list[EncodedBatch](), 0
        for batch in self.batches:
            if batches and size + len(batch.data) > _PIECE_BYTES:
                yield _Segment(first, batch.base_offset, batches, size)
                first, batches, size = batch.base_offset, [], 0
            batches.append(batch)
            size += len(batch.data)
        yield _Segment(first, self.end, batches, size)


class _Loaded(NamedTuple):
    """A segment, and the query that goes on behind it; None if it has given all its rows."""

    segment: _Segment
    rest: OpenRead | None


class _Loads:
    """How many segments are read at once, by the size of the last ones; in order of arrival."""

    def __init__(self) -> None:
        self._running = 0
        self._size = _SEGMENT_BYTES
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def begin(self) -> None:
        if self._running == 0 or (not self._waiting and self._has_room()):
            self._running += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.end(0)
            raise

    def end(self, size: int) -> None:
        """One has ended that held `size` bytes."""
        self._running -= 1
        self._size = max(size, self._size - self._size // 8, _SEGMENT_BYTES)
        while self._waiting and (self._running == 0 or self._has_room()):
            turn = self._waiting.popleft()
            if not turn.done():
                self._running += 1
                turn.set_result(None)

    def _has_room(self) -> bool:
        return (self._running + 1) * self._size <= _LOADING_BYTES


class ColdReader:
    """Serves offsets that the tail cache no longer holds."""

    def __init__(self, row_sources: RowSources, max_bytes: int) -> None:
        """`max_bytes` bounds what is kept, over all partitions."""
        self._row_sources = row_sources
        self.max_bytes = max_bytes
        self.size = 0
        self.loads = Timings()
        self.loaded_bytes = 0
        self._segments: OrderedDict[tuple[PartitionLog, int], _Segment] = OrderedDict()
        self._by_partition: defaultdict[PartitionLog, dict[int, _Segment]] = defaultdict(dict)
        self._loads: dict[tuple[PartitionLog, int], asyncio.Task[_Loaded]] = {}
        self._outdated: set[asyncio.Task[_Loaded]] = set()
        self._load_turns = _Loads()
        self._open_reads = OpenReads()
        self._read_ahead_slots = _READ_AHEADS
        self._closing = False

    async def read(self, partition: PartitionLog, offset: int, max_bytes: int) -> list[bytes]:
        """Whole batches from the one that holds `offset` on; about `max_bytes`, at least one.

        Empty when no row at or above `offset` is left below the high watermark. Raises
        `EngineError`.
        """
        while True:
            segment = self._cached(partition, offset)
            if segment is None:
                segment = await self._load(partition, offset)
            found, left = segment.read(offset, max_bytes)
            if found or not offset < segment.end < partition.high_watermark:
                break
            # The rows at the end of the segment have been removed.
            offset = segment.end
            cached = partition.tail.read(offset, max_bytes, at_least_one=True)
            if cached is not None:
                return cached
        self._read_ahead(partition, segment.end, self._share(_AHEAD_BYTES, 2) - left)
        return found

    async def stored_aborted(
        self, partition: PartitionLog, first: int, end: int
    ) -> list[AbortedTransaction]:
        """Aborted transactions in the table with records in first <= offset < end.

        Raises `EngineError`.
        """
        return await stored_aborted(self._row_sources.engines(partition), partition, first, end)

    def forget(self, partition: PartitionLog) -> None:
        """Rows of the partition have been removed: drop everything that was read before."""
        for first in self._by_partition.pop(partition, {}):
            self.size -= self._segments.pop((partition, first)).size
        for key in [key for key in self._loads if key[0] is partition]:
            self._outdated.add(self._loads.pop(key))
        self._open_reads.forget(partition)

    async def close(self) -> None:
        self._closing = True
        tasks = [*self._loads.values(), *self._outdated]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._open_reads.close()

    def _cached(self, partition: PartitionLog, offset: int) -> _Segment | None:
        for segment in self._by_partition.get(partition, {}).values():
            if segment.first <= offset < segment.end:
                self._segments.move_to_end((partition, segment.first))
                return segment
        return None

    def _share(self, most: int, shares: int) -> int:
        """Bytes for one of the `shares` that each partition which is read has of the budget."""
        return min(most, self.max_bytes // (shares * max(1, len(self._by_partition))))

    async def _load(self, partition: PartitionLog, offset: int) -> _Segment:
        # All callers of a range share one task; cancelling a caller does not cancel the task.
        task = self._loads.get((partition, offset)) or self._begin(partition, offset)
        return (await asyncio.shield(task)).segment

    def _begin(self, partition: PartitionLog, offset: int) -> asyncio.Task[_Loaded]:
        key = (partition, offset)
        task = self._loads[key] = asyncio.create_task(self._read_segment(partition, offset))
        task.add_done_callback(lambda done: self._loaded(key, done))
        return task

    def _loaded(self, key: tuple[PartitionLog, int], task: asyncio.Task[_Loaded]) -> None:
        outdated = task in self._outdated
        if outdated:
            self._outdated.remove(task)
        else:
            del self._loads[key]
        if task.cancelled() or task.exception() is not None:
            return
        segment, rest = task.result()
        if rest is not None and outdated:
            self._open_reads.close_soon(rest)
        elif rest is not None:
            self._open_reads.keep(rest)
        if outdated or not segment.batches:
            return
        # The first piece is wanted first, so it goes last if there is no room for all.
        for piece in reversed(list(segment.pieces())):
            self._keep(key[0], piece)
        while self.size > self.max_bytes and len(self._segments) > 1:
            (partition, first), oldest = self._segments.popitem(last=False)
            self.size -= oldest.size
            del self._by_partition[partition][first]
            if not self._by_partition[partition]:
                del self._by_partition[partition]

    def _keep(self, partition: PartitionLog, piece: _Segment) -> None:
        before = self._segments.pop((partition, piece.first), None)
        if before is not None:
            self.size -= before.size
        self._segments[partition, piece.first] = piece
        self._by_partition[partition][piece.first] = piece
        self.size += piece.size

    def _read_ahead(self, partition: PartitionLog, offset: int, room: int) -> None:
        """Read on from `offset`, until about `room` bytes more are kept."""
        while room > 0 and (segment := self._cached(partition, offset)) is not None:
            room -= segment.size
            offset = segment.end
        tail_start = partition.tail.start_offset
        end = partition.high_watermark if tail_start is None else tail_start
        if (
            self._closing
            or room <= 0
            or offset >= end
            or self._read_ahead_slots == 0
            or (partition, offset) in self._loads
        ):
            return
        self._read_ahead_slots -= 1
        task = self._begin(partition, offset)
        task.add_done_callback(lambda done: self._read_ahead_done(partition, room, done))

    def _read_ahead_done(
        self, partition: PartitionLog, room: int, task: asyncio.Task[_Loaded]
    ) -> None:
        self._read_ahead_slots += 1
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.warning("cannot read ahead; the next fetch reads again: %s", error, extra=counted())
            return
        segment = task.result().segment
        if segment.batches:
            self._read_ahead(partition, segment.end, room - segment.size)

    async def _read_segment(self, partition: PartitionLog, offset: int) -> _Loaded:
        await self._load_turns.begin()
        size = 0
        try:
            with self.loads.timed():
                loaded = await self._read_rows(partition, offset)
            self.loaded_bytes += loaded.segment.size
            # Rows as the engine gives them, and as batches.
            size = 2 * loaded.segment.size
            return loaded
        finally:
            self._load_turns.end(size)

    async def _read_rows(self, partition: PartitionLog, offset: int) -> _Loaded:
        read = self._open_reads.take(partition, offset)
        if read is not None:
            try:
                return await self._read_on(read, offset)
            except EngineError as error:
                log.info(
                    "restarting a cold read of %s at offset %d: %s",
                    partition,
                    offset,
                    error,
                    extra=counted(),
                )
        return await self._read_on(await self._open(partition, offset), offset)

    async def _open(self, partition: PartitionLog, offset: int) -> OpenRead:
        end = partition.high_watermark
        source = await self._row_sources.of_offset(partition, offset)
        if source.end is not None:
            end = min(end, source.end)
        params = log_parameters(partition) | {"first": offset, "end": end}
        sql = query("read_records", columns=_COLUMNS, is_in_range=IS_IN_RANGE)
        chunks = source.engine.read_native(sql, params, _CHUNK_BYTES)
        return OpenRead(partition, offset, end, chunks)

    async def _read_on(self, read: OpenRead, first: int) -> _Loaded:
        """The next segment of a query, and the query if it has more. Closes it on errors."""
        wanted = self._share(_SEGMENT_BYTES, 4)
        batches: list[EncodedBatch] = []
        encoding: asyncio.Future[list[EncodedBatch]] | None = None
        size = 0
        ended = True
        try:
            async for chunk in read.chunks:
                # The engine reads the next chunk while this one is encoded.
                if encoding is not None:
                    batches += await encoding
                encoding = asyncio.ensure_future(
                    asyncio.to_thread(encode_batches, chunk, _BATCH_BYTES)
                )
                size += len(chunk)
                if size >= wanted:
                    ended = False
                    break
            if encoding is not None:
                batches += await encoding
        except BaseException:
            await read.chunks.aclose()
            raise
        if not ended:
            read.position = batches[-1].last_offset + 1
            ended = read.position >= read.end
            if ended:
                await read.chunks.aclose()
        end = read.end if ended else read.position
        segment = _Segment(first, end, batches, sum(len(batch.data) for batch in batches))
        return _Loaded(segment, None if ended else read)
