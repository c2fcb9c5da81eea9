"""A log with a clock of its own, for tests of the roll-up and of the views that read it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from uuid import UUID, uuid4

from brokerhouse.broker.log.rollup import AppendedRows, CountedMinutes, Rollup
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import EngineError, Parameter
from brokerhouse.storage.schema_files import ROW_BYTES
from tests.support.clock import NOON
from tests.support.stored_rows import store_records, store_topic

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR


class CountedEngine:
    """The real engine, whose windows fail before or after they are stored; counts those stored."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self.engine = engine
        self.insert_block = engine.insert_block
        self.read_native = engine.read_native
        self.rows = engine.rows
        self.handle = engine.handle
        self.close = engine.close
        self.windows = self.windows_of_seconds = 0
        self.counted = asyncio.Event()
        self.fault: str | None = None

    async def execute(self, sql: str, params: Mapping[str, Parameter] | None = None) -> None:
        minutes = "INSERT INTO partition_minutes" in sql
        counting = minutes or "INSERT INTO partition_seconds" in sql
        if counting and self.fault == "before":
            self.fault = None
            raise EngineError("scripted", 999)
        await self.engine.execute(sql, params)
        if counting:
            self.windows += minutes
            self.windows_of_seconds += not minutes
            self.counted.set()
            if self.fault == "after":
                self.fault = None
                raise EngineError("scripted", 999)


class Log:
    """Appends rows as the appender does: by the clock, but never before the time it was given."""

    def __init__(self, engine: CountedEngine) -> None:
        self.engine = engine
        self.now_ms = NOON
        self.floor_ms = 0
        self.ends: dict[tuple[str, UUID, int], int] = {}
        self.bytes: dict[tuple[str, UUID, int], int] = {}
        self.appended = 0
        self.told: list[int] = []
        self.on_the_way: list[tuple[str, int, int]] = []

    def clock_ms(self) -> int:
        return self.now_ms

    def rollup(self, row_bytes: str = ROW_BYTES, counted: CountedMinutes | None = None) -> Rollup:
        """The roll-up of this log, as after a start of the broker."""
        rows = AppendedRows(lambda: self.appended)
        return Rollup(self.engine, self, self.clock_ms, rows, row_bytes, counted=counted)

    async def restart(self) -> Rollup:
        """As `ShardHost.begin`, before the first record of another start."""
        self.floor_ms = 0
        counted = CountedMinutes(self.engine, self.clock_ms)
        await self.no_row_before((await counted.ends()).until_ms)
        return self.rollup(counted=counted)

    async def no_row_before(self, time_ms: int) -> None:
        """As in the appender: returns when all blocks that have their time are stored."""
        self.told.append(time_ms)
        self.floor_ms = time_ms
        while self.on_the_way:
            topic, count, append_time_ms = self.on_the_way.pop()
            await self.store(topic, count, append_time_ms)

    async def topic(self, name: str, partitions: int = 1) -> UUID:
        """A topic, or one that replaces the one of this name."""
        await self.delete_topic(name)
        topic_id = uuid4()
        await store_topic(self.engine, name, topic_id, partitions)
        for partition in range(partitions):
            self.ends[name, topic_id, partition] = self.bytes[name, topic_id, partition] = 0
        return topic_id

    async def delete_topic(self, name: str) -> None:
        for topic, topic_id, partition in list(self.ends):
            if topic == name:
                await store_topic(self.engine, name, topic_id, version=2, state="deleting")
                del self.ends[topic, topic_id, partition]
                del self.bytes[topic, topic_id, partition]

    async def append(self, topic: str, count: int = 1, value_bytes: int = 5) -> None:
        await self.store(topic, count, max(self.now_ms, self.floor_ms), value_bytes)

    async def store(
        self, topic: str, count: int, append_time_ms: int, value_bytes: int = 5
    ) -> None:
        key = next(key for key in self.ends if key[0] == topic)
        _, topic_id, partition = key
        await store_records(
            self.engine,
            topic,
            topic_id,
            append_time_ms=append_time_ms,
            partition=partition,
            first=self.ends[key],
            count=count,
            value_bytes=value_bytes,
        )
        self.ends[key] += count
        self.bytes[key] += value_bytes * count
        self.appended += count
