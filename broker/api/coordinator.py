"""FindCoordinator (10), versions 0-6: which broker looks after a group or a transactional id.

    v1 key type, throttle time, error message; v3 flexible; v4 several keys (KIP-699);
    v6 share groups (KIP-932).

Nobody coordinates anything yet, and the answer says so: for a group as Kafka does while it has no
coordinator, which consumers that assign partitions themselves take in their stride; for a
transactional id with an error that ends a producer at once rather than after a minute of retries.

The API is served because librdkafka sends lz4 only to brokers that list it, and uncompressed
batches without a word to all others.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse

from protocol.errors import (
    CoordinatorNotAvailable,
    InvalidRequest,
    KafkaError,
    TransactionalIdAuthorizationFailed,
)

if TYPE_CHECKING:
    from broker.api.context import RequestContext


class KeyType(IntEnum):
    """What is coordinated, by its number in the request."""

    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


async def find_coordinator(
    ctx: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    version = ctx.header.api_version
    refusal = _refusal(KeyType.GROUP if version == 0 else request.key_type)
    if version < 4:
        return FindCoordinatorResponse(
            throttle_time_ms=0,
            error_code=refusal.code,
            error_message=refusal.message,
            node_id=-1,
            host="",
            port=-1,
        )
    return FindCoordinatorResponse(
        throttle_time_ms=0,
        coordinators=[
            FindCoordinatorResponse.Coordinator(
                key=key,
                node_id=-1,
                host="",
                port=-1,
                error_code=refusal.code,
                error_message=refusal.message,
            )
            for key in request.coordinator_keys
        ],
    )


def _refusal(key_type: int) -> KafkaError:
    match key_type:
        case KeyType.GROUP:
            return CoordinatorNotAvailable(
                "This broker does not serve consumer groups yet: assign partitions instead."
            )
        case KeyType.TRANSACTION:
            return TransactionalIdAuthorizationFailed(
                "This broker does not serve transactions yet."
            )
    return InvalidRequest(f"This broker coordinates nothing of type {key_type}.")
