"""SyncGroup (14), versions 0 to 5: a member gets its assignment, which the leader has sent.

    v1 throttle time; v3 static members; v4 flexible
    v5 protocol type and name, in both directions and required (KIP-559)

The answer comes when the leader has sent the assignments, which may take minutes. If the client
disconnects meanwhile, its handler is cancelled. While the coordinator loads the group, the member
is told to join again, as by Kafka: clients do not expect COORDINATOR_LOAD_IN_PROGRESS here.

Errors: UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS, FENCED_INSTANCE_ID,
INCONSISTENT_GROUP_PROTOCOL, INVALID_GROUP_ID, NOT_COORDINATOR.
"""

from __future__ import annotations

from kafka.protocol.consumer import SyncGroupRequest, SyncGroupResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.coordinator.messages import SyncRequest
from brokerhouse.protocol.errors import (
    CoordinatorLoadInProgress,
    InconsistentGroupProtocol,
    RebalanceInProgress,
)


async def sync_group(ctx: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse:
    named = request.protocol_type is not None and request.protocol_name is not None
    if ctx.version >= 5 and not named:
        raise InconsistentGroupProtocol("The request has no protocol type or no protocol name.")
    asked = SyncRequest(
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        generation=request.generation_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments={one.member_id: one.assignment for one in request.assignments},
    )
    try:
        coordinator = ctx.broker.groups.coordinator_of(request.group_id)
        answer = await coordinator.sync(request.group_id, asked)
    except CoordinatorLoadInProgress as error:
        raise RebalanceInProgress(error.message) from error
    return SyncGroupResponse(
        throttle_time_ms=0,
        error_code=0,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
        assignment=answer.assignment,
    )


API = Api(SyncGroupRequest, SyncGroupResponse, versions=(0, 5), handler=sync_group)
