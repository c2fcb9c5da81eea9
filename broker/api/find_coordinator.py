"""FindCoordinator (10), versions 0 to 6: says who coordinates a group or a transactional id.

    v1 key type, throttle time, error message; v3 flexible; v4 several keys (KIP-699);
    v6 share groups (KIP-932)

A group belongs to a slot, as a transactional id does, and the owner of the slot coordinates it.
While the slot has no owner, the client must retry. A single broker coordinates all of them.

Errors of a key: COORDINATOR_NOT_AVAILABLE (retry), INVALID_REQUEST (a key type that is not
served).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.endpoints import NO_NODE, BrokerEndpoint
from brokerhouse.protocol.errors import CoordinatorNotAvailable, InvalidRequest, KafkaError

_NOBODY = BrokerEndpoint(NO_NODE, "", -1)


class KeyType(IntEnum):
    """What is coordinated, by its number in the request."""

    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


async def find_coordinator(
    ctx: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    refusal = _refusal(KeyType.GROUP if ctx.version == 0 else request.key_type)
    if ctx.version < 4:
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
class _CoordinatorFound:
    node: BrokerEndpoint
    error: KafkaError | None = None

    @property
    def error_code(self) -> int:
        return 0 if self.error is None else self.error.code

    @property
    def error_message(self) -> str | None:
        return None if self.error is None else self.error.message


def _find(ctx: RequestContext, key: str, refusal: KafkaError | None) -> _CoordinatorFound:
    if refusal is not None:
        return _CoordinatorFound(_NOBODY, refusal)
    node = ctx.broker.leadership.coordinator(key)
    if node is not None:
        node = node.seen_from(ctx.listener)
    if node is None:
        error = CoordinatorNotAvailable("No broker coordinates this key at the moment.")
        return _CoordinatorFound(_NOBODY, error)
    return _CoordinatorFound(node)


def _refusal(key_type: int) -> KafkaError | None:
    match key_type:
        case KeyType.GROUP | KeyType.TRANSACTION:
            return None
    return InvalidRequest(f"This broker does not coordinate key type {key_type}.")


API = Api(
    FindCoordinatorRequest, FindCoordinatorResponse, versions=(0, 6), handler=find_coordinator
)
