"""EndTxn (26), versions 0 to 5: commits or aborts a transaction.

    v2 PRODUCER_FENCED replaces INVALID_PRODUCER_EPOCH; v3 flexible; v4 TRANSACTION_ABORTABLE
    v5 every end raises the epoch, and the answer has it (KIP-890)

The answer says that the decision is stored. Its markers are written behind it, whatever happens.

Errors: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, INVALID_TXN_STATE,
COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

from kafka.protocol.producer import EndTxnRequest, EndTxnResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.api.transaction_requests import as_known
from brokerhouse.coordinator.transaction_states import NO_EPOCH, NO_PRODUCER_ID, Producer
from brokerhouse.protocol.errors import KafkaError

_FENCED_SINCE, _RAISES_SINCE = 2, 5


async def end_txn(ctx: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
    producer = Producer(request.producer_id, request.producer_epoch)
    error_code, following = 0, Producer(NO_PRODUCER_ID, NO_EPOCH)
    try:
        coordinator = ctx.broker.transactions.coordinator_of(request.transactional_id)
        following = await coordinator.end(
            request.transactional_id,
            producer,
            commit=request.committed,
            version=2 if ctx.version >= _RAISES_SINCE else 1,
        )
    except KafkaError as error:
        error_code = as_known(error, knows_fenced=ctx.version >= _FENCED_SINCE).code
    return EndTxnResponse(
        throttle_time_ms=0,
        error_code=error_code,
        producer_id=following.producer_id,
        producer_epoch=following.epoch,
    )


API = Api(EndTxnRequest, EndTxnResponse, versions=(0, 5), handler=end_txn)
