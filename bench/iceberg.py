"""`make bench-iceberg`: the job `iceberg` beside Apache Iceberg's sink for Kafka Connect.

Both read one full topic of one brokerhouse, JSON objects of about 200 bytes with 8 columns in 4
partitions, and write it into an Iceberg table on local disk, each in a table of its own: the job
with two tasks of Spark's local mode, the connector with two tasks in one worker of Kafka Connect
(heap and options of Kafka's start scripts). They run in turn. Broker and sink share the cores.

* first commit: seconds from when the sink has its partitions.
* rows/s: from the first commit to the last but one, because the last one waits for its interval
  with nothing to do. With two commits it is that of the first one; with one it is a lower limit,
  marked "at least".
* rows per CPU s: of all processes of the sink, the broker not included. It depends less than rows/s
  on what else the machine does.
* peak MiB: the most memory of each process of the sink, summed.
* load: of the machine at the end of the run, with the run itself.

Then, without a broker: what the metadata of a table costs after up to 1,000 commits of one row
(iceberg_growth.py). Prints Markdown tables.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import confluent_kafka
import numpy as np
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from pyiceberg.table import Table

from bench import iceberg_growth
from bench.kafka.servers import JVM
from bench.machine import cpu_seconds, machine, running_broker
from brokerhouse.spark_jobs.iceberg import tables
from tests.spark.feed_job import FeedJob
from tests.support import iceberg_table, tools
from tests.support.broker_process import BrokerProcess
from tests.support.committed import create_topic
from tests.support.connect_worker import ConnectWorker
from tests.support.process_session import processes_of
from tests.support.sql_client import PASSWORD, USER
from tests.support.typed_tables import SETTINGS

TOPIC = "events"
PARTITIONS = 4
TASKS = 2
TIMEOUT_MS = 5000
"""How long a commit waits for tasks that do not answer. At the connector's default of 30 s its
first commit takes that long where the interval is 1 s: its tasks are not ready when it begins."""
_LOOK_EVERY_S = 0.3
_START_LIMIT_S = 180.0
_ANSWER_LIMIT_S = 30.0
_HEAP = ("-Xms256M", "-Xmx2G")
"""As connect-distributed.sh."""


@dataclass(frozen=True, slots=True)
class Sink:
    """`group`: the consumer group that reads the topic. `pids`: of all its processes."""

    name: str
    group: str
    pids: Callable[[], Sequence[int]]
    table: Callable[[], Table | None]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`at`: seconds since 1970. `rows`: of the table."""

    at: float
    rows: int
    files: int


class IcebergJob(FeedJob):
    """The job `iceberg` from the topic into db.events."""

    def __init__(self, broker: BrokerProcess, warehouse: Path, name: str, interval_s: int) -> None:
        super().__init__(broker)
        self._command = [
            sys.executable,
            "-m",
            "brokerhouse.broker.cli",
            "jobs",
            "run",
            "iceberg",
            "--bootstrap",
            broker.kafka,
            "--http",
            broker.http_url,
            "--user",
            USER,
            "--password",
            PASSWORD,
            "--master",
            f"local[{TASKS}]",
            "--name",
            name,
            "--control-topic",
            f"control-{name}",
            "--topic",
            TOPIC,
            "--catalog",
            str(warehouse),
            "--table",
            "db.events",
            "--create",
            "--interval-ms",
            str(interval_s * 1000),
            "--timeout-ms",
            str(TIMEOUT_MS),
        ]

    def kill(self) -> None:
        with redirect_stdout(sys.stderr):
            super().kill()

    def pids(self) -> list[int]:
        """The driver, its Java and Spark's Python workers."""
        return processes_of(self.process.pid)


class Worker(ConnectWorker):
    """With the options of Kafka's start scripts; those of tests make Java start fast."""

    def command(self) -> Sequence[str]:
        java, *options = super().command()
        kept = [one for one in options if not one.startswith("-X")]
        return [java, *_HEAP, *JVM, *kept]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench.iceberg", description=__doc__)
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--intervals", default="1,10,60", help="between two commits, in s")
    parser.add_argument(
        "--poll", type=int, default=500, help="the connector's max.poll.records (Kafka's default)"
    )
    parser.add_argument("--only", help="one of: job, connector, metadata")
    parser.add_argument("--commits", type=int, default=1000, help="of one row, for the metadata")
    options = parser.parse_args(arguments)
    print(f"{machine()}, PyIceberg {version('pyiceberg')}, load {os.getloadavg()[0]:.1f}\n")
    if options.only != "metadata":
        _compare(options)
    if options.only in (None, "metadata") and options.commits:
        iceberg_growth.measure(options.commits)


# --- rows a second


def _compare(options: argparse.Namespace) -> None:
    sinks = {"job": _job, "connector": _connector}
    with (
        tempfile.TemporaryDirectory(prefix="bench-iceberg-") as directory,
        running_broker(Path(directory, "data"), SETTINGS) as broker,
    ):
        create_topic(broker.kafka, TOPIC, PARTITIONS)
        size = _fill(broker.kafka, options.records)
        print(f"{options.records:,} records of {size:.0f} bytes on average:\n")
        print(
            "| interval s | sink | first commit s | rows/s | rows per CPU s | commits"
            " | rows per commit | files per commit | peak MiB | broker CPU s | duplicates"
            " | missing | load |"
        )
        print("|---:|---|" + "---:|" * 11, flush=True)
        for interval_s in map(int, options.intervals.split(",")):
            for kind, started in sinks.items():
                if options.only in (None, kind):
                    warehouse = Path(directory, f"{kind}-{interval_s}")
                    with started(broker, warehouse, interval_s, options.poll) as sink:
                        print(_measured(sink, broker, interval_s, options.records), flush=True)
        print()


def _measured(sink: Sink, broker: BrokerProcess, interval_s: int, records: int) -> str:
    _await_partitions(broker.kafka, sink.group)
    began, cpu, of_broker = time.time(), _cpu(sink), cpu_seconds(broker.pid)
    while (table := sink.table()) is None or iceberg_table.record_count(table) < records:
        time.sleep(_LOOK_EVERY_S)
    cpu, of_broker = _cpu(sink) - cpu, cpu_seconds(broker.pid) - of_broker
    memory, load = sum(map(_peak_mib, sink.pids())), os.getloadavg()[0]
    found = _snapshots(table)
    until = found[max(len(found) - 2, 0)]
    since = found[0] if len(found) > 2 else Snapshot(began, 0, 0)
    rate = (until.rows - since.rows) / (until.at - since.at)
    at_least = "" if len(found) > 1 else "at least "
    sizes = np.diff([0, *(one.rows for one in found)])[: max(len(found) - 1, 1)]
    files = statistics.median(one.files for one in found)
    duplicates, missing = _faults(table, records)
    return (
        f"| {interval_s} | {sink.name} | {found[0].at - began:.1f} | {at_least}{rate:,.0f} |"
        f" {records / cpu:,.0f} | {len(found)} | {np.median(sizes):,.0f} | {files:.0f} |"
        f" {memory:,.0f} | {of_broker:.0f} | {duplicates:,} | {missing:,} | {load:.1f} |"
    )


def _await_partitions(kafka: str, group: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka, "log_level": 0})
    deadline = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < deadline:
        try:
            found = admin.describe_consumer_groups([group])[group].result(_ANSWER_LIMIT_S)
        except KafkaException:
            found = None
        if found is not None:
            members = [one.assignment.topic_partitions for one in found.members if one.assignment]
            if sum(map(len, members)) == PARTITIONS:
                return
        time.sleep(0.1)
    raise TimeoutError(f"{group} has no partitions after {_START_LIMIT_S:.0f} s")


def _cpu(sink: Sink) -> float:
    return sum(map(cpu_seconds, sink.pids()))


def _peak_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _snapshots(table: Table) -> list[Snapshot]:
    """Those that added files, from the oldest."""
    found = []
    for one in sorted(table.metadata.snapshots, key=lambda one: one.sequence_number or 0):
        assert one.summary is not None
        if files := int(one.summary["added-data-files"] or 0):
            rows = int(one.summary["total-records"] or 0)
            found.append(Snapshot(one.timestamp_ms / 1000, rows, files))
    return found


def _faults(table: Table, records: int) -> tuple[int, int]:
    """How many rows are there more than once, and how many are not there."""
    ids = table.scan(selected_fields=("id",)).to_arrow().column("id").to_numpy()
    different = np.unique(ids)
    missing = records - int(np.count_nonzero((different >= 0) & (different < records)))
    return len(ids) - len(different), missing


# --- the sinks


@contextmanager
def _job(broker: BrokerProcess, warehouse: Path, interval_s: int, _: int) -> Iterator[Sink]:
    name = f"bench-{interval_s}"

    def table() -> Table | None:
        if not (warehouse / "catalog.db").exists():
            return None
        catalog = tables.open_catalog(tables.LOCAL_CATALOG, tables.local_catalog(str(warehouse)))
        return tables.existing(catalog, "db.events")

    job = IcebergJob(broker, warehouse, name, interval_s)
    with job:
        yield Sink("job `iceberg`", f"iceberg-{name}", job.pids, table)


@contextmanager
def _connector(
    broker: BrokerProcess, warehouse: Path, interval_s: int, poll: int
) -> Iterator[Sink]:
    name = f"bench-{interval_s}"
    control = f"control-connect-{interval_s}"
    create_topic(broker.kafka, control, 1)
    _begin_at_first_record(broker.kafka, f"connect-{name}-coord", control)
    warehouse.mkdir()
    settings = {
        "plugin.path": str(tools.iceberg_plugins()),
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        # A Connect cluster of its own for each run: it starts no connector of an earlier one.
        "group.id": name,
        "config.storage.topic": f"configs-{name}",
        "offset.storage.topic": f"offsets-{name}",
        "status.storage.topic": f"status-{name}",
        "consumer.max.poll.records": str(poll),
        # As Kafka's defaults; those of tests are shorter than this broker allows.
        "session.timeout.ms": "10000",
        "heartbeat.interval.ms": "3000",
        # Tasks look at the control topic when records come, and otherwise so often.
        "offset.flush.interval.ms": "500",
    }
    connector = {
        "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
        "tasks.max": str(TASKS),
        "topics": TOPIC,
        "iceberg.tables": "db.events",
        "iceberg.tables.auto-create-enabled": "true",
        "iceberg.catalog.type": "hadoop",
        "iceberg.catalog.warehouse": warehouse.as_uri(),
        "iceberg.control.topic": control,
        "iceberg.control.commit.interval-ms": str(interval_s * 1000),
        "iceberg.control.commit.timeout-ms": str(TIMEOUT_MS),
    }
    with Worker(warehouse, broker.kafka, settings) as worker:
        worker.configure(name, connector)
        with worker.attended(name) as failures:
            yield Sink(
                "connector",
                f"connect-{name}",
                lambda: [worker.pid],
                lambda: iceberg_table.newest(warehouse, "db", "events"),
            )
    for trace in failures:
        print(f"a task of the connector failed: {trace.splitlines()[0]}", file=sys.stderr)


def _begin_at_first_record(kafka: str, group: str, control: str) -> None:
    """Version 1.12 begins at the end of the control topic if the group has no offset, and forgets
    files that were written for a first commit which did not happen."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": kafka, "group.id": group, "log_level": 0}
    )
    try:
        place = confluent_kafka.TopicPartition(control, 0, 0)
        consumer.commit(offsets=[place], asynchronous=False)
    finally:
        consumer.close()


# --- records


def _fill(kafka: str, records: int) -> float:
    """Returns the mean size of a value."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": kafka,
            "linger.ms": 50,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    size = 0
    for number in range(records):
        value = _value(number)
        size += len(value)
        while True:
            try:
                producer.produce(TOPIC, value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(300) == 0
    return size / records


def _value(number: int) -> bytes:
    record = {
        "id": number,
        "at": f"2026-11-24T10:{number // 60_000 % 60:02}:{number // 1000 % 60:02}",
        "amount": number % 100_000 / 4,
        "name": f"customer {number * 7919 % 100_003}",
        "country": ("DE", "FR", "PL", "US")[number % 4],
        "items": number % 7,
        "paid": number % 3 > 0,
        "note": f"{number * 104_729 % 1_000_003:>060}",
    }
    return json.dumps(record).encode()


if __name__ == "__main__":
    main()
