"""Rows of lag_history are stored once, on an engine without a broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pyarrow as pa
import pytest

from brokerhouse.spark_jobs import lag_writer
from brokerhouse.spark_jobs.lag_writer import SPAN_S, LagWriter
from brokerhouse.spark_jobs.sql_client import SqlServers, SqlUnavailable
from tests.support.engine_process import EngineProcess

MINUTE = 60
START = 1_800_000_000 // SPAN_S * SPAN_S
EMPTY = f"lag-{MINUTE}-{START}-0-{0:016x}"
"""How the token of a span without rows begins."""
TOPIC_ID = "00000000-0000-0000-0000-000000000001"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    process = EngineProcess(tmp_path_factory.mktemp("engine") / "data")
    process.start()
    process.sql("CREATE DATABASE IF NOT EXISTS brokerhouse")
    yield process
    process.stop()


@pytest.fixture
def servers(engine: EngineProcess) -> SqlServers:
    engine.sql("DROP TABLE IF EXISTS brokerhouse.lag_history SYNC")
    engine.sql(
        "CREATE TABLE brokerhouse.lag_history (window_start DateTime('UTC'), window_seconds UInt32,"
        " group_id String, topic_id UUID, partition Int32, lag Int64) ENGINE = ReplacingMergeTree"
        " ORDER BY (group_id, topic_id, partition, window_seconds, window_start)"
        " SETTINGS non_replicated_deduplication_window = 100"
    )
    engine.sql("SYSTEM STOP MERGES brokerhouse.lag_history")
    return SqlServers.parse(engine.http)


def rows(windows: range, group: str = "g", seconds: int = MINUTE) -> pa.Table:
    starts = [START + number * MINUTE for number in windows]
    count = len(starts)
    return pa.table(
        {
            "window_start": pa.array(starts, pa.int64()),
            "window_seconds": pa.array([seconds] * count, pa.int32()),
            "group_id": [group] * count,
            "topic_id": [TOPIC_ID] * count,
            "partition": pa.array([0] * count, pa.int32()),
            "lag": pa.array(list(windows), pa.int64()),
        }
    )


def stored(servers: SqlServers) -> list[list[object]]:
    """Without FINAL, so that rows stored twice are seen."""
    return servers.rows(
        "SELECT group_id, lag FROM lag_history WHERE window_seconds = 60 ORDER BY group_id, lag"
    )


class OvertakenServers(SqlServers):
    """Before the first insert reaches the table, another writer stores its rows."""

    other: ClassVar[pa.Table | None] = None

    def insert(self, table: str, rows: pa.Table, token: str | None) -> int:
        if (overtaking := OvertakenServers.other) is not None:
            OvertakenServers.other = None
            LagWriter(SqlServers(self.urls, database=self.database), MINUTE, False).store(
                overtaking
            )
        return super().insert(table, rows, token)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (rows(range(5)), rows(range(5))),
        (rows(range(5)), rows(range(7))),
        (rows(range(7)), rows(range(5))),
        (rows(range(5), "a"), rows(range(5), "b")),
        (rows(range(3)), rows(range(3, 6))),
    ],
    ids=["the same", "more", "fewer", "other groups", "later windows"],
)
def test_a_writer_that_was_overtaken_stores_only_what_is_missing(
    servers: SqlServers, monkeypatch: pytest.MonkeyPatch, first: pa.Table, second: pa.Table
) -> None:
    monkeypatch.setattr(OvertakenServers, "other", first)
    overtaken = OvertakenServers(servers.urls, database=servers.database)
    LagWriter(overtaken, MINUTE, False).store(second)
    both = pa.concat_tables([first, second]).select(["group_id", "lag"]).to_pylist()
    assert stored(servers) == [list(one) for one in sorted({tuple(row.values()) for row in both})]


def test_rows_whose_token_is_used_up_are_stored(servers: SqlServers) -> None:
    """As after a server that was killed when it had noted the token and not the rows."""
    for number in range(2):
        servers.insert(
            "lag_history",
            lag_writer._as_stored(rows(range(number, number + 1), seconds=7)),
            f"{EMPTY}-{number}",
        )
    for _ in range(2):
        LagWriter(servers, MINUTE, False).store(rows(range(3)))
    assert stored(servers) == [["g", 0], ["g", 1], ["g", 2]]


def test_replicas_that_do_not_show_the_rows_are_an_error_and_no_second_insert(
    servers: SqlServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lag_writer, "MAX_TRIES", 3)
    monkeypatch.setattr(lag_writer, "_FIRST_PAUSE_S", 0.01)
    servers.insert("lag_history", lag_writer._as_stored(rows(range(1), seconds=7)), f"{EMPTY}-0")
    with pytest.raises(SqlUnavailable, match="rows of lag_history that were inserted are not th"):
        LagWriter(servers, MINUTE, True).store(rows(range(3)))
    assert stored(servers) == []


def test_more_rows_than_a_block_has_are_several_inserts(
    servers: SqlServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lag_writer, "BLOCK_ROWS", 2)
    LagWriter(servers, MINUTE, False).store(rows(range(5)))
    assert stored(servers) == [["g", number] for number in range(5)]


def test_a_table_that_is_not_replicated_is_recognised(servers: SqlServers) -> None:
    assert not LagWriter.of(servers, MINUTE).replicated
