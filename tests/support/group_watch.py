"""A broker with one group in random histories, with checks wherever a rule could be broken.

`Told` checks the answers that clients get, `WatchedGroup` every change of state, `HistoryBroker`
the rest. The broker stores its decisions before it answers, as `coordinator/hosted_groups.py` does,
and dies at any moment, also between the inserts into the two tables of a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Protocol

from brokerhouse.common.clock import Moment
from brokerhouse.coordinator.group_states import GroupState
from brokerhouse.coordinator.groups import Group
from brokerhouse.coordinator.messages import (
    Answer,
    GroupRecord,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    MemberIdGiven,
    SyncAnswer,
    SyncRequest,
)
from brokerhouse.coordinator.rebalance import Rebalance
from brokerhouse.protocol.errors import (
    CoordinatorNotAvailable,
    KafkaError,
    UnknownMemberId,
)
from tests.support.group_process import (
    LIMITS,
    LONGEST_REBALANCE_MS,
    MAX_SIZE,
    Call,
    identity,
    number,
)

# Kafka's table, from ClassicGroupState.
MAY_FOLLOW = {
    "Empty": {"PreparingRebalance", "Dead"},
    "PreparingRebalance": {"CompletingRebalance", "Empty", "Dead"},
    "CompletingRebalance": {"Stable", "PreparingRebalance", "Dead"},
    "Stable": {"PreparingRebalance", "Dead"},
    "Dead": set(),
}


class WatchedRebalance(Rebalance):
    """Checks every change of state against Kafka's table."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "state":
            assert value in MAY_FOLLOW[self.state], f"{self.state} to {value}"
        if name == "generation":
            assert value >= self.generation, f"generation {self.generation} to {value}"
        super().__setattr__(name, value)


class WatchedGroup(Group):
    """A group whose rebalance is watched from its beginning, or from when it is restored."""

    def watch(self) -> WatchedGroup:
        self._rebalance.__class__ = WatchedRebalance
        return self

    @property
    def generation(self) -> int:
        return self._rebalance.generation

    @property
    def member_count(self) -> int:
        return len(self._members)


class Told:
    """All answers of the broker, also before restarts. Here generations are compared.

    After a crash the broker may use the number of a generation again if no answer has named it. A
    generation that an answer has named has one protocol, one leader, one set of members and one
    assignment, for every member and at any time.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._protocol: dict[int, str] = {}
        self._leader: dict[int, str] = {}
        self._members: dict[int, frozenset[str]] = {}
        self._owners: dict[int, dict[int, str]] = {}
        self._assigned: dict[int, dict[str, frozenset[int]]] = {}

    def joined(self, answer: JoinAnswer, stored: GroupRecord | None) -> None:
        generation = answer.generation
        self._advance(generation, stored)
        assert self._protocol.setdefault(generation, answer.protocol_name) == answer.protocol_name
        assert answer.protocol_type == "consumer"
        leader = identity(answer.leader)
        assert self._leader.setdefault(generation, leader) == leader, "two leaders"
        leads = answer.leader == answer.member_id
        assert bool(answer.members) == leads, "members are for the leader, and only for it"
        if leads:
            members = frozenset(identity(member.member_id) for member in answer.members)
            assert len(members) == len(answer.members)
            assert self._members.setdefault(generation, members) == members, "two memberships"
            assert leader in members
            for member in answer.members:
                assert member.metadata.startswith(answer.protocol_name.encode() + b":")
                instance = identity(member.member_id) if member.group_instance_id else None
                assert member.group_instance_id == instance
        assert stored is not None
        if stored.generation == generation and stored.state != "PreparingRebalance":
            assert stored.protocol_name == answer.protocol_name
            assert identity(stored.leader) == leader
            numbers = {identity(m.member_id): number(m.member_id) for m in stored.members}
            assert numbers[identity(answer.member_id)] >= number(answer.member_id), (
                "a member's id told before it was stored"
            )

    def synced(self, call: Call, answer: SyncAnswer, stored: GroupRecord | None) -> None:
        generation, member = call.generation, identity(call.member_id)
        self._advance(generation, stored)
        assert answer.protocol_name == self._protocol[generation]
        partitions = frozenset(answer.assignment)
        before = self._assigned.setdefault(generation, {})
        assert before.setdefault(member, partitions) == partitions, "two assignments"
        owners = self._owners.setdefault(generation, {})
        for partition in partitions:
            owner = owners.setdefault(partition, member)
            assert owner == member, f"{owner} and {member} own {partition} in {generation}"
        assert stored is not None
        if stored.generation == generation:
            assert stored.state != "CompletingRebalance", "assignment told before it was stored"
            kept = stored.member(call.member_id)
            assert kept is None or kept.assignment == answer.assignment

    def _advance(self, generation: int, stored: GroupRecord | None) -> None:
        assert generation >= self.generation, "an old generation told after a newer one"
        assert stored is not None, "told before it was stored"
        assert stored.generation >= generation, "told before it was stored"
        self.generation = generation


class Surroundings(Protocol):
    """The surroundings of a broker: a clock, and all answers that it has given."""

    now_ms: int
    told: Told

    @property
    def now(self) -> Moment: ...


class HistoryBroker:
    """The group, its storage and its timers: stored first, answered then, one record at a time."""

    def __init__(self, world: Surroundings) -> None:
        self._world = world
        self._versions = count(1)
        self._ids = map(str, count(1))
        self.stored: GroupRecord | None = None
        self.group: WatchedGroup | None = None
        self._saving: tuple[GroupRecord, list[Answer]] | None = None
        self._held: list[Answer] = []
        self.parked: dict[Call, int] = {}  # since when
        self.given: dict[str, int] = {}  # ids given and not come back with, until when
        self._begun = 0  # the last generation of this life

    @property
    def now_ms(self) -> int:
        return self._world.now_ms

    @property
    def now(self) -> Moment:
        return self._world.now

    @property
    def is_saving(self) -> bool:
        return self._saving is not None

    def hosted(self, *, create: bool = False) -> WatchedGroup:
        if self.group is None:
            if not create:
                raise UnknownMemberId("no such group")
            self.group = WatchedGroup("group", LIMITS, self.now, self._ids).watch()
            self.group.mark_changed()
        return self.group

    def join(self, request: JoinRequest, call: Call) -> None:
        group = self.hosted(create=request.member_id == "")
        self.parked[call] = self.now_ms
        try:
            group.join(request, call, self.now)
        except KafkaError as error:
            del self.parked[call]
            if isinstance(error, MemberIdGiven):
                self.given[error.member_id] = self.now_ms + request.session_timeout_ms
            else:
                self.given.pop(request.member_id, None)
            raise
        else:
            self.given.pop(request.member_id, None)
        finally:
            self.after()

    def sync(self, request: SyncRequest, call: Call) -> None:
        group = self.hosted()
        self.parked[call] = self.now_ms
        try:
            group.sync(request, call, self.now)
        except KafkaError:
            del self.parked[call]
            raise
        finally:
            self.after()

    def leave(self, members: Sequence[LeavingMember]) -> None:
        group = self.hosted()
        for member in members:
            self.given.pop(member.member_id, None)
        group.leave(members, self.now)
        self.after()

    def after(self) -> None:
        """Run timers that have expired, then store and answer what was decided."""
        group = self.group
        if group is None:
            return
        self._let_time_pass(group)
        answers = group.take_answers()
        for answer in answers:
            assert answer.waiter in self.parked, "answered twice, or never asked"
            del self.parked[answer.waiter]
        self._check_leader([a.outcome for a in answers if isinstance(a.outcome, JoinAnswer)])
        self._check(group)
        self._held += answers
        self._save_what_changed(group)

    def stall(self, for_ms: int) -> None:
        """Time in which the broker does not run; it does not count as waiting."""
        self._world.now_ms += for_ms
        self.parked = {call: since_ms + for_ms for call, since_ms in self.parked.items()}
        self.after()

    def _let_time_pass(self, group: WatchedGroup) -> None:
        for _ in range(50):
            deadline = group.next_deadline()
            if deadline is None or deadline > self.now_ms:
                return
            group.tick(self.now)
        raise AssertionError("the clock does not get on")

    def _check_leader(self, answers: Sequence[JoinAnswer]) -> None:
        """A generation begins with a leader that knows of it."""
        begins = [answer for answer in answers if answer.generation > self._begun]
        if begins:
            self._begun = begins[0].generation
            assert begins[0].leader in {answer.member_id for answer in begins}

    def _check(self, group: WatchedGroup) -> None:
        for call, since_ms in self.parked.items():
            waited_ms = self.now_ms - since_ms
            assert waited_ms <= LONGEST_REBALANCE_MS, f"{call} waits since {since_ms}"
        knocking = sum(until > self.now_ms for until in self.given.values())
        assert group.member_count + knocking <= MAX_SIZE
        if group.state in (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE):
            assert group.next_deadline() is not None, "nothing will ever end this rebalance"
        if group.member_count:
            assert group.state is not GroupState.EMPTY
            assert group.next_deadline() is not None or self.parked

    def _save_what_changed(self, group: WatchedGroup) -> None:
        while self._saving is None and (group.changed or self._held):
            answers, self._held = self._held, []
            if group.changed:
                self._saving = group.record(next(self._versions)), answers
            else:
                self._deliver(answers)

    def _deliver(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            call: Call = answer.waiter
            assert answer.outcome is not None, "the machine has something to say to each"
            if isinstance(answer.outcome, JoinAnswer):
                self._world.told.joined(answer.outcome, self.stored)
            elif isinstance(answer.outcome, SyncAnswer):
                self._world.told.synced(call, answer.outcome, self.stored)
            if not call.lost:
                call.process.inbox.append((call, answer.outcome))

    def save(self) -> None:
        if self._saving is not None:
            record, answers = self._saving
            self.stored, self._saving = record, None
            self._deliver(answers)
            self.after()

    def refuse(self) -> None:
        if self._saving is not None and self.group is not None:
            _, answers = self._saving
            self._saving = None
            self.group.mark_changed()
            refusal = CoordinatorNotAvailable("could not be stored")
            self._deliver([Answer(answer.waiter, refusal) for answer in answers])
            self.after()

    def crash(self, how: int) -> None:
        """Of the record being stored, all is stored (1), or only its members (2), or nothing."""
        record = self.stored
        if self._saving is not None:
            coming = self._saving[0]
            if how == 1:
                record = coming
            elif how == 2 and record is not None:
                generation = max(record.generation, coming.generation)
                led = coming.member(record.leader) is not None
                record = replace(
                    record,
                    state="PreparingRebalance",
                    state_time_ms=self.now_ms,
                    generation=generation,
                    leader=record.leader if led else "",
                    members=coming.members,
                )
        self.stored, self.group, self._saving = record, None, None
        self._held.clear()
        self.parked.clear()
        self.given.clear()
        if record is not None:
            self._restore(record)
        self.after()
        if record is not None and self.group is not None:
            assert self.group.member_count == len(record.members), "no time to come back"

    def _restore(self, record: GroupRecord) -> None:
        assert record.generation >= self._world.told.generation, "a generation was forgotten"
        group = WatchedGroup.restored(record, LIMITS, self.now, self._ids)
        assert isinstance(group, WatchedGroup)
        group.watch()
        if record.members and not record.leader:  # put together after a crash between two tables
            record = replace(record, leader=record.members[0].member_id)
        assert group.record(record.version) == record, "comes back otherwise than stored"
        self.group = group
        self._begun = record.generation
        self._check_that_it_goes_on(record)

    def _check_that_it_goes_on(self, record: GroupRecord) -> None:
        """No member waits for ever for an assignment, even while the leader sends heartbeats."""
        copy = Group.restored(record, LIMITS, self.now)
        for now_ms in range(self.now_ms, self.now_ms + LONGEST_REBALANCE_MS + 1, 1_000):
            if copy.state is not GroupState.COMPLETING_REBALANCE:
                return
            for member in record.members:
                instance = member.group_instance_id
                now = Moment(now_ms, now_ms)
                copy.heartbeat(member.member_id, instance, record.generation, now)
            copy.tick(Moment(now_ms, now_ms))
        assert copy.state is not GroupState.COMPLETING_REBALANCE
