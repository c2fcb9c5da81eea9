"""The job `audit`: is every offset stored once and in order, are commits and feeds consistent?

The log of a partition is read as runs: consecutive offsets of one block (the rows with one
append_time and leader epoch). What must hold, and the anomaly where it does not:
* `gap`: between the start and the end of the log every offset has a row, or compaction removed it
  (`compaction_removals`). Below the start no row is expected: retention and DeleteRecords move the
  start before they delete. A commit beyond the end of the log is a gap too.
* `duplicate`: an offset is twice in a block; `overlap`: an offset is in two blocks.
* `backward`: rows that were written later have lower offsets. Later means a higher leader epoch, or
  within an epoch an append_time that is later by more than a clock may be set back. Of commits: one
  that goes back, by a member of an older generation, or by another member of the same generation;
  the coordinator refuses those.
* `reset`: any other commit that goes back. It is not an anomaly: commits of an administrator and of
  a consumer without a group look alike, and a member may go back whenever it wants to.

Of feeds of typed tables: audit_feeds.py.

On a cluster each shard is asked for its own rows, if the named servers reach all shards; else a
server for those of all shards (`brokerhouse`). Rows of a partition whose slot has moved are on
several shards, and are one log here.

The log may grow meanwhile, and its start may move: ends are read before the rows, starts and
removals after them, commits before the ends that they are compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  its usual name

from brokerhouse.spark_jobs import job
from brokerhouse.spark_jobs.audit_feed_reading import audit_feeds_of_brokers, audit_feeds_of_the_job
from brokerhouse.spark_jobs.job import JobReport, JobRun
from brokerhouse.spark_jobs.progress import counted
from brokerhouse.spark_jobs.queries import Query, answers_of_shards
from brokerhouse.spark_jobs.shards import find_shards
from brokerhouse.spark_jobs.sql_client import SqlServers
from brokerhouse.sql.queries import query
from brokerhouse.storage.engine import Parameter

SLICE_ROWS = 1_000_000
"""Offsets of a partition that one query covers: what ClickHouse has to hold at once."""
PART_ROWS = 500_000
"""Commits that one query returns, about: a worker holds them in memory."""
CLOCK_TOLERANCE_MS = 5 * 60_000
"""How far append_time may stay ahead of a clock that was set back: the broker's own limit."""
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
    """`detail`: a SQL expression; the other columns have their names already."""
    group = F.col("group_id") if "group_id" in frame.columns else F.lit(None).cast("string")
    return frame.select(
        F.lit(kind).alias("kind"),
        F.lit(of).alias("of"),
        *PARTITION,
        group.alias("group_id"),
        "first",
        "last",
        F.col("at_ms").cast("bigint"),
        F.expr(detail).alias("detail"),
    )


def duplicates(runs: DataFrame) -> DataFrame:
    """Offsets that one block has more than once."""
    found = runs.where("times > 1")
    return _finding(
        found.withColumnRenamed("append_ms", "at_ms"),
        "duplicate",
        "log",
        "format_string('%d times in one block', times)",
    )


def overlaps(runs: DataFrame) -> DataFrame:
    """Offsets that two blocks have; the time is that of the second block by offsets."""
    order = Window.partitionBy(PARTITION).orderBy("first", "last", "append_ms", "epoch")
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    found = (
        runs.withColumn("reached", F.max("last").over(before))
        .where(F.col("first") <= F.col("reached"))
        .withColumn("last", F.least("last", "reached"))
    )
    return _finding(
        found.withColumnRenamed("append_ms", "at_ms"),
        "overlap",
        "log",
        "format_string('in a block of epoch %d and in an earlier one', epoch)",
    )


def backward(runs: DataFrame) -> DataFrame:
    """Runs whose offsets are lower than those of a run that was written earlier."""
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
        found.withColumnRenamed("append_ms", "at_ms"),
        "backward",
        "log",
        "format_string('written after offset %d', earlier)",
    )


def gaps(runs: DataFrame, removed: DataFrame, ends: DataFrame) -> DataFrame:
    """Offsets between the start and the end of the log without a row and without a removal.

    The time is that of the block before the gap.
    """
    nothing = F.lit(None).cast("bigint")
    before_start = ends.select(
        *PARTITION,
        F.lit(-1).cast("bigint").alias("first"),
        (F.col("log_start") - 1).alias("last"),
        nothing.alias("append_ms"),
    )
    from_end = ends.select(
        *PARTITION,
        F.col("end_offset").alias("first"),
        F.col("end_offset").alias("last"),
        nothing.alias("append_ms"),
    )
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
            *PARTITION,
            (F.col("reached") + 1).alias("first"),
            (F.col("first") - 1).alias("last"),
            "at_ms",
        )
    )
    return _finding(found, "gap", "log", "'no row and no removal'")


def commits_back(commits: DataFrame) -> DataFrame:
    """Commits lower than the one before: `backward` where the coordinator should have refused it.

    After an offset was deleted or expired, the next commit counts as the first one.
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
    detail = "format_string('generation %d, member %s', generation, member_id)"
    return _finding(back.where(refusable), "backward", "commits", detail).unionByName(
        _finding(back.where(~refusable), "reset", "commits", detail)
    )


def commits_beyond(commits: DataFrame, ends: DataFrame) -> DataFrame:
    """Committed offsets beyond the end of the log: a row per group and partition."""
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
    return _finding(found, "gap", "commits", "'committed, but beyond the end of the log'")


# --- what to read

_HAS_REMOVALS = (
    "SELECT toInt64(count()) FROM system.tables"
    " WHERE database = {database:String} AND name = 'compaction_removals'"
)


def _partitions(shards: Sequence[SqlServers], topics: str) -> list[Sequence[Any]]:
    """The rows of audit_partitions: where each partition starts and ends.

    Each shard has all of them, and knows of a slot that has moved only what it has itself.
    """
    found: dict[tuple[str, int], Sequence[Any]] = {}
    for servers in shards:
        for topic, topic_id, partition, *bounds in servers.rows(
            query("audit_partitions"), {"topics": topics}
        ):
            known = found.get((topic_id, partition), (0, 0, 0, 0, 0))[3:]
            both = map(max, zip(known, bounds, strict=True))
            found[topic_id, partition] = (topic, topic_id, partition, *both)
    return list(found.values())


def slices(partitions: Sequence[Sequence[Any]], rows: Sequence[Sequence[Any]]) -> list[Query]:
    """The queries that read the log: one per partition and SLICE_ROWS offsets.

    `partitions`: the rows of audit_partitions. `rows`: those of audit_stored_offsets.
    """
    reach = {(topic_id, partition): (first, last) for topic_id, partition, first, last, _ in rows}
    queries = []
    for topic, topic_id, partition, _, end in partitions:
        first, last = reach.get((topic_id, partition), (0, -1))
        for start in range(first, min(last + 1, end), SLICE_ROWS):
            parameters = {
                "topic": topic,
                "topic_id": topic_id,
                "partition": partition,
                "from": start,
                "to": min(start + SLICE_ROWS, end),
            }
            queries.append(Query(query("audit_runs"), parameters))
    return queries


def _commit_queries(groups: str, topics: str, weeks: Sequence[Sequence[Any]]) -> Sequence[Query]:
    """`weeks`: the rows of audit_commit_weeks."""
    selected: dict[str, Parameter] = {"groups": groups, "topics": topics}
    return [
        Query(query("audit_commits"), {**selected, "week": week, "parts": parts, "part": part})
        for week, commits in weeks
        for parts in [commits // PART_ROWS + 1]
        for part in range(parts)
    ]


def _rows_of_runs(runs: pa.Table) -> int:
    first, last, times = (runs[name].to_numpy() for name in ("first", "last", "times"))
    return int(((last - first + 1) * times).sum())


def _log_findings(run: JobRun, shards: Sequence[SqlServers]) -> DataFrame:
    topics: dict[str, Parameter] = {"topics": run.topics}
    partitions = _partitions(shards, run.topics)
    stored = [one.rows(query("audit_stored_offsets"), topics) for one in shards]
    queries = [slices(partitions, rows) for rows in stored]
    count = sum(map(len, queries))
    spark = run.spark(count)
    ask = partial(answers_of_shards, spark, shards)
    read = spark.sparkContext.accumulator(0)
    run.progress.step(
        f"reading the blocks of {counted(len(partitions), 'partition')},"
        f" in {counted(count, 'slice')}",
        sum(rows for found in stored for *_, rows in found),
        lambda: read.value,
    )
    runs = ask(queries, RUNS, read, _rows_of_runs).cache()
    runs.count()
    removed = ask([_removal_queries(one, topics) for one in shards], RANGES).cache()
    now = _partitions(shards, run.topics)
    starts = {(topic_id, partition): start for _, topic_id, partition, start, _ in now}
    # A topic that was deleted meanwhile is left out.
    bounds = [
        (topic, topic_id, partition, starts[topic_id, partition], end)
        for topic, topic_id, partition, _, end in partitions
        if (topic_id, partition) in starts
    ]
    ends = spark.createDataFrame(bounds, ENDS)
    existing = runs.join(F.broadcast(ends.drop("topic", "end_offset")), ["topic_id", "partition"])
    live = existing.where(F.col("last") >= F.col("log_start")).drop("log_start")
    missing = gaps(live, removed.join(ends.select(PARTITION), PARTITION, "left_semi"), ends)
    return (
        missing.unionByName(overlaps(live))
        .unionByName(duplicates(live))
        .unionByName(backward(existing.drop("log_start")))
    )


def _removal_queries(servers: SqlServers, topics: dict[str, Parameter]) -> Sequence[Query]:
    ((has_removals,),) = servers.rows(_HAS_REMOVALS, {"database": servers.database or ""})
    return [Query(query("audit_removed"), topics)] if has_removals else []


def _commit_findings(run: JobRun, shards: Sequence[SqlServers]) -> DataFrame:
    selected: dict[str, Parameter] = {"groups": run.groups, "topics": run.topics}
    weeks = [one.rows(query("audit_commit_weeks"), selected) for one in shards]
    queries = [_commit_queries(run.groups, run.topics, found) for found in weeks]
    spark = run.spark(sum(map(len, queries)))
    read = spark.sparkContext.accumulator(0)
    commits = answers_of_shards(spark, shards, queries, COMMITS, read).cache()
    run.progress.step(
        "reading commits",
        sum(commits for found in weeks for _, commits in found),
        lambda: read.value,
    )
    commits.count()
    ends = spark.createDataFrame(_partitions(shards, run.topics), ENDS)
    return commits_back(commits).unionByName(commits_beyond(commits, ends))


# --- the job


@job.command("audit")
def command(run: JobRun, /) -> JobReport:
    """Look for offsets that are missing, doubled or out of order, and for commits that go back.

    Also for blocks of typed tables that are not as they should be. Prints a row for each, and
    ends with exit code 1 if there is an anomaly; a `reset` is not one. Writes nothing. --group
    selects commits only.
    """
    shards = find_shards(run.servers.urls, run.servers.login)
    commits = _commit_findings(run, shards)
    found = _log_findings(run, shards).unionByName(commits)
    audits = [audit_feeds_of_brokers(run, shards)]
    audits += [audit_feeds_of_the_job(run, servers) for servers in shards]
    uncounted: list[str] = []
    for audit in audits:
        if audit is not None:
            found = found.unionByName(audit.findings)
            uncounted += audit.uncounted
    found = found.cache()
    run.progress.step("looking for anomalies")
    counts = {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
    worst = found.orderBy(F.col("kind") == "reset", *FINDINGS).limit(SHOWN)
    rows = [_row(row) for row in worst.collect()]
    anomalies = sum(counts.get(kind, 0) for kind in ANOMALIES)
    each = ", ".join(f"{counts.get(kind, 0)} {kind}" for kind in ANOMALIES)
    summary = f"{anomalies} anomalies ({each}); {counts.get('reset', 0)} resets of offsets"
    if sum(counts.values()) > SHOWN:
        summary += f"; the first {SHOWN} are shown"
    if uncounted:
        summary += (
            "; not counted, without column _block or with rows that replace each other:"
            f" {', '.join(uncounted)}"
        )
    return JobReport(COLUMNS, rows, summary, ok=anomalies == 0)


COLUMNS = ("kind", "of", "topic", "partition", "group", "first", "last", "at", "detail")


def _row(found: Any) -> Sequence[object]:
    at_ms = found["at_ms"]
    at = None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC)
    place = (found[name] for name in ("kind", "of", "topic", "partition", "group_id"))
    return (*place, found["first"], found["last"], at, found["detail"])


if __name__ == "__main__":
    command()
