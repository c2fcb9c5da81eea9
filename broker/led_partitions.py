"""Finds the log of a partition for a request. If no open log matches, it looks for new topics."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from uuid import UUID

from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.topic import Topic
from brokerhouse.broker.offsets_topic.offsets_topic import OffsetsTopic
from brokerhouse.broker.topics.catalog import TopicCatalog
from brokerhouse.protocol.errors import NotLeaderOrFollower, UnknownTopicOrPartition


class LedPartitions:
    """The partitions that this broker leads, as requests name them."""

    def __init__(self, topics: TopicCatalog, offsets_topic: OffsetsTopic | None = None) -> None:
        self._topics = topics
        self._offsets_topic = offsets_topic
        self._logs = topics.logs
        self._awaited: Counter[tuple[str | UUID, int]] = Counter()
        self._awaiting = asyncio.Lock()
        self._looks = 0

    def log_of(self, topic: Topic, partition: int) -> PartitionLog:
        """Raises `UnknownTopicOrPartition`, or `NotLeaderOrFollower` if another broker leads."""
        offsets_topic = self._offsets_topic_of(topic.topic_id)
        if offsets_topic is not None:
            return offsets_topic.log_of(partition)
        found = self._logs.find(topic.topic_id, partition)
        if found is not None:
            if not self._logs.may_serve():
                raise NotLeaderOrFollower("This broker leads no partition at the moment.")
            return found
        current = self._topics.by_id(topic.topic_id)
        if current is None or not 0 <= partition < current.partitions:
            raise UnknownTopicOrPartition(f"The topic {topic.name!r} has no partition {partition}.")
        raise NotLeaderOrFollower(f"This broker does not lead {topic.name}-{partition}.")

    def ready_log(self, key: str | UUID, partition: int) -> PartitionLog | None:
        """The log if it is open, this broker leads it, and no request waits for any to open.

        Not of `__consumer_offsets`. If None, `opening` and then `log_of` say why, or find it.
        """
        if self._awaited or not self._logs.may_serve():
            return None
        return self._find(key, partition)

    async def await_open(self, wanted: Sequence[tuple[str | UUID, int]]) -> None:
        """Returns when these logs are open, or cannot be opened: see `opening`."""
        opening = self.opening(wanted)
        if opening is not None:
            await opening

    def opening(self, wanted: Sequence[tuple[str | UUID, int]]) -> asyncio.Task[None] | None:
        """None if the logs of all these partitions are open; else the task that opens them.

        `wanted`: topics, by name or id, and partitions. The topics are read again, as another
        broker may just have created one; logs that are being opened are waited for. A request that
        calls this while another waits for the same log continues after it: a producer's batches
        stay in the order in which they were sent.
        """
        if (not self._awaited or self._awaited.keys().isdisjoint(wanted)) and self._are_open(
            wanted
        ):
            return None
        self._awaited.update(wanted)
        task = asyncio.create_task(self._open(wanted, self._looks))
        task.add_done_callback(lambda _: self._ended(wanted))
        return task

    async def _open(self, wanted: Iterable[tuple[str | UUID, int]], looks: int) -> None:
        for key, partition in wanted:
            offsets_topic = self._offsets_topic_of(key)
            if offsets_topic is not None:
                await offsets_topic.open(partition)
        async with self._awaiting:  # a fair lock
            if looks == self._looks and not self._are_open(wanted):
                await self._topics.look_again()
                self._looks += 1

    def _offsets_topic_of(self, key: str | UUID) -> OffsetsTopic | None:
        """`__consumer_offsets`, if that is the topic: it is in no catalog."""
        found = self._offsets_topic
        return found if found is not None and found.named(key) is not None else None

    def _ended(self, wanted: Iterable[tuple[str | UUID, int]]) -> None:
        self._awaited.subtract(wanted)
        self._awaited = +self._awaited

    def _are_open(self, wanted: Iterable[tuple[str | UUID, int]]) -> bool:
        for key, partition in wanted:
            offsets_topic = self._offsets_topic_of(key)
            if offsets_topic is not None:
                if not offsets_topic.is_open(partition):
                    return False
                continue
            if self._find(key, partition) is None:
                return False
        return True

    def _find(self, key: str | UUID, partition: int) -> PartitionLog | None:
        topic = self._topics.by_id(key) if isinstance(key, UUID) else self._topics.get(key)
        return None if topic is None else self._logs.find(topic.topic_id, partition)
