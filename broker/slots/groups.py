"""The consumer groups of all slots, as handlers see them.

A request that only a group's coordinator may answer raises `NotCoordinator` where another broker
owns the slot, and `CoordinatorLoadInProgress` while this one is still reading it. Any broker
describes any group. Each slot is a partition of `__consumer_offsets`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from brokerhouse.broker.log.block import Sender
from brokerhouse.broker.transactions.transaction_markers import Marker
from brokerhouse.coordinator.group_coordinator import GroupCoordinator
from brokerhouse.coordinator.messages import OFFSETS_TOPIC, GroupRecord
from brokerhouse.coordinator.slots import OwnSlots
from brokerhouse.protocol.errors import KafkaError, RequestTimedOut, UnknownTopicOrPartition


class SlotGroups:
    def __init__(self, slots: OwnSlots, coordinators: Mapping[str, GroupCoordinator]) -> None:
        """`coordinators`: by the name of the shard that has the rows of their groups."""
        self._slots = slots
        self._coordinators = coordinators
        self.partitions = slots.count
        """Of `__consumer_offsets`."""
        self.partition_of = slots.of_group

    def coordinator_of(self, group_id: str) -> GroupCoordinator:
        """Raises `NotCoordinator` and `CoordinatorLoadInProgress`."""
        return self._coordinators[self._slots.shard_of(group_id)]

    def coordinator_at(self, slot: int) -> tuple[GroupCoordinator, int]:
        """Of the groups in a slot, and the slot's epoch. Raises the same."""
        return self._coordinators[self._slots.shard_at(slot)], self._slots.owned[slot].epoch

    def check_partition(self, number: int) -> None:
        """Raises `UnknownTopicOrPartition` unless `__consumer_offsets` has this partition."""
        if not 0 <= number < self.partitions:
            raise UnknownTopicOrPartition(f"{OFFSETS_TOPIC} has no partition {number}.")

    async def end_transaction(
        self, slot: int, marker: Marker, sender: Sender | None = None
    ) -> None:
        """End a transaction in the groups of a slot.

        `sender`: the connection of another broker; nothing is ended when it has left. Raises as
        `coordinator_of`, `TransactionCoordinatorFenced`, `RequestTimedOut` and `EngineError`.
        """
        coordinator, _ = self.coordinator_at(slot)
        pending, producer = coordinator.pending, marker.producer
        pending.check_coordinator(producer.producer_id, marker.coordinator_epoch)
        for group_id in pending.groups_with(producer.producer_id):
            if sender is not None and sender.has_left:
                raise RequestTimedOut(
                    f"The marker of producer {producer.producer_id} was not written in time."
                )
            if self.partition_of(group_id) == slot:
                await pending.end(
                    group_id, producer, commit=marker.commit, raises_epoch=marker.raises_epoch
                )
        # The slot may have been given up meanwhile: its next owner may not know that it has ended.
        self.coordinator_at(slot)

    async def read_anew(self, group_ids: Collection[str]) -> None:
        """Read what other brokers have stored, if any of these groups is theirs."""
        if not all(map(self._is_ours, group_ids)):
            await asyncio.gather(*(one.read_anew() for one in self._coordinators.values()))

    def _is_ours(self, group_id: str) -> bool:
        try:
            self.coordinator_of(group_id)
        except KafkaError:
            return False
        return True

    def record(self, group_id: str) -> GroupRecord | None:
        """A group of any broker, as stored."""
        for coordinator in self._coordinators.values():
            if (found := coordinator.record(group_id)) is not None:
                return found
        return None

    def records(self) -> list[GroupRecord]:
        """The groups that this broker coordinates: every broker lists its own, as in Kafka."""
        return [record for one in self._coordinators.values() for record in one.records()]

    def stop_waiting(self) -> None:
        """Answer every parked request: this broker stops."""
        for coordinator in self._coordinators.values():
            coordinator.stop_waiting()
