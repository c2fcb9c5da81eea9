"""The state machine of one consumer group: pure, without IO, the clock an argument.

Every rule of the classic group protocol lives here: member ids, the choice of protocol,
generations, leaders, static members, time-outs. Each event is a method: it raises the
`KafkaError` of a request that is refused at once, and otherwise leaves what it decided in
`take_answers()`: a JoinGroup or a SyncGroup may be answered much later, by somebody else's event
or by `tick`. What has to be stored is `record()`, when `changed`.

Times are milliseconds of one clock that only goes forward. `waiter` is whatever the caller needs
to find the request again; the machine hands it back with the answer and never looks into it. Every
waiter is answered: by the end of the rebalance, by a newer request of the same member, or when
the member goes.

Sources: KIP-62 (rebalance time-out), KIP-134 (initial delay), KIP-345 (static members), KIP-394
(member id handshake), KIP-814 (static leader), and the behaviour of Kafka 4's classic groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any
from uuid import uuid4

from coordinator.messages import (
    UNKNOWN_MEMBER_ID,
    Client,
    Committer,
    GroupRecord,
    JoinAnswer,
    JoinedMember,
    JoinRequest,
    LeavingMember,
    MemberIdGiven,
    MemberRecord,
    Protocols,
    SyncAnswer,
    SyncRequest,
)
from protocol.errors import (
    CoordinatorNotAvailable,
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidSessionTimeout,
    KafkaError,
    RebalanceInProgress,
    UnknownMemberId,
)

CONSUMER_PROTOCOL_TYPE = "consumer"

_NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""How long a member is kept that does not know its id yet and waits for its first generation.

It cannot send heartbeats; if its client has gone, nobody would ever notice."""

_NOBODY_JOINED_RETRY_MS = 1_000
"""The least that a rebalance which nobody has joined is put off for, whatever members ask for."""

# About, without what clients sent.
_GROUP_BYTES, _MEMBER_BYTES, _PROTOCOL_BYTES, _KNOCKING_BYTES = 4096, 1024, 128, 256


class GroupState(StrEnum):
    """Named as Kafka's tools show them."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


TRANSITIONS: Mapping[GroupState, frozenset[GroupState]] = MappingProxyType(
    {
        # no members: offsets may be left
        GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
        # waits until every member has joined again, or the rebalance time-out
        GroupState.PREPARING_REBALANCE: frozenset(
            {GroupState.COMPLETING_REBALANCE, GroupState.EMPTY, GroupState.DEAD}
        ),
        # a generation has begun: waits for the leader's assignment
        GroupState.COMPLETING_REBALANCE: frozenset(
            {GroupState.STABLE, GroupState.PREPARING_REBALANCE, GroupState.DEAD}
        ),
        # every member has its assignment, or can have it
        GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
        # deleted
        GroupState.DEAD: frozenset(),
    }
)
"""From each state, the states that may follow."""

Waiter = Any


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
                f"the session time-out must be {shortest} to {longest} ms, not {asked_ms}"
            )


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request that waited is told; None where all there is to say is that it is done."""

    waiter: Waiter
    outcome: JoinAnswer | SyncAnswer | KafkaError | None


@dataclass(slots=True)
class _Member:
    member_id: str
    group_instance_id: str | None
    client: Client
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    join_time_ms: int
    expires_ms: int
    assignment: bytes = b""
    joining: Waiter | None = None
    syncing: Waiter | None = None
    is_new: bool = False  # waits for its first generation
    record: MemberRecord | None = field(default=None, repr=False)  # as it is now, once asked for

    def metadata(self, protocol_name: str) -> bytes:
        return _metadata(self.protocols, protocol_name)

    @property
    def waits(self) -> bool:
        """A request of its own is parked, which stands for its heartbeats."""
        return not self.is_new and (self.joining is not None or self.syncing is not None)

    @property
    def size_bytes(self) -> int:
        names = len(self.member_id) + len(self.group_instance_id or "") + len(self.client.client_id)
        return _MEMBER_BYTES + names + len(self.assignment) + protocols_bytes(self.protocols)


def protocols_bytes(protocols: Protocols) -> int:
    """About what the protocols of a member take in memory."""
    return sum(_PROTOCOL_BYTES + len(name) + len(data) for name, data in protocols)


class Group:
    """One group. The caller serialises its events and keeps `tick` called by `next_deadline()`."""

    def __init__(
        self,
        group_id: str,
        limits: GroupLimits,
        now_ms: int,
        new_id: Callable[[], str] = lambda: str(uuid4()),
        wall_ms: Callable[[], int] | None = None,
    ) -> None:
        """`wall_ms`: the time of day for records, where `now_ms` is another clock."""
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self._wall_ms = wall_ms
        self.state_time_ms = self._wall(now_ms)
        self.generation = 0
        self.protocol_type = ""
        self.protocol_name = ""
        self.leader = ""
        self.changed = False
        self._limits = limits
        self._new_id = new_id
        self._members: dict[str, _Member] = {}  # by time of joining
        self._static: dict[str, str] = {}  # group instance id -> member id
        self._supporters: dict[str, int] = {}  # protocol name -> members that have it
        self._knocking: dict[str, int] = {}  # ids given and not joined with yet -> expiry
        self._must_sync: set[str] = set()
        self._join_deadline_ms: int | None = None
        self._sync_deadline_ms: int | None = None
        self._initial = False  # the rebalance began without members: it ends by the clock alone
        self._delay_left_ms = 0
        self._joined_during_delay = False
        self._answers: list[Answer] = []

    @classmethod
    def restored(
        cls,
        record: GroupRecord,
        limits: GroupLimits,
        now_ms: int,
        wall_ms: Callable[[], int] | None = None,
    ) -> Group:
        """The group as it was stored: every member has its whole session time-out to come back.

        A record that was put together after a crash between two tables may name no leader, or no
        protocol type, although it has members.
        """
        group = cls(record.group_id, limits, now_ms, wall_ms=wall_ms)
        group.state = GroupState(record.state)
        group.state_time_ms = record.state_time_ms
        group.generation = record.generation
        group.protocol_type = record.protocol_type
        group.protocol_name = record.protocol_name
        group.leader = record.leader
        for stored in sorted(record.members, key=lambda member: member.join_time_ms):
            group._members[stored.member_id] = _Member(
                stored.member_id,
                stored.group_instance_id,
                stored.client,
                stored.session_timeout_ms,
                stored.rebalance_timeout_ms,
                stored.protocols,
                stored.join_time_ms,
                now_ms + stored.session_timeout_ms,
                stored.assignment,
                record=stored,
            )
            group._count_protocols(stored.protocols, 1)
            if stored.group_instance_id is not None:
                group._static[stored.group_instance_id] = stored.member_id
        if group.leader not in group._members:
            group.leader = next(iter(group._members), "")
        if group.state is GroupState.PREPARING_REBALANCE:
            group._join_deadline_ms = now_ms + group._rebalance_timeout_ms
        elif group.state is GroupState.COMPLETING_REBALANCE:
            group._await_syncs(now_ms)
        return group

    # What others ask

    @property
    def member_count(self) -> int:
        return len(self._members)

    @property
    def is_unused(self) -> bool:
        """Nobody is in it or about to come."""
        return not self._members and not self._knocking

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory: names, subscriptions, assignments, a little for each."""
        members = sum(member.size_bytes for member in self._members.values())
        knocking = sum(_KNOCKING_BYTES + len(member_id) for member_id in self._knocking)
        return _GROUP_BYTES + len(self.group_id) + members + knocking

    def member_bytes(self, member_id: str) -> int:
        """The part of `size_bytes` that is one member's; 0 where there is no such member."""
        member = self._members.get(member_id)
        return 0 if member is None else member.size_bytes

    def record(self, version: int) -> GroupRecord:
        """The group as it has to be stored. Resets `changed`."""
        self.changed = False
        return GroupRecord(
            self.group_id,
            version,
            self.state.value,
            self.state_time_ms,
            self.generation,
            self.protocol_type,
            self.protocol_name,
            self.leader,
            tuple(_record(member) for member in self._members.values()),
        )

    def take_answers(self) -> list[Answer]:
        """What has been decided since the last call, in order."""
        answers, self._answers = self._answers, []
        return answers

    def next_deadline(self) -> int | None:
        """When `tick` has something to do, if nothing happens before."""
        deadlines = [member.expires_ms for member in self._members.values() if not member.waits]
        deadlines += self._knocking.values()
        deadlines += (t for t in (self._join_deadline_ms, self._sync_deadline_ms) if t is not None)
        return min(deadlines, default=None)

    def subscriptions(self) -> list[bytes]:
        """Each member's metadata for the protocol of this generation."""
        return [member.metadata(self.protocol_name) for member in self._members.values()]

    # JoinGroup

    def join(self, request: JoinRequest, waiter: Waiter, now_ms: int) -> None:
        """Raises `KafkaError`; `MemberIdGiven` when the member has to come again with its id."""
        self._limits.check_session_timeout(request.session_timeout_ms)
        self._refuse_dead()
        if request.member_id == UNKNOWN_MEMBER_ID:
            self._join_new(request, waiter, now_ms)
        else:
            self._join_known(request, waiter, now_ms)

    def _join_new(self, request: JoinRequest, waiter: Waiter, now_ms: int) -> None:
        instance = request.group_instance_id
        twin = self._static.get(instance) if instance is not None else None
        if twin is None and len(self._members) + len(self._knocking) >= self._limits.max_size:
            raise GroupMaxSizeReached(f"the group takes {self._limits.max_size} members")
        self._check_protocols(request)
        member_id = f"{instance or request.client.client_id}-{self._new_id()}"
        if twin is not None:
            self._replace_static(request, self._members[twin], member_id, waiter, now_ms)
        elif instance is None and request.requires_known_member_id:
            self._knocking[member_id] = now_ms + request.session_timeout_ms
            raise MemberIdGiven(member_id)
        else:
            self._add(request, member_id, waiter, now_ms)

    def _join_known(self, request: JoinRequest, waiter: Waiter, now_ms: int) -> None:
        member_id = request.member_id
        if not self._accepts(member_id):
            self._knocking.pop(member_id, None)
            if member_id in self._members:
                self._remove(self._members[member_id])
            self._complete_if_all_joined(now_ms)
            raise GroupMaxSizeReached(f"the group takes {self._limits.max_size} members")
        self._check_protocols(request)
        if member_id in self._knocking and request.group_instance_id is None:
            del self._knocking[member_id]
            self._add(request, member_id, waiter, now_ms)
            return
        member = self._validated(member_id, request.group_instance_id)
        self._heard_from(member, now_ms)
        same = member.protocols == request.protocols
        if self.state is GroupState.COMPLETING_REBALANCE and same:
            # Its first answer may have been lost.
            self._answer_join(member, waiter)
        elif self.state is GroupState.STABLE and same and member_id != self.leader:
            self._answer_join(member, waiter)
        else:
            # A leader that joins again wants another assignment: topics have changed, for one.
            self._update(member, request, waiter, now_ms)
            self._rebalance(now_ms)

    def _accepts(self, member_id: str) -> bool:
        """Whether there is room; members that joined again go before those that have not yet."""
        if self.state is GroupState.PREPARING_REBALANCE:
            member = self._members.get(member_id)
            joined = sum(m.joining is not None for m in self._members.values())
            return (member is not None and member.joining is not None) or (
                joined < self._limits.max_size
            )
        return member_id in self._members or len(self._members) < self._limits.max_size

    def _check_protocols(self, request: JoinRequest) -> None:
        if not request.protocol_type or not request.protocols:
            raise InconsistentGroupProtocol("a protocol type and a protocol are needed")
        if not self._members:
            return
        if self.protocol_type and request.protocol_type != self.protocol_type:
            raise InconsistentGroupProtocol(
                f"the group's protocol type is {self.protocol_type!r}, not "
                f"{request.protocol_type!r}"
            )
        if not any(self._is_common(name) for name, _ in request.protocols):
            raise InconsistentGroupProtocol("no protocol is supported by all members")

    def _is_common(self, protocol_name: str) -> bool:
        return self._supporters.get(protocol_name, 0) == len(self._members)

    def _count_protocols(self, protocols: Protocols, change: int) -> None:
        for name in {name for name, _ in protocols}:
            count = self._supporters.pop(name, 0) + change
            if count:
                self._supporters[name] = count

    def _add(self, request: JoinRequest, member_id: str, waiter: Waiter, now_ms: int) -> None:
        if not self._members or not self.protocol_type:
            self.protocol_type = request.protocol_type
        member = _Member(
            member_id,
            request.group_instance_id,
            request.client,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocols,
            self._wall(now_ms),
            now_ms + _NEW_MEMBER_JOIN_TIMEOUT_MS,
            joining=waiter,
            is_new=True,
        )
        self._members[member_id] = member
        self._count_protocols(member.protocols, 1)
        if member.group_instance_id is not None:
            self._static[member.group_instance_id] = member_id
        self.leader = self.leader or member_id
        self.changed = True
        self._joined_during_delay = True
        self._rebalance(now_ms)

    def _update(self, member: _Member, request: JoinRequest, waiter: Waiter, now_ms: int) -> None:
        self._count_protocols(member.protocols, -1)
        member.protocols = request.protocols
        self._count_protocols(member.protocols, 1)
        self.protocol_type = self.protocol_type or request.protocol_type
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.client = request.client
        member.record = None
        if member.joining is not None:
            self._answer(member.joining, RebalanceInProgress("the member has joined again"))
        member.joining = waiter
        self.changed = True

    def _replace_static(
        self, request: JoinRequest, old: _Member, member_id: str, waiter: Waiter, now_ms: int
    ) -> None:
        """A static member without its id is a new process in the old one's place (KIP-345)."""
        fenced = FencedInstanceId(f"another member is {old.group_instance_id} now")
        self._answer_waiting(old, fenced)
        led = self.leader == old.member_id
        member = replace(
            old,
            member_id=member_id,
            expires_ms=now_ms + request.session_timeout_ms,
            is_new=False,
            record=None,
        )
        self._members = {
            m.member_id: m for m in (member if m is old else m for m in self._members.values())
        }
        self._must_sync.discard(old.member_id)
        assert member.group_instance_id is not None
        self._static[member.group_instance_id] = member_id
        old_leader = self.leader
        if led:
            self.leader = member_id
        self._update(member, request, waiter, now_ms)
        if self.state is not GroupState.STABLE:
            # A leader may already be assigning partitions to the old id.
            self._rebalance(now_ms)
        elif self._select_protocol() != self.protocol_name:
            self._rebalance(now_ms)
        else:
            member.joining = None
            if request.supports_skipping_assignment:
                self._answer_join(member, waiter, skip_assignment=led)
            else:
                # Named as a follower, it does not compute an assignment that nobody awaits.
                self._answer_join(member, waiter, leader=old_leader)

    # The rebalance

    def _rebalance(self, now_ms: int) -> None:
        """Begin one, unless one is being prepared; end it where nobody is waited for."""
        if self.state is not GroupState.PREPARING_REBALANCE:
            self._prepare(now_ms)
        self._complete_if_all_joined(now_ms)

    def _prepare(self, now_ms: int) -> None:
        for member in self._members.values():
            if member.syncing is not None:
                self._answer(member.syncing, RebalanceInProgress("another rebalance has begun"))
                member.syncing = None
                self._heard_from(member, now_ms)
        self._must_sync.clear()
        self._sync_deadline_ms = None
        self._initial = self.state is GroupState.EMPTY
        if self._initial:
            delay = self._limits.initial_rebalance_delay_ms
            self._join_deadline_ms = now_ms + delay
            self._delay_left_ms = max(self._rebalance_timeout_ms - delay, 0)
            self._joined_during_delay = False
        else:
            self._join_deadline_ms = now_ms + self._rebalance_timeout_ms
        self._move(GroupState.PREPARING_REBALANCE, now_ms)

    @property
    def _rebalance_timeout_ms(self) -> int:
        return max((m.rebalance_timeout_ms for m in self._members.values()), default=0)

    @property
    def _all_joined(self) -> bool:
        return not self._knocking and all(m.joining is not None for m in self._members.values())

    def _complete_if_all_joined(self, now_ms: int) -> None:
        if (
            self.state is GroupState.PREPARING_REBALANCE
            and self._all_joined
            and (not self._initial or not self._members)
        ):
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        """The next generation, of those who have joined. Static members may come later."""
        for member in [*self._members.values()]:
            if member.joining is None and member.group_instance_id is None:
                self._remove(member)
        if self._members and not self._elect_leader():
            # Only static members, and none of them is here: their sessions decide.
            self._join_deadline_ms = now_ms + max(
                self._rebalance_timeout_ms, _NOBODY_JOINED_RETRY_MS
            )
            return
        self._join_deadline_ms = None
        self._initial = False
        self.generation += 1
        if not self._members:
            self.protocol_name = self.leader = ""
            self._move(GroupState.EMPTY, now_ms)
            return
        self.protocol_name = self._select_protocol()
        self._move(GroupState.COMPLETING_REBALANCE, now_ms)
        for member in self._members.values():
            if member.assignment:
                member.assignment, member.record = b"", None
            member.expires_ms = now_ms + member.session_timeout_ms
            member.is_new = False
            if member.joining is not None:
                waiter, member.joining = member.joining, None
                self._answer_join(member, waiter)
        self._await_syncs(now_ms)

    def _elect_leader(self) -> bool:
        """Keep the leader if it has joined, else take the earliest that has; False if none has."""
        leader = self._members.get(self.leader)
        if leader is not None and leader.joining is not None:
            return True
        joined = next((m for m in self._members.values() if m.joining is not None), None)
        if joined is None:
            return False
        self.leader = joined.member_id
        return True

    def _select_protocol(self) -> str:
        """Of those that all support, the one that most members like best; then the leader's."""
        votes = Counter(
            next(name for name, _ in member.protocols if self._is_common(name))
            for member in self._members.values()
        )
        leader = self._members.get(self.leader) or next(iter(self._members.values()))
        order = [name for name, _ in leader.protocols]
        return max(votes, key=lambda name: (votes[name], -order.index(name)))

    def _await_syncs(self, now_ms: int) -> None:
        self._must_sync = set(self._members)
        self._sync_deadline_ms = now_ms + self._rebalance_timeout_ms

    # SyncGroup

    def sync(self, request: SyncRequest, waiter: Waiter, now_ms: int) -> None:
        """Raises `KafkaError`."""
        self._refuse_dead()
        member = self._validated(request.member_id, request.group_instance_id)
        if request.generation != self.generation:
            raise self._illegal_generation(request.generation)
        if _differs(request.protocol_type, self.protocol_type) or _differs(
            request.protocol_name, self.protocol_name
        ):
            raise InconsistentGroupProtocol(
                f"the group has chosen {self.protocol_type}/{self.protocol_name}"
            )
        if self.state is GroupState.PREPARING_REBALANCE:
            raise RebalanceInProgress("another rebalance has begun")
        if member.syncing is not None:
            self._answer(member.syncing, RebalanceInProgress("the member has synced again"))
        member.syncing = waiter
        self._must_sync.discard(member.member_id)
        if self.state is GroupState.STABLE:
            self._answer_sync(member, now_ms)
        elif member.member_id == self.leader:
            self._assign(request.assignments, now_ms)
        if self.state is GroupState.STABLE and not self._must_sync:
            self._sync_deadline_ms = None

    def _assign(self, assignments: Mapping[str, bytes], now_ms: int) -> None:
        self._move(GroupState.STABLE, now_ms)
        for member in self._members.values():
            member.assignment, member.record = assignments.get(member.member_id, b""), None
            if member.syncing is not None:
                self._answer_sync(member, now_ms)

    # Heartbeat, LeaveGroup, OffsetCommit

    def heartbeat(
        self, member_id: str, group_instance_id: str | None, generation: int, now_ms: int
    ) -> None:
        """Raises `KafkaError`: `RebalanceInProgress` tells the member to join again."""
        self._refuse_dead()
        member = self._validated(member_id, group_instance_id)
        if generation != self.generation:
            raise self._illegal_generation(generation)
        self._heard_from(member, now_ms)
        if self.state is GroupState.PREPARING_REBALANCE:
            raise RebalanceInProgress("a rebalance has begun: join again")

    def leave(self, members: Iterable[LeavingMember], now_ms: int) -> list[KafkaError | None]:
        """Remove each member, or say why not."""
        self._refuse_dead()
        before = len(self._members)
        outcomes = [self._leave(member) for member in members]
        if len(self._members) < before:
            self._after_removal(now_ms)
        else:
            self._complete_if_all_joined(now_ms)
        return outcomes

    def _leave(self, leaving: LeavingMember) -> KafkaError | None:
        if leaving.member_id in self._knocking:
            del self._knocking[leaving.member_id]
            return None
        member_id = leaving.member_id
        if member_id == UNKNOWN_MEMBER_ID and leaving.group_instance_id is not None:
            member_id = self._static.get(leaving.group_instance_id, UNKNOWN_MEMBER_ID)
        try:
            self._remove(self._validated(member_id, leaving.group_instance_id))
        except KafkaError as error:
            return error
        return None

    def check_commit(self, committer: Committer, now_ms: int) -> None:
        """Raises `KafkaError` unless these may be committed now. A commit stands for a heartbeat.

        Without a generation only while nobody is a member: by tools, and by consumers that choose
        their partitions themselves.
        """
        self._refuse_dead()
        if committer.generation < 0 and self.state is GroupState.EMPTY:
            return
        if (
            committer.generation < 0
            and committer.member_id == UNKNOWN_MEMBER_ID
            and committer.group_instance_id is None
        ):
            raise UnknownMemberId("the group has members, and only they may commit")
        member = self._validated(committer.member_id, committer.group_instance_id)
        if committer.generation != self.generation:
            raise self._illegal_generation(committer.generation)
        if self.state is GroupState.COMPLETING_REBALANCE:
            raise RebalanceInProgress("the generation has no assignment yet")
        self._heard_from(member, now_ms)

    def die(self, now_ms: int) -> None:
        """The group is deleted. Only while it is empty."""
        assert not self._members
        self._knocking.clear()
        self._move(GroupState.DEAD, now_ms)

    def created(self) -> None:
        """It is to be stored although it has no members: offsets were committed to it."""
        self.changed = True

    def shut_down(self, error: KafkaError) -> None:
        """Answer everybody who waits: this coordinator goes."""
        for member in self._members.values():
            self._answer_waiting(member, error)

    # The clock

    def tick(self, now_ms: int) -> None:
        """Do what is due."""
        for member_id in [m for m, expires in self._knocking.items() if expires <= now_ms]:
            del self._knocking[member_id]
        silent = [m for m in self._members.values() if not m.waits and m.expires_ms <= now_ms]
        for member in silent:
            self._remove(member)
        if silent:
            self._after_removal(now_ms)
        else:
            self._complete_if_all_joined(now_ms)
        if self._sync_deadline_ms is not None and self._sync_deadline_ms <= now_ms:
            self._sync_deadline_ms = None
            late = [self._members[member_id] for member_id in self._must_sync]
            for member in late:
                self._remove(member)
            if late:
                self._rebalance(now_ms)
        if self._join_deadline_ms is not None and self._join_deadline_ms <= now_ms:
            self._end_of_join_wait(now_ms)

    def _end_of_join_wait(self, now_ms: int) -> None:
        if self._initial and self._joined_during_delay and self._delay_left_ms > 0:
            delay = min(self._limits.initial_rebalance_delay_ms, self._delay_left_ms)
            self._delay_left_ms -= delay
            self._joined_during_delay = False
            self._join_deadline_ms = now_ms + delay
            return
        self._complete_join(now_ms)

    # Small steps

    def _wall(self, now_ms: int) -> int:
        return now_ms if self._wall_ms is None else self._wall_ms()

    def _move(self, state: GroupState, now_ms: int) -> None:
        assert state in TRANSITIONS[self.state], f"{self.group_id}: {self.state} to {state}"
        self.state = state
        self.state_time_ms = self._wall(now_ms)
        self.changed = True

    def _after_removal(self, now_ms: int) -> None:
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._rebalance(now_ms)
        else:
            self._complete_if_all_joined(now_ms)

    def _heard_from(self, member: _Member, now_ms: int) -> None:
        if not member.is_new:
            member.expires_ms = now_ms + member.session_timeout_ms

    def _remove(self, member: _Member) -> None:
        self._answer_waiting(member, UnknownMemberId("the member has been removed"))
        del self._members[member.member_id]
        self._count_protocols(member.protocols, -1)
        self._must_sync.discard(member.member_id)
        if member.group_instance_id is not None:
            del self._static[member.group_instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self._members), "")
        self.changed = True

    def _validated(self, member_id: str, group_instance_id: str | None) -> _Member:
        if group_instance_id is not None:
            current = self._static.get(group_instance_id)
            if current is not None and current != member_id:
                raise FencedInstanceId(f"another member is {group_instance_id} now")
            if current is None:
                raise UnknownMemberId(f"there is no member {group_instance_id}")
        member = self._members.get(member_id)
        if member is None:
            raise UnknownMemberId(f"there is no member {member_id!r}")
        return member

    def _illegal_generation(self, generation: int) -> KafkaError:
        return IllegalGeneration(f"the generation is {self.generation}, not {generation}")

    def _refuse_dead(self) -> None:
        if self.state is GroupState.DEAD:
            raise CoordinatorNotAvailable("the group has just been deleted")

    def _answer(self, waiter: Waiter, outcome: JoinAnswer | SyncAnswer | KafkaError) -> None:
        self._answers.append(Answer(waiter, outcome))

    def _answer_waiting(self, member: _Member, error: KafkaError) -> None:
        for waiter in (member.joining, member.syncing):
            if waiter is not None:
                self._answer(waiter, error)
        member.joining = member.syncing = None

    def _answer_join(
        self,
        member: _Member,
        waiter: Waiter,
        *,
        leader: str | None = None,
        skip_assignment: bool = False,
    ) -> None:
        leads = (leader or self.leader) == member.member_id
        members: Collection[JoinedMember] = ()
        if leads:
            members = [
                JoinedMember(m.member_id, m.group_instance_id, m.metadata(self.protocol_name))
                for m in self._members.values()
            ]
        self._answer(
            waiter,
            JoinAnswer(
                member.member_id,
                self.generation,
                self.protocol_type,
                self.protocol_name,
                leader or self.leader,
                tuple(members),
                skip_assignment,
            ),
        )

    def _answer_sync(self, member: _Member, now_ms: int) -> None:
        self._answer(
            member.syncing, SyncAnswer(self.protocol_type, self.protocol_name, member.assignment)
        )
        member.syncing = None
        self._heard_from(member, now_ms)


def _differs(named: str | None, chosen: str) -> bool:
    """Nothing is chosen yet while a first generation gathers; old clients name nothing."""
    return named is not None and bool(chosen) and named != chosen


def selected_metadata(record: GroupRecord, member: MemberRecord) -> bytes:
    """A stored member's metadata for the protocol of its generation."""
    return _metadata(member.protocols, record.protocol_name)


def _metadata(protocols: Protocols, protocol_name: str) -> bytes:
    return next((data for name, data in protocols if name == protocol_name), b"")


def _record(member: _Member) -> MemberRecord:
    if member.record is None:
        member.record = MemberRecord(
            member.member_id,
            member.group_instance_id,
            member.client,
            member.session_timeout_ms,
            member.rebalance_timeout_ms,
            member.protocols,
            member.assignment,
            member.join_time_ms,
        )
    return member.record
