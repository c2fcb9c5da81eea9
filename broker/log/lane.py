"""A lane of the appender: one queue, and one insert at a time.

While one insert runs, the next block gathers, so load makes blocks larger and not slower. While
the outcome of one is unknown (broker/log/block_store.py), the lane does nothing else. When a block
is not stored, the lane fails every append in it and frees their offsets.

The lease (broker/log/write_lease.py) is checked before every attempt to insert, and again before
anything is published or acknowledged. When it is over, the lane has ended: it sends nothing more,
and refuses its clients, which then ask another broker.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from brokerhouse.broker.log.block import (
    AppendLimits,
    PendingAppend,
    PendingBlock,
    PendingMarker,
    build_block,
)
from brokerhouse.broker.log.block_store import BlockStore, LeaseOver
from brokerhouse.broker.log.decompression import Decompressions
from brokerhouse.broker.log.large_batches import LargeBatches
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.producer_recovery import may_have_rows, recover_producer
from brokerhouse.broker.log.tail_cache import TailCache
from brokerhouse.broker.log.write_lease import WriteLease
from brokerhouse.common.clock import DAY_MS, wall_ms
from brokerhouse.common.counted_lines import counted
from brokerhouse.common.tasks import Outage, event_within
from brokerhouse.common.timings import Timings
from brokerhouse.protocol.errors import (
    KafkaStorageError,
    NotLeaderOrFollower,
    RequestTimedOut,
    UnknownServerError,
)
from brokerhouse.storage.engine import Engine, EngineError

log = logging.getLogger(__name__)

_INLINE_BYTES = 128 << 10
"""A smaller block is built without its thread, which would cost as much as the block: 0.1 ms."""
_PLAIN_MAX_BYTES = 32 << 20
"""Of a block that the engine's thread builds: some 10 ms, in which it stores nothing else."""
_ROW_BYTES = 100
"""What a row has that its record has not."""


_REFUSED_LATELY_S = 30.0
"""After this time without another block an old refusal is not reported any more: the next block may
be accepted."""


class LaneCounts:
    """`inserts` are those of blocks of the log, until their outcome was known."""

    __slots__ = ("_refusal", "_refused_s", "batch_bytes", "blocks", "inserts", "records", "refused")

    def __init__(self) -> None:
        self.inserts = Timings()
        self.blocks = 0
        self.refused = 0
        """Blocks that the engine refused."""
        self._refusal: str | None = None
        self._refused_s = 0.0
        self.records = 0
        self.batch_bytes = 0
        """Of record batches as consumers get them: compressed, if their producer did that."""

    def note_refused(self, error: Exception) -> None:
        """The engine refused a block."""
        self.refused += 1
        self._refusal, self._refused_s = str(error), time.monotonic()

    def note_stored(self) -> None:
        self._refusal = None

    def refusal(self) -> str | None:
        """Why the engine refused the last block; None if it did not, or not lately."""
        is_recent = time.monotonic() - self._refused_s < _REFUSED_LATELY_S
        return self._refusal if is_recent else None

    def note_batch(self, records: int, size: int) -> None:
        self.records += records
        self.batch_bytes += size


class Lane:
    """Stores the appends of its partitions, in the order in which they were queued."""

    def __init__(
        self,
        number: int,
        engine: Engine,
        cache: TailCache,
        limits: AppendLimits,
        lease: WriteLease,
        decompressions: Decompressions,
    ) -> None:
        self.number = number
        self.counts = LaneCounts()
        self._engine = engine
        self._cache = cache
        self._limits = limits
        self._lease = lease
        self.queue: deque[PendingAppend] = deque()
        """What waits for a block."""
        self._in_block: list[PendingAppend] = []
        self._append_time_ms: int | None = None  # of the block in flight
        self._away = False  # the engine does not answer
        self._wake = asyncio.Event()
        self._refusals = Outage(
            log,
            f"lane {number}: the engine refuses records",
            f"lane {number}: records are stored again",
        )
        self._large = LargeBatches(decompressions, self._wake.set)
        self._is_turn_of_large = False
        self._closing = asyncio.Event()
        self.has_ended = False
        """Whether the lane sends nothing more, because of its lease or a bug."""
        self._ended = asyncio.Event()
        self._store = BlockStore(number, engine, lease, self._ended)
        self._settled = asyncio.Event()
        self._settled.set()
        self.append_time_floor_ms = 0
        self.promised_floor_ms = 0
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"lane-{number}")

    @property
    def resolved(self) -> int:
        """The last number of a block whose outcome is known."""
        return self._store.resolved

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"lane-{self.number}")

    def enqueue(self, append: PendingAppend) -> None:
        """Queue one checked batch: see `Appender.append`."""
        if self._closing.is_set():
            append.answer(NotLeaderOrFollower("The broker is shutting down."))
        elif self.has_ended:
            append.answer(NotLeaderOrFollower("This broker is not the leader any more."))
        elif self._away:
            append.refuse(NotLeaderOrFollower("The shard does not answer."))
        else:
            self.queue.append(append)
            self._wake.set()

    async def close(self) -> None:
        """Store what is queued, then stop."""
        self._closing.set()
        self._wake.set()
        if self._task is not None:
            await self._task
        self._thread.shutdown(wait=True)

    async def settled(self) -> None:
        """Wait for the block that is being stored now."""
        await self._settled.wait()

    async def release(self, partitions: frozenset[PartitionLog]) -> None:
        """Refuse what is queued for these partitions, and wait for the block in flight.

        Raises `NotLeaderOrFollower` if the lease ends first.
        """
        self._refuse_queued(partitions)
        await self.settled()
        if self.has_ended:
            raise NotLeaderOrFollower(
                "The session of this broker ended before another broker took over its partitions."
            )
        self._refuse_queued(partitions)  # those that did not fit into the block

    def _refuse_queued(self, partitions: frozenset[PartitionLog]) -> None:
        kept: deque[PendingAppend] = deque()
        for append in self.queue:
            if append.partition in partitions:
                _answer_handed_over(append)
            else:
                kept.append(append)
        self.queue = kept
        for append in self._large.remove(partitions):
            _answer_handed_over(append)

    def end(self, why: str) -> None:
        """Send nothing more and answer every waiting client, even while an insert hangs."""
        if self.has_ended:
            return
        self.has_ended = True
        self._ended.set()
        self._wake.set()
        for append in self._in_block:
            append.answer(
                RequestTimedOut(f"{why} The records may be stored.")
                if self._store.is_sent
                else NotLeaderOrFollower(why)
            )
        for append in self._take_queued():
            append.answer(NotLeaderOrFollower(why))

    def _take_queued(self) -> Iterator[PendingAppend]:
        """Everything that waits for a block, to refuse it."""
        yield from self._large.remove_all()  # it is in front of what is queued
        queue, self.queue = self.queue, deque()
        yield from queue

    def append_time_ms(self) -> int:
        """The append_time of the block in flight, or of one that would be built now."""
        if self._append_time_ms is not None:
            return self._append_time_ms
        return max(wall_ms(), self.append_time_floor_ms, self.promised_floor_ms)

    # --- the loop

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            if self.has_ended:
                return
            if not self.queue and not self._large.has_ready:
                if self._closing.is_set() and not self._large:
                    return
                self._wake.clear()
                continue
            if self._limits.linger_ms and not self._closing.is_set():
                await event_within(self._closing, self._limits.linger_ms / 1000)
            self._in_block = self._next_appends()
            if not self._in_block:
                continue
            self._settled.clear()
            patience = self._lose_patience_later()
            try:
                await self._commit(self._in_block)
            except LeaseOver as over:
                log.warning("lane %d has ended: %s", self.number, over)
                self.end(str(over))
            except Exception:
                # A bug, not an engine error. The partitions must not continue: their next offsets
                # may or may not be used.
                log.exception(
                    "lane %d failed; its appends are refused",
                    self.number,
                    extra=counted(self.number),
                )
                _fail_after_bug(self._in_block)
                if self._lease.is_fenced:  # nor may the lane reuse a number
                    self.end("The broker could not store the records; see its log.")
            finally:
                if patience is not None:
                    patience.cancel()
                self._away = False
                self._store.is_sent = False
                self._in_block = []
                self._large.end_block()
                self._append_time_ms = None
                self._settled.set()

    def _next_appends(self) -> list[PendingAppend]:
        """Take the appends of the next block out of the queue, or large ones: they take turns.

        So an ordinary batch waits for one block of large ones at most.
        """
        if self._large.has_ready and (self._is_turn_of_large or not self.queue):
            self._is_turn_of_large = False
            return self._large.next_appends(self._limits.block_max_bytes)
        self._is_turn_of_large = True
        appends: list[PendingAppend] = []
        size = rows = 0
        while (
            self.queue
            and size < self._limits.block_max_bytes
            and rows < self._limits.block_max_rows
        ):
            append = self.queue.popleft()
            if self._large.holds(append.partition):
                self._large.add(append)
                continue
            appends.append(append)
            size += append.size
            rows += append.header.count
        return appends

    async def _commit(self, appends: list[PendingAppend]) -> None:
        """Build a block, store it, and answer. Raises `LeaseOver`."""
        for append in appends:
            if not append.is_answered and may_have_rows(append.partition, append.header):
                await self._recover_producer(append)
        # Read the floors after `_settled` is cleared: a block respects them, or callers await it.
        append_time_ms = self._append_time_ms = self.append_time_ms()
        if append_time_ms // DAY_MS not in self._lease.days():
            log.warning(
                "lane %d refuses its appends: this broker's clock is ahead of the days for which"
                " its session may write rows",
                self.number,
                extra=counted(self.number),
            )
            for append in appends:
                append.refuse(
                    NotLeaderOrFollower(
                        "The clock of this broker is ahead of the days that its session may write."
                    )
                )
            return
        block = await self._built(appends, append_time_ms)
        self._keep(block)
        if block.rows and not block.is_stored:
            try:
                with self.counts.inserts.timed():
                    await self._store.store(block)
            except EngineError as error:
                self.counts.note_refused(error)
                self._refusals.failed(error)
                block.fail_all(KafkaStorageError(f"Cannot store the records: {error}"))
                return
        if block.rows:
            self._refusals.worked()
            self.counts.note_stored()
        self._store.check_lease(append_time_ms)
        self._publish(block)

    async def _built(self, appends: list[PendingAppend], append_time_ms: int) -> PendingBlock:
        """The block of these appends, which may be stored already."""
        build = partial(
            build_block, appends, self._limits, append_time_ms, pack=self._store.takes_packed
        )
        if _is_small(appends):
            return build()
        plain_bytes = _plain_bytes(appends)
        if plain_bytes is not None:
            began_s = time.perf_counter()
            block = await self._store.store_built(build, plain_bytes, append_time_ms)
            if block is not None:
                if block.is_stored:
                    self.counts.inserts.add(time.perf_counter() - began_s)
                return block
        return await asyncio.get_running_loop().run_in_executor(self._thread, build)

    def _keep(self, block: PendingBlock) -> None:
        """What is not in the block: it waits for a later one, in order."""
        for append in reversed(block.left_over):
            if not self._large.put_back(append):
                self.queue.appendleft(append)
        for append, begun in block.set_aside:
            self._large.add(append, begun)

    async def _recover_producer(self, append: PendingAppend) -> None:
        try:
            await recover_producer(append.partition, append.header, self._engine)
        except EngineError as error:
            append.refuse(KafkaStorageError(f"Cannot read {append.partition}: {error}"))

    def _publish(self, block: PendingBlock) -> None:
        self.counts.blocks += 1 if block.rows else 0
        block.staging.publish()
        ends: dict[PartitionLog, int] = {}
        for partition, base_offset, end, data in block.new_batches:
            self._cache.add(partition.tail, base_offset, end - 1, data)
            ends[partition] = end
            self.counts.note_batch(end - base_offset, len(data))
        for partition, end in ends.items():
            partition.advance(end)
        block.answer_all()

    # --- a shard that does not answer

    def _lose_patience_later(self) -> asyncio.TimerHandle | None:
        if self._lease.away_after_ms is None:
            return None
        loop = asyncio.get_running_loop()
        return loop.call_later(self._lease.away_after_ms / 1000, self._lose_patience)

    def _lose_patience(self) -> None:
        """Refuse the clients of a shard that does not answer. The lane itself keeps retrying."""
        log.warning(
            "lane %d refuses records until its shard answers again",
            self.number,
            extra=counted(self.number),
        )
        self._away = True
        for append in self._take_queued():
            append.refuse(NotLeaderOrFollower("The shard does not answer."))
        for append in self._in_block:
            append.answer(RequestTimedOut("The shard does not answer. The records may be stored."))


def _fail_after_bug(appends: Iterable[PendingAppend]) -> None:
    for append in appends:
        partition = append.partition
        partition.close(
            KafkaStorageError(f"{partition} accepts no records until the broker is restarted.")
        )
        append.answer(UnknownServerError("The broker could not store the records; see its log."))


def _answer_handed_over(append: PendingAppend) -> None:
    append.answer(NotLeaderOrFollower(f"Another broker takes over {append.partition}."))


def _plain_bytes(appends: Iterable[PendingAppend]) -> int | None:
    """About as many bytes as their rows have. None if it may take long to build them, or if
    something else has to be stored before them."""
    size = 0
    for append in appends:
        header = append.header
        if header.codec or header.transactional or isinstance(append, PendingMarker):
            return None
        size += append.size + header.count * _ROW_BYTES
    return size if size <= _PLAIN_MAX_BYTES else None


def _is_small(appends: Iterable[PendingAppend]) -> bool:
    size = 0
    for append in appends:
        if append.header.codec:  # it may be large when it is decompressed
            return False
        size += append.size
    return size <= _INLINE_BYTES
