"""Which engine has the rows of a partition: one, or several after its slot was moved.

A moved partition keeps its earlier rows where they are; nothing is copied. It may come back to a
shard, so a range of offsets on one shard may lie between two ranges of another. Where the ranges
begin and end is stored nowhere: the next row on each shard tells where to read on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.partition_sql import IS_PARTITION, LogName, log_parameters
from brokerhouse.sql.queries import query
from brokerhouse.storage.engine import Engine, NativeBlock, Parameter
from brokerhouse.storage.journal import JournaledEngine
from brokerhouse.storage.row_lane import RowLane


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

    def at_rest(self, partition: PartitionLog) -> Sequence[Engine]:
        """The same for rows that have been acknowledged for long: from before the start, or until
        `Tables.settled`. Statements do not wait for newer ones. Raises `EngineError`.
        """


class ShardRows:
    """How the rows of one shard are read, if they are in its tables when they are acknowledged."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def patient(self) -> Engine:
        """The same engine for work in the background, which can wait."""
        return self.engine

    @property
    def at_rest(self) -> Engine:
        """See `RowSources.at_rest`."""
        return self.engine

    def source(self, partition: PartitionLog, offset: int) -> RowSource:
        """See `RowSources.of_offset`, if all rows of the partition are on this shard."""
        return RowSource(self.engine)


class JournaledRows(ShardRows):
    """The same for the embedded engine: rows that are only in its journal are not in a table."""

    def __init__(self, engine: JournaledEngine) -> None:
        super().__init__(engine)
        self._journaled = engine

    @property
    def patient(self) -> Engine:
        return self._journaled.patient

    @property
    def at_rest(self) -> Engine:
        # If the disk was full at the start, rows from before it are not in the tables either.
        engine = self._journaled
        return engine.embedded if engine.recovery.unplaced is None else engine

    def source(self, partition: PartitionLog, offset: int) -> RowSource:
        engine, unplaced = self._journaled, self._journaled.recovery.unplaced
        if unplaced is not None:
            first, end = unplaced.range_of(partition.topic_id, partition.partition)
            if offset < first < end:
                return RowSource(engine, first)
            if first <= offset < end:
                return RowSource(unplaced, end)
        return RowSource(engine, partition.tail.first_after(engine.in_engine))


class RowLanes(Protocol):
    def lanes(self, partition: PartitionLog) -> Collection[RowLane]:
        """The row lane of each engine that may have rows of the partition. Raises `EngineError`."""


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
        query("next_stored_offset", is_partition=IS_PARTITION),
        log_parameters(partition) | {"offset": offset},
    )
    return rows[0][0] if rows else None
