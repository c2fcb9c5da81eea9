"""The job `audit`: whether every offset is there once and in order, and whether commits make sense.

The log of a partition is read as runs: offsets without a hole that came in one block (rows with one
append_time and leader epoch). What has to hold, and the anomaly where it does not:
* `gap`: from the start of the log to its end every offset has a row, or compaction took it
  (`compaction_removals`). Below the start nothing is missing: retention and DeleteRecords move the
  start before they delete. Nor is a commit beyond the end of the log accounted for.
* `duplicate`: no offset twice in a block; `overlap`: nor in two blocks.
* `backward`: what was written later has higher offsets. Later is a higher leader epoch; within one,
  an append_time that is later by more than clocks are set back by. Of commits: one that goes
  back by a member of an older generation, or by another member of the same one, which the
  coordinator refuses.
* `reset` is no anomaly: a commit that goes back otherwise. An administrator's and that of a
  consumer without a group look alike, and a member may go back at will.

The log may grow, and be cut at its start, meanwhile: ends are read before the rows, starts and
removals after them, commits before the ends that they are compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  (what everybody calls it)

from spark_jobs import job
from spark_jobs.job import Report, Run
from spark_jobs.sql import Question, frame

SLICE_ROWS = 1_000_000
"""Offsets of a partition that one question is about: what ClickHouse has to hold at once."""
QUESTION_ROWS = 500_000
CLOCK_TOLERANCE_MS = 5 * 60_000
"""The broker's own: how far append_time may stay ahead of a clock that was set back."""
SHOWN = 200

PARTITION = ["topic", "topic_id", "partition"]
KEY = ["group_id", *PARTITION]
RUNS = (
    "topic string, topic_id string, partition int, append_ms bigint, epoch int, first bigint,"
    " last bigint, times bigint"
)
RANGES = "topic string, topic_id string, partition int, first bigint, last bigint"
ENDS = "topic string, topic_id string, partition int, log_start bigint, end_offset bigint"
COMMITS = (
    "group_id string, topic string, topic_id string, partition int, version bigint, offset bigint,"
    " generation int, member_id string, deleted boolean, commit_ms bigint"
)
FINDINGS = ("kind", "of", *PARTITION, "group_id", "first", "last", "at_ms", "detail")
ANOMALIES = ("backward", "overlap", "duplicate", "gap")

# --- steps


def _finding(frame: DataFrame, kind: str, of: str, detail: str) -> DataFrame:
    """`detail` is a format of SQL's printf and its arguments. The rest has its name already."""
    group = F.col("group_id") if "group_id" in frame.columns else F.lit(None).cast("string")
    return frame.select(
        F.lit(kind).alias("kind"), F.lit(of).alias("of"), *PARTITION, group.alias("group_id"),
        "first", "last", F.col("at_ms").cast("bigint"), F.expr(detail).alias("detail"),
    )  # fmt: skip


def duplicates(runs: DataFrame) -> DataFrame:
    """Offsets that are in one block more than once."""
    found = runs.where("times > 1")
    return _finding(
        found.withColumnRenamed("append_ms", "at_ms"), "duplicate", "log",
        "format_string('%d times in one block', times)",
    )  # fmt: skip


def overlaps(runs: DataFrame) -> DataFrame:
    """Offsets that two blocks have; the time is that of the later one in order of offsets."""
    order = Window.partitionBy(PARTITION).orderBy("first", "last", "append_ms", "epoch")
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    found = (
        runs.withColumn("reached", F.max("last").over(before))
        .where(F.col("first") <= F.col("reached"))
        .withColumn("last", F.least("last", "reached"))
    )
    return _finding(
        found.withColumnRenamed("append_ms", "at_ms"), "overlap", "log",
        "format_string('in a block of epoch %d and in one before', epoch)",
    )  # fmt: skip


def backward(runs: DataFrame) -> DataFrame:
    """Runs that lie before one that was written earlier."""
    by_epoch = (
        Window.partitionBy(PARTITION).orderBy("epoch").rangeBetween(Window.unboundedPreceding, -1)
    )
    by_time = (
        Window.partitionBy(*PARTITION, "epoch")
        .orderBy("append_ms")
        .rangeBetween(Window.unboundedPreceding, -CLOCK_TOLERANCE_MS - 1)
    )
    earlier = F.greatest(F.max("first").over(by_epoch), F.max("first").over(by_time))
    found = runs.withColumn("earlier", earlier).where(F.col("last") < F.col("earlier"))
    return _finding(
        found.withColumnRenamed("append_ms", "at_ms"), "backward", "log",
        "format_string('written after offset %d', earlier)",
    )  # fmt: skip


def gaps(runs: DataFrame, removed: DataFrame, ends: DataFrame) -> DataFrame:
    """Offsets between the start and the end of the log that neither a row nor a removal has.

    The time is that of the block before the gap.
    """
    nothing = F.lit(None).cast("bigint")
    before_start = ends.select(
        *PARTITION, F.lit(-1).cast("bigint").alias("first"),
        (F.col("log_start") - 1).alias("last"), nothing.alias("append_ms"),
    )  # fmt: skip
    from_end = ends.select(
        *PARTITION, F.col("end_offset").alias("first"), F.col("end_offset").alias("last"),
        nothing.alias("append_ms"),
    )  # fmt: skip
    covered = (
        runs.select(*PARTITION, "first", "last", "append_ms")
        .unionByName(removed.withColumn("append_ms", nothing))
        .unionByName(before_start)
        .unionByName(from_end)
    )
    before = (
        Window.partitionBy(PARTITION)
        .orderBy("first", "last")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    found = (
        covered.withColumn("reached", F.max("last").over(before))
        .withColumn("at_ms", F.max_by("append_ms", "last").over(before))
        .where(F.col("first") > F.col("reached") + 1)
        .select(
            *PARTITION, (F.col("reached") + 1).alias("first"), (F.col("first") - 1).alias("last"),
            "at_ms",
        )
    )  # fmt: skip
    return _finding(found, "gap", "log", "'no row and no removal'")


def commits_back(commits: DataFrame) -> DataFrame:
    """Commits below the one before: `backward` where the coordinator should have refused it.

    An offset that was deleted, or expired, is no commit before: what follows begins anew.
    """
    order = Window.partitionBy(KEY).orderBy("version")
    lives = commits.withColumn("life", F.sum(F.col("deleted").cast("int")).over(order)).where(
        ~F.col("deleted")
    )
    life = Window.partitionBy(*KEY, "life").orderBy("version")
    before = life.rowsBetween(Window.unboundedPreceding, -1)
    back = (
        lives.withColumn("came_from", F.lag("offset").over(life))
        .withColumn("newest", F.max("generation").over(before))
        .withColumn("generation_before", F.lag("generation").over(life))
        .withColumn("member_before", F.lag("member_id").over(life))
        .where(F.col("offset") < F.col("came_from"))
        .withColumn("first", F.col("offset"))
        .withColumn("last", F.col("came_from") - 1)
        .withColumn("at_ms", F.col("commit_ms"))
    )
    another = (F.col("generation") == F.col("generation_before")) & (
        F.col("member_id") != F.col("member_before")
    )
    refusable = (F.col("generation") >= 0) & ((F.col("generation") < F.col("newest")) | another)
    told = "format_string('generation %d, member %s', generation, member_id)"
    return _finding(back.where(refusable), "backward", "commits", told).unionByName(
        _finding(back.where(~refusable), "reset", "commits", told)
    )


def commits_beyond(commits: DataFrame, ends: DataFrame) -> DataFrame:
    """Committed offsets past the end of the log: a row per group and partition."""
    found = (
        commits.where(~F.col("deleted"))
        .join(ends.select("topic_id", "partition", "end_offset"), ["topic_id", "partition"])
        .where(F.col("offset") > F.col("end_offset"))
        .groupBy(*KEY, "end_offset")
        .agg(F.max("offset").alias("offset"), F.max_by("commit_ms", "offset").alias("at_ms"))
        .select(
            *KEY, F.col("end_offset").alias("first"), (F.col("offset") - 1).alias("last"), "at_ms"
        )
    )
    return _finding(found, "gap", "commits", "'committed, and beyond the end of the log'")


# --- questions

_ENDS = """
    SELECT
        topic, toString(topic_id) AS topic_id, partition,
        log_start_offset AS log_start, end_offset
    FROM partition_stats
    WHERE match(topic, {topics:String})
"""
_FIRST_ROWS = """
    SELECT toString(topic_id), partition, min(offset) AS first, max(offset) AS last
    FROM messages
    WHERE match(topic, {topics:String}) AND topic != ''
    GROUP BY topic_id, partition
"""
# arraySplit cuts before an offset that does not follow, or is there more or less often.
_RUNS = """
    SELECT
        topic, toString(topic_id) AS topic_id, partition, append_ms, epoch,
        run[1].1 AS first, run[-1].1 AS last, run[1].2 AS times
    FROM
    (
        SELECT
            topic, topic_id, partition, append_ms, epoch,
            arraySort(groupArray((offset, times))) AS offsets,
            arraySplit(
                (one, step, more) -> step > 1 OR more != 0,
                offsets, arrayDifference(offsets.1), arrayDifference(offsets.2)) AS runs
        FROM
        (
            SELECT
                topic, topic_id, partition, toUnixTimestamp64Milli(append_time) AS append_ms,
                leader_epoch AS epoch, offset, toInt64(count()) AS times
            FROM messages
            WHERE topic = {topic:String} AND topic_id = {topic_id:UUID}
                AND partition = {partition:Int32}
                AND offset >= {from:Int64} AND offset < {to:Int64}
            GROUP BY topic, topic_id, partition, append_ms, epoch, offset
        )
        GROUP BY topic, topic_id, partition, append_ms, epoch
    )
    ARRAY JOIN runs AS run
"""
_REMOVED = """
    SELECT
        topic, toString(topic_id) AS topic_id, partition, range.1 AS first, range.2 AS last
    FROM compaction_removals
    ARRAY JOIN ranges AS range
    WHERE match(topic, {topics:String})
"""
_IS_THERE = (
    "SELECT count() FROM system.tables"
    " WHERE database = 'brokerhouse' AND name = 'compaction_removals'"
)
_WEEKS = """
    SELECT toString(toMonday(stored_at)) AS week, count() AS commits
    FROM consumer_offsets
    WHERE match(group_id, {groups:String}) AND match(topic, {topics:String})
    GROUP BY week
"""
_COMMITS = """
    SELECT
        group_id, topic, toString(topic_id) AS topic_id, partition, toInt64(version) AS version,
        offset, generation, member_id, deleted, toUnixTimestamp64Milli(commit_time) AS commit_ms
    FROM consumer_offsets
    WHERE match(group_id, {groups:String}) AND match(topic, {topics:String})
        AND toMonday(stored_at) = toDate({week:String})
        AND topic_id GLOBAL IN (SELECT topic_id FROM topics)
        AND cityHash64(group_id) % {parts:UInt64} = {part:UInt64}
"""


def slices(partitions: Sequence[Sequence[Any]], rows: Sequence[Sequence[Any]]) -> list[Question]:
    """What to ask about the log: a question per partition and SLICE_ROWS offsets.

    `partitions`: as _ENDS gives them. `rows`: the first and last offset that has a row, which may
    be below the start of the log.
    """
    reach = {(topic_id, partition): (first, last) for topic_id, partition, first, last in rows}
    asked = []
    for topic, topic_id, partition, _, end in partitions:
        first, last = reach.get((topic_id, partition), (0, -1))
        for start in range(first, min(last + 1, end), SLICE_ROWS):
            parameters = {
                "topic": topic, "topic_id": topic_id, "partition": partition,
                "from": start, "to": min(start + SLICE_ROWS, end),
            }  # fmt: skip
            asked.append(Question(_RUNS, parameters))
    return asked


def _commit_questions(run: Run) -> list[Question]:
    selected = {"groups": run.groups, "topics": run.topics}
    return [
        Question(_COMMITS, {**selected, "week": week, "parts": parts, "part": part})
        for week, commits in run.endpoint.rows(_WEEKS, selected)
        for parts in [commits // QUESTION_ROWS + 1]
        for part in range(parts)
    ]


def _log_findings(run: Run) -> DataFrame:
    spark, topics = run.spark(), {"topics": run.topics}
    partitions = run.endpoint.rows(_ENDS, topics)
    questions = slices(partitions, run.endpoint.rows(_FIRST_ROWS, topics))
    run.say(f"reading the blocks of {len(partitions)} partitions, in {len(questions)} slices")
    runs = frame(spark, run.endpoint, questions, RUNS).cache()
    runs.count()
    known = bool(run.endpoint.rows(_IS_THERE)[0][0])
    removed = frame(
        spark, run.endpoint, [Question(_REMOVED, topics)] if known else [], RANGES
    ).cache()
    starts = {tuple(row[1:3]): row[3] for row in run.endpoint.rows(_ENDS, topics)}
    # A topic that was deleted meanwhile has no start any more, and is left out.
    bounds = [
        (topic, topic_id, partition, starts[topic_id, partition], end)
        for topic, topic_id, partition, _, end in partitions
        if (topic_id, partition) in starts
    ]
    ends = spark.createDataFrame(bounds, ENDS)
    there = runs.join(F.broadcast(ends.drop("topic", "end_offset")), ["topic_id", "partition"])
    live = there.where(F.col("last") >= F.col("log_start")).drop("log_start")
    missing = gaps(live, removed.join(ends.select(PARTITION), PARTITION, "left_semi"), ends)
    return (
        missing.unionByName(overlaps(live))
        .unionByName(duplicates(live))
        .unionByName(backward(there.drop("log_start")))
    )


def _commit_findings(run: Run) -> DataFrame:
    spark = run.spark()
    commits = frame(spark, run.endpoint, _commit_questions(run), COMMITS).cache()
    commits.count()
    ends = frame(spark, run.endpoint, [Question(_ENDS, {"topics": run.topics})], ENDS)
    return commits_back(commits).unionByName(commits_beyond(commits, ends))


# --- the job


@job.command("audit")
def command(run: Run, /) -> Report:
    """Look for offsets that are missing, doubled or out of order, and for commits that go back.

    Prints a row for each and ends with exit code 1 if there is any; `reset` is no anomaly. Nothing
    is written. --group concerns commits alone.
    """
    run.say("reading commits")
    commits = _commit_findings(run)
    found = _log_findings(run).unionByName(commits).cache()
    run.say("looking for anomalies")
    counts = {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
    worst = found.orderBy(F.col("kind") == "reset", *FINDINGS).limit(SHOWN)
    rows = [_row(row) for row in worst.collect()]
    anomalies = sum(counts.get(kind, 0) for kind in ANOMALIES)
    told = ", ".join(f"{counts.get(kind, 0)} {kind}" for kind in ANOMALIES)
    summary = f"{anomalies} anomalies ({told}); {counts.get('reset', 0)} resets of offsets"
    if sum(counts.values()) > SHOWN:
        summary += f"; the first {SHOWN} are shown"
    return Report(COLUMNS, rows, summary, ok=anomalies == 0)


COLUMNS = ("kind", "of", "topic", "partition", "group", "first", "last", "at", "detail")


def _row(found: Any) -> Sequence[object]:
    at_ms = found["at_ms"]
    return (
        found["kind"], found["of"], found["topic"], found["partition"], found["group_id"],
        found["first"], found["last"],
        None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC), found["detail"],
    )  # fmt: skip


if __name__ == "__main__":
    command()
