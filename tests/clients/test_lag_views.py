"""Lag as people see it: with real consumers, over HTTP, by the statements of docs/lag.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer

from tests.clients.lagging_groups import COMMITTED, RECORDS, commit, lagging_groups
from tests.support.adapters import ConfluentKafka
from tests.support.broker_process import BrokerProcess
from tests.support.sql_client import ask
from tests.support.waiting import until

PAGE = Path(__file__).resolve().parents[2] / "docs/lag.md"
ALERT = re.compile(r"<!-- alert: (\w+) -->\n```sql\n(.*?)```\n", re.DOTALL)
ALERTS = dict(ALERT.findall(PAGE.read_text(encoding="utf-8")))
DEADLINE_S = 60.0
STUCK_S = 2

Row = dict[str, Any]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"group_initial_rebalance_delay_ms": "0"}
    process = BrokerProcess(tmp_path_factory.mktemp("lag") / "data", settings)
    process.start()
    with lagging_groups(process):
        yield process
    process.stop()


def alert(broker: BrokerProcess, name: str, **limits: int) -> list[Row]:
    return broker.sql(ALERTS[name], limits)


def test_each_group_is_behind_by_what_it_has_not_committed(broker: BrokerProcess) -> None:
    rows = broker.sql(
        "SELECT group_id, topic, partition, committed_offset, end_offset, lag FROM consumer_lag"
    )
    assert rows == [
        {
            "group_id": group,
            "topic": "orders",
            "partition": 0,
            "committed_offset": offset,
            "end_offset": RECORDS,
            "lag": RECORDS - offset,
        }
        for group, offset in sorted(COMMITTED.items())
    ]


def test_seconds_behind_are_the_age_of_the_record_that_comes_next(broker: BrokerProcess) -> None:
    rows = broker.sql(
        "SELECT group_id, lag_seconds, date_diff('millisecond', next.append_time, now64(3)) / 1000"
        " AS age FROM consumer_lag LEFT JOIN (SELECT topic, partition, offset, append_time"
        " FROM messages WHERE topic = 'orders') AS next ON next.topic = consumer_lag.topic"
        " AND next.partition = consumer_lag.partition AND next.offset = committed_offset"
    )
    seconds = {row["group_id"]: row["lag_seconds"] for row in rows}
    assert seconds.pop("done") == 0
    for row in rows:
        if row["group_id"] != "done":
            # Told from its place in the minute once that is over.
            assert seconds[row["group_id"]] == pytest.approx(row["age"], abs=60)
            assert seconds[row["group_id"]] > 0


def test_members_show_beside_what_they_read(broker: BrokerProcess) -> None:
    rows = broker.sql("SELECT group_id, assigned, client_id, client_host FROM consumer_lag")
    assert {row["group_id"]: row["assigned"] for row in rows} == {
        group: group == "hanging" for group in COMMITTED
    }
    assert [row["client_id"] for row in rows] == [f"{group}-client" for group in sorted(COMMITTED)]
    assert all("127.0.0.1" in row["client_host"] for row in rows)


def test_groups_show_with_their_members_and_partitions(broker: BrokerProcess) -> None:
    rows = broker.sql(
        "SELECT group_id, state, members, partitions, last_heartbeat IS NULL AS silent"
        " FROM group_state"
    )
    assert [list(row.values()) for row in rows] == [
        ["done", "Empty", 0, 0, 1],
        ["elsewhere", "Stable", 1, 1, 0],
        ["gone", "Empty", 0, 0, 1],
        ["hanging", "Stable", 1, 1, 0],
    ]


def test_an_acknowledged_record_is_lag_at_once(broker: BrokerProcess) -> None:
    ConfluentKafka().create_topic(broker.kafka, "counted", 1)
    with closing(KafkaProducer(bootstrap_servers=broker.kafka)) as producer:
        for n in range(1, 21):
            producer.send("counted", b"value").get(timeout=DEADLINE_S)
            stats = broker.sql("SELECT records, bytes FROM topic_stats WHERE topic = 'counted'")
            assert stats == [{"records": n, "bytes": 5 * n}]


def test_an_answered_commit_shows_at_once(broker: BrokerProcess) -> None:
    for offset in (20, 30, 25):
        commit(broker, "moving", offset)
        rows = broker.sql("SELECT committed_offset FROM consumer_lag WHERE group_id = 'moving'")
        assert rows == [{"committed_offset": offset}]
    commit(broker, "moving", RECORDS)


def test_the_page_has_these_alerts() -> None:
    assert set(ALERTS) == {"records", "seconds", "stuck", "empty", "unread"}


def test_an_alert_says_who_is_many_records_behind(broker: BrokerProcess) -> None:
    rows = alert(broker, "records", records=80)
    assert sorted((row["group_id"], row["records"]) for row in rows) == [
        ("elsewhere", 95),
        ("gone", 90),
    ]
    assert alert(broker, "records", records=95) == []


def test_an_alert_says_who_is_many_seconds_behind(broker: BrokerProcess) -> None:
    def found() -> set[str]:
        return {row["group_id"] for row in alert(broker, "seconds", seconds=1)}

    until(lambda: found() == {"elsewhere", "gone", "hanging"})
    assert alert(broker, "seconds", seconds=100_000) == []


def test_an_alert_says_who_does_not_move(broker: BrokerProcess) -> None:
    def found() -> set[str]:
        return {row["group_id"] for row in alert(broker, "stuck", seconds=STUCK_S)}

    commit(broker, "trying", 50)
    until(lambda: found() == {"elsewhere", "gone", "hanging", "trying"})
    commit(broker, "trying", 50)
    assert "trying" in found()
    offsets = count(51)

    def moves_on() -> bool:
        commit(broker, "trying", next(offsets))
        return "trying" not in found()  # if that is seen in time

    until(moves_on, "a group that commits further is not named")
    commit(broker, "trying", RECORDS)


def test_an_alert_says_for_whom_records_wait_and_nobody_comes(broker: BrokerProcess) -> None:
    assert [(row["group_id"], row["records"]) for row in alert(broker, "empty")] == [("gone", 90)]


def test_an_alert_says_which_partition_nobody_reads(broker: BrokerProcess) -> None:
    assert alert(broker, "unread") == [
        {"group_id": "elsewhere", "topic": "orders", "partition": 0, "lag": 95}
    ]


def test_the_summary_of_consumer_lag_counts_only_the_rows_it_read(broker: BrokerProcess) -> None:
    """Of the log no more than there is of it here: one granule of each table at most."""
    answer = ask(broker, "SELECT * FROM consumer_lag")
    assert answer.status == 200
    read = re.search(r'"read_rows":"(\d+)"', answer.headers["x-clickhouse-summary"])
    assert read is not None
    assert int(read[1]) < 10 * (RECORDS + len(COMMITTED) + 20)
