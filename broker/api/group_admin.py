"""Groups as administrators see them.

ListGroups (16), versions 0-5
    v1 throttle time; v3 flexible; v4 states, in answers and to select by (KIP-518); v5 the same
    with types (KIP-848). Every group here is of the type `classic`.

DescribeGroups (15), versions 0-6
    v1 throttle time; v3 authorized operations (KIP-430); v4 instance ids of static members;
    v5 flexible; v6 a group that is not there is an error (KIP-1043): before, its state is Dead.
    What a member subscribes to is shown while its group is stable. A group that is named twice
    is described once. Groups past the size that an answer may have get an error that has the
    client ask again for them.

DeleteGroups (42), versions 0-2
    v2 flexible.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

from kafka.protocol.admin import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)

from broker.api.operations import GROUP_OPERATIONS, NOT_ASKED
from coordinator.group_states import GroupState
from coordinator.groups import selected_metadata
from coordinator.messages import GroupRecord
from protocol.errors import CoordinatorLoadInProgress, GroupIdNotFound, KafkaError

if TYPE_CHECKING:
    from broker.api.context import RequestContext

_CLASSIC = "classic"
_deleting: set[asyncio.Task[None]] = set()
_MEMBER_BYTES = 100  # of a described member, beside its texts and bytes

_Described: TypeAlias = DescribeGroupsResponse.DescribedGroup


async def list_groups(ctx: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    states = {state.strip().lower() for state in request.states_filter or ()}
    types = {kind.lower() for kind in request.types_filter or ()}
    return ListGroupsResponse(
        throttle_time_ms=0,
        error_code=0,
        groups=[
            ListGroupsResponse.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=_CLASSIC,
            )
            for group in ctx.broker.groups.records()
            if (not states or group.state.lower() in states) and (not types or _CLASSIC in types)
        ],
    )


async def describe_groups(
    ctx: RequestContext, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    asked_operations = ctx.header.api_version >= 3 and request.include_authorized_operations
    operations = GROUP_OPERATIONS if asked_operations else NOT_ASKED
    room = ctx.broker.in_flight.response_room
    described = []
    for group_id in dict.fromkeys(request.groups):
        group = ctx.broker.groups.record(group_id)
        if group is None:
            described.append(_not_there(group_id, ctx.header.api_version, operations))
            continue
        room -= _size(group)
        if room < 0 and described:
            described.append(
                _failed(group_id, "", CoordinatorLoadInProgress("ask again for this group"))
            )
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
    """About the bytes that the description of a group takes."""
    return sum(
        _MEMBER_BYTES
        + len(member.member_id)
        + len(member.client.client_id)
        + len(member.assignment)
        + len(selected_metadata(group, member))
        for member in group.members
    )


def _not_there(group_id: str, version: int, operations: set[int]) -> _Described:
    if version >= 6:
        return _failed(group_id, GroupState.DEAD, GroupIdNotFound(f"Group {group_id} not found."))
    return _Described(
        error_code=0,
        error_message=None,
        group_id=group_id,
        group_state=GroupState.DEAD,
        protocol_type="",
        protocol_data="",
        members=[],
        authorized_operations=operations,
    )


def _failed(group_id: str, state: str, error: KafkaError) -> _Described:
    return _Described(
        error_code=error.code,
        error_message=error.message,
        group_id=group_id,
        group_state=state,
        protocol_type="",
        protocol_data="",
        members=[],
        authorized_operations=NOT_ASKED,
    )


async def delete_groups(ctx: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    results = []
    for group_id in dict.fromkeys(request.groups_names):
        try:
            await _delete(ctx, group_id)
            error_code = 0
        except KafkaError as error:
            error_code = error.code
        results.append(
            DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=error_code)
        )
    return DeleteGroupsResponse(throttle_time_ms=0, results=results)


async def _delete(ctx: RequestContext, group_id: str) -> None:
    """Begun, it is done, even if the client leaves: its offsets are gone already."""
    coordinator = ctx.broker.groups.coordinator_of(group_id)
    deletion = asyncio.create_task(coordinator.delete_group(group_id))
    _deleting.add(deletion)
    deletion.add_done_callback(_deleting.discard)
    await asyncio.shield(deletion)
