"""Random histories of one group, with clients that behave as real ones do.

A history is a list of steps. `World` plays them: processes that join, synchronise, send
heartbeats, fall silent and come back; a network that loses answers; a broker that stores what it
decides before it says so, as `coordinator/hosted_groups.py` does, and dies at any moment, also
between the inserts into the two tables of a group. After the last step either all clients fall
silent or all continue.

Rules are checked where they could be broken: see `Told` for the answers to clients, `HistoryBroker`
for the state machine, `World.settle` and `World.fall_silent` for the end of a history.

A failing history is printed as its steps and their effects; paste the steps into `play([...])` to
repeat it. `make fuzz` goes a hundred times deeper."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from itertools import count

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from brokerhouse.common.clock import Moment
from brokerhouse.coordinator.commit_rules import CommitKind
from brokerhouse.coordinator.group_states import GroupState
from brokerhouse.coordinator.messages import (
    Client,
    Committer,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    MemberIdGiven,
    SyncRequest,
)
from brokerhouse.protocol.errors import (
    CoordinatorNotAvailable,
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    KafkaError,
    RebalanceInProgress,
    UnknownMemberId,
)
from tests.support.examples import up_to
from tests.support.group_process import (
    ALIENS,
    LONGEST_REBALANCE_MS,
    LONGEST_SESSION_MS,
    NEW_MEMBER_MS,
    PARTITIONS,
    PROFILES,
    Call,
    GroupProcess,
    identity,
)
from tests.support.group_watch import (
    HistoryBroker,
    Told,
)


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


class World:
    """Processes, network, broker and clock."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.log: list[str] = []
        self.told = Told()
        self.broker = HistoryBroker(self)
        self._slots: list[GroupProcess | None] = [None] * len(PROFILES)
        self._names = count(1)

    @property
    def now(self) -> Moment:
        return Moment(self.now_ms, self.now_ms)

    @property
    def running(self) -> list[GroupProcess]:
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
                self._slots[slot] = GroupProcess(f"p{next(self._names)}", profile)
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

    def process_step(self, step: Step, process: GroupProcess, number: int) -> None:
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

    def stop(self, process: GroupProcess) -> None:
        if process.call is not None:
            process.call.lost = True
        process.inbox.clear()
        process.stop()

    def leave(self, members: Sequence[LeavingMember]) -> None:
        try:
            self.broker.leave(members)
        except UnknownMemberId:
            assert self.broker.group is None

    def act(self, process: GroupProcess) -> None:
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

    def send_late(self, process: GroupProcess, request: JoinRequest | SyncRequest) -> None:
        """Nobody waits for the answer."""
        kind, generation = "join", -1
        if isinstance(request, SyncRequest):
            kind, generation = "sync", request.generation
        try:
            self.send(request, Call(process, kind, generation, request.member_id, lost=True))
        except KafkaError as error:
            self.log.append(f"  nobody is told {type(error).__name__}")

    def heartbeat(self, process: GroupProcess) -> None:
        if process.generation < 0:
            return
        instance = process.profile.instance
        try:
            group = self.broker.hosted()
            group.heartbeat(process.member_id, instance, process.generation, self.now)
        except KafkaError as error:
            process.call = None
            self.refused(process, error)

    def join_request(self, process: GroupProcess) -> JoinRequest:
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

    def sync_request(self, process: GroupProcess) -> SyncRequest:
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

    def deliver(self, process: GroupProcess) -> None:
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

    def refused(self, process: GroupProcess, error: KafkaError) -> None:
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

    def commit(self, process: GroupProcess) -> None:
        """Only the generation that the group is in may commit, and only its members."""
        for generation in (process.generation, process.generation - 1):
            if not process.member_id or generation < 0:
                continue
            instance = process.profile.instance
            committer = Committer(process.member_id, instance, generation, Client("c", "/h"))
            try:
                group = self.broker.hosted()
                group.check_commit(CommitKind.PLAIN, committer, self.now)
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


# Explaining takes longer than shrinking.
QUIET = settings(
    print_blob=True,
    phases=[phase for phase in Phase if phase is not Phase.explain],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@settings(QUIET, max_examples=up_to(2_000))
@given(HISTORIES, st.booleans())
def test_a_group_keeps_its_promises_in_random_histories(
    history: list[tuple[Step, int]], silent: bool
) -> None:
    play(history, silent=silent)


@pytest.mark.fuzz
@settings(QUIET, max_examples=200_000)
@given(HISTORIES, st.booleans())
def test_a_group_keeps_its_promises_in_very_many_random_histories(
    history: list[tuple[Step, int]], silent: bool
) -> None:
    play(history, silent=silent)
