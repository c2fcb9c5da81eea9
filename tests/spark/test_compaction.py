"""The job and the broker together: real Spark, real clients, and kills at bad moments."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from brokerhouse.spark_jobs import audit, compaction
from brokerhouse.sql.queries import query
from tests.support.broker_process import BrokerProcess
from tests.support.compaction_model import History, Row, Rules, decided, random_rows, state
from tests.support.engine_process import EngineProcess
from tests.support.process_session import signal_session
from tests.support.server_process import PROJECT
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OwnBroker = Callable[..., BrokerProcess]
LIMIT_S = 240.0
MINUTE_MS = 60_000
WRITER = {"sql_user": "writer", "sql_password": "secret"}
HUGE_MS = 2**40


@pytest.fixture
def compacting(own_broker: OwnBroker, spark: SparkSession) -> BrokerProcess:
    """A broker whose SQL user may write removals; Spark has started before it."""
    del spark
    return own_broker(**WRITER)


def options(broker: BrokerProcess, *more: str) -> list[str]:
    return [
        *shlex.split(f"--http {broker.http_url} --user writer --password secret --master local[2]"),
        *more,
    ]


def compact(broker: BrokerProcess, *more: str) -> dict[str, Any]:
    """Run the job in this process; returns its report."""
    done = CliRunner().invoke(compaction.command, [*options(broker, *more), "--json"])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 0, done.output
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def launch(broker: BrokerProcess, *more: str) -> subprocess.Popen[str]:
    """The job as a command, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "brokerhouse", "jobs", "run", "compaction", *options(broker, *more)],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def create(broker: BrokerProcess, topic: str, partitions: int = 1, **config: str | int) -> None:
    """`min_compaction_lag_ms=0`: configs by name, with _ in place of dots."""
    given = {name.replace("_", "."): str(value) for name, value in config.items()}
    made = NewTopic(topic, partitions, config={"cleanup.policy": "compact", **given})
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.create_topics([made])[topic].result(30)


def producer(address: str, **settings: object) -> confluent_kafka.Producer:
    return confluent_kafka.Producer(
        {
            "bootstrap.servers": address,
            "linger.ms": 5,
            "log_level": 2,
            "queue.buffering.max.messages": 1_000_000,
            **settings,
        }
    )


def produce(address: str, topic: str, records: Sequence[tuple[bytes, bytes | None]]) -> None:
    sending = producer(address)
    for n, (key, value) in enumerate(records):
        sending.produce(topic, value, key, partition=0)
        if n % 10_000 == 0:
            sending.poll(0)
    assert sending.flush(LIMIT_S) == 0
    sending.close()


def offsets(broker: BrokerProcess, topic: str, partition: int = 0) -> list[int]:
    found = broker.sql(
        "SELECT offset FROM messages WHERE topic = {topic:String} AND partition = {p:Int32}"
        " ORDER BY offset",
        {"topic": topic, "p": partition},
    )
    return [row["offset"] for row in found]


def read(address: str, topic: str, end: int, **settings: object) -> list[Row]:
    """Partition 0 from the start up to `end`, as a consumer reads it."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": str(uuid.uuid4()),
            "log_level": 2,
            "enable.auto.commit": False,
            **settings,
        }
    )
    rows: list[Row] = []
    give_up = time.monotonic() + LIMIT_S
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        while not rows or rows[-1].offset + 1 < end:
            assert time.monotonic() < give_up, f"read up to {rows[-1:]} of {end}"
            for message in consumer.consume(1000, 0.5):
                assert message.error() is None, message.error()
                offset = message.offset()
                assert offset is not None
                rows.append(Row(offset, message.key(), message.value()))
    finally:
        consumer.close()
    return rows


def until_rows(broker: BrokerProcess, query: str, job: subprocess.Popen[str] | None = None) -> None:
    """Wait until a query has rows, while the job runs."""

    def found() -> bool:
        if job is not None:
            assert job.poll() is None, job.communicate()[0]
        return bool(broker.sql(query))

    until(found, query, LIMIT_S)


def test_the_latest_record_of_each_key_stays(compacting: BrokerProcess, topic: str) -> None:
    broker = compacting
    create(broker, topic, delete_retention_ms=0)
    chance = random.Random(1)
    records = [
        (b"key %d" % chance.randrange(40), None if chance.random() < 0.2 else b"%d" % n)
        for n in range(2000)
    ]
    produce(broker.kafka, topic, records)
    written = [Row(n, key, value) for n, (key, value) in enumerate(records)]
    before = decided(History(written), Rules(HUGE_MS))

    dry = compact(broker, "--topic", topic, "--dry-run")
    assert offsets(broker, topic) == list(range(2000))
    assert broker.sql("SELECT 1 FROM compaction_removals") == []
    (row,) = dry["rows"]
    assert (row["superseded"], row["removed"]) == (len(before.goes), None)

    done = compact(broker, "--topic", topic)
    (row,) = done["rows"]
    assert (row["rows before"], row["superseded"], row["tombstones"], row["removed"]) == (
        2000,
        len(before.goes),
        0,
        len(before.goes),
    )
    size = sum(len(r.key or b"") + len(r.value or b"") for r in written if r.offset in before.goes)
    assert row["bytes"] == size
    left = [one for one in written if one.offset not in before.goes]
    assert read(broker.kafka, topic, 2000) == left
    assert state(left) == state(written)

    # The tombstones were alone from then on, and delete.retention.ms is 0.
    after = decided(History(left, [(0, 2000)]), Rules(HUGE_MS))
    assert after.goes
    (row,) = compact(broker, "--topic", topic)["rows"]
    assert (row["superseded"], row["tombstones"], row["removed"], row["state"]) == (
        0,
        len(after.goes),
        len(after.goes),
        "tombstones are due",
    )
    left = [one for one in left if one.offset not in after.goes]
    assert read(broker.kafka, topic, 2000) == left

    (row,) = compact(broker, "--topic", topic)["rows"]
    assert row["state"] == "not compacted: 0% is new"
    broker.kill()
    broker.start()
    assert read(broker.kafka, topic, 2000) == left
    produce(broker.kafka, topic, [(b"new", b"1")])
    assert offsets(broker, topic)[-1] == 2000


@pytest.mark.test_all
def test_delete_retention_begins_when_the_older_records_of_a_tombstones_key_are_removed(
    compacting: BrokerProcess, topic: str
) -> None:
    broker = compacting
    create(broker, topic)
    sending = producer(broker.kafka, **{"enable.idempotence": True})
    sending.produce(topic, b"old", b"key", partition=0)
    assert sending.flush(LIMIT_S) == 0
    produce(broker.kafka, topic, [(b"key", None), (b"last", b"1")])
    alone = "SELECT max(tombstones_end) AS end FROM compaction_removals"
    of_topic = (
        f"{alone} WHERE topic_id = (SELECT any(topic_id) FROM messages WHERE topic = '{topic}')"
    )

    compact(broker, "--topic", topic, "--force")
    assert offsets(broker, topic) == [0, 1, 2], "the first one may be sent again by its producer"
    assert broker.sql(of_topic) == [{"end": 1}]
    at_once = ("--retry-window-ms", "0", "--producer-expiration-ms", "0")
    compact(broker, "--topic", topic, "--force", *at_once)

    assert offsets(broker, topic) == [1, 2]
    assert broker.sql(of_topic) == [{"end": 3}]


@pytest.mark.test_all
def test_a_topic_without_compaction_is_left_out(compacting: BrokerProcess, topic: str) -> None:
    create(compacting, topic, cleanup_policy="delete")
    produce(compacting.kafka, topic, [(b"k", b"1"), (b"k", b"2")])
    assert compact(compacting, "--topic", topic, "--force")["rows"] == []
    assert offsets(compacting, topic) == [0, 1]


@pytest.mark.test_all
def test_aborted_records_are_removed_and_records_after_an_open_transaction_stay(
    compacting: BrokerProcess, topic: str
) -> None:
    broker = compacting
    create(broker, topic)
    ended, opened = (transactional(broker, f"{topic}-{name}") for name in ("ended", "opened"))
    for n in range(4):
        begin(ended, topic, b"%d" % n)
        ended.abort_transaction(LIMIT_S) if n % 2 else ended.commit_transaction(LIMIT_S)
    begin(opened, topic, b"open")
    for n in (5, 6):
        begin(ended, topic, b"%d" % n)
        ended.commit_transaction(LIMIT_S)
    until(lambda: committed(broker, topic) == [b"0", b"2"], "four have ended")

    (row,) = compact(broker, "--topic", topic, "--force")["rows"]
    assert row["removed"] == 0
    assert row["state"] == (
        "--force; nothing removed: 4 records of the last 10 min may be sent again by their producer"
        " (--retry-window-ms)"
    )

    at_once = ("--topic", topic, "--force", "--retry-window-ms", "0")
    (row,) = compact(broker, *at_once)["rows"]

    assert row["removed"] == 3, "0 has a successor, 1 and 3 were aborted"
    assert committed(broker, topic) == [b"2"]
    opened.commit_transaction(LIMIT_S)
    until(lambda: committed(broker, topic) == [b"2", b"open", b"5", b"6"], "it has ended")

    compact(broker, *at_once)

    assert committed(broker, topic) == [b"open", b"6"], "the last one of each producer stays"
    broker.kill()
    broker.start()
    assert committed(broker, topic) == [b"open", b"6"]


def transactional(broker: BrokerProcess, transactional_id: str) -> confluent_kafka.Producer:
    made = producer(broker.kafka, **{"transactional.id": transactional_id})
    made.init_transactions(LIMIT_S)
    return made


def begin(sending: confluent_kafka.Producer, topic: str, value: bytes) -> None:
    """Begin a transaction with one record."""
    sending.begin_transaction()
    sending.produce(topic, value, b"key", partition=0)
    assert sending.flush(LIMIT_S) == 0


def committed(broker: BrokerProcess, topic: str) -> list[bytes]:
    """What SQL has as committed, which is what a read_committed consumer reads."""
    rows = broker.sql(
        "SELECT offset, value FROM messages_committed WHERE topic = {topic:String} ORDER BY offset",
        {"topic": topic},
    )
    values = [str(row["value"]).encode() for row in rows]
    if rows:
        isolation = {"isolation.level": "read_committed"}
        found = read(broker.kafka, topic, int(rows[-1]["offset"]) + 1, **isolation)
        assert [one.value for one in found] == values
    return values


@pytest.mark.test_all
def test_consumers_see_every_latest_value_while_compaction_runs(
    compacting: BrokerProcess, topic: str
) -> None:
    broker = compacting
    create(broker, topic)
    chance = random.Random(2)
    records = [
        (b"%d" % chance.randrange(300), None if chance.random() < 0.1 else b"%d" % n * 20)
        for n in range(20_000)
    ]
    produce(broker.kafka, topic, records)
    expected = state([Row(n, key, value) for n, (key, value) in enumerate(records)])
    stop = threading.Event()

    def keep_reading(fetch_bytes: int) -> list[dict[bytes, bytes]]:
        found = []
        while not stop.is_set():
            small = {"max.partition.fetch.bytes": fetch_bytes}
            found.append(state(read(broker.kafka, topic, len(records), **small)))
        return found

    with ThreadPoolExecutor(2) as threads:
        reading = [threads.submit(keep_reading, size) for size in (20_000, 1 << 20)]
        try:
            report = compact(broker, "--topic", topic)
        finally:
            stop.set()
        seen = [found for one in reading for found in one.result()]
    assert report["rows"][0]["removed"] > 19_000
    assert len(seen) >= 2
    assert all(found == expected for found in seen)
    assert state(read(broker.kafka, topic, len(records))) == expected


@pytest.mark.test_all
async def test_an_idempotent_producer_continues_after_compaction_and_a_kill(
    own_broker: OwnBroker, spark: SparkSession, topic: str
) -> None:
    """Its last record stays, so that the broker recognises batches that are sent again."""
    del spark
    async with TcpProxy("127.0.0.1:1") as proxy:  # the loop is the proxy's: all else in threads
        in_thread = asyncio.to_thread
        broker = await in_thread(own_broker, **WRITER, advertised=proxy.address)
        await proxy.lead_to(broker.kafka)
        await in_thread(create, broker, topic)
        sending = producer(
            proxy.address,
            **{"enable.idempotence": True, "retry.backoff.ms": 50, "reconnect.backoff.max.ms": 100},
        )
        delivered: list[int | None] = []

        def send(number: int) -> None:
            sending.produce(
                topic,
                b"%d" % number,
                b"key %d" % (number % 5),
                partition=0,
                on_delivery=lambda _error, message: delivered.append(message.offset()),
            )

        for number in range(100):
            send(number)
        assert await in_thread(sending.flush, LIMIT_S) == 0

        proxy.lose_answers()
        send(100)
        await in_thread(until_rows, broker, "SELECT 1 FROM messages WHERE offset = 100")
        await proxy.refuse()
        broker.kill()
        del broker.settings["advertised"]
        await in_thread(broker.start)
        await in_thread(produce, broker.kafka, topic, [(b"key %d" % n, b"other") for n in range(5)])

        report = await in_thread(compact, broker, "--topic", topic, "--retry-window-ms", "0")
        assert report["rows"][0]["removed"] == 100
        assert offsets(broker, topic) == [100, 101, 102, 103, 104, 105]
        broker.kill()
        await in_thread(broker.start)

        await proxy.pass_on()
        assert await in_thread(sending.flush, LIMIT_S) == 0
        send(101)
        assert await in_thread(sending.flush, LIMIT_S) == 0
        sending.close()
    assert delivered == [*range(101), 106]
    assert offsets(broker, topic) == [100, 101, 102, 103, 104, 105, 106]


def histories(seed: int, now_ms: int, partitions: int) -> dict[int, History]:
    """Of one topic, by partition, with marks of earlier runs."""
    found = {}
    for number in range(partitions):
        chance = random.Random(seed * 1000 + number)
        times = [now_ms - ago * MINUTE_MS for ago in (100, 60, 30, 10)]
        rows = random_rows(chance, chance.randint(1, 40), 0, times, transactions=number % 3 == 0)
        kept = [row for row in rows[:-1] if chance.random() > 0.2]
        marks = [(now_ms - chance.choice([30, 60]) * MINUTE_MS, chance.randint(0, 40))]
        found[number] = History([*kept, rows[-1]], marks)
    return found


def planted(
    engine: EngineProcess, topic: str, topic_id: str, logs: Mapping[int, Sequence[Row]]
) -> None:
    """Rows as a broker would have written them, transactions included."""

    def text(value: bytes | None) -> str:
        return "NULL" if value is None else f"unhex('{value.hex()}')"

    rows = [
        f"('{topic}','{topic_id}',{number},{row.offset},{row.at_ms},{text(row.key)},"
        f"{text(row.value)},{row.producer},0,{row.offset if row.producer >= 0 else -1},"
        f"{row.transactional},{row.marker is not None},fromUnixTimestamp64Milli({row.at_ms}))"
        for number, rows in logs.items()
        for row in rows
    ]
    engine.sql(
        "INSERT INTO messages (topic, topic_id, partition, offset, timestamp_ms, key, value,"
        " producer_id, producer_epoch, sequence, transactional, control, append_time) VALUES "
        + ",".join(rows),
        database="brokerhouse",
    )


@pytest.fixture
def planting(compacting: BrokerProcess) -> Iterator[Callable[[], EngineProcess]]:
    """Stops the broker and gives its engine to the test, which starts the broker again."""
    engines: list[EngineProcess] = []

    def begin() -> EngineProcess:
        compacting.stop()
        engine = EngineProcess(compacting.data_dir)
        engines.append(engine)
        engine.start()
        return engine

    yield begin
    for engine in engines:
        if engine.running:
            engine.kill()


RETRY_MS, KNOWN_MS = 20 * MINUTE_MS, 80 * MINUTE_MS
KINDS: dict[str, dict[str, int]] = {
    "plain": {"delete_retention_ms": 45 * MINUTE_MS},
    "lagging": {"delete_retention_ms": 0, "min_compaction_lag_ms": 20 * MINUTE_MS},
    "quick": {"delete_retention_ms": 0},
}
PARTITIONS = 20


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_random_histories_are_compacted_as_in_the_model(
    compacting: BrokerProcess, planting: Callable[[], EngineProcess]
) -> None:
    """Runs with writes in between, on rows with transactions, producers, lags and log starts."""
    broker = compacting
    for kind, config in KINDS.items():
        create(broker, kind, PARTITIONS, **config)
    ids = {row["name"]: row["topic_id"] for row in broker.sql("SELECT name, topic_id FROM topics")}
    now_ms = time.time_ns() // 1_000_000
    logs = {kind: histories(n, now_ms, PARTITIONS) for n, kind in enumerate(KINDS)}
    starts = {kind: {n: n % 4 * 3 for n in range(PARTITIONS)} for kind in KINDS}
    engine = planting()
    for kind, found in logs.items():
        planted(engine, kind, ids[kind], {n: log.rows for n, log in found.items()})
        for number, log in found.items():
            at_ms, end = log.marks[0]
            engine.sql(
                "INSERT INTO compaction_removals (topic_id, partition, tombstones_end, created_at)"
                f" VALUES ('{ids[kind]}', {number}, {end}, fromUnixTimestamp64Milli({at_ms}))",
                database="brokerhouse",
            )
            engine.sql(
                "INSERT INTO partition_checkpoints (* EXCEPT(forgot_producers))"
                f" VALUES ('{ids[kind]}', {number},"
                f" {starts[kind][number]}, 0)",
                database="brokerhouse",
            )
    engine.stop()
    broker.start()

    removed = 0
    for turn in range(3):
        report = compact(
            broker,
            "--force",
            "--retry-window-ms",
            str(RETRY_MS),
            "--producer-expiration-ms",
            str(KNOWN_MS),
        )
        now_ms = time.time_ns() // 1_000_000
        for kind, config in KINDS.items():
            rules = Rules(
                now_ms,
                config.get("min_compaction_lag_ms", 0),
                config["delete_retention_ms"],
                RETRY_MS,
                KNOWN_MS,
            )
            for number, log in logs[kind].items():
                start = starts[kind][number]
                below = [row for row in log.rows if row.offset < start]
                shown = [row for row in log.rows if row.offset >= start]
                decision = decided(History(shown, log.marks), rules)
                kept = [row for row in shown if row.offset not in decision.goes]
                log.rows = [*below, *kept]
                if shown:
                    log.marks.append((now_ms, decision.tombstones_end))
                removed += len(decision.goes)
                assert offsets(broker, kind, number) == [row.offset for row in log.rows], (
                    f"{kind}-{number} in turn {turn}"
                )
        assert sum(row["removed"] for row in report["rows"]) > 0
        if turn == 1:  # and in turn 2 without
            continue
        engine = planting()
        for kind, found_logs in logs.items():
            more = {}
            for number, log in found_logs.items():
                chance = random.Random(f"{kind}{number}{turn}")
                first = log.rows[-1].offset + 1
                more[number] = random_rows(
                    chance, 10, first, [now_ms - 9 * MINUTE_MS], transactions=number % 3 == 0
                )
                log.rows += more[number]
            planted(engine, kind, ids[kind], more)
        engine.stop()
        broker.start()
    assert removed > 500


def big_topic(broker: BrokerProcess, topic: str) -> dict[bytes, bytes]:
    """600,000 records of 30,000 keys: several batches."""
    create(broker, topic)
    records = [(b"%d" % (n * 7919 % 30_000), b"%d" % n) for n in range(600_000)]
    produce(broker.kafka, topic, records)
    return state([Row(n, key, value) for n, (key, value) in enumerate(records)])


def kill_session(job: subprocess.Popen[str]) -> None:
    signal_session(job.pid, signal.SIGKILL)
    job.communicate()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_job_can_be_run_again(compacting: BrokerProcess, topic: str) -> None:
    broker = compacting
    expected = big_topic(broker, topic)
    moments = [
        "SELECT 1 FROM compaction_removals LIMIT 1",
        "SELECT 1 FROM compaction_applied LIMIT 1",
    ]
    for moment in moments:
        job = launch(broker, "--topic", topic, "--retry-window-ms", "0")
        until_rows(broker, moment, job)
        kill_session(job)
    compact(broker, "--topic", topic, "--retry-window-ms", "0", "--force")
    found = read(broker.kafka, topic, 600_000)
    assert len(found) == 30_000
    assert state(found) == expected
    assert broker.sql("SELECT 1 FROM compaction_batches WHERE state != 'applied'") == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_broker_killed_while_it_removes_continues_after_its_start(
    compacting: BrokerProcess, topic: str
) -> None:
    broker = compacting
    expected = big_topic(broker, topic)
    job = launch(broker, "--topic", topic, "--retry-window-ms", "0")
    until_rows(broker, "SELECT 1 FROM compaction_removals LIMIT 1", job)
    for after_s in (0.0, 1.0, 2.5):
        broker.kill(after_s)
        assert job.poll() is None or after_s, "the job was to be at work still"
        broker.start()
    kill_session(job)
    compact(broker, "--topic", topic, "--retry-window-ms", "0", "--force")
    found = read(broker.kafka, topic, 600_000)
    assert len(found) == 30_000
    assert state(found) == expected
    produce(broker.kafka, topic, [(b"new", b"1")])
    assert offsets(broker, topic)[-1] == 600_000


@pytest.mark.test_all
def test_a_job_without_a_password_removes_nothing(compacting: BrokerProcess, topic: str) -> None:
    create(compacting, topic)
    produce(compacting.kafka, topic, [(b"k", b"1"), (b"k", b"2")])
    done = CliRunner().invoke(
        compaction.command,
        ["--http", compacting.http_url, "--topic", topic, "--master", "local[2]"],
    )
    assert done.exit_code == 1
    assert "give user and password" in done.output
    assert offsets(compacting, topic) == [0, 1]


@pytest.mark.test_all
def test_the_job_fails_when_no_broker_removes(
    compacting: BrokerProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(compacting, topic)
    produce(compacting.kafka, topic, [(b"k", b"1"), (b"k", b"2")])
    monkeypatch.setattr(
        compaction, "query", lambda name: query(name).replace("{run_id:UUID}", "generateUUIDv4()")
    )
    done = CliRunner().invoke(
        compaction.command, options(compacting, "--topic", topic, "--timeout", "1")
    )
    assert done.exit_code == 1
    assert "the broker has removed nothing for 1 s" in done.output


@pytest.mark.test_all
def test_progress_counts_the_rows_decided_about_and_the_rows_removed(
    compacting: BrokerProcess, topic: str
) -> None:
    create(compacting, topic)
    produce(compacting.kafka, topic, [(b"k%d" % (n % 10), b"v") for n in range(100)])
    done = CliRunner().invoke(
        compaction.command, options(compacting, "--topic", topic, "--retry-window-ms", "0")
    )
    assert done.exit_code == 0, done.output
    assert "compaction: deciding about 1 partition: 100 of 100 rows in " in done.stderr
    assert re.search(r"the broker removes 1 batch: (\d+) of \1 rows in ", done.stderr)


@pytest.mark.slow
def test_spark_submit_runs_the_compaction_job(compacting: BrokerProcess, topic: str) -> None:
    create(compacting, topic)
    produce(compacting.kafka, topic, [(b"k", b"1"), (b"k", b"2")])
    submit = Path(sys.executable).with_name("spark-submit")
    done = subprocess.run(
        [
            submit,
            "--master",
            "local[2]",
            PROJECT / "spark_jobs" / "compaction.py",
            *shlex.split(
                f"--http {compacting.http_url} --user writer --password secret --topic {topic}"
            ),
        ],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    assert offsets(compacting, topic) == [1]


@pytest.mark.test_all
def test_compacted_and_deleted_records_are_not_an_anomaly(
    compacting: BrokerProcess, topic: str
) -> None:
    broker = compacting
    create(broker, topic, cleanup_policy="compact,delete")
    produce(broker.kafka, topic, [(b"key %d" % (n % 7), b"%d" % n) for n in range(500)])
    assert compact(broker, "--topic", topic)["rows"][0]["removed"] > 0
    produce(broker.kafka, topic, [(b"key %d" % (n % 7), b"%d" % n) for n in range(500)])
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    upto = confluent_kafka.TopicPartition(topic, 0, 600)
    admin.delete_records([upto])[upto].result(30)

    audited = CliRunner().invoke(audit.command, [*options(broker), "--json"])

    assert audited.exit_code == 0, audited.output
    assert json.loads(audited.stdout)["rows"] == []
