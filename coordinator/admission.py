"""JoinGroup: who can be a member of a group, with which id, and which member it replaces.

A dynamic member gets an id and sends JoinGroup again with it (KIP-394). A static member that sends
no id is a new process that replaces the old one (KIP-345). The group refuses members beyond its
limit, and members that share no protocol with all others. `Rebalance` acts on an accepted
JoinGroup."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from brokerhouse.common.clock import Moment
from brokerhouse.coordinator.group_members import GroupMember
from brokerhouse.coordinator.group_states import GroupEvent, GroupState
from brokerhouse.coordinator.messages import (
    UNKNOWN_MEMBER_ID,
    JoinRequest,
    MemberIdGiven,
    MemberRecord,
    Waiter,
)
from brokerhouse.coordinator.rebalance import Joining, Rebalance
from brokerhouse.protocol.errors import FencedInstanceId, GroupMaxSizeReached, InvalidSessionTimeout

_NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""How long a new member that waits for its first generation is kept.

It does not know its id yet, so it cannot send heartbeats, and the group would not notice that its
client has disconnected."""


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Settings of all groups."""

    min_session_timeout_ms: int
    max_session_timeout_ms: int
    initial_rebalance_delay_ms: int
    max_size: int

    def check_session_timeout(self, asked_ms: int) -> None:
        """Raises `InvalidSessionTimeout`."""
        shortest, longest = self.min_session_timeout_ms, self.max_session_timeout_ms
        if not shortest <= asked_ms <= longest:
            raise InvalidSessionTimeout(
                f"session.timeout.ms must be from {shortest} to {longest}, not {asked_ms}."
            )


class Admission:
    """Admits members to one group."""

    def __init__(self, rebalance: Rebalance, limits: GroupLimits, new_ids: Iterator[str]) -> None:
        """`new_ids` makes the unique part of member ids."""
        self._rebalance = rebalance
        self._members = rebalance.members
        self._limits = limits
        self._new_ids = new_ids

    def join(self, request: JoinRequest, waiter: Waiter, now: Moment) -> None:
        """Raises `KafkaError`; `MemberIdGiven` if the member must join again with its id."""
        if request.member_id == UNKNOWN_MEMBER_ID:
            self._join_new(request, waiter, now)
        else:
            self._join_known(request, waiter, now)
        self._rebalance.complete_if_all_joined(now)

    def _join_new(self, request: JoinRequest, waiter: Waiter, now: Moment) -> None:
        instance = request.group_instance_id
        twin = self._members.of_instance(instance)
        taken = len(self._members) + len(self._members.pending)
        if twin is None and taken >= self._limits.max_size:
            raise self._full()
        self._members.check_protocols(request, self._rebalance.protocol_type)
        member_id = f"{instance or request.client.client_id}-{next(self._new_ids)}"
        if twin is not None:
            self._replace(twin, member_id, request, waiter, now)
        elif instance is None and request.requires_known_member_id:
            self._members.pending[member_id] = now.monotonic_ms + request.session_timeout_ms
            raise MemberIdGiven(member_id)
        else:
            self._add(member_id, request, waiter, now)

    def _join_known(self, request: JoinRequest, waiter: Waiter, now: Moment) -> None:
        member_id = request.member_id
        if not self._has_room_for(member_id):
            self._members.pending.pop(member_id, None)
            member = self._members.get(member_id)
            self._rebalance.remove([] if member is None else [member])
            self._rebalance.complete_if_all_joined(now)
            raise self._full()
        self._members.check_protocols(request, self._rebalance.protocol_type)
        if member_id in self._members.pending and request.group_instance_id is None:
            del self._members.pending[member_id]
            self._add(member_id, request, waiter, now)
        else:
            member = self._members.validated(member_id, request.group_instance_id)
            self._join_again(Joining(member, request, waiter), now)

    def _join_again(self, joining: Joining, now: Moment) -> None:
        member = joining.member
        member.heard_at(now.monotonic_ms)
        if member.record.protocols != joining.request.protocols:
            self._rebalance.park_join(joining, now)
            self._rebalance.fire(GroupEvent.MEMBER_SUBSCRIBED, now)
        elif member.member_id == self._members.leader:
            self._rebalance.fire(GroupEvent.LEADER_REJOINED, now, joining)
        else:
            self._rebalance.fire(GroupEvent.FOLLOWER_REJOINED, now, joining)

    def _has_room_for(self, member_id: str) -> bool:
        """During a rebalance, only members that have joined again count against the limit."""
        if self._rebalance.state is GroupState.PREPARING_REBALANCE:
            joined = self._members.joined
            return len(joined) < self._limits.max_size or any(
                member.member_id == member_id for member in joined
            )
        return member_id in self._members or len(self._members) < self._limits.max_size

    def _full(self) -> GroupMaxSizeReached:
        return GroupMaxSizeReached(f"The group is full: it has {self._limits.max_size} members.")

    def _add(self, member_id: str, request: JoinRequest, waiter: Waiter, now: Moment) -> None:
        if not self._members or not self._rebalance.protocol_type:
            self._rebalance.protocol_type = request.protocol_type
        self._members.add(
            GroupMember(
                MemberRecord(
                    member_id,
                    request.group_instance_id,
                    request.client,
                    request.session_timeout_ms,
                    request.rebalance_timeout_ms,
                    request.protocols,
                    assignment=b"",
                    join_time_ms=now.wall_ms,
                ),
                now.monotonic_ms + _NEW_MEMBER_JOIN_TIMEOUT_MS,
                joining=waiter,
                is_new=True,
            )
        )
        self._rebalance.changed = True
        self._rebalance.join_wait.newcomer()
        self._rebalance.fire(GroupEvent.MEMBER_SUBSCRIBED, now)

    def _replace(
        self, old: GroupMember, member_id: str, request: JoinRequest, waiter: Waiter, now: Moment
    ) -> None:
        """A static member that sends no id is a new process that replaces the old one (KIP-345)."""
        self._rebalance.answer_waiting(
            old,
            FencedInstanceId(
                f"Another member uses the instance id {old.record.group_instance_id!r} now."
            ),
        )
        member = old.replaced_by(member_id, now.monotonic_ms, request)
        self._rebalance.replace(old, member)
        joining = Joining(member, request, waiter, replaced_id=old.member_id)
        self._rebalance.park_join(joining, now)
        if self._members.selected_protocol() == self._rebalance.protocol_name:
            self._rebalance.fire(GroupEvent.STATIC_MEMBER_REPLACED, now, joining)
        else:
            self._rebalance.fire(GroupEvent.MEMBER_SUBSCRIBED, now)
