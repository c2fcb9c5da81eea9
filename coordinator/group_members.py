"""The members of one group in memory: their ids, the protocols that they share, and the leader.

Members are in the order in which they joined. A static member (KIP-345) keeps its place when a new
process replaces the old one. An id is pending until its member has joined with it (KIP-394). A
pending id counts towards the size of the group, and a rebalance waits for it.

This module does not know the state of the group and answers no requests; `coordinator.rebalance`
does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from brokerhouse.coordinator.messages import (
    GroupRecord,
    JoinedMember,
    JoinRequest,
    MemberRecord,
    Protocols,
    Waiter,
)
from brokerhouse.protocol.errors import FencedInstanceId, InconsistentGroupProtocol, UnknownMemberId

# Approximate sizes, without what clients sent.
_MEMBER_BYTES, _PROTOCOL_BYTES, _PENDING_BYTES = 1024, 128, 256


@dataclass(slots=True)
class GroupMember:
    """One member: what is stored of it, and its requests that wait for an answer."""

    record: MemberRecord
    """The same object until the member changes."""
    expires_ms: int
    joining: Waiter | None = None
    syncing: Waiter | None = None
    is_new: bool = False
    """The member waits for its first generation, and cannot send heartbeats."""

    @property
    def member_id(self) -> str:
        return self.record.member_id

    @property
    def waits(self) -> bool:
        """Whether a request of this member waits for an answer: it then needs no heartbeats."""
        return not self.is_new and (self.joining is not None or self.syncing is not None)

    @property
    def size_bytes(self) -> int:
        record = self.record
        names = len(record.member_id) + len(record.group_instance_id or "")
        names += len(record.client.client_id)
        return _MEMBER_BYTES + names + len(record.assignment) + protocols_bytes(record.protocols)

    def metadata(self, protocol_name: str) -> bytes:
        return metadata_of(self.record.protocols, protocol_name)

    def heard_at(self, now_ms: int) -> None:
        """The member has sent something: its session begins anew."""
        if not self.is_new:
            self.expires_ms = now_ms + self.record.session_timeout_ms

    def assign(self, assignment: bytes) -> None:
        if assignment != self.record.assignment:
            self.record = replace(self.record, assignment=assignment)

    def replaced_by(self, member_id: str, now_ms: int, request: JoinRequest) -> GroupMember:
        """A new process of the static member: it keeps the place and the assignment."""
        return replace(
            self,
            record=replace(self.record, member_id=member_id),
            expires_ms=now_ms + request.session_timeout_ms,
            is_new=False,
        )


class Members:
    """The members of one group, its pending ids, and its leader."""

    def __init__(self) -> None:
        self.leader = ""
        self.pending: dict[str, int] = {}
        """Ids whose members have not joined with them yet, and until when the group waits."""
        self._by_id: dict[str, GroupMember] = {}  # by time of joining
        self._static: dict[str, str] = {}  # group instance id -> member id
        self._supporters: dict[str, int] = {}  # protocol name -> members that have it

    def restore(self, record: GroupRecord, now_ms: int) -> None:
        """A record that was repaired after a crash between two tables may name no leader."""
        for stored in sorted(record.members, key=lambda member: member.join_time_ms):
            self._insert(GroupMember(stored, now_ms + stored.session_timeout_ms))
        self.leader = record.leader if record.leader in self._by_id else next(iter(self._by_id), "")

    # Finding members

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[GroupMember]:
        return iter(self._by_id.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._by_id

    def __getitem__(self, member_id: str) -> GroupMember:
        return self._by_id[member_id]

    def get(self, member_id: str) -> GroupMember | None:
        return self._by_id.get(member_id)

    def of_instance(self, group_instance_id: str | None) -> GroupMember | None:
        """The static member with this instance id."""
        member_id = None if group_instance_id is None else self._static.get(group_instance_id)
        return None if member_id is None else self._by_id[member_id]

    def validated(self, member_id: str, group_instance_id: str | None) -> GroupMember:
        """The member that sends a request. Raises `FencedInstanceId` or `UnknownMemberId`."""
        if group_instance_id is not None:
            current = self._static.get(group_instance_id)
            if current is not None and current != member_id:
                raise FencedInstanceId(
                    f"Another member uses the instance id {group_instance_id!r} now."
                )
            if current is None:
                raise UnknownMemberId(
                    f"The group has no member with the instance id {group_instance_id!r}."
                )
        member = self._by_id.get(member_id)
        if member is None:
            raise UnknownMemberId(f"The group has no member {member_id!r}.")
        return member

    @property
    def joined(self) -> list[GroupMember]:
        """Those whose JoinGroup waits for the next generation, by time of joining."""
        return [member for member in self if member.joining is not None]

    @property
    def all_joined(self) -> bool:
        return not self.pending and all(member.joining is not None for member in self)

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.record.rebalance_timeout_ms for member in self), default=0)

    @property
    def size_bytes(self) -> int:
        pending = sum(_PENDING_BYTES + len(member_id) for member_id in self.pending)
        return pending + sum(member.size_bytes for member in self)

    def as_joined(self, protocol_name: str) -> tuple[JoinedMember, ...]:
        """Every member, as the leader sees it in its answer to JoinGroup."""
        return tuple(
            JoinedMember(one.member_id, one.record.group_instance_id, one.metadata(protocol_name))
            for one in self
        )

    # Adding and removing members

    def add(self, member: GroupMember) -> None:
        self._insert(member)
        self.leader = self.leader or member.member_id

    def remove(self, member: GroupMember) -> None:
        """Remove the member. If it was the leader, the member that joined next leads."""
        del self._by_id[member.member_id]
        self._count_protocols(member.record.protocols, -1)
        if member.record.group_instance_id is not None:
            del self._static[member.record.group_instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self._by_id), "")

    def replace(self, old: GroupMember, new: GroupMember) -> None:
        """Replace the old process of a static member by the new one."""
        assert new.record.group_instance_id is not None
        self._by_id = {one.member_id: one for one in (new if m is old else m for m in self)}
        self._static[new.record.group_instance_id] = new.member_id
        if self.leader == old.member_id:
            self.leader = new.member_id

    def update(self, member: GroupMember, request: JoinRequest) -> None:
        """Store what the member sent in its JoinGroup."""
        self._count_protocols(member.record.protocols, -1)
        member.record = replace(
            member.record,
            client=request.client,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocols=request.protocols,
        )
        self._count_protocols(member.record.protocols, 1)

    def elect_leader(self) -> bool:
        """Keep the leader if it has joined, else elect the earliest that has; False if none has."""
        joined = [member.member_id for member in self.joined]
        if joined and self.leader not in joined:
            self.leader = joined[0]
        return bool(joined)

    # Protocols

    def check_protocols(self, request: JoinRequest, protocol_type: str) -> None:
        """Raises `InconsistentGroupProtocol` unless all members share a protocol."""
        if not request.protocol_type or not request.protocols:
            raise InconsistentGroupProtocol("The request has no protocol type or no protocol.")
        if not self._by_id:
            return
        if protocol_type and request.protocol_type != protocol_type:
            raise InconsistentGroupProtocol(
                f"The group's protocol type is {protocol_type!r}, not {request.protocol_type!r}."
            )
        if not any(self._is_common(name) for name, _ in request.protocols):
            raise InconsistentGroupProtocol("The members of the group have no protocol in common.")

    def selected_protocol(self) -> str:
        """Of the common protocols the one that most members prefer; at a tie, the leader's."""
        votes = Counter(
            next(name for name, _ in member.record.protocols if self._is_common(name))
            for member in self
        )
        leader = self._by_id.get(self.leader) or next(iter(self))
        order = [name for name, _ in leader.record.protocols]
        return max(votes, key=lambda name: (votes[name], -order.index(name)))

    def _is_common(self, protocol_name: str) -> bool:
        return self._supporters.get(protocol_name, 0) == len(self._by_id)

    def _count_protocols(self, protocols: Protocols, change: int) -> None:
        for name in {name for name, _ in protocols}:
            count = self._supporters.pop(name, 0) + change
            if count:
                self._supporters[name] = count

    def _insert(self, member: GroupMember) -> None:
        self._by_id[member.member_id] = member
        self._count_protocols(member.record.protocols, 1)
        if member.record.group_instance_id is not None:
            self._static[member.record.group_instance_id] = member.member_id


def protocols_bytes(protocols: Protocols) -> int:
    """Roughly how much memory the protocols of a member take."""
    return sum(_PROTOCOL_BYTES + len(name) + len(data) for name, data in protocols)


def metadata_of(protocols: Sequence[tuple[str, bytes]], protocol_name: str) -> bytes:
    """A member's metadata for one protocol; empty where it does not support it."""
    return next((data for name, data in protocols if name == protocol_name), b"")
