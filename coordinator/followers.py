"""The interface of those that follow stored changes of committed offsets and groups."""

from __future__ import annotations

from typing import Protocol

from coordinator.messages import CommittedOffset, GroupRecord, TopicPartition


class Follower(Protocol):
    """Called on the event loop, in the order of the changes of each group. Must not fail."""

    def offset_changed(
        self, group_id: str, partition: TopicPartition, offset: CommittedOffset | None
    ) -> None:
        """An offset was committed; None: it was deleted."""

    def group_changed(self, record: GroupRecord) -> None:
        """A group has another state or other members, or is Dead."""
