"""Group commit: what waits becomes one block, one insert, and only then is acknowledged.

A lane takes everything that waits for it, in order of arrival: checks sequences, decompresses,
gives offsets, builds one Native block (in the lane's own thread), inserts it, and publishes.
While one insert runs, the next block gathers, so load makes blocks bigger, not latency worse. A
partition always belongs to the same lane, and a lane has one insert in flight, so a log never has
a gap.

Nothing is acknowledged from memory. An insert whose outcome is unknown is repeated, same block,
same token, until it is known; the lane takes nothing else meanwhile. A rejected one fails every
append in it and gives the offsets back, after the engine has been asked whether the rows are
really not there."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from uuid import UUID

from broker.log.partition import SINGLE_BROKER_EPOCH, PartitionLog, Staging
from broker.log.producers import (
    BATCHES_KEPT,
    ProducerEntry,
    find_duplicate,
    first_entry,
    recovered_range,
)
from broker.log.tail_cache import CachedBatch, TailCache
from protocol._records import BatchHeader, BlockBuilder, stamp_batch
from protocol.compression import decompress
from protocol.errors import (
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollower,
    UnknownServerError,
)
from storage.engine import Engine, EngineError, InsertOutcomeUnknown, InsertRejected

log = logging.getLogger(__name__)

_COLUMNS = ", ".join(name for name, _ in BlockBuilder.COLUMNS)
_RETRY_FIRST_S = 0.05
_RETRY_MAX_S = 5.0


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a batch is stored. `log_append_time_ms` is -1 unless the broker set the timestamps."""

    base_offset: int
    log_append_time_ms: int


@dataclass(frozen=True, slots=True)
class AppendLimits:
    """What a block may hold, what a batch may decompress to, how long a producer is known."""

    block_max_bytes: int
    block_max_rows: int
    decompressed_max_bytes: int
    linger_ms: int
    producer_id_expiration_ms: int


@dataclass(slots=True)
class _Append:
    log: PartitionLog
    records: bytes
    header: BatchHeader
    done: asyncio.Future[Appended]


@dataclass(slots=True)
class _Block:
    """A block in the making: the rows, what each append became, and how to take it all back."""

    staging: Staging
    answers: list[tuple[_Append, Appended | KafkaError]]
    stored: list[tuple[PartitionLog, CachedBatch]]
    data: bytes
    rows: int
    left: list[_Append]


class Appender:
    """All lanes of this broker."""

    def __init__(
        self,
        engine: Engine,
        cache: TailCache,
        lanes: int,
        limits: AppendLimits,
        instance: UUID,
    ) -> None:
        """`instance` is unique to this start of the process; it makes insert tokens unique."""
        self._lanes = [_Lane(n, engine, cache, limits, f"{instance}-{n}") for n in range(lanes)]

    def start(self) -> None:
        for lane in self._lanes:
            lane.start()

    def append(
        self, partition: PartitionLog, records: bytes, header: BatchHeader
    ) -> asyncio.Future[Appended]:
        """Queue one checked batch. Batches of a partition are stored in the order of these calls.

        The future ends with `Appended`, or with the `KafkaError` for this batch alone.
        """
        return self._lane(partition).append(partition, records, header)

    async def settled(self) -> None:
        """Wait for the blocks that are being stored now.

        After it, no row can come any more of a partition that was closed before it.
        """
        await asyncio.gather(*(lane.settled() for lane in self._lanes))

    async def no_row_before(self, time_ms: int) -> None:
        """From now on no row gets an append_time below `time_ms`; those on their way are stored.

        The last call counts: a lower time takes a higher one back.
        """
        for lane in self._lanes:
            lane.append_time_floor_ms = time_ms
        await self.settled()

    def _lane(self, partition: PartitionLog) -> _Lane:
        return self._lanes[(partition.topic_id.int + partition.partition) % len(self._lanes)]

    async def close(self) -> None:
        """Store what is queued, then stop."""
        await asyncio.gather(*(lane.close() for lane in self._lanes))


class _Lane:
    def __init__(
        self, number: int, engine: Engine, cache: TailCache, limits: AppendLimits, identity: str
    ) -> None:
        self._number = number
        self._engine = engine
        self._cache = cache
        self._limits = limits
        self._identity = identity
        self._block_number = 0
        self._queue: deque[_Append] = deque()
        self._wake = asyncio.Event()
        self._closing = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()
        self.append_time_floor_ms = 0
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"lane-{number}")

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"lane-{self._number}")

    def append(
        self, partition: PartitionLog, records: bytes, header: BatchHeader
    ) -> asyncio.Future[Appended]:
        done: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        if self._closing.is_set():
            done.set_exception(NotLeaderOrFollower("the broker is shutting down"))
        else:
            self._queue.append(_Append(partition, records, header, done))
            self._wake.set()
        return done

    async def close(self) -> None:
        self._closing.set()
        self._wake.set()
        if self._task is not None:
            await self._task
        self._thread.shutdown(wait=True)

    async def settled(self) -> None:
        await self._settled.wait()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            if not self._queue:
                if self._closing.is_set():
                    return
                self._wake.clear()
                continue
            if self._limits.linger_ms and not self._closing.is_set():
                await self._linger()
            appends = self._take()
            self._settled.clear()
            try:
                await self._commit(appends)
            except Exception:
                # A defect, not a fault of the engine: its partitions must not go on with offsets
                # that may or may not be taken.
                log.exception("lane %d failed; its appends are refused", self._number)
                self._refuse(appends)
            finally:
                self._settled.set()

    async def _linger(self) -> None:
        try:
            await asyncio.wait_for(self._closing.wait(), self._limits.linger_ms / 1000)
        except TimeoutError:
            return

    def _take(self) -> list[_Append]:
        taken: list[_Append] = []
        size = rows = 0
        while self._queue and size < self._limits.block_max_bytes and (
            rows < self._limits.block_max_rows
        ):  # fmt: skip
            append = self._queue.popleft()
            taken.append(append)
            size += len(append.records)
            rows += append.header.count
        return taken

    async def _commit(self, appends: list[_Append]) -> None:
        for append in appends:
            await self._recover_producer(append)
        loop = asyncio.get_running_loop()
        # The floor is read after `_settled` is cleared: a block has the new one or is waited for.
        block = await loop.run_in_executor(
            self._thread, _build, appends, self._limits, self.append_time_floor_ms
        )
        self._queue.extendleft(reversed(block.left))
        if block.rows:
            self._block_number += 1
            token = f"{self._identity}-{self._block_number}"
            try:
                await self._store(block, token)
            except EngineError as error:
                log.error("block %s of %d rows refused: %s", token, block.rows, error)
                block.staging.take_back()
                _fail(block, KafkaStorageError(f"the engine refused the block: {error}"))
                return
        self._publish(block)

    async def _store(self, block: _Block, token: str) -> None:
        """Insert until the outcome is known. Raises `EngineError` when nothing is stored."""
        delay = _RETRY_FIRST_S
        while True:
            try:
                await self._engine.insert_block(
                    self._number, "messages", _COLUMNS, block.data, token
                )
                return
            except InsertRejected:
                if not await self._is_stored(block):
                    raise
                log.warning("block %s was reported as refused and is stored", token)
                return
            except InsertOutcomeUnknown as error:
                log.warning("outcome of block %s unknown, again in %.2f s: %s", token, delay, error)
                await self._pause(delay)
                delay = min(delay * 2, _RETRY_MAX_S)

    async def _is_stored(self, block: _Block) -> bool:
        """Whether the block's rows are in the table; asked until the engine answers."""
        partition, offset = next(iter(block.staging.first_offsets.items()))
        delay = _RETRY_FIRST_S
        while True:
            try:
                found = await self._engine.rows(
                    "SELECT count() FROM messages WHERE topic = {topic:String}"
                    " AND topic_id = {topic_id:UUID} AND partition = {partition:Int32}"
                    " AND offset = {offset:Int64}",
                    {
                        "topic": partition.topic.name,
                        "topic_id": str(partition.topic_id),
                        "partition": partition.partition,
                        "offset": offset,
                    },
                )
                return found != [[0]]
            except EngineError as error:
                log.error("cannot ask whether a refused block is stored, again: %s", error)
                await self._pause(delay)
                delay = min(delay * 2, _RETRY_MAX_S)

    async def _pause(self, seconds: float) -> None:
        """Back off between attempts; a shutdown does not cut the wait short of an answer."""
        await asyncio.sleep(seconds)

    def _publish(self, block: _Block) -> None:
        ends: dict[PartitionLog, int] = {}
        for partition, batch in block.stored:
            self._cache.add(partition.tail, batch)
            ends[partition] = batch.last_offset + 1
        for partition, end in ends.items():
            partition.advance(end)
        for append, answer in block.answers:
            _answer(append, answer)

    def _refuse(self, appends: Iterable[_Append]) -> None:
        for append in appends:
            append.log.closed = KafkaStorageError(f"{append.log} needs a restart of the broker")
            _answer(append, UnknownServerError("the broker could not store this; see its log"))

    async def _recover_producer(self, append: _Append) -> None:
        """Read back what a producer of before the restart stored, when it comes again."""
        producer_id, partition = append.header.producer_id, append.log
        if (
            producer_id < 0
            or producer_id >= partition.first_fresh_producer_id
            or producer_id in partition.producers
        ):
            return
        try:
            rows = await self._engine.rows(
                "SELECT producer_epoch, min(offset), max(offset) AS last,"
                " argMax(sequence, offset), toUnixTimestamp64Milli(max(append_time))"
                " FROM messages WHERE topic = {topic:String} AND topic_id = {topic_id:UUID}"
                " AND partition = {partition:Int32} AND producer_id = {producer_id:Int64}"
                " AND NOT control"
                " GROUP BY producer_epoch, positiveModulo(offset - sequence, 2147483648)"
                " ORDER BY producer_epoch DESC, last DESC LIMIT {kept:UInt8}",
                {
                    "topic": partition.topic.name,
                    "topic_id": str(partition.topic_id),
                    "partition": partition.partition,
                    "producer_id": producer_id,
                    "kept": BATCHES_KEPT,
                },
            )
        except EngineError as error:
            if not append.done.done():
                append.done.set_exception(KafkaStorageError(f"cannot read the log: {error}"))
            return
        if rows:
            partition.producers[producer_id] = _recovered_entry(rows)


def _recovered_entry(rows: list[list[object]]) -> ProducerEntry:
    numbers = [[int(str(cell)) for cell in row] for row in rows]
    epoch = numbers[0][0]
    ranges = [
        recovered_range(first_offset, last_offset, last_sequence)
        for row_epoch, first_offset, last_offset, last_sequence, _ in numbers
        if row_epoch == epoch
    ]
    return ProducerEntry(epoch, tuple(reversed(ranges)), numbers[0][4], recovered=True)


def _build(appends: list[_Append], limits: AppendLimits, append_time_floor_ms: int) -> _Block:
    """Check, decompress, number and encode the appends of one block. Runs in the lane's thread.

    What they become may be much larger than what came: those that find no room are left over.
    """
    now_ms = max(time.time_ns() // 1_000_000, append_time_floor_ms)
    builder = BlockBuilder(now_ms, SINGLE_BROKER_EPOCH)
    block = _Block(Staging(), [], [], b"", 0, [])
    for position, append in enumerate(appends):
        if builder.bytes >= limits.block_max_bytes:
            block.left = appends[position:]
            break
        if append.done.done():
            continue
        try:
            answer: Appended | KafkaError = _add(append, builder, block, now_ms, limits)
        except KafkaError as error:
            # A copy: the traceback, and that of its cause, hold the batch and what it decompressed
            # to, in a cycle that only a full garbage collection finds (measured: 1.3 GB after ten).
            answer = type(error)(*error.args)
        block.answers.append((append, answer))
    block.rows = builder.rows
    if builder.rows:
        block.data = builder.finish()
    return block


def _add(
    append: _Append, builder: BlockBuilder, block: _Block, now_ms: int, limits: AppendLimits
) -> Appended:
    partition, header = append.log, append.header
    if partition.closed is not None:
        raise partition.closed
    append_time_ms = (
        now_ms if partition.topic.config.message_timestamp_type == "LogAppendTime" else None
    )
    answered_ms = -1 if append_time_ms is None else append_time_ms
    partition.forget_producers(now_ms - limits.producer_id_expiration_ms)
    entry = partition.producers.get(header.producer_id) if header.producer_id >= 0 else None
    duplicate_of = find_duplicate(entry, header)
    if duplicate_of is not None:
        return Appended(duplicate_of, answered_ms)

    payload = memoryview(append.records)[header.start + 61 : header.end]
    if header.codec:
        payload = memoryview(decompress(header.codec, payload, limits.decompressed_max_bytes))
    base_offset = partition.next_offset
    builder.append(
        partition.topic.name,
        partition.topic_id.bytes,
        partition.partition,
        base_offset,
        header,
        payload,
        append_time_ms,
    )
    data = stamp_batch(append.records, header, base_offset, SINGLE_BROKER_EPOCH, append_time_ms)
    block.staging.reserve(partition, header.count)
    if header.producer_id >= 0:
        block.staging.set_producer(
            partition,
            header.producer_id,
            entry.after(header, base_offset, now_ms)
            if entry is not None
            else first_entry(header, base_offset, now_ms),
        )
    block.stored.append((partition, CachedBatch(base_offset, base_offset + header.count - 1, data)))
    return Appended(base_offset, answered_ms)


def _fail(block: _Block, error: KafkaError) -> None:
    for append, answer in block.answers:
        # A duplicate may be one of a batch in this very block, so it fails with it.
        _answer(append, answer if isinstance(answer, KafkaError) else error)


def _answer(append: _Append, answer: Appended | KafkaError) -> None:
    if append.done.done():  # the caller went away
        return
    if isinstance(answer, KafkaError):
        append.done.set_exception(answer)
    else:
        append.done.set_result(answer)
