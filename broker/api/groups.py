"""What the members of a group say to their coordinator.

JoinGroup (11), versions 0-9
    v1 a rebalance time-out of its own, before that it is the session time-out; v2 throttle time;
    v4 a member without an id is given one and comes back with it (KIP-394); v5 static members
    (KIP-345); v6 flexible; v7 protocol type in answers, a null protocol name (KIP-559); v8 reason,
    which nobody reads; v9 a static leader may be told to skip the assignment (KIP-814).
    The answer comes when the rebalance is over. Kafka 4.0.0 dropped versions 0 and 1, 4.0.1 has
    them again (KAFKA-19444).

SyncGroup (14), versions 0-5
    v1 throttle time; v3 static members; v4 flexible; v5 protocol type and name, in both
    directions and no longer optional (KIP-559). The answer comes when the leader has spoken.

Heartbeat (12), versions 0-4
    v1 throttle time; v3 static members; v4 flexible.

LeaveGroup (13), versions 0-5
    v1 throttle time; v3 several members, each with an error of its own, static ones by their
    instance id alone; v4 flexible; v5 reason.

While a group is being read, a heartbeat is good and a member that syncs is told to join again, as
by Kafka: clients do not expect COORDINATOR_LOAD_IN_PROGRESS as an answer to these two.

An answer may stay away for minutes. If the client leaves meanwhile, its handler is cancelled.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from kafka.protocol.consumer import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

from coordinator.messages import Client, JoinRequest, LeavingMember, MemberIdGiven, SyncRequest
from protocol.errors import (
    CoordinatorLoadInProgress,
    InconsistentGroupProtocol,
    InvalidRequest,
    KafkaError,
    RebalanceInProgress,
    UnknownMemberId,
)

if TYPE_CHECKING:
    from broker.api.context import RequestContext


_NAME_MAX_BYTES = 16_384
"""Of a client id or a group instance id. A member id is one of them and 37 characters more, and has
to fit the 32,767 bytes that a text of the protocol may have."""


def client_of(ctx: RequestContext) -> Client:
    """Who asks, with the host as Kafka's tools show it."""
    host, _, _ = ctx.peer.rpartition(":")
    name = (ctx.header.client_id or "").encode()[:_NAME_MAX_BYTES].decode(errors="ignore")
    return Client(name, f"/{host}")


async def join_group(ctx: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse:
    version = ctx.header.api_version
    try:
        if len((request.group_instance_id or "").encode()) > _NAME_MAX_BYTES:
            raise InvalidRequest("the group instance id is too long")
        coordinator = ctx.broker.groups.coordinator_of(request.group_id)
        answer = await coordinator.join(request.group_id, _join_request(ctx, request, version))
    except KafkaError as error:
        member_id = error.member_id if isinstance(error, MemberIdGiven) else request.member_id
        return JoinGroupResponse(
            throttle_time_ms=0,
            error_code=error.code,
            generation_id=-1,
            protocol_type=None,
            protocol_name=_protocol_name("", version),
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
        protocol_name=_protocol_name(answer.protocol_name, version),
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


def _join_request(ctx: RequestContext, request: JoinGroupRequest, version: int) -> JoinRequest:
    return JoinRequest(
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        client=client_of(ctx),
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
    """No protocol is an empty name until v6 and null from then on."""
    return name or None if version >= 7 else name


async def sync_group(ctx: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse:
    named = request.protocol_type is not None and request.protocol_name is not None
    if ctx.header.api_version >= 5 and not named:
        raise InconsistentGroupProtocol("protocol type and name are missing")
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


async def heartbeat(ctx: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    with suppress(CoordinatorLoadInProgress):
        await ctx.broker.groups.coordinator_of(request.group_id).heartbeat(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id
        )
    return HeartbeatResponse(throttle_time_ms=0, error_code=0)


async def leave_group(ctx: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
    if ctx.header.api_version < 3:
        (error,) = await _leave(ctx, request.group_id, [LeavingMember(request.member_id, None)])
        if error is not None:
            raise error
        return LeaveGroupResponse(throttle_time_ms=0, error_code=0)
    leaving = [
        LeavingMember(member.member_id, member.group_instance_id) for member in request.members
    ]
    return LeaveGroupResponse(
        throttle_time_ms=0,
        error_code=0,
        members=[
            LeaveGroupResponse.MemberResponse(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=0 if error is None else error.code,
            )
            for member, error in zip(
                leaving, await _leave(ctx, request.group_id, leaving), strict=True
            )
        ],
    )


async def _leave(
    ctx: RequestContext, group_id: str, members: list[LeavingMember]
) -> list[KafkaError | None]:
    try:
        return await ctx.broker.groups.coordinator_of(group_id).leave(group_id, members)
    except UnknownMemberId as error:  # there is no such group: nobody is a member of it
        return [error] * len(members)
