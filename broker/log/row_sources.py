"""Which engine has the rows of a partition: one, or several after its slot was moved.

A moved partition keeps its earlier rows where they are; nothing is copied. It may come back to a
shard, so a range of offsets on one shard may lie between two ranges of another. Where the ranges
begin and end is stored nowhere: the next row on each shard tells where to read on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from broker.log.partition import PartitionLog
from broker.log.partition_sql import IS_PARTITION, LogName, log_parameters
from broker.log.tail_cache import AllInEngine, LogProgress
from storage.disk_reserve import DiskReserve
from storage.engine import Engine, NativeBlock, Parameter
from storage.journal_found import FoundRecords
from storage.row_lane import RowLane


class LogReads(Protocol):
    """What reads ranges of the log."""

    def read_native(
        self, sql: str, params: Mapping[str, Parameter], chunk_bytes: int
    ) -> AsyncGenerator[NativeBlock, None]:
        """As `Engine.read_native`."""


@dataclass(frozen=True, slots=True)
class RowSource:
    """An engine that has all rows up to the offset `end`; None: up to the end of the log."""

    engine: LogReads
    end: int | None = None


class RowSources(Protocol):
    async def of_offset(self, partition: PartitionLog, offset: int) -> RowSource:
        """The source of this offset and of those after it. Raises `EngineError`."""

    def engines(self, partition: PartitionLog) -> Sequence[Engine]:
        """Every engine that may have rows of the partition, each once. Raises `EngineError`."""


class SingleRowSource:
    """`RowSources` of a broker with one ClickHouse."""

    def __init__(
        self,
        engine: Engine,
        progress: LogProgress | None = None,
        found: Callable[[], FoundRecords | None] = lambda: None,
    ) -> None:
        """`found`: records that are not in the table, because the disk was full at the start."""
        self._engine = engine
        self._progress = progress or AllInEngine()
        self._found = found

    async def of_offset(self, partition: PartitionLog, offset: int) -> RowSource:
        found = self._found()
        if found is not None:
            first, end = found.range_of(partition.topic_id, partition.partition)
            if offset < first < end:
                return RowSource(self._engine, first)
            if first <= offset < end:
                return RowSource(found, end)
        return RowSource(self._engine, partition.tail.first_after(self._progress.in_engine))

    def engines(self, partition: PartitionLog) -> Sequence[Engine]:
        return (self._engine,)


class RowLanes(Protocol):
    def lanes(self, partition: PartitionLog) -> Collection[RowLane]:
        """The row lane of each engine that may have rows of the partition. Raises `EngineError`."""


class SingleRowLane:
    """`RowLanes` of a broker with one ClickHouse."""

    def __init__(self, lane: RowLane, reserve: DiskReserve | None = None) -> None:
        self._lane = lane
        self._reserve = reserve

    def lanes(self, partition: PartitionLog) -> Collection[RowLane]:
        if self._reserve is not None:
            self._reserve.release()  # records are about to be deleted
        return (self._lane,)


async def source_of_offset(
    engines: Sequence[Engine], partition: LogName, offset: int, end: int
) -> RowSource:
    """As `RowSources.of_offset`, among engines of which the last one is written to.

    `end`: of the log, read before this is called; rows that are added later do not matter. Raises
    `EngineError`.
    """
    if len(engines) == 1:
        return RowSource(engines[0])
    firsts = await asyncio.gather(*(next_stored_offset(one, partition, offset) for one in engines))
    found = sorted(
        (first, number) for number, first in enumerate(firsts) if first is not None and first < end
    )
    if not found:
        return RowSource(engines[-1], end)
    ends = [first for first, _ in found[1:]]
    return RowSource(engines[found[0][1]], ends[0] if ends else end)


async def next_stored_offset(engine: Engine, partition: LogName, offset: int) -> int | None:
    """The first offset, from `offset` on, for which this engine has a row. Raises `EngineError`."""
    rows = await engine.rows(
        f"SELECT offset FROM messages WHERE {IS_PARTITION} AND offset >= {{offset:Int64}}"
        " ORDER BY topic, partition, offset LIMIT 1",
        log_parameters(partition) | {"offset": offset},
    )
    return rows[0][0] if rows else None
