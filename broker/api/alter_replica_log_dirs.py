"""AlterReplicaLogDirs (34), versions 1 to 2: moves partitions to another directory (KIP-113).

    v2 flexible

A broker has one directory, the one that DescribeLogDirs names. A partition can be "moved" only to
where it is, which succeeds at once.

Errors of a partition: LOG_DIR_NOT_FOUND (another directory), UNKNOWN_TOPIC_OR_PARTITION,
REPLICA_NOT_AVAILABLE (another broker leads it).
"""

from __future__ import annotations

from kafka.protocol.admin import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.api.log_dirs import leads, log_dir_name
from brokerhouse.broker.api.topic_lookup import find_topic, has_partition
from brokerhouse.protocol.errors import (
    KafkaError,
    LogDirNotFound,
    ReplicaNotAvailable,
    UnknownTopicOrPartition,
)

_Result = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult


async def alter_replica_log_dirs(
    ctx: RequestContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    codes: dict[str, dict[int, int]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                code = _error_code(ctx, directory.path, topic.name, index)
                codes.setdefault(topic.name, {})[index] = code
    return AlterReplicaLogDirsResponse(
        throttle_time_ms=0,
        results=[
            _Result(
                topic_name=name,
                partitions=[
                    _Result.AlterReplicaLogDirPartitionResult(
                        partition_index=index, error_code=code
                    )
                    for index, code in partitions.items()
                ],
            )
            for name, partitions in codes.items()
        ],
    )


def _error_code(ctx: RequestContext, path: str, name: str, index: int) -> int:
    if path != log_dir_name(ctx):
        return LogDirNotFound.code
    try:
        topic = find_topic(ctx, name)
    except KafkaError as error:
        return error.code
    if not has_partition(topic, index):
        return UnknownTopicOrPartition.code
    return 0 if leads(ctx, topic, index) else ReplicaNotAvailable.code


API = Api(
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    versions=(1, 2),
    handler=alter_replica_log_dirs,
)
