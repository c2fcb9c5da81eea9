"""Fetch, versions 4 to 18.

4   isolation level; 5 log start offset; 7 sessions (KIP-227); 9 leader epochs are checked (KIP-320)
10  zstd; 11 rack of the consumer; 12 flexible, diverging epochs; 13 topics by id (KIP-516)
15  replica state (replicas only); 16 node endpoints; 17, 18 fields of replicas

A fetch that has less than `min_bytes` waits, without polling: an append wakes exactly those who
wait for its partition. The first partition that has anything gives at least one batch, whatever
the limits say (KIP-74). Until transactions come, the last stable offset is the high watermark and
nothing is aborted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias
from uuid import UUID

from kafka.protocol.consumer import FetchRequest, FetchResponse

from broker.api.context import RequestContext
from broker.api.offsets import check_leader_epoch
from broker.fetch_sessions import FetchSession, Wanted
from broker.log.partition import PartitionLog
from protocol.errors import (
    KafkaError,
    KafkaStorageError,
    OffsetOutOfRange,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from storage.engine import EngineError

_COLD_READS_AT_ONCE = 8
_Topic: TypeAlias = FetchResponse.FetchableTopicResponse
_PartitionData: TypeAlias = FetchResponse.FetchableTopicResponse.PartitionData


async def fetch(ctx: RequestContext, request: FetchRequest) -> FetchResponse:
    try:
        session, wanted, news_only = ctx.broker.fetch_sessions.open(request, ctx.header.api_version)
    except KafkaError as error:
        return FetchResponse(
            throttle_time_ms=0, error_code=error.code, session_id=0, responses=[], node_endpoints=[]
        )
    collector = _Collector(ctx, request, wanted)
    await collector.run(request.max_wait_ms / 1000)
    answers = [
        (wanted, partition)
        for wanted, partition in collector.answers(request.isolation_level)
        if not news_only or _is_news(session, wanted, partition)
    ]
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


def _is_news(session: FetchSession | None, wanted: Wanted, partition: _PartitionData) -> bool:
    return (
        session is None
        or bool(partition.records)
        or partition.error_code != 0
        or session.is_news(wanted, partition.high_watermark, partition.log_start_offset)
    )


@dataclass(slots=True)
class _Reading:
    """One wanted partition and what has been found of it so far."""

    wanted: Wanted
    log: PartitionLog | None = None
    error: KafkaError | None = None
    batches: tuple[bytes, ...] = ()

    @property
    def size(self) -> int:
        return sum(len(data) for data in self.batches)

    @property
    def is_behind(self) -> bool:
        """Whether nothing was found of a partition that has something by now."""
        return (
            self.log is not None
            and not self.batches
            and self.log.high_watermark > self.wanted.fetch_offset
        )


class _Collector:
    """Reads the wanted partitions until there is enough, something is wrong, or time is up."""

    def __init__(self, ctx: RequestContext, request: FetchRequest, wanted: list[Wanted]) -> None:
        self._ctx = ctx
        self._min_bytes = request.min_bytes
        self._max_bytes = min(
            max(request.max_bytes, 0),
            ctx.broker.settings.fetch_max_bytes,
            ctx.broker.in_flight.response_room,
        )
        self._readings = [_Reading(want) for want in wanted]
        self._by_log: dict[PartitionLog, _Reading] = {}
        self._size = 0
        self._woken = asyncio.Event()
        self._changed: set[PartitionLog] = set()

    async def run(self, max_wait_s: float) -> None:
        await self._ctx.broker.topics.await_logs([reading.wanted.key for reading in self._readings])
        for reading in self._readings:
            self._find_log(reading)
        await self._read(self._readings)
        if self._is_enough() or max_wait_s <= 0:
            return
        for log in self._by_log:
            log.waiters.add(self._wake)
        self._ctx.broker.long_polls.add(self._woken)
        try:
            async with asyncio.timeout(max_wait_s):
                # An append may have come while a cold read was awaited, before the registration.
                await self._read([reading for reading in self._readings if reading.is_behind])
                while not self._is_enough() and not self._ctx.broker.stopping:
                    await self._woken.wait()
                    self._woken.clear()
                    changed, self._changed = self._changed, set()
                    await self._read([self._by_log[log] for log in changed])
        except TimeoutError:
            return
        finally:
            self._ctx.broker.long_polls.discard(self._woken)
            for log in self._by_log:
                log.waiters.discard(self._wake)

    def _wake(self, log: PartitionLog) -> None:
        self._changed.add(log)
        self._woken.set()

    def _is_enough(self) -> bool:
        return (
            self._size >= self._min_bytes
            or not self._by_log
            or any(reading.error is not None for reading in self._readings)
        )

    def _find_log(self, reading: _Reading) -> None:
        try:
            reading.log = _find_log(self._ctx, reading.wanted)
            self._by_log[reading.log] = reading
        except KafkaError as error:
            reading.error = error

    async def _read(self, readings: list[_Reading]) -> None:
        """Read these partitions again, within what the others leave of the limits."""
        cold: list[_Reading] = []
        for reading in readings:
            if reading.log is None:
                continue
            self._size -= reading.size
            reading.batches = ()
            found = self._read_tail(reading, reading.log)
            if found is None:
                cold.append(reading)
            else:
                self._take(reading, found)
        remaining = iter(cold)
        while group := list(islice(remaining, _COLD_READS_AT_ONCE)):
            if self._size and self._size >= self._max_bytes:
                return
            for reading, found in zip(
                group, await asyncio.gather(*map(self._read_cold, group)), strict=True
            ):
                self._take(reading, self._fit(reading, found))

    def _read_tail(self, reading: _Reading, log: PartitionLog) -> list[bytes] | None:
        """None when the engine has to be asked."""
        wanted = reading.wanted
        try:
            if log.closed is not None:
                raise log.closed
            check_leader_epoch(log, wanted.current_leader_epoch)
            _check_range(log, wanted)
        except KafkaError as error:
            reading.error = error
            return []
        if wanted.fetch_offset == log.high_watermark:
            return []
        return log.tail.read(wanted.fetch_offset, self._limit(wanted), self._size == 0)

    async def _read_cold(self, reading: _Reading) -> list[bytes]:
        assert reading.log is not None
        wanted = reading.wanted
        try:
            found = await self._ctx.broker.cold_reader.read(
                reading.log, wanted.fetch_offset, self._limit(wanted)
            )
            # Rows may have gone while they were read, and a gap would look like all there is.
            _check_range(reading.log, wanted)
            return found
        except EngineError as error:
            reading.error = KafkaStorageError(f"cannot read {reading.log}: {error}")
        except OffsetOutOfRange as error:
            reading.error = error
        return []

    def _limit(self, wanted: Wanted) -> int:
        remaining: int = self._max_bytes - self._size
        return min(max(wanted.max_bytes, 0), remaining)

    def _fit(self, reading: _Reading, found: list[bytes]) -> list[bytes]:
        """As much of what was found as the limits still allow: others of its group came first."""
        limit = self._limit(reading.wanted)
        fitting: list[bytes] = []
        size = 0
        for data in found:
            size += len(data)
            if size > limit and (fitting or self._size):
                break
            fitting.append(data)
        return fitting

    def _take(self, reading: _Reading, found: list[bytes]) -> None:
        reading.batches = tuple(found)
        self._size += reading.size

    def answers(self, isolation_level: int) -> list[tuple[Wanted, _PartitionData]]:
        return [(reading.wanted, _answer(reading, isolation_level)) for reading in self._readings]


def _check_range(log: PartitionLog, wanted: Wanted) -> None:
    if not log.log_start_offset <= wanted.fetch_offset <= log.high_watermark:
        raise OffsetOutOfRange(f"{log} has offsets {log.log_start_offset} to {log.high_watermark}")


def _find_log(ctx: RequestContext, wanted: Wanted) -> PartitionLog:
    topic_key, partition = wanted.key
    if isinstance(topic_key, UUID):
        topic = ctx.broker.topics.by_id(topic_key)
        if topic is None:
            raise UnknownTopicId(f"there is no topic with id {topic_key}")
    else:
        topic = ctx.broker.topics.get(topic_key)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic {topic_key}")
    return ctx.broker.topics.log(topic, partition)


def _answer(reading: _Reading, isolation_level: int) -> _PartitionData:
    log = reading.log
    if reading.error is not None or log is None:
        return _PartitionData(
            partition_index=reading.wanted.key[1],
            error_code=reading.error.code if reading.error else 0,
            high_watermark=-1,
            last_stable_offset=-1,
            log_start_offset=-1,
            aborted_transactions=[] if isolation_level else None,
            preferred_read_replica=-1,
            records=b"",
        )
    return _PartitionData(
        partition_index=reading.wanted.key[1],
        error_code=0,
        high_watermark=log.high_watermark,
        last_stable_offset=log.high_watermark,
        log_start_offset=log.log_start_offset,
        aborted_transactions=[] if isolation_level else None,
        preferred_read_replica=-1,
        records=b"".join(reading.batches),
    )


def _by_topic(answers: list[tuple[Wanted, _PartitionData]]) -> list[_Topic]:
    topics: dict[str | UUID, _Topic] = {}
    for wanted, partition in answers:
        key = wanted.key[0]
        if key not in topics:
            topics[key] = (
                _Topic(topic_id=key, partitions=[])
                if isinstance(key, UUID)
                else _Topic(topic=key, partitions=[])
            )
        topics[key].partitions.append(partition)
    return list(topics.values())
