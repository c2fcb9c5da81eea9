"""Each query of the dashboard runs, as Grafana's plugin sends it, and shows what is there.

Grafana replaces its own variables in the text; the plugin adds `FORMAT JSON` and POSTs it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker_process import BrokerProcess
from tests.clients.lagging_groups import COMMITTED, RECORDS, lagging_groups
from tests.clients.sql_client import PASSWORD, USER, ask

PATH = Path(__file__).resolve().parents[2] / "docs/grafana/brokerhouse.json"
DASHBOARD: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
PANELS: dict[str, dict[str, Any]] = {panel["title"]: panel for panel in DASHBOARD["panels"]}
VARIABLES = {
    variable["name"]: variable["query"]
    for variable in DASHBOARD["templating"]["list"]
    if variable["type"] == "query"
}
HOUR_S = 3600

Row = dict[str, Any]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {
        "group_initial_rebalance_delay_ms": "0",
        "sql_user": USER,
        "sql_password": PASSWORD,
        "sql_anonymous": "never",
    }
    process = BrokerProcess(tmp_path_factory.mktemp("grafana") / "data", settings)
    process.start()
    with lagging_groups(process):
        yield process
    process.stop()


def send(broker: BrokerProcess, query: str) -> list[Row]:
    answer = ask(
        broker,
        f"{query} FORMAT JSON",
        headers={"X-ClickHouse-User": USER, "X-ClickHouse-Key": PASSWORD},
        output_format_json_quote_64bit_integers=0,
    )
    assert answer.status == 200, answer.text
    rows: list[Row] = json.loads(answer.body)["data"]
    return rows


def values(broker: BrokerProcess, variable: str) -> list[str]:
    return [next(iter(row.values())) for row in send(broker, VARIABLES[variable])]


def show(broker: BrokerProcess, title: str, interval_ms: int = 15_000) -> list[Row]:
    """What a panel shows with `All` chosen in every variable, over the last hour."""
    (target,) = PANELS[title]["targets"]
    query: str = target["query"]
    now = int(time.time())
    for name in VARIABLES:
        listed = ",".join("'" + value.replace("'", "\\'") + "'" for value in values(broker, name))
        query = query.replace(f"${{{name}:singlequote}}", listed)
    query = (
        query.replace("${__from:date:seconds}", str(now - HOUR_S))
        .replace("${__to:date:seconds}", str(now + 60))
        .replace("$__interval_ms", str(interval_ms))
    )
    assert "$" not in query
    return send(broker, query)


def last_point(rows: list[Row], column: str) -> dict[str, float]:
    """Times are in milliseconds, in order; a point has a value for each name."""
    times = [row["t"] for row in rows]
    assert times == sorted(set(times))
    assert all(time.time() - HOUR_S - 60 <= t / 1000 <= time.time() + 60 for t in times)
    return dict(rows[-1][column])


def test_every_panel_asks_the_data_source_that_is_chosen() -> None:
    for panel in DASHBOARD["panels"]:
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert all(source["uid"] == "${datasource}" for source in sources)
        assert {source["type"] for source in sources} == {"vertamedia-clickhouse-datasource"}


def test_panels_do_not_overlap_and_have_names_of_their_own() -> None:
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in DASHBOARD["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert len(PANELS) == len({panel["id"] for panel in DASHBOARD["panels"]})


def test_variables_list_groups_and_topics(broker: BrokerProcess) -> None:
    assert sorted(values(broker, "group")) == sorted(COMMITTED)
    assert values(broker, "topic") == ["orders", "other"]


@pytest.mark.parametrize("interval_ms", [15_000, 300_000])
def test_lag_over_time_ends_with_the_lag_there_is(broker: BrokerProcess, interval_ms: int) -> None:
    rows = show(broker, "Lag, records", interval_ms)
    if interval_ms < 60_000:
        expected = {group: RECORDS - offset for group, offset in COMMITTED.items()}
        assert last_point(rows, "lag") == expected
    else:
        assert all(row["t"] % 1000 == 0 for row in rows)


def test_lag_in_seconds_names_the_oldest_first(broker: BrokerProcess) -> None:
    rows = show(broker, "Lag, seconds")
    assert {row["group_id"] for row in rows} == set(COMMITTED)
    assert rows[-1] == {"group_id": "done", "seconds": 0}
    assert [row["seconds"] for row in rows] == sorted((r["seconds"] for r in rows), reverse=True)


def test_groups_show_their_members(broker: BrokerProcess) -> None:
    assert show(broker, "Members") == [
        {"group_id": "elsewhere", "members": 1},
        {"group_id": "hanging", "members": 1},
        {"group_id": "done", "members": 0},
        {"group_id": "gone", "members": 0},
    ]
    rows = show(broker, "Groups")
    assert [(row["group"], row["state"], row["lag, records"]) for row in rows] == [
        ("elsewhere", "Stable", 95),
        ("gone", "Empty", 90),
        ("hanging", "Stable", 40),
        ("done", "Empty", 0),
    ]


@pytest.mark.parametrize(
    ("title", "total"), [("Records per second", RECORDS), ("Bytes per second", 3 * RECORDS)]
)
def test_rates_add_up_to_what_came_in(broker: BrokerProcess, title: str, total: int) -> None:
    rows = show(broker, title)
    last_point(rows, "rates")
    rates = [(topic, rate) for row in rows for topic, rate in row["rates"]]
    assert {topic for topic, _ in rates} == {"orders"}
    assert sum(rate for _, rate in rates) * 60 == pytest.approx(total)


def test_partitions_show_that_are_furthest_behind(broker: BrokerProcess) -> None:
    rows = show(broker, "Partitions furthest behind")
    assert [(row["group"], row["topic"], row["lag, records"]) for row in rows] == [
        ("elsewhere", "orders", 95),
        ("gone", "orders", 90),
        ("hanging", "orders", 40),
    ]


def test_topics_show_what_is_in_them(broker: BrokerProcess) -> None:
    rows = show(broker, "Topics")
    assert [(row["topic"], row["partitions"], row["records"], row["bytes"]) for row in rows] == [
        ("orders", 1, RECORDS, 3 * RECORDS),
        ("other", 1, 0, 0),
    ]
