"""The decision of compaction: which records are removed. The rules are in compaction.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from spark_jobs.compaction_targets import CompactionTarget
from spark_jobs.queries import Query, answers
from spark_jobs.sql_client import SqlServers
from sql.queries import query
from storage.engine import Parameter

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession

ABORT, COMMIT = 0, 1

RECORDS = (
    "target int, offset long, key binary, tombstone boolean, size long, stays boolean,"
    " producer long, transactional boolean, marker int"
)
"""The records to decide about. `target`: the number of the partition in this run. `marker`: null
unless the row is a transaction marker. `stays`: it stays for another reason than its key."""
PRODUCERS = "target int, offset long"
"""The last record of each producer that the broker still knows."""
TARGETS = "target int, bound long, due_end long, width long"
"""The partitions, as in `CompactionTarget`. `width`: offsets whose batches one task writes."""


def decide(
    records: DataFrame, of_transactions: DataFrame, producers: DataFrame, targets: DataFrame
) -> DataFrame:
    """The RECORDS below the bounds that are removed: target, offset, size, tombstone, blocked.

    `of_transactions`: the RECORDS of the partitions that have records of transactions. Spark reads
    them again, because their transaction decides about them first.
    A row with `blocked` is not removed: it is a tombstone, and an older record of its key stays for
    now, so the time of this tombstone has not begun.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

    columns = ["target", "offset", "key", "tombstone", "size", "stays", "aborted"]
    plain = records.where("marker IS NULL AND NOT transactional")
    in_transactions = of_transactions.where("marker IS NOT NULL OR transactional")
    # In descending order, what was seen before a row is what came after it.
    backwards = Window.partitionBy("target", "producer").orderBy(F.desc("offset"))
    seen = backwards.rowsBetween(Window.unboundedPreceding, -1)
    ended = F.last(F.when(F.col("marker").isin(ABORT, COMMIT), F.col("marker")), True).over(seen)
    data = (
        in_transactions.withColumn("ended", ended)
        .where("marker IS NULL")
        .withColumn("aborted", F.expr(f"ended <=> {ABORT}"))
    )
    looked_at = (
        plain.withColumn("aborted", F.lit(False))
        .select(columns)
        .unionByName(data.select(columns))
        .join(F.broadcast(targets), "target")
        .where("offset < bound")
    )
    known = producers.withColumn("known", F.lit(True))
    protected = looked_at.join(known, ["target", "offset"], "left").withColumn(
        "stays", F.expr("stays OR known IS NOT NULL")
    )
    of_key = Window.partitionBy("target", "key").orderBy("offset")
    before = of_key.rowsBetween(Window.unboundedPreceding, -1)
    keyed = (
        protected.where("key IS NOT NULL AND NOT aborted")
        .withColumn("superseded", F.lead("offset").over(of_key).isNotNull())
        .withColumn("older", F.count("offset").over(before) > 0)
        .withColumn("older_stays", F.coalesce(F.max("stays").over(before), F.lit(False)))
        .withColumn(
            "removed",
            F.expr("NOT stays AND (superseded OR (tombstone AND NOT older AND offset < due_end))"),
        )
        .withColumn("blocked", F.expr("tombstone AND NOT superseded AND older_stays"))
    )
    worthless = (
        protected.where("key IS NULL OR aborted")
        .withColumn("removed", F.expr("NOT stays"))
        .withColumn("blocked", F.lit(False))
    )
    found = ["target", "offset", "size", "tombstone", "superseded", "blocked", "width"]
    return (
        keyed.where("removed OR blocked")
        .select(found)
        .unionByName(worthless.where("removed").withColumn("superseded", F.lit(True)).select(found))
    )


def records_of(
    spark: SparkSession,
    servers: SqlServers,
    targets: Iterable[tuple[int, CompactionTarget]],
    recent_ms: int,
    read: Accumulator[int] | None = None,
) -> DataFrame:
    """RECORDS of numbered partitions. Those of idempotent producers after `recent_ms` stay."""
    sql = query("compaction_records")
    queries = []
    for number, target in targets:
        for start in range(target.start, target.end, target.width):
            of_slice: dict[str, Parameter] = {
                **target.parameters,
                "start": start,
                "slice_end": min(start + target.width, target.end),
                "number": number,
                "bound": target.bound,
                "last": target.end - 1,
                "recent_ms": recent_ms,
            }
            queries.append(Query(sql, of_slice))
    return answers(spark, servers, queries, RECORDS, read)


def producers_of(
    spark: SparkSession, servers: SqlServers, targets: Sequence[CompactionTarget], known_ms: int
) -> DataFrame:
    """PRODUCERS. The broker still knows those that wrote after `known_ms`."""
    sql = query("compaction_producers")
    queries = [
        Query(sql, {**target.parameters, "number": n, "end": target.end, "known_ms": known_ms})
        for n, target in enumerate(targets)
    ]
    return answers(spark, servers, queries, PRODUCERS)
