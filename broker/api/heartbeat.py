"""Heartbeat (12), versions 0 to 4: a member shows that it is alive.

    v1 throttle time; v3 static members; v4 flexible

While the coordinator loads the group, a heartbeat succeeds, as in Kafka: clients do not expect
COORDINATOR_LOAD_IN_PROGRESS here.

Errors: UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS, FENCED_INSTANCE_ID,
INVALID_GROUP_ID, NOT_COORDINATOR.
"""

from __future__ import annotations

from contextlib import suppress

from kafka.protocol.consumer import HeartbeatRequest, HeartbeatResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.protocol.errors import CoordinatorLoadInProgress


async def heartbeat(ctx: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    with suppress(CoordinatorLoadInProgress):
        await ctx.broker.groups.coordinator_of(request.group_id).heartbeat(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id
        )
    return HeartbeatResponse(throttle_time_ms=0, error_code=0)


API = Api(HeartbeatRequest, HeartbeatResponse, versions=(0, 4), handler=heartbeat)
