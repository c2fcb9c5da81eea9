"""AddPartitionsToTxn (24), versions 0 to 5: makes partitions part of a transaction.

    v2 PRODUCER_FENCED replaces INVALID_PRODUCER_EPOCH; v3 flexible
    v4 several transactions, and only to verify: between brokers (KIP-890). The offsets of groups
       are partitions of `__consumer_offsets`, which are slots
    v5 TRANSACTION_ABORTABLE

Errors of a partition: UNKNOWN_TOPIC_OR_PARTITION or TOPIC_AUTHORIZATION_FAILED (an internal topic),
and OPERATION_NOT_ATTEMPTED for the others then; INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED,
CONCURRENT_TRANSACTIONS, TRANSACTION_ABORTABLE or INVALID_TXN_STATE (it is not part of the
transaction), COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from kafka.protocol.producer import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.api.transaction_requests import as_known, member_of
from brokerhouse.coordinator.transaction_states import Member, Producer
from brokerhouse.protocol.errors import (
    InvalidTxnState,
    KafkaError,
    OperationNotAttempted,
    TransactionAbortable,
)

_FENCED_SINCE, _BATCHED_SINCE, _ABORTABLE_SINCE = 2, 4, 5
_Codes: TypeAlias = Mapping[tuple[str, int], int]


async def add_partitions_to_txn(
    ctx: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    if ctx.version < _BATCHED_SINCE:
        producer = Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        topics = request.v3_and_below_topics
        codes = await _add(
            ctx, request.v3_and_below_transactional_id, producer, topics, verify_only=False
        )
        return AddPartitionsToTxnResponse(
            throttle_time_ms=0, results_by_topic_v3_and_below=_results(topics, codes)
        )
    return AddPartitionsToTxnResponse(
        throttle_time_ms=0,
        error_code=0,
        results_by_transaction=[
            AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
                transactional_id=one.transactional_id,
                topic_results=_results(
                    one.topics,
                    await _add(
                        ctx,
                        one.transactional_id,
                        Producer(one.producer_id, one.producer_epoch),
                        one.topics,
                        verify_only=one.verify_only,
                    ),
                ),
            )
            for one in request.transactions
        ],
    )


async def _add(
    ctx: RequestContext,
    transactional_id: str,
    producer: Producer,
    topics: Sequence[Any],
    *,
    verify_only: bool,
) -> _Codes:
    """The error code of each partition."""
    codes: dict[tuple[str, int], int] = {}
    members: dict[tuple[str, int], Member] = {}
    for topic in topics:
        for partition in topic.partitions:
            key = topic.name, partition
            try:
                members[key] = member_of(ctx, *key)
            except KafkaError as error:
                codes[key] = error.code
    if codes:
        return codes | dict.fromkeys(members, OperationNotAttempted.code)
    try:
        coordinator = ctx.broker.transactions.coordinator_of(transactional_id)
        if verify_only:
            return {
                key: _verified(ctx, transactional_id, producer, member)
                for key, member in members.items()
            }
        version = 2 if ctx.version >= _BATCHED_SINCE else 0
        await coordinator.add(transactional_id, producer, tuple(members.values()), version=version)
    except KafkaError as error:
        return dict.fromkeys(members, _known(ctx, error).code)
    return dict.fromkeys(members, 0)


def _verified(
    ctx: RequestContext, transactional_id: str, producer: Producer, member: Member
) -> int:
    try:
        ctx.broker.transactions.verify(transactional_id, producer, member)
    except KafkaError as error:
        return _known(ctx, error).code
    return 0


def _known(ctx: RequestContext, error: KafkaError) -> KafkaError:
    if isinstance(error, TransactionAbortable) and ctx.version < _ABORTABLE_SINCE:
        return InvalidTxnState(error.message)
    return as_known(error, knows_fenced=ctx.version >= _FENCED_SINCE)


def _results(topics: Sequence[Any], codes: _Codes) -> list[Any]:
    topic_class = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
    return [
        topic_class(
            name=topic.name,
            results_by_partition=[
                topic_class.AddPartitionsToTxnPartitionResult(
                    partition_index=partition,
                    partition_error_code=codes[topic.name, partition],
                )
                for partition in topic.partitions
            ],
        )
        for topic in topics
    ]


API = Api(
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    versions=(0, 5),
    handler=add_partitions_to_txn,
)
