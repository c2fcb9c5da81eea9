"""The command `brokerhouse jobs run iceberg`, and the driver's part of the job.

The driver starts the workers as tasks of Spark and lets Spark start those again that fail. All that
must be known afterwards is in Kafka and in the tables, so the job can be ended at any moment.
"""

from __future__ import annotations

import base64
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click
from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from brokerhouse.common.options import CommandT
from brokerhouse.feeds.definition import Format
from brokerhouse.feeds.routing import ANY_TABLE, route_from_text
from brokerhouse.spark_jobs import job
from brokerhouse.spark_jobs.feed_state import check_dead_letters
from brokerhouse.spark_jobs.iceberg import tables
from brokerhouse.spark_jobs.iceberg.control_topic import ANSWER_LIMIT_S, client_options, make_topic
from brokerhouse.spark_jobs.iceberg.settings import (
    DEBEZIUM,
    RowOperation,
    RowOperations,
    SinkSettings,
    SinkTables,
)
from brokerhouse.spark_jobs.iceberg.worker import SinkTask
from brokerhouse.spark_jobs.job import JobFailure, JobReport, JobRun, glob_pattern
from brokerhouse.spark_jobs.progress import counted

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext

_TASK_FAILURES = 1_000_000
_POLL_S = 0.3
_ONCE_INTERVAL_MS = 1000
_ONCE_DEAD_LETTERS_MS = 120_000
_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class _JobOffsets:
    """Asks Kafka how far the job is. Raises KafkaException."""

    settings: SinkSettings
    admin: AdminClient

    def source_ends(self) -> dict[tuple[str, int], int]:
        topics = [name for name in self.settings.topics if name != self.settings.control_topic]
        return self._ends(topics)

    def control_ends(self) -> dict[tuple[str, int], int]:
        return self._ends([self.settings.control_topic])

    def stored(self, group: str) -> dict[tuple[str, int], int]:
        asked = self.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
        found = asked[group].result(ANSWER_LIMIT_S).topic_partitions
        return {(one.topic, one.partition): one.offset for one in found}

    def _ends(self, topics: list[str]) -> dict[tuple[str, int], int]:
        known = self.admin.list_topics(timeout=ANSWER_LIMIT_S).topics
        places = {
            TopicPartition(topic, number): OffsetSpec.latest()
            for topic in topics
            for number in known[topic].partitions
        }
        asked = self.admin.list_offsets(places, isolation_level=IsolationLevel.READ_COMMITTED)
        return {
            (place.topic, place.partition): answer.result(ANSWER_LIMIT_S).offset
            for place, answer in asked.items()
        }


def _reached(stored: Mapping[tuple[str, int], int], ends: Mapping[tuple[str, int], int]) -> bool:
    return all(stored.get(place, 0) >= end for place, end in ends.items())


def _say_begun(run: JobRun, settings: SinkSettings, workers: int) -> None:
    names = ", ".join(_sources(settings))
    run.progress.step(f"writing {names} with {counted(workers, 'worker')}")


class _RunningWorkers:
    """The workers, as a job of Spark in a thread of its own."""

    def __init__(
        self, run: JobRun, spark: SparkContext, settings: SinkSettings, workers: int
    ) -> None:
        _say_begun(run, settings, workers)
        self._spark = spark
        self._settings = settings
        self._count = workers
        self._endings = _sentences(spark)
        self._failed: Exception | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises JobFailure if a worker has ended the job, or Spark."""
        if self._endings.value:
            self.stop()
            raise JobFailure(self._endings.value[0])
        if not self._thread.is_alive():
            raise JobFailure(f"Spark ended the workers: {self._failed}") from self._failed

    def stop(self) -> None:
        self._spark.cancelAllJobs()
        self._thread.join()

    def _work(self) -> None:
        try:
            numbers = self._spark.parallelize(range(self._count), self._count)
            numbers.mapPartitions(SinkTask(self._settings, self._endings)).collect()
        except Exception as error:  # also the end that `stop` asks for
            self._failed = error


def _sentences(spark: SparkContext) -> Accumulator[list[str]]:
    from pyspark.accumulators import AccumulatorParam

    class JoinedSentences(AccumulatorParam[list[str]]):
        def zero(self, value: list[str]) -> list[str]:
            return []

        def addInPlace(self, value1: list[str], value2: list[str]) -> list[str]:  # noqa: N802
            return [*value1, *value2]

    return spark.accumulator([], JoinedSentences())


def _run_workers(run: JobRun, spark: SparkContext, settings: SinkSettings, workers: int) -> None:
    """Until a worker ends the job, or Spark. Raises JobFailure. `workers`: 0 is one per core."""
    running = _RunningWorkers(run, spark, settings, workers or spark.defaultParallelism)
    while True:
        running.check()
        time.sleep(_POLL_S)


def _run_once(run: JobRun, spark: SparkContext, settings: SinkSettings, workers: int) -> int:
    """Until the tables have all that the topics had. Returns how many records that are.

    `workers`: 0 is one for each core, but none that would get no partition: each that joins the
    group makes the others wait, and there will be no more partitions for this run.
    """
    progress = _JobOffsets(settings, AdminClient(client_options(settings.kafka)))
    begin, ends = progress.stored(settings.group), progress.source_ends()
    largest = max(Counter(topic for topic, _ in ends).values())
    workers = workers or min(spark.defaultParallelism, largest)
    running = _RunningWorkers(run, spark, settings, workers)

    def await_stored(group: str, wanted: Mapping[tuple[str, int], int]) -> None:
        while not _reached(progress.stored(group), wanted):
            running.check()
            time.sleep(_POLL_S)

    await_stored(settings.group, ends)
    await_stored(settings.coordinator_group, progress.control_ends())
    running.stop()
    return sum(max(end - max(begin.get(place, 0), 0), 0) for place, end in ends.items())


# --- the command


def to_pairs(
    context: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]
) -> dict[str, str]:
    found = dict(pair.partition("=")[::2] for pair in pairs)
    if not all(found) or not all(found.values()):
        raise click.BadParameter(f"write {parameter.make_metavar(context)}, not {pairs[-1]!r}")
    return found


def to_tables(
    _context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]
) -> dict[str, str]:
    found = dict(text.partition("=")[::2] for text in texts)
    for name in found:
        namespace, _, table = name.rpartition(".")
        if not namespace or not table:
            raise click.BadParameter(f"write NAMESPACE.TABLE, not {name!r}")
    return found


def _to_partitions(
    _context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...]:
    try:
        for text in texts:
            tables.partition_field(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return texts


def _to_words(
    _context: click.Context, _parameter: click.Parameter, pairs: tuple[str, ...]
) -> dict[str, RowOperation]:
    known = {one.value: one for one in RowOperation}
    words = {**known, **DEBEZIUM}
    for pair in pairs:
        word, _, operation = pair.partition("=")
        if not word or operation not in known:
            raise click.BadParameter(f"write WORD=insert, update or delete, not {pair!r}")
        words[word.lower()] = known[operation]
    return words


def _to_name(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    if not _NAME.fullmatch(text):
        raise click.BadParameter("letters, digits, and . _ - only")
    return text


_ROUTES = "header=NAME|field=PATH|key=SEPARATOR"
_OF_NEW_TABLES = "Of new tables; may be repeated."
_named = partial(job.text, read=_to_name, show_default=True)
"""An option that is a name."""


def in_catalog(directory: str) -> Callable[[CommandT], CommandT]:
    """--catalog and --catalog-option; `directory` begins the help of the first."""

    def add(command: CommandT) -> CommandT:
        help_text = f"{directory}, or PyIceberg's name of a catalog."
        options = job.repeated(
            "--catalog-option",
            "catalog_options",
            "NAME=VALUE",
            "A property of PyIceberg's catalog, as in type=rest; may be repeated.",
            to_pairs,
        )
        catalog = click.option("--catalog", metavar="DIRECTORY|NAME", required=True, help=help_text)
        return catalog(options(command))

    return add


@job.command("iceberg")
@job.bootstrap_option
@in_catalog("A directory, with a slash in it, for tables and a catalog in SQLite")
@job.repeated(
    "--table",
    "names",
    "NAMESPACE.TABLE[=VALUE]",
    "A table; with --route, for the records that name VALUE. May be repeated."
    " NAMESPACE.* takes its name from the record.",
    to_tables,
)
@click.option("--route", metavar=_ROUTES, help="Where a record names its table.")
@click.option(
    "--input-format",
    "kind",
    default="json",
    show_default=True,
    type=click.Choice([one.value for one in Format if not one.needs_key]),
    help="The format of the records' values.",
)
@click.option("--schema-registry", metavar="URL", default="", help="For avro and protobuf.")
@_named("--name", "sink", "A run with the same name continues where the last one ended.")
@_named(
    "--control-topic",
    "iceberg-control",
    "The topic on which workers and coordinator agree on commits.",
)
@click.option(
    "--create", is_flag=True, help="Create missing tables with columns for the records' fields."
)
@click.option("--evolve", is_flag=True, help="Add columns for new fields; widen int and float.")
@click.option(
    "--metadata", is_flag=True, help="New tables have columns _topic, _offset and others."
)
@job.repeated(
    "--id-column",
    "id_columns",
    "COLUMN",
    "A part of the key of rows that change others; may be repeated.",
)
@job.repeated(
    "--partition-by", "partition_by", "COLUMN|TRANSFORM(COLUMN)", _OF_NEW_TABLES, _to_partitions
)
@job.repeated("--property", "properties", "NAME=VALUE", _OF_NEW_TABLES, to_pairs)
@click.option("--upsert", is_flag=True, help="A row replaces the one with its key.")
@click.option(
    "--operation-field",
    metavar="FIELD",
    default="",
    help="The field that says insert, update or delete.",
)
@job.repeated(
    "--operation",
    "words",
    "WORD=OPERATION",
    "Another word for insert, update or delete; may be repeated.",
    _to_words,
)
@job.number("--interval-ms", 60_000, "Between two commits.", 100)
@job.number("--timeout-ms", 30_000, "How long a commit waits for workers.", 100)
@job.number("--session-timeout-ms", 45_000, "After which a worker that is silent has none.", 1000)
@job.number("--transaction-timeout-ms", 60_000, "Of the workers' transactions.", 1000)
@job.number(
    "--workers", 0, "Tasks of Spark. 0: one for each core; with --once at most one per partition."
)
@click.option("--once", is_flag=True, help="End when the tables have all existing records.")
@job.repeated(
    "--kafka",
    "options",
    "OPTION=VALUE",
    "Of librdkafka, as in security.protocol=SSL; may be repeated.",
    to_pairs,
)
def command(run: JobRun, /, **given: Any) -> JobReport:
    """Write the topics --topic into Iceberg tables, each committed record once.

    Dead letters go to the database brokerhouse_feeds of --http.
    """
    if run.topics == glob_pattern(()):
        raise JobFailure("name the topics: --topic")
    workers, once = given.pop("workers"), given.pop("once")
    if once:
        given["interval_ms"] = min(given["interval_ms"], _ONCE_INTERVAL_MS)
    settings = _settings(run, **given)
    if run.dry_run:
        return _preview(settings)
    check_dead_letters(settings.servers)
    if once:
        settings = replace(settings, dead_letters_timeout_ms=_ONCE_DEAD_LETTERS_MS)
    if run.master is not None and re.fullmatch(r"local(\[[^],]+\])?", run.master):
        cores = run.master[6:-1] or "1"
        run.master = f"local[{cores},{_TASK_FAILURES}]"
    spark = run.spark_context(spark__task__maxFailures=_TASK_FAILURES)
    if not once:
        _run_workers(run, spark, settings, workers)
        return JobReport((), (), "ended")
    records = _run_once(run, spark, settings, workers)
    return JobReport((), (), f"{settings.name}: wrote {counted(records, 'offset')}")


def _settings(
    run: JobRun,
    *,
    bootstrap: str,
    catalog: str,
    catalog_options: dict[str, str],
    names: dict[str, str],
    route: str | None,
    kind: str,
    schema_registry: str,
    name: str,
    control_topic: str,
    create: bool,
    evolve: bool,
    metadata: bool,
    id_columns: tuple[str, ...],
    partition_by: tuple[str, ...],
    properties: Mapping[str, str],
    upsert: bool,
    operation_field: str,
    words: Mapping[str, RowOperation],
    interval_ms: int,
    timeout_ms: int,
    session_timeout_ms: int,
    transaction_timeout_ms: int,
    options: dict[str, str],
) -> SinkSettings:
    """Checked as a whole, with Kafka and the catalog. Raises JobFailure."""
    dynamic = [one.rpartition(".")[0] for one in names if one.endswith(f".{ANY_TABLE}")]
    fixed = {one: value for one, value in names.items() if not one.endswith(f".{ANY_TABLE}")}
    if not names or len(dynamic) > 1:
        raise JobFailure("name the tables: --table NAMESPACE.TABLE, or one NAMESPACE.*")
    if route is None and (dynamic or any(fixed.values())):
        raise JobFailure("NAMESPACE.* and NAMESPACE.TABLE=VALUE need --route")
    if route is not None and not all(fixed.values()):
        raise JobFailure("with --route, write --table NAMESPACE.TABLE=VALUE")
    if upsert and operation_field:
        raise JobFailure("--upsert and --operation-field exclude each other")
    try:
        by = None if route is None else route_from_text(route)
    except ValueError as error:
        raise JobFailure(str(error)) from error
    if Format(kind) in (Format.CSV, Format.RAW, Format.MSGPACK) and (dynamic or len(fixed) != 1):
        raise JobFailure(f"{kind} fills one table")
    catalog, catalog_options = tables.catalog_properties(catalog, catalog_options)
    kafka = {"bootstrap.servers": bootstrap, **options}
    sink = SinkTables(
        fixed,
        dynamic[0] if dynamic else "",
        by,
        create,
        evolve,
        id_columns,
        partition_by,
        properties,
        metadata,
        RowOperations(operation_field, words) if upsert or operation_field else None,
    )
    settings = SinkSettings(
        name,
        kafka,
        _topics(kafka, run.topics, control_topic),
        control_topic,
        catalog,
        catalog_options,
        sink,
        Format(kind),
        schema_registry,
        run.servers,
        interval_ms,
        timeout_ms,
        session_timeout_ms,
        transaction_timeout_ms,
    )
    _check_catalog(settings)
    return settings


def _check_catalog(settings: SinkSettings) -> None:
    """Raises JobFailure."""
    sink = settings.tables
    try:
        catalog = tables.open_catalog(settings.catalog, settings.catalog_options)
        found = {name: tables.existing(catalog, name) for name in sink.names}
    except Exception as error:  # catalogs do not agree on an error
        raise JobFailure(f"the catalog {settings.catalog} cannot be used: {error}") from error
    for name, table in found.items():
        if table is None and not sink.create:
            raise JobFailure(f"there is no table {name}: create it, or add --create")
        if table is None or sink.operations is None:
            continue
        if table.metadata.format_version < tables.FORMAT_VERSION:
            raise JobFailure(
                f"{name} is of format version 1, which cannot change rows: use version 2"
            )
        if not table.schema().identifier_field_ids and not sink.id_columns:
            raise JobFailure(f"{name} has no identifier fields: give --id-column")


_INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")
"""Kafka's own, which no pattern means. Librdkafka lists them among all others."""


def _topics(kafka: Mapping[str, str], pattern: str, control_topic: str) -> dict[str, str]:
    """The ids of the topics that match, and last the control topic, which is made if missing."""
    try:
        make_topic(kafka, control_topic)
        admin = AdminClient(client_options(kafka))
        known = admin.list_topics(timeout=ANSWER_LIMIT_S).topics
        hidden = {control_topic, *_INTERNAL_TOPICS}
        wanted = sorted(
            topic for topic in known if topic not in hidden and re.match(pattern, topic)
        )
        if not wanted:
            raise JobFailure("no topic matches --topic")
        return described(kafka, [*wanted, control_topic])
    except KafkaException as error:
        raise JobFailure(f"{kafka['bootstrap.servers']}: {error.args[0].str()}") from error


def described(kafka: Mapping[str, str], names: list[str]) -> dict[str, str]:
    """The ids of topics. Raises KafkaException."""
    asked = TopicCollection(names)
    admin = AdminClient(client_options(kafka))
    found = admin.describe_topics(asked)
    return {topic: _uuid(found[topic].result(ANSWER_LIMIT_S).topic_id) for topic in names}


def _uuid(topic_id: Any) -> str:
    """Clients write the id in base64; SQL does not."""
    return str(UUID(bytes=base64.urlsafe_b64decode(f"{topic_id}==")))


def _sources(settings: SinkSettings) -> list[str]:
    return [name for name in settings.topics if name != settings.control_topic]


def _preview(settings: SinkSettings) -> JobReport:
    """What a run would write."""
    progress = _JobOffsets(settings, AdminClient(client_options(settings.kafka)))
    ends, stored = progress.source_ends(), progress.stored(settings.group)
    rows = [(*place, max(stored.get(place, 0), 0), end) for place, end in sorted(ends.items())]
    offsets = sum(max(end - first, 0) for _, _, first, end in rows)
    summary = f"{settings.name}: would write {counted(offsets, 'offset')}; nothing was written"
    return JobReport(("topic", "partition", "next_offset", "end_offset"), rows, summary)


if __name__ == "__main__":
    command()
