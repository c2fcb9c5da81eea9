"""ShareGroupHeartbeat (76), version 1: refused, as the broker has no share groups (KIP-932).

ApiVersions lists it all the same, as Kafka does without the feature `share.version`: without it
librdkafka's share consumer waits for ever and reports nothing. With this answer it reports a fatal
error.

Errors: UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.protocol.errors import UnsupportedVersion
from brokerhouse.protocol.messages import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse


async def share_group_heartbeat(
    ctx: RequestContext, request: ShareGroupHeartbeatRequest
) -> ShareGroupHeartbeatResponse:
    raise UnsupportedVersion(
        "This broker does not serve share groups (KIP-932). Use a consumer group."
    )


API = Api(
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    versions=(1, 1),
    handler=share_group_heartbeat,
)
