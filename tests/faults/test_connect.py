"""Kafka Connect's exactly-once source (KIP-618), while its worker and brokers are killed.

A connector for files reads a file that grows. Whatever is killed, each line becomes one committed
record, in the order of the file. The long tests: `make test-apps`.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import restarts
from tests.support.broker_process import BrokerProcess
from tests.support.cluster_broker import ClusterBroker
from tests.support.committed import (
    EndOffsets,
    aborted_transactions,
    committed_in_sql,
    create_topic,
    read_committed,
)
from tests.support.connect_worker import ConnectWorker
from tests.support.restarts import BROKER_SETTINGS, Restart

TOPIC = "lines"
CONNECTOR = "file"
EXACTLY_ONCE = {"exactly.once.source.support": "enabled"}
FOR_A_CLUSTER = {"session.timeout.ms": "10000", "producer.transaction.timeout.ms": "15000"}
"""Longer than a broker takes to replace another."""
WRITE_EVERY_S = 0.01
LINES_AT_ONCE = 10


@contextmanager
def growing(path: Path) -> Iterator[list[str]]:
    """A file that gets a few lines every 10 ms, each a number. The list has all at the end."""
    lines: list[str] = []
    stopped = threading.Event()

    def write() -> None:
        with path.open("a") as file:
            while not stopped.wait(WRITE_EVERY_S):
                some = [str(len(lines) + number) for number in range(LINES_AT_ONCE)]
                file.write("".join(f"{line}\n" for line in some))
                file.flush()
                lines.extend(some)

    path.touch()
    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        yield lines
    finally:
        stopped.set()
        writer.join()


def file_source(path: Path) -> dict[str, str]:
    return {
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "tasks.max": "1",
        "exactly.once.support": "required",
        "file": str(path),
        "topic": TOPIC,
        # What a task has read beyond this number waits until the file grows.
        "batch.size": "1000000",
    }


def check_each_line_once(
    broker: BrokerProcess,
    worker: ConnectWorker,
    path: Path,
    killings: Iterator[Restart],
    chance: random.Random,
) -> int:
    """Returns how many transactions were aborted."""
    create_topic(broker.kafka, TOPIC, 1)
    worker.configure(CONNECTOR, file_source(path))
    with worker.attended(CONNECTOR) as failures:
        with EndOffsets(broker.kafka, TOPIC, 1) as ends, growing(path) as lines:
            restarts.play(killings, ends, chance)
        read_committed(broker.kafka, TOPIC, 1, len(lines))
    print(f"{len(lines)} lines, {len(failures)} tasks failed", *failures, sep="\n")
    worker.stop()
    rows = read_committed(broker.kafka, TOPIC, 1, len(lines))
    assert [row.value for row in rows] == lines
    assert committed_in_sql(broker.sql, TOPIC) == rows
    aborted = aborted_transactions(broker.sql, TOPIC)
    print(f"{aborted} transactions aborted")
    return aborted


@pytest.mark.test_all
def test_each_line_becomes_one_record_whatever_is_killed(
    own_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    chance = restarts.seeded()
    broker = own_broker(**BROKER_SETTINGS)
    with ConnectWorker(tmp_path, broker.kafka, EXACTLY_ONCE) as worker:
        killings = restarts.each_twice(broker, [worker], chance)
        check_each_line_once(broker, worker, tmp_path / "lines.txt", killings, chance)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_each_line_becomes_one_record_for_long(
    own_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    chance = restarts.seeded()
    broker = own_broker(**BROKER_SETTINGS)
    with ConnectWorker(tmp_path, broker.kafka, EXACTLY_ONCE) as worker:
        killings = restarts.for_long(broker, [worker], chance)
        assert check_each_line_once(broker, worker, tmp_path / "lines.txt", killings, chance)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_each_line_becomes_one_record_while_the_brokers_of_a_cluster_change(
    app_cluster: ClusterBroker, tmp_path: Path
) -> None:
    chance = restarts.seeded()
    with ConnectWorker(tmp_path, app_cluster.kafka, EXACTLY_ONCE | FOR_A_CLUSTER) as worker:
        killings = restarts.of_a_cluster(app_cluster.cluster, [worker], chance)
        check_each_line_once(app_cluster, worker, tmp_path / "lines.txt", killings, chance)
