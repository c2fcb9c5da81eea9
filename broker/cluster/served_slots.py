"""Which slots this broker's session owns, and which of them it serves.

A slot is owned from the start of `Slots.serve_slots` on, and served from its end on. Logs and
groups are open only in slots that are served.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from uuid import UUID

from storage.slot_map import Slot, slot_of_group, slot_of_partition


class ServedSlots:
    def __init__(self, count: int) -> None:
        """`count`: how many slots the cluster has."""
        self.owned: dict[int, Slot] = {}
        self.serving: set[int] = set()
        self.count = count

    def of_partition(self, topic_id: UUID, partition: int) -> int:
        return slot_of_partition(topic_id, partition, self.count)

    def of_group(self, group_id: str) -> int:
        return slot_of_group(group_id, self.count)

    def has_group_in(self, slots: Collection[int]) -> Callable[[str], bool]:
        """Whether a group is in one of these slots."""
        return lambda group_id: self.of_group(group_id) in slots

    def group_shards(self, slots: Collection[int]) -> set[str]:
        """The shards on which the groups of these slots live, as far as they are owned."""
        return {self.owned[number].shards[0] for number in slots if number in self.owned}
