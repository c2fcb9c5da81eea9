"""The leader of each partition, as Metadata and DescribeTopicPartitions describe it.

ClickHouse replicates the rows, so the leader is the only replica that clients see. A partition
whose slot has no owner has no leader: LEADER_NOT_AVAILABLE.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from broker import topic_names
from broker.api.context import RequestContext
from broker.leadership import NO_NODE
from broker.log.topic import Topic
from protocol.errors import LeaderNotAvailable

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
    ctx: RequestContext, topic: Topic, indexes: Iterable[int], partition: Any, **more: Any
) -> Iterator[Any]:
    """Each partition as a `partition` (a class of the response); `more` are further fields."""
    for index in indexes:
        leader = ctx.broker.leadership.leader(topic.topic_id, index)
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
