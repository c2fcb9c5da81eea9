"""Records of Kafka as rows of text, by Spark's own functions.

The result has for each record its place (topic, partition, offset), its `rows` (an array, because a
JSON value may be an array of objects), or an `error` that says why there are none. Each value is
text, or null. A tombstone has no rows and no error.

Values of binary formats become JSON first, by the decoders of the broker's own feeds, in Spark's
Python workers: they know several schemas side by side, and read all the broker reads.

CSV stays what it is, in the column `value`: ClickHouse reads it (feed_writer.py), so that each
record is the row, or the dead letter, that it is in a broker.

CSV stays what it is, in the column `value`: ClickHouse reads it (feed_writer.py), so that each
record is the row, or the dead letter, that it is in a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  its usual name

from coordinator.feeds.decoding.formats import decoder
from coordinator.feeds.decoding.registry import SchemaRegistry
from coordinator.feeds.decoding.worker import Worker
from coordinator.feeds.definition import Format
from coordinator.feeds.statements import Column as TableColumn
from spark_jobs.feed_writer import SparkFeed
from spark_jobs.job import JobFailure

_NOT_JSON = "not valid JSON, or a field comes twice"
_NO_ROWS = "neither an object nor an array of objects"


def parsed(records: DataFrame, feed: SparkFeed, schema_registry: str) -> DataFrame:
    """The rows of `records`, which are those of Spark's Kafka source."""
    columns = [one for one in feed.columns if not one.is_metadata]
    of_kafka = [name for name in feed.record_columns if name != "value"]
    records = records.select("topic", "partition", "offset", *of_kafka, "value")
    if feed.is_read_by_clickhouse:
        return records.withColumn("error", F.lit(""))
    if feed.format is Format.CSV:
        return records.withColumn("error", F.lit(""))
    if feed.format is Format.RAW:
        return _raw(records, columns)
    if feed.format.is_decoded:
        paths = [column.path for column in columns]
        decode = ValueDecoding(feed.format.value, paths, schema_registry)
        records = records.withColumn("decode_error", F.lit(""))
        return _json(records.mapInArrow(decode, records.schema), columns)
    return _json(records.withColumn("decode_error", F.lit("")), columns)


@dataclass(frozen=True, slots=True)
class ValueDecoding:
    """Called by Spark in its workers. Raises `RegistryUnavailable`."""

    kind: str
    paths: Sequence[Sequence[str]]
    registry: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        registry = SchemaRegistry(self.registry) if self.registry else None
        decode, worker = decoder(self.kind, self.paths, registry), Worker()
        for batch in batches:
            values, errors = [], []
            for value in batch.column("value").to_pylist():
                rows, error = (None, "") if value is None else worker.decoded(value, decode)
                values.append(rows)
                errors.append(error.encode("utf-8", "replace").decode())
            table = pa.table(batch)
            for name, made in (("value", pa.array(values, pa.binary())), ("decode_error", errors)):
                table = table.set_column(table.column_names.index(name), name, pa.array(made))
            yield from table.combine_chunks().to_batches()


def _raw(records: DataFrame, columns: Sequence[TableColumn]) -> DataFrame:
    row = F.struct(F.col("value").cast("string").alias(columns[0].name))
    return _with(records, F.array(row), F.lit(None))


def _json(records: DataFrame, columns: Sequence[TableColumn]) -> DataFrame:
    """Numbers keep all of their digits in a VARIANT, unlike in a STRING that from_json fills."""
    text = F.col("value").cast("string")
    begins = F.substring(F.ltrim(text, F.lit(" \t\r\n")), 1, 1)
    records = records.select(
        "*", F.from_json(text, "variant").alias("_json"), begins.alias("_begins")
    )
    is_array = F.col("_begins") == "["
    items = F.when(is_array, F.try_variant_get("_json", "$", "array<variant>"))
    rows = F.when(is_array, F.transform(items, lambda one: _row(one, columns))).otherwise(
        F.array(_row(F.col("_json"), columns))
    )
    no_object = F.exists(
        items, lambda one: one.isNull() | ~F.schema_of_variant(one).startswith("OBJECT")
    )
    error = (
        F.when(F.col("value").isNull(), F.lit(None))
        .when(F.col("decode_error") != "", F.col("decode_error"))
        .when(F.col("_json").isNull(), F.lit(_NOT_JSON))
        .when(~F.col("_begins").isin("{", "["), F.lit(_NO_ROWS))
        .when(is_array & no_object, F.lit(_NO_ROWS))
    )
    return _with(records, rows, error).drop("_json", "_begins", "decode_error")


def _row(value: Column, columns: Sequence[TableColumn]) -> Column:
    """A JSON object as a struct of text, nested as the paths of the columns are."""
    return nested(columns, lambda path: F.try_variant_get(value, _variant_path(path), "string"))


def nested(columns: Sequence[TableColumn], text: Callable[[tuple[str, ...]], Column]) -> Column:
    """The struct that the temporary table has for a row."""

    def level(paths: Sequence[tuple[str, ...]], above: tuple[str, ...]) -> Column:
        steps: dict[str, list[tuple[str, ...]]] = {}
        for path in paths:
            steps.setdefault(path[0], []).append(path[1:])
        fields = []
        for step, below in steps.items():
            here = (*above, step)
            if () in below and len(below) > 1:
                raise JobFailure(f"a column is the field {'.'.join(here)}, and another is in it")
            fields.append((text(here) if below == [()] else level(below, here)).alias(step))
        return F.struct(*fields)

    return level([column.path for column in columns], ())


def _variant_path(path: Sequence[str]) -> str:
    return "$" + "".join(f'["{step}"]' if "'" in step else f"['{step}']" for step in path)


def _with(records: DataFrame, rows: Column, error: Column) -> DataFrame:
    """`rows`: anything where the record has an error or no value."""
    records = records.withColumn("error", F.coalesce(error.cast("string"), F.lit("")))
    has_rows = F.col("value").isNotNull() & (F.col("error") == "")
    return records.withColumn("rows", F.when(has_rows, rows)).drop("value")
