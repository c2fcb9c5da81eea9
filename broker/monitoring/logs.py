"""Metrics of the log: lanes, caches, partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest

from prometheus_client.core import Metric

from brokerhouse.broker.log.appender import Appender
from brokerhouse.broker.log.lane import Lane
from brokerhouse.broker.log.reader import ColdReader
from brokerhouse.broker.log.tail_cache import TailCache
from brokerhouse.broker.monitoring.families import counter, gauge, histogram
from brokerhouse.broker.topics.catalog import TopicCatalog
from brokerhouse.common.tasks import in_turns

_LANE = ("shard", "lane")


@dataclass(frozen=True, slots=True)
class LaneSource:
    """The lanes that write to one shard; there are none between two sessions."""

    shard: str
    appender: Callable[[], Appender | None]


class LogMetrics:
    """`MetricSource` of what is stored and read."""

    def __init__(
        self,
        lanes: Sequence[LaneSource],
        tail_cache: TailCache,
        cold_reader: ColdReader,
        topics: TopicCatalog,
        partitions_max: int,
    ) -> None:
        self._lanes = lanes
        self._tail_cache = tail_cache
        self._cold_reader = cold_reader
        self._topics = topics
        self._partitions_max = partitions_max

    async def collect(self) -> Iterable[Metric]:
        return [*self._of_lanes(), *self._of_caches(), *await self._of_partitions()]

    def _each_lane(self) -> Iterator[tuple[tuple[str, str], Lane]]:
        for source in self._lanes:
            appender = source.appender()
            for lane in () if appender is None else appender.lanes:
                yield (source.shard, str(lane.number)), lane

    def _of_lanes(self) -> Iterable[Metric]:
        lanes = list(self._each_lane())
        yield counter(
            "brokerhouse_appended_records_total",
            "Records stored, markers of transactions included",
            [(labels, lane.counts.records) for labels, lane in lanes],
            _LANE,
        )
        yield counter(
            "brokerhouse_appended_bytes_total",
            "Compressed size of stored record batches",
            [(labels, lane.counts.batch_bytes) for labels, lane in lanes],
            _LANE,
        )
        yield counter(
            "brokerhouse_lane_blocks_total",
            "Blocks stored: many record batches are one block",
            [(labels, lane.counts.blocks) for labels, lane in lanes],
            _LANE,
        )
        yield counter(
            "brokerhouse_lane_blocks_refused_total",
            "Blocks that the engine refused; their producers got an error",
            [(labels, lane.counts.refused) for labels, lane in lanes],
            _LANE,
        )
        yield gauge(
            "brokerhouse_lane_queued_batches",
            "Record batches that wait for the next block",
            [(labels, len(lane.queue)) for labels, lane in lanes],
            _LANE,
        )
        yield histogram(
            "brokerhouse_lane_insert_seconds",
            "Time until a block was stored: in the journal, or by ClickHouse servers",
            [(labels, lane.counts.inserts) for labels, lane in lanes],
            _LANE,
        )

    def _of_caches(self) -> Iterable[Metric]:
        tail, cold = self._tail_cache, self._cold_reader
        yield gauge("brokerhouse_tail_cache_bytes", "Newest batches in memory", tail.size)
        yield gauge(
            "brokerhouse_tail_cache_limit_bytes", "The setting tail_cache_bytes", tail.max_bytes
        )
        yield gauge("brokerhouse_cold_cache_bytes", "Batches read ahead from the table", cold.size)
        yield gauge(
            "brokerhouse_cold_cache_limit_bytes", "The setting cold_cache_bytes", cold.max_bytes
        )
        yield histogram(
            "brokerhouse_cold_load_seconds",
            "Time of reads of the log from the table, including reads ahead",
            [((), cold.loads)],
        )
        yield counter(
            "brokerhouse_cold_loaded_bytes_total",
            "Record batches read from the table",
            cold.loaded_bytes,
        )

    async def _of_partitions(self) -> list[Metric]:
        rows = []
        open_transactions = 0
        async for log in in_turns(self._topics.logs.all()):
            rows.append((log.topic.name, log.partition, log.log_start_offset, log.high_watermark))
            open_transactions += len(log.transactions.open)
        shown = await asyncio.to_thread(nsmallest, self._partitions_max, rows)
        labels = ("topic", "partition")
        return [
            gauge("brokerhouse_topics", "Topics that this broker knows", len(self._topics.known)),
            gauge("brokerhouse_partitions", "Partitions that this broker leads", len(rows)),
            gauge(
                "brokerhouse_partitions_left_out",
                "Partitions that have no series: see the setting metrics_partitions_max",
                len(rows) - len(shown),
            ),
            gauge(
                "brokerhouse_partition_start_offset",
                "First offset that can be read",
                [((topic, str(partition)), start) for topic, partition, start, _ in shown],
                labels,
            ),
            gauge(
                "brokerhouse_partition_end_offset",
                "Offset that the next record will get (the high watermark)",
                [((topic, str(partition)), end) for topic, partition, _, end in shown],
                labels,
            ),
            gauge(
                "brokerhouse_partition_transactions_open",
                "Open transactions with records in partitions of this broker",
                open_transactions,
            ),
        ]
