"""Apache Iceberg's sink for Kafka Connect, while its worker and the broker are killed.

The sink's tasks write files, and send their names and the offsets of their group in one transaction
to a control topic, from which one of them commits the files to the table. Whatever is killed, each
record of the topic is in the table once. The long test: `make test-apps`.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.cimpl import TopicPartition
from pyiceberg.table import StaticTable

from tests.support import iceberg_table, restarts, tools
from tests.support.broker_process import BrokerProcess
from tests.support.committed import EndOffsets, aborted_transactions, create_topic
from tests.support.connect_worker import ConnectWorker
from tests.support.restarts import BROKER_SETTINGS, Restart
from tests.support.steady_producer import producing
from tests.support.waiting import until

TOPIC, CONTROL = "events", "control-iceberg"
CONNECTOR = "iceberg"
PARTITIONS = 2
RECORDS_BETWEEN = (1, 20)
"""Of the control topic: a commit has about ten."""
LIMIT_S = 120.0


def worker_settings() -> dict[str, str]:
    return {
        "plugin.path": str(tools.iceberg_plugins()),
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        "consumer.session.timeout.ms": "2000",
        "consumer.heartbeat.interval.ms": "500",
        # Tasks look at the control topic when records come, and otherwise so often.
        "offset.flush.interval.ms": "500",
    }


def iceberg_sink(warehouse: Path) -> dict[str, str]:
    return {
        "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
        "tasks.max": str(PARTITIONS),
        "topics": TOPIC,
        "iceberg.tables": "db.events",
        "iceberg.tables.auto-create-enabled": "true",
        "iceberg.catalog.type": "hadoop",
        "iceberg.catalog.warehouse": warehouse.as_uri(),
        "iceberg.control.commit.interval-ms": "1000",
        "iceberg.control.commit.timeout-ms": "5000",
        # Readers of the control topic wait for transactions of tasks that were killed.
        "iceberg.kafka.transaction.timeout.ms": "4000",
    }


def table_in(warehouse: Path) -> StaticTable | None:
    return iceberg_table.newest(warehouse, "db", "events")


def ids_in(warehouse: Path) -> list[int]:
    table = table_in(warehouse)
    assert table is not None
    return sorted(table.scan(selected_fields=("id",)).to_arrow().column("id").to_pylist())


def read_from_the_beginning(bootstrap: str) -> None:
    """The task that commits to the table is to read the control topic from its first record on.

    Version 1.12 begins at the end if the group has no offset, and forgets files that were written
    for a first commit which did not happen.
    """
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"connect-{CONNECTOR}-coord", "log_level": 0}
    )
    try:
        consumer.commit(offsets=[TopicPartition(CONTROL, 0, 0)], asynchronous=False)
    finally:
        consumer.close()


def check_each_record_once(
    broker: BrokerProcess,
    worker: ConnectWorker,
    warehouse: Path,
    killings: Iterator[Restart],
    chance: random.Random,
) -> int:
    """Returns how many transactions were aborted."""
    create_topic(broker.kafka, TOPIC, PARTITIONS)
    create_topic(broker.kafka, CONTROL, 1)
    read_from_the_beginning(broker.kafka)
    numbers = itertools.count()

    def record() -> tuple[str, str]:
        number = next(numbers)
        return str(number), json.dumps({"id": number})

    worker.configure(CONNECTOR, iceberg_sink(warehouse))
    with worker.attended(CONNECTOR) as failures:
        with EndOffsets(broker.kafka, CONTROL, 1) as ends, producing(broker.kafka, TOPIC, record):
            restarts.play(killings, ends, chance, RECORDS_BETWEEN)
        sent = next(numbers)
        until(
            lambda: iceberg_table.record_count(table_in(warehouse)) >= sent,
            f"{sent} records are in the table",
            LIMIT_S,
        )
    print(f"{sent} records, {len(failures)} tasks failed", *failures, sep="\n")
    worker.stop()
    assert ids_in(warehouse) == list(range(sent))
    aborted = aborted_transactions(broker.sql, CONTROL)
    print(f"{aborted} transactions aborted")
    return aborted


@pytest.mark.test_all
def test_each_record_is_in_the_table_once_whatever_is_killed(
    own_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    chance = restarts.seeded()
    broker = own_broker(**BROKER_SETTINGS)
    with ConnectWorker(tmp_path, broker.kafka, worker_settings()) as worker:
        killings = restarts.each_once(broker, [worker], chance)
        check_each_record_once(broker, worker, tmp_path / "warehouse", killings, chance)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_each_record_is_in_the_table_once_for_long(
    own_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    chance = restarts.seeded()
    broker = own_broker(**BROKER_SETTINGS)
    with ConnectWorker(tmp_path, broker.kafka, worker_settings()) as worker:
        killings = restarts.for_long(broker, [worker], chance)
        assert check_each_record_once(broker, worker, tmp_path / "warehouse", killings, chance)
