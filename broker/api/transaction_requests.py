"""What the requests of transactional producers share."""

from __future__ import annotations

from broker.api.context import RequestContext
from coordinator.transaction_states import Member
from coordinator.transactions import TransactionCoordinator
from protocol.errors import (
    InvalidProducerEpoch,
    KafkaError,
    ProducerFenced,
    TransactionalIdAuthorizationFailed,
    UnknownTopicOrPartition,
)


def transactions_of(ctx: RequestContext) -> TransactionCoordinator:
    """The transaction coordinator. Raises `KafkaError` in a cluster, which has none yet."""
    found = ctx.broker.transactions
    if found is None:
        raise TransactionalIdAuthorizationFailed("a cluster does not serve transactions yet")
    return found


def member_of(ctx: RequestContext, topic: str, partition: int) -> Member:
    """Raises `UnknownTopicOrPartition`."""
    found = ctx.broker.topics.get(topic)
    if found is None or not 0 <= partition < found.partitions:
        raise UnknownTopicOrPartition(f"there is no partition {partition} of {topic}")
    return Member(found.name, found.topic_id, partition)


def as_known(error: KafkaError, *, knows_fenced: bool) -> KafkaError:
    """The error as the client knows it: PRODUCER_FENCED is newer than INVALID_PRODUCER_EPOCH."""
    if isinstance(error, ProducerFenced) and not knows_fenced:
        return InvalidProducerEpoch(error.message)
    return error
