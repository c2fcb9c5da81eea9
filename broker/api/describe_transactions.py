"""DescribeTransactions (65), version 0: the current transaction of transactional ids (KIP-664).

Errors of an id: TRANSACTIONAL_ID_NOT_FOUND, INVALID_REQUEST (it is empty), NOT_COORDINATOR,
COORDINATOR_LOAD_IN_PROGRESS.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TypeAlias

from kafka.protocol.admin import DescribeTransactionsRequest, DescribeTransactionsResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.coordinator.transaction_states import Transaction
from brokerhouse.protocol.errors import InvalidRequest, KafkaError, TransactionalIdNotFound

_State: TypeAlias = DescribeTransactionsResponse.TransactionState


async def describe_transactions(
    ctx: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        throttle_time_ms=0,
        transaction_states=[_described(ctx, one) for one in request.transactional_ids],
    )


def _described(ctx: RequestContext, transactional_id: str) -> _State:
    try:
        if not transactional_id:
            raise InvalidRequest("A transactional id must not be empty.")
        found = ctx.broker.transactions.coordinator_of(transactional_id).get(transactional_id)
        if found is None:
            raise TransactionalIdNotFound(
                f"The transactional id {transactional_id!r} does not exist."
            )
    except KafkaError as error:
        return _State(
            error_code=error.code,
            transactional_id=transactional_id,
            transaction_state="",
            transaction_timeout_ms=0,
            transaction_start_time_ms=0,
            producer_id=0,
            producer_epoch=0,
            topics=[],
        )
    return _State(
        error_code=0,
        transactional_id=transactional_id,
        transaction_state=found.state.value,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.started_ms,
        producer_id=found.producer_id,
        producer_epoch=found.epoch,
        topics=_topics(found),
    )


def _topics(transaction: Transaction) -> list[object]:
    partitions: defaultdict[str, list[int]] = defaultdict(list)
    for member in sorted(transaction.members):
        partitions[member.topic].append(member.partition)
    return [_State.TopicData(topic=topic, partitions=some) for topic, some in partitions.items()]


API = Api(
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    versions=(0, 0),
    handler=describe_transactions,
)
