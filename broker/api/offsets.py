"""ListOffsets, versions 1 to 11, and OffsetForLeaderEpoch, versions 2 to 4.

ListOffsets: 2 isolation level; 4 leader epochs; 6 flexible; 7 offset of the largest timestamp (-3,
KIP-734); 8 earliest local offset (-4, KIP-405); 9 last tiered offset (-5, KIP-1005); 10 a time-out;
11 earliest offset pending upload (-6, KIP-1023). Nothing is tiered here: the local log is the log.
OffsetForLeaderEpoch: 3 asks as replica or consumer; 4 flexible.

Until transactions come, the last stable offset is the high watermark.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import TypeAlias

from kafka.protocol.consumer import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

from broker.api.context import RequestContext
from broker.log.partition import PartitionLog
from protocol.errors import (
    FencedLeaderEpoch,
    InvalidRequest,
    KafkaError,
    KafkaStorageError,
    UnknownLeaderEpoch,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from storage.engine import EngineError, Parameter

_LATEST = -1
_EARLIEST = -2
_MAX_TIMESTAMP = -3
_EARLIEST_LOCAL = -4
_LATEST_TIERED = -5
_EARLIEST_PENDING_UPLOAD = -6
_SINCE_VERSION = {
    _MAX_TIMESTAMP: 7,
    _EARLIEST_LOCAL: 8,
    _LATEST_TIERED: 9,
    _EARLIEST_PENDING_UPLOAD: 11,
}
_UNKNOWN = (-1, -1)
_LOOKUPS_AT_ONCE = 2  # of the engine's readers, so that one request leaves some for others

_RANGE = (
    " FROM messages WHERE topic = {topic:String} AND topic_id = {topic_id:UUID}"
    " AND partition = {partition:Int32} AND offset >= {first:Int64} AND offset < {end:Int64}"
)

_EPOCH_END = (
    f"SELECT leader_epoch, max(offset) + 1{_RANGE} AND leader_epoch <= {{epoch:Int32}}"
    " GROUP BY leader_epoch ORDER BY leader_epoch DESC LIMIT 1"
)

_OffsetsPartition: TypeAlias = (
    ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse
)


async def list_offsets(ctx: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    await ctx.broker.topics.await_logs(
        [
            (topic.name, partition.partition_index)
            for topic in request.topics
            for partition in topic.partitions
        ]
    )
    topics = []
    for topic in request.topics:
        times = Counter(partition.partition_index for partition in topic.partitions)
        rest = iter(topic.partitions)
        partitions: list[_OffsetsPartition] = []
        while group := list(islice(rest, _LOOKUPS_AT_ONCE)):
            partitions += await asyncio.gather(
                *(
                    _list_partition(ctx, topic.name, partition, times[partition.partition_index])
                    for partition in group
                )
            )
        topics.append(
            ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=partitions)
        )
    return ListOffsetsResponse(throttle_time_ms=0, topics=topics)


async def _list_partition(
    ctx: RequestContext,
    name: str,
    asked: ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition,
    times_asked: int,
) -> _OffsetsPartition:
    try:
        if times_asked > 1:
            raise InvalidRequest("a partition is asked for twice")
        partition = find_partition(ctx, name, asked.partition_index, asked.current_leader_epoch)
        timestamp, offset = await _find(ctx, partition, asked.timestamp)
    except KafkaError as error:
        return _OffsetsPartition(
            partition_index=asked.partition_index,
            error_code=error.code,
            timestamp=-1,
            offset=-1,
            leader_epoch=-1,
        )
    return _OffsetsPartition(
        partition_index=asked.partition_index,
        error_code=0,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=partition.leader_epoch if offset >= 0 else -1,
    )


async def _find(ctx: RequestContext, partition: PartitionLog, timestamp: int) -> tuple[int, int]:
    """(timestamp, offset), both -1 when no record matches."""
    if ctx.header.api_version < _SINCE_VERSION.get(timestamp, 0):
        raise UnsupportedVersion(f"timestamp {timestamp} needs a newer ListOffsets")
    if timestamp == _LATEST:
        return -1, partition.high_watermark
    if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
        return -1, partition.log_start_offset
    if timestamp in (_LATEST_TIERED, _EARLIEST_PENDING_UPLOAD):
        return _UNKNOWN
    if timestamp == _MAX_TIMESTAMP:
        return await _ask(
            ctx,
            partition,
            f"SELECT timestamp_ms, offset{_RANGE} ORDER BY timestamp_ms DESC, offset LIMIT 1",
            best=_latest,
        )
    return await _ask(
        ctx,
        partition,
        f"SELECT timestamp_ms, offset{_RANGE} AND timestamp_ms >= {{timestamp:Int64}}"
        " ORDER BY topic, partition, offset LIMIT 1",
        best=_lowest_offset,
        timestamp=timestamp,
    )


_Best: TypeAlias = Callable[[list[tuple[int, int]]], tuple[int, int]]


def _lowest_offset(found: list[tuple[int, int]]) -> tuple[int, int]:
    return min(found, key=lambda one: one[1])


def _latest(found: list[tuple[int, int]]) -> tuple[int, int]:
    """Of the largest timestamp, the lowest offset."""
    return max(found, key=lambda one: (one[0], -one[1]))


async def _ask(
    ctx: RequestContext, partition: PartitionLog, sql: str, *, best: _Best, **more: int
) -> tuple[int, int]:
    """The row that `sql` finds; of those of several engines, the best."""
    params: dict[str, Parameter] = {
        "topic": partition.topic.name,
        "topic_id": str(partition.topic_id),
        "partition": partition.partition,
        "first": partition.log_start_offset,
        "end": partition.high_watermark,
        **more,
    }
    found: list[tuple[int, int]] = []
    try:
        for engine in ctx.broker.row_sources.engines(partition):
            rows = await engine.rows(sql, params)
            found += [(timestamp, offset) for timestamp, offset in rows]
    except EngineError as error:
        raise KafkaStorageError(f"cannot read {partition}: {error}") from error
    return best(found) if found else _UNKNOWN


async def offset_for_leader_epoch(
    ctx: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    result = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
    return OffsetForLeaderEpochResponse(
        throttle_time_ms=0,
        topics=[
            result(
                topic=topic.topic,
                partitions=[await _epoch_end(ctx, topic.topic, one) for one in topic.partitions],
            )
            for topic in request.topics
        ],
    )


async def _epoch_end(
    ctx: RequestContext,
    name: str,
    asked: OffsetForLeaderEpochRequest.OffsetForLeaderTopic.OffsetForLeaderPartition,
) -> OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult.EpochEndOffset:
    """The largest epoch up to the one asked for that has records, and where it ends (KIP-320)."""
    end = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult.EpochEndOffset
    try:
        partition = find_partition(ctx, name, asked.partition, asked.current_leader_epoch)
        if asked.leader_epoch == partition.leader_epoch:
            epoch, offset = partition.leader_epoch, partition.high_watermark
        elif 0 <= asked.leader_epoch < partition.leader_epoch:
            epoch, offset = await _ask(
                ctx, partition, _EPOCH_END, best=max, epoch=asked.leader_epoch
            )
        else:
            epoch, offset = _UNKNOWN
    except KafkaError as error:
        return end(error_code=error.code, partition=asked.partition, leader_epoch=-1, end_offset=-1)
    return end(error_code=0, partition=asked.partition, leader_epoch=epoch, end_offset=offset)


def find_partition(
    ctx: RequestContext, name: str, index: int, current_leader_epoch: int
) -> PartitionLog:
    """The log a consumer means, if its idea of the leader epoch is ours (KIP-320)."""
    topic = ctx.broker.topics.get(name)
    if topic is None:
        raise UnknownTopicOrPartition(f"there is no topic {name}")
    partition = ctx.broker.topics.log(topic, index)
    check_leader_epoch(partition, current_leader_epoch)
    return partition


def check_leader_epoch(partition: PartitionLog, current_leader_epoch: int) -> None:
    """Raises `FencedLeaderEpoch` or `UnknownLeaderEpoch`; -1 asks for no check."""
    if current_leader_epoch == -1 or current_leader_epoch == partition.leader_epoch:
        return
    if current_leader_epoch < partition.leader_epoch:
        raise FencedLeaderEpoch(f"the leader epoch of {partition} is {partition.leader_epoch}")
    raise UnknownLeaderEpoch(f"the leader epoch of {partition} is {partition.leader_epoch}")
