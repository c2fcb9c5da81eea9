"""Each query of the dashboard runs, with Grafana's variables replaced, and shows the right data.

Grafana's ClickHouse plugin (grafana-clickhouse-datasource) takes the SQL of a panel from `rawSql`,
and its purpose from `format` and `queryType`. drivers/test_go_driver.py tests its driver.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.lagging_groups import COMMITTED, RECORDS, lagging_groups
from tests.support.broker_process import BrokerProcess
from tests.support.sql_client import PASSWORD, USER, ask

PATH = Path(__file__).resolve().parents[2] / "docs/grafana/brokerhouse.json"
DASHBOARD: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
PANELS: dict[str, dict[str, Any]] = {panel["title"]: panel for panel in DASHBOARD["panels"]}
PLUGIN = "grafana-clickhouse-datasource"
TIME_SERIES, TABLE = (0, "timeseries"), (1, "table")  # the plugin's `format` and `queryType`
VARIABLES = {
    variable["name"]: variable["query"]["rawSql"]
    for variable in DASHBOARD["templating"]["list"]
    if variable["type"] == "query"
}
HOUR_S = 3600

Row = dict[str, Any]


class Rows(list[Row]):
    """A result, and the types of its columns."""

    types: dict[str, str]


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


def send(broker: BrokerProcess, query: str) -> Rows:
    answer = ask(
        broker,
        f"{query} FORMAT JSON",
        headers={"X-ClickHouse-User": USER, "X-ClickHouse-Key": PASSWORD},
        output_format_json_quote_64bit_integers=0,
        date_time_output_format="unix_timestamp",
    )
    assert answer.status == 200, answer.text
    document = json.loads(answer.body)
    rows = Rows(document["data"])
    rows.types = {column["name"]: column["type"] for column in document["meta"]}
    return rows


def values(broker: BrokerProcess, variable: str) -> list[str]:
    return [next(iter(row.values())) for row in send(broker, VARIABLES[variable])]


def show(broker: BrokerProcess, title: str, interval_ms: int = 15_000) -> Rows:
    """What a panel shows with `All` chosen in every variable, over the last hour."""
    (target,) = PANELS[title]["targets"]
    query: str = target["rawSql"]
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


def series(rows: Rows, name: str, value: str) -> dict[str, list[tuple[int, float]]]:
    """The lines of a graph, made of rows of time, name and value as the plugin's backend does it:
    a time, one text and one number, in the order of time.
    """
    assert list(rows.types) == ["time", name, value]
    time_type, name_type, value_type = rows.types.values()
    assert time_type.startswith("DateTime")
    assert name_type in ("String", "LowCardinality(String)")
    assert value_type in ("Int64", "UInt64", "Float64")
    times = [int(row["time"]) for row in rows]
    assert times == sorted(times)
    assert all(time.time() - HOUR_S - 60 <= point <= time.time() + 60 for point in times)
    points = [(row[name], point) for row, point in zip(rows, times, strict=True)]
    assert len(points) == len(set(points)), "one value for each time and name"
    lines: dict[str, list[tuple[int, float]]] = {}
    for row, point in zip(rows, times, strict=True):
        lines.setdefault(row[name], []).append((point, row[value]))
    return lines


def test_every_panel_asks_the_data_source_that_is_chosen() -> None:
    for panel in DASHBOARD["panels"]:
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert all(source["uid"] == "${datasource}" for source in sources)
        assert {source["type"] for source in sources} == {PLUGIN}
    chosen, *others = DASHBOARD["templating"]["list"]
    assert (chosen["name"], chosen["type"], chosen["query"]) == ("datasource", "datasource", PLUGIN)
    assert all(other["datasource"] == {"type": PLUGIN, "uid": "${datasource}"} for other in others)


@pytest.mark.parametrize("title", PANELS)
def test_every_query_has_the_format_of_the_plugins_sql_editor(title: str) -> None:
    panel = PANELS[title]
    (target,) = panel["targets"]
    assert target["editorType"] == "sql"
    assert target["pluginVersion"] == "4.0.0", "the first with this model of a query"
    assert (target["format"], target["queryType"]) == (
        TIME_SERIES if panel["type"] == "timeseries" else TABLE
    )


def test_lines_are_named_by_a_column_of_their_query() -> None:
    for panel in DASHBOARD["panels"]:
        if panel["type"] == "timeseries":
            name = panel["fieldConfig"]["defaults"]["displayName"]
            label = name.removeprefix("${__field.labels.").removesuffix("}")
            assert f"SELECT t AS time, {label}, " in panel["targets"][0]["rawSql"]


def test_panels_do_not_overlap_and_have_unique_names() -> None:
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
def test_lag_over_time_ends_with_the_current_lag(broker: BrokerProcess, interval_ms: int) -> None:
    rows = show(broker, "Lag, records", interval_ms)
    lines = series(rows, "group_id", "records")
    if interval_ms < 60_000:
        expected = {group: RECORDS - offset for group, offset in COMMITTED.items()}
        assert {group: points[-1][1] for group, points in lines.items()} == expected
        assert len({points[-1][0] for points in lines.values()}) == 1
    else:
        points = {point for line in lines.values() for point, _ in line}
        assert {(point - min(points)) * 1000 % interval_ms for point in points} <= {0}


def test_groups_come_in_the_order_of_their_lag_in_seconds(broker: BrokerProcess) -> None:
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
def test_rates_add_up_to_the_written_records_and_bytes(
    broker: BrokerProcess, title: str, total: int
) -> None:
    rows = show(broker, title)
    lines = series(rows, "topic", "per_second")
    assert set(lines) == {"orders"}
    assert sum(rate for _, rate in lines["orders"]) * 60 == pytest.approx(total)


def test_the_partitions_furthest_behind_come_first(broker: BrokerProcess) -> None:
    rows = show(broker, "Partitions furthest behind")
    assert [(row["group"], row["topic"], row["lag, records"]) for row in rows] == [
        ("elsewhere", "orders", 95),
        ("gone", "orders", 90),
        ("hanging", "orders", 40),
    ]


def test_topics_show_their_partitions_records_and_bytes(broker: BrokerProcess) -> None:
    rows = show(broker, "Topics")
    assert [(row["topic"], row["partitions"], row["records"], row["bytes"]) for row in rows] == [
        ("orders", 1, RECORDS, 3 * RECORDS),
        ("other", 1, 0, 0),
    ]
