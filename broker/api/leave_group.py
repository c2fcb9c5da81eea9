"""LeaveGroup (13), versions 0 to 5: members leave a group.

    v1 throttle time
    v3 several members, each with an error of its own; a static member by its instance id alone
    v4 flexible; v5 a reason, which is ignored

Errors: UNKNOWN_MEMBER_ID (also if the group does not exist), FENCED_INSTANCE_ID, INVALID_GROUP_ID,
NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS.
"""

from __future__ import annotations

from kafka.protocol.consumer import LeaveGroupRequest, LeaveGroupResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.coordinator.messages import LeavingMember
from brokerhouse.protocol.errors import KafkaError, UnknownMemberId


async def leave_group(ctx: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
    if ctx.version < 3:
        (error,) = await _leave(ctx, request.group_id, [LeavingMember(request.member_id, None)])
        if error is not None:
            raise error
        return LeaveGroupResponse(throttle_time_ms=0, error_code=0)
    leaving = [
        LeavingMember(member.member_id, member.group_instance_id) for member in request.members
    ]
    errors = await _leave(ctx, request.group_id, leaving)
    members = [_answer(member, error) for member, error in zip(leaving, errors, strict=True)]
    return LeaveGroupResponse(throttle_time_ms=0, error_code=0, members=members)


async def _leave(
    ctx: RequestContext, group_id: str, members: list[LeavingMember]
) -> list[KafkaError | None]:
    try:
        return await ctx.broker.groups.coordinator_of(group_id).leave(group_id, members)
    except UnknownMemberId as error:  # the group does not exist, so it has none of these members
        return [error] * len(members)


def _answer(member: LeavingMember, error: KafkaError | None) -> LeaveGroupResponse.MemberResponse:
    return LeaveGroupResponse.MemberResponse(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        error_code=0 if error is None else error.code,
    )


API = Api(LeaveGroupRequest, LeaveGroupResponse, versions=(0, 5), handler=leave_group)
