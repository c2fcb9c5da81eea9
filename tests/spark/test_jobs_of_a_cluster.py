"""Jobs on the Distributed tables of a cluster.

Both shards are one engine, so every row is read twice; docker-compose has a real cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from brokerhouse.feeds.blocks import Offsets, token
from brokerhouse.feeds.tables import preparing
from brokerhouse.spark_jobs import audit, lag
from brokerhouse.storage.cluster_sql import (
    SHARD_DATABASE,
    ClusterLayout,
    people_migrations,
    shard_migrations,
)
from tests.spark.history import MINUTE, History, run_job
from tests.support.engine_process import EngineProcess

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.slow]

LAYOUT = ClusterLayout("test", replicated=False, distributed=True)
SHARD = "<shard><replica><host>127.0.0.1</host><port>9000</port></replica></shard>"
SERVERS = f"""<clickhouse>
    <tcp_port>9000</tcp_port>
    <remote_servers><test>{SHARD}{SHARD}</test></remote_servers>
</clickhouse>"""


class ClusterHistory(History):
    database = SHARD_DATABASE

    def __init__(self, directory: Path) -> None:
        self.engine = EngineProcess(directory / "data", config={"servers.xml": SERVERS})
        self.engine.start()
        for database in ("brokerhouse", SHARD_DATABASE):
            self.engine.sql(f"CREATE DATABASE IF NOT EXISTS {database}")
        for one in [*shard_migrations(LAYOUT), *people_migrations(LAYOUT)]:
            self.engine.sql(one.statement)
        self.base = 0
        self.version = 0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterHistory]:
    made = ClusterHistory(tmp_path_factory.mktemp("cluster"))
    ((now,),) = (row.values() for row in made.engine.sql("SELECT toUnixTimestamp(now()) AS now"))
    made.base = now // MINUTE * MINUTE - MINUTE
    topic_id = made.topic("orders")
    made.minutes("orders", topic_id, [(made.base - 2 * MINUTE, 0, 9)])
    made.counted_until(made.base)
    made.block("orders", topic_id, 0, 9, made.base - 2 * MINUTE)
    made.commits("g", "orders", topic_id, [(made.base - 2 * MINUTE + 5, 4)])
    feed(made, topic_id)
    yield made
    made.engine.stop()


def feed(made: ClusterHistory, topic_id: UUID) -> None:
    """A feed with one block, which has one row, in the tables that brokers would have made."""
    feed_id = UUID(int=5)
    target = "shop.orders_local"
    insert = f"INSERT INTO {SHARD_DATABASE}"
    of_block = f"'shop.orders', '{feed_id}', 'orders', '{topic_id}', 0"
    for statement in (
        "CREATE DATABASE shop",
        f"CREATE TABLE {target} (id UInt64) ENGINE = MergeTree ORDER BY id",
        *preparing(target, replicated=False),
        f"CREATE TABLE shop.orders AS {target}"
        " ENGINE = Distributed('test', 'shop', 'orders_local')",
        f"INSERT INTO {target} SETTINGS insert_deduplication_token ="
        f" '{token(str(feed_id), str(topic_id), 0, Offsets(0, 10), 0)}' VALUES (1)",
        f"{insert}.table_feed_versions (name, version, feed_id, database, table,"
        f" topics, status) SELECT 'shop.orders', 1, '{feed_id}', 'shop', 'orders', ['orders'],"
        " 'running'",
        f"{insert}.table_feed_blocks (feed, feed_id, topic, topic_id, partition,"
        " version, phase, first_offset, end_offset, rows, total_rows, time)"
        f" SELECT {of_block}, 1, 'before', 0, 10, 0, 0, now64(3)"
        f" UNION ALL SELECT {of_block}, 2, 'after', 0, 10, 1, 1, now64(3)",
    ):
        made.engine.sql(statement)


def test_lag_is_written_to_one_shard_once(cluster: ClusterHistory) -> None:
    for _ in range(2):
        ended = run_job(
            lag.command, cluster.engine.http, "--alert-records", "5", "--backfill", "10m", user=None
        )
        assert ended.code == 0, ended.stderr
    rows = cluster.engine.sql(f"SELECT lag, window_start FROM {SHARD_DATABASE}.lag_history")
    assert [row["lag"] for row in rows] == [6, 6]
    alerts = cluster.engine.sql(f"SELECT kind, ended_at FROM {SHARD_DATABASE}.lag_alerts")
    assert alerts == [{"kind": "records", "ended_at": None}]


def test_audit_reads_the_rows_of_all_shards(cluster: ClusterHistory) -> None:
    """Of a feed, too: its table is read as the one of all shards, and its history once."""
    ended = run_job(audit.command, cluster.engine.http, "--json", user=None)
    assert [
        (row["of"], row["kind"], row["first"], row["last"], row["detail"])
        for row in ended.told["rows"]
    ] == [
        ("feed", "duplicate", 0, 9, "2 rows in the table, and 1 when it was completed"),
        ("log", "duplicate", 0, 9, "2 times in one block"),
    ]
