"""InitProducerId (22), versions 0 to 5: assigns an id to an idempotent producer.

    v2 flexible
    v3 an idempotent producer may repeat the request after an error (KIP-360)
    v4 PRODUCER_FENCED replaces INVALID_PRODUCER_EPOCH
    v5 transactions without announcing partitions (KIP-890)

The answer is a producer id that was never assigned before, with epoch 0. Transactional ids are not
served yet.

Errors: INVALID_REQUEST (a transactional id), KAFKA_STORAGE_ERROR (ClickHouse refused to store the
range of ids that this broker assigns).
"""

from __future__ import annotations

from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse

from broker.api.context import Api, RequestContext
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
        raise KafkaStorageError(f"no producer id can be reserved: {error}") from error
    return InitProducerIdResponse(
        throttle_time_ms=0,
        error_code=0,
        producer_id=producer_id,
        producer_epoch=0,
    )


API = Api(InitProducerIdRequest, InitProducerIdResponse, versions=(0, 5), handler=init_producer_id)
