"""DeleteRecords (21), versions 0 to 2: deletes the records of a partition before an offset.

    v1 may be throttled (KIP-219); this broker never throttles; v2 flexible

Offset -1 means the high watermark. If the log starts at or after the offset already, nothing
changes. The answer has the new log start, and comes when that is stored; `timeout_ms` is ignored.
The rows are deleted later (broker/log/sweep.py).

Errors of a partition: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, OFFSET_OUT_OF_RANGE,
POLICY_VIOLATION (the topic is only compacted, as in Kafka), INVALID_REQUEST (named twice),
KAFKA_STORAGE_ERROR (refused by ClickHouse).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TypeAlias

from kafka.protocol.admin import DeleteRecordsRequest, DeleteRecordsResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.api.topic_lookup import find_topic
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.protocol.errors import (
    InvalidRequest,
    KafkaError,
    KafkaStorageError,
    OffsetOutOfRange,
    PolicyViolation,
)
from brokerhouse.storage.engine import EngineError

_HIGH_WATERMARK = -1
_NO_OFFSET = -1

_TopicResult: TypeAlias = DeleteRecordsResponse.DeleteRecordsTopicResult
_PartitionResult: TypeAlias = (
    DeleteRecordsResponse.DeleteRecordsTopicResult.DeleteRecordsPartitionResult
)


async def delete_records(
    ctx: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    times = Counter(
        (topic.name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    )
    # At the same time: all their log starts are stored as one block.
    partitions = iter(
        await asyncio.gather(
            *(
                _delete(ctx, topic.name, asked.partition_index, asked.offset, times)
                for topic in request.topics
                for asked in topic.partitions
            )
        )
    )
    topics = [
        _TopicResult(name=topic.name, partitions=[next(partitions) for _ in topic.partitions])
        for topic in request.topics
    ]
    return DeleteRecordsResponse(throttle_time_ms=0, topics=topics)


async def _delete(
    ctx: RequestContext, name: str, index: int, offset: int, times: Counter[tuple[str, int]]
) -> _PartitionResult:
    try:
        if times[name, index] > 1:
            raise InvalidRequest("The request names a partition more than once.")
        partition = _find(ctx, name, index)
        await _raise_log_start(ctx, partition, offset)
    except KafkaError as error:
        return _PartitionResult(
            partition_index=index, low_watermark=_NO_OFFSET, error_code=error.code
        )
    return _PartitionResult(
        partition_index=index, low_watermark=partition.log_start_offset, error_code=0
    )


def _find(ctx: RequestContext, name: str, index: int) -> PartitionLog:
    topic = find_topic(ctx, name)
    partition = ctx.broker.partitions.log_of(topic, index)
    if "delete" not in topic.config.cleanup_policy:
        raise PolicyViolation(
            f"{partition} is compacted, so its records cannot be deleted by offset."
        )
    return partition


async def _raise_log_start(ctx: RequestContext, partition: PartitionLog, offset: int) -> None:
    if partition.closed is not None:
        raise partition.closed
    if offset == _HIGH_WATERMARK:
        offset = partition.high_watermark
    if not 0 <= offset <= partition.high_watermark:
        raise OffsetOutOfRange(f"{partition} ends at offset {partition.high_watermark}.")
    try:
        await ctx.broker.log_starts.raise_to(partition, offset)
    except EngineError as error:
        raise KafkaStorageError(f"Cannot store the log start of {partition}: {error}") from error
    if partition.closed is not None:
        raise partition.closed


API = Api(DeleteRecordsRequest, DeleteRecordsResponse, versions=(0, 2), handler=delete_records)
