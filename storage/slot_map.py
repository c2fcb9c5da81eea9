"""The slots of a cluster: their partitions and groups, their owners, and their shards.

The map is one value in the registry (`SLOTS_KEY`), changed by compare-and-set. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from uuid import UUID
from zlib import crc32

from brokerhouse.storage.registry_values import (
    MalformedState,
    count_of,
    name_of,
    object_of,
    shortened,
    text_of,
)

SLOTS_KEY = "slots"

NOBODY = 0
"""The owner of a slot that no broker serves. Session ids begin at 1."""

EMBEDDED = "embedded"
"""The shard of a single broker: its embedded engine."""

FIRST_EPOCH = 0
"""The epoch of a slot that nobody has claimed yet: every owner in a cluster has a higher one. A
single broker never claims its slots, so its records have this leader epoch."""

VERSIONS_OF_EPOCH = 2**42
"""Versions of rows that one owner of a slot writes: milliseconds, up to the year 2109. Those of the
next owner begin higher, whatever the clocks of both show."""

_GOLDEN_STEP = 2654435769
"""2**32 divided by the golden ratio: multiples of it, modulo 2**32, lie evenly at every length."""


def slot_of_partition(topic_id: UUID, partition: int, slots: int) -> int:
    """The slot of a partition, which never changes.

    Neighbouring partitions lie evenly over contiguous ranges of slots.
    """
    position = (crc32(topic_id.bytes) + partition * _GOLDEN_STEP) % 2**32
    return position * slots >> 32


def slot_of_group(group_id: str, slots: int) -> int:
    """The slot of a consumer group, which never changes."""
    return crc32(group_id.encode()) * slots >> 32


@dataclass(frozen=True, slots=True)
class Slot:
    """`shards`: the next owner writes to the last one; earlier ones have old rows.

    The groups of a slot are stored on the first one. `behind` is how many of the last ones were
    added since the owner began: the owner still writes to the one before them.
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
                    raise ValueError(
                        f"slot {number} belongs to shard {shards[number]} and to shard {shard}"
                    )
                shards[number] = shard
        if outside := sorted(shards.keys() - set(range(slots))):
            raise ValueError(f"there is no slot {outside[0]} in a cluster of {slots} slots")
        if missing := sorted(set(range(slots)) - shards.keys()):
            raise ValueError(f"slot {missing[0]} belongs to no shard")
        return cls(tuple(Slot(NOBODY, FIRST_EPOCH, (shards[number],)) for number in range(slots)))

    def of(self, session_id: int) -> dict[int, Slot]:
        """The slots that a session owns."""
        return {number: slot for number, slot in enumerate(self.slots) if slot.owner == session_id}

    def claim(self, numbers: Iterable[int], session_id: int) -> SlotMap:
        """A new owner, or the same one again: the epoch grows, and it writes to the last shard."""
        return self._with(
            {
                number: replace(slot, owner=session_id, epoch=slot.epoch + 1, behind=0)
                for number, slot in self._picked(numbers)
            }
        )

    def release(self, numbers: Iterable[int], session_id: int) -> SlotMap:
        """Slots that have no writes in flight any more.

        Raises `ValueError` if the session does not own one of them.
        """
        changed = {}
        for number, slot in self._picked(numbers):
            if slot.owner != session_id:
                raise ValueError(
                    f"slot {number} belongs to session {slot.owner}, not to {session_id}"
                )
            changed[number] = replace(slot, owner=NOBODY, behind=0)
        return self._with(changed)

    def move(self, numbers: Iterable[int], shard: str) -> SlotMap:
        """New rows go to `shard`, as soon as the owner has read the new map."""
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
        """No rows of these slots are left on `shard`: it is not read any more.

        Raises `ValueError` if their groups are stored on it, or new rows go to it.
        """
        changed = {}
        for number, slot in self._picked(numbers):
            if shard == slot.shards[0]:
                raise ValueError(f"the groups of slot {number} are stored on shard {shard}")
            if shard in (slot.writes_to, slot.shards[-1]):
                raise ValueError(f"new rows of slot {number} are written to shard {shard}")
            kept: list[str] = []
            for name in slot.shards:
                if name != shard and kept[-1:] != [name]:
                    kept.append(name)
            changed[number] = replace(slot, shards=tuple(kept))
        return self._with(changed)

    def to_text(self) -> str:
        """Slots on the same shards share their names in the text: a few bytes for each slot."""
        shards = sorted({slot.shards for slot in self.slots})
        indexes = {names: index for index, names in enumerate(shards)}
        rows = [[one.owner, one.epoch, indexes[one.shards], one.behind] for one in self.slots]
        return text_of({"shards": shards, "slots": rows})

    @classmethod
    def from_text(cls, text: str) -> SlotMap:
        """Raises `MalformedState`."""
        found = object_of(text, {"shards", "slots"}, "a slot map")
        try:
            shards = [tuple(name_of(name) for name in names) for names in found["shards"]]
            slots = []
            for owner, epoch, index, behind in found["slots"]:
                names = shards[count_of(index)]
                if not 0 <= count_of(behind) < len(names):
                    raise ValueError(
                        f"{behind} of its {len(names)} shards cannot all be new to its owner"
                    )
                slots.append(Slot(count_of(owner), count_of(epoch), names, behind))
        except (TypeError, ValueError, LookupError) as error:
            raise MalformedState(
                f"a text in the registry is not a slot map: {error}: {shortened(text)}"
            ) from error
        return cls(tuple(slots))

    def _picked(self, numbers: Iterable[int]) -> list[tuple[int, Slot]]:
        picked = []
        for number in numbers:
            if not 0 <= number < len(self.slots):
                raise ValueError(
                    f"there is no slot {number}: the last one is {len(self.slots) - 1}"
                )
            picked.append((number, self.slots[number]))
        return picked

    def _with(self, changed: Mapping[int, Slot]) -> SlotMap:
        return SlotMap(tuple(changed.get(n, slot) for n, slot in enumerate(self.slots)))
