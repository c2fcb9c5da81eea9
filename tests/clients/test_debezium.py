"""Changes of a table of PostgreSQL, captured by Debezium, become rows of a typed table."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.debezium_source import debezium_worker, postgres_source, records
from tests.support.postgres import Postgres
from tests.support.restarts import BROKER_SETTINGS
from tests.support.typed_tables import SETTINGS, TypedTables
from tests.support.waiting import until

pytestmark = pytest.mark.test_all  # a worker of Kafka Connect, and PostgreSQL

TABLE = (
    "CREATE TABLE orders (id bigint, shop int, name text DEFAULT 'none', paid numeric(18, 2),"
    " born date, at timestamp, seen timestamptz, tags text[], PRIMARY KEY (id, shop))"
)
SNAPSHOT = (
    "INSERT INTO orders VALUES (1, 1, 'read by the snapshot', 1234567890123456.78, '1955-11-24',"
    " '2024-02-29 12:34:56.789012', '2024-02-29 12:34:56.789012+02', '{a,b}')",
    "INSERT INTO orders VALUES (2, 1, 'is deleted'), (3, 1, 'is updated'), (4, 1, 'gets a key')",
)
CHANGES = (
    "INSERT INTO orders VALUES (5, 1, NULL, -0.01, '2024-01-01', NULL, NULL, NULL)",
    "DELETE FROM orders WHERE id = 2",
    "UPDATE orders SET name = 'was updated', paid = 20 WHERE id = 3",
    "UPDATE orders SET paid = NULL, born = '2024-12-31' WHERE id = 1",
    "UPDATE orders SET shop = 2 WHERE id = 4",
    "BEGIN; DELETE FROM orders WHERE id = 5; INSERT INTO orders VALUES (5, 1, 'again'); COMMIT",
    "INSERT INTO orders VALUES (6, 1, 'comes'); DELETE FROM orders WHERE id = 6",
    "INSERT INTO orders VALUES (7, 1, 'the last', 0.50)",
)
OF_POSTGRES = (
    "SELECT concat_ws('|', id, shop, coalesce(name, 'NULL'), coalesce(trim_scale(paid)::text,"
    " 'NULL'), coalesce(born::text, 'NULL'), coalesce(at::text, 'NULL'), coalesce((seen AT TIME"
    " ZONE 'UTC')::text, 'NULL'), coalesce(array_to_string(tags, ','), '')) FROM orders ORDER BY id"
)
OF_CLICKHOUSE = (
    "SELECT concatWithSeparator('|', toString(id), toString(shop), ifNull(name, 'NULL'),"
    " ifNull(toString(paid), 'NULL'), ifNull(toString(born), 'NULL'), ifNull(toString(at), 'NULL'),"
    " ifNull(toString(seen), 'NULL'), arrayStringConcat(tags, ',')) AS row"
    " FROM shop.orders FINAL ORDER BY id"
)
TYPES = {
    "id": "Int64",
    "shop": "Int32",
    "name": "Nullable(String)",
    "paid": "Nullable(Decimal(18, 2))",
    "born": "Nullable(Date32)",
    "at": "Nullable(DateTime64(6, 'UTC'))",
    "seen": "Nullable(DateTime64(6, 'UTC'))",
    "tags": "Array(Nullable(String))",
    "_offset": "Int64",
    "_deleted": "UInt8",
}


def test_the_typed_table_equals_postgresqls_table_after_each_kind_of_change(
    own_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = own_broker(**BROKER_SETTINGS, **SETTINGS)
    tables = TypedTables(broker)
    with Postgres(tmp_path) as postgres, debezium_worker(tmp_path, broker.kafka) as worker:

        def in_postgres() -> Sequence[str]:
            return postgres.run(OF_POSTGRES).splitlines()

        def in_clickhouse() -> Sequence[str]:
            return [row["row"] for row in tables.sql(OF_CLICKHOUSE)]

        postgres.run(TABLE, *SNAPSHOT)
        settings = {"value.converter.replace.null.with.default": "false"}
        worker.configure("debezium", postgres_source(postgres, "pg", ["public.orders"], settings))
        records(broker.kafka, "pg.public.orders", lambda found: len(found) == 4)
        made = tables(
            *shlex.split(
                "create shop.orders --topic pg.public.orders --input-format debezium --yes"
            ),
        )
        assert "created shop.orders" in made
        until(lambda: in_clickhouse() == in_postgres(), "the table has the snapshot")
        assert len(in_clickhouse()) == 4
        postgres.run(*CHANGES)
        until(lambda: in_clickhouse()[-1:] == in_postgres()[-1:], "the last change is there")
        assert in_clickhouse() == in_postgres()
        assert [row.split("|")[:3] for row in in_clickhouse()] == [
            ["1", "1", "read by the snapshot"],
            ["3", "1", "was updated"],
            ["4", "2", "gets a key"],
            ["5", "1", "again"],
            ["7", "1", "the last"],
        ]
    described = tables.sql(
        "SELECT name, type FROM system.columns WHERE database = 'shop' AND table = 'orders'"
        " AND name != '_block' ORDER BY position"
    )
    assert {one["name"]: one["type"] for one in described} == TYPES
    [made_table] = tables.sql(
        "SELECT engine, sorting_key FROM system.tables WHERE database = 'shop' AND name = 'orders'"
    )
    assert made_table == {"engine": "ReplacingMergeTree", "sorting_key": "id, shop"}
    assert tables.sql("SELECT error FROM brokerhouse.dead_letters") == []
