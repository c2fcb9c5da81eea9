"""The job `feed`: a typed table filled exactly once from topics of any Kafka, by Spark.

The protocol is that of the broker's own feeds (feeds/blocks.py). The state of a feed is
in ClickHouse, for each partition, and nowhere else: a run takes the partitions over, repeats the
blocks whose outcome nobody knows by reading exactly their offsets again, and starts its stream
where the states end. So there is no checkpoint that could be lost, or be older or newer than the
table; Spark's own is temporary.

Each worker feeds its partitions by itself (feed_task.py). The driver only starts micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import click

from brokerhouse.feeds.blocks import BlockCounts, Offsets, Phase, Replay
from brokerhouse.feeds.definition import (
    AT_OFFSET,
    FeedDefinitionError,
    Format,
    split_name,
)
from brokerhouse.feeds.feeder import EVERYWHERE
from brokerhouse.feeds.options import engine_option, path_option, start_option, unit_option
from brokerhouse.feeds.routing import ANY_TABLE
from brokerhouse.feeds.statements import checked_columns, columns_statement
from brokerhouse.feeds.tables import creating, preparing, sorting, table_to_make
from brokerhouse.spark_jobs import job
from brokerhouse.spark_jobs.feed_kafka import (
    START_OF_LOG,
    KafkaTopics,
    TopicPartition,
    find_topics,
    offsets_at,
)
from brokerhouse.spark_jobs.feed_replay import DeadLetters, ReplayTask
from brokerhouse.spark_jobs.feed_state import (
    check_dead_letters,
    check_insert,
    dead_letters_of,
    feed_id_of,
    find_registry,
    next_offsets,
    open_registry,
)
from brokerhouse.spark_jobs.feed_task import RESULT_COLUMNS, FeedTask, PartitionBlocks
from brokerhouse.spark_jobs.feed_values import parsed
from brokerhouse.spark_jobs.feed_writer import SparkFeed
from brokerhouse.spark_jobs.job import JobFailure, JobReport, JobRun, glob_pattern
from brokerhouse.spark_jobs.progress import counted
from brokerhouse.spark_jobs.sql_client import SqlServers
from brokerhouse.storage.engine import Parameter
from brokerhouse.storage.parameters import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class FeedRun:
    """One run: it has taken over the feed's partitions, and other runs are fenced."""

    def __init__(
        self, spark: SparkSession, topics: KafkaTopics, task: FeedTask, target: FeedTarget
    ) -> None:
        self._spark = spark
        self._topics = topics
        self._task = task
        self._target = target
        self.counted = BlockCounts()
        self.replayed = BlockCounts()
        self._failed: Exception | None = None

    def take_over(self, begin: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Fence other runs, and repeat what they left. Returns where each partition goes on.

        `begin`: for partitions in which the feed has not begun. Raises SqlFailure and JobFailure.
        """
        opened = {}
        for (topic, partition), offset in begin.items():
            opened[topic, partition] = self._task.progress(self._task.source(topic, partition))
            opened[topic, partition].take_over(offset)
        unknown = {
            place: progress.state.offsets
            for place, progress in opened.items()
            if progress.state.phase is Phase.BEFORE and progress.state.offsets is not None
        }
        self.feed_up_to(
            {place: offsets.first for place, offsets in unknown.items()},
            {place: offsets.end for place, offsets in unknown.items()},
        )
        for place in unknown:
            blocks = PartitionBlocks(self._with_columns(), self._task.source(*place))
            blocks.repeat_without_records()
            opened[place].exists()
        replays = {place: one.state.replay for place, one in opened.items() if one.state.replay}
        self._replay(0, {place: replay.offsets for place, replay in replays.items()})
        return {place: progress.state.next_offset for place, progress in opened.items()}

    def replay(self, places: Iterable[TopicPartition]) -> None:
        """Parse the dead letters again. Raises SqlFailure and JobFailure."""
        [[asked_ms]] = self._task.servers.rows("SELECT toUnixTimestamp64Milli(now64(3))")
        task, dead = self._replay_task(asked_ms), Replay(asked_ms, EVERYWHERE)
        found = {place: task.range_of(task.source(*place), dead) for place in places}
        self._replay(asked_ms, {place: one for place, one in found.items() if one is not None})

    def feed(self, records: DataFrame) -> None:
        """Store what is not stored yet of these. Raises SqlFailure and JobFailure."""
        self.counted += self._run(self._with_columns(), records)

    def _replay(self, asked_ms: int, dead: Mapping[TopicPartition, Offsets]) -> None:
        """Replay the dead letters at these offsets, and complete replays that have begun there."""
        if not dead:
            return
        task = self._replay_task(asked_ms)
        begin = offsets_at(self._spark, self._topics, START_OF_LOG)
        end = {place: one.end for place, one in dead.items() if one.end > begin[place]}
        if end:
            first = {place: max(begin[place], dead[place].first) for place in end}
            records = self._topics.ranges(self._spark, first, end)
            records = records.mapInArrow(DeadLetters(task), records.schema)
            self.replayed += self._run(task, records)
        for place in dead:
            task.blocks(task.source(*place)).repeat_without_records()

    def _run(self, task: FeedTask, records: DataFrame) -> BlockCounts:
        counted = BlockCounts()
        rows = parsed(records, task.feed, self._target.schema_registry)
        results = rows.mapInArrow(task, RESULT_COLUMNS).collect()
        for row in results:
            counted += BlockCounts(row["rows"], row["dead_letters"])
        if fenced := [row["fenced"] for row in results if row["fenced"]]:
            raise JobFailure(fenced[0])
        return counted

    def feed_up_to(
        self, begin: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
    ) -> None:
        """As `feed`, of ranges of offsets."""
        some = {place: first for place, first in begin.items() if first < end[place]}
        if some:
            last = {place: end[place] for place in some}
            self.feed(self._topics.ranges(self._spark, some, last))

    def feed_from(
        self, begin: Mapping[TopicPartition, int], max_records: int, interval_ms: int
    ) -> None:
        """As `feed`, of all that comes. Ends with a failure only."""
        stream = self._topics.stream(self._spark, begin, max_records)
        writer = stream.writeStream.foreachBatch(self._micro_batch)
        query = writer.trigger(processingTime=f"{interval_ms} milliseconds").start()
        try:
            query.awaitTermination()
        except Exception as error:
            raise self._failed or JobFailure(f"Spark ended the stream: {error}") from error

    def _micro_batch(self, records: DataFrame, _number: int) -> None:
        """For foreachBatch, which would hide the failure in one of its own."""
        try:
            self.feed(records)
        except Exception as error:
            self._failed = error
            raise

    def _with_columns(self) -> FeedTask:
        """The task, with the columns that the table has now."""
        return replace(self._task, feed=self._target.read())

    def _replay_task(self, asked_ms: int) -> ReplayTask:
        task = self._with_columns()
        return ReplayTask(
            task.servers,
            task.registry,
            task.feed,
            task.feeder,
            task.topics,
            task.block_records,
            asked_ms,
        )


@dataclass(frozen=True, slots=True)
class FeedTarget:
    """The table of a feed. Everything raises SqlFailure and JobFailure."""

    servers: SqlServers
    name: str
    feed_id: str
    format: Format
    paths: Mapping[str, str]
    units: Mapping[str, str]
    schema_registry: str

    def read(self) -> SparkFeed:
        """With the columns that the table has now."""
        database, table = split_name(self.name)
        found = self.servers.rows(columns_statement(), {"database": database, "table": table})
        if not found:
            raise JobFailure(f"there is no table {self.name}: give --columns")
        try:
            columns = checked_columns(found, self.format, self.paths, self.units)
        except ValueError as error:
            raise JobFailure(f"{self.name}: {error}") from error
        return SparkFeed(self.name, self.feed_id, database, table, self.format, columns)

    def check(self) -> None:
        """Whether the user may add rows."""
        database, table = split_name(self.name)
        check_insert(self.servers, f"{quoted(database)}.{quoted(table)}")

    def make(
        self,
        columns: str | None,
        order_by: str | None,
        engine: str | None,
        partition_by: str | None,
    ) -> None:
        """Make the table, or give the one that exists what a feed needs."""
        database, table = split_name(self.name)
        target = f"{quoted(database)}.{quoted(table)}"
        named: dict[str, Parameter] = {"d": database, "t": table}
        where = "WHERE database = {d:String} AND name = {t:String}"
        found = self.servers.rows(f"SELECT engine FROM system.tables {where}", named)
        if not found and columns is not None:
            try:
                columns, engine = table_to_make(self.format, columns, order_by, engine)
            except ValueError as error:
                raise JobFailure(str(error)) from error
            by = sorting(order_by, partition_by)
            self.servers.execute(f"CREATE DATABASE IF NOT EXISTS {quoted(database)}")
            name = database, table
            self.servers.execute(creating(name, columns, engine, by, replicated=False))
            return
        if not found:
            raise JobFailure(f"there is no table {self.name}: give --columns")
        [[has]] = found
        replicated = has.startswith("Replicated")
        if not has.endswith("MergeTree"):
            raise JobFailure(f"{self.name} is a table of engine {has}, not of MergeTree")
        if len(self.servers.urls) > 1 and not replicated:
            raise JobFailure(f"{self.name} is not replicated: name one server with --http")
        for statement in preparing(target, replicated=replicated):
            self.servers.execute(statement)


# --- the job


def _to_name(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    try:
        _, table = split_name(text)
    except FeedDefinitionError as error:
        raise click.BadParameter(str(error)) from error
    if table == ANY_TABLE:
        raise click.BadParameter("a run of this job fills one table")
    return text


def _to_pairs(
    _context: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]
) -> dict[str, str]:
    found = dict(pair.partition("=")[::2] for pair in pairs)
    if not all(found) or not all(found.values()):
        raise click.BadParameter(f"write {parameter.make_metavar(_context)}, not {pairs[-1]!r}")
    return found


@job.command("feed")
@click.argument("name", metavar="DATABASE.TABLE", callback=_to_name)
@job.bootstrap_option
@click.option(
    "--input-format",
    "kind",
    type=click.Choice([one.value for one in Format]),
    default="json",
    show_default=True,
    help="The format of the records' values.",
)
@click.option("--columns", metavar="LIST", help="Of a new table, as in CREATE TABLE.")
@click.option("--order-by", metavar="LIST", help="Sorting key of a new table.")
@engine_option
@click.option("--partition-by", metavar="EXPRESSION", help="Partitioning of a new table.")
@path_option
@unit_option
@start_option
@click.option("--schema-registry", metavar="URL", default="", help="For avro and protobuf.")
@click.option("--replay", is_flag=True, help="First parse the dead letters again, after a fix.")
@click.option("--once", is_flag=True, help="End when all that is there has been fed.")
@job.number("--interval-ms", 1000, "How long records wait for others of their block.")
@job.number("--block-records", 200_000, "Records of a partition in one block, at most.", 1)
@click.option(
    "--kafka",
    "options",
    metavar="OPTION=VALUE",
    multiple=True,
    callback=_to_pairs,
    help="Of Kafka's clients, as in security.protocol=SSL; may be repeated.",
)
@click.option(
    "--jars",
    metavar="PATH[,...]",
    help="Spark's Kafka source. Without it, Spark fetches it from Maven Central.",
)
def command(
    run: JobRun,
    /,
    name: str,
    bootstrap: str,
    kind: str,
    columns: str | None,
    order_by: str | None,
    engine: str | None,
    partition_by: str | None,
    paths: Mapping[str, str],
    units: Mapping[str, str],
    start: str,
    schema_registry: str,
    replay: bool,
    once: bool,
    interval_ms: int,
    block_records: int,
    options: Mapping[str, str],
    jars: str | None,
) -> JobReport:
    """Fill DATABASE.TABLE from the topics --topic, each committed record once.

    --http is the ClickHouse that has the table. A run ends when another one with the same table
    begins.
    """
    if run.topics == glob_pattern(()):
        raise JobFailure("name the topics: --topic")
    if start.startswith(AT_OFFSET):
        raise click.UsageError("this job begins at earliest, latest or a time, not at an offset")
    if not run.dry_run:
        check_dead_letters(run.servers)
    spark = run.spark(**_sources(jars))
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    topics = find_topics(spark, {"bootstrap.servers": bootstrap, **options}, run.topics)
    if run.dry_run:
        return _preview(run, spark, topics, name, start, replay=replay)
    servers, registry = open_registry(run.servers)
    feed_id = feed_id_of(registry, name)
    target = FeedTarget(servers, name, feed_id, Format(kind), paths, units, schema_registry)
    target.make(columns, order_by, engine, partition_by)
    target.check()
    feeder = f"spark-{uuid4()}"
    task = FeedTask(servers, registry, target.read(), feeder, topics.ids, block_records)
    feeding = FeedRun(spark, topics, task, target)
    run.progress.step(f"taking over {name}")
    begin = feeding.take_over(offsets_at(spark, topics, start))
    if replay:
        run.progress.step(f"parsing dead letters of {name} again")
        feeding.replay(begin)
    run.progress.step(f"feeding {name} from {', '.join(topics.ids)}")
    if once:
        feeding.feed_up_to(begin, offsets_at(spark, topics, "latest"))
    else:
        feeding.feed_from(begin, block_records * len(begin), interval_ms)
    rows = feeding.counted.rows
    summary = f"{name}: {counted(rows, 'row')} fed, {feeding.counted.dead_letters} dead letters"
    if replay:
        rows, dead = feeding.replayed.rows, feeding.replayed.dead_letters
        summary += f"; dead letters parsed again: {counted(rows, 'row')}, {dead} are still dead"
    now = dead_letters_of(run.servers, name, topics.ids)
    summary += f"; now the feed has {counted(now, 'dead letter')}"
    return JobReport((), (), summary)


def _preview(
    run: JobRun, spark: SparkSession, topics: KafkaTopics, name: str, start: str, *, replay: bool
) -> JobReport:
    """What a run would feed."""
    begin, end = offsets_at(spark, topics, start), offsets_at(spark, topics, "latest")
    dead = 0
    if (registry := find_registry(run.servers)) is not None:
        begin.update(next_offsets(registry, name, topics.ids, begin))
        dead = dead_letters_of(run.servers, name, topics.ids)
    rows = [(*place, first, end[place]) for place, first in sorted(begin.items())]
    offsets = sum(max(last - first, 0) for _, _, first, last in rows)
    summary = f"{name}: would feed up to {counted(offsets, 'record')}"
    if replay:
        summary += f", and parse {counted(dead, 'dead letter')} again"
    summary += "; nothing was written"
    return JobReport(("topic", "partition", "next_offset", "end_offset"), rows, summary)


def _sources(jars: str | None) -> dict[str, Any]:
    if jars is not None:
        return {"spark__jars": jars}
    import pyspark

    version = pyspark.__version__
    return {"spark__jars__packages": f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}"}


if __name__ == "__main__":
    command()
