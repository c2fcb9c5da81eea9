"""Records of Kafka as the rows that the scanner of the broker's own feeds makes of them.

The result has for each record its place (topic, partition, offset), what Kafka says of it, and its
`rows` in RowBinary (feeds/values/). A tombstone has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from brokerhouse.feeds.decoding.debezium import packed
from brokerhouse.feeds.decoding.formats import decoder
from brokerhouse.feeds.decoding.registry import SchemaRegistry
from brokerhouse.feeds.decoding.worker import Worker
from brokerhouse.feeds.values.layout import RowLayout
from brokerhouse.spark_jobs.feed_writer import SparkFeed


def parsed(records: DataFrame, feed: SparkFeed, schema_registry: str) -> DataFrame:
    """The rows of `records`, which are those of Spark's Kafka source."""
    more = [*feed.record_columns]
    key = ["key"] if feed.format.needs_key and "key" not in more else []
    records = records.select("topic", "partition", "offset", *more, *key, "value")
    scanned = records.mapInArrow(ValueScan(feed, schema_registry), records.schema)
    return scanned.drop(*key).withColumnRenamed("value", "rows")


@dataclass(frozen=True, slots=True)
class ValueScan:
    """Called by Spark in its workers: rows in place of values. Raises `RegistryUnavailable`."""

    feed: SparkFeed
    registry: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        scan = _Scan(self.feed, self.registry)
        for batch in batches:
            offsets = batch.column("offset").to_pylist()
            rows = [
                None if value is None else scan.rows(offset, value)
                for offset, value in zip(offsets, self._values(batch), strict=True)
            ]
            table = pa.table(batch)
            place = table.column_names.index("value")
            yield from (
                table.set_column(place, "value", pa.array(rows, pa.binary()))
                .combine_chunks()
                .to_batches()
            )

    def _values(self, batch: pa.RecordBatch) -> list[bytes | None]:
        values: list[bytes | None] = batch.column("value").to_pylist()
        if not self.feed.format.needs_key:
            return values
        return [
            None if value is None else packed(key, value)
            for key, value in zip(batch.column("key").to_pylist(), values, strict=True)
        ]


class _Scan:
    def __init__(self, feed: SparkFeed, registry: str) -> None:
        layout = RowLayout(feed.columns, feed.format)
        self._scanner = layout.scanner()
        self._worker = Worker()
        self._decode = None
        if feed.format.is_decoded:
            paths = [column.path for column in layout.values]
            known = SchemaRegistry(registry) if registry else None
            self._decode = decoder(feed.format.value, paths, known)

    def rows(self, offset: int, value: bytes) -> bytes:
        if self._decode is not None:
            value, error = self._worker.decoded(value, self._decode)
            if error:
                return self._scanner.bad_record(offset, error)
        return self._scanner.scan_record(offset, value)
