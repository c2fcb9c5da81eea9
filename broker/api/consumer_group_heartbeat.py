"""ConsumerGroupHeartbeat (68), versions 0 to 1: refused, as the broker has no groups of KIP-848.

    v1 subscriptions by a pattern, ids that members give themselves

ApiVersions lists it all the same, as Kafka does with the setting
`group.coordinator.rebalance.protocols=classic`. Without it librdkafka with
`group.protocol=consumer` waits for ever and reports nothing. With this answer its consumer reports
a fatal error.

Errors: UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.protocol.errors import UnsupportedVersion
from brokerhouse.protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


async def consumer_group_heartbeat(
    ctx: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    raise UnsupportedVersion(
        "This broker does not serve the consumer group protocol (KIP-848)."
        " Set group.protocol=classic in the client."
    )


API = Api(
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    versions=(0, 1),
    handler=consumer_group_heartbeat,
)
