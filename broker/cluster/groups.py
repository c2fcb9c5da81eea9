"""Consumer groups of several shards, as handlers see them: each on the coordinator of its shard.

A group belongs to a slot, and its rows are on the slot's first shard. What only its coordinator may
answer raises `NotCoordinator` where another broker owns the slot, and `CoordinatorLoadInProgress`
while this one is still reading it. Describing is open to all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

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


class _Records:
    """The groups that are known: `SharedCache` as handlers use it."""

    def __init__(self, all_: Callable[[], Iterable[GroupCoordinator]]) -> None:
        self._all = all_

    def groups(self) -> Iterable[GroupRecord]:
        """Those that this broker looks after: every broker lists its own, as in Kafka."""
        for coordinator in self._all():
            yield from coordinator.records()

    def get(self, group_id: str) -> GroupRecord | None:
        """A group of any broker."""
        for coordinator in self._all():
            if (found := coordinator.cache.get(group_id)) is not None:
                return found
        return None


class _Offsets:
    """`CommittedOffsets` as handlers use it."""

    def __init__(self, of: Callable[[str], GroupCoordinator]) -> None:
        self._of = of

    def get(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        return self._of(group_id).offsets.get(group_id)


class ShardedGroups:
    """`GroupCoordinator` over the shards, as far as handlers need it."""

    def __init__(
        self,
        of: Callable[[str], GroupCoordinator],
        all_: Callable[[], Iterable[GroupCoordinator]],
    ) -> None:
        """`of` finds the coordinator of a group, and raises where this broker is not it."""
        self._of = of
        self._all = all_
        self.cache = _Records(all_)
        self.offsets = _Offsets(of)

    def stop_waiting(self) -> None:
        for coordinator in self._all():
            coordinator.stop_waiting()

    async def join(self, group_id: str, request: JoinRequest) -> JoinAnswer:
        return await self._of(group_id).join(group_id, request)

    async def sync(self, group_id: str, request: SyncRequest) -> SyncAnswer:
        return await self._of(group_id).sync(group_id, request)

    async def heartbeat(
        self, group_id: str, member_id: str, group_instance_id: str | None, generation: int
    ) -> None:
        coordinator = self._of(group_id)
        await coordinator.heartbeat(group_id, member_id, group_instance_id, generation)

    async def leave(
        self, group_id: str, members: Sequence[LeavingMember]
    ) -> list[KafkaError | None]:
        return await self._of(group_id).leave(group_id, members)

    async def commit(
        self,
        group_id: str,
        committer: Committer,
        commits: Sequence[OffsetCommit],
        *,
        group_must_exist_error: type[KafkaError],
    ) -> None:
        await self._of(group_id).commit(
            group_id, committer, commits, group_must_exist_error=group_must_exist_error
        )

    async def delete_group(self, group_id: str) -> None:
        await self._of(group_id).delete_group(group_id)

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> list[KafkaError | None]:
        return await self._of(group_id).delete_offsets(group_id, partitions)
