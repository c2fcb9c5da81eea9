"""The session of this broker: it begins, is renewed, ends, and is closed.

What must hold:

* A session may serve only while its lease is valid by this broker's own clock, counted from
  the moment before it sent the last renewal that was accepted.
* Nothing but this broker renews its row. Whether a write succeeded is found out by reading the row.
* Two brokers with one node id never serve at the same time for long: the one that began later, or
  finds the other alive, stops with `NodeIdTaken`.

Code that finds that the session cannot continue raises `SessionOver` or calls `OwnSession.end`.
When this happens, and the log line that says why: slot_owner.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

from brokerhouse.broker.cluster.leases import SessionLease
from brokerhouse.broker.cluster.registry_view import RegistryView, session_key
from brokerhouse.broker.log.fence import SESSION_DAYS
from brokerhouse.broker.slots.sessions import BrokerReport, BrokerSession, SessionState
from brokerhouse.broker.start_error import StartError
from brokerhouse.common.clock import DAY_MS
from brokerhouse.storage.registry import Versioned
from brokerhouse.storage.registry_values import MalformedState
from brokerhouse.storage.slot_map import NOBODY, SlotMap

log = logging.getLogger(__name__)

NEXT_SESSION_KEY = "next_session_id"

_TWIN_RENEWALS = 2
"""A row may still change once after its broker was killed: a renewal that was in flight."""

_OWN_SESSIONS_KEPT = 64


class NodeIdTaken(StartError):
    """Another live broker has the same node id."""


class SessionOver(Exception):
    """This broker's session cannot continue; the message says why."""


class Reporter(Protocol):
    def report(self) -> BrokerReport:
        """What the other brokers should know; called right before each renewal."""


@dataclass(slots=True, eq=False)
class RenewedSession:
    """One session of this broker, from its start to its end.

    Code that may outlive the session keeps this object and does not ask for the current session: an
    insert of an old session must not be answered under a new one.
    """

    view: RegistryView
    row: BrokerSession
    at: Versioned
    lease: SessionLease
    attempt: BrokerSession
    sent_ms: dict[str, int] = field(default_factory=dict)
    """Renewals whose outcome is unknown. All expect the same version, so at most one succeeds."""
    is_over: bool = False
    is_fenced: ClassVar[bool] = True

    @property
    def session_id(self) -> int:
        return self.row.session_id

    def may_serve(self) -> bool:
        """Whether this session may serve, by the clock, now. From any thread."""
        return not self.is_over and self.lease.valid(self.view.now_ms())

    def days(self, shard: str) -> range:
        """Days since 1970 of which this session may write rows there: a fence covers them.

        Worked out from its row in the registry, which is all that a fence knows.
        """
        floor_ms = self.row.append_floors.get(shard)
        if floor_ms is None:
            return range(0)
        return range(floor_ms // DAY_MS, floor_ms // DAY_MS + SESSION_DAYS)

    @property
    def others_know_that_it_leaves(self) -> bool:
        return self.row.state is SessionState.LEAVING


class OwnSession:
    """The session of this broker that is current, if there is one."""

    def __init__(self, view: RegistryView, broker: BrokerSession, first_session_id: int) -> None:
        """`broker`: node id, address and time-to-live; its session id and state do not matter.

        `first_session_id`: where ids begin if the registry knows of none. It should be higher than
        any id that an earlier registry, now lost, can have assigned: engines would drop the blocks
        of a session with an old id as duplicates.
        """
        self.current: RenewedSession | None = None
        self.has_begun = asyncio.Event()
        self.begun = 0
        """How many sessions have begun since the start."""
        self._view = view
        self._broker = broker
        self._first_session_id = first_session_id
        self._own_ids: deque[int] = deque(maxlen=_OWN_SESSIONS_KEPT)
        self._twin_renewals: dict[int, int] = {}

    @property
    def session_id(self) -> int:
        """0 before the first session and between two."""
        return 0 if self.current is None else self.current.session_id

    def may_serve(self) -> bool:
        """Whether the current session may serve, by the clock, now. From any thread."""
        session = self.current
        return session is not None and session.may_serve()

    def is_housekeeper(self, shard: str) -> bool:
        """Whether this broker does what one broker has to do for the whole shard."""
        slot_map = self._view.slot_map
        return slot_map is not None and housekeeper_of(slot_map, shard) == self.session_id != NOBODY

    # Beginning

    async def begin(self, reporter: Reporter) -> RenewedSession | None:
        """Register. None: not possible yet; read the registry again, then retry.

        Raises `EngineError`, `MalformedState` and `NodeIdTaken`.
        """
        if not await self._has_no_twin():
            return None
        session_id = await self._new_session_id()
        if session_id is None:
            return None
        self._own_ids.append(session_id)
        sent_ms = self._view.now_ms()
        row = replace(self._broker, session_id=session_id)
        row = row.renewed(SessionState.LIVE, reporter.report())
        found = await self._view.put(session_key(session_id), None, row.to_text())
        if found is None or found.value != row.to_text():
            return None
        await self._view.refresh()
        if self._older_twin(session_id) is not None:
            await self._view.ask(self._view.registry.delete(session_key(session_id), found))
            return None
        lease = SessionLease(self._broker.ttl_ms, sent_ms)
        session = RenewedSession(self._view, row, found, lease, row)
        if not session.may_serve():
            return None
        self.current = session
        self.begun += 1
        self.has_begun.set()
        self._view.set_own(row)
        log.info("session %d of node %d has begun", session_id, row.node_id)
        self._view.look_now()
        return session

    async def _new_session_id(self) -> int | None:
        """None if another broker got this id; an id may be lost, but is never given twice."""
        registry = self._view.registry
        found = await self._view.ask(registry.get(NEXT_SESSION_KEY))
        session_id = self._first_session_id if found is None else _next_id(found)
        call = registry.compare_and_set(NEXT_SESSION_KEY, found, str(session_id + 1))
        if await self._view.ask(call):
            return session_id
        self._view.look_soon()
        return None

    # Twins: other brokers with the same node id, or an earlier process of this one

    def check_no_older_twin(self) -> None:
        """Raises `NodeIdTaken` if a broker with this node id began before this one and is alive."""
        if self.current is not None and (twin := self._older_twin(self.session_id)) is not None:
            raise self._taken_by(twin)

    def _older_twin(self, session_id: int) -> BrokerSession | None:
        return next((twin for twin in self._twins() if twin.session_id < session_id), None)

    def _twins(self) -> list[BrokerSession]:
        return [
            session
            for session_id, session in self._view.sessions.items()
            if session.node_id == self._broker.node_id
            and not session.is_over
            and session_id not in self._own_ids
        ]

    async def _has_no_twin(self) -> bool:
        """Raises `NodeIdTaken` if a twin is alive; a twin that is not is declared dead in time."""
        for session_id in self._own_ids:
            session = self._view.sessions.get(session_id)
            if session is not None and not session.is_over:
                # This broker knows that the session is over: nobody has to wait for the time-out.
                await self._view.declare_dead(session_id, "it is an earlier session of this broker")
        twins = self._twins()
        for twin in twins:
            first = self._twin_renewals.get(twin.session_id)
            if first is None:
                self._twin_renewals = {twin.session_id: twin.renewals}
                log.info("waiting until session %d of this node id has ended", twin.session_id)
            elif twin.state is SessionState.LIVE and twin.renewals >= first + _TWIN_RENEWALS:
                raise self._taken_by(twin)
        return not twins

    def _taken_by(self, twin: BrokerSession) -> NodeIdTaken:
        return NodeIdTaken(
            f"node id {twin.node_id} is used by the broker at {twin.host}:{twin.port}, which runs"
            f" (session {twin.session_id}): give each broker its own node id"
        )

    # Renewing and ending

    async def renew(self, session: RenewedSession, reporter: Reporter, *, leaving: bool) -> None:
        """Send a renewal. Raises `EngineError`, and `SessionOver` if others declared it dead."""
        state = SessionState.LEAVING if leaving else SessionState.LIVE
        session.attempt = session.attempt.renewed(state, reporter.report())
        text = session.attempt.to_text()
        session.sent_ms[text] = self._view.now_ms()
        found = await self._view.renew(session_key(session.session_id), session.at, text)
        if session.is_over or found is None or found.version <= session.at.version:
            return  # not accepted yet; without a row the lease decides
        if found.value not in session.sent_ms:
            raise SessionOver("another broker has declared it dead")
        knew = session.others_know_that_it_leaves
        session.lease = session.lease.renewed(session.sent_ms[found.value])
        session.at, session.row = found, BrokerSession.from_text(found.value)
        session.sent_ms.clear()
        self._view.set_own(session.row)
        if session.others_know_that_it_leaves and not knew:
            self._view.look_now()

    def check_not_declared_dead(self) -> None:
        """Raises `SessionOver` if the session is over in the registry as last read."""
        mine = self._view.sessions.get(self.session_id)
        if mine is not None and mine.is_over:
            raise SessionOver("another broker has declared it dead")

    def end(self) -> None:
        """The current session is over, at once: its `may_serve` is false for ever."""
        if self.current is not None:
            self.current.is_over = True
            self.current = None
            self.has_begun.clear()
            self._view.set_own(None)
            self._view.look_now()

    async def close(self, session: RenewedSession) -> None:
        """Remove the row of a session that has ended and owns nothing.

        A row that stays does no harm: the others declare it dead. Raises `EngineError`.
        """
        key = session_key(session.session_id)
        found = await self._view.ask(self._view.registry.get(key))
        if found is None or found.value not in {session.at.value, *session.sent_ms}:
            return
        closed = session.attempt.ended(SessionState.CLOSED).to_text()
        found = await self._view.put(key, found, closed)
        if found is not None and found.value == closed:
            await self._view.ask(self._view.registry.delete(key, found))
            log.info("session %d is closed", session.session_id)


def housekeeper_of(slot_map: SlotMap, shard: str) -> int | None:
    """The session that does the housekeeping of a shard: the owner of its first slot.

    If all slots were moved away, of the first that was on it: the shard still has old rows.
    """
    here = [slot for slot in slot_map.slots if slot.shards[-1] == shard]
    been = [slot for slot in slot_map.slots if shard in slot.shards]
    return next((slot.owner for slot in here or been), None)


def _next_id(found: Versioned) -> int:
    try:
        return int(found.value)
    except ValueError as error:
        raise MalformedState(
            f"the next session id in the registry is not a number: {found.value!r}"
        ) from error
