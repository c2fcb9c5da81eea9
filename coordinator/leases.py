"""Who leads what in a cluster: sessions, slots, epochs, and the decisions about them. Pure.

No IO, no asyncio, no storage; the clock is an argument (milliseconds that only go forward, standing
still for nobody: CLOCK_BOOTTIME). What must hold, and what the model in
tests/unit/test_lease_model.py checks:

* A broker serves only while its `Lease` is valid: counted from before its renewal was sent.
* Others may call a session dead only when its row has been `silent` for longer than that by their
  own clock: `DRIFT` is how much faster one clock may go than another.
* A slot changes hands only after its old owner has released it, or is dead and fenced on the shard
  that it may still write to (`Slot.writes_to`). The epoch grows with every owner, and an epoch that
  was given up is never served again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from fractions import Fraction
from hashlib import blake2b
from typing import Any
from uuid import UUID
from zlib import crc32

NOBODY = 0
"""The owner of a slot that nobody serves. Session ids begin at 1."""

DRIFT = Fraction(5, 4)
"""A row has to be unchanged for this many times its time-to-live before its session is dead."""

_GOLDEN_STEP = 2654435769
"""2**32 divided by the golden ratio: multiples of it, modulo 2**32, lie evenly at every length."""


def slot_of_partition(topic_id: UUID, partition: int, slots: int) -> int:
    """The slot of a partition, for ever. Neighbours lie evenly over contiguous ranges of slots."""
    position = (crc32(topic_id.bytes) + partition * _GOLDEN_STEP) % 2**32
    return position * slots >> 32


def slot_of_group(group_id: str, slots: int) -> int:
    """The slot of a consumer group, for ever."""
    return crc32(group_id.encode()) * slots >> 32


class MalformedState(ValueError):
    """Text in the registry that is not what a broker of this version writes."""


class SessionState(StrEnum):
    LIVE = "live"
    LEAVING = "leaving"  # gives its slots up, takes no others
    CLOSED = "closed"  # has given everything up
    DEAD = "dead"  # declared so by another broker: final, no renewal succeeds any more


@dataclass(frozen=True, slots=True)
class Report:
    """What a broker tells the others with each renewal.

    `lanes`: for each shard, how many numbers of each lane are resolved; a shard must be in it
    before the first block goes there, or nobody could fence the session on it.
    """

    day: int
    lanes: Mapping[str, tuple[int, ...]]
    append_floors: Mapping[str, int] = field(default_factory=dict)
    away: frozenset[str] = frozenset()
    topics_seen: int = 0


@dataclass(frozen=True, slots=True)
class Session:
    """One life of a broker, as its row in the registry tells. Only its broker renews it.

    `renewals` counts what was sent, so that no two rows are the same text.
    """

    session_id: int
    node_id: int
    host: str
    port: int
    rack: str | None
    ttl_ms: int
    state: SessionState = SessionState.LIVE
    renewals: int = 0
    day: int = 0
    lanes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    append_floors: Mapping[str, int] = field(default_factory=dict)
    away: frozenset[str] = frozenset()
    topics_seen: int = 0

    @property
    def is_over(self) -> bool:
        return self.state in (SessionState.CLOSED, SessionState.DEAD)

    def renewed(self, state: SessionState, report: Report) -> Session:
        """The row of the next renewal."""
        return replace(
            self,
            state=state,
            renewals=self.renewals + 1,
            day=report.day,
            lanes=report.lanes,
            append_floors=report.append_floors,
            away=report.away,
            topics_seen=report.topics_seen,
        )

    def ended(self, state: SessionState) -> Session:
        """The row when nothing comes after it; what it said last about its lanes stays."""
        return replace(self, state=state)

    def to_text(self) -> str:
        return _text(asdict(self) | {"away": sorted(self.away)})

    @classmethod
    def from_text(cls, text: str) -> Session:
        """Raises `MalformedState`."""
        found = _object(text, {one.name for one in fields(cls)}, "a session")
        try:
            return cls(
                session_id=_count(found["session_id"]),
                node_id=_count(found["node_id"]),
                host=_name(found["host"]),
                port=_count(found["port"]),
                rack=None if found["rack"] is None else _name(found["rack"]),
                ttl_ms=_count(found["ttl_ms"]),
                state=SessionState(found["state"]),
                renewals=_count(found["renewals"]),
                day=_count(found["day"]),
                lanes={
                    _name(shard): tuple(_count(number) for number in numbers)
                    for shard, numbers in found["lanes"].items()
                },
                append_floors={
                    _name(key): _count(floor) for key, floor in found["append_floors"].items()
                },
                away=frozenset(_name(shard) for shard in found["away"]),
                topics_seen=_count(found["topics_seen"]),
            )
        except (TypeError, ValueError, AttributeError) as error:
            raise MalformedState(f"not a session: {error}: {_shown(text)}") from error


@dataclass(frozen=True, slots=True)
class Slot:
    """`shards`: the last one takes what the next owner writes, earlier ones have old rows.

    The groups of a slot live on the first one. `behind` is how many of the last ones were added
    since the owner began: it still writes to the one before them.
    """

    owner: int
    epoch: int
    shards: tuple[str, ...]
    behind: int = 0

    @property
    def writes_to(self) -> str:
        """The shard that the owner of this epoch writes to: where it has to be fenced."""
        return self.shards[-1 - self.behind]


@dataclass(frozen=True, slots=True)
class SlotMap:
    """All slots of the cluster: one value in the registry, changed by compare-and-set."""

    slots: tuple[Slot, ...]

    @classmethod
    def first(cls, ranges: Iterable[tuple[str, range]], slots: int) -> SlotMap:
        """The map of a new cluster. Raises `ValueError` unless each slot has exactly one shard."""
        shards: dict[int, str] = {}
        for shard, numbers in ranges:
            for number in numbers:
                if number in shards:
                    raise ValueError(f"slot {number} belongs to {shards[number]} and to {shard}")
                shards[number] = shard
        if outside := sorted(shards.keys() - set(range(slots))):
            raise ValueError(f"there is no slot {outside[0]} in a cluster of {slots} slots")
        if missing := sorted(set(range(slots)) - shards.keys()):
            raise ValueError(f"slot {missing[0]} belongs to no shard")
        return cls(tuple(Slot(NOBODY, 0, (shards[number],)) for number in range(slots)))

    def of(self, session_id: int) -> dict[int, Slot]:
        """The slots that a session owns."""
        return {number: slot for number, slot in enumerate(self.slots) if slot.owner == session_id}

    def claim(self, numbers: Iterable[int], session_id: int) -> SlotMap:
        """A new owner, or the same one anew: the epoch grows, the last shard is written to."""
        return self._with(
            {
                number: replace(slot, owner=session_id, epoch=slot.epoch + 1, behind=0)
                for number, slot in self._picked(numbers)
            }
        )

    def release(self, numbers: Iterable[int], session_id: int) -> SlotMap:
        """Slots of which nothing is in flight any more. Raises `ValueError`: not the owner's."""
        changed = {}
        for number, slot in self._picked(numbers):
            if slot.owner != session_id:
                raise ValueError(f"slot {number} belongs to {slot.owner}, not to {session_id}")
            changed[number] = replace(slot, owner=NOBODY, behind=0)
        return self._with(changed)

    def move(self, numbers: Iterable[int], shard: str) -> SlotMap:
        """New rows go to `shard`, as soon as the owner has taken notice."""
        changed = {}
        for number, slot in self._picked(numbers):
            written = slot.shards[: len(slot.shards) - slot.behind]
            if written[-1] == shard:
                changed[number] = replace(slot, shards=written, behind=0)
            else:
                behind = 0 if slot.owner == NOBODY else 1
                changed[number] = replace(slot, shards=(*written, shard), behind=behind)
        return self._with(changed)

    def retire(self, numbers: Iterable[int], shard: str) -> SlotMap:
        """Nothing of these slots is left on `shard`: it is not read any more.

        Raises `ValueError` where groups live on it, or new rows go to it.
        """
        changed = {}
        for number, slot in self._picked(numbers):
            if shard == slot.shards[0]:
                raise ValueError(f"the groups of slot {number} live on {shard}")
            if shard in (slot.writes_to, slot.shards[-1]):
                raise ValueError(f"new rows of slot {number} go to {shard}")
            kept: list[str] = []
            for name in slot.shards:
                if name != shard and kept[-1:] != [name]:
                    kept.append(name)
            changed[number] = replace(slot, shards=tuple(kept))
        return self._with(changed)

    def to_text(self) -> str:
        """Slots that lie on the same shards share their names: a few bytes for each slot."""
        shards = sorted({slot.shards for slot in self.slots})
        places = {names: place for place, names in enumerate(shards)}
        rows = [[one.owner, one.epoch, places[one.shards], one.behind] for one in self.slots]
        return _text({"shards": shards, "slots": rows})

    @classmethod
    def from_text(cls, text: str) -> SlotMap:
        """Raises `MalformedState`."""
        found = _object(text, {"shards", "slots"}, "a slot map")
        try:
            shards = [tuple(_name(name) for name in names) for names in found["shards"]]
            slots = []
            for owner, epoch, place, behind in found["slots"]:
                names = shards[_count(place)]
                if not 0 <= _count(behind) < len(names):
                    raise ValueError(f"{behind} of {len(names)} shards cannot be ahead")
                slots.append(Slot(_count(owner), _count(epoch), names, behind))
        except (TypeError, ValueError, LookupError) as error:
            raise MalformedState(f"not a slot map: {error}: {_shown(text)}") from error
        return cls(tuple(slots))

    def _picked(self, numbers: Iterable[int]) -> list[tuple[int, Slot]]:
        picked = []
        for number in numbers:
            if not 0 <= number < len(self.slots):
                raise ValueError(f"there is no slot {number}: there are {len(self.slots)}")
            picked.append((number, self.slots[number]))
        return picked

    def _with(self, changed: Mapping[int, Slot]) -> SlotMap:
        return SlotMap(tuple(changed.get(n, slot) for n, slot in enumerate(self.slots)))


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _object(text: str, keys: set[str], what: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise MalformedState(f"not {what}: {error}: {_shown(text)}") from error
    if not isinstance(found, dict) or not found.keys() >= keys:  # newer versions may say more
        raise MalformedState(f"not {what} with {', '.join(sorted(keys))}: {_shown(text)}")
    return found


def _shown(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}..."


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a number from 0")
    return value


def _name(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a name")
    return value


@dataclass(frozen=True, slots=True)
class Lease:
    """How long a broker may serve by its own clock, after the renewals that are known to count."""

    ttl_ms: int
    sent_ms: int

    def renewed(self, sent_ms: int) -> Lease:
        """A renewal that was sent at `sent_ms` was accepted, whenever the answer came."""
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


class Watch:
    """What one observer has seen of other sessions: which version of a row, since when."""

    def __init__(self) -> None:
        self._seen: dict[int, _Sighting] = {}

    def saw(self, session_id: int, version: int | None, ttl_ms: int, now_ms: int) -> None:
        """The row had this version. `now_ms`: after the answer came, as it may be as new as that.

        A version of None is a row that is not there, `ttl_ms` then a guess.
        """
        before = self._seen.get(session_id)
        if before is None or before.version != version:
            self._seen[session_id] = _Sighting(version, now_ms, ttl_ms)

    def silent(self, session_id: int, now_ms: int) -> bool:
        """No renewal for so long that the session's own clock has ended its lease."""
        seen = self._seen.get(session_id)
        return seen is not None and now_ms - seen.since_ms >= seen.ttl_ms * DRIFT

    def forget_all_but(self, session_ids: Collection[int]) -> None:
        self._seen = {key: seen for key, seen in self._seen.items() if key in session_ids}


@dataclass(frozen=True, slots=True)
class Plan:
    """What one session should do now. All of it is decided by compare-and-set in the end."""

    release: tuple[int, ...] = ()
    claim: tuple[int, ...] = ()
    """In order of preference. Where the slot has an owner, that one is to be fenced first."""
    dead: tuple[int, ...] = ()
    forget: tuple[int, ...] = ()


def plan(
    me: int,
    slot_map: SlotMap,
    sessions: Mapping[int, Session],
    silent: Collection[int],
    reachable: Collection[str],
    releasing: Collection[int] = (),
) -> Plan:
    """What session `me` should release, claim, declare dead and forget.

    `silent`: sessions, or owners without a row, that have been so for too long. `reachable`: the
    shards that answer this broker. `releasing`: slots that it is giving up already.

    Everybody gets the same number of slots, or one more; nothing moves that need not for that.
    A slot goes beyond that to who can reach its shards if nobody with room can.
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
        return Plan(dead=dead)
    if mine.state is SessionState.LEAVING:
        return Plan(release=tuple(slot_map.of(me)), dead=dead)
    free = [
        number
        for number, slot in enumerate(slot_map.slots)
        if slot.owner == NOBODY or slot.owner in over
    ]
    room = _rooms(slot_map, live)
    return Plan(
        release=_releases(me, slot_map, live, free, room, reachable, releasing),
        claim=_claims(me, slot_map, live, free, room, reachable),
        dead=dead,
        forget=tuple(sorted(over - owners)) if me == min(live) else (),
    )


def _rooms(slot_map: SlotMap, live: Mapping[int, Session]) -> dict[int, int]:
    """How many slots each live session has too few; below 0: too many.

    Those with most keep the odd ones, so that nothing moves for the sake of evenness alone.
    """
    owned = {key: len(slot_map.of(key)) for key in live}
    each, odd = divmod(len(slot_map.slots), len(live))
    in_order = sorted(live, key=lambda key: (-owned[key], key))
    return {key: each + (place < odd) - owned[key] for place, key in enumerate(in_order)}


def _reaches(session: Session, slot: Slot) -> bool:
    """Whether the session's broker knows all shards of the slot, and they answer it."""
    return session.lanes.keys() >= set(slot.shards) and session.away.isdisjoint(slot.shards)


def _rank(session: Session, number: int, others: Iterable[Session]) -> int:
    """How many others would rather have the slot: different for each, and the same everywhere."""
    mine = _weight(session, number)
    return sum(_weight(other, number) > mine for other in others)


def _weight(session: Session, number: int) -> bytes:
    return blake2b(f"{session.node_id}/{number}".encode(), digest_size=8).digest()


def _claims(
    me: int,
    slot_map: SlotMap,
    live: Mapping[int, Session],
    free: Sequence[int],
    room: Mapping[int, int],
    reachable: Collection[str],
) -> tuple[int, ...]:
    slots = slot_map.slots
    within = [number for number in free if set(slots[number].shards) <= set(reachable)]
    others = [session for key, session in live.items() if key != me]
    ranks = {number: _rank(live[me], number, others) for number in within}
    within.sort(key=lambda number: (ranks[number], number))
    taken, left = within[: max(room[me], 0)], within[max(room[me], 0) :]
    for number in left:
        able = [session for session in others if _reaches(session, slots[number])]
        if any(room[session.session_id] > 0 for session in able):
            continue
        if _rank(live[me], number, able) == 0:
            taken.append(number)
    return tuple(taken)


def _releases(
    me: int,
    slot_map: SlotMap,
    live: Mapping[int, Session],
    free: Sequence[int],
    room: Mapping[int, int],
    reachable: Collection[str],
    releasing: Collection[int],
) -> tuple[int, ...]:
    """Slots that I cannot serve and another can; then what others have too few and I too many."""
    mine = slot_map.of(me)
    others = {key: session for key, session in live.items() if key != me}
    released = [
        number
        for number, slot in mine.items()
        if slot.shards[-1] not in reachable
        and any(_reaches(session, slot) for session in others.values())
    ]
    wanting = [key for key in others if room[key] > 0]
    wanted = sum(room[key] for key in wanting) - sum(
        any(_reaches(others[key], slot_map.slots[number]) for key in wanting) for number in free
    )
    count = min(-room[me] - len(released), wanted)
    if count <= 0:
        return tuple(released)
    ranks = {number: _rank(live[me], number, others.values()) for number in mine}
    for number in sorted(mine, key=lambda one: (one not in releasing, -ranks[one], one)):
        can_go = any(_reaches(others[key], mine[number]) for key in wanting)
        if count and can_go and number not in released:
            released.append(number)
            count -= 1
    return tuple(sorted(released))
