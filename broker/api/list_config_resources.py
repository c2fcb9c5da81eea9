"""ListConfigResources (74), versions 0 to 1: which resources have configs.

    v0 lists only subscriptions to client metrics, and this broker has none
    v1 lists any resource type (KIP-1142)

Errors: UNSUPPORTED_VERSION (a resource type that does not exist).
"""

from __future__ import annotations

from kafka.protocol.admin import ListConfigResourcesRequest, ListConfigResourcesResponse

from broker.api.config_resources import ResourceType
from broker.api.context import Api, RequestContext
from protocol.errors import UnsupportedVersion


async def list_config_resources(
    ctx: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    if ctx.version == 0:
        asked = {int(ResourceType.CLIENT_METRICS)}
    else:
        asked = set(request.resource_types) or {int(kind) for kind in ResourceType}
    unknown = asked.difference(ResourceType)
    if unknown:
        raise UnsupportedVersion(f"There is no resource type {min(unknown)}.")
    named: list[tuple[str, ResourceType]] = []
    if ResourceType.TOPIC in asked:
        named += [(topic.name, ResourceType.TOPIC) for topic in ctx.broker.topics.all()]
    if ResourceType.BROKER in asked:
        named.append((str(ctx.broker.node_id), ResourceType.BROKER))
    return ListConfigResourcesResponse(
        throttle_time_ms=0,
        error_code=0,
        config_resources=[
            ListConfigResourcesResponse.ConfigResource(
                resource_name=name, resource_type=int(resource_type)
            )
            for name, resource_type in named
        ],
    )


API = Api(
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    versions=(0, 1),
    handler=list_config_resources,
)
