"""AlterPartitionReassignments (45), versions 0 to 1: moves partitions to other brokers (KIP-455).

    v1 the request says whether the number of replicas may change (KIP-860)

A partition has one replica, on its leader, and slots decide which broker that is. So a partition
can be "moved" only to where it is, which succeeds at once; ClickHouse replicates the rows. There is
never a reassignment that could be cancelled.

Errors of a partition: UNKNOWN_TOPIC_OR_PARTITION, INVALID_REPLICA_ASSIGNMENT (no broker, an unknown
one, one twice, another one than the leader), INVALID_REPLICATION_FACTOR (the number of replicas
would change, which the request forbids), NO_REASSIGNMENT_IN_PROGRESS (null replicas: cancel).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from kafka.protocol.admin import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.api.new_topics import check_brokers
from brokerhouse.broker.api.topic_lookup import check_partition, find_readable_topic
from brokerhouse.protocol.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    KafkaError,
    NoReassignmentInProgress,
)

_Topic: TypeAlias = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
_Partition: TypeAlias = (
    AlterPartitionReassignmentsResponse.ReassignableTopicResponse.ReassignablePartitionResponse
)


async def alter_partition_reassignments(
    ctx: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    may_change = request.allow_replication_factor_change if ctx.version >= 1 else True
    answer = AlterPartitionReassignmentsResponse(
        throttle_time_ms=0,
        error_code=0,
        error_message=None,
        responses=[
            _Topic(
                name=topic.name,
                partitions=[
                    _result(
                        one.partition_index,
                        _refusal(ctx, topic.name, one.partition_index, one.replicas, may_change),
                    )
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )
    answer.allow_replication_factor_change = may_change
    return answer


def _result(index: int, error: KafkaError | None) -> _Partition:
    return _Partition(
        partition_index=index,
        error_code=0 if error is None else error.code,
        error_message=None if error is None else error.message,
    )


def _refusal(
    ctx: RequestContext, name: str, index: int, replicas: Sequence[int] | None, may_change: bool
) -> KafkaError | None:
    """Why the partition cannot get these replicas; None if it has them."""
    try:
        topic = find_readable_topic(ctx, name)
        check_partition(topic, index)
        if replicas is None:
            raise NoReassignmentInProgress(f"{name}-{index} is not being reassigned.")
        if not replicas:
            raise InvalidReplicaAssignment("The assignment names no broker.")
        check_brokers(ctx, replicas)
        if len(set(replicas)) < len(replicas):
            raise InvalidReplicaAssignment("The assignment names a broker more than once.")
    except KafkaError as error:
        return error
    leader = ctx.broker.leadership.leader(topic.topic_id, index).node_id
    if list(replicas) == [leader]:
        return None
    if len(replicas) != 1 and not may_change:
        return InvalidReplicationFactor(f"{name}-{index} would get {len(replicas)} replicas.")
    return InvalidReplicaAssignment(
        f"{name}-{index} has one replica, on its leader (broker {leader}); brokers share the "
        "slots of a cluster by themselves, and ClickHouse replicates the rows."
    )


API = Api(
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    versions=(0, 1),
    handler=alter_partition_reassignments,
)
