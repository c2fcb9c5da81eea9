"""Where the rows of a partition are: in one ClickHouse, or, after its slot was moved, in several.

A moved partition has its earlier rows where they were; nothing is copied. It may come back to a
shard, so a range that one shard has may lie between two of another. Nothing here is stored: the
next row on each shard says where to read on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from broker.log.partition import PartitionLog
from storage.engine import Engine


@dataclass(frozen=True, slots=True)
class Place:
    """An engine, and the offset up to which it has all rows that there are; None: to the end."""

    engine: Engine
    end: int | None = None


class Places(Protocol):
    async def of_offset(self, partition: PartitionLog, offset: int) -> Place:
        """Where this offset is, or would be. Raises `EngineError`."""

    def engines(self, partition: PartitionLog) -> Sequence[Engine]:
        """Every engine that may have rows of the partition, each once."""


class OnePlace:
    """`Places` of a broker with one ClickHouse."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def of_offset(self, partition: PartitionLog, offset: int) -> Place:
        return Place(self._engine)

    def engines(self, partition: PartitionLog) -> Sequence[Engine]:
        return (self._engine,)


async def next_offset(engine: Engine, partition: PartitionLog, offset: int) -> int | None:
    """The first offset from `offset` on that this engine has a row of. Raises `EngineError`."""
    rows = await engine.rows(
        "SELECT offset FROM messages WHERE topic = {topic:String} AND topic_id = {topic_id:UUID}"
        " AND partition = {partition:Int32} AND offset >= {offset:Int64}"
        " ORDER BY topic, partition, offset LIMIT 1",
        {
            "topic": partition.topic.name,
            "topic_id": str(partition.topic_id),
            "partition": partition.partition,
            "offset": offset,
        },
    )
    return rows[0][0] if rows else None
