"""The groups of feeds that another process coordinates: asked by Kafka's own requests.

A broker that serves every slot asks nobody.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafka.protocol.admin import DeleteGroupsRequest, DeleteGroupsResponse
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

from brokerhouse.broker.endpoints import NO_NODE
from brokerhouse.broker.slots.leadership import SlotLeadership
from brokerhouse.broker.slots.peers import Peers
from brokerhouse.coordinator.messages import (
    Client,
    Committer,
    JoinAnswer,
    JoinedMember,
    JoinRequest,
    LeavingMember,
    OffsetCommit,
    SyncAnswer,
    SyncRequest,
)
from brokerhouse.protocol.errors import CoordinatorNotAvailable, KafkaError, error_with_code

CLIENT = Client("brokerhouse-feed", "127.0.0.1")
REBALANCE_MS = 10_000
_JOIN, _SYNC, _HEARTBEAT, _LEAVE, _COMMIT, _DELETE = 9, 5, 4, 5, 7, 2
"""The versions of the requests."""
_WAITING_S = REBALANCE_MS / 1000 + 10
"""JoinGroup and SyncGroup are answered when the rebalance is over."""


class RemoteGroups:
    """`FeedCoordinator` of groups of other processes. Everything raises `KafkaError`."""

    def __init__(self, leadership: SlotLeadership) -> None:
        self._leadership = leadership
        self._peers = Peers(NO_NODE, CLIENT.client_id)

    def close(self) -> None:
        self._peers.close()

    async def join(self, group_id: str, request: JoinRequest) -> JoinAnswer:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol
        asked = JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocols=[protocol(name=name, metadata=data) for name, data in request.protocols],
            reason=None,
        )
        found = await self._ask(group_id, asked, JoinGroupResponse, _JOIN, _WAITING_S)
        self._check(group_id, found.error_code)
        return JoinAnswer(
            found.member_id,
            found.generation_id,
            found.protocol_type,
            found.protocol_name,
            found.leader,
            tuple(
                JoinedMember(one.member_id, one.group_instance_id, one.metadata)
                for one in found.members
            ),
            found.skip_assignment,
        )

    async def sync(self, group_id: str, request: SyncRequest) -> SyncAnswer:
        one = SyncGroupRequest.SyncGroupRequestAssignment
        asked = SyncGroupRequest(
            group_id=group_id,
            generation_id=request.generation,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignments=[
                one(member_id=member_id, assignment=data)
                for member_id, data in request.assignments.items()
            ],
        )
        found = await self._ask(group_id, asked, SyncGroupResponse, _SYNC, _WAITING_S)
        self._check(group_id, found.error_code)
        return SyncAnswer(found.protocol_type, found.protocol_name, found.assignment)

    async def heartbeat(
        self, group_id: str, member_id: str, group_instance_id: str | None, generation: int
    ) -> None:
        asked = HeartbeatRequest(
            group_id=group_id,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=group_instance_id,
        )
        found = await self._ask(group_id, asked, HeartbeatResponse, _HEARTBEAT)
        self._check(group_id, found.error_code)

    async def leave(
        self, group_id: str, members: Sequence[LeavingMember]
    ) -> list[KafkaError | None]:
        identity = LeaveGroupRequest.MemberIdentity
        asked = LeaveGroupRequest(
            group_id=group_id,
            members=[
                identity(
                    member_id=one.member_id, group_instance_id=one.group_instance_id, reason=None
                )
                for one in members
            ],
        )
        found = await self._ask(group_id, asked, LeaveGroupResponse, _LEAVE)
        self._check(group_id, found.error_code)
        return [
            error_with_code(one.error_code, group_id) if one.error_code else None
            for one in found.members
        ]

    async def commit(
        self,
        group_id: str,
        committer: Committer,
        commits: Sequence[OffsetCommit],
    ) -> None:
        topic = OffsetCommitRequest.OffsetCommitRequestTopic
        place = topic.OffsetCommitRequestPartition
        asked = OffsetCommitRequest(
            group_id=group_id,
            generation_id_or_member_epoch=committer.generation,
            member_id=committer.member_id,
            group_instance_id=committer.group_instance_id,
            topics=[
                topic(
                    name=one.topic,
                    partitions=[
                        place(
                            partition_index=one.partition,
                            committed_offset=one.offset,
                            committed_leader_epoch=-1,
                            committed_metadata="",
                        )
                    ],
                )
                for one in commits
            ],
        )
        found = await self._ask(group_id, asked, OffsetCommitResponse, _COMMIT)
        for answered in found.topics:
            for one in answered.partitions:
                self._check(group_id, one.error_code)

    async def delete_group(self, group_id: str) -> None:
        asked = DeleteGroupsRequest(groups_names=[group_id])
        found = await self._ask(group_id, asked, DeleteGroupsResponse, _DELETE)
        for one in found.results:
            self._check(group_id, one.error_code)

    async def _ask(
        self,
        group_id: str,
        request: ApiMessage,
        response: type[ApiMessage],
        version: int,
        timeout_s: float | None = None,
    ) -> ApiMessage:
        broker = self._leadership.coordinator(group_id)
        if broker is None:
            raise CoordinatorNotAvailable(f"No broker coordinates the group {group_id!r} now.")
        return await self._peers.ask(broker, request, response, version, timeout_s)

    def _check(self, group_id: str, code: int) -> None:
        if code:
            raise error_with_code(
                code, f"The coordinator of group {group_id!r} refused the request."
            )
