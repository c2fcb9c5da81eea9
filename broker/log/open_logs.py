"""The open logs: those of the partitions that this broker leads.

A log is open while this broker leads its partition. The catalog of topics reports changed and
deleted topics here. Nothing else keeps a log for longer than a request or a block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from uuid import UUID, uuid4

from broker.log.checkpoints import read_checkpoints
from broker.log.ends import log_ends
from broker.log.partition import PartitionLog
from broker.log.topic import Topic
from broker.log.transaction_recovery import recover_transactions
from common.tasks import in_turns
from protocol.errors import UnknownTopicOrPartition
from storage.blocks import block
from storage.engine import Engine
from storage.row_lane import TableRows

Partition = tuple[Topic, int]


class OpenLogs(ABC):
    """The open logs, by topic id and partition."""

    def __init__(self) -> None:
        self._logs: dict[UUID, dict[int, PartitionLog]] = {}

    @abstractmethod
    def may_serve(self) -> bool:
        """Whether this broker may lead partitions, by the clock: the machine may have slept."""

    @abstractmethod
    async def open_new(self, created: Collection[Partition]) -> bool:
        """Open the logs of partitions that were just created, if this broker leads them.

        False: some could not be opened yet.
        """

    @abstractmethod
    async def open_missing(self, topics: Collection[Topic]) -> bool:
        """Open the logs that this broker leads and that are not open.

        False: some could not be opened yet. Raises `EngineError`.
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
            one.closed = UnknownTopicOrPartition(f"topic {topic.name} has been deleted")
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


class LocalLogs(OpenLogs):
    """The logs of a single broker, which leads every partition."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = engine
        self.first_fresh_producer_id = 0
        """Producers with lower ids may have rows from before this process started."""

    def may_serve(self) -> bool:
        return True

    async def open_new(self, created: Collection[Partition]) -> bool:
        async for topic, number in in_turns(created):
            self.add([self._opened(topic, number, 0, 0)])
        return True

    async def open_missing(self, topics: Collection[Topic]) -> bool:
        checkpoints = await read_checkpoints(self._engine)
        partitions = self.missing(topics)
        ends = await log_ends(
            self._engine, [(topic.name, topic.topic_id, number) for topic, number in partitions]
        )
        opened = []
        for topic, number in partitions:
            start, floor = checkpoints.get((topic.topic_id, number), (0, 0))
            end = max(ends.get((topic.topic_id, number), 0), floor)
            opened.append(self._opened(topic, number, start, end))
        if opened:
            for repair in await recover_transactions([self._engine], opened):
                for rows in repair:
                    await self._store(rows)
        self.add(opened)
        return True

    async def _store(self, rows: TableRows) -> None:
        if rows.rows:
            table = rows.table
            data = block(table, rows.rows)
            await self._engine.insert_block(
                0, table.name, table.column_list, data, f"{table.name}-{uuid4()}"
            )

    def _opened(self, topic: Topic, partition: int, start: int, end: int) -> PartitionLog:
        return PartitionLog(topic, partition, start, end, self.first_fresh_producer_id)
