"""FindCoordinator (10), versions 0-6: which broker looks after a group or a transactional id.

    v1 key type, throttle time, error message; v3 flexible; v4 several keys (KIP-699);
    v6 share groups (KIP-932).

There is one broker, and it coordinates every group, whatever the id. A transactional id is
refused with an error that ends a producer at once rather than after a minute of retries.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse

from protocol.errors import InvalidRequest, KafkaError, TransactionalIdAuthorizationFailed

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
    node_id, (host, port) = (
        (ctx.broker.node_id, ctx.broker.advertised) if refusal is None else (-1, ("", -1))
    )
    error_code = 0 if refusal is None else refusal.code
    error_message = None if refusal is None else refusal.message
    if version < 4:
        return FindCoordinatorResponse(
            throttle_time_ms=0,
            error_code=error_code,
            error_message=error_message,
            node_id=node_id,
            host=host,
            port=port,
        )
    return FindCoordinatorResponse(
        throttle_time_ms=0,
        coordinators=[
            FindCoordinatorResponse.Coordinator(
                key=key,
                node_id=node_id,
                host=host,
                port=port,
                error_code=error_code,
                error_message=error_message,
            )
            for key in request.coordinator_keys
        ],
    )


def _refusal(key_type: int) -> KafkaError | None:
    match key_type:
        case KeyType.GROUP:
            return None
        case KeyType.TRANSACTION:
            return TransactionalIdAuthorizationFailed(
                "This broker does not serve transactions yet."
            )
    return InvalidRequest(f"This broker coordinates nothing of type {key_type}.")
