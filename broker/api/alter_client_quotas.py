"""AlterClientQuotas (49), versions 0 to 1: sets and removes quotas (KIP-546).

    v1 flexible

Each entity succeeds or fails by itself, with all its changes. Quotas are stored and every broker
describes them; none is enforced.

Errors of an entity: INVALID_REQUEST (an entity or a quota that does not exist or is not allowed, or
occurs twice), KAFKA_STORAGE_ERROR, UNKNOWN_SERVER_ERROR (refused by ClickHouse).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from kafka.protocol.admin import AlterClientQuotasRequest, AlterClientQuotasResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.api.refusals import REFUSALS, as_kafka_error
from brokerhouse.broker.settings.client_quotas import IP, Entity, check_value, entity_of
from brokerhouse.protocol.errors import InvalidRequest, KafkaError

_Entry = AlterClientQuotasResponse.EntryData
_Named = tuple[tuple[str, str | None], ...]


async def alter_client_quotas(
    ctx: RequestContext, request: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    asked = [(_named(entry), entry.ops) for entry in request.entries]
    times = Counter(frozenset(named) for named, _ in asked)
    outcomes: dict[_Named, KafkaError | None] = {}
    for named, ops in asked:
        try:
            if times[frozenset(named)] > 1:
                raise InvalidRequest("The entity is in the request more than once.")
            await _alter(ctx, entity_of(named), ops, validate_only=request.validate_only)
            outcomes[named] = None
        except REFUSALS as refusal:
            outcomes[named] = as_kafka_error(refusal)
    return AlterClientQuotasResponse(
        throttle_time_ms=0,
        entries=[
            _Entry(
                error_code=0 if error is None else error.code,
                error_message=None if error is None else error.message,
                entity=[
                    _Entry.EntityData(entity_type=kind, entity_name=name) for kind, name in named
                ],
            )
            for named, error in outcomes.items()
        ],
    )


def _named(entry: Any) -> _Named:
    return tuple((part.entity_type, part.entity_name) for part in entry.entity)


async def _alter(
    ctx: RequestContext, entity: Entity, ops: Iterable[Any], *, validate_only: bool
) -> None:
    changes: dict[str, float | None] = {}
    for op in ops:
        if op.key in changes:
            raise InvalidRequest(f"The quota {op.key} is changed more than once.")
        if not op.remove:
            check_value(entity, op.key, op.value)
        changes[op.key] = None if op.remove else op.value
    await _check_address(entity)
    if not validate_only:
        await ctx.broker.client_quotas.alter(entity, changes)


async def _check_address(entity: Mapping[str, str | None]) -> None:
    host = entity.get(IP)
    if host is None:
        return
    try:
        await asyncio.get_running_loop().getaddrinfo(host, None)
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"{host!r} is not an IP address and does not resolve to one: {error}"
        ) from error


API = Api(
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    versions=(0, 1),
    handler=alter_client_quotas,
)
