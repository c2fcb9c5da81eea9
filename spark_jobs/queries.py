"""Queries answered as a DataFrame: Spark's workers ask, and answers bypass the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

from brokerhouse.spark_jobs.sql_client import SqlServers
from brokerhouse.storage.engine import Parameter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Query:
    """A statement and the values that are bound to its parameters."""

    sql: str
    parameters: Mapping[str, Parameter] = field(default_factory=dict)


def rows_of_answer(answer: pa.Table) -> int:
    return int(answer.num_rows)


def answers(
    spark: SparkSession,
    servers: SqlServers,
    queries: Sequence[Query],
    schema: str,
    read: Accumulator[int] | None = None,
    rows_of: Callable[[pa.Table], int] = rows_of_answer,
) -> DataFrame:
    """The answers to all queries as one DataFrame with this schema.

    A worker holds one answer at a time, so each must fit into its memory. Raises SqlFailure in
    the worker. `read` is increased by `rows_of` each answer, when the task of its query ends.
    """
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    columns = StructType.fromDDL(schema)
    assert isinstance(columns, StructType)
    wanted = to_arrow_schema(columns, timezone="UTC")

    def ask(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                query = queries[number]
                answer = servers.table(query.sql, query.parameters)
                if read is not None:
                    read.add(rows_of(answer))
                yield from answer.select(wanted.names).cast(wanted).to_batches()

    numbers = spark.range(0, len(queries), 1, max(len(queries), 1))
    return numbers.mapInArrow(ask, schema)


def answers_of_shards(
    spark: SparkSession,
    shards: Sequence[SqlServers],
    queries: Sequence[Sequence[Query]],
    schema: str,
    read: Accumulator[int] | None = None,
    rows_of: Callable[[pa.Table], int] = rows_of_answer,
) -> DataFrame:
    """As `answers`: for each shard, its own queries."""
    frames = [
        answers(spark, servers, asked, schema, read, rows_of)
        for servers, asked in zip(shards, queries, strict=True)
    ]
    return reduce(lambda one, other: one.unionByName(other), frames)
