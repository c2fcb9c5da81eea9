"""ListOffsets (2), versions 1 to 11: the offset at a timestamp, or an end of the log.

    v2 isolation level; v4 leader epochs; v6 flexible
    v7 the offset of the largest timestamp: -3 (KIP-734)
    v8 the earliest local offset: -4 (KIP-405); v9 the last tiered offset: -5 (KIP-1005)
    v10 a time-out, which is ignored; v11 the earliest offset to be tiered: -6 (KIP-1023)

Timestamp -1 means the end of the log, -2 its start. Nothing is tiered here: the local log is the
whole log. With isolation level 1 (read_committed) the log ends at its last stable offset.

Errors of a partition: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH,
UNKNOWN_LEADER_EPOCH, INVALID_REQUEST (named twice), UNSUPPORTED_VERSION (a special timestamp that
this version does not have), KAFKA_STORAGE_ERROR (ClickHouse cannot be read).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import islice
from typing import TypeAlias

from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse

from broker.api.context import Api, RequestContext
from broker.api.offset_queries import UNKNOWN, ask
from broker.api.topic_lookup import find_partition
from broker.log.partition import PartitionLog
from protocol.errors import InvalidRequest, KafkaError, UnsupportedVersion

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
_LOOKUPS_AT_ONCE = 2  # of the engine's readers, so that one request leaves some for others

_OffsetsPartition: TypeAlias = (
    ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse
)


async def list_offsets(ctx: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    await ctx.broker.partitions.await_open(
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
                    _list_partition(
                        ctx,
                        topic.name,
                        partition,
                        times[partition.partition_index],
                        request.isolation_level,
                    )
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
    isolation_level: int,
) -> _OffsetsPartition:
    try:
        if times_asked > 1:
            raise InvalidRequest("the request names a partition more than once")
        partition = find_partition(ctx, name, asked.partition_index, asked.current_leader_epoch)
        timestamp, offset = await _find(ctx, partition, asked.timestamp, isolation_level)
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


async def _find(
    ctx: RequestContext, partition: PartitionLog, timestamp: int, isolation_level: int
) -> tuple[int, int]:
    """(timestamp, offset), both -1 if no record matches."""
    if ctx.version < _SINCE_VERSION.get(timestamp, 0):
        raise UnsupportedVersion(f"timestamp {timestamp} needs a newer version of ListOffsets")
    if timestamp == _LATEST:
        return -1, partition.last_stable_offset if isolation_level else partition.high_watermark
    if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
        return -1, partition.log_start_offset
    if timestamp in (_LATEST_TIERED, _EARLIEST_PENDING_UPLOAD):
        return UNKNOWN
    if timestamp == _MAX_TIMESTAMP:
        return await ask(ctx, partition, "largest_timestamp", best=_latest)
    found = await ask(
        ctx, partition, "offset_of_timestamp", best=_lowest_offset, timestamp=timestamp
    )
    is_unstable = isolation_level and found[1] >= partition.last_stable_offset
    return UNKNOWN if is_unstable else found


def _lowest_offset(found: list[tuple[int, int]]) -> tuple[int, int]:
    return min(found, key=lambda one: one[1])


def _latest(found: list[tuple[int, int]]) -> tuple[int, int]:
    """The lowest offset of the largest timestamp."""
    return max(found, key=lambda one: (one[0], -one[1]))


API = Api(ListOffsetsRequest, ListOffsetsResponse, versions=(1, 11), handler=list_offsets)
