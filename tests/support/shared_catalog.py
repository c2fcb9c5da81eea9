"""Beside a cluster's catalog of topics: a registry in memory, and who leads which partition."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from broker.cluster.topics import Partition
from broker.log.partition import PartitionLog
from broker.log.topic import Topic
from storage.engine import EngineError
from storage.registry import Versioned


class MemoryRegistry:
    """A registry in memory; `before_write` runs once, before the next write is decided."""

    def __init__(self) -> None:
        self.values: dict[str, Versioned] = {}
        self.away = False
        self.before_write: asyncio.Future[None] | None = None
        self.writing = asyncio.Event()

    async def get(self, key: str) -> Versioned | None:
        self._answer()
        return self.values.get(key)

    async def list(self, prefix: str) -> dict[str, Versioned]:
        self._answer()
        return {key: one for key, one in self.values.items() if key.startswith(prefix)}

    async def compare_and_set(self, key: str, expected: Versioned | None, value: str) -> bool:
        self._answer()
        if self.before_write is not None:
            self.writing.set()
            waited, self.before_write = self.before_write, None
            await waited
        if self.values.get(key) != expected:
            return False
        self.values[key] = Versioned(value, 0 if expected is None else expected.version + 1)
        return True

    async def delete(self, key: str, expected: Versioned) -> bool:
        self._answer()
        if self.values.get(key) not in (None, expected):
            return False
        self.values.pop(key, None)
        return True

    def _answer(self) -> None:
        if self.away:
            raise EngineError("the registry is away")


class HalfLeader:
    """Leads the partitions whose number is even, or odd."""

    def __init__(self, remainder: int) -> None:
        self.remainder = remainder
        self.awake = True
        self.away = False
        self.were_closed: list[PartitionLog] = []
        self.were_opened: list[Partition] = []

    def may_serve(self) -> bool:
        return self.awake

    def leads(self, topic: Topic, partition: int) -> bool:
        return partition % 2 == self.remainder

    def fresh(self, topic: Topic, partition: int) -> PartitionLog:
        return PartitionLog(topic, partition, 0, 0, 0, 7)

    def by_shard(self, partitions: Sequence[Partition]) -> Collection[Sequence[Partition]]:
        return [partitions]

    async def open(self, partitions: Sequence[Partition]) -> list[PartitionLog]:
        await asyncio.sleep(0)
        if self.away and partitions:
            raise EngineError("the shard is away")
        self.were_opened += partitions
        return [PartitionLog(topic, number, 0, 5, 0, 7) for topic, number in partitions]

    def closed(self, partitions: Collection[PartitionLog]) -> None:
        self.were_closed += partitions
