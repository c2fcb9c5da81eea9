"""The rebalance of one group: its state, its generation, and the actions of transitions.

Only `Rebalance.fire` changes the state: it looks the event up in `TRANSITIONS`, enters the next
state and does its actions. `coordinator.groups` and `coordinator.admission` check before that
whether a request can cause the event.

A rebalance has two parts. First it waits for every member to join (`JoinWait`); then a generation
begins. Then the members of the generation wait for their assignments (`SyncWait`), which the leader
sends. Times are monotonic, in ms; stored times are wall-clock times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from brokerhouse.common.clock import Moment
from brokerhouse.coordinator.group_members import GroupMember, Members
from brokerhouse.coordinator.group_states import (
    TRANSITIONS,
    GroupAction,
    GroupEvent,
    GroupState,
    Refusal,
)
from brokerhouse.coordinator.messages import (
    Answer,
    JoinAnswer,
    JoinRequest,
    SyncAnswer,
    SyncRequest,
    Waiter,
)
from brokerhouse.protocol.errors import KafkaError, RebalanceInProgress, UnknownMemberId

_NOBODY_JOINED_RETRY_MS = 1_000
"""A rebalance that nobody has joined is put off for at least this long."""


@dataclass(frozen=True, slots=True)
class Joining:
    """A JoinGroup of a member. `replaced_id`: the id of the process whose place the member took."""

    member: GroupMember
    request: JoinRequest
    waiter: Waiter
    replaced_id: str = ""


@dataclass(frozen=True, slots=True)
class Syncing:
    """A SyncGroup of a member."""

    member: GroupMember
    request: SyncRequest
    waiter: Waiter


@dataclass(slots=True)
class JoinWait:
    """Until when a rebalance waits for members to join.

    The first one of an empty group ends by the clock alone (KIP-134): it is prolonged while members
    keep coming, up to the longest rebalance time-out among them.
    """

    deadline_ms: int | None = None
    is_first: bool = False
    _delay_left_ms: int = 0
    _has_newcomer: bool = False

    def begin(self, now_ms: int, for_ms: int) -> None:
        self.deadline_ms = now_ms + for_ms
        self.is_first = False

    def begin_first(self, now_ms: int, delay_ms: int, longest_ms: int) -> None:
        self.deadline_ms = now_ms + delay_ms
        self.is_first = True
        self._delay_left_ms = max(longest_ms - delay_ms, 0)
        self._has_newcomer = False

    def newcomer(self) -> None:
        self._has_newcomer = True

    def put_off(self, now_ms: int, for_ms: int) -> None:
        self.deadline_ms = now_ms + for_ms

    def prolong(self, now_ms: int, delay_ms: int) -> bool:
        """Wait for another delay if a member joined during this one. Returns whether it waits."""
        if not (self.is_first and self._has_newcomer and self._delay_left_ms > 0):
            return False
        delay_ms = min(delay_ms, self._delay_left_ms)
        self._delay_left_ms -= delay_ms
        self._has_newcomer = False
        self.deadline_ms = now_ms + delay_ms
        return True

    def end(self) -> None:
        self.deadline_ms = None
        self.is_first = False


class SyncWait:
    """Which members of a generation have not synchronised yet, and until when they have to."""

    def __init__(self) -> None:
        self.deadline_ms: int | None = None
        self.missing: set[str] = set()
        self._timeout_ms = 0

    def begin(self, member_ids: Iterable[str], now_ms: int, timeout_ms: int) -> None:
        self.missing = set(member_ids)
        self._timeout_ms = timeout_ms
        self.deadline_ms = now_ms + timeout_ms

    def begin_anew(self, now_ms: int) -> None:
        """Members that have to synchronise learn it only now: they have all of their time."""
        if self.deadline_ms is not None:
            self.deadline_ms = now_ms + self._timeout_ms

    def end(self) -> None:
        self.missing.clear()
        self.deadline_ms = None


class Rebalance:
    """The state machine of one group, driven by `TRANSITIONS`."""

    def __init__(self, initial_delay_ms: int, now: Moment) -> None:
        self.state = GroupState.EMPTY
        self.state_time_ms = now.wall_ms
        self.generation = 0
        self.protocol_type = ""
        self.protocol_name = ""
        self.changed = False
        self.members = Members()
        self.answers: list[Answer] = []
        self.join_wait = JoinWait()
        self.sync_wait = SyncWait()
        self._initial_delay_ms = initial_delay_ms

    def resume(self, now_ms: int) -> None:
        """Continue the rebalance that was under way when the group was stored."""
        if self.state is GroupState.PREPARING_REBALANCE:
            self.join_wait.begin(now_ms, self.members.rebalance_timeout_ms)
        elif self.state is GroupState.COMPLETING_REBALANCE:
            self._await_syncs(now_ms)

    @property
    def deadlines(self) -> list[int]:
        """When `tick` has something to do."""
        waits = self.join_wait.deadline_ms, self.sync_wait.deadline_ms
        return [deadline_ms for deadline_ms in waits if deadline_ms is not None]

    def fire(
        self, event: GroupEvent, now: Moment, request: Joining | Syncing | None = None
    ) -> None:
        """Do the transition of this event. `request` caused it. Raises `KafkaError`."""
        found = TRANSITIONS[self.state].get(event)
        assert found is not None, f"{event} in state {self.state}"
        if isinstance(found, Refusal):
            raise found.error(found.reason)
        self._enter(found.state, now)
        for action in found.actions:
            _METHODS[action](self, request, now)

    def tick(self, now: Moment) -> None:
        """Act on every deadline that has passed."""
        if _is_due(self.sync_wait.deadline_ms, now):
            late = [member for member in self.members if member.member_id in self.sync_wait.missing]
            self.sync_wait.end()
            if late:
                self.remove(late)
                self.fire(GroupEvent.MEMBERS_REMOVED, now)
                self.complete_if_all_joined(now)
        if _is_due(self.join_wait.deadline_ms, now) and not self.join_wait.prolong(
            now.monotonic_ms, self._initial_delay_ms
        ):
            self._end_join_wait(now)

    def complete_if_all_joined(self, now: Moment) -> None:
        """End the wait for members once nobody is missing. To be called after every event."""
        if (
            self.state is GroupState.PREPARING_REBALANCE
            and self.members.all_joined
            and (not self.join_wait.is_first or not self.members)
        ):
            self._end_join_wait(now)

    def remove(self, members: Iterable[GroupMember]) -> None:
        for member in members:
            self.answer_waiting(
                member, UnknownMemberId("The member has been removed from the group.")
            )
            self.members.remove(member)
            self.sync_wait.missing.discard(member.member_id)
            self.changed = True

    def replace(self, old: GroupMember, new: GroupMember) -> None:
        """Replace the old process of a static member by the new one."""
        self.members.replace(old, new)
        self.sync_wait.missing.discard(old.member_id)

    def answer(self, waiter: Waiter, outcome: JoinAnswer | SyncAnswer | KafkaError) -> None:
        self.answers.append(Answer(waiter, outcome))

    def answer_waiting(self, member: GroupMember, error: KafkaError) -> None:
        """Refuse the requests of this member that wait for an answer."""
        for waiter in (member.joining, member.syncing):
            if waiter is not None:
                self.answer(waiter, error)
        member.joining = member.syncing = None

    # The end of the wait for members

    def _end_join_wait(self, now: Moment) -> None:
        """Begin the next generation, of those who have joined. Static members may come later."""
        self.remove(
            [
                one
                for one in self.members
                if one.joining is None and one.record.group_instance_id is None
            ]
        )
        if self.members and not self.members.elect_leader():
            # Only static members are left, and none has joined: their sessions decide.
            pause_ms = max(self.members.rebalance_timeout_ms, _NOBODY_JOINED_RETRY_MS)
            self.join_wait.put_off(now.monotonic_ms, pause_ms)
            return
        self.join_wait.end()
        self.generation += 1
        self.protocol_name = self.members.selected_protocol() if self.members else ""
        everybody = GroupEvent.EVERYBODY_JOINED if self.members else GroupEvent.EVERYBODY_GONE
        self.fire(everybody, now)

    # The actions of the table

    def _enter(self, state: GroupState, now: Moment) -> None:
        if state is not self.state:
            self.state = state
            self.state_time_ms = now.wall_ms
            self.changed = True

    def _begin_first_wait(self, _request: object, now: Moment) -> None:
        longest_ms = self.members.rebalance_timeout_ms
        self.join_wait.begin_first(now.monotonic_ms, self._initial_delay_ms, longest_ms)

    def _begin_wait(self, _request: object, now: Moment) -> None:
        for member in self.members:
            if member.syncing is not None:
                self.answer(
                    member.syncing, RebalanceInProgress("Another rebalance has begun. Join again.")
                )
                member.syncing = None
                member.heard_at(now.monotonic_ms)
        self.sync_wait.end()
        self.join_wait.begin(now.monotonic_ms, self.members.rebalance_timeout_ms)

    def park_join(self, joining: Joining, _now: Moment) -> None:
        """Store what a member sent; its JoinGroup waits for the next generation."""
        member, request = joining.member, joining.request
        self.members.update(member, request)
        self.protocol_type = self.protocol_type or request.protocol_type
        if member.joining is not None:
            self.answer(
                member.joining, RebalanceInProgress("The member has sent another JoinGroup.")
            )
        member.joining = joining.waiter
        self.changed = True

    def _tell_generation(self, joining: Joining, _now: Moment) -> None:
        self._answer_join(joining.member, joining.waiter, self.members.leader)

    def _tell_replacement(self, joining: Joining, _now: Moment) -> None:
        member, leader = joining.member, self.members.leader
        member.joining = None
        leads = leader == member.member_id
        if joining.request.supports_skipping_assignment:
            self._answer_join(member, joining.waiter, leader, skip_assignment=leads)
        else:
            # Told that it is a follower, it does not compute an assignment that nobody needs.
            self._answer_join(member, joining.waiter, joining.replaced_id if leads else leader)

    def _begin_generation(self, _request: object, now: Moment) -> None:
        for member in self.members:
            member.assign(b"")
            member.is_new = False
            member.heard_at(now.monotonic_ms)
        for member in self.members.joined:
            waiter, member.joining = member.joining, None
            self._answer_join(member, waiter, self.members.leader)
        self._await_syncs(now.monotonic_ms)

    def _await_syncs(self, now_ms: int) -> None:
        member_ids = (member.member_id for member in self.members)
        self.sync_wait.begin(member_ids, now_ms, self.members.rebalance_timeout_ms)

    def _park_sync(self, syncing: Syncing, _now: Moment) -> None:
        member = syncing.member
        if member.syncing is not None:
            self.answer(
                member.syncing, RebalanceInProgress("The member has sent another SyncGroup.")
            )
        member.syncing = syncing.waiter
        self.sync_wait.missing.discard(member.member_id)

    def _assign(self, syncing: Syncing, now: Moment) -> None:
        for member in self.members:
            member.assign(syncing.request.assignments.get(member.member_id, b""))
            if member.syncing is not None:
                self._answer_sync(member, now)

    def _tell_assignment(self, syncing: Syncing, now: Moment) -> None:
        self._answer_sync(syncing.member, now)

    def _answer_sync(self, member: GroupMember, now: Moment) -> None:
        self.answer(
            member.syncing,
            SyncAnswer(self.protocol_type, self.protocol_name, member.record.assignment),
        )
        member.syncing = None
        member.heard_at(now.monotonic_ms)
        if not self.sync_wait.missing:
            self.sync_wait.end()

    def _answer_join(
        self, member: GroupMember, waiter: Waiter, leader: str, *, skip_assignment: bool = False
    ) -> None:
        leads = leader == member.member_id
        self.answer(
            waiter,
            JoinAnswer(
                member.member_id,
                self.generation,
                self.protocol_type,
                self.protocol_name,
                leader,
                self.members.as_joined(self.protocol_name) if leads else (),
                skip_assignment,
            ),
        )


def _is_due(deadline_ms: int | None, now: Moment) -> bool:
    return deadline_ms is not None and deadline_ms <= now.monotonic_ms


_METHODS: Mapping[GroupAction, Callable[[Rebalance, Any, Moment], None]] = MappingProxyType(
    {
        GroupAction.BEGIN_FIRST_WAIT: Rebalance._begin_first_wait,
        GroupAction.BEGIN_WAIT: Rebalance._begin_wait,
        GroupAction.PARK_JOIN: Rebalance.park_join,
        GroupAction.TELL_GENERATION: Rebalance._tell_generation,
        GroupAction.TELL_REPLACEMENT: Rebalance._tell_replacement,
        GroupAction.BEGIN_GENERATION: Rebalance._begin_generation,
        GroupAction.PARK_SYNC: Rebalance._park_sync,
        GroupAction.ASSIGN: Rebalance._assign,
        GroupAction.TELL_ASSIGNMENT: Rebalance._tell_assignment,
    }
)
