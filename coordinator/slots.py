"""The slots that this broker owns, and which of them it serves.

A group, and a transactional id, belongs to a slot; its rows are on the slot's first shard. The
owner of the slot is its coordinator. A slot is owned from the start of `SlotServer.serve_slots`
(broker/cluster/slot_server.py) on, and served from its end on. Logs and groups are open only in
slots that are served.

A single broker owns and serves every slot, under a session that never ends: `OwnSlots.alone`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache, partial
from uuid import UUID

from brokerhouse.protocol.errors import CoordinatorLoadInProgress, NotCoordinator
from brokerhouse.storage.slot_map import (
    EMBEDDED,
    FIRST_EPOCH,
    Slot,
    slot_of_group,
    slot_of_partition,
)

_KAFKA_PARTITIONS = 50
"""Kafka's offsets.topic.num.partitions: the slots of a single broker."""
_ENDLESS_SESSION = 1


def always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Duties:
    """What a broker may and must do for the groups whose rows are on one shard.

    Ask before each step that depends on it: an answer may change at any moment.
    """

    may_serve: Callable[[], bool]
    """Whether the session of this broker is valid: it may answer for its groups and write."""
    is_housekeeper: Callable[[], bool]
    """Whether this is the housekeeping broker of the shard."""
    serves_all: Callable[[], bool]
    """Whether it serves every slot: no other broker stores anything that has to be read."""


class OwnSlots:
    """The slots of this broker: `owned` by its session, and those of them that it is `serving`."""

    def __init__(
        self,
        count: int,
        may_serve: Callable[[], bool],
        of_group: Callable[[str], int] | None = None,
    ) -> None:
        """`count`: how many slots there are. `may_serve`: whether the session is valid, now.

        `of_group`: the slot of a group or transactional id, if not `slot_of_group`.
        """
        self.owned: dict[int, Slot] = {}
        self.serving: set[int] = set()
        self.count = count
        self.may_serve = may_serve
        self.of_group = of_group or partial(slot_of_group, slots=count)

    @classmethod
    def alone(cls) -> OwnSlots:
        """The slots of a single broker: the groups of each are those of a partition in Kafka."""
        slots = cls(_KAFKA_PARTITIONS, always, kafka_partition)
        one = Slot(_ENDLESS_SESSION, FIRST_EPOCH, (EMBEDDED,))
        slots.owned = dict.fromkeys(range(slots.count), one)
        slots.serving = set(slots.owned)
        return slots

    def serves_all(self) -> bool:
        return len(self.serving) == self.count

    def of_partition(self, topic_id: UUID, partition: int) -> int:
        return slot_of_partition(topic_id, partition, self.count)

    def has_group_in(self, slots: Collection[int]) -> Callable[[str], bool]:
        """Whether a group is in one of these slots."""
        if len(slots) == self.count:
            return lambda _: True
        return lambda group_id: self.of_group(group_id) in slots

    def group_shards(self, slots: Collection[int]) -> set[str]:
        """The shards on which the groups of these slots live, as far as they are owned."""
        return {self.owned[number].shards[0] for number in slots if number in self.owned}

    def shard_of(self, key: str) -> str:
        """The shard of a group or transactional id. Raises as `shard_at`."""
        return self.shard_at(self.of_group(key), key)

    def shard_at(self, number: int, key: str = "") -> str:
        """The shard of the groups in a slot that is served here; `key` is one of them.

        Raises `NotCoordinator` and `CoordinatorLoadInProgress`.
        """
        slot = self.owned.get(number)
        if slot is not None and number in self.serving and self.may_serve():
            return slot.shards[0]
        what = repr(key) if key else f"slot {number}"
        if slot is None or not self.may_serve():
            raise NotCoordinator(f"Another broker coordinates {what}.")
        raise CoordinatorLoadInProgress(f"The broker is still loading {what}.")

    def may_coordinate(self, key: str) -> bool:
        """Whether this broker coordinates a group or transactional id, by the clock, now."""
        return self.of_group(key) in self.owned and self.may_serve()

    def epoch_of(self, key: str) -> int:
        """Grows with every owner of the key's slot; 0 if this broker does not own it."""
        slot = self.owned.get(self.of_group(key))
        return 0 if slot is None else slot.epoch


@lru_cache(maxsize=100_000)
def kafka_partition(group_id: str) -> int:
    """The partition of a group in Kafka: the lower 31 bits of Java's hash of the name.

    Java hashes UTF-16: a character above 0xFFFF is two.
    """
    value = 0
    for unit in map(ord, group_id):
        if unit > 0xFFFF:
            value = 31 * value + 0xD7C0 + (unit >> 10)
            unit = 0xDC00 | unit & 0x3FF
        value = (31 * value + unit) & 0xFFFFFFFF
    return (value & 0x7FFFFFFF) % _KAFKA_PARTITIONS
