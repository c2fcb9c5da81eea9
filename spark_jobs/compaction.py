"""Compaction: of each key the latest record stays, for topics with `compact` in cleanup.policy.

The job decides and the broker removes. What is to go is written into `compaction_removals` in
bounded batches, by Spark's workers; the leader of each partition takes it from there
(broker/log/removals.py), and the job waits. Killed anywhere and run again it comes to the same: a
batch is applied whether the job lives or not, and what is not written yet is decided again.

What holds, per partition, between the start of the log and a bound:
* The bound is the end of the log as it was at the start of the run, or the first record younger
  than min.compaction.lag.ms, or the first of an open transaction, whichever comes first. Nothing
  from there on is looked at, as in Kafka.
* Superseded records go: those with a later one of their key below the bound. Records without a key
  go, as in Kafka, and those of transactions that were aborted.
* A tombstone goes when no older record of its key is left, and that has been so for
  delete.retention.ms (KIP-534): counted from when the first run ended that had removed the older
  ones. So an old value never comes back to life, and who has read it has that time to read on.
* Some stay whatever their key: the last record; the last of each producer that the broker still
  knows, and those of idempotent producers that came in a moment ago, because a broker that starts
  rebuilds from them what a producer has sent; transaction markers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import pyarrow as pa

from spark_jobs import job
from spark_jobs.job import JobFailure, Report, Run
from spark_jobs.sql import Endpoint, Question, frame
from storage.topic_configs import TOPIC_CONFIGS

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

DAY_MS = 86_400_000
RETRY_WINDOW_MS = 600_000
"""How long a batch of an idempotent producer may still be sent again: five times what clients
wait for an answer in all (delivery.timeout.ms)."""
SLICE_RECORDS = 250_000
"""What a worker reads at once: about 120 bytes each, whatever the keys and values are."""
BATCH_RECORDS = 1_000_000
BATCH_RANGES = 20_000
KEY_BYTES = 64
"""A longer key is told by its SHA-256."""
_PARALLEL = 4
_POLL_S = 0.2

ABORT, COMMIT = 0, 1

_TOPICS = """
    SELECT name, toString(topic_id), partitions, configs['cleanup.policy'],
        configs['min.cleanable.dirty.ratio'], configs['min.compaction.lag.ms'],
        configs['max.compaction.lag.ms'], configs['delete.retention.ms']
    FROM topics WHERE match(name, {topics:String}) ORDER BY name
"""
_NOW = "SELECT toUnixTimestamp64Milli(now64(3))"
_START = """
    SELECT toInt64(max(log_start_offset)) FROM partition_checkpoints
    WHERE topic_id = {topic_id:UUID} AND partition = {partition:Int32}
"""
_MARKS = """
    SELECT toInt64(max(log_end)), toInt64(max(tombstones_end)),
        toInt64(maxIf(tombstones_end, toUnixTimestamp64Milli(created_at) <= {due_ms:Int64}))
    FROM compaction_removals
    WHERE topic_id = {topic_id:UUID} AND partition = {partition:Int32} AND empty(ranges)
"""
_LOG = """
    FROM messages
    WHERE topic = {topic:String} AND topic_id = {topic_id:UUID} AND partition = {partition:Int32}
        AND offset >= {start:Int64}
"""
# The first record of those that came in after a moment: offsets and times grow together, but a
# clock may have been set, so all are asked.
_BOUNDS = f"""
    SELECT toInt64(count()), toInt64(max(offset)) + 1,
        minOrNullIf(offset, toUnixTimestamp64Milli(append_time) > {{young_ms:Int64}}),
        toInt64(countIf(transactional))
    {_LOG}
"""
_MARKER = """
    multiIf(NOT control, NULL, length(key) != 4, -1,
        substring(key, 3, 2) = '\\0\\0', 0, substring(key, 3, 2) = '\\0\\x01', 1, -1)
"""
_OPEN = f"""
    SELECT toInt64(min(offset)), count() FROM
    (
        SELECT offset, transactional AND NOT control AS data,
            max(if(({_MARKER}) IN (0, 1), offset, -1)) OVER (PARTITION BY producer_id) AS ended
        {_LOG} AND offset < {{end:Int64}} AND (transactional OR control)
    )
    WHERE data AND offset > ended
"""
_SIZE = "ifNull(length(key), 0) + ifNull(length(value), 0)"
_DIRT = f"""
    SELECT toInt64(sumIf({_SIZE} + 1, offset < {{clean_end:Int64}})),
        toInt64(sumIf({_SIZE} + 1, offset >= {{clean_end:Int64}})),
        minIf(toUnixTimestamp64Milli(append_time), offset >= {{clean_end:Int64}}),
        toInt64(countIf(value IS NULL AND NOT control AND offset < {{due_end:Int64}}))
    {_LOG} AND offset < {{bound:Int64}}
"""
_RECORDS = f"""
    SELECT toInt32({{number:Int32}}) AS log, offset, told AS key, tombstone, size, stays,
        producer_id AS producer, transactional, toInt32(kind) AS marker
    FROM
    (
        SELECT offset, producer_id, transactional, value IS NULL AS tombstone,
            if(length(key) > {KEY_BYTES}, concat('#', SHA256(assumeNotNull(key))), concat('=', key))
                AS told,
            toInt64({_SIZE}) AS size, {_MARKER} AS kind,
            offset = {{last:Int64}}
                OR (producer_id >= 0 AND toUnixTimestamp64Milli(append_time) > {{recent_ms:Int64}})
                AS stays
        {_LOG} AND offset < {{slice_end:Int64}} AND (offset < {{bound:Int64}} OR control)
    )
"""
_PRODUCERS = f"""
    SELECT toInt32({{number:Int32}}) AS log, last AS offset
    FROM
    (
        SELECT max(offset) AS last, max(toUnixTimestamp64Milli(append_time)) AS at
        {_LOG} AND offset < {{end:Int64}} AND producer_id >= 0 AND NOT control
        GROUP BY producer_id
    )
    WHERE at > {{known_ms:Int64}}
"""
_PENDING = """
    SELECT toInt64(count()) FROM compaction_batches
    WHERE state = 'pending' AND match(topic, {topics:String})
"""
_APPLIED = """
    SELECT toString(topic_id), partition, toInt64(uniqExact(batch_id)),
        toInt64(sum(removed)), max(refused)
    FROM (SELECT * FROM compaction_applied WHERE run_id = {run_id:UUID} LIMIT 1 BY batch_id)
    GROUP BY topic_id, partition
"""

RECORDS = (
    "log int, offset long, key binary, tombstone boolean, size long, stays boolean,"
    " producer long, transactional boolean, marker int"
)
"""What is looked at. `log` is a number for the partition; `marker` is null unless the row is a
transaction marker; `stays` says that it stays for other reasons than its key."""
PRODUCERS = "log int, offset long"
"""The last record of each producer that the broker still knows."""
LOGS = "log int, bound long, due_end long, width long"
"""For each log: see `Log`. `width`: offsets that one task writes the batches of."""
WRITTEN = "log int, superseded long, tombstones long, bytes long, batches long, first_blocked long"

_REMOVALS = pa.schema(
    [
        ("run_id", pa.string()),
        ("batch_id", pa.string()),
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("ranges", pa.list_(pa.struct([("first", pa.int64()), ("last", pa.int64())]))),
        ("records", pa.uint64()),
        ("tombstones", pa.uint64()),
        ("bytes", pa.uint64()),
        ("log_end", pa.int64()),
        ("tombstones_end", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What applies to a topic. Times in ms."""

    dirty_ratio: float
    min_lag_ms: int
    max_lag_ms: int
    delete_retention_ms: int


@dataclass(frozen=True, slots=True)
class Log:
    """One partition, as it was when the run looked at it.

    `start` <= what is looked at < `bound` <= `end`. Below `clean_end` an earlier run has been;
    tombstones below `alone_end` have no older record of their key, and below `due_end` they have
    not had one for long enough. `why`: the reason to compact it now, or
    none; `dirty`: share of its bytes that no run has seen.
    """

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int = 0
    bound: int = 0
    records: int = 0
    clean_end: int = 0
    alone_end: int = 0
    due_end: int = 0
    dirty: float = 0.0
    why: str = ""

    @property
    def width(self) -> int:
        """Offsets of a slice, so that it has SLICE_RECORDS of them that are there."""
        slices = max(-(-self.records // SLICE_RECORDS), 1)
        return max(-(-(self.end - self.start) // slices), 1)

    @property
    def place(self) -> dict[str, object]:
        return {
            "topic": self.topic,
            "topic_id": self.topic_id,
            "partition": self.partition,
            "start": self.start,
        }


@dataclass(frozen=True, slots=True)
class Written:
    """What a run found in one log."""

    superseded: int = 0
    tombstones: int = 0
    bytes: int = 0
    batches: int = 0
    first_blocked: int | None = None


@job.command("compaction")
@click.option("--force", is_flag=True, help="Compact however little is new.")
@click.option(
    "--min-dirty-ratio",
    type=click.FloatRange(0, 1),
    help="In place of the topics' min.cleanable.dirty.ratio.",
)
@click.option(
    "--producer-expiration-ms",
    type=click.IntRange(0),
    default=DAY_MS,
    show_default=True,
    help="The broker's producer_id_expiration_ms: of a producer silent for longer nothing is kept.",
)
@click.option(
    "--retry-window-ms",
    type=click.IntRange(0),
    default=RETRY_WINDOW_MS,
    show_default=True,
    help="Records of idempotent producers stay for so long, as they may be sent again.",
)
@click.option(
    "--patience",
    type=click.IntRange(1),
    default=600,
    show_default=True,
    metavar="SECONDS",
    help="Give up when the broker removes nothing for so long.",
)
def command(
    run: Run,
    force: bool,
    min_dirty_ratio: float | None,
    producer_expiration_ms: int,
    retry_window_ms: int,
    patience: int,
) -> Report:
    """Remove superseded records of topics with cleanup.policy=compact.

    Of each key the latest record stays. A record without a value goes delete.retention.ms after
    the records before it went.
    """
    if not run.dry_run:
        _wait_for_earlier_runs(run, patience)
    now_ms = int(run.endpoint.rows(_NOW)[0][0])
    logs = look(run, now_ms, 0.0 if force else min_dirty_ratio, force)
    chosen = [log for log in logs if log.why]
    written: dict[int, Written] = {}
    run_id = str(uuid.uuid4())
    if chosen:
        run.say(f"{sum(log.records for log in chosen):,} records of {len(chosen)} partitions")
        written = _decide_and_write(
            run, run_id, chosen, now_ms - retry_window_ms, now_ms - producer_expiration_ms
        )
    removed: dict[tuple[str, int], tuple[int, str]] = {}
    if not run.dry_run:
        removed = _wait(run, run_id, sum(one.batches for one in written.values()), patience)
        _mark(run.endpoint, run_id, chosen, written, removed)
    return _report(run, logs, chosen, written, removed)


# What there is to do


def look(run: Run, now_ms: int, min_ratio: float | None, force: bool) -> list[Log]:
    """Every partition of the compacted topics that were asked for."""
    asked: list[tuple[Log, Limits]] = []
    for name, topic_id, partitions, policy, *texts in run.endpoint.rows(
        _TOPICS, {"topics": run.topics}
    ):
        if "compact" not in _config("cleanup.policy", policy):
            continue
        limits = Limits(
            float(_config("min.cleanable.dirty.ratio", texts[0]))
            if min_ratio is None
            else min_ratio,
            int(_config("min.compaction.lag.ms", texts[1])),
            int(_config("max.compaction.lag.ms", texts[2])),
            int(_config("delete.retention.ms", texts[3])),
        )
        asked += [(Log(name, topic_id, n, 0), limits) for n in range(partitions)]
    with ThreadPoolExecutor(_PARALLEL) as threads:
        return list(
            threads.map(lambda one: _look(run.endpoint, one[0], one[1], now_ms, force), asked)
        )


def _config(name: str, text: str) -> Any:
    config = TOPIC_CONFIGS[name]
    return config.parse(text or config.default)


def _look(endpoint: Endpoint, log: Log, limits: Limits, now_ms: int, force: bool) -> Log:
    log = replace(log, start=int(endpoint.rows(_START, log.place)[0][0]))
    young_ms = now_ms - limits.min_lag_ms if limits.min_lag_ms else 2**62
    ((records, end, young, transactional),) = endpoint.rows(
        _BOUNDS, {**log.place, "young_ms": young_ms}
    )
    if not records:
        return replace(log, end=log.start, bound=log.start)
    bound = end if young is None else min(end, young)
    if transactional:
        ((first, count),) = endpoint.rows(_OPEN, {**log.place, "end": end})
        bound = min(bound, first) if count else bound
    due_ms = now_ms - limits.delete_retention_ms
    ((clean_end, alone_end, due_end),) = endpoint.rows(_MARKS, {**log.place, "due_ms": due_ms})
    ((clean, dirty, oldest_ms, due),) = endpoint.rows(
        _DIRT,
        {
            **log.place,
            "clean_end": clean_end,
            "due_end": min(due_end, end - 1),  # the last record stays
            "bound": bound,
        },
    )
    ratio = dirty / (clean + dirty) if dirty else 0.0
    why = ""
    if dirty and (ratio > limits.dirty_ratio or force):
        why = "asked for" if force else f"{ratio:.0%} is new"
    elif dirty and oldest_ms < now_ms - limits.max_lag_ms:
        why = "max.compaction.lag.ms"
    elif due or (force and bound > log.start):
        why = "tombstones are due" if due else "asked for"
    return replace(
        log, end=end, bound=bound, records=records, clean_end=clean_end, alone_end=alone_end,
        due_end=due_end, dirty=ratio, why=why,
    )  # fmt: skip


# What goes


def decide(records: DataFrame, producers: DataFrame, logs: DataFrame) -> DataFrame:
    """Of RECORDS below the bounds, those that go: log, offset, size, tombstone, blocked.

    A row with `blocked` does not go: it is a tombstone with an older record of its key before it
    that stays for now, so the time of this tombstone has not begun.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

    columns = ["log", "offset", "key", "tombstone", "size", "stays", "aborted"]
    plain = records.where("marker IS NULL AND NOT transactional")
    of_transactions = records.where("marker IS NOT NULL OR transactional")
    # From the last to the first: what came after a row is what has been seen before it.
    backwards = Window.partitionBy("log", "producer").orderBy(F.desc("offset"))
    seen = backwards.rowsBetween(Window.unboundedPreceding, -1)
    ended = F.last(F.when(F.col("marker").isin(ABORT, COMMIT), F.col("marker")), True).over(seen)
    data = (
        of_transactions.withColumn("ended", ended)
        .where("marker IS NULL")
        .withColumn("aborted", F.expr(f"ended <=> {ABORT}"))
    )
    looked_at = (
        plain.withColumn("aborted", F.lit(False))
        .select(columns)
        .unionByName(data.select(columns))
        .join(F.broadcast(logs), "log")
        .where("offset < bound")
    )
    known = producers.withColumn("known", F.lit(True))
    protected = looked_at.join(known, ["log", "offset"], "left").withColumn(
        "stays", F.expr("stays OR known IS NOT NULL")
    )
    of_key = Window.partitionBy("log", "key").orderBy("offset")
    before = of_key.rowsBetween(Window.unboundedPreceding, -1)
    keyed = (
        protected.where("key IS NOT NULL AND NOT aborted")
        .withColumn("superseded", F.lead("offset").over(of_key).isNotNull())
        .withColumn("older", F.count("offset").over(before) > 0)
        .withColumn("older_stays", F.coalesce(F.max("stays").over(before), F.lit(False)))
        .withColumn(
            "goes",
            F.expr("NOT stays AND (superseded OR (tombstone AND NOT older AND offset < due_end))"),
        )
        .withColumn("blocked", F.expr("tombstone AND NOT superseded AND older_stays"))
    )
    worthless = (
        protected.where("key IS NULL OR aborted")
        .withColumn("goes", F.expr("NOT stays"))
        .withColumn("blocked", F.lit(False))
    )
    found = ["log", "offset", "size", "tombstone", "superseded", "blocked", "width"]
    return (
        keyed.where("goes OR blocked")
        .select(found)
        .unionByName(worthless.where("goes").withColumn("superseded", F.lit(True)).select(found))
    )


def records_of(
    spark: SparkSession, endpoint: Endpoint, logs: Sequence[Log], recent_ms: int
) -> DataFrame:
    questions = []
    for number, log in enumerate(logs):
        for start in range(log.start, log.end, log.width):
            slice_of = {
                **log.place,
                "start": start,
                "slice_end": min(start + log.width, log.end),
                "number": number,
                "bound": log.bound,
                "last": log.end - 1,
                "recent_ms": recent_ms,
            }
            questions.append(Question(_RECORDS, slice_of))
    return frame(spark, endpoint, questions, RECORDS)


def producers_of(
    spark: SparkSession, endpoint: Endpoint, logs: Sequence[Log], known_ms: int
) -> DataFrame:
    questions = [
        Question(_PRODUCERS, {**log.place, "number": n, "end": log.end, "known_ms": known_ms})
        for n, log in enumerate(logs)
    ]
    return frame(spark, endpoint, questions, PRODUCERS)


def _decide_and_write(
    run: Run, run_id: str, logs: Sequence[Log], recent_ms: int, known_ms: int
) -> dict[int, Written]:
    """By the number of the log. Workers write the batches; here come only sums."""
    from pyspark.sql import functions as F  # noqa: N812

    spark = run.spark()
    cores = spark.sparkContext.defaultParallelism
    tasks = sum(-(-log.records // SLICE_RECORDS) for log in logs)
    spark.conf.set("spark.sql.shuffle.partitions", max(min(tasks, 2000), cores))
    table = spark.createDataFrame(
        [(n, log.bound, log.due_end, log.width) for n, log in enumerate(logs)], LOGS
    )
    decided = decide(
        records_of(spark, run.endpoint, logs, recent_ms),
        producers_of(spark, run.endpoint, logs, known_ms),
        table,
    )
    write = Writer(run_id, tuple(logs), None if run.dry_run else run.endpoint)
    written = (
        decided.withColumn("region", F.expr("offset div width"))
        .repartition(F.col("log"), F.col("region"))
        .sortWithinPartitions("log", "offset")
        .select("log", "offset", "size", "tombstone", "superseded", "blocked", "region")
        .mapInArrow(write, WRITTEN)
        .groupBy("log")
        .agg(
            *(F.sum(name).alias(name) for name in ("superseded", "tombstones", "bytes", "batches")),
            F.min("first_blocked").alias("first_blocked"),
        )
    )
    return {row["log"]: Written(*row[1:]) for row in written.collect()}


# What is written


class Writer:
    """Makes batches of what goes, and writes them; runs in Spark's workers.

    Rows come by log and offset, and the rows of a region all to one task. So a task that is run
    again makes the same batches, and the engine stores each once.
    """

    def __init__(self, run_id: str, logs: Sequence[Log], endpoint: Endpoint | None) -> None:
        """Without an endpoint nothing is written, and all the same is counted."""
        self._run_id = run_id
        self._logs = logs
        self._endpoint = endpoint

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        current: tuple[int, int] | None = None
        batch = _Batch()
        for chunk in rows:
            log, offset, size, tombstone, superseded, blocked, region = (
                column.to_numpy(zero_copy_only=False) for column in chunk.columns
            )
            edges = np.flatnonzero((np.diff(log) != 0) | (np.diff(region) != 0)) + 1
            for start, end in zip([0, *edges], [*edges, len(log)], strict=True):
                if start == end:
                    continue
                here = int(log[start]), int(region[start])
                if here != current:
                    yield from self._finished(current, batch)
                    current, batch = here, _Batch()
                part = slice(start, end)
                goes = ~blocked[part]
                if not goes.all():
                    batch.block(int(offset[part][~goes][0]))
                batch.add(
                    offset[part][goes],
                    size[part][goes],
                    tombstone[part][goes],
                    superseded[part][goes],
                )
                if batch.is_full:
                    yield from self._finished(current, batch)
                    batch = _Batch()
        yield from self._finished(current, batch)

    def _finished(self, place: tuple[int, int] | None, batch: _Batch) -> Iterator[pa.RecordBatch]:
        if place is None or not (batch.records or batch.first_blocked is not None):
            return
        number, _ = place
        batches = 0
        for ranges in batch.ranges():
            batches += 1
            if self._endpoint is not None:
                self._write(self._endpoint, self._logs[number], ranges, batch)
        row = [number, batch.superseded, batch.records - batch.superseded, batch.bytes, batches,
               batch.first_blocked]  # fmt: skip
        yield pa.RecordBatch.from_pydict(
            {name: [value] for name, value in zip(_WRITTEN_SCHEMA.names, row, strict=True)},
            schema=_WRITTEN_SCHEMA,
        )

    def _write(
        self, endpoint: Endpoint, log: Log, ranges: NDArray[np.int64], batch: _Batch
    ) -> None:
        inside = (batch.offsets >= ranges[0, 0]) & (batch.offsets <= ranges[-1, 1])
        batch_id = uuid.uuid5(
            uuid.UUID(self._run_id),
            f"{log.topic_id} {log.partition} {ranges[0, 0]} {ranges[-1, 1]}",
        )
        row = removal(
            self._run_id, str(batch_id), log, ranges.tolist(),
            records=int(inside.sum()), tombstones=int(batch.tombstones[inside].sum()),
            size=int(batch.sizes[inside].sum()),
        )  # fmt: skip
        endpoint.insert("compaction_removals", row, str(batch_id))


_WRITTEN_SCHEMA = pa.schema(
    [(name, pa.int32() if kind == "int" else pa.int64())
     for name, kind in (column.split() for column in WRITTEN.split(", "))]
)  # fmt: skip


class _Batch:
    """What goes of one region, in order."""

    def __init__(self) -> None:
        self._parts: list[tuple[Any, Any, Any, Any]] = []
        self.records = 0
        self.first_blocked: int | None = None

    def block(self, offset: int) -> None:
        self.first_blocked = offset if self.first_blocked is None else self.first_blocked

    def add(self, *columns: Any) -> None:
        offsets, sizes, tombstones, superseded = columns
        if len(offsets):
            self._parts.append((offsets, sizes, tombstones, superseded))
            self.records += len(offsets)

    @property
    def is_full(self) -> bool:
        return self.records >= BATCH_RECORDS

    def _column(self, index: int) -> Any:
        parts = [part[index] for part in self._parts]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    @property
    def offsets(self) -> Any:
        return self._column(0)

    @property
    def sizes(self) -> Any:
        return self._column(1)

    @property
    def tombstones(self) -> Any:
        return self._column(2)

    @property
    def superseded(self) -> int:
        return int(np.count_nonzero(self._column(3)))

    @property
    def bytes(self) -> int:
        return int(self.sizes.sum())

    def ranges(self) -> Iterator[NDArray[np.int64]]:
        """First and last of each run of offsets without a gap, in bounded pieces."""
        found = ranges_of(self.offsets)
        for start in range(0, len(found), BATCH_RANGES):
            yield found[start : start + BATCH_RANGES]


def ranges_of(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ascending offsets as an array of (first, last)."""
    if not len(offsets):
        return np.empty((0, 2), np.int64)
    edges = np.flatnonzero(np.diff(offsets) != 1)
    firsts = offsets[np.concatenate(([0], edges + 1))]
    lasts = offsets[np.concatenate((edges, [len(offsets) - 1]))]
    return np.column_stack((firsts, lasts)).astype(np.int64)


def removal(
    run_id: str,
    batch_id: str,
    log: Log,
    ranges: Sequence[Sequence[int]],
    *,
    records: int = 0,
    tombstones: int = 0,
    size: int = 0,
    tombstones_end: int = 0,
) -> pa.Table:
    """A row of compaction_removals."""
    row = [run_id, batch_id, log.topic, log.topic_id, log.partition,
           [{"first": first, "last": last} for first, last in ranges],
           records, tombstones, size, log.bound, tombstones_end]  # fmt: skip
    return pa.table(
        [pa.array([value], field.type) for value, field in zip(row, _REMOVALS, strict=True)],
        schema=_REMOVALS,
    )


def _mark(
    endpoint: Endpoint,
    run_id: str,
    logs: Sequence[Log],
    written: dict[int, Written],
    removed: dict[tuple[str, int], tuple[int, str]],
) -> None:
    """Note how far this run came, where all that it decided is done."""
    marks = []
    for number, log in enumerate(logs):
        refused = removed.get((log.topic_id, log.partition), (0, ""))[1]
        if refused:
            continue
        blocked = written.get(number, Written()).first_blocked
        end = log.bound if blocked is None else blocked
        if log.bound <= log.clean_end and end <= log.alone_end:
            continue  # it came no further than the last
        marks.append(removal(run_id, str(uuid.uuid4()), log, [], tombstones_end=end))
    if marks:
        endpoint.insert("compaction_removals", pa.concat_tables(marks), f"{run_id}-marks")


# What the broker makes of it


def _wait_for_earlier_runs(run: Run, patience: int) -> None:
    """What they have written is removed first: it would be decided, and noted, twice."""

    def left() -> int:
        return int(run.endpoint.rows(_PENDING, {"topics": run.topics})[0][0])

    _until_none(left, patience, lambda n: run.say(f"{n:,} batches of an earlier run are left"))


def _wait(
    run: Run, run_id: str, batches: int, patience: int
) -> dict[tuple[str, int], tuple[int, str]]:
    """Rows removed, or why they were not, per topic id and partition."""
    found: dict[tuple[str, int], tuple[int, str]] = {}
    if not batches:
        return found

    def left() -> int:
        done = 0
        for topic_id, partition, count, removed, refused in run.endpoint.rows(
            _APPLIED, {"run_id": run_id}
        ):
            done += count
            found[topic_id, partition] = removed, refused
        return batches - done

    _until_none(left, patience, lambda n: run.say(f"the broker removes: {n:,} batches are left"))
    return found


def _until_none(left: Callable[[], int], patience: int, say: Callable[[int], None]) -> None:
    last, since = -1, time.monotonic()
    while (now_left := left()) > 0:
        if now_left != last:
            last, since = now_left, time.monotonic()
            say(now_left)
        elif time.monotonic() - since > patience:
            raise JobFailure(
                f"the broker has removed nothing for {patience} s, and {now_left:,} batches are"
                " left: see whether it runs and has room on its disk, then run this again"
            )
        time.sleep(_POLL_S)


def _report(
    run: Run,
    logs: Sequence[Log],
    chosen: Sequence[Log],
    written: dict[int, Written],
    removed: dict[tuple[str, int], tuple[int, str]],
) -> Report:
    rows = []
    numbers = {log: number for number, log in enumerate(chosen)}
    gone = refusals = 0
    for log in logs:
        one = written.get(numbers[log], Written()) if log in numbers else Written()
        count, refused = removed.get((log.topic_id, log.partition), (0, ""))
        gone += count
        refusals += bool(refused)
        state = refused or log.why or f"left alone: {log.dirty:.0%} is new"
        rows.append(
            (log.topic, log.partition, log.records, one.superseded, one.tombstones,
             None if run.dry_run else count, one.bytes, state)
        )  # fmt: skip
    would = sum(one.superseded + one.tombstones for one in written.values())
    size = sum(one.bytes for one in written.values())
    summary = (
        f"{would:,} records ({size:,} bytes) would go of {len(chosen)} of {len(logs)} partitions"
        if run.dry_run
        else f"{gone:,} records ({size:,} bytes) are gone from {len(chosen)} of {len(logs)}"
        " partitions"
    )
    return Report(
        ("topic", "partition", "rows before", "superseded", "tombstones", "removed", "bytes",
         "state"),
        rows,
        summary,
        ok=not refusals,
    )  # fmt: skip


if __name__ == "__main__":
    command()
