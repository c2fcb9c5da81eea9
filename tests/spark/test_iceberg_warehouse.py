"""A single broker whose SQL may read Iceberg tables below one directory, and nothing else."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import RunBroker
from tests.support import command_line
from tests.support.broker_process import BrokerProcess
from tests.support.committed import create_topic
from tests.support.iceberg_changes import ChangingTable
from tests.support.iceberg_sink import iceberg_sink, produce
from tests.support.sql_client import PASSWORD, USER, WRITER, Answer, ask
from tests.support.typed_tables import SETTINGS

ACCESS_DENIED = 497
VIEW = "mine.events"


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("warehouse") / "ware.house"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def broker(run_broker: RunBroker, warehouse: Path) -> Iterator[BrokerProcess]:
    settings = {**SETTINGS, "iceberg_warehouse": str(warehouse)}
    with run_broker("with-a-warehouse", **settings) as started:
        yield started


def asked(broker: BrokerProcess, sql: str, *, writer: bool = False) -> Answer:
    return ask(broker, sql, headers=WRITER if writer else {})


def table_of(folder: Path, *ids: int) -> str:
    changing = ChangingTable(folder)
    changing.commit(*({"id": one} for one in ids))
    return str(changing.location)


def ids(broker: BrokerProcess) -> list[int]:
    """As a reader without credentials sees them."""
    return [row["id"] for row in broker.sql(f"SELECT id FROM {VIEW} ORDER BY id")]


def test_a_view_of_history_and_log_in_the_brokers_own_sql(
    broker: BrokerProcess, warehouse: Path, topic: str
) -> None:
    create_topic(broker.kafka, topic, 2)
    with iceberg_sink(broker, warehouse, {topic: 2}, metadata_columns=True) as sink:
        produce(broker, topic, [json.dumps({"id": 1})], partition=0)
        sink.start()
        sink.run_until_rows(1)
        ended = command_line.run(
            *shlex.split(
                f"jobs run iceberg-view {VIEW} --catalog {sink.warehouse} --table db.t"
                f" --http {broker.http_url} --user {USER}"
            ),
            "--password",
            PASSWORD,
        )
        assert ended.returncode == 0, ended.stderr
        produce(broker, topic, [json.dumps({"id": 2})], partition=1)
        assert ids(broker) == [1, 2]
        sink.run_until_rows(2)
        assert ids(broker) == [1, 2]
        sink.stop()
        broker.restart()
        produce(broker, topic, [json.dumps({"id": 3})], partition=1)
        assert ids(broker) == [1, 2, 3]


def test_only_iceberg_tables_below_the_directory_are_read(
    broker: BrokerProcess, warehouse: Path
) -> None:
    inside = table_of(warehouse, 1, 2)
    beside = warehouse.with_name(f"{warehouse.name}-2")
    beside.mkdir()
    outside = table_of(beside, 3)
    (warehouse / "plain.csv").write_text("secret\n")
    for writer in (False, True):
        answer = asked(broker, f"SELECT sum(id) FROM icebergLocal('{inside}')", writer=writer)
        assert (answer.status, answer.text) == (200, "3\n")
        for source in (
            f"icebergLocal('{outside}')",
            f"icebergLocal('{warehouse}/../{beside.name}/db/t')",
            f"icebergLocal('../{beside.name}/db/t')",
            "icebergLocal('/etc')",
            f"icebergLocalCluster('default', '{inside}')",
            f"iceberg('{inside}')",
            f"deltaLakeLocal('{inside}')",
            f"file('{warehouse}/plain.csv', 'LineAsString')",
        ):
            refused = asked(broker, f"SELECT * FROM {source}", writer=writer)
            assert refused.code == ACCESS_DENIED, (source, refused.text)
        for statement in (
            f"INSERT INTO FUNCTION icebergLocal('{inside}') SELECT 1",
            f"CREATE TABLE mine.t (id Int64) ENGINE = IcebergLocal('{inside}')",
            f"SELECT file('{warehouse}/plain.csv')",
        ):
            refused = asked(broker, statement, writer=writer)
            assert refused.code == ACCESS_DENIED, (statement, refused.text)
    refused = asked(broker, "CREATE TEMPORARY TABLE t (a Int8)")
    assert refused.code == ACCESS_DENIED, refused.text


def test_a_broker_without_a_warehouse_reads_no_table(
    sink_broker: BrokerProcess, tmp_path: Path
) -> None:
    table = table_of(tmp_path, 1)
    for writer in (False, True):
        refused = asked(sink_broker, f"SELECT * FROM icebergLocal('{table}')", writer=writer)
        assert refused.code == ACCESS_DENIED
        assert "Table function icebergLocal is not available here" in refused.text


@pytest.mark.parametrize("place", ["missing", "file"])
def test_a_warehouse_that_cannot_be_read_ends_the_start(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    ended = command_line.in_a_process(
        "serve",
        "--data-dir",
        str(tmp_path / "data"),
        *shlex.split(
            f"--kafka 127.0.0.1:0 --http 127.0.0.1:0 --iceberg-warehouse {tmp_path / place}"
        ),
    )
    assert ended.returncode != 0
    assert f"iceberg_warehouse {tmp_path / place} cannot be read" in ended.stderr


def test_a_warehouse_with_a_space_in_its_path_ends_the_start(tmp_path: Path) -> None:
    ended = command_line.in_a_process("serve", "--iceberg-warehouse", str(tmp_path / "a b"))
    assert ended.returncode != 0
    assert "may have only letters, digits and /._- in its path" in ended.stderr


def test_a_broker_of_a_cluster_has_no_warehouse(tmp_path: Path) -> None:
    config = tmp_path / "cluster.toml"
    config.write_text("""
[cluster]
name = "c"
[[cluster.shards]]
name = "one"
slots = "0-63"
replicas = ["http://127.0.0.1:1"]
""")
    ended = command_line.in_a_process(
        "serve", "--config", str(config), "--iceberg-warehouse", str(tmp_path)
    )
    assert ended.returncode != 0
    assert "iceberg_warehouse is for a single broker" in ended.stderr
