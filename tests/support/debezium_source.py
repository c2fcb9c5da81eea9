"""Debezium's connector for PostgreSQL in a worker of Kafka Connect, and the records it writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka

from tests.support import tools
from tests.support.connect_worker import ConnectWorker
from tests.support.postgres import DATABASE, HOST, USER, Postgres
from tests.support.waiting import LIMIT_S

_JSON = "org.apache.kafka.connect.json.JsonConverter"
Record = tuple[bytes | None, bytes | None]
"""A key and a value."""


@contextmanager
def debezium_worker(directory: Path, bootstrap: str) -> Iterator[ConnectWorker]:
    """A worker with Debezium that writes JSON, for a broker with `restarts.BROKER_SETTINGS`."""
    settings = {
        "plugin.path": str(tools.debezium_plugins()),
        "key.converter": _JSON,
        "value.converter": _JSON,
    }
    with ConnectWorker(directory, bootstrap, settings) as worker:
        yield worker


def postgres_source(
    postgres: Postgres,
    prefix: str,
    tables: Sequence[str],
    settings: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The config of a connector: only what it needs, and `settings`.

    The topic of a table is PREFIX.SCHEMA.TABLE. Each prefix has its own slot, so that several
    connectors read the same server.
    """
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",  # the default needs an extension that PostgreSQL does not have
        "database.hostname": HOST,
        "database.port": str(postgres.port),
        "database.user": USER,
        "database.password": "any",
        "database.dbname": DATABASE,
        "topic.prefix": prefix,
        "table.include.list": ",".join(tables),
        "slot.name": f"slot_{prefix}",
        "publication.name": f"publication_{prefix}",
        **(settings or {}),
    }


def records(
    bootstrap: str, topic: str, are_all: Callable[[Sequence[Record]], bool]
) -> list[Record]:
    """The records of a topic with one partition, from the first on until they are all there."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "debezium-records",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 200,
            "log_level": 0,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found: list[Record] = []
    deadline = time.monotonic() + LIMIT_S
    try:
        while not are_all(found):
            assert time.monotonic() < deadline, f"{topic} has {found}"
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                found.append((message.key(), message.value()))
    finally:
        consumer.close()
    return found
