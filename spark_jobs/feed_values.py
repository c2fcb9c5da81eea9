"""Records of Kafka as rows of text, by Spark's own functions.

The result has for each record its place (topic, partition, offset), its `rows` (an array, because a
JSON value may be an array of objects), an `error` that says why there are none, or the `schema`
that has to be known first. Each value is text, or null. A tombstone has no rows and no error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  its usual name

from coordinator.feeds.definition import Format
from coordinator.feeds.statements import Column as TableColumn
from spark_jobs.feed_writer import SparkFeed
from spark_jobs.job import JobFailure

_NOT_JSON = "not valid JSON, or a field comes twice"
_NO_ROWS = "neither an object nor an array of objects"


def parsed(records: DataFrame, feed: SparkFeed) -> DataFrame:
    """The rows of `records`, which are those of Spark's Kafka source."""
    columns = [one for one in feed.columns if not one.is_metadata]
    kept = ["topic", "partition", "offset", *(name[1:] for name in feed.kafka_columns), "value"]
    made = _raw if feed.format is Format.RAW else _json
    return made(records.select(*kept), columns).drop("value")


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
        .when(F.col("_json").isNull(), F.lit(_NOT_JSON))
        .when(~F.col("_begins").isin("{", "["), F.lit(_NO_ROWS))
        .when(is_array & no_object, F.lit(_NO_ROWS))
    )
    return _with(records, rows, error).drop("_json", "_begins")


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


def _with(
    records: DataFrame, rows: Column, error: Column, schema: Column | None = None
) -> DataFrame:
    """`rows`: null, or anything, where the record has an error, no value or an unknown schema."""
    nothing = F.lit(None).cast("string")
    records = records.select(
        "*", error.cast("string").alias("error"),
        (nothing if schema is None else schema).alias("schema"),
    )  # fmt: skip
    has_rows = F.col("value").isNotNull() & F.col("error").isNull() & F.col("schema").isNull()
    return records.withColumn("rows", F.when(has_rows, rows))
