"""A model of leases and epochs, searched exhaustively: all events in every order.

Two brokers (three in the long run), one slot, one lane. The real functions of
broker/cluster/leases.py make the decisions. The model has a registry with compare-and-set, an
engine that drops a token it has seen, and every fault: an insert that is stored at any later time
or never, a registry write that happens late or whose answer is lost, a broker that pauses at any
point and continues with old information, a broker that crashes and starts again, a clock that is
slower than the others by the bound, a shard that one broker cannot reach for a while.

Time is small: a lease lasts 2 ticks, so by `DRIFT` a row has to be unchanged for 3, and a clock may
miss one tick in a session. The model has ages instead of times, and of a version only whether it is
the current one. So the space is finite although brokers may renew for ever.

A model that finds nothing may be unable to find anything. So every rule is broken once (`Rule`),
and the search must find the violation, with the shortest way to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import Enum, auto
from functools import cache
from itertools import product
from typing import NamedTuple

import pytest

from brokerhouse.broker.cluster import leases
from brokerhouse.broker.cluster.leases import SessionLease, SessionSightings
from brokerhouse.broker.slots.sessions import BrokerSession, SessionState
from brokerhouse.storage.slot_map import NOBODY, Slot, SlotMap

TTL = 2
SHARD = "shard"


class Rule(Enum):
    """What must hold, each to be broken on purpose."""

    FENCE = auto()  # the old owner is fenced
    FENCE_BEFORE_READING = auto()  # and that before the end of the log is read
    FENCE_PROBES = auto()  # upwards, as a row tells only what was used at the last renewal
    LEASE_COUNTS_FROM_SENDING = auto()  # not from the answer
    MARGIN = auto()  # one clock is slower than another
    WATCH_COUNTS_FROM_THE_ANSWER = auto()  # not from when the row was asked for
    DEAD_FOR_EVER = auto()  # a renewal of what was declared dead fails
    DEAD_BEFORE_CLAIMED = auto()  # silence alone does not do
    SILENT_BEFORE_DEAD = auto()
    EPOCH_GROWS = auto()
    LEASE_BEFORE_ANSWERING = auto()  # nothing is acknowledged without one
    NOTHING_IN_FLIGHT_WHEN_RELEASED = auto()
    AN_EPOCH_IS_TAKEN_ONCE = auto()  # who gave up takes again only what it claimed anew


class Harm(Exception):
    """Something that must never happen."""


class Write(NamedTuple):
    """A write of the slot map in flight; it counts if the map is as it was when it was sent."""

    owner: int
    epoch: int


class Row(NamedTuple):
    """A session's row.

    `attempt`: a renewal in flight, its age by the broker's clock and the lane count in it.
    `landed`: the age of a renewal that was written and whose broker has no answer yet.
    `unchanged`: how long others have seen the row as it is.
    """

    state: SessionState
    lane: int
    attempt: tuple[int, int] | None
    landed: int | None
    unchanged: int


class Block(NamedTuple):
    session: int
    number: int
    offset: int
    epoch: int


class Broker(NamedTuple):
    """One process. All but `reaches` is memory, gone with a crash."""

    session: int
    lease_age: int
    may_lag: bool
    past: int  # its last session, when it knows that this is over
    epoch: int  # of its slot, 0: it has none
    given_up: int  # the last epoch that it gave up
    next_offset: int  # -1: the end has not been read
    resolved: int
    waiting: Block | None
    fenced: frozenset[int]
    reaches: bool


class State(NamedTuple):
    owner: int
    epoch: int
    writes: frozenset[Write]
    rows: tuple[Row | None, ...]
    brokers: tuple[Broker, ...]
    log: tuple[Block, ...]
    fences: frozenset[tuple[int, int]]
    flying: frozenset[Block]
    acknowledged: int  # offsets, a bit for each
    read: tuple[int, int]  # the latest epoch that has read the end, and that end
    outages: int  # left


class Size(NamedTuple):
    brokers: int
    sessions: int
    offsets: int
    epochs: int
    outages: int
    slow: int
    """The first sessions, whose renewals take time and whose clocks may lag. The others' do not."""


TWO_BROKERS = Size(brokers=2, sessions=2, offsets=2, epochs=2, outages=0, slow=1)
ONE_OFFSET = Size(brokers=2, sessions=2, offsets=1, epochs=2, outages=0, slow=1)
RELEASES = Size(brokers=2, sessions=2, offsets=1, epochs=2, outages=1, slow=0)
STARTS_AGAIN = Size(brokers=1, sessions=2, offsets=2, epochs=3, outages=0, slow=2)

LARGE = [
    Size(brokers=1, sessions=3, offsets=2, epochs=3, outages=1, slow=2),
    Size(brokers=2, sessions=2, offsets=1, epochs=3, outages=1, slow=0),
    Size(brokers=2, sessions=3, offsets=1, epochs=3, outages=0, slow=1),
    Size(brokers=2, sessions=2, offsets=2, epochs=3, outages=1, slow=1),
    Size(brokers=2, sessions=2, offsets=1, epochs=2, outages=0, slow=2),
    Size(brokers=3, sessions=3, offsets=1, epochs=3, outages=0, slow=0),
]

_NOBODY = (0, TTL, False, 0, 0, 0, -1, 0, None)


@cache
def lease_valid(age: int) -> bool:
    return SessionLease(TTL, -age).valid(0)


@cache
def age_renewed(age: int, sent_age: int) -> int:
    return -SessionLease(TTL, -age).renewed(-sent_age).sent_ms


@cache
def is_silent(age: int, drift: object) -> bool:
    watch = SessionSightings()
    watch.saw(1, 1, TTL, -age)
    watch.saw(1, 1, TTL, 0)
    return watch.silent(1, 0)


def slot_map(owner: int, epoch: int) -> SlotMap:
    return SlotMap((Slot(owner, epoch, (SHARD,)),))


@cache
def claimed(owner: int, epoch: int, by: int) -> Write:
    (slot,) = slot_map(owner, epoch).claim([0], by).slots
    return Write(slot.owner, slot.epoch)


@cache
def released(owner: int, epoch: int, by: int) -> Write:
    (slot,) = slot_map(owner, epoch).release([0], by).slots
    return Write(slot.owner, slot.epoch)


@cache
def plan_slots(
    me: int,
    owner: int,
    epoch: int,
    states: tuple[SessionState | None, ...],
    silent: frozenset[int],
    reaches: bool,
    releasing: bool,
) -> leases.SlotPlan:
    sessions = {
        number: BrokerSession(number, number, "host", 9092, None, TTL, state, lanes={SHARD: (0,)})
        for number, state in enumerate(states, 1)
        if state is not None
    }
    reachable = [SHARD] if reaches else []
    return leases.plan_slots(
        me, slot_map(owner, epoch), sessions, silent, reachable, [0] if releasing else []
    )


class Model:
    def __init__(self, size: Size, broken: Rule | None = None) -> None:
        self.size = size
        self.broken = broken

    def first(self) -> State:
        broker = Broker(*_NOBODY, frozenset(), True)
        rows = (None,) * self.size.sessions
        brokers = (broker,) * self.size.brokers
        return State(
            0,
            0,
            frozenset(),
            rows,
            brokers,
            (),
            frozenset(),
            frozenset(),
            0,
            (0, 0),
            self.size.outages,
        )

    def steps(self, s: State) -> Iterator[tuple[str, State]]:
        """Everything that may happen next. Raises `Harm`."""
        yield from self._time(s)
        yield from self._writes_come_true(s)
        yield from self._inserts_land(s)
        for n, broker in enumerate(s.brokers):
            if broker.session:
                yield from self._sessions(s, n, broker)
                yield from self._slot(s, n, broker)
                yield from self._log(s, n, broker)
            elif any(row is None for row in s.rows):
                yield f"{n} begins a session", self._begun(s, n, broker)

    # The world

    def _time(self, s: State) -> Iterator[tuple[str, State]]:
        can_lag = [(False, True) if broker.may_lag else (False,) for broker in s.brokers]
        aged = [
            row._replace(unchanged=min(row.unchanged + 1, TTL + 1))
            if row is not None and row.state is SessionState.LIVE
            else row
            for row in s.rows
        ]
        for lags in product(*can_lag):
            rows, brokers = list(aged), []
            for broker, lag in zip(s.brokers, lags, strict=True):
                if lag:
                    brokers.append(broker._replace(may_lag=False))
                    continue
                age = min(broker.lease_age + 1, TTL)
                may_lag = broker.may_lag and lease_valid(age)
                brokers.append(broker._replace(lease_age=age, may_lag=may_lag))
                row = rows[broker.session - 1] if broker.session else None
                if row is not None:
                    rows[broker.session - 1] = _older(row)
            after = s._replace(rows=tuple(rows), brokers=tuple(brokers))
            if after != s:
                yield f"time passes, not for {lags}" if any(lags) else "time passes", after

    def _writes_come_true(self, s: State) -> Iterator[tuple[str, State]]:
        for write in s.writes:
            if write.owner != NOBODY and write.epoch <= s.epoch:
                raise Harm(f"epoch {write.epoch} follows {s.epoch}")
            # Whoever else expected the map as it was comes too late now.
            yield (
                f"the map says: owner {write.owner}, epoch {write.epoch}",
                s._replace(owner=write.owner, epoch=write.epoch, writes=frozenset()),
            )
        for number, row in enumerate(s.rows, 1):
            if row is not None and row.attempt is not None:
                age, lane = row.attempt
                renewed = self._row(lane, landed=age)
                rows = _put(s.rows, number, renewed)
                yield f"a renewal of {number} comes true", s._replace(rows=rows)

    def _row(self, lane: int = 0, landed: int | None = None) -> Row:
        # Whoever looks later waits longer, so all look at once.
        unchanged = 1 if self.is_off(Rule.WATCH_COUNTS_FROM_THE_ANSWER) else 0
        return Row(SessionState.LIVE, lane, None, landed, unchanged)

    def _inserts_land(self, s: State) -> Iterator[tuple[str, State]]:
        for block in s.flying:
            flying = s.flying - {block}
            if (block.session, block.number) in s.fences:
                yield f"{block} is dropped as a duplicate", s._replace(flying=flying)
                continue
            if block.epoch < s.read[0]:
                raise Harm(f"{block} lands after epoch {s.read[0]} has read the end")
            if any(row.offset == block.offset for row in s.log):
                raise Harm(f"{block} lands where there is a row")
            yield f"{block} lands", s._replace(flying=flying, log=(*s.log, block))

    def is_off(self, rule: Rule) -> bool:
        return self.broken is rule

    # Sessions

    def _begun(self, s: State, n: int, broker: Broker) -> State:
        number = s.rows.index(None) + 1
        s = s._replace(rows=_put(s.rows, number, self._row()))
        return _with(
            s, n, broker._replace(session=number, lease_age=0, may_lag=number <= self.size.slow)
        )

    def _sessions(self, s: State, n: int, broker: Broker) -> Iterator[tuple[str, State]]:
        me = broker.session
        row = s.rows[me - 1]
        assert row is not None
        gone = Broker(*_NOBODY, frozenset(), broker.reaches)
        yield f"{n} crashes", _with(_unheard(s, me), n, gone)
        if not lease_valid(broker.lease_age):
            fallen = gone._replace(past=me, fenced=broker.fenced)
            yield f"{n} has lost its lease", _with(_unheard(s, me), n, fallen)
        if row.landed is not None:
            heard = 0 if self.is_off(Rule.LEASE_COUNTS_FROM_SENDING) else row.landed
            renewed = broker._replace(lease_age=age_renewed(broker.lease_age, heard))
            rows = _put(s.rows, me, row._replace(landed=None))
            yield f"{n} hears that it is renewed", _with(s._replace(rows=rows), n, renewed)
        elif row.state is SessionState.LIVE and me > self.size.slow:
            rows = _put(s.rows, me, self._row(broker.resolved))
            yield f"{n} renews", _with(s._replace(rows=rows), n, broker._replace(lease_age=0))
        elif row.state is SessionState.LIVE and row.attempt is None:
            rows = _put(s.rows, me, row._replace(attempt=(0, broker.resolved)))
            yield f"{n} sends a renewal", s._replace(rows=rows)
        for number, other in enumerate(s.rows, 1):
            if other is None or other.state is SessionState.DEAD or number == me:
                continue
            if (
                self._is_silent(other)
                or number == broker.past
                or self.is_off(Rule.SILENT_BEFORE_DEAD)
            ):
                late = other.attempt if self.is_off(Rule.DEAD_FOR_EVER) else None
                dead = other._replace(state=SessionState.DEAD, attempt=late, unchanged=0)
                rows = _put(s.rows, number, dead)
                yield f"{n} declares {number} dead", s._replace(rows=rows)

    def _is_silent(self, row: Row) -> bool:
        return is_silent(row.unchanged, leases.DRIFT)

    def _decided(self, s: State, n: int, broker: Broker) -> leases.SlotPlan:
        states = [None if row is None else row.state for row in s.rows]
        silent = frozenset(
            number
            for number, row in enumerate(s.rows, 1)
            if row is not None and number != broker.session and self._is_silent(row)
        )
        if self.is_off(Rule.DEAD_BEFORE_CLAIMED):
            states = [
                SessionState.DEAD if number in silent else state
                for number, state in enumerate(states, 1)
            ]
        return plan_slots(
            broker.session,
            s.owner,
            s.epoch,
            tuple(states),
            silent,
            broker.reaches,
            broker.given_up == s.epoch,
        )

    # Slots

    def _slot(self, s: State, n: int, broker: Broker) -> Iterator[tuple[str, State]]:
        me = broker.session
        may_take = broker.given_up < s.epoch or self.is_off(Rule.AN_EPOCH_IS_TAKEN_ONCE)
        if s.owner == me and broker.epoch != s.epoch and may_take:
            taken = broker._replace(epoch=s.epoch)
            yield f"{n} finds that epoch {s.epoch} is its own", _with(s, n, taken)
        early = self.is_off(Rule.FENCE_BEFORE_READING) and s.owner not in (NOBODY, me)
        end = max((block.offset for block in s.log), default=-1) + 1
        if early and broker.next_offset < 0:
            yield f"{n} reads the end early", _with(s, n, broker._replace(next_offset=end))
        elif broker.epoch and broker.next_offset < 0:
            if s.acknowledged >> end:
                raise Harm(f"{n} reads {end} as the end, and more is acknowledged")
            read = s._replace(read=max(s.read, (broker.epoch, end)))
            yield f"{n} reads the end: {end}", _with(read, n, broker._replace(next_offset=end))
        may_write = lease_valid(broker.lease_age)
        decided = self._decided(s, n, broker)
        if 0 in decided.release and s.owner == me:
            if broker.epoch and (
                broker.waiting is None or self.is_off(Rule.NOTHING_IN_FLIGHT_WHEN_RELEASED)
            ):
                up = broker._replace(epoch=0, next_offset=-1, given_up=broker.epoch, waiting=None)
                yield f"{n} gives up epoch {broker.epoch}", _with(s, n, up)
            if broker.given_up == s.epoch and may_write:
                yield from self._sends(s, n, released(s.owner, s.epoch, me))
        elif s.owner == me and broker.given_up == s.epoch and may_write:
            yield from self._sends(s, n, claimed(s.owner, s.epoch, me))
        if 0 in decided.claim and s.owner != NOBODY and s.owner not in broker.fenced:
            number = self._fence_number(s, s.owner)
            fences = s.fences if number is None else s.fences | {(s.owner, number)}
            fenced = broker._replace(fenced=broker.fenced | {s.owner})
            yield f"{n} fences {s.owner}", _with(s._replace(fences=fences), n, fenced)
        if (
            0 in decided.claim
            and may_write
            and (s.owner == NOBODY or s.owner in broker.fenced or self.is_off(Rule.FENCE))
        ):
            yield from self._sends(s, n, claimed(s.owner, s.epoch, me))
        if n == 0 and (s.outages or not broker.reaches):
            back = s._replace(outages=s.outages - broker.reaches)
            yield (
                f"{n}: the shard goes or comes",
                _with(back, n, broker._replace(reaches=not broker.reaches)),
            )

    def _sends(self, s: State, n: int, write: Write) -> Iterator[tuple[str, State]]:
        if self.is_off(Rule.EPOCH_GROWS):
            write = write._replace(epoch=max(s.epoch, 1))
        if write.epoch <= self.size.epochs and write not in s.writes:
            yield f"{n} sends {write}", s._replace(writes=s.writes | {write})

    def _fence_number(self, s: State, session: int) -> int | None:
        """The first number that is free, from what the row tells on."""
        row = s.rows[session - 1]
        assert row is not None
        number = row.lane + 1
        while self._is_used(s, session, number):
            if self.is_off(Rule.FENCE_PROBES):
                return None
            number += 1
        return number

    def _is_used(self, s: State, session: int, number: int) -> bool:
        return (session, number) in s.fences or any(
            (block.session, block.number) == (session, number) for block in s.log
        )

    # The log

    def _log(self, s: State, n: int, broker: Broker) -> Iterator[tuple[str, State]]:
        me, block = broker.session, broker.waiting
        if block is None:
            if (
                broker.epoch
                and broker.next_offset >= 0
                and broker.next_offset < self.size.offsets
                and lease_valid(broker.lease_age)
            ):
                number = broker.resolved + 1
                block = Block(me, number, broker.next_offset, broker.epoch)
                sent = s._replace(flying=s.flying | {block})
                yield f"{n} sends {block}", _with(sent, n, broker._replace(waiting=block))
            return
        if self._is_used(s, me, block.number):
            answered = broker._replace(
                resolved=block.number, waiting=None, next_offset=block.offset + 1
            )
            if lease_valid(broker.lease_age) or self.is_off(Rule.LEASE_BEFORE_ANSWERING):
                if block not in s.log:
                    raise Harm(f"{block} is acknowledged and not stored")
                if s.acknowledged >> block.offset & 1:
                    raise Harm(f"offset {block.offset} is acknowledged twice")
                if s.read[0] > block.epoch and s.read[1] <= block.offset:
                    raise Harm(f"{block} is acknowledged, and a later owner does not know it")
                s = s._replace(acknowledged=s.acknowledged | 1 << block.offset)
                yield f"{n} acknowledges {block}", _with(s, n, answered)
            else:
                yield f"{n} does not answer {block}", _with(s, n, answered)


def _put(items: tuple, number: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*items[: number - 1], value, *items[number:])


def _with(s: State, n: int, broker: Broker) -> State:
    return s._replace(brokers=_put(s.brokers, n + 1, broker))


def _older(row: Row) -> Row:
    """What is older than a lease renews nothing, whenever it comes or is heard of."""
    attempt, landed = row.attempt, row.landed
    if attempt is not None:
        attempt = (attempt[0] + 1, attempt[1]) if attempt[0] + 1 < TTL else None
    if landed is not None:
        landed = landed + 1 if landed + 1 < TTL else None
    return row._replace(attempt=attempt, landed=landed)


def _unheard(s: State, number: int) -> State:
    """Nobody is there any more whom a renewal of this session could help."""
    row = s.rows[number - 1]
    assert row is not None
    return s._replace(rows=_put(s.rows, number, row._replace(attempt=None, landed=None)))


def search(model: Model) -> tuple[int, list[str] | None]:
    """How many states there are, and the shortest way to harm, if there is one."""
    first = model.first()
    came_from: dict[State, tuple[State, str] | None] = {first: None}
    ahead = deque([first])
    while ahead:
        state = ahead.popleft()
        try:
            for what, after in model.steps(state):
                if after not in came_from:
                    came_from[after] = (state, what)
                    ahead.append(after)
        except Harm as harm:
            return len(came_from), [*_way(came_from, state), str(harm)]
    return len(came_from), None


def _way(came_from: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    way = []
    while (step := came_from[state]) is not None:
        state, what = step
        way.append(what)
    return way[::-1]


def check(size: Size) -> None:
    states, way = search(Model(size))
    print(f"{size}: {states} states")
    assert way is None, "\n".join(way)


@pytest.mark.parametrize(
    "size",
    [
        ONE_OFFSET,
        RELEASES,
        *(pytest.param(size, marks=pytest.mark.test_all) for size in (TWO_BROKERS, STARTS_AGAIN)),
    ],
    ids=str,
)
def test_no_order_of_events_breaks_a_lease(size: Size) -> None:
    check(size)


@pytest.mark.fuzz
@pytest.mark.parametrize("size", LARGE, ids=str)
def test_no_order_of_events_breaks_a_lease_in_a_larger_cluster(size: Size) -> None:
    check(size)


@pytest.mark.parametrize(
    "rule",
    [
        Rule.EPOCH_GROWS,
        *(
            pytest.param(rule, marks=pytest.mark.test_all)
            for rule in Rule
            if rule is not Rule.EPOCH_GROWS
        ),
    ],
    ids=lambda rule: rule.name,
)
def test_the_model_finds_the_violation_of_each_rule(
    rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rule is Rule.MARGIN:
        monkeypatch.setattr(leases, "DRIFT", 1)
    size = _FOUND_IN.get(rule, ONE_OFFSET)
    _, way = search(Model(size, rule))
    assert way is not None, f"nothing happens without {rule.name}"
    print("\n".join(way))


_FOUND_IN = {
    Rule.FENCE_PROBES: TWO_BROKERS,
    Rule.NOTHING_IN_FLIGHT_WHEN_RELEASED: RELEASES,
    Rule.AN_EPOCH_IS_TAKEN_ONCE: RELEASES,
}
