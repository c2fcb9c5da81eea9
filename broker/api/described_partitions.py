"""The leader of each partition, as Metadata and DescribeTopicPartitions describe it.

ClickHouse replicates the rows, so the leader is the only replica that clients see. A partition
whose slot has no owner has no leader: LEADER_NOT_AVAILABLE.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from brokerhouse.broker.endpoints import NO_NODE, Leader
from brokerhouse.broker.log.topic import Topic
from brokerhouse.broker.topics import topic_names
from brokerhouse.protocol.errors import LeaderNotAvailable

TopicRow = TypeVar("TopicRow")


def described_topic(
    topic: Topic, row: Callable[..., TopicRow], partitions: Iterable[Any], **more: Any
) -> TopicRow:
    """The topic as a `row` (a class of the response); `more` are further fields."""
    return row(
        error_code=0,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic_names.is_internal(topic.name),
        partitions=list(partitions),
        **more,
    )


def described_partitions(
    leaders: Iterable[tuple[int, Leader]], partition: Any, **more: Any
) -> Iterator[Any]:
    """Each partition as a `partition` (a class of the response); `more` are further fields."""
    for index, leader in leaders:
        nodes = [] if leader.node_id == NO_NODE else [leader.node_id]
        yield partition(
            error_code=0 if nodes else LeaderNotAvailable.code,
            partition_index=index,
            leader_id=leader.node_id,
            leader_epoch=leader.epoch,
            replica_nodes=nodes,
            isr_nodes=nodes,
            offline_replicas=[],
            **more,
        )
