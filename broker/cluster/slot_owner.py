"""A broker as an owner of slots: it joins the cluster, keeps its session and its slots, and leaves.

Who decides: broker/cluster/leases.py says what should be done (pure), broker/cluster/slot_phases.py
what follows for each slot (pure). broker/cluster/session.py keeps the session, and
broker/cluster/reconcile.py the phase of each slot; here they meet the clock. What must hold:

* The registry decides, never the outcome of a call: an answer may be lost, and a write may take
  effect later. So the registry is read again after every write, and one (slot, epoch) is served at
  most once: a broker that gave a slot up serves it again only under a new epoch.
* Three loops never wait for each other: the renewals, the check of the lease (by the clock, even
  while the registry hangs), and the poll, which decides and is the only one to write the slot map.
  Slow work (opening, giving up, fencing) runs in tasks of its own.
* The lease is checked after the slot map is read and before its compare-and-set.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import replace

from brokerhouse.broker.cluster.leases import SlotPlan, plan_slots
from brokerhouse.broker.cluster.reconcile import Fences, SlotPhases, SlotServing, Work
from brokerhouse.broker.cluster.registry_view import RegistryView
from brokerhouse.broker.cluster.session import OwnSession, RenewedSession, SessionOver
from brokerhouse.broker.slots.sessions import BrokerSession, SessionState
from brokerhouse.common.tasks import cancel, event_within
from brokerhouse.storage.engine import EngineError
from brokerhouse.storage.registry_values import MalformedState
from brokerhouse.storage.slot_map import SlotMap

log = logging.getLogger(__name__)

_RENEWALS_PER_LEASE = 5
_QUIET_POLL_S = 1.6
"""The registry is read at least so often while nothing changes hands: the renewals do it."""
_SURELY_NOT_QUIET_MS = 2_000
"""After a change that this broker saw so lately, no other broker has become quiet again."""


class SlotOwner:
    """This broker as an owner of slots: the loops that keep its session and its slots."""

    def __init__(
        self, view: RegistryView, session: OwnSession, server: SlotServing, poll_s: float = 0.25
    ) -> None:
        self._view = view
        self._session = session
        self._server = server
        self._poll_s = poll_s
        self._phases: SlotPhases | None = None
        self._fences = Fences(view, server)
        self._running: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._renew_now = asyncio.Event()
        self._leaving = False
        self._known_to_leave_ms: int | None = None
        self._others_look_often = False
        self._has_left = asyncio.Event()
        self._main: asyncio.Task[None] | None = None
        self._group: asyncio.TaskGroup | None = None

    @property
    def session_id(self) -> int:
        """0 before the first session and between two."""
        return self._session.session_id

    @property
    def slot_map(self) -> SlotMap | None:
        return self._view.slot_map

    @property
    def sessions(self) -> Mapping[int, BrokerSession]:
        return self._view.sessions

    def may_serve(self) -> bool:
        """Whether the current session may serve, by the clock, now. From any thread."""
        return self._session.may_serve()

    @property
    def background(self) -> Collection[asyncio.Task[None]]:
        """Runs until `leave`; ends earlier only on a bug, or if another broker has the node id."""
        return () if self._main is None else (self._main,)

    # Joining and leaving

    async def join(self) -> None:
        """Register; returns when the first session has begun and the slot map is known.

        Waits while the registry does not answer, and until an earlier session with this node id,
        whose broker was killed, is declared dead. Raises `NodeIdTaken` if that broker is alive, and
        `WrongSlots`.
        """
        self._main = asyncio.create_task(self._run(), name="slot owner")
        began = asyncio.create_task(self._session.has_begun.wait())
        try:
            await asyncio.wait((self._main, began), return_when=asyncio.FIRST_COMPLETED)
            if self._main.done():
                await self._main
        except asyncio.CancelledError:
            await cancel(self._main)
            raise
        finally:
            began.cancel()

    async def leave(self) -> None:
        """Hand every slot over, close the session and stop.

        Slots that cannot be handed over within the time-to-live stay with the session, which others
        will declare dead.
        """
        if self._main is None or self._main.done():
            return
        self._leaving = True
        self._others_look_often = self._view.has_changed_within(_SURELY_NOT_QUIET_MS)
        if self._phases is None:
            self._has_left.set()
        else:
            self._phases.begin_to_leave()
        self._renew_now.set()
        self._view.look_now()
        left = asyncio.create_task(self._has_left.wait())
        await asyncio.wait(
            (left, self._main),
            timeout=self._view.ttl_ms / 1000,
            return_when=asyncio.FIRST_COMPLETED,
        )
        left.cancel()
        session = self._session.current
        clean = self._has_left.is_set()
        if clean:
            self._session.end()  # no slot is held any more
        await cancel(self._main)
        if not self._main.cancelled():
            self._main.result()  # a bug
        if session is not None and clean:
            try:
                await self._session.close(session)
            except EngineError as error:
                log.warning(
                    "cannot close session %d, so the other brokers wait until it times out: %s",
                    session.session_id,
                    error,
                )
        elif session is not None:
            log.warning("session %d ended before it handed over all its slots", session.session_id)

    def end_session(self, session_id: int, why: str) -> None:
        """End a session because of a bug: a new one begins, and other brokers fence the old one."""
        if session_id == self.session_id:
            self._end(why)

    def _end(self, why: str) -> None:
        """End the current session, at once."""
        session = self._session.current
        if session is None:
            return
        if self._phases is not None and self._phases.slots:
            count = len(self._phases.slots)
            log.error("session %d has lost %d slots: %s", session.session_id, count, why)
        else:
            log.warning("session %d is over: %s", session.session_id, why)
        self._session.end()
        self._phases = None
        for task in self._running:
            task.cancel()
            self._ending.add(task)
        self._fences.stop()
        self._server.abandon_slots()
        if self._leaving:
            self._has_left.set()

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
        """End the session when its lease has run out, even if the registry hangs."""
        while True:
            session = self._session.current
            if session is None:
                await self._session.has_begun.wait()
                continue
            left_ms = session.lease.ends_ms - self._view.now_ms()
            if left_ms > 0:
                await asyncio.sleep(min(left_ms / 1000, self._poll_s))
            elif not session.is_over:
                self._end("its lease ran out")

    async def _renewals(self) -> None:
        every_ms = self._view.ttl_ms / _RENEWALS_PER_LEASE
        while True:
            await self._session.has_begun.wait()
            session = self._session.current
            if session is None:
                continue
            due_ms = max(session.lease.sent_ms + every_ms - self._view.now_ms(), every_ms / 4)
            await event_within(self._renew_now, due_ms / 1000)
            self._renew_now.clear()
            if session.is_over:
                continue
            try:
                await self._session.renew(session, self._server, leaving=self._leaving)
            except SessionOver as over:
                self._end(str(over))
            except EngineError as error:
                self._view.outage.failed(error)

    async def _poll(self) -> None:
        while True:
            self._view.looking()
            pause_s = self._poll_s
            try:
                await self._look()
                if self._is_quiet():
                    pause_s = max(pause_s, _QUIET_POLL_S)
            except SessionOver as over:
                self._end(str(over))
            except EngineError as error:
                self._view.outage.failed(error)
            except MalformedState as error:
                log.error("no slot can change its owner: %s", error)
            else:
                self._view.outage.worked()
            await self._view.next_look(pause_s)

    def _is_quiet(self) -> bool:
        return self._session.current is not None and not self._leaving and self._view.is_quiet()

    # One look at the registry, and what follows

    async def _look(self) -> None:
        await self._view.follow()
        self._session.check_not_declared_dead()
        self._fences.forget_gone()
        session, phases = self._session.current, self._phases
        decided = self._decided()
        for session_id in decided.dead:
            await self._view.declare_dead(session_id, "not renewed in time")
        if session is None or phases is None:
            await self._begin()
        elif not session.is_over:
            self._session.check_no_older_twin()
            await self._follow_the_map(session, phases, decided)

    def _decided(self) -> SlotPlan:
        view = self._view
        assert view.slot_map is not None
        decided = plan_slots(
            self.session_id,
            view.slot_map,
            view.sessions,
            # Owners without a row as well.
            [one for one in view.sessions.keys() | view.owners() if view.is_silent(one)],
            self._server.reachable_shards(),
            [] if self._phases is None else self._phases.releasing,
        )
        return decided if self._others_expect_slots() else replace(decided, release=())

    def _others_expect_slots(self) -> bool:
        """Whether the others have seen that this broker leaves: now they look for free slots often.

        Until then it keeps its slots, which would be without an owner for longer.
        """
        session = self._session.current
        if session is None or not session.others_know_that_it_leaves:
            return True
        now_ms = self._view.now_ms()
        if self._known_to_leave_ms is None:
            self._known_to_leave_ms = now_ms
        alone = all(one.state is not SessionState.LIVE for one in self._view.sessions.values())
        return (
            alone
            or self._others_look_often
            or now_ms - self._known_to_leave_ms > _QUIET_POLL_S * 1000
        )

    async def _begin(self) -> None:
        if self._leaving or self._ending:
            return
        session = await self._session.begin(self._server)
        if session is not None:
            self._phases = SlotPhases(session, self._view, self._server, self._fences)

    async def _follow_the_map(
        self, session: RenewedSession, phases: SlotPhases, decided: SlotPlan
    ) -> None:
        slot_map = self._view.slot_map
        assert slot_map is not None
        wanted, work = phases.reconcile(slot_map, decided)
        for one in work:
            self._start(session, one)
        must_settle = self._leaving and self._view.has_unsettled_write
        if wanted != slot_map or decided.forget or must_settle:
            if not session.may_serve():
                raise SessionOver("its lease ran out")
            if await self._view.write_map(wanted):
                # The map is known to be the latest, and none of these can write it any more: they
                # were over before. So nothing will ever ask for their rows.
                await self._view.delete_sessions(decided.forget)
        if self._leaving and not session.is_over and self._is_empty(session, phases):
            self._has_left.set()

    def _is_empty(self, session: RenewedSession, phases: SlotPhases) -> bool:
        """Whether this leaving broker has handed over all its slots, and others own them."""
        slot_map = self._view.slot_map
        assert slot_map is not None
        if phases.slots or slot_map.of(session.session_id):
            return False
        if not session.others_know_that_it_leaves:
            return False
        if self._view.has_unsettled_write:
            return False  # a pending claim must not take effect after this broker has left
        others = any(one.state is SessionState.LIVE for one in self._view.sessions.values())
        reachable = set(self._server.reachable_shards())
        waiting = phases.handed_over_to_nobody(slot_map)
        return not (others and any(reachable.issuperset(slot.shards) for slot in waiting))

    def _start(self, session: RenewedSession, work: Work) -> None:
        """Start a task in the group. If a bug ends it, all tasks of the group end."""
        assert self._group is not None
        task = self._group.create_task(self._working(session, work))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(self._ending.discard)
        task.add_done_callback(lambda _: self._view.look_now())

    async def _working(self, session: RenewedSession, work: Work) -> None:
        try:
            await work()
        except SessionOver as over:
            self.end_session(session.session_id, str(over))
