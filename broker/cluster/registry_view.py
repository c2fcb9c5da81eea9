"""What this broker has read of the registry: the slot map and the sessions of all brokers.

The registry decides, never the outcome of a call: an answer may be lost, and a write may take
effect later. So the registry is read again after every write. A server may be behind another one,
so a version that is older than the last one seen is ignored.

All of it is read by one statement. A renewal has to read, too, so what it has read is kept for the
next look (`follow`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

from brokerhouse.broker.cluster.leases import SessionSightings
from brokerhouse.broker.slots.sessions import LATELY_MS, BrokerSession, LatelyAlive, SessionState
from brokerhouse.broker.start_error import StartError
from brokerhouse.common.tasks import Outage, event_within
from brokerhouse.storage.engine import EngineError
from brokerhouse.storage.registry import Registry, Versioned
from brokerhouse.storage.registry_values import MalformedState
from brokerhouse.storage.slot_map import NOBODY, SLOTS_KEY, SlotMap

log = logging.getLogger(__name__)

SESSION_PREFIX = "session/"

_CALLS_PER_LEASE = 5
"""A call to the registry counts as failed when it has taken this part of a lease."""

_QUIET_AFTER_MS = 5_000
"""For how long nothing may have changed hands before the registry is read less often."""

_T = TypeVar("_T")


class WrongSlots(StartError):
    """The cluster has another number of slots than this broker's configuration."""


def boot_ms() -> int:
    """A clock that also runs while the machine sleeps, as the leases of others do."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """All of the registry. `number`: of readings, in the order in which they began.

    `at_ms`: when the answer had arrived. `requests`: how many reads had been requested before.
    """

    number: int
    requests: int
    rows: Mapping[str, Versioned]
    at_ms: int


class RegistryView:
    """The slot map and the sessions as last read, and the calls that change them."""

    def __init__(
        self,
        registry: Registry,
        first_map: SlotMap,
        ttl_ms: int,
        clock_ms: Callable[[], int] = boot_ms,
    ) -> None:
        """`first_map` is written if there is none. `ttl_ms`: of this broker's sessions."""
        self.slot_map: SlotMap | None = None
        self.sessions: Mapping[int, BrokerSession] = {}
        self.lately_alive = LatelyAlive(LATELY_MS)
        self.ttl_ms = ttl_ms
        self.now_ms = clock_ms
        self.registry = registry
        self.outage = Outage(log, "the registry does not answer", "the registry answers again")
        self._first_map = first_map
        self._own: BrokerSession | None = None
        self._watch = SessionSightings()
        self._map_at: Versioned | None = None
        self._rows: dict[int, Versioned] = {}
        self._unsettled: Versioned | None = None
        """The version that the last write expected. While current, the write may take effect."""
        self._look = asyncio.Event()
        self._changed_ms = 0
        self._values: Mapping[str, Versioned] = {}
        self._readings = 0
        self._requests = 0
        self._seen_reading = 0
        self._kept: _Snapshot | None = None

    # Calls

    async def ask(self, call: Awaitable[_T]) -> _T:
        """Await a call to the registry. Raises `EngineError` also if the answer comes too late."""
        try:
            async with asyncio.timeout(self.ttl_ms / 1000 / _CALLS_PER_LEASE):
                return await call
        except TimeoutError as error:
            raise EngineError("the registry did not answer in time") from error

    async def put(self, key: str, expected: Versioned | None, value: str) -> Versioned | None:
        """Write a value of this broker alone; the value afterwards. Raises `EngineError`."""
        try:
            await self.ask(self.registry.compare_and_set(key, expected, value))
        except EngineError as error:
            log.debug("the outcome of writing %s is unknown; reading it: %s", key, error)
        return await self.ask(self.registry.get(key))

    async def renew(self, key: str, expected: Versioned, value: str) -> Versioned | None:
        """As `put`, once. All that is read is kept for the next look. Raises `EngineError`."""
        try:
            await self.ask(self.registry.attempt(key, expected, value))
        except EngineError as error:
            log.debug("the outcome of writing %s is unknown; reading it: %s", key, error)
        self._kept = await self._read()
        self._look.set()
        return self._kept.rows.get(key)

    # Reading

    async def refresh(self) -> None:
        """Read the slot map and the sessions.

        Raises `EngineError`, `MalformedState` and `WrongSlots`.
        """
        self._see(await self._read())
        if self.slot_map is None:
            found = await self.put(SLOTS_KEY, None, self._first_map.to_text())
            if found is not None:
                self._see_map(found)

    async def follow(self) -> None:
        """`refresh`, unless a renewal has read since a read was requested for the last time."""
        kept, self._kept = self._kept, None
        if kept is None or kept.requests < self._requests or self.slot_map is None:
            await self.refresh()
        elif kept.number > self._seen_reading:
            self._see(kept)

    async def _read(self) -> _Snapshot:
        self._readings += 1
        number, requests = self._readings, self._requests
        rows = await self.ask(self.registry.list(""))
        return _Snapshot(number, requests, rows, self.now_ms())

    def _see(self, reading: _Snapshot) -> None:
        before = self._state_of_affairs()
        self._seen_reading = reading.number
        self._values = reading.rows
        if SLOTS_KEY in reading.rows:
            self._see_map(reading.rows[SLOTS_KEY])
        of_sessions = {
            key: row for key, row in reading.rows.items() if key.startswith(SESSION_PREFIX)
        }
        self._see_sessions(of_sessions, reading.at_ms)
        if self._state_of_affairs() != before:
            self._changed_ms = reading.at_ms

    def value(self, key: str) -> Versioned | None:
        """Any key of the registry, as last read."""
        return self._values.get(key)

    def _see_map(self, found: Versioned) -> None:
        if self._map_at is not None and found.version <= self._map_at.version:
            return  # another server may lag behind
        slot_map = SlotMap.from_text(found.value)
        if len(slot_map.slots) != len(self._first_map.slots):
            raise WrongSlots(
                f"the cluster has {len(slot_map.slots)} slots, but the configuration has slots = "
                f"{len(self._first_map.slots)}: the number is fixed when a cluster is created"
            )
        self.slot_map = slot_map
        self._map_at = found

    def _see_sessions(self, found: Mapping[str, Versioned], now_ms: int) -> None:
        rows: dict[int, Versioned] = {}
        sessions: dict[int, BrokerSession] = {}
        for key, row in found.items():
            session_id = number_of_session(key.removeprefix(SESSION_PREFIX))
            known = self._rows.get(session_id)
            if known is not None and known.version >= row.version and session_id in self.sessions:
                rows[session_id], sessions[session_id] = known, self.sessions[session_id]
            else:
                rows[session_id] = row
                sessions[session_id] = BrokerSession.from_text(row.value)
        own = self._own
        if own is not None and not (
            own.session_id in sessions and sessions[own.session_id].is_over
        ):
            sessions[own.session_id] = own
        owners = self.owners()
        for session_id, session in sessions.items():
            if session_id in rows:
                version = rows[session_id].version
                self._watch.saw(session_id, version, session.ttl_ms, now_ms)
        for session_id in owners - sessions.keys() - {NOBODY}:
            self._watch.saw(session_id, None, self.ttl_ms, now_ms)
        self._watch.forget_all_but(sessions.keys() | owners)
        self.lately_alive.saw(sessions.values(), now_ms)
        self._rows, self.sessions = rows, sessions

    def set_own(self, session: BrokerSession | None) -> None:
        """Set the row of this broker's session after a renewal: no read has a newer one."""
        self._own = session
        if session is not None:
            self.sessions = {**self.sessions, session.session_id: session}

    def has_changed_within(self, limit_ms: int) -> bool:
        """Whether a slot or the state of a session was seen to change so lately."""
        return self.now_ms() - self._changed_ms < limit_ms

    def is_quiet(self) -> bool:
        """Whether all slots have owners, whose sessions are renewed, and nothing changes hands."""
        now_ms = self.now_ms()
        return (
            not self.has_changed_within(_QUIET_AFTER_MS)
            and self.owners() <= self.sessions.keys()
            and all(
                session.state is SessionState.LIVE
                and self._watch.unchanged_ms(session_id, now_ms) < session.ttl_ms / 2
                for session_id, session in self.sessions.items()
            )
        )

    def _state_of_affairs(self) -> object:
        sessions = {key: (one.state, one.away) for key, one in self.sessions.items()}
        return self.slot_map, sessions

    def owners(self) -> set[int]:
        """Sessions that own a slot; `NOBODY` is among them where a slot is free."""
        return set() if self.slot_map is None else {slot.owner for slot in self.slot_map.slots}

    def is_silent(self, session_id: int) -> bool:
        """Whether a session was not renewed in time; it is declared dead soon."""
        return self._watch.silent(session_id, self.now_ms())

    # Writing

    async def write_map(self, wanted: SlotMap) -> bool:
        """Replace the map that was last read; the next read, soon, shows whether that succeeded."""
        expected = self._map_at
        self._unsettled = expected
        call = self.registry.compare_and_set(SLOTS_KEY, expected, wanted.to_text())
        written = await self.ask(call)
        self.look_soon()
        return written

    @property
    def has_unsettled_write(self) -> bool:
        """Whether a write of the map whose outcome is unknown may still take effect."""
        return self._unsettled is not None and self._unsettled == self._map_at

    async def declare_dead(self, session_id: int, why: str) -> None:
        """Declare a session dead: its renewals fail from now on. Raises `EngineError`."""
        row = self._rows.get(session_id)
        session = self.sessions.get(session_id)
        if session is None:
            # An owner without a row. If the row can be created, no broker renews that session.
            session = BrokerSession(session_id, 0, "", 0, None, self.ttl_ms)
        dead = session.ended(SessionState.DEAD)
        call = self.registry.compare_and_set(session_key(session_id), row, dead.to_text())
        if await self.ask(call):
            node_id = session.node_id
            log.warning("session %d of node %d is declared dead: %s", session_id, node_id, why)
        self.look_now()

    async def delete_sessions(self, session_ids: Collection[int]) -> None:
        """Remove rows of sessions that are over and own nothing. Raises `EngineError`."""
        for session_id in session_ids:
            row = self._rows.get(session_id)
            if row is not None:
                await self.ask(self.registry.delete(session_key(session_id), row))

    # When the registry is read next

    def look_now(self) -> None:
        """Read the registry again at once."""
        self._requests += 1
        self._look.set()

    def look_soon(self) -> None:
        """Not quite at once, so that several brokers that write do not do so in step."""
        asyncio.get_running_loop().call_later(random.uniform(0, 0.02), self.look_now)

    def looking(self) -> None:
        """A read begins: only requests for a read from now on cause another one."""
        self._look.clear()

    async def next_look(self, within_s: float) -> None:
        """Returns when another read was requested, or after `within_s`."""
        await event_within(self._look, within_s)


def session_key(session_id: int) -> str:
    return f"{SESSION_PREFIX}{session_id}"


def number_of_session(text: str) -> int:
    """Raises `MalformedState`."""
    try:
        return int(text)
    except ValueError as error:
        raise MalformedState(
            f"a key in the registry is not the id of a session: {text!r}"
        ) from error
