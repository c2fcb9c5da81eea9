"""The job `iceberg` without Spark: its workers in this process, or in others to be killed."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import confluent_kafka
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka.admin import AdminClient
from kafka.admin import KafkaAdminClient, MemberToRemove
from kafka.errors import NoError
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from brokerhouse.feeds.definition import Format
from brokerhouse.feeds.routing import Route
from brokerhouse.spark_jobs.iceberg import tables
from brokerhouse.spark_jobs.iceberg.control_topic import client_options, make_topic
from brokerhouse.spark_jobs.iceberg.job import described
from brokerhouse.spark_jobs.iceberg.settings import RowOperations, SinkSettings, SinkTables
from brokerhouse.spark_jobs.iceberg.worker import SinkWorker
from brokerhouse.spark_jobs.sql_client import SqlServers
from tests.support.broker_process import BrokerProcess
from tests.support.sql_client import PASSWORD, USER

LIMIT_S = 60.0


class IcebergSink:
    """A sink of one topic, with its own catalog, names and control topic."""

    def __init__(
        self, broker: BrokerProcess, directory: Path, topics: Mapping[str, int], **more: Any
    ) -> None:
        """`topics`: with their numbers of partitions. `more`: of the settings and of the tables."""
        name = f"test-{uuid4().hex[:8]}"
        kafka = {"bootstrap.servers": broker.kafka, "heartbeat.interval.ms": "300"}
        control = f"control-{name}"
        make_topic(kafka, control)
        self.broker = broker
        self.warehouse = directory / name
        self.warehouse.mkdir()
        of_tables = {
            "names": {"db.t": ""},
            "database": "",
            "route": None,
            "create": True,
            "evolve": False,
            "id_columns": (),
            "partition_by": (),
            "properties": {},
            "metadata_columns": False,
            "operations": None,
        }
        sink = SinkTables(**{name: more.pop(name, value) for name, value in of_tables.items()})
        self.settings = replace(
            SinkSettings(
                name,
                kafka,
                described(kafka, [*topics, control]),
                control,
                tables.LOCAL_CATALOG,
                tables.local_catalog(str(self.warehouse)),
                sink,
                Format.JSON,
                "",
                SqlServers.parse(broker.http_url, USER, PASSWORD),
                200,
                20_000,
                45_000,
                10_000,
            ),
            **more,
        )
        self.partitions = sum(topics.values())
        self.workers: list[SinkWorker] = []
        self._numbers: dict[SinkWorker, int] = {}

    # --- what is there

    @property
    def catalog(self) -> Catalog:
        return tables.open_catalog(self.settings.catalog, self.settings.catalog_options)

    def table(self, name: str = "db.t") -> Table | None:
        return tables.existing(self.catalog, name)

    def rows(self, name: str = "db.t") -> list[dict[str, Any]]:
        """By PyIceberg, which knows no equality deletes."""
        table = self.table(name)
        found: list[dict[str, Any]] = [] if table is None else table.scan().to_arrow().to_pylist()
        return found

    def ids(self, name: str = "db.t") -> list[int]:
        return sorted(row["id"] for row in self.rows(name))

    def summaries(self, name: str = "db.t") -> list[Mapping[str, str]]:
        """Of all snapshots, from the oldest."""
        table = self.table(name)
        if table is None:
            return []
        found = sorted(table.metadata.snapshots, key=lambda one: one.sequence_number or 0)
        return [one.summary.additional_properties for one in found if one.summary is not None]

    def source_offsets(self) -> dict[int, int]:
        """Of the group, by partition of the first topic."""
        return self._stored(self.settings.group)

    def control_offsets(self) -> dict[int, int]:
        """Of the coordinator's group."""
        return self._stored(self.settings.coordinator_group)

    def _stored(self, group: str) -> dict[int, int]:
        admin = AdminClient(client_options(self.settings.kafka))
        asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
        try:
            found = asked[group].result(LIMIT_S).topic_partitions
        except KafkaException:
            return {}
        return {one.partition: one.offset for one in found if one.offset >= 0}

    def create(
        self, name: str, schema: Schema, properties: Mapping[str, str] | None = None
    ) -> Table:
        self.catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
        return self.catalog.create_table(name, schema, properties=dict(properties or {}))

    def change(self, **more: Any) -> None:
        """Settings of the workers that start from now on."""
        self.settings = replace(self.settings, **more)

    def make_control_topic_again(self) -> None:
        admin = AdminClient(client_options(self.settings.kafka))
        name = self.settings.control_topic
        admin.delete_topics([name])[name].result(LIMIT_S)
        make_topic(self.settings.kafka, name)
        self.change(topics=described(self.settings.kafka, list(self.settings.topics)))

    # --- workers in this process

    def start(self, number: int = 0) -> SinkWorker:
        worker = SinkWorker(self.settings, number)
        self.workers.append(worker)
        self._numbers[worker] = number
        return worker

    def stop(self, *workers: SinkWorker) -> None:
        for worker in workers or tuple(self.workers):
            self.workers.remove(worker)
            worker.close()

    def expel(self, worker: SinkWorker) -> None:
        """Take it out of the group, as the end of its session does. Nobody waits for that here."""
        group = self.settings.group
        member = MemberToRemove(group_instance_id=f"{group}-{self._numbers[worker]}")
        admin = KafkaAdminClient(bootstrap_servers=self.broker.kafka)
        [outcome] = admin.remove_group_members(group, [member]).values()
        admin.close()
        assert outcome is NoError

    def run_until(self, done: Callable[[], bool], what: str) -> None:
        """All workers take turns."""
        deadline = time.monotonic() + LIMIT_S
        while not done():
            assert time.monotonic() < deadline, what
            self.step()

    def step(self) -> None:
        for worker in self.workers:
            worker.step()

    def run_until_rows(self, count: int, name: str = "db.t") -> None:
        self.run_until(lambda: self._has(count, name), f"{count} rows in {name}")

    def _has(self, count: int, name: str) -> bool:
        return self.row_count(name) >= count

    def row_count(self, name: str = "db.t") -> int:
        """Without a look at the files; rows that were deleted count."""
        table = self.table(name)
        snapshot = None if table is None else table.current_snapshot()
        if snapshot is None or snapshot.summary is None:
            return 0
        return int(snapshot.summary["total-records"] or 0)


@contextmanager
def iceberg_sink(
    broker: BrokerProcess, directory: Path, topics: Mapping[str, int], **more: Any
) -> Iterator[IcebergSink]:
    sink = IcebergSink(broker, directory, topics, **more)
    try:
        yield sink
    finally:
        sink.stop()


class WorkerProcess:
    """A worker in a process of its own; it is started again after a failure, as Spark does."""

    def __init__(self, settings: SinkSettings, number: int, log: Path) -> None:
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.iceberg_sink", str(number)],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(pickle.dumps(settings))
        self._process.stdin.close()

    def send(self, signal: int) -> None:
        self._process.send_signal(signal)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()


def produce(
    broker: BrokerProcess, topic: str, values: Iterator[Any] | list[Any], **more: Any
) -> None:
    """`more`: of each record: partition, key, headers, timestamp."""
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka})
    for value in values:
        producer.produce(topic, value, **more)
    assert producer.flush(LIMIT_S) == 0


def operations(field: str = "") -> RowOperations:
    from brokerhouse.spark_jobs.iceberg.settings import DEBEZIUM, RowOperation

    return RowOperations(field, {**DEBEZIUM, **{one.value: one for one in RowOperation}})


def route(by: Any, name: str) -> Route:
    return Route(by, name)


def main() -> None:
    settings = pickle.load(sys.stdin.buffer)
    number = int(sys.argv[1])
    while True:
        try:
            worker = SinkWorker(settings, number)
            while True:
                worker.step()
        except Exception as error:
            print(f"worker {number} failed: {error!r}", flush=True)
            time.sleep(0.5)


if __name__ == "__main__":
    main()
