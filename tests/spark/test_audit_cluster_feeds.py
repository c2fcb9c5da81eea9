"""The job `audit` on feeds of a cluster: definitions, history and rows are on several shards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from brokerhouse.spark_jobs import audit
from tests.spark.history import Ended, run_job
from tests.support.cluster_processes import SLOTS, SQL_PASSWORD, SQL_USER, Cluster
from tests.support.cluster_tables import ClusterTables
from tests.support.command_line import output
from tests.support.committed import create_topic

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.test_all]

TOPIC, PARTITIONS, EACH = "orders", 4, 10
TABLE = "shop.orders"
LOCAL = f"{TABLE}_local"


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Partitions on both shards, some of them moved to the other one; a broker was killed."""
    made = Cluster(tmp_path_factory.mktemp("cluster"), brokers=2)
    try:
        made.start()
        create_topic(made.bootstrap, TOPIC, PARTITIONS)
        tables = ClusterTables(made)
        tables("create", TABLE, "--topic", TOPIC, "--columns", "id UInt64, _partition Int32")
        feed(made, tables, 0)
        moved = f"0-{SLOTS // 2 - 1}"
        config = str(made.commands_path)
        output("slots", "move", "--slots", moved, "--to", "shard2", "--config", config)
        feed(made, tables, 1)
        made.brokers[1].kill()
        feed(made, tables, 2)
        yield made
    finally:
        made.close()


def feed(cluster: Cluster, tables: ClusterTables, number: int) -> None:
    """Records of every partition; the last one of each is not a row."""
    settings = {"bootstrap.servers": cluster.bootstrap, "linger.ms": 1000}
    producer = Producer(settings)  # of each partition one batch, which is one block
    for partition in range(PARTITIONS):
        for one in range(EACH):
            value = {"id": number * EACH + one if one < EACH - 1 else "none"}
            producer.produce(TOPIC, json.dumps(value), partition=partition)
    assert producer.flush(60) == 0
    tables.await_fed(TABLE, (number + 1) * EACH * PARTITIONS)


def audited(cluster: Cluster) -> Ended:
    servers = ",".join(engine.urls[0] for engine in cluster.engines)
    credentials = ("--user", SQL_USER, "--password", SQL_PASSWORD)
    return run_job(audit.command, servers, *credentials, "--json", user=None)


def test_each_planted_anomaly_is_found_on_its_shard_and_none_before_it_was_planted(
    fed: Cluster,
) -> None:
    healthy = audited(fed)
    assert (healthy.code, healthy.told["rows"]) == (0, [])
    tables = ClusterTables(fed)
    both = "SELECT count() AS n FROM table_feed_blocks WHERE phase = 'after'"
    assert all(row["n"] > 0 for row in tables.sql(both)), "one shard has the whole history"
    assert all(row["n"] > 0 for row in tables.sql(f"SELECT count() AS n FROM {LOCAL}"))

    expected = [*plant_in_tables(fed), plant_in_history(fed)]
    ended = audited(fed)
    assert ended.code == 1
    found = [
        (row["of"], row["kind"], row["partition"], row["first"], row["detail"])
        for row in ended.told["rows"]
    ]
    assert sorted(found) == sorted(("feed", *one) for one in expected)


def plant_in_tables(cluster: Cluster) -> Iterator[tuple[Any, ...]]:
    """A row is missing on one shard; one is on another shard as well, where its block is not."""
    first, second = cluster.engines
    moved = set(partitions(first.sql(by_partition()))) & set(partitions(second.sql(by_partition())))
    stayed = set(partitions(second.sql(by_partition()))) - moved
    [row, *_] = second.sql(
        f"SELECT id, _block AS token FROM {LOCAL} WHERE _partition = {min(stayed)} AND id = 0"
    )
    insert = f"INSERT INTO {LOCAL} (id, _partition, _block) SETTINGS"
    first.sql(
        f"{insert} insert_allow_materialized_columns = 1 SELECT 0, {min(stayed)}, '{row['token']}'"
    )
    yield "duplicate", min(stayed), 0, counts(EACH, EACH - 1)
    first.sql(f"DELETE FROM {LOCAL} WHERE _partition = {min(moved)} AND id = 1")
    yield "gap", min(moved), 0, counts(EACH - 2, EACH - 1)


def plant_in_history(cluster: Cluster) -> tuple[Any, ...]:
    """A feeder begins an old block again; the other shard has the history of its blocks."""
    first, second = cluster.engines
    moved = set(partitions(first.sql(by_partition()))) & set(partitions(second.sql(by_partition())))
    partition = max(moved)
    first.sql(
        "INSERT INTO table_feed_blocks SELECT * REPLACE (version + 1000 AS version,"
        f" 'before' AS phase, 0 AS first_offset, {EACH} AS end_offset) FROM table_feed_blocks"
        f" WHERE partition = {partition} ORDER BY version DESC LIMIT 1"
    )
    return "backward", partition, 0, f"begun after the block from {2 * EACH} on"


def by_partition() -> str:
    return f"SELECT DISTINCT _partition AS p FROM {LOCAL}"


def partitions(rows: list[dict[str, Any]]) -> list[int]:
    return [row["p"] for row in rows]


def counts(there: int, completed: int) -> str:
    return f"{there} rows in the table, and {completed} when it was completed"
