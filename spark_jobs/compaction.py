"""The job `compaction`: of each key the latest record stays, where cleanup.policy has `compact`.

The job decides and the broker removes. Spark's workers write what to remove into
`compaction_removals`, in bounded batches (compaction_batches.py writes them); the leader of each
partition applies them (broker/log/removals.py), and the job waits for that. The job may be killed
at any point and run again: a batch is applied whether the job still runs or not, and what is not
written yet is decided again.

What must hold, per partition, between the start of the log and a bound:
* The bound is the end of the log when the run began, or the first record younger than
  min.compaction.lag.ms, or the first record of an open transaction, whichever comes first. Records
  from there on are not looked at, as in Kafka.
* Superseded records are removed: those with a later record of their key below the bound. So are
  records without a key, as in Kafka, and records of aborted transactions.
* A tombstone is removed when no older record of its key has been left for delete.retention.ms
  (KIP-534), counted from the end of the first run that had removed the older ones. So an old value
  never comes back, and a consumer that has read it has that time to read the tombstone.
* Some records stay whatever their key is: the last record; the last record of each producer that
  the broker still knows, and recent records of idempotent producers, because a broker that starts
  rebuilds from them what a producer has sent; transaction markers.

Which partitions are compacted is in compaction_targets.py, which records are removed is decided by
`decide`, and how that is written is in compaction_batches.py.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
import pyarrow as pa

from brokerhouse.common.clock import DAY_MS, MINUTE_MS
from brokerhouse.spark_jobs import job
from brokerhouse.spark_jobs.compaction_batches import WRITTEN, RemovalWriter, removal
from brokerhouse.spark_jobs.compaction_targets import SLICE_RECORDS, CompactionTarget, find_targets
from brokerhouse.spark_jobs.job import JobFailure, JobReport, JobRun
from brokerhouse.spark_jobs.progress import counted
from brokerhouse.spark_jobs.queries import Query, answers
from brokerhouse.spark_jobs.sql_client import SqlServers
from brokerhouse.sql.queries import query
from brokerhouse.storage.engine import Parameter

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession

RETRY_WINDOW_MS = 10 * MINUTE_MS
"""How long a batch of an idempotent producer may still be sent again: five times as long as clients
wait for an answer in all (delivery.timeout.ms)."""
_POLL_S = 0.2

_NOW = "SELECT toUnixTimestamp64Milli(now64(3))"
_PENDING = (
    "SELECT toInt64(count()) FROM compaction_batches"
    " WHERE state = 'pending' AND match(topic, {topics:String})"
)

Removed = dict[tuple[str, int], tuple[int, str]]
"""Topic id and partition: how many rows the broker removed, and why it refused, or ''."""


@dataclass(frozen=True, slots=True)
class CompactionTotals:
    """What a run decided for one partition."""

    superseded: int = 0
    tombstones: int = 0
    bytes: int = 0
    batches: int = 0
    first_blocked: int | None = None

    @property
    def anything(self) -> bool:
        """Whether records are removed."""
        return self.superseded + self.tombstones > 0


@job.command("compaction")
@click.option("--force", is_flag=True, help="Compact every partition, even if little is new.")
@click.option(
    "--min-dirty-ratio",
    type=click.FloatRange(0, 1),
    help="Use this instead of the topics' min.cleanable.dirty.ratio.",
)
@job.number(
    "--producer-expiration-ms",
    DAY_MS,
    "The broker's producer_id_expiration_ms: the last record of a producer stays for so long.",
)
@job.number(
    "--retry-window-ms",
    RETRY_WINDOW_MS,
    "Records of idempotent producers stay for so long, because they may be sent again.",
)
@click.option(
    "--timeout",
    "patience",
    metavar="SECONDS",
    type=click.IntRange(1),
    default=600,
    show_default=True,
    help="How long to wait while the broker removes nothing.",
)
def command(
    run: JobRun,
    force: bool,
    min_dirty_ratio: float | None,
    producer_expiration_ms: int,
    retry_window_ms: int,
    patience: int,
) -> JobReport:
    """Remove superseded records of topics with cleanup.policy=compact.

    Of each key the latest record stays. A tombstone (a record without a value) is removed
    delete.retention.ms after the older records of its key.
    """
    if not run.dry_run:
        _wait_for_earlier_runs(run, patience)
    ((now_ms,),) = run.servers.rows(_NOW)
    min_ratio = 0.0 if force else min_dirty_ratio
    targets = find_targets(run.servers, run.topics, now_ms, min_ratio, force)
    chosen = [target for target in targets if target.reason]
    totals: dict[int, CompactionTotals] = {}
    run_id = str(uuid.uuid4())
    if chosen:
        totals = _decide_and_write(
            run, run_id, chosen, now_ms - retry_window_ms, now_ms - producer_expiration_ms
        )
    removed: Removed = {}
    if not run.dry_run:
        removed = _wait(run, run_id, list(totals.values()), patience)
        _store_progress(run, run_id, chosen, totals, removed)
    recent = {
        number: _recent(run, target, now_ms - retry_window_ms)
        for number, target in enumerate(chosen)
        if not totals.get(number, CompactionTotals()).anything
    }
    return _report(run, targets, chosen, totals, removed, recent, retry_window_ms)


def _recent(run: JobRun, target: CompactionTarget, recent_ms: int) -> int:
    """How many records stay because an idempotent producer may still send them again."""
    parameters = {**target.parameters, "bound": target.bound, "recent_ms": recent_ms}
    ((records,),) = run.servers.rows(query("compaction_recent_records"), parameters)
    return int(records)


def _decide_and_write(
    run: JobRun, run_id: str, targets: Sequence[CompactionTarget], recent_ms: int, known_ms: int
) -> dict[int, CompactionTotals]:
    """By the number of the target. Workers write the batches; only sums come to the driver."""
    from pyspark.sql import functions as F  # noqa: N812

    spark = run.spark(sum(-(-target.records // SLICE_RECORDS) for target in targets))
    read = spark.sparkContext.accumulator(0)
    run.progress.step(
        f"deciding about {counted(len(targets), 'partition')}",
        sum(target.below_bound for target in targets),
        lambda: read.value,
    )
    table = spark.createDataFrame(
        [(n, target.bound, target.due_end, target.width) for n, target in enumerate(targets)],
        TARGETS,
    )
    in_transactions = [(n, target) for n, target in enumerate(targets) if target.transactional]
    decided = decide(
        records_of(spark, run.servers, enumerate(targets), recent_ms, read),
        records_of(spark, run.servers, in_transactions, recent_ms),
        producers_of(spark, run.servers, targets, known_ms),
        table,
    )
    write = RemovalWriter(run_id, tuple(targets), None if run.dry_run else run.servers)
    written = (
        decided.withColumn("region", F.expr("offset div width"))
        .repartition(F.col("target"), F.col("region"))
        .sortWithinPartitions("target", "offset")
        .select("target", "offset", "size", "tombstone", "superseded", "blocked", "region")
        .mapInArrow(write, WRITTEN)
        .groupBy("target")
        .agg(
            *(F.sum(name).alias(name) for name in ("superseded", "tombstones", "bytes", "batches")),
            F.min("first_blocked").alias("first_blocked"),
        )
    )
    return {row["target"]: CompactionTotals(*row[1:]) for row in written.collect()}


def _store_progress(
    run: JobRun,
    run_id: str,
    targets: Sequence[CompactionTarget],
    totals: dict[int, CompactionTotals],
    removed: Removed,
) -> None:
    """Store how far this run came, where the broker has applied everything that it decided."""
    rows = []
    for number, target in enumerate(targets):
        refused = removed.get((target.topic_id, target.partition), (0, ""))[1]
        if refused:
            continue
        blocked = totals.get(number, CompactionTotals()).first_blocked
        end = target.bound if blocked is None else blocked
        if target.bound <= target.clean_end and end <= target.alone_end:
            continue  # it came no further than the last run
        rows.append(removal(run_id, str(uuid.uuid4()), target, [], tombstones_end=end))
    if rows:
        run.servers.insert("compaction_removals", pa.concat_tables(rows), f"{run_id}-marks")


# --- waiting for the broker


def _wait_for_earlier_runs(run: JobRun, patience: int) -> None:
    """Their batches are applied first: otherwise the same records would be decided on twice."""

    def left() -> int:
        ((pending,),) = run.servers.rows(_PENDING, {"topics": run.topics})
        return int(pending)

    _until_none(
        left,
        patience,
        lambda n: run.progress.step(
            f"waiting for {counted(n, 'batch', 'batches')} of an earlier run"
        ),
    )


def _wait(run: JobRun, run_id: str, totals: Sequence[CompactionTotals], patience: int) -> Removed:
    found: Removed = {}
    batches = sum(one.batches for one in totals)
    if not batches:
        return found
    run.progress.step(
        f"the broker removes {_batches(batches)}",
        sum(one.superseded + one.tombstones for one in totals),
        lambda: sum(removed for removed, _ in found.copy().values()),
    )

    def left() -> int:
        done = 0
        for topic_id, partition, count, removed, refused in run.servers.rows(
            query("compaction_applied_batches"), {"run_id": run_id}
        ):
            done += count
            found[topic_id, partition] = removed, refused
        return batches - done

    _until_none(left, patience)
    return found


def _batches(number: int) -> str:
    return counted(number, "batch", "batches")


def _until_none(
    left: Callable[[], int], patience: int, say: Callable[[int], None] = lambda _left: None
) -> None:
    last, since = -1, time.monotonic()
    while (now_left := left()) > 0:
        if now_left != last:
            last, since = now_left, time.monotonic()
            say(now_left)
        elif time.monotonic() - since > patience:
            raise JobFailure(
                f"the broker has removed nothing for {patience} s, and has {_batches(now_left)}"
                " left: check that it runs and has room on its disk, then run this job again"
            )
        time.sleep(_POLL_S)


# --- the report


def _report(
    run: JobRun,
    targets: Sequence[CompactionTarget],
    chosen: Sequence[CompactionTarget],
    totals: dict[int, CompactionTotals],
    removed: Removed,
    recent: Mapping[int, int],
    retry_window_ms: int,
) -> JobReport:
    """`recent`: by the number of a target of which nothing is removed, records that are recent."""
    rows = []
    numbers = {target: number for number, target in enumerate(chosen)}
    removed_records = refusals = 0
    for target in targets:
        number = numbers.get(target, -1)
        one = totals.get(number, CompactionTotals())
        count, refused = removed.get((target.topic_id, target.partition), (0, ""))
        removed_records += count
        refusals += bool(refused)
        state = refused or target.reason or f"not compacted: {target.dirty:.0%} is new"
        if number in recent:
            state = f"{state}; {_why_nothing(recent[number], retry_window_ms)}"
        place = target.topic, target.partition, target.records
        removals = one.superseded, one.tombstones, None if run.dry_run else count, one.bytes
        rows.append((*place, *removals, state))
    would = sum(one.superseded + one.tombstones for one in totals.values())
    size = sum(one.bytes for one in totals.values())
    of = f"from {len(chosen)} of {counted(len(targets), 'partition')}"
    summary = (
        f"would remove {would:,} records ({size:,} bytes) {of}"
        if run.dry_run
        else f"removed {removed_records:,} records ({size:,} bytes) {of}"
    )
    counts = "superseded", "tombstones", "removed", "bytes"
    columns = ("topic", "partition", "rows before", *counts, "state")
    return JobReport(columns, rows, summary, ok=not refusals)


def _why_nothing(recent: int, retry_window_ms: int) -> str:
    if not recent:
        return "no record is superseded"
    return (
        f"nothing removed: {counted(recent, 'record')} of the last {retry_window_ms / 60_000:g} min"
        " may be sent again by their producer (--retry-window-ms)"
    )


if __name__ == "__main__":
    command()


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
