"""`producer_states`: what partitions know about producers, stored before their rows can be deleted.

Kafka keeps this in snapshots beside its segments: a producer is forgotten when it has been silent
for `producer.id.expiration.ms`, not when its records are deleted. Here the rows of the log tell it
(producer_recovery.py), so it is stored for itself before rows are deleted: by log_starts.py for
retention and DeleteRecords, by removals.py for compaction. No record waits for that.

`ProducerStates.save` stores the batches and markers below an offset. Those that were appended since
the log was opened it takes from memory; older ones it reads from the rows, once. What is stored
twice, or late, or by an earlier leader, changes nothing: rows with the same key are merged, and
reading adds what the log still has. The state of a producer that has expired is not stored; that
there was one is noted in the checkpoint of the partition (checkpoints.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import NamedTuple

from brokerhouse.broker.log.mutations import MUTATION_SETTINGS, is_changing
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.partition_sql import IS_IN_RANGE, log_parameters
from brokerhouse.broker.log.producers import BATCHES_KEPT, SEQUENCES
from brokerhouse.broker.log.row_sources import RowLanes, RowSources
from brokerhouse.common.batched import batched
from brokerhouse.common.clock import HOUR_MS
from brokerhouse.sql.queries import query
from brokerhouse.storage.blocks import BOOL, DATETIME64_MS, INT16, INT32, INT64, UUIDS, Table
from brokerhouse.storage.engine import Engine
from brokerhouse.storage.row_lane import TableRows

PRODUCER_STATES = Table(
    "producer_states",
    (
        ("topic_id", UUIDS),
        ("partition", INT32),
        ("producer_id", INT64),
        ("producer_epoch", INT16),
        ("control", BOOL),
        ("shift", INT32),
        ("first_offset", INT64),
        ("last_offset", INT64),
        ("coordinator_epoch", INT32),
        ("append_time", DATETIME64_MS),
    ),
)
_ROWS_AT_ONCE = 8192
"""Stored together: encoding them takes the loop 16 ms."""
_PORTIONS_READ = 8
"""So many of these are read together: each query reads the whole range again."""
_NO_MARKER = -1

_OLDER_ROWS = (
    f"{IS_IN_RANGE} AND producer_id >= {{producer_id:Int64}}"
    " AND append_time >= fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC')"
)
"""`producer_id`: the lowest that is wanted."""


class ProducerRange(NamedTuple):
    """A row of `producer_states` without its partition: neighbouring batches, or markers."""

    producer_id: int
    producer_epoch: int
    control: bool
    shift: int
    first_offset: int
    last_offset: int
    coordinator_epoch: int
    append_ms: int


class ProducerStates:
    """Stores the states of producers before their rows are deleted."""

    def __init__(
        self,
        lanes: RowLanes,
        row_sources: RowSources,
        expiration_ms: int,
        clock_ms: Callable[[], int],
    ) -> None:
        self._lanes = lanes
        self._row_sources = row_sources
        self._expiration_ms = expiration_ms
        self._clock_ms = clock_ms

    async def save(self, log: PartitionLog, below: int) -> None:
        """Store what producers have written below this offset, which is at most the high watermark.

        To be called before a checkpoint allows to delete these rows. Raises `EngineError`: then
        nothing may be deleted.
        """
        first = log.producers_saved_below
        if below <= first:
            return
        await self._store(log, _known_ranges(log, first, below))
        if first < log.opened_at:
            await self._save_older(log, first, min(below, log.opened_at))
        log.producers_saved_below = max(log.producers_saved_below, below)

    async def _save_older(self, log: PartitionLog, first: int, end: int) -> None:
        """Of rows from before the log was opened, whose producers may not be known."""
        at_once = _PORTIONS_READ * _ROWS_AT_ONCE
        parameters = log_parameters(log) | {
            "first": first,
            "end": end,
            "since_ms": max(self._clock_ms() - self._expiration_ms, 0),
            "kept": BATCHES_KEPT,
            "rows": at_once,
        }
        text = query("producer_ranges", condition=_OLDER_ROWS)
        for engine in self._row_sources.at_rest(log):
            expired = query("has_expired_rows", is_in_range=IS_IN_RANGE)
            if not log.has_forgotten and await engine.rows(expired, parameters):
                log.has_forgotten = True
            producer_id = 0
            while True:
                rows = await engine.rows(text, parameters | {"producer_id": producer_id})
                await self._store(log, (ProducerRange(*row) for row in rows))
                if len(rows) < at_once:
                    break
                producer_id = rows[-1][0]  # its rows may have been cut off

    async def _store(self, log: PartitionLog, ranges: Iterator[ProducerRange]) -> None:
        for some in batched(ranges, _ROWS_AT_ONCE):
            rows = TableRows(PRODUCER_STATES, [(log.topic_id, log.partition, *one) for one in some])
            await asyncio.gather(*(lane.store(rows) for lane in self._lanes.lanes(log)))


def _known_ranges(log: PartitionLog, first: int, below: int) -> Iterator[ProducerRange]:
    """What the log knows of batches and markers in first <= offset < below.

    All of it is stored: batches of a block that may yet be refused are not below the high
    watermark, and `stored_producers` has what was known before that block.
    """
    for producer_id, entry in log.stored_producers().items():
        for one in entry.ranges:
            if one.first_offset < below and one.last_offset >= first:
                yield ProducerRange(
                    producer_id,
                    entry.epoch,
                    False,
                    (one.first_offset - one.first) % SEQUENCES,
                    one.first_offset,
                    one.last_offset,
                    _NO_MARKER,
                    entry.last_append_ms,
                )
        if first <= entry.ended_offset < below:
            yield ProducerRange(
                producer_id,
                entry.epoch,
                True,
                0,
                entry.ended_offset,
                entry.ended_offset,
                entry.coordinator_epoch,
                entry.last_append_ms,
            )


_EXPIRED = "append_time < fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC')"


def delete_states() -> str:
    """The statement of the sweep."""
    return query(
        "delete_producer_states",
        expired=_EXPIRED,
        kept=str(BATCHES_KEPT),
        settings=MUTATION_SETTINGS,
    )


class ProducerStateSweep:
    """Deletes rows of producers that have expired, of deleted topics, and those that later rows
    replace: at the start and once an hour.
    """

    def __init__(self, engine: Engine, expiration_ms: int, clock_ms: Callable[[], int]) -> None:
        """`engine` has all tables as they are, as for `TransactionSweep`."""
        self._engine = engine
        self._expiration_ms = expiration_ms
        self._clock_ms = clock_ms
        self._swept_ms: int | None = None

    async def round(self) -> None:
        """Does nothing if the last one was less than an hour ago. Raises `EngineError`."""
        now_ms = self._clock_ms()
        if self._swept_ms is not None and now_ms - self._swept_ms < HOUR_MS:
            return
        if await is_changing(self._engine, "producer_states"):
            return  # it waits for space
        if await self._engine.rows("SELECT 1 FROM producer_states LIMIT 1"):
            since = {"since_ms": max(now_ms - self._expiration_ms, 0)}
            await self._engine.execute(query("note_forgotten_producers", expired=_EXPIRED), since)
            await self._engine.execute(delete_states(), since)
        self._swept_ms = now_ms
