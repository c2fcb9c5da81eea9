"""DeleteRecords (21), versions 0-2: give up the beginning of a partition.

v1 may be throttled (KIP-219, never is); v2 flexible.

Offset -1 means the high watermark. Nothing moves where the log starts beyond the offset already.
The answer tells where the log starts then, which is stored, and it waits for that and not for
`timeout_ms`. A topic that is only compacted keeps its records, as in Kafka: POLICY_VIOLATION. Rows
go later (broker/log/sweep.py).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TypeAlias

from kafka.protocol.admin import DeleteRecordsRequest, DeleteRecordsResponse

from broker.api.context import RequestContext
from broker.log.partition import PartitionLog
from protocol.errors import (
    InvalidRequest,
    KafkaError,
    KafkaStorageError,
    OffsetOutOfRange,
    PolicyViolation,
    UnknownTopicOrPartition,
)
from storage.engine import EngineError

_HIGH_WATERMARK = -1
_NO_OFFSET = -1

_Topic: TypeAlias = DeleteRecordsResponse.DeleteRecordsTopicResult
_Partition: TypeAlias = DeleteRecordsResponse.DeleteRecordsTopicResult.DeleteRecordsPartitionResult


async def delete_records(
    ctx: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    times = Counter(
        (topic.name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    )
    # Side by side: what they store is one block then.
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
        _Topic(name=topic.name, partitions=[next(partitions) for _ in topic.partitions])
        for topic in request.topics
    ]
    return DeleteRecordsResponse(throttle_time_ms=0, topics=topics)


async def _delete(
    ctx: RequestContext, name: str, index: int, offset: int, times: Counter[tuple[str, int]]
) -> _Partition:
    try:
        if times[name, index] > 1:
            raise InvalidRequest("a partition is named twice")
        partition = _find(ctx, name, index)
        await _raise(ctx, partition, offset)
    except KafkaError as error:
        return _Partition(partition_index=index, low_watermark=_NO_OFFSET, error_code=error.code)
    return _Partition(partition_index=index, low_watermark=partition.log_start_offset, error_code=0)


def _find(ctx: RequestContext, name: str, index: int) -> PartitionLog:
    topic = ctx.broker.topics.get(name)
    if topic is None:
        raise UnknownTopicOrPartition(f"there is no topic {name}")
    partition = ctx.broker.topics.log(topic, index)
    if "delete" not in topic.config.cleanup_policy:
        raise PolicyViolation(f"{partition} is compacted: its records are not deleted by offset")
    return partition


async def _raise(ctx: RequestContext, partition: PartitionLog, offset: int) -> None:
    if partition.closed is not None:
        raise partition.closed
    if offset == _HIGH_WATERMARK:
        offset = partition.high_watermark
    if not 0 <= offset <= partition.high_watermark:
        raise OffsetOutOfRange(f"{partition} ends at {partition.high_watermark}")
    try:
        await ctx.broker.log_starts.raise_to(partition, offset)
    except EngineError as error:
        raise KafkaStorageError(f"cannot store where {partition} begins: {error}") from error
    if partition.closed is not None:
        raise partition.closed
