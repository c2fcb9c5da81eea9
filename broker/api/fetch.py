"""Fetch (1), versions 4 to 18: reads records of partitions.

    v4 isolation level; v5 log start offset; v7 sessions (KIP-227)
    v9 leader epochs are checked (KIP-320); v10 zstd; v11 rack of the consumer
    v12 flexible, diverging epochs (KIP-595); v13 topics by id (KIP-516)
    v15 replica state, for replicas only; v16 node endpoints; v17, v18 fields for replicas

A fetch that has less than `min_bytes` waits without polling: an append wakes exactly the fetches
that wait for its partition. What it has read so far is charged to its connection; when others wait
for memory, it answers with what it has. The first partition that has records gets at least one
batch, even past the limits (KIP-74). With isolation level 1 (read_committed) a fetch reads up to
the last stable offset, and the answer names the aborted transactions among its records (KIP-98).

A client may name the leader epoch of the record before the offset (`last_fetched_epoch`). If that
epoch ended before the offset, or no record can be of it, the answer has no records but the largest
epoch up to it, and where that ended; it does not wait.

`_Fetch` says when there is enough to answer, `_PartitionReads` reads, `_FetchBudget` keeps the
limits, and `_LongPoll` waits for appends. broker/log/partition_transactions.py decides what was
aborted.

Errors: FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR.
Errors of a partition: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, NOT_LEADER_OR_FOLLOWER,
OFFSET_OUT_OF_RANGE, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, KAFKA_STORAGE_ERROR (ClickHouse
cannot be read).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Self, TypeAlias
from uuid import UUID

from kafka.protocol.consumer import FetchRequest, FetchResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.api.topic_lookup import check_leader_epoch, find_readable_topic
from brokerhouse.broker.broker import Broker
from brokerhouse.broker.fetch_sessions import FetchSession, Wanted
from brokerhouse.broker.log.leader_epochs import NO_END, EpochEnd
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.partition_transactions import AbortedTransaction
from brokerhouse.broker.memory import ResponseCharge, ResponseMemory, cost
from brokerhouse.broker.monitoring.request_counts import FetchedCounts
from brokerhouse.common.batched import batched
from brokerhouse.protocol.batches import base_offset, end_offset, record_count
from brokerhouse.protocol.errors import (
    KafkaError,
    KafkaStorageError,
    OffsetOutOfRange,
)
from brokerhouse.storage.engine import EngineError

_READ_COMMITTED = 1
_COLD_READS_AT_ONCE = 8
_PARTITION_BYTES = 100  # of a partition of the answer, without its records
_COLD_READ_BYTES = 4 << 20
"""What a cold read gives, a segment (broker/log/reader.py), if no batch is larger."""
_TopicResponse: TypeAlias = FetchResponse.FetchableTopicResponse
_PartitionData: TypeAlias = FetchResponse.FetchableTopicResponse.PartitionData
_Diverging: TypeAlias = FetchResponse.FetchableTopicResponse.PartitionData.EpochEndOffset
_Aborted: TypeAlias = FetchResponse.FetchableTopicResponse.PartitionData.AbortedTransaction


async def fetch(ctx: RequestContext, request: FetchRequest) -> FetchResponse:
    try:
        session, wanted, news_only = ctx.broker.fetch_sessions.open(request, ctx.version)
    except KafkaError as error:
        return FetchResponse(
            throttle_time_ms=0, error_code=error.code, session_id=0, responses=[], node_endpoints=[]
        )
    readings = await _Fetch(ctx, request, wanted).read()
    answers = [(one.wanted, _answer(one, request.isolation_level)) for one in readings]
    if news_only:
        answers = [answer for answer in answers if _is_news(session, *answer)]
    _count(ctx.broker.fetched, answers)
    ctx.charge.add(_PARTITION_BYTES * len(answers))
    if session is not None:
        for want, partition in answers:
            want.told_high_watermark = partition.high_watermark
            want.told_log_start = partition.log_start_offset
            session.answered(want)
    return FetchResponse(
        throttle_time_ms=0,
        error_code=0,
        session_id=session.session_id if session is not None else 0,
        responses=_by_topic(answers),
        node_endpoints=[],
    )


def _count(fetched: FetchedCounts, answers: list[tuple[Wanted, _PartitionData]]) -> None:
    for _, partition in answers:
        for data in partition.records:
            fetched.records += record_count(data)
            fetched.bytes += len(data)


def _is_news(session: FetchSession | None, wanted: Wanted, partition: _PartitionData) -> bool:
    return (
        session is None
        or bool(partition.records)
        or partition.error_code != 0
        or partition.diverging_epoch is not None
        or session.is_news(wanted, partition.high_watermark, partition.log_start_offset)
    )


@dataclass(slots=True)
class _Reading:
    """One wanted partition, and what was read from it so far."""

    wanted: Wanted
    partition: PartitionLog | None = None
    error: KafkaError | None = None
    batches: tuple[bytes, ...] = ()
    aborted: Sequence[AbortedTransaction] = ()
    """Those with records in the batches."""
    diverging: EpochEnd | None = None
    """Where the epoch ended that the client read last, if it is not part of this log."""

    @property
    def size(self) -> int:
        return sum(len(data) for data in self.batches)


class _Fetch:
    """Reads the wanted partitions until there is enough, one has an error, or time is up."""

    def __init__(self, ctx: RequestContext, request: FetchRequest, wanted: list[Wanted]) -> None:
        self._ctx = ctx
        self._min_bytes = request.min_bytes
        self._max_wait_s = request.max_wait_ms / 1000
        self._is_committed_only = request.isolation_level == _READ_COMMITTED
        self._end_of = _last_stable_offset if self._is_committed_only else _high_watermark
        max_bytes = min(max(request.max_bytes, 0), ctx.broker.settings.fetch_max_bytes)
        self._budget = _FetchBudget(ctx.charge, max_bytes)
        self._reads = _PartitionReads(ctx.broker, self._budget, self._end_of)
        self._readings = [_Reading(want) for want in wanted]
        self._by_partition: dict[PartitionLog, _Reading] = {}

    async def read(self) -> list[_Reading]:
        await self._ctx.broker.partitions.await_open(
            [reading.wanted.key for reading in self._readings]
        )
        for reading in self._readings:
            self._find_log(reading)
        await self._reads.read(self._readings)
        if not self._is_enough() and self._max_wait_s > 0:
            with suppress(TimeoutError):
                await self._wait_for_more()
        if self._is_committed_only:
            for reading in self._readings:
                if reading.partition is not None and reading.batches:
                    await self._find_aborted(reading, reading.partition)
        return self._readings

    async def _wait_for_more(self) -> None:
        """Raises `TimeoutError` when time is up."""
        memory = self._ctx.charge.memory
        by_partition = self._by_partition
        with _LongPoll(self._ctx.broker, memory, by_partition) as poll:
            async with asyncio.timeout(self._max_wait_s):
                # Records may have been appended while cold reads ran, before the registration.
                await self._reads.read(list(filter(self._is_behind, self._readings)))
                while not self._is_enough() and not self._ctx.broker.stopping:
                    changed = await poll.changed(has_records=self._budget.size > 0)
                    await self._reads.read([by_partition[partition] for partition in changed])

    def _find_log(self, reading: _Reading) -> None:
        try:
            topic_key, index = reading.wanted.key
            topic = find_readable_topic(self._ctx, topic_key)
            reading.partition = self._ctx.broker.partitions.log_of(topic, index)
            self._by_partition[reading.partition] = reading
        except KafkaError as error:
            reading.error = error

    async def _find_aborted(self, reading: _Reading, partition: PartitionLog) -> None:
        """What of the batches was aborted: broker/log/partition_transactions.py decides."""
        stored = partial(self._ctx.broker.cold_reader.stored_aborted, partition)
        first, end = reading.wanted.fetch_offset, end_offset(reading.batches[-1])
        try:
            reading.aborted = await partition.transactions.aborted_in_fetch(first, end, stored)
        except EngineError as error:
            self._budget.drop(reading)
            reading.error = KafkaStorageError(f"Cannot read {partition}: {error}")

    def _is_enough(self) -> bool:
        size = self._budget.size
        return (
            size >= self._min_bytes
            or (size > 0 and self._ctx.charge.memory.is_short)
            or not self._by_partition
            or any(one.error is not None or one.diverging is not None for one in self._readings)
        )

    def _is_behind(self, reading: _Reading) -> bool:
        """Whether nothing was read from a partition that has records by now."""
        return (
            reading.partition is not None
            and not reading.batches
            and self._end_of(reading.partition) > reading.wanted.fetch_offset
        )


class _LongPoll:
    """Waits for appends to these partitions, from `with` on."""

    def __init__(self, broker: Broker, memory: ResponseMemory, logs: Iterable[PartitionLog]):
        self._broker = broker
        self._memory = memory
        self._logs = logs
        self._woken = asyncio.Event()
        self._changed: set[PartitionLog] = set()

    def __enter__(self) -> Self:
        for partition in self._logs:
            partition.waiters.add(self._wake)
        self._broker.long_polls.add(self._woken)
        return self

    def __exit__(self, *_: object) -> None:
        self._broker.long_polls.discard(self._woken)
        self._memory.forget_event(self._woken)
        for partition in self._logs:
            partition.waiters.discard(self._wake)

    async def changed(self, *, has_records: bool) -> set[PartitionLog]:
        """Wait, and return what changed. `has_records`: wait no longer once memory is short."""
        if has_records:
            self._memory.wake_when_short(self._woken)
        await self._woken.wait()
        self._woken.clear()
        changed, self._changed = self._changed, set()
        return changed

    def _wake(self, partition: PartitionLog) -> None:
        self._changed.add(partition)
        self._woken.set()


class _PartitionReads:
    """Reads partitions into a budget: from the tail cache, or else from the engine.

    An error of a partition is noted in its `_Reading`.
    """

    def __init__(
        self, broker: Broker, budget: _FetchBudget, end_of: Callable[[PartitionLog], int]
    ) -> None:
        """`end_of`: where reading a partition stops."""
        self._cold_reader = broker.cold_reader
        self._fetched = broker.fetched
        self._budget = budget
        self._charge = budget.charge
        self._end_of = end_of

    async def read(self, readings: Iterable[_Reading]) -> None:
        """Read these partitions again, within what the others leave of the limits."""
        cold: list[_Reading] = []
        budget = self._budget
        for reading in readings:
            if reading.partition is None:
                continue
            budget.drop(reading)
            found = self._from_tail(reading, reading.partition)
            while found is not None and not budget.keep(reading, found):
                if budget.size:
                    found = []  # there is no room for more: the client asks again
                    continue
                await self._charge.reserve(cost(found))
                found = self._from_tail(reading, reading.partition)
            if found is None:
                cold.append(reading)
        self._charge.drop_reserved()
        await self._read_cold(cold)

    def _from_tail(self, reading: _Reading, partition: PartitionLog) -> list[bytes] | None:
        """None if the tail cache lacks the offset."""
        wanted = reading.wanted
        try:
            if partition.closed is not None:
                raise partition.closed
            check_leader_epoch(partition, wanted.current_leader_epoch)
            reading.diverging = _diverging(partition, wanted)
            if reading.diverging is not None:
                return []
            _check_range(partition, wanted)
        except KafkaError as error:
            reading.error = error
            return []
        if wanted.fetch_offset >= self._end_of(partition):
            return []
        budget = self._budget
        found = partition.tail.read(
            wanted.fetch_offset, budget.left_for(wanted), at_least_one=budget.size == 0
        )
        if found is None:
            return None
        self._fetched.tail_reads += 1
        return self._below_end(partition, found)

    async def _read_cold(self, cold: list[_Reading]) -> None:
        """A group at a time. Memory is reserved before the engine is asked."""
        budget = self._budget
        for group in batched(cold, _COLD_READS_AT_ONCE):
            left = budget.left()
            if budget.size and left <= 0:
                return
            expected = sum(min(max(one.wanted.max_bytes, 0), _COLD_READ_BYTES) for one in group)
            expected = min(expected, left)
            if budget.size and not self._charge.try_reserve(expected):
                return  # the client asks again for the rest
            await self._charge.reserve(expected)
            too_large = await self._read_group(group)
            if too_large is not None:
                # Its memory is free again: it is read anew when there is room for it.
                reading, size = too_large
                await self._charge.reserve(size)
                await self._read_group([reading])
            self._charge.drop_reserved()

    async def _read_group(self, group: list[_Reading]) -> tuple[_Reading, int] | None:
        """Read these at once. If there is no memory for any of them: the first, and its size."""
        budget = self._budget
        too_large = None
        for reading, found in zip(
            group, await asyncio.gather(*map(self._from_engine, group)), strict=True
        ):
            fitting = budget.fitting(reading.wanted, found)
            if not budget.keep(reading, fitting) and too_large is None:
                too_large = reading, cost(fitting)
        return None if budget.size else too_large

    async def _from_engine(self, reading: _Reading) -> list[bytes]:
        assert reading.partition is not None
        wanted = reading.wanted
        self._fetched.cold_reads += 1
        try:
            found = await self._cold_reader.read(
                reading.partition, wanted.fetch_offset, self._budget.left_for(wanted)
            )
            # Rows may have been deleted meanwhile, and a gap would look like the end of the log.
            _check_range(reading.partition, wanted)
            return self._below_end(reading.partition, found)
        except EngineError as error:
            reading.error = KafkaStorageError(f"Cannot read {reading.partition}: {error}")
        except OffsetOutOfRange as error:
            reading.error = error
        return []

    def _below_end(self, partition: PartitionLog, batches: list[bytes]) -> list[bytes]:
        """The batches that may be read: no batch has offsets on both sides of the end."""
        end = self._end_of(partition)
        if end == partition.high_watermark:
            return batches
        while batches and base_offset(batches[-1]) >= end:
            batches.pop()
        return batches


class _FetchBudget:
    """The bytes that all partitions of a fetch may have together, and those that they have.

    What they have is charged to the connection until it is sent.
    """

    def __init__(self, charge: ResponseCharge, max_bytes: int) -> None:
        self.charge = charge
        self.size = 0
        self._max_bytes = max_bytes

    def left(self) -> int:
        """Not more than zero if the limits are reached. The first batch is sent all the same."""
        left: int = min(self._max_bytes - self.size, self.charge.room)
        return left

    def left_for(self, wanted: Wanted) -> int:
        return min(max(wanted.max_bytes, 0), self.left())

    def fitting(self, wanted: Wanted, found: list[bytes]) -> list[bytes]:
        """The batches that the limits still allow: other reads of the group came first."""
        limit = self.left_for(wanted)
        fitting: list[bytes] = []
        size = 0
        for data in found:
            size += len(data)
            if size > limit and (fitting or self.size):
                break
            fitting.append(data)
        return fitting

    def keep(self, reading: _Reading, found: list[bytes]) -> bool:
        """Count these batches as what was read. False if there is no memory for them."""
        batches = tuple(found)
        if not self.charge.try_hold(batches):
            return False
        reading.batches = batches
        self.size += reading.size
        return True

    def drop(self, reading: _Reading) -> None:
        """What was read will not be sent."""
        if reading.batches:
            self.charge.let_go(reading.batches)
            self.size -= reading.size
            reading.batches = ()


def _high_watermark(partition: PartitionLog) -> int:
    return partition.high_watermark


def _last_stable_offset(partition: PartitionLog) -> int:
    return partition.last_stable_offset


def _check_range(partition: PartitionLog, wanted: Wanted) -> None:
    if not partition.first_fetchable <= wanted.fetch_offset <= partition.high_watermark:
        raise OffsetOutOfRange(
            f"{partition} has offsets {partition.log_start_offset} to {partition.high_watermark}."
        )


def _diverging(partition: PartitionLog, wanted: Wanted) -> EpochEnd | None:
    """Where the last fetched epoch ended, if the client has more of it. Raises `OffsetOutOfRange`.

    As in Kafka, an epoch that has not begun and an offset below the log start are out of range.
    """
    epoch = wanted.last_fetched_epoch
    if epoch == -1:
        return None
    end = partition.epochs.end_of(epoch, partition.high_watermark)
    if end == NO_END:
        raise OffsetOutOfRange(f"{partition} has no leader epoch {epoch}.")
    if wanted.fetch_offset < partition.first_fetchable:
        raise OffsetOutOfRange(f"{partition} starts at offset {partition.log_start_offset}.")
    return end if end.epoch < epoch or end.offset < wanted.fetch_offset else None


def _answer(reading: _Reading, isolation_level: int) -> _PartitionData:
    partition = reading.partition
    if reading.error is not None or partition is None:
        return _PartitionData(
            partition_index=reading.wanted.key[1],
            error_code=reading.error.code if reading.error else 0,
            high_watermark=-1,
            last_stable_offset=-1,
            log_start_offset=-1,
            aborted_transactions=[] if isolation_level else None,
            preferred_read_replica=-1,
            records=(),
        )
    return _PartitionData(
        partition_index=reading.wanted.key[1],
        error_code=0,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        log_start_offset=partition.log_start_offset,
        diverging_epoch=None
        if reading.diverging is None
        else _Diverging(epoch=reading.diverging.epoch, end_offset=reading.diverging.offset),
        aborted_transactions=[
            _Aborted(producer_id=one.producer_id, first_offset=one.first_offset)
            for one in reading.aborted
        ]
        if isolation_level
        else None,
        preferred_read_replica=-1,
        records=reading.batches,
    )


def _by_topic(answers: list[tuple[Wanted, _PartitionData]]) -> list[_TopicResponse]:
    topics: dict[str | UUID, _TopicResponse] = {}
    for wanted, partition in answers:
        key = wanted.key[0]
        if key not in topics:
            topics[key] = (
                _TopicResponse(topic_id=key, partitions=[])
                if isinstance(key, UUID)
                else _TopicResponse(topic=key, partitions=[])
            )
        topics[key].partitions.append(partition)
    return list(topics.values())


API = Api(FetchRequest, FetchResponse, versions=(4, 18), handler=fetch)
