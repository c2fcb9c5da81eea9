"""A broker's part in the cluster: its session, its slots, and what becomes of those of the dead.

The decisions are those of broker/cluster/leases.py; here they meet the registry and a clock. What
must hold:

* State decides, never the outcome of a call: an answer may be lost, and a write may come true
  later. So the registry is read again after every write, and one (slot, epoch) is taken at most
  once: who gave a slot up serves it again only under a new epoch.
* Three loops that never wait for each other: renewals, the lease (by the clock, while the registry
  hangs), and the poll that decides and alone writes the slot map. What may be slow (taking, giving
  up, fencing) runs beside them.
* Before a compare-and-set of the slot map the lease is looked at after the map was read."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Protocol, TypeVar

from broker.cluster.leases import (
    BrokerReport,
    BrokerSession,
    Plan,
    SessionLease,
    SessionState,
    Watch,
    plan,
)
from storage.engine import EngineError
from storage.registry import Registry, Versioned
from storage.registry_values import MalformedState
from storage.slot_map import NOBODY, SLOTS_KEY, Slot, SlotMap

log = logging.getLogger(__name__)

SESSION_PREFIX = "session/"
NEXT_SESSION_KEY = "next_session_id"

_RENEWALS_PER_LEASE = 6
_CALLS_PER_LEASE = 5
"""A call to the registry may take that part of a lease; then it is tried again."""

_RETRY_MS = 1_000
"""Between two attempts at what the engine refused."""

_TWIN_RENEWALS = 2
"""A row may still change once after its broker was killed: a renewal that was on its way."""

_OWN_SESSIONS_KEPT = 64

_T = TypeVar("_T")


class NodeIdTaken(Exception):
    """Another live broker has the same node id."""


class WrongSlots(Exception):
    """The cluster has another number of slots than this broker was told."""


class SlotOwner(Protocol):
    """What serves the slots. `EngineError` is expected, anything else a defect."""

    def report(self) -> BrokerReport:
        """What the others should know; asked right before each renewal."""

    async def fence(self, session: BrokerSession, shard: str) -> None:
        """No insert of a dead session lands on this shard any more. Raises `EngineError`."""

    async def take(self, slots: Mapping[int, Slot]) -> None:
        """They are mine: read what is there and serve. All lie on the same last shard.

        Raises `EngineError` and serves none of them: asked again, or given up.
        """

    async def give_up(self, slots: Collection[int]) -> None:
        """Serve no more; returns when nothing of them is in flight.

        May name slots whose `take` was refused.
        """

    def lost(self) -> None:
        """The session is over: serve nothing, abandon what is in flight."""


class _Phase(Enum):
    TAKING = auto()
    SERVING = auto()
    GIVING_UP = auto()
    GIVEN_UP = auto()


@dataclass(slots=True)
class _Held:
    """A slot under one epoch of this session, from the first look at it to the last."""

    slot: Slot
    phase: _Phase = _Phase.TAKING
    busy: bool = False
    retry_ms: int = 0


@dataclass(slots=True, eq=False)
class _Tenure:
    """One session while it lasts."""

    row: BrokerSession
    at: Versioned
    lease: SessionLease
    attempt: BrokerSession
    sent_ms: dict[str, int] = field(default_factory=dict)
    """Renewals whose outcome is unknown. All expect the same version, so one counts at most."""
    held: dict[int, _Held] = field(default_factory=dict)
    jobs: set[asyncio.Task[None]] = field(default_factory=set)
    said_leaving: bool = False
    handed: set[int] = field(default_factory=set)
    """What it released since it began to leave."""


def boot_ms() -> int:
    """A clock that also runs while the machine sleeps, as leases of others do."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class Ownership:
    """The session and the slots of this broker, and what is known of the others."""

    def __init__(
        self,
        registry: Registry,
        owner: SlotOwner,
        node_id: int,
        host: str,
        port: int,
        rack: str | None,
        ttl_ms: int,
        *,
        first_map: SlotMap,
        reachable: Callable[[], Collection[str]],
        first_session_id: int,
        clock_ms: Callable[[], int] = boot_ms,
        poll_s: float = 0.25,
    ) -> None:
        """`first_map` is written if there is none. `reachable`: shards that are not away.

        `first_session_id`: where ids begin if the registry knows of none. It should be later than
        any id that a registry before this one, now lost, can have given: engines would take the
        blocks of a session with an old id for repetitions, and drop them.
        """
        self.slot_map: SlotMap | None = None
        self.sessions: Mapping[int, BrokerSession] = {}
        self._registry = registry
        self._owner = owner
        self._node = BrokerSession(0, node_id, host, port, rack, ttl_ms)
        self._ttl_ms = ttl_ms
        self._first_map = first_map
        self._reachable = reachable
        self._first_session_id = first_session_id
        self._clock_ms = clock_ms
        self._poll_s = poll_s

        self._tenure: _Tenure | None = None
        self._own: deque[int] = deque(maxlen=_OWN_SESSIONS_KEPT)
        self._twin_renewals: dict[int, int] = {}
        self._watch = Watch()
        self._map_at: Versioned | None = None
        self._rows: dict[int, Versioned] = {}
        self._unsettled: Versioned | None = None
        """The map that my last write expected. While it is what I see, that may come true yet."""
        self._fenced: set[tuple[int, str]] = set()
        self._fence_retry_ms: dict[tuple[int, str], int] = {}
        self._ending: set[asyncio.Task[None]] = set()

        self._callbacks: list[Callable[[], None]] = []
        self._began = asyncio.Event()
        self._wake = asyncio.Event()
        self._renew_now = asyncio.Event()
        self._leaving = False
        self._left = asyncio.Event()
        self._registry_away = False
        self._main: asyncio.Task[None] | None = None
        self._group: asyncio.TaskGroup | None = None

    # What others ask

    @property
    def session_id(self) -> int:
        """0 before the first session and between two."""
        tenure = self._tenure
        return 0 if tenure is None else tenure.row.session_id

    def is_valid(self) -> bool:
        """Whether the current session may serve, by the clock, now. From any thread."""
        tenure = self._tenure
        return tenure is not None and tenure.lease.valid(self._clock_ms())

    def lease(self) -> Callable[[], bool]:
        """`is_valid` of the session that is current now, and of no later one.

        For what outlives a session: an insert of an old one must not be answered under a new one.
        """
        tenure = self._tenure

        def is_valid() -> bool:
            return (
                tenure is not None
                and self._tenure is tenure
                and tenure.lease.valid(self._clock_ms())
            )

        return is_valid

    def on_change(self, callback: Callable[[], None]) -> None:
        """Called when the slot map, a session or the own session has changed."""
        self._callbacks.append(callback)

    def end_session(self, session_id: int, why: str) -> None:
        """This session cannot go on, for a defect: a new one begins, the others fence the old."""
        if session_id == self.session_id:
            self._end(why)

    @property
    def background(self) -> Collection[asyncio.Task[None]]:
        """Tasks that end before `leave` only by a defect, or because another has the node id."""
        return () if self._main is None else (self._main,)

    async def start(self) -> None:
        """Register; returns when the first session has begun and the slot map is known.

        Waits as long as the registry is away, or a session of a broker with this node id that was
        killed is not declared dead. Raises `NodeIdTaken` if that one lives, and `WrongSlots`.
        """
        self._main = asyncio.create_task(self._run(), name="ownership")
        began = asyncio.create_task(self._began.wait())
        try:
            await asyncio.wait((self._main, began), return_when=asyncio.FIRST_COMPLETED)
            if self._main.done():
                await self._main
        except asyncio.CancelledError:
            await _stop(self._main)
            raise
        finally:
            began.cancel()

    async def leave(self) -> None:
        """Hand every slot over, close the session and stop.

        What cannot be handed over within the time-to-live stays with the session, which the others
        will declare dead.
        """
        if self._main is None or self._main.done():
            return
        self._leaving = True
        if self._tenure is None:
            self._left.set()
        self._renew_now.set()
        self._wake.set()
        left = asyncio.create_task(self._left.wait())
        await asyncio.wait(
            (left, self._main), timeout=self._ttl_ms / 1000, return_when=asyncio.FIRST_COMPLETED
        )
        left.cancel()
        tenure = self._tenure
        clean = self._left.is_set()
        if tenure is not None and clean:
            self._tenure = None  # nothing is held any more
            self._began.clear()
        await _stop(self._main)
        if tenure is not None and clean:
            try:
                await self._close(tenure)
            except EngineError as error:
                log.warning("session %d stays open: %s", tenure.row.session_id, error)
        elif tenure is not None:
            log.warning("session %d could not hand over everything", tenure.row.session_id)

    # The loops

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                for loop in (self._poll(), self._renewals(), self._guard_lease()):
                    group.create_task(loop)
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        finally:
            self._end("the broker stops")

    async def _guard_lease(self) -> None:
        """End the session when its time is up, whatever hangs."""
        while True:
            tenure = self._tenure
            if tenure is None:
                await self._began.wait()
                continue
            left_ms = tenure.lease.ends_ms - self._clock_ms()
            if left_ms > 0:
                await asyncio.sleep(min(left_ms / 1000, self._poll_s))
            elif tenure is self._tenure:
                self._end("its lease ran out")

    async def _renewals(self) -> None:
        every_ms = self._ttl_ms / _RENEWALS_PER_LEASE
        while True:
            await self._began.wait()
            tenure = self._tenure
            if tenure is None:
                continue
            due_ms = max(tenure.lease.sent_ms + every_ms - self._clock_ms(), every_ms / 4)
            await _event_within(self._renew_now, due_ms / 1000)
            self._renew_now.clear()
            if tenure is self._tenure:
                try:
                    await self._renew(tenure)
                except EngineError as error:
                    self._is_away(error)

    async def _poll(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._refresh()
                await self._act()
            except EngineError as error:
                self._is_away(error)
            except MalformedState as error:
                log.error("nothing can be decided: the registry has %s", error)
            else:
                if self._registry_away:
                    log.info("the registry answers again")
                    self._registry_away = False
            await _event_within(self._wake, self._poll_s)

    def _is_away(self, error: EngineError) -> None:
        if not self._registry_away:
            log.warning("the registry does not answer: %s", error)
            self._registry_away = True

    async def _ask(self, call: Awaitable[_T]) -> _T:
        """Raises `EngineError` as well when there is no answer in time."""
        try:
            async with asyncio.timeout(self._ttl_ms / 1000 / _CALLS_PER_LEASE):
                return await call
        except TimeoutError as error:
            raise EngineError("the registry did not answer in time") from error

    async def _put(self, key: str, expected: Versioned | None, value: str) -> Versioned | None:
        """Write a text that nobody else writes; what is there afterwards. Raises `EngineError`."""
        try:
            await self._ask(self._registry.compare_and_set(key, expected, value))
        except EngineError as error:
            log.debug("whether %s was written is found out by reading it: %s", key, error)
        return await self._ask(self._registry.get(key))

    # The session

    async def _begin(self) -> None:
        if self._leaving or self._ending or not await self._has_no_twin():
            return
        session_id = await self._new_session_id()
        if session_id is None:
            return
        self._own.append(session_id)
        sent_ms = self._clock_ms()
        row = replace(self._node, session_id=session_id)
        row = row.renewed(SessionState.LIVE, self._owner.report())
        found = await self._put(_key(session_id), None, row.to_text())
        if found is None or found.value != row.to_text():
            return
        await self._refresh()
        older = [twin for twin in self._twins() if twin.session_id < session_id]
        if older:
            await self._ask(self._registry.delete(_key(session_id), found))
            return
        tenure = _Tenure(row, found, SessionLease(self._ttl_ms, sent_ms), row)
        if not tenure.lease.valid(self._clock_ms()):
            return
        self._tenure = tenure
        self._began.set()
        self.sessions = {**self.sessions, session_id: row}
        log.info("session %d of node %d has begun", session_id, row.node_id)
        self._changed()
        self._wake.set()

    async def _new_session_id(self) -> int | None:
        """None if somebody else took it; an id may be lost, but is never given twice."""
        found = await self._ask(self._registry.get(NEXT_SESSION_KEY))
        session_id = self._first_session_id if found is None else _number(found.value)
        call = self._registry.compare_and_set(NEXT_SESSION_KEY, found, str(session_id + 1))
        if await self._ask(call):
            return session_id
        self._soon()
        return None

    def _twins(self) -> list[BrokerSession]:
        return [
            session
            for key, session in self.sessions.items()
            if session.node_id == self._node.node_id
            and not session.is_over
            and key not in self._own
        ]

    async def _has_no_twin(self) -> bool:
        """Raises `NodeIdTaken` if one lives; one that does not is declared dead in time."""
        for session_id in self._own:
            session = self.sessions.get(session_id)
            if session is not None and not session.is_over:
                # Nobody knows better that it is over, so nobody has to wait for it.
                await self._declare_dead(session_id, "it was ours")
        twins = self._twins()
        for twin in twins:
            first = self._twin_renewals.get(twin.session_id)
            if first is None:
                self._twin_renewals = {twin.session_id: twin.renewals}
                log.info("session %d of this node id has to end first", twin.session_id)
            elif twin.state is SessionState.LIVE and twin.renewals >= first + _TWIN_RENEWALS:
                raise self._taken_by(twin)
        return not twins

    def _taken_by(self, twin: BrokerSession) -> NodeIdTaken:
        return NodeIdTaken(
            f"node id {twin.node_id} is that of the broker at {twin.host}:{twin.port}, which runs"
            f" (session {twin.session_id}); give each broker its own"
        )

    async def _renew(self, tenure: _Tenure) -> None:
        state = SessionState.LEAVING if self._leaving else SessionState.LIVE
        tenure.attempt = tenure.attempt.renewed(state, self._owner.report())
        text = tenure.attempt.to_text()
        tenure.sent_ms[text] = self._clock_ms()
        found = await self._put(_key(tenure.row.session_id), tenure.at, text)
        if tenure is not self._tenure or found is None or found.version <= tenure.at.version:
            return  # not come true so far; without a row the lease decides
        if found.value not in tenure.sent_ms:
            self._end("others have declared it dead")
            return
        tenure.lease = tenure.lease.renewed(tenure.sent_ms[found.value])
        tenure.at, tenure.row = found, BrokerSession.from_text(found.value)
        tenure.sent_ms.clear()
        if tenure.row.state is SessionState.LEAVING and not tenure.said_leaving:
            tenure.said_leaving = True
            self._wake.set()

    def _end(self, why: str) -> None:
        """The session is over, at once."""
        tenure = self._tenure
        if tenure is None:
            return
        self._tenure = None
        self._began.clear()
        if tenure.held:
            numbers = len(tenure.held)
            log.error("session %d has lost %d slots: %s", tenure.row.session_id, numbers, why)
        else:
            log.warning("session %d is over: %s", tenure.row.session_id, why)
        for job in tenure.jobs:
            job.cancel()
            self._ending.add(job)
        self._owner.lost()
        if self._leaving:
            self._left.set()
        self._changed()
        self._wake.set()

    async def _close(self, tenure: _Tenure) -> None:
        """Raises `EngineError`. A row that stays owns nothing; the others declare it dead."""
        key = _key(tenure.row.session_id)
        found = await self._ask(self._registry.get(key))
        if found is None or found.value not in {tenure.at.value, *tenure.sent_ms}:
            return
        closed = tenure.attempt.ended(SessionState.CLOSED).to_text()
        found = await self._put(key, found, closed)
        if found is not None and found.value == closed:
            await self._ask(self._registry.delete(key, found))
            log.info("session %d is closed", tenure.row.session_id)

    # What is known

    async def _refresh(self) -> None:
        found = await self._ask(self._registry.get(SLOTS_KEY))
        if found is None:
            found = await self._put(SLOTS_KEY, None, self._first_map.to_text())
        rows = await self._ask(self._registry.list(SESSION_PREFIX))
        now_ms = self._clock_ms()
        changed = found is not None and self._see_map(found)
        if self._see_sessions(rows, now_ms) or changed:
            self._changed()

    def _see_map(self, found: Versioned) -> bool:
        if self._map_at is not None and found.version <= self._map_at.version:
            return False  # another server may lag behind
        slot_map = SlotMap.from_text(found.value)
        if len(slot_map.slots) != len(self._first_map.slots):
            raise WrongSlots(
                f"the cluster has {len(slot_map.slots)} slots, and the file says "
                f"{len(self._first_map.slots)}: that number is fixed when a cluster is made"
            )
        self.slot_map = slot_map
        self._map_at = found
        return True

    def _see_sessions(self, found: Mapping[str, Versioned], now_ms: int) -> bool:
        rows: dict[int, Versioned] = {}
        sessions: dict[int, BrokerSession] = {}
        for key, row in found.items():
            session_id = _number(key.removeprefix(SESSION_PREFIX))
            known = self._rows.get(session_id)
            if known is not None and known.version >= row.version and session_id in self.sessions:
                rows[session_id], sessions[session_id] = known, self.sessions[session_id]
            else:
                rows[session_id], sessions[session_id] = row, BrokerSession.from_text(row.value)
        tenure = self._tenure
        if tenure is not None:
            mine = sessions.get(tenure.row.session_id)
            if mine is not None and mine.is_over:
                self._end("others have declared it dead")
            else:
                sessions[tenure.row.session_id] = tenure.row
        owners = set() if self.slot_map is None else {slot.owner for slot in self.slot_map.slots}
        for session_id, session in sessions.items():
            if session_id in rows:
                version = rows[session_id].version
                self._watch.saw(session_id, version, session.ttl_ms, now_ms)
        for session_id in owners - sessions.keys() - {NOBODY}:
            self._watch.saw(session_id, None, self._ttl_ms, now_ms)
        self._watch.forget_all_but(sessions.keys() | owners)
        self._fenced = {fence for fence in self._fenced if fence[0] in sessions}
        retries = self._fence_retry_ms.items()
        self._fence_retry_ms = {fence: at for fence, at in retries if fence[0] in sessions}
        changed = sessions != self.sessions
        self._rows, self.sessions = rows, sessions
        return changed

    def _changed(self) -> None:
        for callback in self._callbacks:
            callback()

    # What is decided

    async def _act(self) -> None:
        assert self.slot_map is not None
        now_ms = self._clock_ms()
        tenure = self._tenure
        owners = {slot.owner for slot in self.slot_map.slots}
        decided = plan(
            self.session_id,
            self.slot_map,
            self.sessions,
            [one for one in self.sessions.keys() | owners if self._watch.silent(one, now_ms)],
            self._reachable(),
            () if tenure is None else _in_phases(tenure, _Phase.GIVING_UP, _Phase.GIVEN_UP),
        )
        for session_id in decided.dead:
            await self._declare_dead(session_id, "not renewed in time")
        if tenure is None:
            await self._begin()
            return
        if tenure is not self._tenure:
            return
        for twin in self._twins():
            if twin.session_id < tenure.row.session_id:
                raise self._taken_by(twin)
        wanted = self._reconcile(tenure, decided)
        if tenure is self._tenure and (
            wanted != self.slot_map or decided.forget or self._must_settle()
        ):
            await self._write_map(tenure, wanted, decided.forget)
        if self._leaving:
            self._leave_when_empty(tenure)

    async def _declare_dead(self, session_id: int, why: str) -> None:
        row = self._rows.get(session_id)
        session = self.sessions.get(session_id)
        if session is None:
            # An owner whose row is gone. That it can be made proves that nobody renews it.
            session = replace(self._node, session_id=session_id, node_id=0, host="", port=0)
        dead = session.ended(SessionState.DEAD)
        call = self._registry.compare_and_set(_key(session_id), row, dead.to_text())
        if await self._ask(call):
            node_id = session.node_id
            log.warning("session %d of node %d is declared dead: %s", session_id, node_id, why)
        self._wake.set()

    def _reconcile(self, tenure: _Tenure, decided: Plan) -> SlotMap:
        """Start what is to be done about each slot; the map as it should be by what is done."""
        assert self.slot_map is not None
        me, now_ms = tenure.row.session_id, self._clock_ms()
        mine = self.slot_map.of(me)
        for number in tenure.held.keys() - mine.keys():
            if tenure.held[number].phase is not _Phase.GIVEN_UP:
                self._end(f"slot {number} was taken away")
                return self.slot_map
        gone = tenure.held.keys() - mine.keys()
        if gone:
            log.info("session %d has handed over %s", me, _shown(gone))
        for number in gone:
            del tenure.held[number]
        if self._leaving:
            tenure.handed |= gone
        to_take: dict[int, Slot] = {}
        to_give_up: dict[int, Slot] = {}
        for number, slot in mine.items():
            held = tenure.held.get(number)
            if held is None or (held.phase is _Phase.GIVEN_UP and slot.epoch > held.slot.epoch):
                held = tenure.held[number] = _Held(slot)
            if slot.epoch != held.slot.epoch:
                self._end(f"slot {number} has an epoch of somebody else")
                return self.slot_map
            must_go = number in decided.release or slot.behind > 0
            if held.busy:
                continue
            if held.phase in (_Phase.TAKING, _Phase.SERVING) and must_go:
                to_give_up[number] = held.slot
            elif held.phase is _Phase.TAKING and now_ms >= held.retry_ms:
                to_take[number] = held.slot
        for number in to_take.keys() | to_give_up.keys():
            tenure.held[number].busy = True
        for slots in _by_shard(to_take):
            self._start(tenure, self._take(tenure, slots))
        for slots in _by_shard(to_give_up):
            self._start(tenure, self._give_up(tenure, slots))
        given_up = set(_in_phases(tenure, _Phase.GIVEN_UP))
        released = given_up & set(decided.release)
        claimed = self._claimable(tenure, decided)
        return self.slot_map.release(sorted(released), me).claim(
            sorted(given_up - released) + claimed, me
        )

    def _claimable(self, tenure: _Tenure, decided: Plan) -> list[int]:
        """Those that are free or whose owner is fenced; the others are fenced first."""
        assert self.slot_map is not None
        claimed, fences = [], set()
        for number in decided.claim:
            slot = self.slot_map.slots[number]
            fence = (slot.owner, slot.writes_to)
            if slot.owner == NOBODY or fence in self._fenced:
                claimed.append(number)
            else:
                fences.add(fence)
        now_ms = self._clock_ms()
        for fence in sorted(fences):
            if now_ms >= self._fence_retry_ms.get(fence, 0):
                # Until it has ended one way or the other, it is not begun again.
                self._fence_retry_ms[fence] = now_ms + 10**12
                self._start(tenure, self._fence(self.sessions[fence[0]], fence[1]))
        former = Counter(self.slot_map.slots[number].owner for number in claimed)
        for session_id, count in former.items():
            from_whom = "nobody" if session_id == NOBODY else f"session {session_id}"
            log.info("session %d claims %d slots of %s", tenure.row.session_id, count, from_whom)
        return claimed

    def _must_settle(self) -> bool:
        """A claim that is not seen yet must not come true after this broker has left."""
        return self._leaving and self._unsettled is not None and self._unsettled == self._map_at

    async def _write_map(
        self, tenure: _Tenure, wanted: SlotMap, forgotten: Collection[int]
    ) -> None:
        """Whether it came true is seen at the next look at the map, which comes at once."""
        expected = self._map_at
        if not tenure.lease.valid(self._clock_ms()):
            self._end("its lease ran out")
            return
        self._unsettled = expected
        call = self._registry.compare_and_set(SLOTS_KEY, expected, wanted.to_text())
        written = await self._ask(call)
        self._soon()
        if not written:
            return
        # The map is known to be the latest, and none of these can write it any more: they were
        # over before. So nothing will ever ask for their rows.
        for session_id in forgotten:
            row = self._rows.get(session_id)
            if row is not None:
                await self._ask(self._registry.delete(_key(session_id), row))

    def _leave_when_empty(self, tenure: _Tenure) -> None:
        assert self.slot_map is not None
        if tenure is not self._tenure or not tenure.said_leaving or tenure.held:
            return
        if self.slot_map.of(tenure.row.session_id) or self._must_settle():
            return
        reachable = set(self._reachable())
        others = any(one.state is SessionState.LIVE for one in self.sessions.values())
        slots = [self.slot_map.slots[number] for number in tenure.handed]
        waiting = [s for s in slots if s.owner == NOBODY and reachable.issuperset(s.shards)]
        if not (others and waiting):
            self._left.set()

    def _soon(self) -> None:
        """Look again at once; not quite at once, so that several who write do not do so in step."""
        asyncio.get_running_loop().call_later(random.uniform(0, 0.02), self._wake.set)

    # What may take long

    def _start(self, tenure: _Tenure, job: Coroutine[None, None, None]) -> None:
        """A defect in it ends everything, loudly: the group's tasks stand and fall together."""
        assert self._group is not None
        task = self._group.create_task(job)
        tenure.jobs.add(task)
        task.add_done_callback(tenure.jobs.discard)
        task.add_done_callback(self._ending.discard)
        task.add_done_callback(lambda _: self._wake.set())

    async def _take(self, tenure: _Tenure, slots: Mapping[int, Slot]) -> None:
        helds = [tenure.held[number] for number in slots]
        began_ms = self._clock_ms()
        try:
            await self._owner.take(slots)
        except EngineError as error:
            log.warning("%s cannot be served yet: %s", _shown(slots), error)
            for held in helds:
                held.retry_ms = self._clock_ms() + _RETRY_MS
        else:
            for held in helds:
                held.phase = _Phase.SERVING
            log.info("serving %s after %d ms", _shown(slots), self._clock_ms() - began_ms)
        for held in helds:
            held.busy = False

    async def _give_up(self, tenure: _Tenure, slots: Mapping[int, Slot]) -> None:
        helds = [tenure.held[number] for number in slots]
        for held in helds:
            held.phase = _Phase.GIVING_UP
        await self._owner.give_up(list(slots))
        for held in helds:
            held.phase, held.busy = _Phase.GIVEN_UP, False

    async def _fence(self, session: BrokerSession, shard: str) -> None:
        fence = (session.session_id, shard)
        try:
            await self._owner.fence(session, shard)
        except EngineError as error:
            log.warning("session %d cannot be fenced on %s: %s", *fence, error)
        else:
            self._fenced.add(fence)
        finally:
            self._fence_retry_ms[fence] = self._clock_ms() + _RETRY_MS


def _key(session_id: int) -> str:
    return f"{SESSION_PREFIX}{session_id}"


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise MalformedState(f"{text!r} where the id of a session belongs") from error


def _in_phases(tenure: _Tenure, *phases: _Phase) -> list[int]:
    return [number for number, held in tenure.held.items() if held.phase in phases]


def _by_shard(slots: Mapping[int, Slot]) -> list[dict[int, Slot]]:
    """Apart, so that a slow shard does not keep the slots of others waiting."""
    found: dict[str, dict[int, Slot]] = {}
    for number, slot in slots.items():
        found.setdefault(slot.writes_to, {})[number] = slot
    return list(found.values())


def _shown(numbers: Collection[int]) -> str:
    return f"slot {min(numbers)}" if len(numbers) == 1 else f"{len(numbers)} slots"


async def _event_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):  # wait_for may swallow a cancellation (3.11)
            await event.wait()
    except TimeoutError:
        return False
    return True


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return
