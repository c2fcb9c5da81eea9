"""DescribeLogDirs (35), versions 1 to 5: the sizes of partitions and of the disk.

    v2 flexible; v3 error code for the whole answer; v4 total and usable bytes (KIP-827)
    v5 cordoned directories (KIP-1066): this broker has none

A partition's size is that of its keys and values before ClickHouse compresses them. Each broker
lists the partitions that it leads. In a cluster the only "directory" is the ClickHouse servers.

Errors of a directory: KAFKA_STORAGE_ERROR (the disk or ClickHouse does not answer).
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Mapping
from uuid import UUID

from kafka.protocol.admin import DescribeLogDirsRequest, DescribeLogDirsResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.api.log_dirs import leads, log_dir_name
from brokerhouse.broker.api.topic_lookup import readable_topics
from brokerhouse.common.counted_lines import counted
from brokerhouse.common.tasks import in_turns
from brokerhouse.protocol.errors import KafkaStorageError
from brokerhouse.storage.engine import EngineError

log = logging.getLogger(__name__)

_UNKNOWN_BYTES = -1
_TOPICS_PER_TURN = 200


async def describe_log_dirs(
    ctx: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    directory = ctx.broker.data_dir
    name = log_dir_name(ctx)
    result = DescribeLogDirsResponse.DescribeLogDirsResult
    total, usable = _UNKNOWN_BYTES, _UNKNOWN_BYTES
    try:
        if directory is not None:
            # A disk may be slow to answer, so the event loop does not wait for it.
            disk = await asyncio.to_thread(shutil.disk_usage, directory)
            total, usable = disk.total, disk.free
        sizes = await ctx.broker.topics.size_bytes()
    except (OSError, EngineError) as error:
        log.warning("DescribeLogDirs: %s cannot be described: %s", name, error, extra=counted())
        offline = result(error_code=KafkaStorageError.code, log_dir=name, topics=[])
        return DescribeLogDirsResponse(throttle_time_ms=0, error_code=0, results=[offline])
    described = result(
        error_code=0,
        log_dir=name,
        topics=[topic async for topic in _topics(ctx, request, sizes)],
        total_bytes=total,
        usable_bytes=usable,
        is_cordoned=False,
    )
    return DescribeLogDirsResponse(throttle_time_ms=0, error_code=0, results=[described])


async def _topics(
    ctx: RequestContext, request: DescribeLogDirsRequest, sizes: Mapping[tuple[UUID, int], int]
) -> AsyncIterator[DescribeLogDirsResponse.DescribeLogDirsResult.DescribeLogDirsTopic]:
    """The requested topics, with the partitions that this broker leads."""
    row = DescribeLogDirsResponse.DescribeLogDirsResult.DescribeLogDirsTopic
    asked = (
        None
        if request.topics is None
        else {(item.topic, partition) for item in request.topics for partition in item.partitions}
    )
    async for topic in in_turns(readable_topics(ctx), _TOPICS_PER_TURN):
        partitions = [
            row.DescribeLogDirsPartition(
                partition_index=index,
                partition_size=sizes.get((topic.topic_id, index), 0),
                offset_lag=0,
                is_future_key=False,
            )
            for index in range(topic.partitions)
            if asked is None or (topic.name, index) in asked
            if leads(ctx, topic, index)
        ]
        if partitions:
            yield row(name=topic.name, partitions=partitions)


API = Api(
    DescribeLogDirsRequest, DescribeLogDirsResponse, versions=(1, 5), handler=describe_log_dirs
)
