"""FindCoordinator (10), versions 0-6: which broker looks after a group or a transactional id.

    v1 key type, throttle time, error message; v3 flexible; v4 several keys (KIP-699);
    v6 share groups (KIP-932).

An id belongs to a slot, and the owner of the slot coordinates it; while nobody owns it, the client
is told to ask again. A broker that is alone coordinates everything. A transactional id is refused
with an error that ends a producer at once rather than after a minute of retries.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse

from broker.leadership import NO_NODE, BrokerEndpoint
from protocol.errors import (
    CoordinatorNotAvailable,
    InvalidRequest,
    KafkaError,
    TransactionalIdAuthorizationFailed,
)

if TYPE_CHECKING:
    from broker.api.context import RequestContext

_NOBODY = BrokerEndpoint(NO_NODE, "", -1)


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
        found = _find(ctx, request.key, refusal)
        return FindCoordinatorResponse(
            throttle_time_ms=0,
            error_code=found.error_code,
            error_message=found.error_message,
            node_id=found.node.node_id,
            host=found.node.host,
            port=found.node.port,
        )
    return FindCoordinatorResponse(
        throttle_time_ms=0,
        coordinators=[
            FindCoordinatorResponse.Coordinator(
                key=key,
                node_id=found.node.node_id,
                host=found.node.host,
                port=found.node.port,
                error_code=found.error_code,
                error_message=found.error_message,
            )
            for key in request.coordinator_keys
            for found in (_find(ctx, key, refusal),)
        ],
    )


@dataclass(frozen=True, slots=True)
class _Found:
    node: BrokerEndpoint
    error: KafkaError | None = None

    @property
    def error_code(self) -> int:
        return 0 if self.error is None else self.error.code

    @property
    def error_message(self) -> str | None:
        return None if self.error is None else self.error.message


def _find(ctx: RequestContext, key: str, refusal: KafkaError | None) -> _Found:
    if refusal is not None:
        return _Found(_NOBODY, refusal)
    node = ctx.broker.leadership.coordinator(key)
    if node is None:
        return _Found(_NOBODY, CoordinatorNotAvailable("Nobody looks after it just now."))
    return _Found(node)


def _refusal(key_type: int) -> KafkaError | None:
    match key_type:
        case KeyType.GROUP:
            return None
        case KeyType.TRANSACTION:
            return TransactionalIdAuthorizationFailed(
                "This broker does not serve transactions yet."
            )
    return InvalidRequest(f"This broker coordinates nothing of type {key_type}.")
