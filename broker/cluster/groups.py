"""Consumer groups of several shards, as handlers see them.

A group belongs to a slot, and its rows are on the slot's first shard. A request that only its
coordinator may answer raises `NotCoordinator` where another broker owns the slot, and
`CoordinatorLoadInProgress` while this one is still reading it. Any broker describes any group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from broker.log.block import Sender
from broker.transaction_markers import Marker
from coordinator.coordinator import GroupCoordinator
from coordinator.messages import GroupRecord
from protocol.errors import KafkaError, RequestTimedOut


class GroupOwner(Protocol):
    """Knows which group this broker coordinates, and on which shard: coordinator_hosts.py."""

    def coordinator_of(self, group_id: str) -> GroupCoordinator:
        """Raises `NotCoordinator` and `CoordinatorLoadInProgress`."""

    def has_slot(self, number: int) -> bool:
        """Whether the cluster has a slot with this number."""

    def groups_in(self, slot: int) -> tuple[GroupCoordinator, Callable[[str], bool]]:
        """The coordinator of a slot's groups, and which groups those are. Raises the same."""

    def coordinators(self) -> Iterable[GroupCoordinator]:
        """The coordinators of all shards."""


class ShardedGroups:
    """Over several shards what `GroupCoordinator` is to a single broker."""

    def __init__(self, owner: GroupOwner) -> None:
        self._owner = owner

    def coordinator_of(self, group_id: str) -> GroupCoordinator:
        """Raises `NotCoordinator` and `CoordinatorLoadInProgress`."""
        return self._owner.coordinator_of(group_id)

    def has_slot(self, number: int) -> bool:
        """Whether the cluster has a slot with this number."""
        return self._owner.has_slot(number)

    async def end_transaction(
        self, slot: int, marker: Marker, sender: Sender | None = None
    ) -> None:
        """End a transaction in the groups of a slot.

        `sender`: the connection of another broker; nothing is ended when it has left. Raises as
        `coordinator_of`, `TransactionCoordinatorFenced`, `RequestTimedOut` and `EngineError`.
        """
        coordinator, is_there = self._owner.groups_in(slot)
        pending, producer = coordinator.pending, marker.producer
        pending.check_coordinator(producer.producer_id, marker.coordinator_epoch)
        for group_id in pending.groups_with(producer.producer_id):
            if sender is not None and sender.has_left:
                raise RequestTimedOut(f"nobody waits for a marker of {producer} any more")
            if is_there(group_id):
                await pending.end(
                    group_id, producer, commit=marker.commit, raises_epoch=marker.raises_epoch
                )
        # The slot may have been given up meanwhile: its next owner may not know that it has ended.
        self._owner.groups_in(slot)

    async def read_anew(self, group_ids: Collection[str]) -> None:
        """Read what other brokers have stored, if any of these groups is theirs."""
        if not all(map(self._is_ours, group_ids)):
            await asyncio.gather(*(one.read_anew() for one in self._owner.coordinators()))

    def _is_ours(self, group_id: str) -> bool:
        try:
            self._owner.coordinator_of(group_id)
        except KafkaError:
            return False
        return True

    def record(self, group_id: str) -> GroupRecord | None:
        """A group of any broker, as stored."""
        for coordinator in self._owner.coordinators():
            if (found := coordinator.record(group_id)) is not None:
                return found
        return None

    def records(self) -> list[GroupRecord]:
        """The groups that this broker coordinates: every broker lists its own, as in Kafka."""
        return [
            record for coordinator in self._owner.coordinators() for record in coordinator.records()
        ]

    def stop_waiting(self) -> None:
        """Answer every parked request: this broker stops."""
        for coordinator in self._owner.coordinators():
            coordinator.stop_waiting()
