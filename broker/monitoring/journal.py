"""Metrics of the journal of a single broker: what is acknowledged and not in the tables yet."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric

from broker.monitoring.families import counter, gauge, histogram
from storage.journal import JournaledEngine
from storage.journal_drain import DrainStream
from storage.journal_statements import LOG

_STREAM = ("stream",)


class JournalMetrics:
    """`MetricSource` of the journal. Its streams: the log, and the rows of small tables."""

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
