"""The job `audit` finds each planted anomaly, and nothing in a healthy log."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from brokerhouse.spark_jobs import audit
from tests.spark.history import History, run_job
from tests.support.broker_process import BrokerProcess
from tests.support.process_session import signal_session
from tests.support.server_process import PROJECT

pytestmark = pytest.mark.usefixtures("spark")

HOUR = 3600
ODD = "o'dd \\ {g}\n"


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    """Each topic is one case; the `healthy` topics have no anomaly."""
    made = History(tmp_path_factory.mktemp("audit"))
    for story in HEALTHY + [story for story, _ in PLANTED.values()]:
        story(made)
    made.done()
    yield made
    made.broker.stop()


# --- what is as it should be


def two_owners_and_an_empty_partition(history: History) -> None:
    """A partition moved to another broker, whose clock is a little behind."""
    topic_id = history.topic("healthy-moved", 2)
    history.block("healthy-moved", topic_id, 0, 99, history.base, epoch=3)
    history.block("healthy-moved", topic_id, 100, 149, history.base - 2, epoch=4)
    history.block("healthy-moved", topic_id, 150, 150, history.base + 9, epoch=4)


def the_start_was_cut(history: History) -> None:
    """Some rows below the start are still stored; those of another partition are all deleted."""
    topic_id = history.topic("healthy-cut", 2)
    history.block("healthy-cut", topic_id, 10, 19, history.base - HOUR)
    history.block("healthy-cut", topic_id, 30, 99, history.base)
    history.checkpoint(topic_id, 50, 100)
    history.checkpoint(topic_id, 500, 500, partition=1)
    history.commits("late", "healthy-cut", topic_id, [(history.base, 20)])


def a_clock_was_set_back(history: History) -> None:
    topic_id = history.topic("healthy-clock")
    history.block("healthy-clock", topic_id, 0, 9, history.base)
    history.block("healthy-clock", topic_id, 10, 19, history.base - 120)


def offsets_were_reset(history: History) -> None:
    """By an administrator, by a member, and after they were deleted."""
    topic_id, at = history.topic("healthy-reset"), history.base
    history.block("healthy-reset", topic_id, 0, 99, at)
    history.commits(ODD, "healthy-reset", topic_id, [(at, 40), (at + 1, 90)], generation=7)
    history.commits(ODD, "healthy-reset", topic_id, [(at + 2, 10)], generation=-1, member="")
    history.commits(ODD, "healthy-reset", topic_id, [(at + 3, 50), (at + 4, 5)], generation=8)
    history.commits(ODD, "healthy-reset", topic_id, [(at + 5, 5)], generation=-1, deleted=True)
    history.commits(ODD, "healthy-reset", topic_id, [(at + 6, 1)], generation=1, member="m9")


def a_topic_was_deleted(history: History) -> None:
    """Created again; rows and commits of the first topic are still stored."""
    first, again = history.topic("healthy-again"), history.topic("healthy-again")
    history.engine.sql(
        "INSERT INTO brokerhouse.topic_versions (topic_id, version, name, partitions, state)"
        f" VALUES ('{first}', 2, 'healthy-again', 1, 'deleting')"
    )
    history.block("healthy-again", first, 7, 99, history.base)
    history.block("healthy-again", first, 50, 55, history.base)
    history.block("healthy-again", again, 0, 4, history.base)
    history.commits("g", "healthy-again", first, [(history.base, 1000), (history.base + 1, 3)])


HEALTHY: list[Callable[[History], None]] = [
    two_owners_and_an_empty_partition,
    the_start_was_cut,
    a_clock_was_set_back,
    offsets_were_reset,
    a_topic_was_deleted,
]

# --- what is planted


def hole(history: History) -> None:
    topic_id = history.topic("hole")
    history.block("hole", topic_id, 0, 9, history.base)
    history.block("hole", topic_id, 13, 19, history.base)
    history.engine.sql(
        f"DELETE FROM brokerhouse.messages WHERE topic_id = '{topic_id}' AND offset IN (15, 16, 18)"
    )


def lost_start(history: History) -> None:
    topic_id = history.topic("lost-start")
    history.block("lost-start", topic_id, 8, 9, history.base)
    history.checkpoint(topic_id, 5, 5)


def lost_end(history: History) -> None:
    """Rows that were counted are missing."""
    topic_id = history.topic("lost-end")
    history.block("lost-end", topic_id, 0, 9, history.base - 2 * HOUR)
    history.minutes("lost-end", topic_id, [(history.base - 2 * HOUR, 0, 14)])


def all_lost(history: History) -> None:
    history.checkpoint(history.topic("all-lost"), 2, 6)


def twice(history: History) -> None:
    topic_id = history.topic("twice")
    history.block("twice", topic_id, 0, 9, history.base)
    history.block("twice", topic_id, 4, 5, history.base)


def shared(history: History) -> None:
    topic_id = history.topic("shared")
    history.block("shared", topic_id, 0, 9, history.base)
    history.block("shared", topic_id, 8, 14, history.base + 1, epoch=1)


def inside(history: History) -> None:
    """A block within another one, and a healthy block after it."""
    topic_id = history.topic("inside")
    history.block("inside", topic_id, 0, 9, history.base)
    history.block("inside", topic_id, 3, 4, history.base + 1)
    history.block("inside", topic_id, 10, 11, history.base + 2)


def old_epoch(history: History) -> None:
    """A higher epoch wrote lower offsets than a lower epoch."""
    topic_id = history.topic("old-epoch")
    history.block("old-epoch", topic_id, 0, 9, history.base, epoch=5)
    history.block("old-epoch", topic_id, 10, 19, history.base, epoch=4)


def starts_again(history: History) -> None:
    """Offsets began at 0 again after all records were deleted."""
    topic_id = history.topic("starts-again")
    history.block("starts-again", topic_id, 100, 109, history.base - HOUR)
    history.block("starts-again", topic_id, 0, 3, history.base)
    history.checkpoint(topic_id, 100, 110)


def zombie(history: History) -> None:
    topic_id, at = history.topic("zombie"), history.base
    history.block("zombie", topic_id, 0, 99, at)
    history.commits("g", "zombie", topic_id, [(at, 50)], generation=4, member="old")
    history.commits("g", "zombie", topic_id, [(at + 1, 80)], generation=5, member="new")
    history.commits("g", "zombie", topic_id, [(at + 2, 60)], generation=4, member="old")


def two_readers(history: History) -> None:
    topic_id, at = history.topic("two-readers"), history.base
    history.block("two-readers", topic_id, 0, 99, at)
    history.commits("g", "two-readers", topic_id, [(at, 50)], generation=4, member="a")
    history.commits("g", "two-readers", topic_id, [(at + 1, 20)], generation=4, member="b")


def beyond(history: History) -> None:
    topic_id = history.topic("beyond")
    history.block("beyond", topic_id, 0, 9, history.base)
    history.commits(ODD, "beyond", topic_id, [(history.base, 5), (history.base + 1, 12)])


Found = tuple[str, str, int, int]
PLANTED: dict[str, tuple[Callable[[History], None], set[Found]]] = {
    "hole": (
        hole,
        {("gap", "log", 10, 12), ("gap", "log", 15, 16), ("gap", "log", 18, 18)},
    ),
    "lost-start": (lost_start, {("gap", "log", 5, 7)}),
    "lost-end": (lost_end, {("gap", "log", 10, 14)}),
    "all-lost": (all_lost, {("gap", "log", 2, 5)}),
    "twice": (twice, {("duplicate", "log", 4, 5)}),
    "shared": (shared, {("overlap", "log", 8, 9)}),
    "inside": (inside, {("overlap", "log", 3, 4)}),
    "old-epoch": (old_epoch, {("backward", "log", 0, 9)}),
    "starts-again": (starts_again, {("backward", "log", 0, 3)}),
    "zombie": (zombie, {("backward", "commits", 60, 79)}),
    "two-readers": (two_readers, {("backward", "commits", 20, 49)}),
    "beyond": (beyond, {("gap", "commits", 10, 11)}),
}


@pytest.fixture(scope="module")
def told(history: History, spark: SparkSession) -> dict[str, Any]:
    del spark
    ended = run_job(audit.command, history.broker.http, "--json", user=None)
    assert ended.code == 1, ended.stderr
    return ended.told


def found(told: dict[str, Any], topic: str) -> list[Found]:
    return [
        (row["kind"], row["of"], row["first"], row["last"])
        for row in told["rows"]
        if row["topic"] == topic
    ]


@pytest.mark.test_all
def test_progress_counts_every_row_and_commit(history: History, spark: SparkSession) -> None:
    del spark
    ended = run_job(audit.command, history.broker.http, "--topic", "healthy*", user=None)
    for table in ("messages", "consumer_offsets"):
        ((rows,),) = [
            row.values()
            for row in history.broker.sql(
                f"SELECT count() FROM {table} WHERE topic LIKE 'healthy%'"
                " AND topic_id IN (SELECT topic_id FROM topics)"
            )
        ]
        assert int(rows) > 0
        assert f": {int(rows):,} of {int(rows):,} rows in " in ended.stderr


@pytest.mark.parametrize("topic", PLANTED)
def test_each_planted_anomaly_is_found(told: dict[str, Any], topic: str) -> None:
    of_topic = found(told, topic)
    assert set(of_topic) == PLANTED[topic][1]
    assert len(of_topic) == len(PLANTED[topic][1])


def test_healthy_topics_have_no_anomaly_and_their_resets_are_reported(told: dict[str, Any]) -> None:
    healthy = [row for row in told["rows"] if row["topic"].startswith("healthy")]
    assert [(row["kind"], row["group"], row["first"], row["last"]) for row in healthy] == [
        ("reset", ODD, 5, 49),
        ("reset", ODD, 10, 89),
    ]
    anomalies = sum(len(planted) for _, planted in PLANTED.values())
    assert told["summary"].startswith(f"{anomalies} anomalies (4 backward, 2 overlap, 1 duplicate,")
    assert not told["ok"]


@pytest.mark.slow
def test_an_audit_after_a_killed_one_reports_the_same(
    history: History, told: dict[str, Any]
) -> None:
    command = [sys.executable, "-m", "brokerhouse", "jobs", "run", "audit", "--master", "local[2]"]
    command += ["--http", history.broker.http]
    with subprocess.Popen(
        command, cwd=PROJECT, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as job:
        assert job.stderr is not None
        assert any(line.startswith("audit: reading the blocks") for line in job.stderr)
        signal_session(job.pid, signal.SIGKILL)
    assert job.returncode == -signal.SIGKILL
    again = run_job(audit.command, history.broker.http, "--json")
    assert json.loads(again.stdout)["rows"] == told["rows"]


@pytest.mark.test_all
def test_an_audit_of_healthy_topics_ends_with_exit_code_0(history: History) -> None:
    ended = run_job(audit.command, history.broker.http, "--topic", "healthy*", "--group", "nobody")
    assert ended.code == 0
    assert ended.stdout == (
        "0 anomalies (0 backward, 0 overlap, 0 duplicate, 0 gap); 0 resets of offsets\n"
    )


@pytest.mark.test_all
def test_offsets_that_compaction_removed_are_not_a_gap(history: History) -> None:
    """With a table as the compaction job creates it."""
    columns = "topic LowCardinality(String), topic_id UUID, partition Int32,"
    history.change(
        f"CREATE TABLE IF NOT EXISTS brokerhouse.compaction_removals ({columns}"
        " ranges Array(Tuple(first Int64, last Int64))) ENGINE = MergeTree ORDER BY topic_id",
        "INSERT INTO brokerhouse.compaction_removals (topic, topic_id, partition, ranges)"
        " SELECT name, topic_id, 0, [(11, 11), (14, 16), (12, 12)] FROM brokerhouse.topics"
        " WHERE name = 'hole'",
    )
    ended = run_job(audit.command, history.broker.http, "--topic", "hole", "--json")
    assert found(ended.told, "hole") == [("gap", "log", 10, 10), ("gap", "log", 18, 18)]


@pytest.mark.slow
def test_a_log_longer_than_a_slice_is_read_in_several_queries(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block that two queries share counts as one block."""
    monkeypatch.setattr(audit, "SLICE_ROWS", 4)
    ended = run_job(audit.command, history.broker.http, "--topic", "shared", "--json")
    assert found(ended.told, "shared") == [("overlap", "log", 8, 9)]
    ended = run_job(audit.command, history.broker.http, "--topic", "healthy*", "--group", "nobody")
    assert ended.code == 0


@pytest.mark.test_all
def test_no_anomalies_after_crashes_resets_and_deletions(
    own_broker: Callable[..., BrokerProcess],
) -> None:
    """A broker that was killed while real clients used it."""
    broker = own_broker(group_initial_rebalance_delay_ms="0")
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    for made in admin.create_topics([NewTopic("t", 3), NewTopic("doomed", 1)]).values():
        made.result()
    producer = Producer({"bootstrap.servers": broker.kafka, "enable.idempotence": True})
    for number in range(3000):
        producer.produce("t", b"%d" % number, partition=number % 3)
        producer.produce("doomed", b"x")
        if number in (700, 1900):
            producer.poll(0)
            broker.kill()
            broker.start()
    producer.flush()
    consumer = Consumer(
        {
            "bootstrap.servers": broker.kafka,
            "group.id": ODD,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["t"])
    read = 0
    while read < 3000:
        batch = consumer.consume(500, 20)
        assert batch
        read += len(batch)
        consumer.commit(asynchronous=False)
    consumer.close()
    admin.delete_topics(["doomed"])["doomed"].result()
    back = [TopicPartition("t", 0, 10)]
    for reset in admin.alter_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(ODD, back)]
    ).values():
        reset.result()
    ended = run_job(audit.command, broker.http, "--json", user=None)
    assert (ended.code, ended.told["summary"]) == (
        0,
        "0 anomalies (0 backward, 0 overlap, 0 duplicate, 0 gap); 1 resets of offsets",
    )
    assert found(ended.told, "t") == [("reset", "commits", 10, 999)]
