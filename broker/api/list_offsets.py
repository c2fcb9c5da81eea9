"""ListOffsets (2), versions 1 to 11: the offset at a timestamp, or an end of the log.

    v2 isolation level; v4 leader epochs; v6 flexible
    v7 the offset of the largest timestamp: -3 (KIP-734)
    v8 the earliest local offset: -4 (KIP-405); v9 the last tiered offset: -5 (KIP-1005)
    v10 a time-out, which is ignored; v11 the earliest offset to be tiered: -6 (KIP-1023)

Timestamp -1 means the end of the log, -2 its start. Nothing is tiered here: the local log is the
whole log. With isolation level 1 (read_committed) the log ends at its last stable offset.

The leader epoch of the answer is the current one for the end of the log, the one in which the log
starts for its start (-1 if that is not known), and else that of the record.

Errors of a partition: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH,
UNKNOWN_LEADER_EPOCH, INVALID_REQUEST (named twice), UNSUPPORTED_VERSION (a special timestamp that
this version does not have), KAFKA_STORAGE_ERROR (ClickHouse cannot be read).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.api.topic_lookup import find_partition
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.partition_sql import IS_IN_RANGE, readable_range
from brokerhouse.common.batched import batched
from brokerhouse.protocol.errors import (
    InvalidRequest,
    KafkaError,
    KafkaStorageError,
    UnsupportedVersion,
)
from brokerhouse.sql.queries import query
from brokerhouse.storage.engine import EngineError

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


class _FoundOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int


_NOT_FOUND = _FoundOffset(-1, -1, -1)


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
        partitions: list[_OffsetsPartition] = []
        for group in batched(topic.partitions, _LOOKUPS_AT_ONCE):
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
            raise InvalidRequest("The request names a partition more than once.")
        partition = find_partition(ctx, name, asked.partition_index, asked.current_leader_epoch)
        found, code = await _find(ctx, partition, asked.timestamp, isolation_level), 0
    except KafkaError as error:
        found, code = _NOT_FOUND, error.code
    return _OffsetsPartition(
        partition_index=asked.partition_index, error_code=code, **found._asdict()
    )


async def _find(
    ctx: RequestContext, partition: PartitionLog, timestamp: int, isolation_level: int
) -> _FoundOffset:
    if ctx.version < _SINCE_VERSION.get(timestamp, 0):
        raise UnsupportedVersion(f"Timestamp {timestamp} needs a newer version of ListOffsets.")
    if timestamp == _LATEST:
        end = partition.last_stable_offset if isolation_level else partition.high_watermark
        return _FoundOffset(-1, end, partition.leader_epoch)
    if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
        start = partition.log_start_offset
        return _FoundOffset(-1, start, partition.epochs.at(start))
    if timestamp in (_LATEST_TIERED, _EARLIEST_PENDING_UPLOAD):
        return _NOT_FOUND
    if timestamp == _MAX_TIMESTAMP:
        found = await _ask(ctx, partition, "largest_timestamp", best=_latest)
    else:
        found = await _ask(
            ctx, partition, "offset_of_timestamp", best=_lowest_offset, timestamp=timestamp
        )
    is_unstable = isolation_level and found.offset >= partition.last_stable_offset
    return _NOT_FOUND if is_unstable else found


async def _ask(
    ctx: RequestContext,
    partition: PartitionLog,
    name: str,
    *,
    best: Callable[[list[_FoundOffset]], _FoundOffset],
    **more: int,
) -> _FoundOffset:
    """The row of the query sql/queries/`name`.sql, or `_NOT_FOUND`.

    Every engine that may have rows of the partition is asked, and `best` chooses among their rows.
    `more` are parameters of the query. Raises `KafkaStorageError`.
    """
    text = query(name, is_in_range=IS_IN_RANGE)
    params = readable_range(partition) | more
    found: list[_FoundOffset] = []
    try:
        for engine in ctx.broker.row_sources.engines(partition):
            found += [_FoundOffset(*row) for row in await engine.rows(text, params)]
    except EngineError as error:
        raise KafkaStorageError(f"Cannot read {partition}: {error}") from error
    return best(found) if found else _NOT_FOUND


def _lowest_offset(found: list[_FoundOffset]) -> _FoundOffset:
    return min(found, key=lambda one: one.offset)


def _latest(found: list[_FoundOffset]) -> _FoundOffset:
    """The lowest offset of the largest timestamp."""
    return max(found, key=lambda one: (one.timestamp, -one.offset))


API = Api(ListOffsetsRequest, ListOffsetsResponse, versions=(1, 11), handler=list_offsets)
