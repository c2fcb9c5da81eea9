"""JoinGroup (11), versions 0 to 9: a client becomes, or stays, a member of a group.

    v1 a rebalance time-out of its own; before, it is the session time-out; v2 throttle time
    v4 a member without an id is given one and must join again with it (KIP-394)
    v5 static members (KIP-345); v6 flexible
    v7 protocol type in answers, a null protocol name (KIP-559); v8 a reason, which is ignored
    v9 a static leader may be told to skip the assignment (KIP-814)

The answer comes when the rebalance is over, which may take minutes. If the client disconnects
meanwhile, its handler is cancelled. Kafka 4.0.0 removed versions 0 and 1; 4.0.1 serves them again
(KAFKA-19444).

Errors: MEMBER_ID_REQUIRED, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, INCONSISTENT_GROUP_PROTOCOL,
INVALID_SESSION_TIMEOUT, INVALID_GROUP_ID, GROUP_MAX_SIZE_REACHED, INVALID_REQUEST (an instance id
that is too long), NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS.
"""

from __future__ import annotations

from kafka.protocol.consumer import JoinGroupRequest, JoinGroupResponse

from brokerhouse.broker.api.context import NAME_MAX_BYTES, Api, RequestContext
from brokerhouse.coordinator.messages import JoinRequest, MemberIdGiven
from brokerhouse.protocol.errors import InvalidRequest, KafkaError


async def join_group(ctx: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse:
    try:
        if len((request.group_instance_id or "").encode()) > NAME_MAX_BYTES:
            raise InvalidRequest("The group instance id is too long.")
        coordinator = ctx.broker.groups.coordinator_of(request.group_id)
        answer = await coordinator.join(request.group_id, _join_request(ctx, request))
    except KafkaError as error:
        member_id = error.member_id if isinstance(error, MemberIdGiven) else request.member_id
        return JoinGroupResponse(
            throttle_time_ms=0,
            error_code=error.code,
            generation_id=-1,
            protocol_type=None,
            protocol_name=_protocol_name("", ctx.version),
            leader="",
            skip_assignment=False,
            member_id=member_id,
            members=[],
        )
    return JoinGroupResponse(
        throttle_time_ms=0,
        error_code=0,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=_protocol_name(answer.protocol_name, ctx.version),
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=[
            JoinGroupResponse.JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata,
            )
            for member in answer.members
        ],
    )


def _join_request(ctx: RequestContext, request: JoinGroupRequest) -> JoinRequest:
    version = ctx.version
    return JoinRequest(
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        client=ctx.client,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=(
            request.rebalance_timeout_ms if version >= 1 else request.session_timeout_ms
        ),
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
        requires_known_member_id=version >= 4 and request.group_instance_id is None,
        supports_skipping_assignment=version >= 9,
    )


def _protocol_name(name: str, version: int) -> str | None:
    """No protocol is an empty name before version 7, and null from version 7 on."""
    return name or None if version >= 7 else name


API = Api(JoinGroupRequest, JoinGroupResponse, versions=(0, 9), handler=join_group)
