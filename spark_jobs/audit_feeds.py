"""What the job `audit` says of feeds of typed tables, from their history and their tables.

Blocks follow one another: M is a block, M' the next one that was begun. What must hold, and the
anomaly where it does not:
* `backward`: M' ends at or before the beginning of M.
* `overlap`: M' begins before the end of M, and is not M, which may be repeated.
* `gap`: M' begins behind the end of M; or M was never completed; or the counts of rows do not add
  up; or the table has fewer rows of M than M was completed with.
* `duplicate`: the table has more rows of M.

Rows that somebody has deleted from the table count as missing. Source: eBay's Aggregator Runtime
Verifier, which checks the first three.
"""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  its usual name

FEED = ["group_id", "feed_id", "topic", "topic_id", "partition"]
BLOCKS = (
    "group_id string, feed_id string, topic string, topic_id string, partition int,"
    " version bigint, phase string, first bigint, end bigint, rows bigint, total_rows bigint,"
    " at_ms bigint"
)
TABLES = "feed_id string, database string, table string"
STORED = "feed_id string, topic_id string, partition int, first bigint, stored bigint"


def feed_findings(
    history: DataFrame, stored: DataFrame, uncounted: Collection[str] = ()
) -> DataFrame:
    """Columns: kind, FEED without feed_id, first, last, at_ms, detail.

    `history`: BLOCKS; a state may be there twice, from two shards. `stored`: STORED; a block that
    has rows on two shards is there twice. `uncounted`: ids of feeds whose tables are not compared.
    """
    order = Window.partitionBy(FEED).orderBy("version")
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    begun = history.where("phase = 'before'")
    pairs = (
        begun.withColumn("first_before", F.lag("first").over(order))
        .withColumn("end_before", F.lag("end").over(order))
        .withColumn("reached", F.max("end").over(before))
        .where("first_before IS NOT NULL")
        .where("NOT (first = first_before AND end = end_before)")
    )
    backward = _finding(
        pairs.where("end <= first_before"),
        "backward",
        "first",
        "end",
        "format_string('begun after the block from %d on', first_before)",
    )
    overlap = _finding(
        pairs.where("end > first_before AND first < end_before"),
        "overlap",
        "first",
        "least(end, end_before)",
        "format_string('begun after the block up to %d', end_before - 1)",
    )
    gap = _finding(
        pairs.where("first > reached"), "gap", "reached", "first", "'in no block of the feed'"
    )
    completed = history.where("phase = 'after' AND first >= 0")
    left = begun.withColumn("followed", F.lead("first").over(order)).where(
        "followed IS NOT NULL AND followed != first"
    )
    unfinished = _finding(
        left.join(completed.select(*FEED, "first", "end"), [*FEED, "first", "end"], "left_anti"),
        "gap",
        "first",
        "end",
        "'the block was never completed'",
    )
    return (
        backward.unionByName(overlap)
        .unionByName(gap)
        .unionByName(unfinished)
        .unionByName(_counts(completed, stored, uncounted))
    )


def _counts(completed: DataFrame, stored: DataFrame, uncounted: Collection[str]) -> DataFrame:
    """Where rows do not add up, in the history or in the table."""
    # A state that is written again, by the next feeder, repeats the block.
    blocks = completed.groupBy(*FEED, "first", "end").agg(
        F.max("rows").alias("rows"),
        F.max("total_rows").alias("total_rows"),
        F.max("at_ms").alias("at_ms"),
    )
    order = Window.partitionBy(FEED).orderBy("first", "end")
    added = blocks.withColumn("total_before", F.lag("total_rows").over(order)).where(
        "total_before IS NOT NULL AND total_before + rows != total_rows"
    )
    wrong_sum = _finding(
        added,
        "gap",
        "first",
        "end",
        "format_string('%d rows and %d before are not %d', rows, total_before, total_rows)",
    )
    block = ["feed_id", "topic_id", "partition", "first"]
    there = (
        blocks.where(~F.col("feed_id").isin(*uncounted))
        .join(stored.groupBy(block).agg(F.sum("stored").alias("stored")), block, "left")
        .fillna(0, ["stored"])
    )
    detail = "format_string('%d rows in the table, and %d when it was completed', stored, rows)"
    fewer = _finding(there.where("stored < rows"), "gap", "first", "end", detail)
    more = _finding(there.where("stored > rows"), "duplicate", "first", "end", detail)
    return wrong_sum.unionByName(fewer).unionByName(more)


def _finding(frame: DataFrame, kind: str, first: str, end: str, detail: str) -> DataFrame:
    return frame.select(
        F.lit(kind).alias("kind"),
        F.lit("feed").alias("of"),
        "topic",
        "topic_id",
        "partition",
        "group_id",
        F.expr(first).alias("first"),
        (F.expr(end) - 1).alias("last"),
        "at_ms",
        F.expr(detail).alias("detail"),
    )
