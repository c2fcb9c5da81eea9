"""Debezium's connector for PostgreSQL in a worker of Kafka Connect writes changes to a topic."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.support.broker_process import BrokerProcess
from tests.support.debezium_source import debezium_worker, postgres_source, records
from tests.support.postgres import Postgres
from tests.support.restarts import BROKER_SETTINGS


def test_rows_of_postgresql_become_records_of_debezium(
    own_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = own_broker(**BROKER_SETTINGS)
    with Postgres(tmp_path) as postgres, debezium_worker(tmp_path, broker.kafka) as worker:
        postgres.run(
            "CREATE TABLE orders (id bigint PRIMARY KEY, name text)",
            "INSERT INTO orders VALUES (1, 'read by the snapshot')",
        )
        worker.configure("debezium", postgres_source(postgres, "pg", ["public.orders"]))
        records(broker.kafka, "pg.public.orders", lambda found: len(found) == 1)
        postgres.run("INSERT INTO orders VALUES (2, 'inserted later')")
        found = records(broker.kafka, "pg.public.orders", lambda found: len(found) == 2)
    changes = [json.loads(value or b"")["payload"] for _, value in found]
    assert [(change["op"], change["after"]) for change in changes] == [
        ("r", {"id": 1, "name": "read by the snapshot"}),
        ("c", {"id": 2, "name": "inserted later"}),
    ]
