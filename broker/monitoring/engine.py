"""Metrics of the embedded engine (parts, merges, memory, disk), and of its journal.

Those of the engine need statements, and the engine may be slow. So a scrape waits for a moment
only, and otherwise shows the last numbers and how old they are. The statements read `system` tables
past the journal: nothing is drained for them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client.core import Metric

from brokerhouse.broker.monitoring.families import Values, counter, gauge, histogram
from brokerhouse.common.tasks import Outage, cancel
from brokerhouse.sql.queries import query
from brokerhouse.storage.engine import Engine, EngineError, Row
from brokerhouse.storage.journal import JournaledEngine
from brokerhouse.storage.journal_drain import DrainStream
from brokerhouse.storage.journal_statements import LOG

log = logging.getLogger(__name__)

_WAIT_S = 1.0
_TABLE = ("table",)


@dataclass(frozen=True, slots=True)
class _Sample:
    """What the engine said about itself at `taken_s`, by the monotonic clock."""

    taken_s: float
    tables: Sequence[Row] = ()
    engine: Mapping[str, int] = field(default_factory=dict)


class EngineMetrics:
    """`MetricSource` of the engine of a single broker."""

    def __init__(self, engine: Engine, data_dir: Path) -> None:
        """`engine`: without its journal."""
        self._engine = engine
        self._data_dir = data_dir
        self._sample = _Sample(time.monotonic())
        self._sampling: asyncio.Task[None] | None = None
        self._outage = Outage(
            log, "the engine's metrics cannot be read", "the engine's metrics are read again"
        )

    async def collect(self) -> Iterable[Metric]:
        if self._sampling is None or self._sampling.done():
            self._sampling = asyncio.create_task(self._take(), name="engine-metrics")
        await asyncio.wait([self._sampling], timeout=_WAIT_S)
        if self._sampling.done():
            self._sampling.result()  # a bug
        disk = await asyncio.to_thread(os.statvfs, self._data_dir)
        return [
            *self._of_tables(),
            *self._of_engine(),
            gauge(
                "brokerhouse_disk_free_bytes",
                "Free space on the disk of the data directory",
                disk.f_bavail * disk.f_frsize,
            ),
            gauge(
                "brokerhouse_disk_size_bytes",
                "Size of the disk of the data directory",
                disk.f_blocks * disk.f_frsize,
            ),
            gauge(
                "brokerhouse_engine_sample_age_seconds",
                "Age of the metrics of the engine; it grows while the engine does not answer",
                time.monotonic() - self._sample.taken_s,
            ),
        ]

    async def close(self) -> None:
        await cancel(self._sampling)

    async def _take(self) -> None:
        try:
            tables = await self._engine.rows(query("table_metrics"))
            engine = await self._engine.rows(query("engine_metrics"))
        except EngineError as error:
            self._outage.failed(error)
            return
        self._outage.worked()
        self._sample = _Sample(
            time.monotonic(), tables, {str(name): int(value) for name, value in engine}
        )

    def _of_tables(self) -> Iterable[Metric]:
        def column(number: int) -> Values:
            return [((row[0],), row[number]) for row in self._sample.tables]

        yield gauge("brokerhouse_engine_parts", "Active parts of a table", column(1), _TABLE)
        yield gauge(
            "brokerhouse_engine_outdated_parts",
            "Parts that were merged or dropped and are still on the disk",
            column(2),
            _TABLE,
        )
        yield gauge("brokerhouse_engine_rows", "Rows of a table", column(3), _TABLE)
        yield gauge(
            "brokerhouse_engine_table_bytes", "Size of a table on the disk", column(4), _TABLE
        )

    def _of_engine(self) -> Iterable[Metric]:
        found = self._sample.engine
        if not found:
            return
        yield gauge("brokerhouse_engine_merges", "Merges that run", found["merges"])
        yield gauge(
            "brokerhouse_engine_mutations", "Mutations that are not done", found["mutations"]
        )
        yield gauge(
            "brokerhouse_engine_memory_bytes",
            "Memory that the engine counts",
            found["MemoryTracking"],
        )
        yield counter(
            "brokerhouse_engine_merged_rows_total",
            "Rows that merges have read",
            found.get("MergedRows", 0),
        )
        yield counter(
            "brokerhouse_engine_inserted_rows_total",
            "Rows inserted into tables",
            found.get("InsertedRows", 0),
        )


_STREAM = ("stream",)


class JournalMetrics:
    """`MetricSource` of the journal: what is acknowledged and not in the tables yet.

    Its streams: the log, and the rows of small tables.
    """

    def __init__(self, engine: JournaledEngine, max_bytes: int) -> None:
        self._engine = engine
        self._max_bytes = max_bytes

    async def collect(self) -> Iterable[Metric]:
        streams = [((_name(stream),), stream) for stream in self._engine.streams]
        return [
            gauge(
                "brokerhouse_journal_file_bytes",
                "Size of the journal's files",
                self._engine.writer.file_bytes,
            ),
            gauge(
                "brokerhouse_journal_waiting_limit_bytes",
                "The setting journal_max_bytes",
                self._max_bytes,
            ),
            gauge(
                "brokerhouse_journal_waiting_bytes",
                "Blocks that are not in the tables yet",
                [(labels, stream.waiting_bytes) for labels, stream in streams],
                _STREAM,
            ),
            gauge(
                "brokerhouse_journal_waiting_rows",
                "Rows that are not in the tables yet",
                [(labels, stream.waiting_rows) for labels, stream in streams],
                _STREAM,
            ),
            gauge(
                "brokerhouse_journal_oldest_seconds",
                "How long the oldest of these rows has waited since the last round",
                [(labels, stream.oldest_age_s) for labels, stream in streams],
                _STREAM,
            ),
            gauge(
                "brokerhouse_journal_refused",
                "1 while the engine refuses rows of the journal, else 0",
                [(labels, stream.refusal is not None) for labels, stream in streams],
                _STREAM,
            ),
            counter(
                "brokerhouse_journal_drained_rows_total",
                "Rows put into the tables",
                [(labels, stream.drained_rows) for labels, stream in streams],
                _STREAM,
            ),
            histogram(
                "brokerhouse_journal_drain_seconds",
                "Rounds that put rows into the tables",
                [(labels, stream.rounds) for labels, stream in streams],
                _STREAM,
            ),
        ]


def _name(stream: DrainStream) -> str:
    return "log" if stream.number == LOG else "rows"
