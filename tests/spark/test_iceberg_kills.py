"""The job `iceberg` while its workers are killed and paused: each record is in the table once.

`ICEBERG_SEED` chooses the moments; the long tests are in `make test-spark`.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shlex
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from brokerhouse.spark_jobs.iceberg import job, tables
from tests.spark.feed_job import FeedJob
from tests.support.broker_process import BrokerProcess
from tests.support.committed import create_topic
from tests.support.iceberg_sink import IcebergSink, WorkerProcess, iceberg_sink, produce
from tests.support.process_session import processes_of
from tests.support.sql_client import PASSWORD, USER
from tests.support.steady_producer import producing
from tests.support.typed_tables import SETTINGS
from tests.support.waiting import until

PARTITIONS = 3
WORKERS = 2
LIMIT_S = 120.0
PAUSE_S = 3.0
"""Longer than the session's time-out: a paused worker has lost its partitions."""


@pytest.fixture
def events_broker(own_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    broker = own_broker(
        **SETTINGS, group_initial_rebalance_delay_ms="0", group_min_session_timeout_ms="500"
    )
    create_topic(broker.kafka, "events", PARTITIONS)
    return broker


def seeded() -> random.Random:
    seed = int(os.environ.get("ICEBERG_SEED", random.randrange(10_000)))
    print(f"ICEBERG_SEED={seed}")
    return random.Random(seed)


def check_each_record_once(
    sink: IcebergSink,
    directory: Path,
    chance: random.Random,
    faults: int,
    *,
    with_broker: bool = False,
) -> None:
    numbers = itertools.count()

    def record() -> tuple[str, str]:
        number = next(numbers)
        return str(number), json.dumps({"id": number, "text": "x" * 50})

    logs = [directory / f"worker-{number}.log" for number in range(WORKERS)]
    workers = [WorkerProcess(sink.settings, number, log) for number, log in enumerate(logs)]
    try:
        with producing(sink.broker.kafka, "events", record):
            until(lambda: sink.ids() != [], "the first rows", LIMIT_S)
            for _ in range(faults):
                time.sleep(chance.uniform(0.2, 2.0))
                victim = chance.randrange(WORKERS)
                if with_broker and chance.random() < 0.1:
                    sink.broker.kill()
                    sink.broker.start()
                elif chance.random() < 0.4:
                    workers[victim].send(signal.SIGSTOP)
                    time.sleep(chance.uniform(0.1, PAUSE_S * 1.5))
                    workers[victim].send(signal.SIGCONT)
                else:
                    workers[victim].kill()
                    workers[victim] = WorkerProcess(sink.settings, victim, logs[victim])
        sent = next(numbers)
        until(lambda: sink.row_count() >= sent, f"{sent} rows", LIMIT_S)
    finally:
        for worker in workers:
            worker.kill()
    print(f"{sent} records, {len(sink.summaries())} snapshots")
    assert sink.ids() == list(range(sent))


@pytest.mark.test_all
def test_each_record_is_in_the_table_once_whatever_is_killed(
    events_broker: BrokerProcess, tmp_path: Path
) -> None:
    with iceberg_sink(
        events_broker, tmp_path, {"events": PARTITIONS}, session_timeout_ms=2000
    ) as sink:
        check_each_record_once(sink, tmp_path, seeded(), 6)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_each_record_is_in_the_table_once_after_a_hundred_faults(
    events_broker: BrokerProcess, tmp_path: Path
) -> None:
    with iceberg_sink(
        events_broker, tmp_path, {"events": PARTITIONS}, session_timeout_ms=2000
    ) as sink:
        check_each_record_once(sink, tmp_path, seeded(), 100, with_broker=True)


# --- with Spark


@pytest.mark.parametrize(
    ("credentials", "sentence"),
    [
        (["--user", USER, "--password", "wrong"], f"refuses user {USER}"),
        ([], "allows only its sql_user to do this"),
        (["--http", "127.0.0.1:1"], "127.0.0.1:1 does not answer"),
    ],
)
@pytest.mark.parametrize("once", [["--once"], pytest.param([], marks=pytest.mark.test_all)])
def test_a_run_that_could_store_no_dead_letter_ends_at_once_with_one_sentence(
    sink_broker: BrokerProcess,
    tmp_path: Path,
    credentials: list[str],
    sentence: str,
    once: list[str],
    topic: str,
) -> None:
    """Although there is none: it would be found out when the first one comes."""
    create_topic(sink_broker.kafka, topic, 1)
    ended = CliRunner().invoke(
        job.command,
        [
            "--bootstrap",
            sink_broker.kafka,
            "--http",
            sink_broker.http_url,
            *credentials,
            *shlex.split(
                f"--topic {topic} --catalog {tmp_path}/warehouse --table db.events --create"
            ),
            *once,
        ],
    )
    assert ended.exit_code == 1
    assert sentence in ended.stderr
    assert ended.stderr.count("Error: ") == 1
    assert "starting Spark" not in ended.stderr


@pytest.mark.test_all
def test_a_password_that_is_changed_while_the_job_runs_ends_it_with_one_sentence(
    events_broker: BrokerProcess, tmp_path: Path
) -> None:
    def record() -> tuple[str, str]:
        return "key", json.dumps({"id": 1})

    warehouse = tmp_path / "warehouse"
    with IcebergJob(events_broker, warehouse) as running:
        with producing(events_broker.kafka, "events", record):
            until(lambda: ids_in(warehouse) != [], "the first rows", LIMIT_S)
        events_broker.stop()
        events_broker.settings["sql_password"] = "another one"
        events_broker.start()
        produce(events_broker, "events", ["bad"])
        printed = running.ends(1)
    [sentence] = [line for line in printed.splitlines() if f"refuses user {USER}" in line]
    assert sentence.startswith("Error: a dead letter cannot be stored: ")


class IcebergJob(FeedJob):
    """The job `iceberg` from "events" into db.events."""

    def __init__(self, broker: BrokerProcess, directory: Path, *arguments: str) -> None:
        super().__init__(broker)
        self._command = [
            sys.executable,
            "-m",
            "brokerhouse.broker.cli",
            "jobs",
            "run",
            "iceberg",
            *arguments,
            *shlex.split(
                f"--bootstrap {broker.kafka} --http {broker.http_url} --master local[2]"
                f" --topic events --catalog {directory} --table db.events --create"
                " --interval-ms 500 --session-timeout-ms 2000 --transaction-timeout-ms 10000"
                " --kafka heartbeat.interval.ms=300"
            ),
            *("--user", USER, "--password", PASSWORD),
        ]

    def python_workers(self) -> list[int]:
        """Processes of Spark's workers, and the one that forks them."""
        found = []
        for pid in processes_of(self.process.pid):
            with suppress(OSError):  # it has ended
                if b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found


def ids_in(directory: Path) -> list[int]:
    if not (directory / "catalog.db").exists():
        return []
    catalog = tables.open_catalog(tables.LOCAL_CATALOG, tables.local_catalog(str(directory)))
    table = tables.existing(catalog, "db.events")
    found = [] if table is None else table.scan().to_arrow().column("id").to_pylist()
    return sorted(found)


def has_more(directory: Path, rows: int) -> bool:
    return len(ids_in(directory)) > rows


@pytest.mark.test_all
def test_spark_starts_workers_again_and_a_second_run_goes_on(
    events_broker: BrokerProcess, tmp_path: Path
) -> None:
    chance = seeded()
    numbers = itertools.count()

    def record() -> tuple[str, str]:
        number = next(numbers)
        return str(number), json.dumps({"id": number})

    warehouse = tmp_path / "warehouse"
    first = IcebergJob(events_broker, warehouse)
    with first, producing(events_broker.kafka, "events", record):
        until(lambda: ids_in(warehouse) != [], "the first rows", LIMIT_S)
        for _ in range(2):
            os.kill(chance.choice(first.python_workers()), signal.SIGKILL)
            until(partial(has_more, warehouse, len(ids_in(warehouse))), "more rows", LIMIT_S)
    sent = next(numbers)
    with IcebergJob(events_broker, warehouse, "--once") as again:
        assert "wrote " in again.ends()
    assert ids_in(warehouse) == list(range(sent))
