"""The state machine of one consumer group: pure, without IO; the clock is an argument.

Each request of the classic group protocol is a method. If the request is refused at once, the
method raises the `KafkaError`. Otherwise its answers are in `take_answers()`, possibly much later:
another member's request or `tick` can cause the answer to a JoinGroup or a SyncGroup. If `changed`,
the caller must store `record()`.

`waiter` is any value by which the caller finds the request again. The group returns it with the
answer and does not use it. Every waiter gets an answer: at the end of the rebalance, when the same
member sends a newer request, or when the member leaves.

`coordinator.admission` decides who can join, `coordinator.commit_rules` who can commit.
`coordinator.group_states` and `coordinator.rebalance` define what each event does.
`coordinator.group_members` has the members.

Sources: KIP-62 (rebalance time-out), KIP-134 (initial delay), KIP-345 (static members), KIP-394
(member id handshake), KIP-814 (static leader), and the behaviour of Kafka 4's classic groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from uuid import uuid4

from brokerhouse.common.clock import Moment
from brokerhouse.coordinator.admission import Admission, GroupLimits
from brokerhouse.coordinator.commit_rules import (
    CommitKind,
    CommitSender,
    check_commit,
    commit_sender,
    named_generation,
)
from brokerhouse.coordinator.group_members import metadata_of
from brokerhouse.coordinator.group_states import GroupEvent, GroupState
from brokerhouse.coordinator.messages import (
    UNKNOWN_MEMBER_ID,
    Answer,
    Committer,
    GroupRecord,
    JoinRequest,
    LeavingMember,
    MemberRecord,
    SyncRequest,
    Waiter,
)
from brokerhouse.coordinator.rebalance import Rebalance, Syncing
from brokerhouse.protocol.consumer_protocol import subscribed_topics
from brokerhouse.protocol.errors import (
    CoordinatorNotAvailable,
    IllegalGeneration,
    InconsistentGroupProtocol,
    KafkaError,
)

_CONSUMER_PROTOCOL_TYPE = "consumer"

_GROUP_BYTES = 4096
"""Roughly how much memory a group takes, without its members."""


def _uuids() -> Iterator[str]:
    while True:
        yield str(uuid4())


class Group:
    """One group. The caller serialises its events and calls `tick` at `next_deadline()`."""

    def __init__(
        self,
        group_id: str,
        limits: GroupLimits,
        now: Moment,
        new_ids: Iterator[str] | None = None,
    ) -> None:
        """`new_ids`: what makes the ids of members unique; random by default."""
        self.group_id = group_id
        self._limits = limits
        self._rebalance = Rebalance(limits.initial_rebalance_delay_ms, now)
        self._members = self._rebalance.members
        self.sync_wait = self._rebalance.sync_wait
        self._admission = Admission(self._rebalance, limits, new_ids or _uuids())

    @classmethod
    def restored(
        cls,
        record: GroupRecord,
        limits: GroupLimits,
        now: Moment,
        new_ids: Iterator[str] | None = None,
    ) -> Group:
        """The group as it was stored: every member has its full session time-out to come back.

        A record that was put together after a crash between two tables may name no leader, or no
        protocol type, although it has members.
        """
        group = cls(record.group_id, limits, now, new_ids)
        group._members.restore(record, now.monotonic_ms)
        rebalance = group._rebalance
        rebalance.state = GroupState(record.state)
        rebalance.state_time_ms = record.state_time_ms
        rebalance.generation = record.generation
        rebalance.protocol_type = record.protocol_type
        rebalance.protocol_name = record.protocol_name
        rebalance.resume(now.monotonic_ms)
        return group

    # What others ask

    @property
    def state(self) -> GroupState:
        return self._rebalance.state

    @property
    def generation(self) -> int:
        return self._rebalance.generation

    @property
    def emptied_ms(self) -> int | None:
        """When its last member left, by the wall clock; None: it has members, or never had any."""
        has_had_members = self._rebalance.protocol_type != ""
        is_empty = self.state is GroupState.EMPTY
        return self._rebalance.state_time_ms if is_empty and has_had_members else None

    @property
    def changed(self) -> bool:
        """Whether `record` has to be stored."""
        return self._rebalance.changed

    def mark_changed(self) -> None:
        """The group must be stored: it is new, or storing it failed."""
        self._rebalance.changed = True

    @property
    def is_unused(self) -> bool:
        """Whether it has no members and no pending ids."""
        return not self._members and not self._members.pending

    @property
    def size_bytes(self) -> int:
        """Roughly how much memory it takes, mostly for names, subscriptions and assignments."""
        return _GROUP_BYTES + len(self.group_id) + self._members.size_bytes

    def member_bytes(self, member_id: str) -> int:
        """The part of `size_bytes` that is one member's; 0 where there is no such member."""
        member = self._members.get(member_id)
        return 0 if member is None else member.size_bytes

    def subscribed_topics(self) -> frozenset[str] | None:
        """The topics that its members read; None where that cannot be known."""
        if self.state is GroupState.EMPTY:
            return frozenset()
        if self._rebalance.protocol_type != _CONSUMER_PROTOCOL_TYPE:
            return None
        topics: frozenset[str] = frozenset()
        for member in self._members:
            read = subscribed_topics(member.metadata(self._rebalance.protocol_name))
            if read is None:
                return None
            topics |= read
        return topics

    def record(self, version: int) -> GroupRecord:
        """The group as it has to be stored. Resets `changed`."""
        rebalance = self._rebalance
        rebalance.changed = False
        return GroupRecord(
            self.group_id,
            version,
            rebalance.state.value,
            rebalance.state_time_ms,
            rebalance.generation,
            rebalance.protocol_type,
            rebalance.protocol_name,
            self._members.leader,
            tuple(member.record for member in self._members),
        )

    def take_answers(self) -> list[Answer]:
        """What has been decided since the last call, in order."""
        answers, self._rebalance.answers = self._rebalance.answers, []
        return answers

    # Requests

    def join(self, request: JoinRequest, waiter: Waiter, now: Moment) -> None:
        """Raises `KafkaError`; `MemberIdGiven` if the member must join again with its id."""
        self._limits.check_session_timeout(request.session_timeout_ms)
        self._refuse_if_deleted()
        self._admission.join(request, waiter, now)

    def sync(self, request: SyncRequest, waiter: Waiter, now: Moment) -> None:
        """Raises `KafkaError`."""
        self._refuse_if_deleted()
        member = self._members.validated(request.member_id, request.group_instance_id)
        self._check_generation(request.generation)
        chosen = self._rebalance.protocol_type, self._rebalance.protocol_name
        if _differs(request.protocol_type, chosen[0]) or _differs(request.protocol_name, chosen[1]):
            raise InconsistentGroupProtocol(
                f"The group uses protocol type {chosen[0]!r} and protocol {chosen[1]!r}."
            )
        leads = member.member_id == self._members.leader
        event = GroupEvent.LEADER_SYNCED if leads else GroupEvent.FOLLOWER_SYNCED
        self._rebalance.fire(event, now, Syncing(member, request, waiter))

    def heartbeat(
        self, member_id: str, group_instance_id: str | None, generation: int, now: Moment
    ) -> None:
        """Raises `KafkaError`: `RebalanceInProgress` tells the member to join again."""
        self._refuse_if_deleted()
        member = self._members.validated(member_id, group_instance_id)
        self._check_generation(generation)
        member.heard_at(now.monotonic_ms)
        self._rebalance.fire(GroupEvent.HEARTBEAT, now)

    def leave(self, members: Iterable[LeavingMember], now: Moment) -> list[KafkaError | None]:
        """Remove members. Per member: None, or the error that kept it in the group."""
        self._refuse_if_deleted()
        before = len(self._members)
        outcomes = [self._leave(member) for member in members]
        if len(self._members) < before:
            self._rebalance.fire(GroupEvent.MEMBERS_REMOVED, now)
        self._rebalance.complete_if_all_joined(now)
        return outcomes

    def _leave(self, leaving: LeavingMember) -> KafkaError | None:
        if leaving.member_id in self._members.pending:
            del self._members.pending[leaving.member_id]
            return None
        instance, member_id = leaving.group_instance_id, leaving.member_id
        if member_id == UNKNOWN_MEMBER_ID and (found := self._members.of_instance(instance)):
            member_id = found.member_id
        try:
            self._rebalance.remove([self._members.validated(member_id, instance)])
        except KafkaError as error:
            return error
        return None

    def check_commit(self, kind: CommitKind, committer: Committer, now: Moment) -> None:
        """Raises `KafkaError` unless this client may commit now: `coordinator.commit_rules`.

        A member's OffsetCommit counts as a heartbeat.
        """
        sender = commit_sender(committer, self._members)
        named = named_generation(committer, self._rebalance.generation)
        check_commit(kind, self.state, sender, named)
        if kind is CommitKind.PLAIN and sender is CommitSender.MEMBER:
            self._members[committer.member_id].heard_at(now.monotonic_ms)

    def delete(self, now: Moment) -> None:
        """Delete the group. It must be empty."""
        assert not self._members
        self._members.pending.clear()
        self._rebalance.fire(GroupEvent.DELETED, now)

    def shut_down(self, error: KafkaError) -> None:
        """Refuse every request that waits: this broker stops coordinating the group."""
        for member in self._members:
            self._rebalance.answer_waiting(member, error)

    # The clock

    def next_deadline(self) -> int | None:
        """When `tick` has something to do if nothing happens before, by the monotonic clock."""
        deadlines = [member.expires_ms for member in self._members if not member.waits]
        deadlines += self._members.pending.values()
        return min(deadlines + self._rebalance.deadlines, default=None)

    def tick(self, now: Moment) -> None:
        """Act on every deadline that has passed."""
        pending = self._members.pending
        for member_id in [one for one, until_ms in pending.items() if until_ms <= now.monotonic_ms]:
            del pending[member_id]
        silent = [
            member
            for member in self._members
            if not member.waits and member.expires_ms <= now.monotonic_ms
        ]
        if silent:
            self._rebalance.remove(silent)
            self._rebalance.fire(GroupEvent.MEMBERS_REMOVED, now)
        self._rebalance.complete_if_all_joined(now)
        self._rebalance.tick(now)

    def _check_generation(self, generation: int) -> None:
        current = self._rebalance.generation
        if generation != current:
            raise IllegalGeneration(f"The group is in generation {current}, not {generation}.")

    def _refuse_if_deleted(self) -> None:
        if self.state is GroupState.DEAD:
            raise CoordinatorNotAvailable("The group has just been deleted.")


def _differs(named: str | None, chosen: str) -> bool:
    """Before the first generation nothing is chosen yet, and old clients name no protocol."""
    return named is not None and bool(chosen) and named != chosen


def selected_metadata(record: GroupRecord, member: MemberRecord) -> bytes:
    """A stored member's metadata for the protocol of its generation."""
    return metadata_of(member.protocols, record.protocol_name)
