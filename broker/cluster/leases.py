"""Leases of sessions, and the plan of what each broker of a cluster should own. Pure.

No IO, no asyncio, no storage. The clock is an argument: milliseconds that only go forward, also
while the machine sleeps (CLOCK_BOOTTIME). What must hold, and what the model in
tests/unit/test_lease_model.py checks:

* A broker serves only while its `SessionLease` is valid: counted from before its renewal was sent.
* Other brokers may declare a session dead only when its row has been `silent` for longer than that
  by their own clock: `DRIFT` is how much faster one clock may run than another. (NTP changes the
  rate of a clock by 1 in 2,000 at most.)
* A slot changes hands only after its old owner has released it, or is dead and fenced on the shard
  that it may still write to (`Slot.writes_to`). The epoch grows with every owner, and an epoch that
  was given up is never served again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from hashlib import blake2b

from brokerhouse.broker.slots.sessions import BrokerSession, SessionState
from brokerhouse.storage.slot_map import NOBODY, Slot, SlotMap

DRIFT = Fraction(21, 20)
"""A session may be declared dead when its row is unchanged for this many times its time-to-live."""


@dataclass(frozen=True, slots=True)
class SessionLease:
    """How long a broker may serve, by its own clock, after the renewals that were accepted."""

    ttl_ms: int
    sent_ms: int

    def renewed(self, sent_ms: int) -> SessionLease:
        """A renewal that was sent at `sent_ms` was accepted, whenever its answer arrived."""
        return replace(self, sent_ms=max(self.sent_ms, sent_ms))

    @property
    def ends_ms(self) -> int:
        return self.sent_ms + self.ttl_ms

    def valid(self, now_ms: int) -> bool:
        return now_ms < self.ends_ms


@dataclass(frozen=True, slots=True)
class _Sighting:
    version: int | None
    since_ms: int
    ttl_ms: int


class SessionSightings:
    """What one observer has seen of sessions: the version of each row, and since when."""

    def __init__(self) -> None:
        self._seen: dict[int, _Sighting] = {}

    def saw(self, session_id: int, version: int | None, ttl_ms: int, now_ms: int) -> None:
        """Note a version of the row. `now_ms`: after the answer arrived: the row may be so new.

        The version of a row that does not exist is None; its `ttl_ms` is a guess.
        """
        before = self._seen.get(session_id)
        if before is None or before.version != version:
            self._seen[session_id] = _Sighting(version, now_ms, ttl_ms)

    def silent(self, session_id: int, now_ms: int) -> bool:
        """Whether no renewal was seen for so long that its own clock has ended the lease."""
        seen = self._seen.get(session_id)
        return seen is not None and now_ms - seen.since_ms >= seen.ttl_ms * DRIFT

    def unchanged_ms(self, session_id: int, now_ms: int) -> int:
        """For how long the row has been as it is."""
        seen = self._seen.get(session_id)
        return 0 if seen is None else now_ms - seen.since_ms

    def forget_all_but(self, session_ids: Collection[int]) -> None:
        self._seen = {key: seen for key, seen in self._seen.items() if key in session_ids}


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """What one session should do now. A compare-and-set decides whether it happens."""

    release: tuple[int, ...] = ()
    claim: tuple[int, ...] = ()
    """In order of preference. An owner of such a slot has to be fenced first."""
    dead: tuple[int, ...] = ()
    forget: tuple[int, ...] = ()


def plan_slots(
    me: int,
    slot_map: SlotMap,
    sessions: Mapping[int, BrokerSession],
    silent: Collection[int],
    reachable: Collection[str],
    releasing: Collection[int] = (),
) -> SlotPlan:
    """What session `me` should release, claim, declare dead and forget.

    `silent`: sessions, and owners without a row, that were not renewed in time. `reachable`:
    the shards that answer this broker. `releasing`: slots that it is giving up already.

    Each live session gets the same number of slots, or one more, and no slot moves without need.
    A slot goes to a session that has enough if it can reach the slot's shards and no session with
    room can.
    """
    mine = sessions.get(me)
    owners = {slot.owner for slot in slot_map.slots} - {NOBODY}
    over = {key for key, session in sessions.items() if session.is_over}
    live = {key: one for key, one in sessions.items() if one.state is SessionState.LIVE}
    dead = tuple(
        sorted(
            key
            for key in set(silent) - over - {me}
            if key in sessions or key in owners  # an owner without a row: nobody renews that
        )
    )
    if mine is None or mine.is_over:
        return SlotPlan(dead=dead)
    if mine.state is SessionState.LEAVING:
        return SlotPlan(release=tuple(slot_map.of(me)), dead=dead)
    free = [
        number
        for number, slot in enumerate(slot_map.slots)
        if slot.owner == NOBODY or slot.owner in over
    ]
    share = _Share(me, slot_map, live, free, _rooms(slot_map, live), reachable)
    return SlotPlan(
        release=share.releases(releasing),
        claim=share.claims(),
        dead=dead,
        forget=tuple(sorted(over - owners)) if me == min(live) else (),
    )


def _rooms(slot_map: SlotMap, live: Mapping[int, BrokerSession]) -> dict[int, int]:
    """How many slots each live session lacks; negative: how many it has too many.

    If the slots cannot be shared evenly, the sessions with the most keep one more: none moves.
    """
    owned = {key: len(slot_map.of(key)) for key in live}
    each, odd = divmod(len(slot_map.slots), len(live))
    in_order = sorted(live, key=lambda key: (-owned[key], key))
    return {key: each + (place < odd) - owned[key] for place, key in enumerate(in_order)}


def _reaches(session: BrokerSession, slot: Slot) -> bool:
    """Whether the session's broker knows all shards of the slot, and they answer it."""
    return session.lanes.keys() >= set(slot.shards) and session.away.isdisjoint(slot.shards)


def _rank(session: BrokerSession, number: int, others: Iterable[BrokerSession]) -> int:
    """How many of the others come first for this slot: every broker works out the same order."""
    mine = _weight(session, number)
    return sum(_weight(other, number) > mine for other in others)


def _weight(session: BrokerSession, number: int) -> bytes:
    return blake2b(f"{session.node_id}/{number}".encode(), digest_size=8).digest()


@dataclass(frozen=True, slots=True)
class _Share:
    """The data from which session `me` works out its share of the slots.

    `free`: slots without an owner. `room`: how many slots each live session lacks.
    """

    me: int
    slot_map: SlotMap
    live: Mapping[int, BrokerSession]
    free: Sequence[int]
    room: Mapping[int, int]
    reachable: Collection[str]

    def claims(self) -> tuple[int, ...]:
        """Free slots as far as there is room; then those that nobody with room can serve."""
        slots, mine, room = self.slot_map.slots, self.live[self.me], self.room[self.me]
        within = [one for one in self.free if set(slots[one].shards) <= set(self.reachable)]
        others = [session for key, session in self.live.items() if key != self.me]
        ranks = {number: _rank(mine, number, others) for number in within}
        within.sort(key=lambda number: (ranks[number], number))
        taken, left = within[: max(room, 0)], within[max(room, 0) :]
        for number in left:
            able = [session for session in others if _reaches(session, slots[number])]
            if any(self.room[session.session_id] > 0 for session in able):
                continue
            if _rank(mine, number, able) == 0:
                taken.append(number)
        return tuple(taken)

    def releases(self, releasing: Collection[int]) -> tuple[int, ...]:
        """Slots that `me` cannot serve and another can; then surplus slots that others lack."""
        mine = self.slot_map.of(self.me)
        others = {key: session for key, session in self.live.items() if key != self.me}
        released = [
            number
            for number, slot in mine.items()
            if slot.shards[-1] not in self.reachable
            and any(_reaches(session, slot) for session in others.values())
        ]
        wanting = [key for key in others if self.room[key] > 0]
        wanted = sum(self.room[key] for key in wanting) - sum(
            any(_reaches(others[key], self.slot_map.slots[number]) for key in wanting)
            for number in self.free
        )
        count = min(-self.room[self.me] - len(released), wanted)
        if count <= 0:
            return tuple(released)
        ranks = {number: _rank(self.live[self.me], number, others.values()) for number in mine}
        for number in sorted(mine, key=lambda one: (one not in releasing, -ranks[one], one)):
            can_go = any(_reaches(others[key], mine[number]) for key in wanting)
            if count and can_go and number not in released:
                released.append(number)
                count -= 1
        return tuple(sorted(released))
