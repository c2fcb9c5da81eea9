"""The job `iceberg-view`: a table's rows and the log behind them, without a gap or a double."""

from __future__ import annotations

import json
import shlex
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from brokerhouse.spark_jobs import iceberg_view
from brokerhouse.sql.queries import query
from tests.support import command_line
from tests.support.broker_process import BrokerProcess
from tests.support.committed import create_topic
from tests.support.engine_process import EngineProcess
from tests.support.iceberg_changes import ChangingTable
from tests.support.iceberg_sink import IcebergSink, iceberg_sink, operations, produce
from tests.support.sql_client import PASSWORD, USER

VIEW = "mine.events"
LOOKS = 11
"""How often the view is read, at least, while the sink commits. It may take seconds each time."""


class FreeEngine(EngineProcess):
    """ClickHouse reads local Iceberg tables only below its working directory."""

    def command(self) -> Sequence[str]:
        return ["env", "--chdir=/", *super().command()]


@pytest.fixture(scope="module")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FreeEngine]:
    process = FreeEngine(tmp_path_factory.mktemp("view") / "clickhouse")
    process.start()
    yield process
    process.stop()


def make_view(sink: IcebergSink, clickhouse: FreeEngine, *more: str) -> Any:
    return command_line.run(
        *shlex.split(
            f"jobs run iceberg-view {VIEW} --catalog {sink.warehouse} --table db.t"
            f" --http {clickhouse.urls[0]} --log {sink.broker.http_url}"
        ),
        *more,
    )


def event(number: int, **more: Any) -> str:
    return json.dumps({"id": number, **more})


def test_the_view_has_the_table_and_the_log_behind_it(
    sink_broker: BrokerProcess, clickhouse: FreeEngine, tmp_path: Path, topic: str
) -> None:
    create_topic(sink_broker.kafka, topic, 2)
    with iceberg_sink(sink_broker, tmp_path, {topic: 2}, metadata_columns=True) as sink:
        first = {"text": "a", "n": {"x": 1.5}, "list": [1, 2]}
        produce(sink_broker, topic, [event(1, **first)], partition=0, key=b"k", headers={"h": b"v"})
        sink.start()
        sink.run_until_rows(1)
        ended = make_view(sink, clickhouse)
        assert ended.returncode == 0, ended.stderr
        sink.stop()
        produce(sink_broker, topic, [event(2, **first)], partition=0, key=b"k", headers={"h": b"v"})
        several = f"[{event(3, text=7)}, {event(4)}]"
        produce(sink_broker, topic, [several], partition=1)
        rows = clickhouse.sql(f"SELECT * FROM {VIEW} ORDER BY id")
        assert [row["id"] for row in rows] == [1, 2, 3, 4]
        said = ("text", "n", "list", "_topic", "_partition", "_key", "_headers")
        assert [rows[0][name] for name in said] == [rows[1][name] for name in said]
        assert [row["_offset"] for row in rows] == [0, 1, 0, 0]
        assert [row["text"] for row in rows] == ["a", "a", "7", None]
        sink.start()
        sink.run_until_rows(4)
        sink.stop()
        produce(sink_broker, topic, ["no JSON", "5", None], partition=1)
        assert clickhouse.sql(f"SELECT * EXCEPT n FROM {VIEW} ORDER BY id") == [
            {name: row[name] for name in row if name != "n"} for row in rows
        ]


@pytest.mark.test_all
def test_the_view_has_each_row_once_while_the_sink_commits(
    sink_broker: BrokerProcess, clickhouse: FreeEngine, tmp_path: Path, topic: str
) -> None:
    create_topic(sink_broker.kafka, topic, 2)
    with iceberg_sink(sink_broker, tmp_path, {topic: 2}, metadata_columns=True) as sink:
        produce(sink_broker, topic, [event(0)], partition=0)
        sink.start()
        sink.run_until_rows(1)
        assert make_view(sink, clickhouse).returncode == 0
        total = 1
        stop = threading.Event()
        found: list[tuple[int, dict[str, Any]]] = []

        def look() -> None:
            while not stop.is_set():
                before = total
                [row] = clickhouse.sql(f"SELECT count() AS rows, uniqExact(id) AS ids FROM {VIEW}")
                found.append((before, row))

        with ThreadPoolExecutor(1) as pool:
            watching = pool.submit(look)
            try:
                number = 0
                while (number < 40 or len(found) < LOOKS) and not watching.done():
                    values = [event(total + n) for n in range(50)]
                    produce(sink_broker, topic, values, partition=number % 2)
                    total += len(values)
                    for _ in range(5):
                        sink.workers[0].step()
                    number += 1
                sink.run_until_rows(total)
            finally:
                stop.set()
            watching.result()
    assert len(sink.summaries()) > 5
    assert len(found) >= LOOKS
    for before, row in found:
        assert row["rows"] == row["ids"] >= before, (before, row)


BEFORE = "(SELECT t.* FROM (SELECT (SELECT sleep(2))) AS slow CROSS JOIN {} AS t)"
AFTER = "(SELECT * FROM {} WHERE sleepEachRow(0.4) = 0)"


@pytest.mark.parametrize(("name", "slow"), [("before", BEFORE), ("after", AFTER)])
def test_a_commit_during_a_query_of_the_view_loses_and_doubles_no_row(
    clickhouse: FreeEngine, tmp_path: Path, name: str, slow: str
) -> None:
    """It takes two seconds here, before or after the snapshot for it is chosen."""
    for number in range(20):
        directory = tmp_path / str(number)
        directory.mkdir()
        if rows_are_whole_beside_a_commit(clickhouse, directory, slow, f"default.{name}_{number}"):
            return
    pytest.fail("no commit ended before the query did")


def rows_are_whole_beside_a_commit(
    clickhouse: FreeEngine, directory: Path, slow: str, log: str
) -> bool:
    """Whether the commit has ended before the query did."""
    changing = ChangingTable(directory)
    records = [{"id": n, "_topic": "t", "_partition": 0, "_offset": n} for n in range(10)]
    changing.commit(*records[:5])
    columns = ", ".join(f"{name} {kind}" for name, kind in iceberg_view.LOG_COLUMNS.items())
    clickhouse.sql(f"CREATE TABLE {log} ({columns}) ENGINE = MergeTree ORDER BY offset")
    clickhouse.sql(
        f"INSERT INTO {log} (topic, partition, offset, value) SELECT 't', 0, number,"
        " concat('{\"id\": ', toString(number), '}') FROM numbers(10)"
    )
    source = f"icebergLocal('{changing.location}')"
    made = query(
        "iceberg_view",
        view=f"{log}_view",
        table="SOURCE",
        log=log,
        topics="'t'",
        of_log="JSONExtract(row, 'id', 'Nullable(Int64)') AS id",
        of_table="id",
    )
    # Written in the same way twice, ClickHouse 26.9 takes it for the same snapshot in a view.
    other = f"icebergLocal('{changing.location}/')"
    clickhouse.sql(made.replace("SOURCE", slow.format(other), 1).replace("SOURCE", source))
    with ThreadPoolExecutor(1) as pool:
        counts = f"SELECT count() AS rows, uniqExact(id) AS ids FROM {log}_view"
        asked = pool.submit(clickhouse.sql, counts)
        time.sleep(0.5)
        changing.commit(*records[5:])
        is_beside = not asked.done()
        assert asked.result() == [{"rows": 10, "ids": 10}]
    return is_beside


def test_a_table_without_offsets_has_no_view(
    sink_broker: BrokerProcess, clickhouse: FreeEngine, tmp_path: Path, topic: str
) -> None:
    create_topic(sink_broker.kafka, topic, 1)
    with iceberg_sink(sink_broker, tmp_path, {topic: 1}) as sink:
        produce(sink_broker, topic, [event(1)])
        sink.start()
        sink.run_until_rows(1)
        ended = make_view(sink, clickhouse)
        assert ended.returncode == 1
        assert "db.t has no column _topic: make it with --metadata" in ended.stderr


def test_a_table_whose_rows_replace_others_has_no_view(
    sink_broker: BrokerProcess, clickhouse: FreeEngine, tmp_path: Path, topic: str
) -> None:
    create_topic(sink_broker.kafka, topic, 1)
    more = {"metadata_columns": True, "id_columns": ("id",), "operations": operations()}
    with iceberg_sink(sink_broker, tmp_path, {topic: 1}, **more) as sink:
        produce(sink_broker, topic, [event(1)])
        sink.start()
        sink.run_until_rows(1)
        ended = make_view(sink, clickhouse)
        assert ended.returncode == 1
        assert "rows of db.t replace others" in ended.stderr


def test_a_broker_itself_refuses_the_view(
    sink_broker: BrokerProcess, tmp_path: Path, topic: str
) -> None:
    """Without `iceberg_warehouse`; with it: test_iceberg_warehouse.py."""
    create_topic(sink_broker.kafka, topic, 1)
    with iceberg_sink(sink_broker, tmp_path, {topic: 1}, metadata_columns=True) as sink:
        produce(sink_broker, topic, [event(1)])
        sink.start()
        sink.run_until_rows(1)
        ended = command_line.run(
            *shlex.split(
                f"jobs run iceberg-view {VIEW} --catalog {sink.warehouse} --table db.t"
                f" --http {sink_broker.http_url} --user {USER}"
            ),
            "--password",
            PASSWORD,
        )
        assert ended.returncode == 1
        assert "Table function icebergLocal is not available here" in ended.stderr
