"""A cluster: each slice is read from its shard, and every record exactly once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from brokerhouse.spark_jobs.shards import find_shards
from brokerhouse.spark_jobs.sql_client import SqlCredentials, SqlRefused, SqlUnavailable
from brokerhouse.storage.cluster_sql import (
    SHARD_DATABASE,
    ClusterLayout,
    people_migrations,
    shard_migrations,
)
from brokerhouse.storage.engine import DATABASE
from tests.spark.reading import Reading, frame
from tests.support.adapters import ConfluentKafka
from tests.support.cluster_processes import SQL_PASSWORD, SQL_USER, Cluster
from tests.support.engine_process import EngineProcess
from tests.support.records import Record
from tests.support.server_process import PROJECT, free_port

pytestmark = pytest.mark.test_all

TOPIC, PARTITIONS, EACH = "spread", 8, 40
WHO = {"user": SQL_USER, "password": SQL_PASSWORD}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two shards and a broker; half of the topic's records were written before its slots moved."""
    made = Cluster(tmp_path_factory.mktemp("cluster"), brokers=1, session_timeout_ms=30_000)
    try:
        made.start()
        client = ConfluentKafka()
        client.create_topic(made.bootstrap, TOPIC, PARTITIONS)
        write(made, range(EACH))
        move = ["slots", "move", "--config", str(made.commands_path), "--slots", "0-7"]
        subprocess.run(
            [sys.executable, "-m", "brokerhouse", *move, "--to", "shard2"],
            cwd=PROJECT,
            check=True,
            capture_output=True,
            timeout=120,
        )
        write(made, range(EACH, 2 * EACH))
        yield made
    finally:
        made.close()


def write(cluster: Cluster, numbers: range) -> None:
    for partition in range(PARTITIONS):
        records = [Record(None, b"%d" % n, (), 1_700_000_000_000 + n) for n in numbers]
        ConfluentKafka().produce(
            cluster.bootstrap, TOPIC, records, partition=partition, idempotent=True
        )


def urls(cluster: Cluster, listener: int | None = None) -> str:
    """All addresses, or one of each shard."""
    found = [
        engine.urls if listener is None else [engine.urls[listener]] for engine in cluster.engines
    ]
    return ",".join(url for some in found for url in some)


def test_each_slice_is_read_from_the_shard_that_has_its_rows(shards: Cluster) -> None:
    reading = Reading(urls(shards), (), subscribe=TOPIC, **WHO)
    servers = reading.slices[0].shards
    assert [(set(one.urls), one.database) for one in servers] == [
        (set(engine.urls), SHARD_DATABASE) for engine in shards.engines
    ]
    found: Counter[tuple[int, int]] = Counter()
    of_shard = Counter[int]()
    for one in reading.slices:
        rows = reading.rows_of(one)
        of_shard[one.shard] += len(rows)
        found.update((row["partition"], row["offset"]) for row in rows)
    assert found == Counter((p, n) for p in range(PARTITIONS) for n in range(2 * EACH))
    counted = [
        engine.sql("SELECT count() AS n FROM messages WHERE topic = 'spread'")[0]["n"]
        for engine in shards.engines
    ]
    assert [of_shard[0], of_shard[1]] == counted
    assert min(counted) > 0


def test_a_partition_on_two_shards_is_read_completely(shards: Cluster) -> None:
    second = shards.engines[1].sql(
        "SELECT DISTINCT partition FROM messages WHERE topic = 'spread' AND partition IN"
        " (SELECT partition FROM messages WHERE topic = 'spread' GROUP BY partition"
        f" HAVING min(offset) = {EACH}) ORDER BY 1"
    )
    moved = [int(row["partition"]) for row in second]
    assert moved
    assigned = json.dumps({TOPIC: moved})
    reading = Reading(urls(shards, 1), (), assign=assigned, **WHO)
    assert {one.shard for one in reading.slices} == {0, 1}
    offsets = json.dumps({TOPIC: {str(p): EACH - 2 for p in moved}})
    ends = json.dumps({TOPIC: {str(p): EACH + 3 for p in moved}})
    some = Reading(
        urls(shards), (), assign=assigned, startingOffsets=offsets, endingOffsets=ends, **WHO
    )
    assert sorted((row["partition"], row["offset"]) for row in some.rows()) == [
        (p, n) for p in sorted(moved) for n in range(EACH - 2, EACH + 3)
    ]
    new = Reading(urls(shards), (), assign=assigned, startingOffsets=ends, **WHO)
    assert {one.shard for one in new.slices} == {1}
    by_time = Reading(
        urls(shards), (), assign=assigned, startingTimestamp=str(1_700_000_000_000 + EACH), **WHO
    )
    assert min(row["offset"] for row in by_time.rows()) == EACH


def test_spark_reads_each_record_of_a_cluster_once(spark: SparkSession, shards: Cluster) -> None:
    rows = frame(spark, urls(shards), subscribe=TOPIC, columns="partition,offset", **WHO)
    assert rows.distinct().count() == rows.count() == PARTITIONS * 2 * EACH


def test_replicas_that_do_not_answer_are_skipped(shards: Cluster) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    first, second = (engine.urls[1] for engine in shards.engines)
    reading = Reading(f"{nobody},{first},{second}", (), subscribe=TOPIC, **WHO)
    assert len(reading.rows()) == PARTITIONS * 2 * EACH


def test_a_missing_shard_is_an_error(shards: Cluster) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    message = "the servers reach 1 of the cluster's 2 shards: name one of each"
    with pytest.raises(SqlUnavailable, match=message):
        Reading(shards.engines[1].urls[0], (), subscribe=TOPIC, **WHO)
    with pytest.raises(SqlUnavailable, match=rf"{message} \({nobody} does not answer"):
        Reading(f"{shards.engines[0].urls[0]},{nobody}", (), subscribe=TOPIC, **WHO)


def test_a_refused_login_is_an_error(shards: Cluster) -> None:
    with pytest.raises(SqlRefused, match="refuses user cluster"):
        Reading(urls(shards), (), subscribe=TOPIC, user=SQL_USER, password="wrong")


def test_without_all_shards_the_distributed_tables_are_read(tmp_path: Path) -> None:
    """The cluster's only shard is the engine itself."""
    layout = ClusterLayout("test", replicated=False, distributed=True)
    topic_id = "00000000-0000-0000-0000-000000000001"
    itself = "<shard><replica><host>127.0.0.1</host><port>9000</port></replica></shard>"
    servers = f"""<clickhouse><tcp_port>9000</tcp_port>
        <remote_servers><test>{itself}</test></remote_servers></clickhouse>"""
    with EngineProcess(tmp_path / "data", config={"servers.xml": servers}) as engine:
        for database in (SHARD_DATABASE, DATABASE):
            engine.sql(f"CREATE DATABASE IF NOT EXISTS {database}")
        for one in [*shard_migrations(layout), *people_migrations(layout)]:
            engine.sql(one.statement)
        engine.sql(
            f"INSERT INTO {SHARD_DATABASE}.topic_versions (topic_id, version, name, partitions,"
            f" state) SELECT '{topic_id}', 1, 'orders', 1, 'live'"
        )
        engine.sql(
            f"INSERT INTO {SHARD_DATABASE}.messages (topic, topic_id, partition, offset, value,"
            f" append_time, control) SELECT 'orders', '{topic_id}', 0, number, toString(number),"
            " now64(3), number = 7 FROM numbers(20)"
        )
        (servers_of_all,) = find_shards(engine.urls, SqlCredentials())
        assert servers_of_all.database == DATABASE
        reading = Reading(engine.urls[0], (), subscribe="orders", maxRecordsPerPartition="6")
        assert [row["offset"] for row in reading.rows()] == [n for n in range(20) if n != 7]
        assert len(reading.slices) >= 4
        all_of_it = Reading(engine.urls[0], (), subscribe="orders", isolation="read_uncommitted")
        assert len(all_of_it.rows()) == 19
