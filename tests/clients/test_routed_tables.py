"""Several tables from one topic: named by a header, a field or a key, and made meanwhile."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping

import confluent_kafka
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.committed import create_topic
from tests.support.typed_tables import SETTINGS, TypedTables
from tests.support.waiting import until


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TypedTables]:
    broker = BrokerProcess(tmp_path_factory.mktemp("routed") / "data", SETTINGS)
    broker.start()
    yield TypedTables(broker)
    broker.stop()


def produce(
    tables: TypedTables,
    topic: str,
    value: Mapping[str, object] | str,
    *,
    key: str | None = None,
    headers: Mapping[str, str | None] | None = None,
) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": tables.broker.kafka})
    text = value if isinstance(value, str) else json.dumps(value)
    producer.produce(topic, text.encode(), key, 0, headers=list((headers or {}).items()))
    assert producer.flush(60) == 0


def await_table(tables: TypedTables, table: str, rows: int) -> None:
    until(
        lambda: tables.sql(
            "SELECT 1 FROM system.tables"
            f" WHERE concat(database, '.', name) = '{table}' AND total_rows >= {rows}"
        ),
        f"{table} has {rows} rows",
    )


def dead_letters(tables: TypedTables, feed: str) -> list[tuple[int, str]]:
    rows = tables.sql(
        f"SELECT offset, error FROM brokerhouse.dead_letters WHERE feed = '{feed}' ORDER BY offset"
    )
    return [(row["offset"], row["error"]) for row in rows]


def test_a_header_names_the_table_and_new_tables_are_made_while_the_feed_runs(
    tables: TypedTables,
) -> None:
    create_topic(tables.broker.kafka, "events", 1)
    produce(tables, "events", {"id": 1, "total": 9.5}, headers={"kind": "orders"})
    tables("create", "shop.*", "--topic", "events", "--route", "header=kind")
    await_table(tables, "shop.orders", 1)

    produce(
        tables, "events", {"user": {"name": "a"}, "day": "2026-11-25"}, headers={"kind": "visits"}
    )
    produce(tables, "events", {"id": 2}, headers={"kind": "orders"})
    produce(tables, "events", {"id": 3})
    produce(tables, "events", {"id": 4}, headers={"kind": "no table; DROP"})
    produce(tables, "events", "no JSON", headers={"kind": "orders"})
    produce(tables, "events", "no JSON", headers={"kind": "unknown"})
    for feed in ("shop.*", "shop.orders", "shop.visits"):
        tables.await_fed(feed, 7)

    assert tables.sql("SELECT id, total FROM shop.orders ORDER BY id") == [
        {"id": 1, "total": 9.5},
        {"id": 2, "total": None},
    ]
    assert tables.sql("SELECT user.name.:String AS name, day FROM shop.visits") == [
        {"name": "a", "day": "2026-11-25"}
    ]
    assert tables.sql(
        "SELECT type FROM system.columns WHERE table = 'visits' AND name = 'day'"
    ) == [{"type": "Nullable(String)"}]
    assert dead_letters(tables, "shop.*") == [
        (3, "it does not say which table it is for"),
        (4, "no table; DROP cannot be a table"),
        (6, "there is no table unknown, and this record does not tell its columns"),
    ]
    assert dead_letters(tables, "shop.orders") == [(5, "not valid JSON at byte 0")]

    # Once its columns are known, the table has a feed, which knows the record from before as well.
    produce(tables, "events", {"x": 1}, headers={"kind": "unknown"})
    await_table(tables, "shop.unknown", 1)
    tables.await_fed("shop.unknown", 8)
    assert dead_letters(tables, "shop.unknown") == [(6, "not valid JSON at byte 0")]
    replayed = tables("replay", "shop.*")
    assert replayed == "replayed shop.*: 1 record with a table now, 2 dead letters left\n"
    assert len(dead_letters(tables, "shop.*")) == 2


@pytest.mark.test_all
def test_a_dropped_table_of_a_router_stays_dropped(tables: TypedTables) -> None:
    create_topic(tables.broker.kafka, "dropped", 1)
    tables("create", "gone.*", "--topic", "dropped", "--route", "key=:")
    produce(tables, "dropped", {"id": 1}, key="one:1")
    await_table(tables, "gone.one", 1)

    tables("drop", "gone.one", "--with-table")
    produce(tables, "dropped", {"id": 2}, key="one:2")
    produce(tables, "dropped", {"id": 3}, key="two:3")
    produce(tables, "dropped", {"id": 4}, key="no separator")
    tables.await_fed("gone.*", 4)

    await_table(tables, "gone.two", 1)
    names = [row["name"] for row in json.loads(tables("list", "--json"))]
    assert [name for name in names if name.startswith("gone.")] == ["gone.*", "gone.two"]
    assert dead_letters(tables, "gone.*") == [(3, "it does not say which table it is for")]


def test_new_tables_are_like_another_and_tables_that_exist_are_filled(tables: TypedTables) -> None:
    create_topic(tables.broker.kafka, "typed", 1)
    tables.sql("CREATE DATABASE model")
    tables.sql(
        "CREATE TABLE model.row (id UInt8, name LowCardinality(String), _offset Int64)"
        " ENGINE = ReplacingMergeTree ORDER BY (name, id) PARTITION BY id % 2"
    )
    tables.sql("CREATE DATABASE made")
    tables.sql("CREATE TABLE made.own (id UInt64) ENGINE = MergeTree ORDER BY id")
    tables(
        "create", "made.*", "--topic", "typed", "--route", "field=to.table", "--like", "model.row"
    )
    produce(tables, "typed", {"to": {"table": "some"}, "id": 1, "name": "a"})
    produce(tables, "typed", {"to": {"table": "own"}, "id": 2})
    produce(tables, "typed", {"to": {"table": "some"}, "id": 300, "name": "b"})
    produce(tables, "typed", {"to": {"table": ["x"]}, "id": 3})

    await_table(tables, "made.some", 1)
    await_table(tables, "made.own", 1)
    for feed in ("made.*", "made.some"):
        tables.await_fed(feed, 4)
    assert tables.sql("SELECT * FROM made.some") == [{"id": 1, "name": "a", "_offset": 0}]
    assert dead_letters(tables, "made.some") == [(2, "id: 300 does not fit UInt8")]
    assert dead_letters(tables, "made.*") == [(3, '["x"] cannot be a table')]
    [made] = tables.sql(
        "SELECT engine, sorting_key, partition_key FROM system.tables"
        " WHERE database = 'made' AND name = 'some'"
    )
    assert made == {
        "engine": "ReplacingMergeTree",
        "sorting_key": "name, id",
        "partition_key": "id % 2",
    }


@pytest.mark.test_all
def test_a_router_with_offset_latest_leaves_out_older_records(tables: TypedTables) -> None:
    create_topic(tables.broker.kafka, "later", 1)
    produce(tables, "later", {"id": 1}, headers={"kind": "late"})
    tables("create", "end.*", "--topic", "later", "--route", "header=kind", "--offset", "latest")
    tables.await_started("end.*")
    produce(tables, "later", {"id": 2}, headers={"kind": "late"})

    await_table(tables, "end.late", 1)
    assert tables.sql("SELECT * FROM end.late") == [{"id": 2}]


def test_feeds_with_a_route_value_take_only_their_records(tables: TypedTables) -> None:
    create_topic(tables.broker.kafka, "shared", 1)
    for table, value in (("own.a", "it's a"), ("own.b", "b\\")):
        tables(
            *shlex.split("create --topic shared --columns 'id UInt8' --route header=to"),
            table,
            "--route-value",
            value,
        )
    produce(tables, "shared", {"id": 1}, headers={"to": "it's a"})
    produce(tables, "shared", {"id": 2}, headers={"to": "b\\"})
    produce(tables, "shared", {"id": 3}, headers={"to": None})
    produce(tables, "shared", {"id": 4})
    for table in ("own.a", "own.b"):
        tables.await_fed(table, 4)

    assert tables.sql("SELECT id FROM own.a") == [{"id": 1}]
    assert tables.sql("SELECT id FROM own.b") == [{"id": 2}]
    assert dead_letters(tables, "own.a") == dead_letters(tables, "own.b") == []


def test_a_router_leaves_a_table_of_another_feed_alone(tables: TypedTables) -> None:
    create_topic(tables.broker.kafka, "mine", 1)
    create_topic(tables.broker.kafka, "theirs", 1)
    tables("create", "both.orders", "--topic", "mine", "--columns", "id UInt8")
    tables("create", "both.*", "--topic", "theirs", "--route", "header=kind")
    produce(tables, "theirs", {"id": 1}, headers={"kind": "orders"})
    tables.await_fed("both.*", 1)

    assert dead_letters(tables, "both.*") == [(0, "orders is filled by another feed")]
    assert tables.sql("SELECT * FROM both.orders") == []


def test_add_columns_adds_a_column_for_each_new_field(tables: TypedTables) -> None:
    create_topic(tables.broker.kafka, "growing", 1)
    tables(
        *shlex.split(
            "create grown.t --topic growing --columns 'id UInt8, city String'"
            " --path city=address.city --add-columns"
        ),
    )
    produce(tables, "growing", {"id": 1, "address": {"city": "Ulm"}})
    produce(tables, "growing", {"id": 2, "count": 7, "ok": True, "at": "2026-11-25", "_key": "no"})
    produce(tables, "growing", {"id": 3, "count": 8, "deep": {"a": {"b": 1}}, "list": [1, 2]})
    tables.await_fed("grown.t", 3)
    produce(tables, "growing", '[{"id": 4, "a`\\\\b": "odd"}, {"id": 5, "count": "x"}]')
    tables.await_fed("grown.t", 4)

    columns = tables.sql(
        "SELECT name, type FROM system.columns WHERE database = 'grown' AND table = 't'"
        " AND name NOT IN ('id', 'city', '_block') ORDER BY name"
    )
    assert {one["name"]: one["type"] for one in columns} == {
        "count": "Nullable(Int64)",
        "ok": "Nullable(Bool)",
        "at": "Nullable(String)",
        "deep": "JSON",
        "list": "Array(Nullable(Int64))",
        "a`\\b": "Nullable(String)",
    }
    rows = tables.sql(
        "SELECT id, city, count, ok, at, toString(deep) AS deep, list FROM grown.t ORDER BY id"
    )
    assert rows == [
        {"id": 1, "city": "Ulm", "count": None, "ok": None, "at": None, "deep": "{}", "list": []},
        {"id": 2, "city": "", "count": 7, "ok": True, "at": "2026-11-25", "deep": "{}", "list": []},
        {
            "id": 3,
            "city": "",
            "count": 8,
            "ok": None,
            "at": None,
            "deep": '{"a":{"b":1}}',
            "list": [1, 2],
        },
    ]
    assert dead_letters(tables, "grown.t") == [(3, "count: x does not fit Nullable(Int64)")]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bad.*", "--topic", "events"], "bad.* needs --route"),
        (["bad.*", "--topic", "events", "--route", "body=x"], "header=NAME"),
        (["bad.*", "--topic", "events", "--route", "field=a..b"], "not the path of a field"),
        (
            ["bad.*", "--topic", "events", "--route", "key=:", "--columns", "id UInt8"],
            "creates its tables itself",
        ),
        (
            ["bad.*", "--topic", "events", "--route", "key=:", "--input-format", "csv"],
            "give --like",
        ),
        (
            ["bad.*", "--topic", "events", "--route", "field=x", "--input-format", "avro"],
            "reads JSON",
        ),
        (["bad.t", "--topic", "events", "--route", "key=:"], "go together"),
        (["bad.t", "--topic", "events", "--like", "model.row"], "--like is for DATABASE.*"),
        (
            ["bad.t", "--topic", "events", "--input-format", "csv", "--add-columns"],
            "needs named fields",
        ),
        (["bad.*", "--topic", "events", "--route", "key=:", "--like", "a.*"], "not one table"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(
    tables: TypedTables, arguments: list[str], said: str
) -> None:
    assert said in tables.usage_error("create", *arguments)


def test_a_model_that_does_not_exist_is_refused(tables: TypedTables) -> None:
    create_topic(tables.broker.kafka, "modelless", 1)
    arguments = ("--topic", "modelless", "--route", "key=:", "--like", "no.where")
    assert "there is no table no.where" in tables.refused("create", "bad.*", *arguments)


def test_a_table_is_filled_from_an_offset_on(tables: TypedTables) -> None:
    create_topic(tables.broker.kafka, "part", 1)
    for number in range(5):
        produce(tables, "part", {"id": number})
    for name, start in (("part.two", "3"), ("part.none", "999")):
        tables("create", name, "--topic", "part", "--columns", "id UInt8", "--offset", start)
    tables.await_fed("part.two", 5)
    tables.await_started("part.none")
    produce(tables, "part", {"id": 9})
    tables.await_fed("part.none", 6)

    assert tables.sql("SELECT id FROM part.two ORDER BY id")[:2] == [{"id": 3}, {"id": 4}]
    assert tables.sql("SELECT id FROM part.none") == [{"id": 9}]
