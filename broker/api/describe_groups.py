"""DescribeGroups (15), versions 0 to 6: the state and the members of groups.

    v1 throttle time; v3 authorized operations (KIP-430); v4 instance ids of static members
    v5 flexible; v6 a group that does not exist is an error (KIP-1043); before, its state is Dead

The subscriptions of members are shown while the group is stable. A group that is named twice is
described once. Any broker answers, from the cache that all brokers share; before that it reads what
the coordinators of others have stored, if it has not done so for half a second.

Errors of a group: GROUP_ID_NOT_FOUND (version 6), COORDINATOR_LOAD_IN_PROGRESS (the answer is full;
the client repeats the request for this group).
"""

from __future__ import annotations

from typing import TypeAlias

from kafka.protocol.admin import DescribeGroupsRequest, DescribeGroupsResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.api.operations import GROUP_OPERATIONS, NOT_ASKED
from brokerhouse.coordinator.group_states import GroupState
from brokerhouse.coordinator.groups import selected_metadata
from brokerhouse.coordinator.messages import GroupRecord
from brokerhouse.protocol.errors import CoordinatorLoadInProgress, GroupIdNotFound, KafkaError

_MEMBER_BYTES = 100  # of a described member, without its strings and bytes

_Described: TypeAlias = DescribeGroupsResponse.DescribedGroup


async def describe_groups(
    ctx: RequestContext, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    asked_operations = ctx.version >= 3 and request.include_authorized_operations
    operations = GROUP_OPERATIONS if asked_operations else NOT_ASKED
    room = ctx.broker.response_memory.room
    described = []
    await ctx.broker.groups.read_anew(request.groups)
    for group_id in dict.fromkeys(request.groups):
        group = ctx.broker.groups.record(group_id)
        if group is None:
            described.append(_nonexistent(group_id, ctx.version, operations))
            continue
        room -= _size(group)
        if room < 0 and described:
            error = CoordinatorLoadInProgress(
                "The response is full: repeat the request for this group."
            )
            described.append(_failed(group_id, "", error))
            continue
        described.append(_described(group, operations))
    return DescribeGroupsResponse(throttle_time_ms=0, groups=described)


def _described(group: GroupRecord, operations: set[int]) -> _Described:
    stable = group.state == GroupState.STABLE
    return _Described(
        error_code=0,
        error_message=None,
        group_id=group.group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol_name if stable else "",
        members=[
            _Described.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client.client_id,
                client_host=member.client.host,
                member_metadata=selected_metadata(group, member) if stable else b"",
                member_assignment=member.assignment,
            )
            for member in group.members
        ],
        authorized_operations=operations,
    )


def _size(group: GroupRecord) -> int:
    """The approximate size of the description of a group, in bytes."""
    return sum(
        _MEMBER_BYTES
        + len(member.member_id)
        + len(member.client.client_id)
        + len(member.assignment)
        + len(selected_metadata(group, member))
        for member in group.members
    )


def _nonexistent(group_id: str, version: int, operations: set[int]) -> _Described:
    if version >= 6:
        return _failed(group_id, GroupState.DEAD, GroupIdNotFound(f"Group {group_id} not found."))
    return _without_members(group_id, GroupState.DEAD, operations)


def _failed(group_id: str, state: str, error: KafkaError) -> _Described:
    described = _without_members(group_id, state, NOT_ASKED)
    described.error_code = error.code
    described.error_message = error.message
    return described


def _without_members(group_id: str, state: str, operations: set[int]) -> _Described:
    return _Described(
        error_code=0,
        error_message=None,
        group_id=group_id,
        group_state=state,
        protocol_type="",
        protocol_data="",
        members=[],
        authorized_operations=operations,
    )


API = Api(DescribeGroupsRequest, DescribeGroupsResponse, versions=(0, 6), handler=describe_groups)
