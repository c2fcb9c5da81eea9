"""The job `iceberg` with other catalogs and stores, by options alone (docs/iceberg.md)."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from brokerhouse.spark_jobs.iceberg import command
from brokerhouse.spark_jobs.iceberg.settings import SinkTables
from brokerhouse.spark_jobs.iceberg.tables import local_catalog, made, open_catalog
from brokerhouse.spark_jobs.progress import counted
from tests.spark.history import run_job
from tests.support.broker_process import BrokerProcess
from tests.support.committed import create_topic
from tests.support.iceberg_catalogs import BUCKET, HiveMetastore, RestCatalog, S3Server
from tests.support.iceberg_sink import produce
from tests.support.server_process import free_port

COUNT = 20


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Server]:
    with S3Server(tmp_path) as server:
        server.make_bucket()
        yield server


def run(broker: BrokerProcess, topic: str, options: Mapping[str, str], *more: str) -> Any:
    """The command of a user, into the table db.t."""
    given = [
        word for pair in options.items() for word in ("--catalog-option", "{}={}".format(*pair))
    ]
    return run_job(
        command,
        broker.http_url,
        *shlex.split(f"--bootstrap {broker.kafka} --topic {topic} --name {topic} --catalog lake"),
        *given,
        "--table",
        "db.t",
        "--create",
        *more,
    )


def put(broker: BrokerProcess, topic: str, partitions: int) -> None:
    create_topic(broker.kafka, topic, partitions)
    for number in range(COUNT):
        produce(broker, topic, [json.dumps({"id": number})], partition=number % partitions)


def check_rows(
    broker: BrokerProcess, topic: str, options: Mapping[str, str], partitions: int = 2
) -> None:
    put(broker, topic, partitions)
    ended = run(broker, topic, options, "--once")
    assert f"wrote {COUNT} offsets" in ended.stdout, ended
    # The session has two cores, and a worker without a partition would only make the other wait.
    assert f"with {counted(partitions, 'worker')}" in ended.stderr
    rows = load_catalog("lake", **options).load_table("db.t").scan().to_arrow()
    assert sorted(rows.column("id").to_pylist()) == list(range(COUNT))


@pytest.mark.test_all
def test_rows_are_written_to_a_sql_catalog_with_files_in_an_s3_compatible_store(
    sink_broker: BrokerProcess, spark: SparkSession, topic: str, tmp_path: Path, s3: S3Server
) -> None:
    options = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"s3://{BUCKET}/warehouse",
        **s3.file_options,
    }
    check_rows(sink_broker, topic, options)
    paths = load_catalog("lake", **options).load_table("db.t").inspect.files()["file_path"]
    assert all(path.startswith(f"s3://{BUCKET}/") for path in paths.to_pylist())


def test_a_topic_with_one_partition_is_written_by_one_worker(
    sink_broker: BrokerProcess, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    options = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": str(tmp_path)}
    check_rows(sink_broker, topic, options, partitions=1)


@pytest.mark.test_all
def test_rows_are_written_through_a_rest_catalog(
    sink_broker: BrokerProcess, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    with RestCatalog(tmp_path) as rest:
        check_rows(sink_broker, topic, {"type": "rest", "uri": rest.url})
        assert list(rest.warehouse.rglob("*.parquet"))


@pytest.mark.test_all
def test_rows_are_written_through_a_hive_metastore(
    sink_broker: BrokerProcess, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    with HiveMetastore(tmp_path) as hive:
        check_rows(sink_broker, topic, hive.options)


def test_a_new_catalog_is_opened_by_many_at_once(tmp_path: Path) -> None:
    for number in range(20):
        directory = tmp_path / str(number)
        directory.mkdir()
        with ThreadPoolExecutor(8) as pool:
            opened = pool.map(open_catalog, ["lake"] * 8, [local_catalog(str(directory))] * 8)
            assert [one.list_namespaces() for one in opened] == [[]] * 8


@pytest.mark.parametrize("kind", ["sql", pytest.param("rest", marks=pytest.mark.test_all)])
def test_tables_and_their_namespaces_are_made_by_many_at_once(tmp_path: Path, kind: str) -> None:
    """Whoever comes second takes what is there."""
    given = SinkTables({}, "", None, True, True, (), (), {}, False, None)
    with ExitStack() as stack:
        options = local_catalog(str(tmp_path))
        if kind == "rest":
            rest = stack.enter_context(RestCatalog(tmp_path))
            options = {"type": "rest", "uri": rest.url}
        pool = stack.enter_context(ThreadPoolExecutor(4))
        catalogs = [open_catalog("lake", options) for _ in range(4)]
        for number in range(10):
            make = partial(made, name=f"db{number}.t", rows=[{"id": 1}], tables=given)
            tables = [one for one in pool.map(make, catalogs) if one is not None]
            assert len(tables) == 4
            assert len({one.metadata.table_uuid for one in tables}) == 1


def test_no_reader_finds_a_part_of_the_metadata_in_a_directory(tmp_path: Path) -> None:
    """ClickHouse takes the newest metadata.json that is there, whatever the catalog says."""
    files = open_catalog("local", local_catalog(str(tmp_path)))._load_file_io()
    folder = tmp_path / "db" / "t" / "metadata"
    location = f"file://{folder}/00001-one.metadata.json"
    with files.new_output(location).create() as written:
        written.write(b"{")
        assert not folder.exists()
        written.write(b"}")
    assert [one.read_bytes() for one in folder.iterdir()] == [b"{}"]
    assert files.new_input(location).open().read() == b"{}"
    with pytest.raises(FileExistsError):
        files.new_output(location).create()

    def fail(overwrite: bool) -> None:
        with files.new_output(location).create(overwrite) as written:
            written.write(b"[")
            raise ConnectionError

    with pytest.raises(ConnectionError):
        fail(overwrite=True)
    assert [one.read_bytes() for one in folder.iterdir()] == [b"{}"]
    with files.new_output(location).create(overwrite=True) as written:
        written.write(b"[]")
    assert [one.read_bytes() for one in folder.iterdir()] == [b"[]"]


@pytest.mark.parametrize("kind", ["rest", pytest.param("hive", marks=pytest.mark.test_all)])
def test_a_catalog_that_is_away_is_named_in_the_error(
    sink_broker: BrokerProcess, topic: str, kind: str
) -> None:
    create_topic(sink_broker.kafka, topic, 1)
    uri = f"{'thrift' if kind == 'hive' else 'http'}://127.0.0.1:{free_port()}"
    ended = run(sink_broker, topic, {"type": kind, "uri": uri}, "--dry-run")
    assert ended.code == 1, ended
    assert "the catalog lake cannot be used: " in ended.stderr
    assert uri.rpartition(":")[2] in ended.stderr
