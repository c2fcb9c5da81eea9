"""Streams read every record once, whatever happens to topics and to Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kafka.admin import KafkaAdminClient, NewPartitions, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from brokerhouse.spark_jobs.datasource import BrokerhouseDataSource, StreamReader
from brokerhouse.spark_jobs.slices import DataLoss, LogSnapshot, Slice
from tests.spark.reading import FORMAT, with_python
from tests.support.adapters import ConfluentKafka
from tests.support.broker_process import BrokerProcess
from tests.support.process_session import signal_session
from tests.support.records import Record
from tests.support.server_process import PROJECT

LIMIT_S = 60
HANGS_S = 300
KILL_LIMIT_S = 300


@pytest.fixture(scope="module")
def admin(broker: BrokerProcess) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=broker.kafka)
    yield client
    client.close()


def produce(broker: BrokerProcess, topic: str, values: range, partition: int = 0) -> None:
    records = [Record(None, b"%d" % n) for n in values]
    ConfluentKafka().produce(broker.kafka, topic, records, partition=partition)


class Sink:
    """Files that a query writes, and by its log of them what each batch has handed over.

    Not foreachBatch: Spark would call this process back through py4j, whose server takes no
    connection once a process has a thousand open files, as one that runs all tests may have.
    """

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self._path = directory / f"sink-{uuid4()}"
        self._checkpoint = directory

    @contextmanager
    def running(self, frame: DataFrame) -> Iterator[Callable[[int], None]]:
        """A query that keeps running; what it gives waits for so many rows."""
        query = self._writer(frame).start()

        def go_on(count: int) -> None:
            nonlocal query
            if not query.isActive:
                query = self._writer(frame).start()
            self._await_rows(count, query)

        try:
            yield lambda count: with_python(lambda: go_on(count))
        finally:
            query.stop()

    def run_out(self, frame: DataFrame) -> None:
        """Run until all current records are read."""
        with_python(lambda: self._run_out(frame))

    def _run_out(self, frame: DataFrame) -> None:
        query = self._writer(frame).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(HANGS_S)
        finally:
            query.stop()

    def _writer(self, frame: DataFrame) -> DataStreamWriter:
        return (
            frame.selectExpr("topic", "partition", "CAST(CAST(value AS STRING) AS INT) AS value")
            .writeStream.format("parquet")
            .option("path", str(self._path))
            .option("checkpointLocation", str(self._checkpoint))
        )

    @property
    def batches(self) -> list[list[tuple[str, int, int]]]:
        """As (topic, partition, value), batch after batch."""
        logs = [one for one in self._path.glob("_spark_metadata/*") if one.name.isdigit()]
        found = []
        for log in sorted(logs, key=lambda one: int(one.name)):
            entries = [json.loads(line) for line in log.read_text().splitlines()[1:]]
            files = [entry["path"] for entry in entries]
            rows = self._spark.read.parquet(*files).collect() if files else []
            found.append([(row.topic, row.partition, row.value) for row in rows])
        return found

    @property
    def rows(self) -> list[tuple[str, int, int]]:
        return [row for batch in self.batches for row in batch]

    def _await_rows(self, count: int, query: StreamingQuery) -> None:
        deadline = time.monotonic() + HANGS_S
        while len(self.rows) < count:
            if (failure := query.exception()) is not None:
                raise failure
            assert time.monotonic() < deadline, self.batches
            time.sleep(0.1)


def stream(spark: SparkSession, url: str, **options: Any) -> DataFrame:
    options.setdefault("startingOffsets", "earliest")
    return spark.readStream.format(FORMAT).options(servers=url, **options).load()


def offsets(checkpoint: Path) -> dict[str, Any]:
    """What the last batch has written into the checkpoint."""
    files = [path for path in (checkpoint / "offsets").iterdir() if path.name.isdigit()]
    last = max(files, key=lambda path: int(path.name))
    found: dict[str, Any] = json.loads(last.read_text().splitlines()[2])
    return found


def test_a_stream_continues_from_its_checkpoint(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path, admin: KafkaAdminClient
) -> None:
    admin.create_topics([NewTopic(topic, 2, 1)])
    produce(broker, topic, range(30))
    sink = Sink(spark, tmp_path)
    sink.run_out(stream(spark, broker.http_url, subscribe=topic))
    assert sorted(value for _, _, value in sink.rows) == list(range(30))
    assert offsets(tmp_path) == {topic: {"0": 30, "1": 0}}

    produce(broker, topic, range(30, 40))
    more = Sink(spark, tmp_path)
    more.run_out(stream(spark, broker.http_url, subscribe=topic))
    assert sorted(value for _, _, value in more.rows) == list(range(30, 40))


@pytest.mark.test_all
def test_the_limit_of_a_batch_is_shared_by_partitions(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path, admin: KafkaAdminClient
) -> None:
    admin.create_topics([NewTopic(topic, 2, 1)])
    produce(broker, topic, range(90))
    produce(broker, topic, range(90, 120), partition=1)
    sink = Sink(spark, tmp_path)
    sink.run_out(stream(spark, broker.http_url, subscribe=topic, maxOffsetsPerTrigger=40))
    sizes = [Counter(row[1] for row in batch) for batch in sink.batches]
    assert sizes == [{0: 30, 1: 10}] * 3
    assert sorted(value for _, _, value in sink.rows) == list(range(120))


@pytest.mark.test_all
def test_new_partitions_and_topics_are_picked_up_by_a_running_stream(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path, admin: KafkaAdminClient
) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    produce(broker, topic, range(3))
    sink = Sink(spark, tmp_path)
    frame = stream(spark, broker.http_url, subscribePattern=f"^{topic}")
    with sink.running(frame) as await_rows:
        await_rows(3)
        admin.create_partitions({topic: NewPartitions(2)})
        produce(broker, topic, range(3, 6), partition=1)
        admin.create_topics([NewTopic(f"{topic}-2", 1, 1)])
        produce(broker, f"{topic}-2", range(6, 9))
        await_rows(9)
    assert Counter(sink.rows) == Counter(
        [
            *((topic, 0, n) for n in range(3)),
            *((topic, 1, n) for n in range(3, 6)),
            *((f"{topic}-2", 0, n) for n in range(6, 9)),
        ]
    )


@pytest.mark.test_all
def test_a_topic_created_again_under_a_stream_is_data_loss(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path, admin: KafkaAdminClient
) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    produce(broker, topic, range(5))
    Sink(spark, tmp_path).run_out(stream(spark, broker.http_url, subscribe=topic))
    admin.delete_topics([topic])
    admin.create_topics([NewTopic(topic, 1, 1)])
    produce(broker, topic, range(2))
    with pytest.raises(Exception, match="ends at 2 and was read up to 5: set failOnDataLoss"):
        Sink(spark, tmp_path).run_out(stream(spark, broker.http_url, subscribe=topic))


def reader(url: str, **options: str) -> StreamReader:
    source = BrokerhouseDataSource({"servers": url, **options})
    made = source.streamReader(source.schema())
    assert isinstance(made, StreamReader)
    return made


def values(made: StreamReader, start: Any, end: Any) -> list[int]:
    rows = []
    for one in made.partitions(start, end):
        assert isinstance(one, Slice)
        for batch in made.read(one):
            rows += [int(row["value"]) for row in batch.to_pylist()]
    return rows


def test_latest_is_the_same_offset_after_a_crash(
    broker: BrokerProcess, topic: str, admin: KafkaAdminClient
) -> None:
    """Spark stores ends of batches: the first one ends where the stream begins, and is empty."""
    admin.create_topics([NewTopic(topic, 1, 1)])
    produce(broker, topic, range(10))
    first = reader(broker.http_url, subscribe=topic)
    initial = first.initialOffset()
    assert initial == {topic: {"0": 10}}
    produce(broker, topic, range(10, 20))
    stored = first.latestOffset(initial, ReadAllAvailable())
    assert stored == initial
    assert values(first, initial, stored) == []

    produce(broker, topic, range(20, 30))
    again = reader(broker.http_url, subscribe=topic)  # the batch was not committed
    assert values(again, again.initialOffset(), stored) == []
    end = again.latestOffset(stored, ReadAllAvailable())
    assert values(again, stored, end) == list(range(10, 30))
    assert again.latestOffset(end, ReadAllAvailable()) == end


def test_the_next_batch_of_a_stream_has_new_partitions_and_topics(
    broker: BrokerProcess, topic: str, admin: KafkaAdminClient
) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    produce(broker, topic, range(3))
    made = reader(broker.http_url, subscribePattern=f"^{topic}", startingOffsets="earliest")
    start = made.initialOffset()
    assert start == {topic: {"0": 0}}
    admin.create_partitions({topic: NewPartitions(2)})
    produce(broker, topic, range(3, 5), partition=1)
    admin.create_topics([NewTopic(f"{topic}-2", 1, 1)])
    produce(broker, f"{topic}-2", range(5, 9))
    end = made.latestOffset(start, ReadAllAvailable())
    assert end == {topic: {"0": 3, "1": 2}, f"{topic}-2": {"0": 4}}
    assert sorted(values(made, start, end)) == list(range(9))


def test_a_stream_reports_ends_within_its_limit(
    broker: BrokerProcess, topic: str, admin: KafkaAdminClient
) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    produce(broker, topic, range(10))
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    made = reader(broker.http_url, **options, maxOffsetsPerTrigger="4")
    start = made.initialOffset()
    assert start == {topic: {"0": 0}}
    limit = made.getDefaultReadLimit()
    assert limit == ReadMaxRows(4)
    assert made.latestOffset(start, limit) == {topic: {"0": 4}}
    assert made.latestOffset(start, ReadAllAvailable()) == {topic: {"0": 10}}
    assert made.reportLatestOffset() == {topic: {"0": 10}}
    made.prepareForTriggerAvailableNow()
    produce(broker, topic, range(10, 20))
    assert made.latestOffset(start, ReadAllAvailable()) == {topic: {"0": 10}}
    assert values(made, start, {topic: {"0": 10}}) == list(range(10))
    assert made.latestOffset(start, ReadAllAvailable()) == {topic: {"0": 10}}
    made = reader(broker.http_url, **options)
    assert made.latestOffset(start, ReadAllAvailable()) == {topic: {"0": 20}}
    admin.delete_topics([topic])
    admin.create_topics([NewTopic(topic, 1, 1)])
    with pytest.raises(DataLoss, match="was deleted and created again"):
        made.latestOffset({topic: {"0": 20}}, ReadAllAvailable())
    assert reader(broker.http_url, **options).getDefaultReadLimit() == ReadAllAvailable()


def test_the_end_of_a_stream_never_goes_back(
    broker: BrokerProcess, topic: str, admin: KafkaAdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that is behind would report a lower end."""
    admin.create_topics([NewTopic(topic, 1, 1)])
    produce(broker, topic, range(10))
    made = reader(broker.http_url, subscribe=topic, startingOffsets="earliest")
    end = made.latestOffset(made.initialOffset(), ReadAllAvailable())
    refresh = LogSnapshot.refresh

    def behind(snapshot: LogSnapshot) -> None:
        refresh(snapshot)
        for key, found in snapshot.partitions.items():
            snapshot.partitions[key] = replace(found, end=8, ends=(8,))

    monkeypatch.setattr(LogSnapshot, "refresh", behind)
    assert made.latestOffset(end, ReadAllAvailable()) == end == {topic: {"0": 10}}
    with pytest.raises(DataLoss, match="has offsets 0 to 8, but 7 to 10 were asked for"):
        made.partitions({topic: {"0": 7}}, end)


def test_missing_or_late_partitions_are_data_loss(
    broker: BrokerProcess, topic: str, admin: KafkaAdminClient
) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    produce(broker, topic, range(4))
    pattern = {"subscribePattern": f"^{topic}$"}
    strict = reader(broker.http_url, **pattern)
    careless = reader(broker.http_url, **pattern, failOnDataLoss="false")
    gone: list[tuple[dict[str, Any], dict[str, Any], str, list[int]]] = [
        ({topic: {"0": 0}, "other": {"0": 5}}, {topic: {"0": 4}}, "other-0", [0, 1, 2, 3]),
        ({topic: {"0": 0}}, {topic: {"0": 4, "1": 4}}, f"{topic}-1", [0, 1, 2, 3]),
        ({topic: {"0": 5}}, {topic: {"0": 4}}, "ends at 4 and was read up to 5", []),
        ({topic: {"0": 1}}, {topic: {"0": 9}}, "has offsets 0 to 4, but 1 to 9", [1, 2, 3]),
    ]
    for start, end, message, found in gone:
        with pytest.raises(DataLoss, match=message):
            strict.partitions(start, end)
        assert values(careless, start, end) == found


class Spark:
    """A running `stream_process.py`."""

    def __init__(self, url: str, topic: str, directory: Path, where: str, starting: str) -> None:
        self._log = (directory / "log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.stream_process", url, topic, str(directory), where],
            cwd=PROJECT,
            env={**os.environ, "STARTING_OFFSETS": starting},
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,  # with its JVM and its workers
        )
        self._timer = threading.Timer(KILL_LIMIT_S, self.kill)
        self._timer.start()

    def await_line(self, line: str) -> None:
        assert self._process.stdout is not None
        for found in self._process.stdout:
            if found.strip() == line:
                return
        raise AssertionError(f"it ended without {line!r}: {Path(self._log.name).read_text()}")

    def kill(self) -> None:
        signal_session(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        self._timer.cancel()
        self._process.wait(LIMIT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("where", ["inside", "between"])
def test_a_killed_spark_reads_every_record_once(
    broker: BrokerProcess, topic: str, tmp_path: Path, admin: KafkaAdminClient, where: str
) -> None:
    admin.create_topics([NewTopic(topic, 2, 1)])
    produce(broker, topic, range(400))
    produce(broker, topic, range(400), partition=1)
    for life in (where, where, "nowhere"):
        spark = Spark(broker.http_url, topic, tmp_path, life, "earliest")
        try:
            spark.await_line("done" if life == "nowhere" else "here")
        finally:
            spark.close()
    lines = [
        tuple(map(int, line.split()))
        for path in (tmp_path / "files").iterdir()
        if path.name.isdigit()
        for line in path.read_text().splitlines()
    ]
    assert Counter(lines) == Counter((p, n) for p in (0, 1) for n in range(400))
