"""InitProducerId, versions 0 to 5.

2  flexible
3  an idempotent producer may ask again after an error (KIP-360)
4  PRODUCER_FENCED replaces INVALID_PRODUCER_EPOCH
5  transactions without announcing partitions (KIP-890)

An idempotent producer gets a producer id that no other ever had, and epoch 0. Transactional ids
are not served yet."""

from __future__ import annotations

from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse

from broker.api.context import RequestContext
from protocol.errors import InvalidRequest, KafkaStorageError
from storage.engine import EngineError


async def init_producer_id(
    ctx: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    if request.transactional_id is not None:
        raise InvalidRequest("transactions are not served yet")
    try:
        producer_id = await ctx.broker.producer_ids.next()
    except EngineError as error:
        raise KafkaStorageError(f"no producer id can be taken: {error}") from error
    return InitProducerIdResponse(
        throttle_time_ms=0,
        error_code=0,
        producer_id=producer_id,
        producer_epoch=0,
    )
