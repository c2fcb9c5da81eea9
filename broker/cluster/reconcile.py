"""Brings the slots of this broker in line with the slot map, and works out the next slot map.

One direction: `SlotPhases.reconcile` looks at the map and at the plan (broker/cluster/leases.py),
asks the tables of broker/cluster/slot_phases.py what follows, and returns the map to write and the
work to start. The work calls `SlotServing`; how it ended is an event of the same tables.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from brokerhouse.broker.cluster.leases import SlotPlan
from brokerhouse.broker.cluster.registry_view import RegistryView
from brokerhouse.broker.cluster.session import RenewedSession, SessionOver
from brokerhouse.broker.cluster.slot_phases import (
    FenceAction,
    FenceEvent,
    FencePhase,
    SlotAction,
    SlotEvent,
    SlotPhase,
    after_event,
    after_fence_event,
)
from brokerhouse.broker.slots.sessions import BrokerReport, BrokerSession
from brokerhouse.storage.engine import EngineError
from brokerhouse.storage.slot_map import NOBODY, Slot, SlotMap

log = logging.getLogger(__name__)

_RETRY_MS = 1_000
"""Pause between two attempts when the engine refused one."""

_WHY_LOST = {
    SlotEvent.NOT_OURS: "another session owns slot {} now",
    SlotEvent.NEW_EPOCH: "slot {} has an epoch that this session did not claim",
    SlotEvent.OLD_EPOCH: "slot {} has an epoch that this session did not claim",
}

Work = Callable[[], Coroutine[None, None, None]]


class SlotServing(Protocol):
    """Opens and closes slots. `EngineError` is expected; any error but that and `SessionOver` is a
    bug.
    """

    def report(self) -> BrokerReport:
        """What the other brokers should know; called right before each renewal."""

    def reachable_shards(self) -> Collection[str]:
        """The shards that answer this broker."""

    async def fence_session(self, session: BrokerSession, shard: str) -> None:
        """No insert of a dead session is stored on this shard any more. Raises `EngineError`."""

    async def serve_slots(self, session: RenewedSession, slots: Mapping[int, Slot]) -> None:
        """Start serving slots that this session owns. All write to the same shard.

        If it raises `EngineError`, it serves none of them, and is called again, or `give_up_slots`.
        """

    async def give_up_slots(self, slots: Collection[int]) -> None:
        """Stop serving these slots; returns when none of their appends is in flight.

        Some may be slots that `serve_slots` refused. Raises `SessionOver` if it takes too
        long, or if an insert may still be under way.
        """

    def abandon_slots(self) -> None:
        """The session is over: serve nothing, abandon what is in flight."""


@dataclass(slots=True)
class _OwnSlot:
    """A slot that the session owns under one epoch, from the first look at it to the last."""

    slot: Slot
    phase: SlotPhase = SlotPhase.NEW
    retry_ms: int = 0


@dataclass(slots=True)
class _Fence:
    phase: FencePhase = FencePhase.NEEDED
    retry_ms: int = 0


class Fences:
    """Which dead sessions are fenced on which shards. Outlives sessions of this broker."""

    def __init__(self, view: RegistryView, server: SlotServing) -> None:
        self._view = view
        self._server = server
        self._fences: dict[tuple[int, str], _Fence] = {}

    def want(self, session_id: int, shard: str) -> FenceAction | None:
        """What to do before this broker claims a slot that this session may still write to."""
        fence = self._fences.setdefault((session_id, shard), _Fence())
        due = fence.phase is FencePhase.REFUSED and self._view.now_ms() >= fence.retry_ms
        event = FenceEvent.RETRY_DUE if due else FenceEvent.WANTED
        fence.phase, action = after_fence_event(fence.phase, event)
        return action

    async def fence(self, session: BrokerSession, shard: str) -> None:
        """Perform `FenceAction.FENCE`."""
        fence = self._fences[session.session_id, shard]
        event = FenceEvent.FAILED
        try:
            await self._server.fence_session(session, shard)
        except EngineError as error:
            log.warning("cannot fence session %d on shard %s: %s", session.session_id, shard, error)
        else:
            event = FenceEvent.SUCCEEDED
        fence.retry_ms = self._view.now_ms() + _RETRY_MS
        fence.phase, _ = after_fence_event(fence.phase, event)

    def stop(self) -> None:
        """The session of this broker is over: cancel its fences; the next one starts them anew."""
        self._fences = {
            key: one for key, one in self._fences.items() if one.phase is FencePhase.FENCED
        }

    def forget_gone(self) -> None:
        """Forget sessions without a row: their slots have other owners."""
        sessions = self._view.sessions
        self._fences = {key: one for key, one in self._fences.items() if key[0] in sessions}


@dataclass(slots=True, eq=False)
class SlotPhases:
    """The slots that one session of this broker owns, each with its phase."""

    _session: RenewedSession
    _view: RegistryView
    _server: SlotServing
    _fences: Fences
    _slots: dict[int, _OwnSlot] = field(default_factory=dict, init=False)
    _handed_over: set[int] = field(default_factory=set, init=False)

    @property
    def slots(self) -> Collection[int]:
        """Slots that are served, being opened or being given up."""
        return self._slots.keys()

    @property
    def releasing(self) -> list[int]:
        return self._in_phases(SlotPhase.GIVING_UP, SlotPhase.GIVEN_UP)

    def reconcile(self, slot_map: SlotMap, decided: SlotPlan) -> tuple[SlotMap, Sequence[Work]]:
        """The slot map to write, and the work to start. Raises `SessionOver`."""
        mine = slot_map.of(self._session.session_id)
        self._see_what_was_lost(mine)
        actions = self._see_what_is_ours(mine, decided)
        claimed, fences = self._see_what_is_free(slot_map, decided)
        wanted = slot_map.release(
            sorted(_picked(actions, SlotAction.HAND_OVER)), self._session.session_id
        ).claim(sorted(_picked(actions, SlotAction.CLAIM)) + claimed, self._session.session_id)
        opening = self._by_shard(_picked(actions, SlotAction.OPEN))
        giving_up = self._by_shard(_picked(actions, SlotAction.GIVE_UP))
        return wanted, [
            *(partial(self._open, slots) for slots in opening),
            *(partial(self._give_up, slots) for slots in giving_up),
            *(
                partial(self._fences.fence, self._view.sessions[session_id], shard)
                for session_id, shard in sorted(fences)
            ),
        ]

    def _see_what_was_lost(self, mine: Mapping[int, Slot]) -> None:
        for number, own in self._slots.items():
            if number not in mine:
                self._happens(number, SlotEvent.NOT_OURS)
            elif mine[number].epoch > own.slot.epoch:
                self._happens(number, SlotEvent.NEW_EPOCH)
            elif mine[number].epoch < own.slot.epoch:
                self._happens(number, SlotEvent.OLD_EPOCH)
        done = self._in_phases(SlotPhase.DONE)
        gone = [number for number in done if number not in mine]
        if gone:
            log.info("session %d has handed over %s", self._session.session_id, _shown(gone))
        self._handed_over.update(gone)
        for number in done:
            del self._slots[number]

    def _see_what_is_ours(
        self, mine: Mapping[int, Slot], decided: SlotPlan
    ) -> Mapping[int, SlotAction | None]:
        actions: dict[int, SlotAction | None] = {}
        for number, slot in mine.items():
            own = self._slots.setdefault(number, _OwnSlot(slot))
            if number in decided.release:
                event = SlotEvent.RELEASE
            elif slot.behind:
                event = SlotEvent.MOVED
            elif own.phase is SlotPhase.REFUSED and self._view.now_ms() >= own.retry_ms:
                event = SlotEvent.RETRY_DUE
            else:
                event = SlotEvent.KEEP
            actions[number] = self._happens(number, event)
        return actions

    def _see_what_is_free(
        self, slot_map: SlotMap, decided: SlotPlan
    ) -> tuple[list[int], set[tuple[int, str]]]:
        """Slots to claim, which are free or whose owner is fenced; and what to fence first."""
        claimed: list[int] = []
        fences: set[tuple[int, str]] = set()
        for number in decided.claim:
            slot = slot_map.slots[number]
            if slot.owner == NOBODY:
                claimed.append(number)
                continue
            action = self._fences.want(slot.owner, slot.writes_to)
            if action is FenceAction.CLAIM:
                claimed.append(number)
            elif action is FenceAction.FENCE:
                fences.add((slot.owner, slot.writes_to))
        former = Counter(slot_map.slots[number].owner for number in claimed)
        for session_id, count in former.items():
            from_whom = "no session" if session_id == NOBODY else f"session {session_id}"
            log.info("session %d claims %d slots of %s", self._session.session_id, count, from_whom)
        return claimed, fences

    def _happens(self, number: int, event: SlotEvent) -> SlotAction | None:
        """Raises `SessionOver`."""
        own = self._slots[number]
        own.phase, action = after_event(own.phase, event)
        if action is SlotAction.END_SESSION:
            raise SessionOver(_WHY_LOST[event].format(number))
        return action

    def _in_phases(self, *phases: SlotPhase) -> list[int]:
        return [number for number, own in self._slots.items() if own.phase in phases]

    def begin_to_leave(self) -> None:
        """From now on, a slot that is handed over must find an owner before this broker stops."""
        self._handed_over.clear()

    def handed_over_to_nobody(self, slot_map: SlotMap) -> list[Slot]:
        """Slots that were handed over since this broker began to leave, and have no owner yet."""
        slots = (slot_map.slots[number] for number in self._handed_over)
        return [slot for slot in slots if slot.owner == NOBODY]

    def _by_shard(self, numbers: Iterable[int]) -> list[dict[int, Slot]]:
        """The slots grouped by shard, so that a slow shard does not delay the others."""
        found: dict[str, dict[int, Slot]] = {}
        for number in numbers:
            slot = self._slots[number].slot
            found.setdefault(slot.writes_to, {})[number] = slot
        return list(found.values())

    # The work

    async def _open(self, slots: Mapping[int, Slot]) -> None:
        began_ms = self._view.now_ms()
        event = SlotEvent.OPENED
        try:
            await self._server.serve_slots(self._session, slots)
        except EngineError as error:
            log.warning("cannot serve %s yet: %s", _shown(slots), error)
            event = SlotEvent.OPEN_FAILED
        else:
            log.info("serving %s after %d ms", _shown(slots), self._view.now_ms() - began_ms)
        for number in slots:
            self._slots[number].retry_ms = self._view.now_ms() + _RETRY_MS
            self._happens(number, event)

    async def _give_up(self, slots: Mapping[int, Slot]) -> None:
        await self._server.give_up_slots(list(slots))
        for number in slots:
            self._happens(number, SlotEvent.HAS_GIVEN_UP)


def _picked(actions: Mapping[int, SlotAction | None], action: SlotAction) -> list[int]:
    return [number for number, one in actions.items() if one is action]


def _shown(numbers: Collection[int]) -> str:
    return f"slot {min(numbers)}" if len(numbers) == 1 else f"{len(numbers)} slots"
