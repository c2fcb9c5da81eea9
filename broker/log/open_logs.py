"""The open logs: those of the partitions that this broker leads.

A log is open while this broker leads its partition. The catalog of topics reports changed and
deleted topics here. Nothing else keeps a log for longer than a request or a block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from uuid import UUID

from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.topic import Topic
from brokerhouse.protocol.errors import UnknownTopicOrPartition

Partition = tuple[Topic, int]


class OpenLogs(ABC):
    """The open logs, by topic id and partition."""

    def __init__(self, may_serve: Callable[[], bool]) -> None:
        self._logs: dict[UUID, dict[int, PartitionLog]] = {}
        self.may_serve = may_serve
        """Whether this broker may lead partitions, by the clock: the machine may have slept."""
        self.why_not_open = ""
        """The last reason why logs could not be opened."""

    @abstractmethod
    async def open_new(self, created: Collection[Partition]) -> bool:
        """Open the logs of partitions that were just created, if this broker leads them.

        False: some could not be opened yet.
        """

    @abstractmethod
    async def open_missing(self, topics: Collection[Topic]) -> bool:
        """Open the logs that this broker leads and that are not open.

        False: some could not be opened yet.
        """

    def find(self, topic_id: UUID, partition: int) -> PartitionLog | None:
        logs = self._logs.get(topic_id)
        return None if logs is None else logs.get(partition)

    def all(self) -> list[PartitionLog]:
        return [one for logs in self._logs.values() for one in logs.values()]

    def add(self, logs: Iterable[PartitionLog]) -> None:
        for one in logs:
            self._logs.setdefault(one.topic_id, {})[one.partition] = one

    def remove(self, logs: Iterable[PartitionLog]) -> None:
        """This broker no longer leads these partitions."""
        for one in logs:
            self._logs.get(one.topic_id, {}).pop(one.partition, None)

    def adopt(self, topic: Topic) -> None:
        """The topic has changed: its open logs use the new version from now on."""
        for one in self._logs.get(topic.topic_id, {}).values():
            one.topic = topic

    def close_topic(self, topic: Topic) -> None:
        """The topic has been deleted."""
        closed = list(self._logs.get(topic.topic_id, {}).values())
        for one in closed:
            one.closed = UnknownTopicOrPartition(f"The topic {topic.name!r} has been deleted.")
            one.wake()
        self.remove(closed)
        self._logs.pop(topic.topic_id, None)

    def missing(self, topics: Iterable[Topic]) -> list[Partition]:
        """Partitions of these topics whose logs are not open."""
        return [
            (topic, number)
            for topic in topics
            for number in range(topic.partitions)
            if self.find(topic.topic_id, number) is None
        ]
