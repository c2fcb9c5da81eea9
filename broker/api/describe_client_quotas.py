"""DescribeClientQuotas (48), versions 0 to 1: the quotas that are set (KIP-546).

    v1 flexible

Any broker of a cluster answers for all. Quotas are stored, not enforced.

Errors: INVALID_REQUEST (a filter that is wrong), UNSUPPORTED_VERSION (an unknown type of entity),
UNKNOWN_SERVER_ERROR (the quotas cannot be read).
"""

from __future__ import annotations

from kafka.protocol.admin import DescribeClientQuotasRequest, DescribeClientQuotasResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.api.refusals import REFUSALS, as_kafka_error
from brokerhouse.broker.settings.client_quotas import filter_of

_Entry = DescribeClientQuotasResponse.EntryData


async def describe_client_quotas(
    ctx: RequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    try:
        components = filter_of(
            (one.entity_type, one.match_type, one.match) for one in request.components
        )
        quotas = await ctx.broker.client_quotas.described(components, strict=request.strict)
    except REFUSALS as refusal:
        error = as_kafka_error(refusal)
        return DescribeClientQuotasResponse(
            throttle_time_ms=0, error_code=error.code, error_message=error.message, entries=None
        )
    return DescribeClientQuotasResponse(
        throttle_time_ms=0,
        error_code=0,
        error_message=None,
        entries=[
            _Entry(
                entity=[
                    _Entry.EntityData(entity_type=kind, entity_name=name)
                    for kind, name in quota.entity.items()
                ],
                values=[
                    _Entry.ValueData(key=key, value=value) for key, value in quota.values.items()
                ],
            )
            for quota in quotas
        ],
    )


API = Api(
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    versions=(0, 1),
    handler=describe_client_quotas,
)
