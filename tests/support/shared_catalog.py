"""What a cluster's catalog of topics needs: a registry in memory, and leaders of partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping

from brokerhouse.broker.log.open_logs import OpenLogs, Partition
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.topic import Topic
from brokerhouse.storage.engine import EngineError
from brokerhouse.storage.registry import Versioned


class MemoryRegistry:
    """A registry in memory; `before_write` runs once, before the next write is decided."""

    def __init__(self) -> None:
        self.values: dict[str, Versioned] = {}
        self.creations: list[Collection[str]] = []
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

    async def create(self, values: Mapping[str, str]) -> dict[str, Versioned]:
        self._answer()
        created = {
            key: self.values[key]
            for key, value in values.items()
            if await self.compare_and_set(key, None, value)
        }
        self.creations.append(created)
        return created

    async def attempt(self, key: str, expected: Versioned | None, value: str) -> None:
        await self.compare_and_set(key, expected, value)

    async def delete(self, key: str, expected: Versioned) -> bool:
        self._answer()
        if self.values.get(key) not in (None, expected):
            return False
        self.values.pop(key, None)
        return True

    def _answer(self) -> None:
        if self.away:
            raise EngineError("the registry is away")


class HalfLeader(OpenLogs):
    """Leads the partitions whose number is even, or odd; the log of each ends at offset 5."""

    def __init__(self, remainder: int) -> None:
        super().__init__(lambda: self.awake)
        self.remainder = remainder
        self.awake = True
        self.away = False
        self.were_closed: list[PartitionLog] = []
        self.were_opened: list[Partition] = []

    def leads(self, partition: int) -> bool:
        return partition % 2 == self.remainder

    async def open_new(self, created: Collection[Partition]) -> bool:
        self.add(PartitionLog(*one, 0, 0, 0, 7) for one in created if self.leads(one[1]))
        return True

    async def open_missing(self, topics: Collection[Topic]) -> bool:
        missing = [one for one in self.missing(topics) if self.leads(one[1])]
        await asyncio.sleep(0)
        if self.away:
            return not missing
        for one in missing:
            await self.open_one(*one)
        return True

    async def open_one(self, topic: Topic, partition: int) -> None:
        self.were_opened.append((topic, partition))
        self.add([PartitionLog(topic, partition, 0, 5, 0, 7)])

    def remove(self, logs: Iterable[PartitionLog]) -> None:
        logs = list(logs)
        super().remove(logs)
        self.were_closed += logs
