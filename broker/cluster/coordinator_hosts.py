"""Which shard has the groups and transactional ids that this broker coordinates.

A group, and a transactional id, belongs to a slot; its rows are on the slot's first shard. The
owner of the slot is its coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from broker.cluster.served_slots import ServedSlots
from broker.cluster.session import OwnSession
from broker.cluster.shard_host import ShardHost, ShardHosts
from coordinator.coordinator import GroupCoordinator
from protocol.errors import CoordinatorLoadInProgress, NotCoordinator


class CoordinatorHosts:
    def __init__(self, slots: ServedSlots, session: OwnSession, hosts: ShardHosts) -> None:
        self._slots = slots
        self._session = session
        self._hosts = hosts

    def of_id(self, transactional_id: str) -> ShardHost:
        """Raises as `of_slot`."""
        return self.of_slot(self._slots.of_group(transactional_id), transactional_id)

    def of_slot(self, number: int, key: str = "") -> ShardHost:
        """Raises `NotCoordinator` and `CoordinatorLoadInProgress`."""
        what = repr(key) if key else f"slot {number}"
        slot = self._slots.owned.get(number)
        if slot is None or not self._session.may_serve():
            raise NotCoordinator(f"another broker coordinates {what}")
        if number not in self._slots.serving:
            raise CoordinatorLoadInProgress(f"{what} is being loaded")
        return self._hosts.of(slot.shards[0])

    def slot_of(self, group_id: str) -> int:
        return self._slots.of_group(group_id)

    # GroupOwner

    def coordinator_of(self, group_id: str) -> GroupCoordinator:
        """Raises as `of_slot`."""
        return self.of_slot(self._slots.of_group(group_id), group_id).groups

    def has_slot(self, number: int) -> bool:
        return 0 <= number < self._slots.count

    def groups_in(self, slot: int) -> tuple[GroupCoordinator, Callable[[str], bool]]:
        """The coordinator of a slot's groups, and which groups those are. Raises as `of_slot`."""
        return self.of_slot(slot).groups, self._slots.has_group_in((slot,))

    def coordinators(self) -> Iterable[GroupCoordinator]:
        return self._hosts.coordinators()

    # IdOwner

    def may_coordinate(self, transactional_id: str) -> bool:
        is_owned = self._slots.of_group(transactional_id) in self._slots.owned
        return is_owned and self._session.may_serve()

    def epoch_of(self, transactional_id: str) -> int:
        """The epoch of its slot; 0 if this broker does not own it."""
        slot = self._slots.owned.get(self._slots.of_group(transactional_id))
        return 0 if slot is None else slot.epoch
