"""A worker: reads its partitions, writes data files, and tells of them when a commit begins.

The files' names and the offsets behind them are sent in one transaction, with the generation of
the consumer group (KIP-447). If a worker was paused and has lost its partitions, its transaction is
aborted and nobody uses its files. A worker that fails begins again at its partitions' offsets.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from pyiceberg.catalog import Catalog

from brokerhouse.common.process import collect_garbage_less
from brokerhouse.common.tasks import Backoff
from brokerhouse.spark_jobs import feed_state
from brokerhouse.spark_jobs.iceberg import tables
from brokerhouse.spark_jobs.iceberg.control_topic import (
    ANSWER_LIMIT_S,
    ControlReader,
    client_options,
)
from brokerhouse.spark_jobs.iceberg.coordinator import Coordinator
from brokerhouse.spark_jobs.iceberg.events import (
    Assignment,
    BeginCommit,
    DataComplete,
    DataFiles,
    WrittenFile,
    encoded,
)
from brokerhouse.spark_jobs.iceberg.files import TableWriter
from brokerhouse.spark_jobs.iceberg.rows import Row
from brokerhouse.spark_jobs.iceberg.settings import SinkSettings
from brokerhouse.spark_jobs.iceberg.values import (
    NoRows,
    ValueReader,
    checked_name,
    metadata_of,
    named_table,
)
from brokerhouse.spark_jobs.sql_client import SqlFailure, SqlUnavailable

_BATCH = 10_000
_POLL_S = 0.1
_CHANGES_MAX = 1_000_000
"""Of changed rows in memory; a worker that has so many waits for the commit."""
_EVENT_BYTES = 256 << 10
"""Of files in an event, which must not be larger than Kafka takes."""
_FENCED = (KafkaError._FENCED, KafkaError.FENCED_INSTANCE_ID, KafkaError.INVALID_PRODUCER_EPOCH)
_YOUNG_OBJECTS_MAX = 500_000
"""Several times the records of a batch and what is made of them. With Python's default, collecting
garbage took a third of the processor time (measured)."""
_FETCH_BACKOFF_MS = 10
"""How long librdkafka does not fetch when it has enough. Its default is a second, in which a worker
takes all that is there, and waits."""
_FIRST_DELAY_S, _DELAY_MAX_S = 0.2, 10.0

Partition = tuple[str, int]


@dataclass(slots=True)
class _Read:
    """What was read of a partition since the last commit. `latest`: timestamp, in ms."""

    next_offset: int | None = None
    latest: int | None = None


@dataclass(slots=True)
class _Batch:
    """Rows for one table, and the records that they are of."""

    wants_metadata: bool
    rows: list[Row] = field(default_factory=list)
    records: list[Message] = field(default_factory=list)


def _in_parts(files: Iterable[WrittenFile]) -> Iterator[tuple[WrittenFile, ...]]:
    part: list[WrittenFile] = []
    size_bytes = 0
    for file in files:
        if part and size_bytes + len(file.data_file) > _EVENT_BYTES:
            yield tuple(part)
            part, size_bytes = [], 0
        part.append(file)
        size_bytes += len(file.data_file)
    if part:
        yield tuple(part)


class SinkEnds(Exception):
    """The job cannot go on; the message is one sentence."""


class Sentences(Protocol):
    """To the driver: an accumulator of Spark, which the driver sees when the task has returned."""

    def add(self, term: list[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class SinkTask:
    """What Spark runs, with the number of the worker. It returns only if the job has to end.

    `endings`: gets the sentence that says why.
    """

    settings: SinkSettings
    endings: Sentences

    def __call__(self, numbers: Iterable[int]) -> Iterator[int]:
        from pyspark import TaskContext

        context = TaskContext.get()
        attempt = context.attemptNumber() if context is not None else 0
        if attempt:
            time.sleep(min(_FIRST_DELAY_S * 2 ** min(attempt, 10), _DELAY_MAX_S))
        [number] = numbers
        collect_garbage_less(_YOUNG_OBJECTS_MAX)
        worker = SinkWorker(self.settings, number)
        try:
            while True:
                worker.step()
        except SinkEnds as error:
            self.endings.add([str(error)])
            return
        except Exception as error:
            # Spark starts it again, and says so nowhere. Not one line for each of many failures.
            failures = attempt + 1
            if failures.bit_count() > 1:
                raise
            times = "" if failures == 1 else f" {failures} times"
            print(f"worker {number} failed{times} and is restarting: {error!r}", file=sys.stderr)
            if is_fenced(error):
                name = self.settings.name
                print(
                    f"another worker {number} of {name!r} has begun: give another --name to a"
                    " second run of the job iceberg",
                    file=sys.stderr,
                )
            raise
        finally:
            worker.close()
        yield number


def is_fenced(error: Exception) -> bool:
    """Whether a worker with the same number has begun since."""
    if not isinstance(error, KafkaException):
        return False
    found: KafkaError = error.args[0]
    return found.code() in _FENCED or "fenced" in found.str()


class SinkWorker:
    def __init__(self, settings: SinkSettings, number: int) -> None:
        """`number`: no other living worker has it. Raises KafkaException."""
        self._settings = settings
        self._catalog: Catalog = tables.open_catalog(settings.catalog, settings.catalog_options)
        self._values = ValueReader(settings.format, settings.schema_registry)
        self._id = uuid.uuid4().hex
        self._read: dict[Partition, _Read] = {}
        self._writers: dict[str, TableWriter] = {}
        self._coordinator: Coordinator | None = None
        self._paused = False
        self._rebalanced = False
        self._generation: Any = None
        """Of the group, when this worker got its partitions."""
        self._dead_letters: list[Mapping[str, Any]] = []
        self.storing = DeadLetterStore(settings)
        self._unanswered: str | None = None
        """The commit that waits until dead letters are stored."""
        self._producer = Producer(
            client_options(
                settings.kafka,
                transactional_id=f"{settings.group}-{number}",
                transaction_timeout_ms=settings.transaction_timeout_ms,
                # Else librdkafka waits for a coordinator that it forgot while all brokers were
                # away: https://github.com/confluentinc/librdkafka/issues/5511
                metadata_recovery_strategy="none",
            )
        )
        self._producer.init_transactions(ANSWER_LIMIT_S)
        self._control = ControlReader(
            settings.kafka, settings.control_topic, settings.group, f"{settings.group}-{self._id}"
        )
        self._control.begin_at_end()
        self._topics = [name for name in settings.topics if name != settings.control_topic]
        self._consumer = Consumer(
            client_options(
                settings.kafka,
                group_id=settings.group,
                enable_auto_commit=False,
                # Started again, it has its partitions at once, and the one before is fenced.
                group_instance_id=f"{settings.group}-{number}",
                isolation_level="read_committed",
                auto_offset_reset="earliest",
                enable_partition_eof=True,
                fetch_queue_backoff_ms=_FETCH_BACKOFF_MS,
                session_timeout_ms=settings.session_timeout_ms,
                partition_assignment_strategy="range",
            )
        )
        self._consumer.subscribe(
            self._topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )

    def step(self) -> None:
        """Read for a moment, and answer what the coordinator asks. Raises what clients raise."""
        self._hold_back()
        messages = self._consumer.consume(_BATCH, _POLL_S)
        if self._rebalanced:
            # Some of these may be from before, and are read again from the stored offsets.
            self._rebalanced = False
            self._consumer.assign(
                self._consumer.committed(self._consumer.assignment(), ANSWER_LIMIT_S)
            )
            messages = []
        self._take(messages)
        for _, event in self._control.events():
            if isinstance(event, BeginCommit):
                self.answer(event.commit_id)
        if self._unanswered is not None and self.storing.is_due:
            self.answer(self._unanswered)
        if self._coordinator is not None:
            self._coordinator.step()

    @property
    def positions(self) -> dict[Partition, int | None]:
        """Of each of its partitions; None if nothing was read since the last commit."""
        return {place: read.next_offset for place, read in self._read.items()}

    @property
    def leads(self) -> bool:
        """Whether it is the coordinator, too."""
        return self._coordinator is not None

    def close(self) -> None:
        self._consumer.close()
        self._control.close()
        self._stop_coordinating()

    # --- partitions

    def _assigned(self, consumer: Consumer, places: Sequence[TopicPartition]) -> None:
        """Begin at the stored offsets, with nothing in memory."""
        self._forget()
        self._rebalanced = True
        self._generation = consumer.consumer_group_metadata()
        self._read = {(place.topic, place.partition): _Read() for place in places}
        self._stop_coordinating()
        counts = self._partitions()
        if counts and (next(iter(counts)), 0) in self._read:
            self._coordinator = Coordinator(self._settings, self._catalog, sum(counts.values()))

    def _revoked(self, _consumer: Consumer, _places: Sequence[TopicPartition]) -> None:
        self._forget()
        self._read = {}
        self._stop_coordinating()

    def _forget(self) -> None:
        """What was written since the last commit is written again by whoever has the partitions."""
        self._writers = {}
        self._dead_letters = []
        self._unanswered = None
        self._paused = False

    def _stop_coordinating(self) -> None:
        if self._coordinator is not None:
            self._coordinator.close()
            self._coordinator = None

    def _partitions(self) -> dict[str, int]:
        """How many each topic has. One that was deleted is left out."""
        found = self._consumer.list_topics(timeout=ANSWER_LIMIT_S).topics
        return {name: len(found[name].partitions) for name in self._topics if name in found}

    def _hold_back(self) -> None:
        """Stop reading while too many changes are in memory, or dead letters wait."""
        full = self._unanswered is not None
        full |= sum(one.buffered_rows for one in self._writers.values()) > _CHANGES_MAX
        if full != self._paused:
            places = self._consumer.assignment()
            (self._consumer.pause if full else self._consumer.resume)(places)
            self._paused = full

    # --- records

    def _take(self, messages: Sequence[Message]) -> None:
        """What is asked of the catalog is asked once for all of them."""
        records = [message for message in messages if self._is_record(message)]
        if not records:
            return
        columns = self._columns()
        batches: dict[str, _Batch] = {}
        for record in records:
            self._sort(record, columns, batches)
        for name, batch in batches.items():
            for number, reason in self._writer(name).add(batch.rows).items():
                self._reject(name, batch.records[number], reason)

    def _is_record(self, message: Message) -> bool:
        """Whether it has a value. Raises KafkaException."""
        if (error := message.error()) is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                # It counts what no reader sees, such as markers of transactions.
                self._of(message).next_offset = message.offset()
            elif error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                print(f"{message.topic()} cannot be read: {error.str()}", file=sys.stderr)
            elif error.fatal() or not error.retriable():
                raise KafkaException(error)
            return False
        self._note(message)
        return message.value() is not None

    def _note(self, message: Message) -> None:
        read = self._of(message)
        read.next_offset = (message.offset() or 0) + 1
        kind, timestamp = message.timestamp()
        if kind:
            read.latest = timestamp if read.latest is None else max(read.latest, timestamp)

    def _of(self, message: Message) -> _Read:
        return self._read[message.topic() or "", message.partition() or 0]

    def _columns(self) -> list[str]:
        """Of the table, if values have no names for them."""
        if not self._values.needs_columns:
            return []
        columns = self._writer(next(iter(self._settings.tables.names))).columns
        if columns is None:
            raise RuntimeError(f"{self._settings.format.value} needs a table that exists")
        return columns

    def _sort(self, message: Message, columns: list[str], batches: dict[str, _Batch]) -> None:
        """Put the rows of a record where they belong."""
        try:
            rows = self._values.rows(message.value() or b"", columns)
        except NoRows as error:
            self._reject(self._settings.name, message, str(error))
            return
        for row in rows:
            try:
                names = self._tables_of(message, row)
            except NoRows as error:
                self._reject(self._settings.name, message, str(error))
                continue
            for name in names:
                batch = batches.get(name)
                if batch is None:
                    batch = batches[name] = _Batch(self._writer(name).wants_metadata)
                batch.rows.append({**row, **metadata_of(message)} if batch.wants_metadata else row)
                batch.records.append(message)

    def _tables_of(self, message: Message, row: Row) -> Iterable[str]:
        """Raises `NoRows`."""
        sink = self._settings.tables
        if sink.route is None:
            return sink.names
        value = named_table(message, row, sink.route)
        if value is None:
            return ()
        fixed = [name for name, wanted in sink.names.items() if wanted == value]
        return [f"{sink.database}.{checked_name(value)}", *fixed] if sink.database else fixed

    def _writer(self, name: str) -> TableWriter:
        if name not in self._writers:
            self._writers[name] = TableWriter(self._catalog, name, self._settings.tables)
        return self._writers[name]

    # --- commits

    def answer(self, commit_id: str) -> None:
        """Send the files and the offsets behind them: after the dead letters are stored.

        Raises `SinkEnds`, and what clients raise.
        """
        if not self._read:
            return
        # One that is stored twice is one, by its offset.
        if not self.storing.store(self._dead_letters):
            self._unanswered = commit_id
            return
        self._dead_letters, self._unanswered = [], None
        events: list[DataFiles | DataComplete] = []
        for name, writer in self._writers.items():
            events += [
                DataFiles(commit_id, self._id, name, files, writer.table_uuid)
                for files in _in_parts(writer.finish())
            ]
        assignments = [Assignment(*place, read.latest) for place, read in self._read.items()]
        events.append(DataComplete(commit_id, self._id, tuple(assignments)))
        self._producer.begin_transaction()
        for event in events:
            value = encoded(self._settings.group, event)
            self._producer.produce(self._settings.control_topic, value, self._id)
        offsets = [
            TopicPartition(*place, read.next_offset)
            for place, read in self._read.items()
            if read.next_offset is not None
        ]
        self._producer.send_offsets_to_transaction(offsets, self._generation, ANSWER_LIMIT_S)
        self.commit_transaction()
        self._read = {place: _Read() for place in self._read}

    def commit_transaction(self) -> None:
        self._producer.commit_transaction(ANSWER_LIMIT_S)

    # --- dead letters

    def _reject(self, name: str, message: Message, reason: str) -> None:
        topic = message.topic() or ""
        self._dead_letters.append(
            {
                "feed": name,
                "feed_id": str(self._settings.feed_id),
                "topic": topic,
                "topic_id": self._settings.topics[topic],
                "partition": message.partition(),
                "offset": message.offset(),
                "error": reason,
                "replayed": False,
            }
        )


class DeadLetterStore:
    """Stores dead letters in ClickHouse. Says once that it is away, and once that it is back."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings
        self._backoff = Backoff(_FIRST_DELAY_S, _DELAY_MAX_S)
        self._again_s = 0.0
        self._away_since_s: float | None = None

    @property
    def is_due(self) -> bool:
        """Whether it is time to try again."""
        return time.monotonic() >= self._again_s

    def store(self, dead_letters: Sequence[Mapping[str, Any]]) -> bool:
        """False if no server answers. Raises `SinkEnds` if one refuses them, or for too long."""
        if not dead_letters:
            return True
        moments = pa.array([datetime.now(UTC)] * len(dead_letters), pa.timestamp("ms", "UTC"))
        rows = pa.Table.from_pylist(list(dead_letters)).append_column("time", moments)
        try:
            servers = feed_state.open_dead_letters(self._settings.servers)
            servers.insert("dead_letter_versions", rows, None)
        except SqlUnavailable as error:
            self._is_away(len(dead_letters), error)
            return False
        except SqlFailure as error:
            raise SinkEnds(
                f"a dead letter cannot be stored: {error}. The next run continues before it"
            ) from error
        if self._away_since_s is not None:
            print("dead letters are stored again", file=sys.stderr)
        self._away_since_s = None
        self._backoff.reset()
        return True

    def _is_away(self, waiting: int, error: SqlUnavailable) -> None:
        now_s = time.monotonic()
        if self._away_since_s is None:
            self._away_since_s = now_s
            print(f"{waiting} dead letters wait for a server: {error}", file=sys.stderr)
        limit_s = self._settings.dead_letters_timeout_ms / 1000
        if limit_s and now_s - self._away_since_s > limit_s:
            raise SinkEnds(
                f"dead letters could not be stored for {limit_s:g} s: {error}. Start the server;"
                " the next run goes on before them"
            ) from error
        self._again_s = time.monotonic() + self._backoff.advance()
