"""InitProducerId (22), versions 0 to 5: assigns an id and an epoch to a producer.

    v2 flexible
    v3 a producer may say which id and epoch it had, after an error (KIP-360)
    v4 PRODUCER_FENCED replaces INVALID_PRODUCER_EPOCH
    v5 transactions without announcing partitions (KIP-890)

An idempotent producer gets an id that was never assigned before, with epoch 0. A transactional id
keeps its producer id and gets the next epoch, which fences the instance before; what that one began
is aborted first.

Errors: INVALID_REQUEST (an empty transactional id), INVALID_TRANSACTION_TIMEOUT, PRODUCER_FENCED,
CONCURRENT_TRANSACTIONS (the transaction before has not ended yet), COORDINATOR_NOT_AVAILABLE and
KAFKA_STORAGE_ERROR (ClickHouse refused to store it).
"""

from __future__ import annotations

from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.api.transaction_requests import as_known
from brokerhouse.coordinator.transaction_states import NO_EPOCH, NO_PRODUCER_ID, Producer
from brokerhouse.protocol.errors import KafkaError, KafkaStorageError
from brokerhouse.storage.engine import EngineError

_FENCED_SINCE = 4


async def init_producer_id(
    ctx: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    error_code, producer = 0, Producer(NO_PRODUCER_ID, NO_EPOCH)
    try:
        if request.transactional_id is None:
            producer = Producer(await _fresh_id(ctx), 0)
        else:
            transactional_id = request.transactional_id
            coordinator = ctx.broker.transactions.coordinator_of(transactional_id)
            producer = await coordinator.begin_producer(
                transactional_id, request.transaction_timeout_ms, _expected(ctx, request)
            )
    except KafkaError as error:
        error_code = as_known(error, knows_fenced=ctx.version >= _FENCED_SINCE).code
    return InitProducerIdResponse(
        throttle_time_ms=0,
        error_code=error_code,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
    )


async def _fresh_id(ctx: RequestContext) -> int:
    try:
        found: int = await ctx.broker.producer_ids.next()
    except EngineError as error:
        raise KafkaStorageError(f"Cannot reserve a producer id: {error}") from error
    return found


def _expected(ctx: RequestContext, request: InitProducerIdRequest) -> Producer | None:
    if ctx.version < 3 or request.producer_id < 0:
        return None
    return Producer(request.producer_id, request.producer_epoch)


API = Api(InitProducerIdRequest, InitProducerIdResponse, versions=(0, 5), handler=init_producer_id)
