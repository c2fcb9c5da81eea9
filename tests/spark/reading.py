"""Reading with the data source, with and without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader, Filter

from brokerhouse.spark_jobs.datasource import BrokerhouseDataSource
from brokerhouse.spark_jobs.slices import Slice
from tests.support.records import Record

FORMAT = "brokerhouse"
T = TypeVar("T")


def frame(spark: SparkSession, url: str, **options: Any) -> DataFrame:
    """What Spark reads. Options that are not text become text, as in Spark."""
    return spark.read.format(FORMAT).options(servers=url, **options).load()


class Reading:
    """The reader as Spark uses it: filters, then slices, then each slice by itself."""

    def __init__(self, url: str, filters: Iterable[Filter] = (), **options: str) -> None:
        source = BrokerhouseDataSource({"servers": url, **options})
        self.reader: DataSourceReader = source.reader(source.schema())
        self.left = list(self.reader.pushFilters(list(filters)))
        self.slices = [one for one in self.reader.partitions() if isinstance(one, Slice)]

    def rows(self) -> list[dict[str, Any]]:
        return [row for one in self.slices for row in self.rows_of(one)]

    def rows_of(self, one: Slice) -> list[dict[str, Any]]:
        return [row for batch in self.reader.read(one) for row in batch.to_pylist()]  # type: ignore[union-attr]


def with_python(run: Callable[[], T]) -> T:
    """What a streaming query gives; it is run again if its Python process came too late.

    Spark 4.3 waits 10 s for that process, which imports pandas first, and has no setting for it.
    """
    for _ in range(5):
        try:
            return run()
        except StreamingQueryException as failure:
            if "waiting for the Python worker to connect back" not in str(failure):
                raise
    return run()


def record(row: Any) -> Record:
    """A row of Spark as the `Record` of other tests. Its timestamp must fit."""
    headers = tuple((header["key"], _bytes(header["value"])) for header in row["headers"] or ())
    timestamp = row["timestamp"]
    return Record(
        key=_bytes(row["key"]),
        value=_bytes(row["value"]),
        headers=headers,
        timestamp_ms=None if timestamp is None else round(timestamp.timestamp() * 1000),
        offset=row["offset"],
    )


def _bytes(value: bytes | bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)
