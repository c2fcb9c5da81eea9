"""AddOffsetsToTxn (25), versions 0 to 4: makes the offsets of a group part of a transaction.

    v2 PRODUCER_FENCED replaces INVALID_PRODUCER_EPOCH; v3 flexible; v4 TRANSACTION_ABORTABLE

Errors: INVALID_GROUP_ID, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS,
COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

from kafka.protocol.producer import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.api.transaction_requests import as_known
from brokerhouse.coordinator.transaction_states import Producer
from brokerhouse.protocol.errors import InvalidGroupId, KafkaError

_FENCED_SINCE = 2


async def add_offsets_to_txn(
    ctx: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    producer = Producer(request.producer_id, request.producer_epoch)
    error_code = 0
    try:
        if not request.group_id:
            raise InvalidGroupId("The request has no group id.")
        coordinator = ctx.broker.transactions.coordinator_of(request.transactional_id)
        await coordinator.add(request.transactional_id, producer, groups=(request.group_id,))
    except KafkaError as error:
        error_code = as_known(error, knows_fenced=ctx.version >= _FENCED_SINCE).code
    return AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=error_code)


API = Api(
    AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, versions=(0, 4), handler=add_offsets_to_txn
)
