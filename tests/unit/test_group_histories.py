"""Random histories of one group, with clients that behave as real ones do.

A history is a list of steps. `World` plays them: processes that join, synchronise, send
heartbeats, fall silent and come back; a network that loses answers; a broker that stores what it
decides before it says so, as `coordinator/coordinator.py` does, and dies at any moment, also
between the two tables that a group is stored in. After the last step either everybody falls silent
or everybody goes on.

What must hold is checked where it could break: see `Told` for what clients are told, `Broker` for
the state machine, `World.settle` and `World.fall_silent` for what must happen in the end.

A failing history is printed as its steps and as what happened; paste the steps into `play([...])`
to see it again. `make fuzz` goes a hundred times deeper."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from common.clock import Moment
from coordinator.admission import GroupLimits
from coordinator.group_states import GroupState
from coordinator.groups import Group
from coordinator.messages import (
    Answer,
    Client,
    Committer,
    GroupRecord,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    MemberIdGiven,
    SyncAnswer,
    SyncRequest,
)
from coordinator.rebalance import Rebalance
from protocol.errors import (
    CoordinatorNotAvailable,
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    KafkaError,
    RebalanceInProgress,
    UnknownMemberId,
)

PARTITIONS = range(7)
MAX_SIZE = 5
LONGEST_SESSION_MS = 10_000
LONGEST_REBALANCE_MS = 20_000
NEW_MEMBER_MS = 300_000
LIMITS = GroupLimits(1_000, 60_000, initial_rebalance_delay_ms=3_000, max_size=MAX_SIZE)

# Kafka's table, from ClassicGroupState.
MAY_FOLLOW = {
    "Empty": {"PreparingRebalance", "Dead"},
    "PreparingRebalance": {"CompletingRebalance", "Empty", "Dead"},
    "CompletingRebalance": {"Stable", "PreparingRebalance", "Dead"},
    "Stable": {"PreparingRebalance", "Dead"},
    "Dead": set(),
}


@dataclass(frozen=True)
class Profile:
    """What kind of client runs in a slot. Two slots with the same instance are twins."""

    instance: str | None = None
    protocols: tuple[str, ...] = ("range", "sticky")
    modern: bool = True  # JoinGroup v9: comes back with the id that it is given, may skip assigning
    keeps_member_id: bool = True  # after ILLEGAL_GENERATION
    session_ms: int = 6_000
    rebalance_ms: int = 12_000


PROFILES = (
    Profile(),
    Profile(session_ms=10_000, protocols=("sticky", "range")),
    Profile(modern=False, keeps_member_id=False),
    Profile("static-a", rebalance_ms=20_000),
    Profile("static-b", protocols=("range",), modern=False),
    Profile("static-a", protocols=("sticky", "range")),
    Profile(keeps_member_id=False, session_ms=3_000, rebalance_ms=5_000),
    Profile(protocols=("range", "alien")),
)
ALIENS = Profile(protocols=("alien",))


class Step(Enum):
    """What may happen next. Its number says to whom, or how long, or how."""

    ROUND = "everybody does what it does next, and all answers arrive"
    ROUNDS = "the same several times, a second apart"
    ACT = "one process does what it does next"
    DELIVER = "the oldest answer to one process arrives"
    LOSE = "the oldest answer to one process is lost"
    RETRY = "one process gives its request up and sends it again"
    LATE = "a copy of an earlier request of one process arrives"
    HANG = "one process does nothing but send heartbeats, or comes to itself again"
    START = "a process starts; if one runs there, it dies without a word"
    START_ALIEN = "a process with another protocol starts"
    DIE = "one process dies without a word"
    LEAVE = "one process leaves"
    EXPEL = "an administrator removes a static member"
    REJOIN = "one process joins again, with the same subscription"
    RESUBSCRIBE = "one process joins again, with another subscription"
    COMMIT = "one process commits, with its generation and with the one before"
    WAIT = "time passes, timers run in time"
    STALL = "time passes, timers run late"
    DEADLINE = "time passes until the next timer"
    STORED = "what is being stored is stored"
    REFUSED = "what is being stored is refused"
    CRASH = "the broker dies and comes back"
    ACT_AND_CRASH = "everybody does what it does next, then the broker dies and comes back"

    def __repr__(self) -> str:
        return f"Step.{self.name}"


WEIGHTS = {
    Step.ROUND: 6,
    Step.ROUNDS: 4,
    Step.ACT: 6,
    Step.DELIVER: 5,
    Step.START: 5,
    Step.STORED: 5,
    Step.WAIT: 3,
    Step.DEADLINE: 3,
    Step.LOSE: 2,
    Step.RETRY: 2,
    Step.LEAVE: 2,
    Step.REJOIN: 2,
    Step.RESUBSCRIBE: 2,
    Step.LATE: 2,
    Step.HANG: 2,
    Step.ACT_AND_CRASH: 2,
}
# The first is what a failing history is reduced to: it does nothing where nothing is being stored.
STEPS = [Step.STORED] + [step for step in Step for _ in range(WEIGHTS.get(step, 1))]
WAITS_MS = (10, 200, 1_000, 2_900, 3_000, 6_000, 12_000, 30_000)

History = Sequence[tuple[Step, int]]


@dataclass(eq=False)
class Call:
    """One JoinGroup or SyncGroup on its way. Lost: no answer will ever arrive."""

    process: Process
    kind: str
    generation: int
    member_id: str
    lost: bool = False


@dataclass(eq=False)
class Process:
    """A client's process, with what it believes."""

    name: str
    profile: Profile
    member_id: str = ""
    generation: int = -1
    leads: tuple[str, ...] | None = None
    skip_assignment: bool = False
    owned: frozenset[int] | None = None
    phase: str = "join"
    revision: int = 0
    call: Call | None = None
    sent: deque[JoinRequest | SyncRequest] = field(default_factory=lambda: deque(maxlen=4))
    inbox: deque[tuple[Call, JoinAnswer | SyncAnswer | KafkaError]] = field(default_factory=deque)
    running: bool = True
    hangs: bool = False

    def forget(self, *, member_id: bool) -> None:
        if member_id:
            self.member_id = ""
        self.generation = -1
        self.owned = self.leads = None
        self.phase = "join"

    def stop(self) -> None:
        self.running = False
        self.call = self.owned = None


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


def identity(member_id: str) -> str:
    """Who a member is: a static member is the same one under its next id."""
    return member_id.rpartition("-")[0] if member_id.startswith("static") else member_id


def number(member_id: str) -> int:
    """Ids of one member grow."""
    return int(member_id.rpartition("-")[2])


class Told:
    """What has left the broker, over all of its lives. Here generations are compared.

    A generation that was never spoken of may be given out again after a crash. One that was spoken
    of has one protocol, one leader, one set of members and one assignment, whoever asks, whenever.
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


class Broker:
    """The group, its storage and its timers: stored first, answered then, one record at a time."""

    def __init__(self, world: World) -> None:
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
        """Timers that are due, then what has been decided."""
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
        if group.is_unused and self.stored is None and self._saving is None:
            self.group = None

    def stall(self, for_ms: int) -> None:
        """Time in which the broker does not run, and which it cannot be blamed for."""
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
        """Whatever was being stored is stored (1), or its members alone are (2), or nothing."""
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
        """Nobody waits for ever for an assignment, though its leader sends heartbeats."""
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


class World:
    """Processes, network, broker and clock."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.log: list[str] = []
        self.told = Told()
        self.broker = Broker(self)
        self._slots: list[Process | None] = [None] * len(PROFILES)
        self._names = count(1)

    @property
    def now(self) -> Moment:
        return Moment(self.now_ms, self.now_ms)

    @property
    def running(self) -> list[Process]:
        return [process for process in self._slots if process is not None and process.running]

    def step(self, step: Step, number: int) -> None:
        slot = number % len(PROFILES)
        process = self._slots[slot]
        if process is not None and not process.running:
            process = None
        match step:
            case Step.ROUND:
                self.round()
            case Step.ROUNDS:
                for _ in range(1 + slot):
                    self.round()
                    self.advance(1_000)
            case Step.START | Step.START_ALIEN:
                if process is not None:
                    self.stop(process)
                alien = step is Step.START_ALIEN and number >= 2 * len(PROFILES)
                profile = ALIENS if alien else PROFILES[slot]
                self._slots[slot] = Process(f"p{next(self._names)}", profile)
            case Step.WAIT:
                self.advance(WAITS_MS[slot])
            case Step.STALL:
                self.broker.stall(WAITS_MS[slot])
            case Step.DEADLINE:
                self.advance_to_deadline()
            case Step.STORED:
                self.broker.save()
            case Step.REFUSED:
                self.broker.refuse()
            case Step.CRASH:
                self.crash(number % 3)
            case Step.ACT_AND_CRASH:
                for process in self.running:
                    self.act(process)
                self.crash(number % 3)
            case Step.EXPEL:
                self.leave([LeavingMember("", PROFILES[slot].instance)])
            case _ if process is not None:
                self.process_step(step, process, number // len(PROFILES))
            case _:
                pass

    def process_step(self, step: Step, process: Process, number: int) -> None:
        match step:
            case Step.ACT:
                self.act(process)
            case Step.DELIVER:
                self.deliver(process)
            case Step.LOSE:
                if process.inbox:
                    call, _ = process.inbox.popleft()
                    call.lost = True
            case Step.RETRY:
                process.call = None
                self.act(process)
            case Step.LATE:
                if process.sent:
                    self.send_late(process, process.sent[number % len(process.sent)])
            case Step.HANG:
                process.hangs = not process.hangs
            case Step.DIE:
                self.stop(process)
            case Step.LEAVE:
                if process.member_id:
                    self.leave([LeavingMember(process.member_id, process.profile.instance)])
                self.stop(process)
            case Step.REJOIN | Step.RESUBSCRIBE:
                process.revision += step is Step.RESUBSCRIBE
                if process.phase == "steady":
                    process.phase = "join"
                    self.act(process)
            case Step.COMMIT:
                self.commit(process)

    # Time

    def advance(self, for_ms: int) -> None:
        until = self.now_ms + for_ms
        while (deadline := self._next_deadline()) is not None and deadline <= until:
            self.now_ms = max(self.now_ms, deadline)
            self.broker.after()
        self.now_ms = until

    def advance_to_deadline(self) -> None:
        deadline = self._next_deadline()
        if deadline is not None:
            self.now_ms = max(self.now_ms, deadline)
            self.broker.after()

    def _next_deadline(self) -> int | None:
        group = self.broker.group
        return None if group is None else group.next_deadline()

    def crash(self, how: int) -> None:
        for process in self.running:
            if process.call is not None and all(process.call is not c for c, _ in process.inbox):
                process.call.lost = True
        self.broker.crash(how)

    # What processes do

    def round(self) -> None:
        for process in self.running:
            self.act(process)
        while self.broker.is_saving:
            self.broker.save()
        for process in self.running:
            while process.inbox:
                self.deliver(process)

    def stop(self, process: Process) -> None:
        if process.call is not None:
            process.call.lost = True
        process.inbox.clear()
        process.stop()

    def leave(self, members: Sequence[LeavingMember]) -> None:
        try:
            self.broker.leave(members)
        except UnknownMemberId:
            assert self.broker.group is None

    def act(self, process: Process) -> None:
        """Whatever its phase asks for; nothing while an answer may still come."""
        if process.hangs:
            self.heartbeat(process)
            return
        if process.call is not None and not process.call.lost:
            return
        if process.phase == "steady":
            self.heartbeat(process)
            return
        joins = process.phase == "join"
        request = self.join_request(process) if joins else self.sync_request(process)
        process.sent.append(request)
        process.call = Call(process, process.phase, process.generation, process.member_id)
        try:
            self.send(request, process.call)
        except KafkaError as error:
            process.call = None
            self.refused(process, error)

    def send(self, request: JoinRequest | SyncRequest, call: Call) -> None:
        if isinstance(request, JoinRequest):
            self.broker.join(request, call)
        else:
            self.broker.sync(request, call)

    def send_late(self, process: Process, request: JoinRequest | SyncRequest) -> None:
        """Nobody waits for the answer."""
        kind, generation = "join", -1
        if isinstance(request, SyncRequest):
            kind, generation = "sync", request.generation
        try:
            self.send(request, Call(process, kind, generation, request.member_id, lost=True))
        except KafkaError as error:
            self.log.append(f"  nobody is told {type(error).__name__}")

    def heartbeat(self, process: Process) -> None:
        if process.generation < 0:
            return
        instance = process.profile.instance
        try:
            group = self.broker.hosted()
            group.heartbeat(process.member_id, instance, process.generation, self.now)
        except KafkaError as error:
            process.call = None
            self.refused(process, error)

    def join_request(self, process: Process) -> JoinRequest:
        profile = process.profile
        return JoinRequest(
            process.member_id,
            profile.instance,
            Client(process.name, "/127.0.0.1"),
            profile.session_ms,
            profile.rebalance_ms,
            "consumer",
            tuple(
                (protocol, f"{protocol}:{process.name}:{process.revision}".encode())
                for protocol in profile.protocols
            ),
            requires_known_member_id=profile.modern and profile.instance is None,
            supports_skipping_assignment=profile.modern,
        )

    def sync_request(self, process: Process) -> SyncRequest:
        assignments: dict[str, bytes] = {}
        if process.leads is not None and not process.skip_assignment:
            # Whoever assigns does it in another way: two assignments of one generation would show.
            members, shift = process.leads, self.now_ms + len(self.log)
            for index, member_id in enumerate(members):
                mine = [p for p in PARTITIONS if (p + shift) % len(members) == index]
                assignments[member_id] = bytes(mine)
        return SyncRequest(
            process.member_id,
            process.profile.instance,
            process.generation,
            "consumer" if process.profile.modern else None,
            None,
            assignments,
        )

    def deliver(self, process: Process) -> None:
        if not process.inbox:
            return
        call, outcome = process.inbox.popleft()
        if call is not process.call:
            return  # it has given up waiting for this one
        process.call = None
        if isinstance(outcome, KafkaError):
            self.refused(process, outcome)
        elif isinstance(outcome, JoinAnswer):
            assert call.kind == "join"
            if process.generation != -1 and process.member_id == outcome.member_id:
                assert outcome.generation >= process.generation
            process.member_id, process.generation = outcome.member_id, outcome.generation
            members = tuple(member.member_id for member in outcome.members)
            process.leads = members or None
            process.skip_assignment = outcome.skip_assignment
            process.owned = None
            process.phase = "sync"
        else:
            assert call.kind == "sync"
            process.owned = frozenset(outcome.assignment)
            process.phase = "steady"
            self.log.append(f"  {process.name} owns {set(process.owned)} in {call.generation}")
            self.check_owners()

    def refused(self, process: Process, error: KafkaError) -> None:
        self.log.append(f"  {process.name} ({process.member_id}) is told {type(error).__name__}")
        match error:
            case MemberIdGiven():
                assert process.profile.modern
                assert process.profile.instance is None
                process.member_id = error.member_id
            case FencedInstanceId():
                assert process.profile.instance is not None
                self.stop(process)
            case GroupMaxSizeReached() | InconsistentGroupProtocol():
                self.stop(process)
            case RebalanceInProgress() | CoordinatorNotAvailable():
                if process.phase != "join":
                    process.phase = "join"
            case UnknownMemberId():
                process.forget(member_id=True)
            case IllegalGeneration():
                process.forget(member_id=not process.profile.keeps_member_id)
            case _:
                raise AssertionError(f"{error!r} is not expected")

    def commit(self, process: Process) -> None:
        """Only the generation that the group is in may commit, and only its members."""
        for generation in (process.generation, process.generation - 1):
            if not process.member_id or generation < 0:
                continue
            instance = process.profile.instance
            committer = Committer(process.member_id, instance, generation, Client("c", "/h"))
            try:
                group = self.broker.hosted()
                group.check_commit(committer, self.now)
            except KafkaError:
                continue
            assert generation == group.generation == self.told.generation
            assert group.state is not GroupState.COMPLETING_REBALANCE

    def check_owners(self) -> None:
        """As the processes know it; a twin that has been replaced learns it by its next request."""
        owners: dict[tuple[int, int], str] = {}
        for process in self.running:
            for partition in process.owned or ():
                member = identity(process.member_id)
                owner = owners.setdefault((process.generation, partition), member)
                assert owner == member, f"{owner} and {member} own {partition}"

    # The end of a history

    def settle(self) -> None:
        """Nothing goes wrong any more: everybody gets into one generation who does not hang."""
        for _ in range(300):
            self.round()
            self.advance(1_000)
            if self.settled:
                return
        raise AssertionError("the group does not settle")

    @property
    def settled(self) -> bool:
        group, running = self.broker.group, self.running
        if group is None or not running:
            return group is None or group.state is GroupState.EMPTY
        if all(process.hangs for process in running):
            return not self.broker.parked
        # Who hangs stays a member as long as nothing but heartbeats is asked of it.
        members = [
            process
            for process in running
            if process.generation == group.generation
            and (process.phase == "steady" or process.hangs)
        ]
        owned = sorted(partition for process in members for partition in process.owned or ())
        return (
            group.state is GroupState.STABLE
            and group.member_count == len(members)
            and all(process in members or process.hangs for process in running)
            and (owned == list(PARTITIONS) or any(process.hangs for process in members))
        )

    def fall_silent(self) -> None:
        """Nobody says anything any more: whoever waits is answered, and the group empties."""
        for process in self.running:
            self.stop(process)
        began_ms = self.now_ms
        for _ in range(200):
            self.broker.save()
            if self._next_deadline() is None:
                break
            self.advance_to_deadline()
        group = self.broker.group
        assert self._next_deadline() is None
        assert not self.broker.parked, "waits for ever"
        assert group is None or (group.state is GroupState.EMPTY and group.is_unused)
        longest_ms = NEW_MEMBER_MS + 2 * LONGEST_REBALANCE_MS + LONGEST_SESSION_MS
        assert self.now_ms - began_ms <= longest_ms


def play(history: History, *, silent: bool = False) -> World:
    world = World()
    try:
        for step, number in history:
            group = world.broker.group
            state = "" if group is None else f"{group.state} {group.generation}"
            world.log.append(f"{world.now_ms} {state}: {step.name} {number}")
            world.step(step, number)
        world.log.append(f"{world.now_ms}: then " + ("silence" if silent else "no more trouble"))
        world.fall_silent() if silent else world.settle()
    except Exception:
        note("\n".join(world.log))
        raise
    return world


HISTORIES = st.lists(
    st.tuples(st.sampled_from(STEPS), st.integers(0, 23)), min_size=30, max_size=120
)


# A deadline would measure how busy the machine is; explaining takes longer than shrinking.
QUIET = settings(
    deadline=None,
    print_blob=True,
    phases=[phase for phase in Phase if phase is not Phase.explain],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@settings(QUIET, max_examples=2_000)
@given(HISTORIES, st.booleans())
def test_whatever_happens_a_group_keeps_its_promises(
    history: list[tuple[Step, int]], silent: bool
) -> None:
    play(history, silent=silent)


@pytest.mark.fuzz
@settings(QUIET, max_examples=200_000)
@given(HISTORIES, st.booleans())
def test_whatever_happens_in_many_histories_a_group_keeps_its_promises(
    history: list[tuple[Step, int]], silent: bool
) -> None:
    play(history, silent=silent)
