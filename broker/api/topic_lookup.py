"""Finds the topic or the partition that a request names, or raises Kafka's error for it."""

from __future__ import annotations

from uuid import UUID

from brokerhouse.broker.api.context import RequestContext
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.topic import Topic
from brokerhouse.coordinator.messages import OFFSETS_TOPIC
from brokerhouse.protocol.errors import (
    FencedLeaderEpoch,
    InvalidTopic,
    UnknownLeaderEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
)

NO_ID = UUID(int=0)
"""The topic id that stands for none."""


def find_topic(ctx: RequestContext, key: str | UUID | None) -> Topic:
    """By name or by id; it may be changed.

    Raises `UnknownTopicOrPartition`, `UnknownTopicId` or `InvalidTopic`.
    """
    if isinstance(key, UUID):
        topic = ctx.broker.topics.by_id(key)
        if topic is None:
            _refuse_offsets_topic(ctx, key)
            raise UnknownTopicId(f"No topic has the id {key}.")
        return topic
    topic = None if key is None else ctx.broker.topics.get(key)
    if topic is None:
        _refuse_offsets_topic(ctx, key)
        raise UnknownTopicOrPartition(f"The topic {key!r} does not exist.")
    return topic


def _refuse_offsets_topic(ctx: RequestContext, key: str | UUID | None) -> None:
    if key is not None and ctx.broker.offsets_topic.named(key) is not None:
        raise InvalidTopic(f"The topic {OFFSETS_TOPIC} can only be read.")


def readable_topic(ctx: RequestContext, key: str | UUID) -> Topic | None:
    """A topic that clients can read: also `__consumer_offsets`, which they cannot change."""
    offsets_topic = ctx.broker.offsets_topic.named(key)
    if offsets_topic is not None:
        return offsets_topic
    topics = ctx.broker.topics
    return topics.by_id(key) if isinstance(key, UUID) else topics.get(key)


def readable_topics(ctx: RequestContext) -> list[Topic]:
    """Every topic that clients can read: those of users by name, then `__consumer_offsets`.

    Kafka lists `__consumer_offsets` from the first use of a group on. Here it is always there.
    """
    return [*ctx.broker.topics.all(), ctx.broker.offsets_topic.topic]


def find_readable_topic(ctx: RequestContext, key: str | UUID | None) -> Topic:
    """As `find_topic`, also `__consumer_offsets`."""
    topic = None if key is None else readable_topic(ctx, key)
    return find_topic(ctx, key) if topic is None else topic


def has_partition(topic: Topic, index: int) -> bool:
    return 0 <= index < topic.partitions


def check_partition(topic: Topic, index: int) -> None:
    """Raises `UnknownTopicOrPartition` if the topic has no such partition."""
    if not has_partition(topic, index):
        raise UnknownTopicOrPartition(f"The topic {topic.name!r} has no partition {index}.")


def find_partition(
    ctx: RequestContext, name: str, index: int, current_leader_epoch: int
) -> PartitionLog:
    """The log of a partition, if the client knows its leader epoch (KIP-320).

    Raises `UnknownTopicOrPartition`, `NotLeaderOrFollower`, `FencedLeaderEpoch` or
    `UnknownLeaderEpoch`.
    """
    partition = ctx.broker.partitions.log_of(find_readable_topic(ctx, name), index)
    check_leader_epoch(partition, current_leader_epoch)
    return partition


def check_leader_epoch(partition: PartitionLog, current_leader_epoch: int) -> None:
    """Raises `FencedLeaderEpoch` or `UnknownLeaderEpoch`. Epoch -1 asks for no check."""
    if current_leader_epoch == -1 or current_leader_epoch == partition.leader_epoch:
        return
    if current_leader_epoch < partition.leader_epoch:
        raise FencedLeaderEpoch(f"The leader epoch of {partition} is {partition.leader_epoch}.")
    raise UnknownLeaderEpoch(f"The leader epoch of {partition} is {partition.leader_epoch}.")
