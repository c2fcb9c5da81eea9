"""ListConfigResources (74), versions 0 to 1: which resources have configs.

    v0 lists only subscriptions to client metrics
    v1 lists any resource type (KIP-1142)

Groups and subscriptions to client metrics are listed if they have configs.

Errors: UNSUPPORTED_VERSION (a resource type that does not exist), UNKNOWN_SERVER_ERROR (what is
stored cannot be read).
"""

from __future__ import annotations

from kafka.protocol.admin import ListConfigResourcesRequest, ListConfigResourcesResponse

from brokerhouse.broker.api.config_resources import ResourceType
from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.api.refusals import as_kafka_error
from brokerhouse.broker.api.topic_lookup import readable_topics
from brokerhouse.protocol.errors import UnsupportedVersion
from brokerhouse.storage.engine import EngineError


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
        named += [(topic.name, ResourceType.TOPIC) for topic in readable_topics(ctx)]
    for kind in asked & {ResourceType.BROKER, ResourceType.BROKER_LOGGER}:
        named += [(str(one.node_id), ResourceType(kind)) for one in ctx.broker.leadership.brokers()]
    stored = asked & {ResourceType.CLIENT_METRICS, ResourceType.GROUP}
    if stored:
        await _read(ctx)
    for kind in map(ResourceType, stored):
        named += [(name, kind) for name in ctx.broker.stored_configs.names(kind.name)]
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


async def _read(ctx: RequestContext) -> None:
    try:
        await ctx.broker.load_stored_configs()
    except EngineError as error:
        raise as_kafka_error(error) from error


API = Api(
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    versions=(0, 1),
    handler=list_config_resources,
)
