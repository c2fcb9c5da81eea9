"""Rules for new topics and new partitions: names, numbers, assigned replicas.

Used by CreateTopics, by CreatePartitions, by AlterPartitionReassignments, and by Metadata, which
creates a topic when a client asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from brokerhouse.broker.api.context import RequestContext
from brokerhouse.broker.topics import topic_names
from brokerhouse.protocol.errors import (
    InvalidReplicaAssignment,
    InvalidRequest,
    InvalidTopic,
    TopicAlreadyExists,
)


def check_new_name(ctx: RequestContext, name: str) -> None:
    """Raises `InvalidTopic`, `InvalidRequest` or `TopicAlreadyExists`."""
    if name == "__cluster_metadata":
        raise InvalidRequest("The name __cluster_metadata is reserved by Kafka.")
    topic_names.check(name)
    if ctx.broker.offsets_topic.named(name) is not None:
        raise TopicAlreadyExists(f"The topic {name!r} exists already.")
    if topic_names.is_internal(name):
        raise InvalidTopic(f"The name {name} is reserved for the state of Kafka's brokers.")
    ctx.broker.topics.check_free(name)


def check_replicas(ctx: RequestContext, broker_ids: Iterable[int]) -> None:
    """Raises `InvalidReplicaAssignment` unless one partition is assigned to one known broker."""
    replicas = list(broker_ids)
    if not replicas:
        raise InvalidReplicaAssignment("The assignment has a partition without a broker.")
    check_brokers(ctx, replicas)
    if len(replicas) > 1:
        raise InvalidReplicaAssignment("The assignment names several brokers for one partition.")


def check_brokers(ctx: RequestContext, broker_ids: Iterable[int]) -> None:
    """Raises `InvalidReplicaAssignment` unless all of them are brokers of the cluster."""
    known = {node.node_id for node in ctx.broker.leadership.brokers()}
    for broker_id in broker_ids:
        if broker_id not in known:
            raise InvalidReplicaAssignment(
                f"The assignment names broker {broker_id}, which does not exist."
            )
