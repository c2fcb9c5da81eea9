"""DescribeQuorum (55), versions 0 to 2: who keeps the metadata of the cluster (KIP-595).

    v1 when replicas fetched last (KIP-836); v2 nodes, directories, error messages (KIP-853)

Brokers keep their metadata in the engine, and those of a cluster in ClickHouse Keeper: there is no
log of it. So the answer describes one that the broker with the lowest node id leads; the other
brokers observe it and are never behind. Kafka's tools show from it which brokers are alive. Its end
grows with time: Kafka's controller adds a record every 500 ms if there is nothing else to add
(metadata.max.idle.interval.ms), and monitors take an end that stands still for a failure. Its epoch
grows when slots move.

Errors of a partition: UNKNOWN_TOPIC_OR_PARTITION (anything but partition 0 of __cluster_metadata).
"""

from __future__ import annotations

from typing import TypeAlias
from uuid import UUID

from kafka.protocol.admin import DescribeQuorumRequest, DescribeQuorumResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.endpoints import BrokerEndpoint
from brokerhouse.common.clock import wall_ms
from brokerhouse.protocol.errors import UnknownTopicOrPartition

_METADATA = "__cluster_metadata"
_NO_DIRECTORY = UUID(int=0)
_IDLE_INTERVAL_MS = 500
_Topic: TypeAlias = DescribeQuorumResponse.TopicData
_Partition: TypeAlias = DescribeQuorumResponse.TopicData.PartitionData
_Replica: TypeAlias = DescribeQuorumResponse.TopicData.PartitionData.ReplicaState
_Node: TypeAlias = DescribeQuorumResponse.Node


async def describe_quorum(
    ctx: RequestContext, request: DescribeQuorumRequest
) -> DescribeQuorumResponse:
    asked = [(topic.topic_name, one) for topic in request.topics for one in topic.partitions]
    is_about_metadata = any(_is_metadata(name, one.partition_index) for name, one in asked)
    nodes = ctx.seen(ctx.broker.leadership.brokers()) if is_about_metadata else []
    return DescribeQuorumResponse(
        error_code=0,
        error_message=None,
        topics=[
            _Topic(
                topic_name=topic.topic_name,
                partitions=[
                    _described(ctx, topic.topic_name, one.partition_index)
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ],
        nodes=[_node(ctx, one) for one in nodes],
    )


def _is_metadata(topic: str, index: int) -> bool:
    return (topic, index) == (_METADATA, 0)


def _described(ctx: RequestContext, topic: str, index: int) -> _Partition:
    if not _is_metadata(topic, index):
        return _Partition(
            partition_index=index,
            error_code=UnknownTopicOrPartition.code,
            error_message=f"Only {_METADATA}-0 has a quorum.",
            leader_id=0,
            leader_epoch=0,
            high_watermark=0,
            current_voters=[],
            observers=[],
        )
    leader, now_ms = ctx.broker.leadership.controller_id, wall_ms()
    end = now_ms // _IDLE_INTERVAL_MS
    ids = [one.node_id for one in ctx.broker.leadership.brokers()]
    return _Partition(
        partition_index=index,
        error_code=0,
        error_message=None,
        leader_id=leader,
        leader_epoch=ctx.broker.leadership.controller_epoch,
        high_watermark=end,
        current_voters=[_replica(leader, end, now_ms)],
        observers=[_replica(node_id, end, now_ms) for node_id in ids if node_id != leader],
    )


def _replica(node_id: int, end: int, now_ms: int) -> _Replica:
    return _Replica(
        replica_id=node_id,
        replica_directory_id=_NO_DIRECTORY,
        log_end_offset=end,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )


def _node(ctx: RequestContext, broker: BrokerEndpoint) -> _Node:
    return _Node(
        node_id=broker.node_id,
        listeners=[_Node.Listener(name=ctx.listener, host=broker.host, port=broker.port)],
    )


API = Api(DescribeQuorumRequest, DescribeQuorumResponse, versions=(0, 2), handler=describe_quorum)
