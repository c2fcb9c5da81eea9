"""Which partition of `__consumer_offsets` has which groups, in a cluster: each is a slot."""

from __future__ import annotations

from broker.cluster.coordinator_hosts import CoordinatorHosts
from broker.cluster.served_slots import ServedSlots
from coordinator.coordinator import GroupCoordinator


class GroupsOfSlots:
    """`GroupPartitions` of a cluster: a partition has the owner and the epoch of its slot."""

    def __init__(self, slots: ServedSlots, hosts: CoordinatorHosts) -> None:
        self._slots = slots
        self._hosts = hosts

    @property
    def count(self) -> int:
        return self._slots.count

    def partition_of(self, group_id: str) -> int:
        return self._slots.of_group(group_id)

    def coordinator(self, partition: int) -> tuple[GroupCoordinator, int]:
        return self._hosts.of_slot(partition).groups, self._slots.owned[partition].epoch
