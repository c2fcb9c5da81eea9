"""What the requests of transactional producers share."""

from __future__ import annotations

from brokerhouse.broker.api.context import RequestContext
from brokerhouse.broker.topics import topic_names
from brokerhouse.coordinator.messages import OFFSETS_TOPIC
from brokerhouse.coordinator.transaction_states import Member, offsets_member
from brokerhouse.protocol.errors import (
    InvalidProducerEpoch,
    KafkaError,
    ProducerFenced,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)

_BETWEEN_BROKERS = 4
"""The version of AddPartitionsToTxn from which only brokers send it."""


def member_of(ctx: RequestContext, topic: str, partition: int) -> Member:
    """Raises `UnknownTopicOrPartition`, and `TopicAuthorizationFailed` for what only brokers write.

    Brokers ask for the offsets of groups, too.
    """
    if topic == OFFSETS_TOPIC and ctx.version >= _BETWEEN_BROKERS:
        ctx.broker.groups.check_partition(partition)
        return offsets_member(partition)
    if topic_names.is_internal(topic):
        raise TopicAuthorizationFailed(f"Clients cannot write to the topic {topic}.")
    found = ctx.broker.topics.get(topic)
    if found is None or not 0 <= partition < found.partitions:
        raise UnknownTopicOrPartition(f"The topic {topic!r} has no partition {partition}.")
    return Member(found.name, found.topic_id, partition)


def as_known(error: KafkaError, *, knows_fenced: bool) -> KafkaError:
    """The error as the client knows it: PRODUCER_FENCED is newer than INVALID_PRODUCER_EPOCH."""
    if isinstance(error, ProducerFenced) and not knows_fenced:
        return InvalidProducerEpoch(error.message)
    return error
