"""Consumer groups of several shards, as handlers see them: each on the coordinator of its shard.

A group belongs to a slot, and its rows are on the slot's first shard. What only its coordinator may
answer raises `NotCoordinator` where another broker owns the slot, and `CoordinatorLoadInProgress`
while this one is still reading it. Describing is open to all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from coordinator.coordinator import GroupCoordinator
from coordinator.messages import (
    CommittedOffset,
    Committer,
    GroupRecord,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    OffsetCommit,
    SyncAnswer,
    SyncRequest,
    TopicPartition,
)
from protocol.errors import KafkaError


class GroupOwner(Protocol):
    """Knows which group this broker coordinates, and on which shard: broker/cluster/slots.py."""

    def coordinator_of(self, group_id: str) -> GroupCoordinator:
        """Raises `NotCoordinator` and `CoordinatorLoadInProgress`."""

    def coordinators(self) -> Iterable[GroupCoordinator]:
        """Those of all shards."""


class _Records:
    """The groups that are known: `SharedCache` as handlers use it."""

    def __init__(self, owner: GroupOwner) -> None:
        self._owner = owner

    def groups(self) -> Iterable[GroupRecord]:
        """Those that this broker looks after: every broker lists its own, as in Kafka."""
        for coordinator in self._owner.coordinators():
            yield from coordinator.records()

    def get(self, group_id: str) -> GroupRecord | None:
        """A group of any broker."""
        for coordinator in self._owner.coordinators():
            if (found := coordinator.cache.get(group_id)) is not None:
                return found
        return None


class _Offsets:
    """`CommittedOffsets` as handlers use it."""

    def __init__(self, owner: GroupOwner) -> None:
        self._owner = owner

    def get(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        return self._owner.coordinator_of(group_id).offsets.get(group_id)


class ShardedGroups:
    """`GroupCoordinator` over the shards, as far as handlers need it."""

    def __init__(self, owner: GroupOwner) -> None:
        self._owner = owner
        self.cache = _Records(owner)
        self.offsets = _Offsets(owner)

    def stop_waiting(self) -> None:
        for coordinator in self._owner.coordinators():
            coordinator.stop_waiting()

    async def join(self, group_id: str, request: JoinRequest) -> JoinAnswer:
        return await self._owner.coordinator_of(group_id).join(group_id, request)

    async def sync(self, group_id: str, request: SyncRequest) -> SyncAnswer:
        return await self._owner.coordinator_of(group_id).sync(group_id, request)

    async def heartbeat(
        self, group_id: str, member_id: str, group_instance_id: str | None, generation: int
    ) -> None:
        coordinator = self._owner.coordinator_of(group_id)
        await coordinator.heartbeat(group_id, member_id, group_instance_id, generation)

    async def leave(
        self, group_id: str, members: Sequence[LeavingMember]
    ) -> list[KafkaError | None]:
        return await self._owner.coordinator_of(group_id).leave(group_id, members)

    async def commit(
        self,
        group_id: str,
        committer: Committer,
        commits: Sequence[OffsetCommit],
        *,
        group_must_exist_error: type[KafkaError],
    ) -> None:
        await self._owner.coordinator_of(group_id).commit(
            group_id, committer, commits, group_must_exist_error=group_must_exist_error
        )

    async def delete_group(self, group_id: str) -> None:
        await self._owner.coordinator_of(group_id).delete_group(group_id)

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> list[KafkaError | None]:
        return await self._owner.coordinator_of(group_id).delete_offsets(group_id, partitions)
