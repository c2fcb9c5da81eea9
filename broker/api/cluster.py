"""The cluster as admin tools see it: its brokers, and what their disks hold.

DescribeCluster (60), versions 0-2
    v1 endpoint type (KIP-919): brokers only, there are no controllers to be reached; v2 fenced
    brokers (KIP-1073), of which there are none.
DescribeLogDirs (35), versions 1-5
    v2 flexible; v3 error code for the whole answer; v4 total and usable bytes (KIP-827);
    v5 cordoned directories (KIP-1066), of which there are none.
    A partition's size is that of its keys and values before ClickHouse compresses them. Each broker
    tells of the partitions that it leads; in a cluster its "directory" is the ClickHouse servers.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from typing import TYPE_CHECKING

from kafka.protocol.admin import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)

from broker.api.operations import CLUSTER_OPERATIONS, NOT_ASKED
from protocol.errors import (
    KafkaError,
    KafkaStorageError,
    MismatchedEndpointType,
    UnsupportedEndpointType,
)
from storage.engine import EngineError

if TYPE_CHECKING:
    from broker.api.context import RequestContext

log = logging.getLogger(__name__)

_BROKERS = 1
_CONTROLLERS = 2
_SHARDS = "clickhouse"
_UNKNOWN_BYTES = -1


async def describe_cluster(
    ctx: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    error = _endpoint_error(ctx.header.api_version, request.endpoint_type)
    leadership = ctx.broker.leadership
    asked = request.include_cluster_authorized_operations and error is None
    return DescribeClusterResponse(
        throttle_time_ms=0,
        error_code=error.code if error else 0,
        error_message=error.message if error else None,
        endpoint_type=_BROKERS,
        cluster_id=ctx.broker.cluster_id,
        controller_id=leadership.controller_id,
        brokers=[
            DescribeClusterResponse.DescribeClusterBroker(
                broker_id=node.node_id,
                host=node.host,
                port=node.port,
                rack=node.rack,
                is_fenced=False,
            )
            for node in ([] if error else leadership.brokers())
        ],
        authorized_operations=CLUSTER_OPERATIONS if asked else NOT_ASKED,
    )


def _endpoint_error(version: int, endpoint_type: int) -> KafkaError | None:
    if version == 0 or endpoint_type == _BROKERS:
        return None
    if endpoint_type == _CONTROLLERS:
        return MismatchedEndpointType("Controllers are asked for; this is a broker.")
    return UnsupportedEndpointType(f"There is no endpoint type {endpoint_type}.")


async def describe_log_dirs(
    ctx: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    catalog = ctx.broker.topics
    asked = (
        None
        if request.topics is None
        else {(item.topic, partition) for item in request.topics for partition in item.partitions}
    )
    directory = ctx.broker.data_dir
    name = _SHARDS if directory is None else str(directory)
    row = DescribeLogDirsResponse.DescribeLogDirsResult
    total, usable = _UNKNOWN_BYTES, _UNKNOWN_BYTES
    try:
        if directory is not None:
            # A disk may be slow to answer: not on the event loop.
            disk = await asyncio.to_thread(shutil.disk_usage, directory)
            total, usable = disk.total, disk.free
        sizes = await catalog.size_bytes()
    except (OSError, EngineError) as error:
        log.warning("%s cannot be described: %s", name, error)
        offline = row(error_code=KafkaStorageError.code, log_dir=name, topics=[])
        return DescribeLogDirsResponse(throttle_time_ms=0, error_code=0, results=[offline])
    topics = []
    for topic in catalog.all():
        partitions = [
            row.DescribeLogDirsTopic.DescribeLogDirsPartition(
                partition_index=index,
                partition_size=sizes.get((topic.topic_id, index), 0),
                offset_lag=0,
                is_future_key=False,
            )
            for index in range(topic.partitions)
            if asked is None or (topic.name, index) in asked
            if ctx.broker.leadership.leader(topic.topic_id, index).node_id == ctx.broker.node_id
        ]
        if partitions:
            topics.append(row.DescribeLogDirsTopic(name=topic.name, partitions=partitions))
    return DescribeLogDirsResponse(
        throttle_time_ms=0,
        error_code=0,
        results=[
            row(
                error_code=0,
                log_dir=name,
                topics=topics,
                total_bytes=total,
                usable_bytes=usable,
                is_cordoned=False,
            )
        ],
    )
