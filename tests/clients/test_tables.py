"""`brokerhouse tables`: feeds as a user makes, watches, changes and drops them."""

from __future__ import annotations

import json
import shlex
import signal
import zlib
from collections.abc import Iterator

import confluent_kafka
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.committed import create_topic
from tests.support.schemas import Schemas
from tests.support.typed_tables import SETTINGS, TypedTables
from tests.support.waiting import until


@pytest.fixture(scope="module")
def schemas() -> Iterator[Schemas]:
    """A schema registry."""
    made = Schemas()
    yield made
    made.close()


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory, schemas: Schemas) -> Iterator[TypedTables]:
    settings = {**SETTINGS, "schema_registry": schemas.url}
    broker = BrokerProcess(tmp_path_factory.mktemp("tables") / "data", settings)
    broker.start()
    yield TypedTables(broker)
    broker.stop()


def test_a_table_is_made_and_filled_and_its_feed_is_in_sql(tables: TypedTables) -> None:
    create_topic(tables.broker.kafka, "orders", 2)
    columns = "id UInt64, at DateTime64(3, 'UTC'), amount Decimal(18,2), _offset Int64"
    made = tables(
        *shlex.split("create shop.orders --topic orders --input-format json --columns"),
        columns,
        "--order-by",
        "id",
    )
    assert made == "created shop.orders, filled from orders\n"

    tables.produce("orders", '{"id": 1, "at": "2026-11-24T10:00:00Z", "amount": 9.99}', "bad")
    tables.produce("orders", '{"id": 2, "amount": "0.10"}', partition=1)
    tables.await_fed("shop.orders", 2)
    tables.await_fed("shop.orders", 1, partition=1)

    assert tables.sql("SELECT * FROM shop.orders ORDER BY id") == [
        {"id": 1, "at": "2026-11-24 10:00:00.000", "amount": 9.99, "_offset": 0},
        {"id": 2, "at": "1970-01-01 00:00:00.000", "amount": 0.1, "_offset": 0},
    ]
    [feed] = json.loads(tables("list", "--json"))
    assert feed == {
        "name": "shop.orders",
        "topics": ["orders"],
        "format": "json",
        "status": "running",
        "rows": 2,
        "dead_letters": 1,
        "lag": 0,
    }
    described = json.loads(tables("describe", "shop.orders", "--json"))
    assert [
        (one["partition"], one["next_offset"], one["rows"], one["dead_letters"])
        for one in described["partitions"]
    ] == [(0, 2, 1, 1), (1, 1, 1, 0)]
    assert described["last_dead_letters"] == [
        {"topic": "orders", "partition": 0, "offset": 1, "error": "not valid JSON at byte 0"}
    ]
    assert "shop.orders" in tables("list")
    assert "not valid JSON" in tables("describe", "shop.orders")
    until(
        lambda: (
            tables.sql(
                "SELECT partition, committed_offset, lag FROM brokerhouse.consumer_lag"
                " WHERE group_id = 'feed-shop.orders' ORDER BY partition"
            )
            == [
                {"partition": 0, "committed_offset": 2, "lag": 0},
                {"partition": 1, "committed_offset": 1, "lag": 0},
            ]
        ),
        "the feed is in consumer_lag",
    )


def test_columns_are_inferred_and_shown_before_anything_is_made(tables: TypedTables) -> None:
    create_topic(tables.broker.kafka, "guessed", 1)
    tables.produce("guessed", '{"id": 1, "user": {"name": "a"}, "score": 1, "tags": ["x"]}')
    tables.produce("guessed", '{"id": 2, "score": 1.5, "at": "2026-11-24 10:00:00"}')

    tables.produce("guessed", '{"id": 3, "_block": 5}')
    arguments = ("create", "made.guessed", "--topic", "guessed")
    assert tables.refused_with_input(*arguments, stdin="n\n")
    assert tables.sql("SELECT name FROM system.databases WHERE name = 'made'") == []
    printed = tables(*arguments, stdin="y\n")
    assert "user.name" in printed
    assert "left out fields whose names no column can have: '_block'" in printed
    tables.await_rows("made.guessed", 3)
    assert tables.sql("SELECT id, user_name, score, tags FROM made.guessed ORDER BY id") == [
        {"id": 1, "user_name": "a", "score": 1, "tags": ["x"]},
        {"id": 2, "user_name": None, "score": 1.5, "tags": []},
        {"id": 3, "user_name": None, "score": None, "tags": []},
    ]


@pytest.mark.parametrize(
    ("columns", "more", "said"),
    [
        ("id UInt8, s AggregateFunction(sum, UInt64)", [], "column s: no record can fill a column"),
        ("id UInt8, n UInt8 DEFAULT twice, twice UInt8 MATERIALIZED id * 2", [], "column n: its d"),
        ("id UInt8", ["--path", "city=address.city"], "--path city: there is no such column"),
        ("id UInt8", ["--unit", "id=ms"], "--unit id: there is no such column of dates"),
        ("n Nested(a Date, b DateTime)", ["--unit", "n.a=ms"], "give them the same --unit"),
        ("_offset Int64", [], "the table has no column for values"),
        (
            "a String, b String",
            ["--input-format", "raw"],
            "the format raw fills one column, and the tab",
        ),
    ],
)
def test_a_table_that_cannot_be_filled_gets_no_feed(
    tables: TypedTables, columns: str, more: list[str], said: str
) -> None:
    topic = f"refused_{zlib.crc32(columns.encode() + repr(more).encode())}"
    create_topic(tables.broker.kafka, topic, 1)
    tables.sql("CREATE DATABASE IF NOT EXISTS refused")
    tables.sql(f"CREATE TABLE refused.{topic} ({columns}) ENGINE = MergeTree ORDER BY tuple()")
    assert said in tables.refused("create", f"refused.{topic}", "--topic", topic, *more)
    assert topic not in tables("list")


def test_a_feed_is_paused_resumed_replayed_and_dropped(tables: TypedTables) -> None:
    create_topic(tables.broker.kafka, "steps", 1)
    tables("create", "steps.t", "--topic", "steps", "--columns", "id UInt64, n UInt8")
    tables.produce("steps", '{"id": 1, "n": 1}', '{"id": 2, "n": 999}')
    tables.await_fed("steps.t", 2)

    assert tables("pause", "steps.t") == "paused steps.t\n"
    assert json.loads(tables("describe", "steps.t", "--json"))["status"] == "paused"
    tables.sql("ALTER TABLE steps.t MODIFY COLUMN n UInt16")
    tables.produce("steps", '{"id": 3, "n": 3}')
    tables("resume", "steps.t")
    tables("replay", "steps.t")
    tables.await_rows("steps.t", 3)
    assert tables.sql("SELECT id, n FROM steps.t ORDER BY id") == [
        {"id": 1, "n": 1},
        {"id": 2, "n": 999},
        {"id": 3, "n": 3},
    ]
    until(
        lambda: not tables.sql("SELECT 1 FROM brokerhouse.dead_letters WHERE feed = 'steps.t'"),
        "no dead letter is left",
    )

    assert tables("drop", "steps.t", "--with-table") == "dropped steps.t\n"
    assert "steps.t" not in tables("list")
    assert tables.sql("SELECT 1 FROM system.tables WHERE database = 'steps'") == []
    # Made again, it begins anew.
    tables("create", "steps.t", "--topic", "steps", "--columns", "id UInt64")
    tables.await_rows("steps.t", 3)


def counts(tables: TypedTables, feed: str) -> tuple[int, int]:
    """Rows and dead letters, which `list`, `describe` and the view must agree on."""
    [listed] = [one for one in json.loads(tables("list", "--json")) if one["name"] == feed]
    described = json.loads(tables("describe", feed, "--json"))["partitions"]
    [shown] = tables.sql(
        "SELECT sum(rows) AS rows, sum(dead_letters) AS dead_letters"
        f" FROM brokerhouse.table_feed_progress WHERE feed = '{feed}'"
    )
    numbers = ("rows", "dead_letters")
    of_list = tuple(listed[number] for number in numbers)
    assert of_list == tuple(sum(one[number] for one in described) for number in numbers)
    assert of_list == tuple(int(shown[number]) for number in numbers)
    return listed["rows"], listed["dead_letters"]


def test_list_and_describe_count_rows_and_dead_letters_after_a_replay(
    tables: TypedTables,
) -> None:
    create_topic(tables.broker.kafka, "mended", 2)
    tables("create", "mended.t", "--topic", "mended", "--columns", "id UInt64, n UInt8")
    tables.produce("mended", '{"id": 1, "n": 1}', '[{"id": 2, "n": 900}, {"id": 3, "n": 3}]', "bad")
    tables.produce("mended", '{"id": 4, "n": 901}', partition=1)
    tables.await_fed("mended.t", 3)
    tables.await_fed("mended.t", 1, partition=1)
    assert counts(tables, "mended.t") == (1, 3)

    tables.sql("ALTER TABLE mended.t MODIFY COLUMN n UInt16")
    assert tables("replay", "mended.t") == "replayed mended.t: 3 rows, 1 dead letter left\n"
    assert counts(tables, "mended.t") == (4, 1)
    assert tables.rows("mended.t") == 4
    assert tables("replay", "mended.t") == "replayed mended.t: 0 rows, 1 dead letter left\n"
    assert counts(tables, "mended.t") == (4, 1)


@pytest.mark.test_all
def test_a_replay_of_a_paused_feed_happens_when_the_feed_is_resumed(
    tables: TypedTables,
) -> None:
    create_topic(tables.broker.kafka, "held", 1)
    tables("create", "held.t", "--topic", "held", "--columns", "n UInt8")
    tables.produce("held", '{"n": 900}')
    tables.await_fed("held.t", 1)
    tables("pause", "held.t")
    tables.sql("ALTER TABLE held.t MODIFY COLUMN n UInt16")

    assert "held.t is paused" in tables.refused("replay", "held.t")
    tables("resume", "held.t")
    tables.await_rows("held.t", 1)


def test_a_replay_with_no_wait_returns_at_once(tables: TypedTables) -> None:
    create_topic(tables.broker.kafka, "later", 1)
    tables("create", "later.t", "--topic", "later", "--columns", "n UInt8")
    tables.produce("later", '{"n": 900}')
    tables.await_fed("later.t", 1)
    tables("pause", "later.t")  # so that nothing can be done meanwhile

    asked = tables("replay", "later.t", "--no-wait")
    assert asked == "requested a replay of later.t\n"


@pytest.mark.test_all
def test_a_replay_that_cannot_happen_ends_by_timeout_or_ctrl_c_and_happens_later(
    tables: TypedTables,
) -> None:
    create_topic(tables.broker.kafka, "alone", 1)
    tables("create", "alone.t", "--topic", "alone", "--columns", "n UInt8")
    tables.produce("alone", '{"n": 900}')
    tables.await_fed("alone.t", 1)
    tables.sql("RENAME TABLE alone.t TO alone.away")  # the broker retries for ever

    refused = tables.refused("replay", "alone.t", "--timeout", "1")
    assert "no broker has parsed dead letters of alone.t for 1 s (1 waiting)" in refused

    # One line for all its attempts.
    failed = "feed alone.t failed, and is retried: there is no table"
    assert tables.broker.printed().count(failed) == 1

    asked = "SELECT max(version) AS last FROM brokerhouse.table_feed_versions"
    asked += " WHERE name = 'alone.t'"
    before = tables.sql(asked)
    waiting = tables.begun("replay", "alone.t")
    until(lambda: tables.sql(asked) != before, "another replay was asked for")
    waiting.send_signal(signal.SIGINT)
    assert waiting.wait(60) == 130
    assert waiting.stderr is not None
    assert waiting.stderr.read() == "the broker continues the replay of alone.t\n"

    tables.sql("ALTER TABLE alone.away MODIFY COLUMN n UInt16")
    tables.sql("RENAME TABLE alone.away TO alone.t")
    tables.await_rows("alone.t", 1)


def test_a_dead_letter_pauses_a_feed_with_stop_on_error(tables: TypedTables) -> None:
    create_topic(tables.broker.kafka, "strict", 1)
    tables("create", "strict.t", "--topic", "strict", "--columns", "id UInt8", "--stop-on-error")
    tables.produce("strict", '{"id": 1}', '{"id": "x"}')

    until(
        lambda: json.loads(tables("describe", "strict.t", "--json"))["status"] == "paused",
        "the feed has paused",
    )


def test_a_feed_fills_a_table_that_exists_already(tables: TypedTables) -> None:
    create_topic(tables.broker.kafka, "given", 1)
    tables.sql("CREATE DATABASE given")
    tables.sql(
        "CREATE TABLE given.t (id UInt64, at DateTime DEFAULT 5) ENGINE=MergeTree ORDER BY id"
    )
    tables.sql("INSERT INTO given.t VALUES (100, 7)")
    tables.produce("given", '{"id": 1}')
    tables("create", "given.t", "--topic", "given")
    tables.await_rows("given.t", 2)

    assert tables.sql("SELECT id, toUnixTimestamp(at) AS at FROM given.t ORDER BY id") == [
        {"id": 1, "at": 5},
        {"id": 100, "at": 7},
    ]


def test_only_committed_records_become_rows(tables: TypedTables) -> None:
    create_topic(tables.broker.kafka, "paid", 1)
    tables("create", "paid.t", "--topic", "paid", "--columns", "id UInt64")
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": tables.broker.kafka, "transactional.id": "paid-1"}
    )
    producer.init_transactions()
    for number, commit in enumerate((True, False, True)):
        producer.begin_transaction()
        producer.produce("paid", json.dumps({"id": number}).encode())
        producer.flush()
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    tables.await_rows("paid.t", 2)

    assert tables.sql("SELECT id FROM paid.t ORDER BY id") == [{"id": 0}, {"id": 2}]


def test_a_feed_begins_at_the_latest_offset_or_at_a_time(tables: TypedTables) -> None:
    create_topic(tables.broker.kafka, "begun", 1)
    tables.produce("begun", '{"id": 1}')
    until(
        lambda: tables.sql(
            "SELECT now64(3) > max(timestamp) AS ok FROM brokerhouse.messages WHERE topic = 'begun'"
        )[0]["ok"],
        "time has passed",
    )
    [row] = tables.sql("SELECT toUnixTimestamp64Milli(now64(3)) AS ms")
    tables(
        "create", "begun.latest", "--topic", "begun", "--columns", "id UInt8", "--offset", "latest"
    )
    tables.await_fed("begun.latest", 1)
    tables.produce("begun", '{"id": 2}')
    tables(
        *shlex.split("create begun.at --topic begun --columns 'id UInt8' --offset"),
        f"@{row['ms']}",
    )
    for table in ("begun.latest", "begun.at"):
        tables.await_rows(table, 1)
        tables.await_fed(table, 2)
        assert tables.sql(f"SELECT id FROM {table}") == [{"id": 2}]


def test_create_topics_creates_missing_topics_on_the_broker_of_bootstrap(
    tables: TypedTables,
) -> None:
    create = ("create", "made.t", "--topic", "made", "--topic", "too", "--columns", "id UInt8")
    tables(*create, "--create-topics", "--bootstrap", tables.broker.kafka)
    tables.produce("made", '{"id": 7}')
    tables.await_fed("made.t", 1)

    assert tables.sql("SELECT id FROM made.t") == [{"id": 7}]
    assert tables.sql("SELECT name FROM brokerhouse.topics WHERE name = 'too'") == [{"name": "too"}]
    refused = tables.refused(
        *shlex.split(
            "create x.t --topic a/b --columns 'a String' --create-topics"
            f" --bootstrap {tables.broker.kafka}"
        ),
    )
    assert "topic a/b" in refused


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["create", "x.t", "--topic", "nowhere", "--columns", "a String"],
            "topic nowhere does not exist",
        ),
        (["create", "x.t", "--topic", "bad", "--columns", "a Strin"], "Unknown data type"),
        (["create", "x.t", "--topic", "bad", "--columns", "a String) ENGINE = File(CSV"], "Syntax"),
        (["create", "x.t", "--topic", "bad"], "has no JSON objects to infer columns from"),
        (["create", "x.t", "--topic", "bad", "--input-format", "csv"], "cannot be inferred"),
        (
            ["create", "x.t", "--topic", "bad", "--input-format", "debezium"],
            "no record with a schema",
        ),
        (["pause", "x.t"], "there is no feed x.t"),
        (["drop", "x.t"], "there is no feed x.t"),
        (["describe", "x.t"], "there is no feed x.t"),
    ],
)
def test_commands_that_cannot_work_end_with_one_sentence(
    tables: TypedTables, arguments: list[str], sentence: str
) -> None:
    if not tables.sql("SELECT 1 FROM brokerhouse.topics WHERE name = 'bad'"):
        create_topic(tables.broker.kafka, "bad", 1)

    assert sentence in tables.refused(*arguments)
    assert tables.sql("SELECT 1 FROM brokerhouse.table_feeds WHERE name = 'x.t'") == []


def test_a_new_table_may_keep_the_latest_row_of_each_key(tables: TypedTables) -> None:
    create_topic(tables.broker.kafka, "states", 1)
    arguments = ["create", "shop.states", "--topic", "states", "--columns", "id Int64, n Int64"]
    engine = ["--engine", "ReplacingMergeTree(n)"]
    assert "give --order-by" in tables.usage_error(*arguments, *engine)
    for other in ("SummingMergeTree", "Log", "MergeTree) ORDER BY (id"):
        wrong = tables.usage_error(*arguments, "--engine", other)
        assert "write MergeTree or ReplacingMergeTree(...)" in " ".join(wrong.split())
    tables(*arguments, *engine, "--order-by", "id")

    tables.produce("states", '{"id": 1, "n": 2}', '{"id": 2, "n": 1}', '{"id": 1, "n": 1}')
    tables.await_fed("shop.states", 3)
    assert tables.sql("SELECT id, n FROM shop.states FINAL ORDER BY id") == [
        {"id": 1, "n": 2},
        {"id": 2, "n": 1},
    ]
    tables("drop", "shop.states")
    again = tables.refused("create", "shop.states", "--topic", "states", *engine)
    assert "leave --columns and --engine out" in again


@pytest.mark.parametrize("name", ["orders", "a.b.c", "a.`b`", "a.b;c", ".t", "1.t"])
def test_a_feed_name_that_is_not_database_and_table_is_refused(
    tables: TypedTables, name: str
) -> None:
    result = tables.usage_error("pause", name)

    assert "is not DATABASE.TABLE" in result


@pytest.mark.parametrize("database", ["brokerhouse", "system", "INFORMATION_SCHEMA"])
def test_the_brokers_own_tables_cannot_be_filled(tables: TypedTables, database: str) -> None:
    assert "cannot write into the database" in tables.usage_error(
        "create", f"{database}.messages", "--topic", "orders"
    )


@pytest.mark.parametrize(
    ("table", "change", "why"),
    [
        (
            "a",
            "'brokerhouse.messages' AS name, 'brokerhouse' AS database, 'messages' AS table",
            "cannot write into the database brokerhouse",
        ),
        (
            "b",
            "'messages' AS table, 'brokerhouse' AS database",
            "its table is brokerhouse.messages",
        ),
        ("c", "'orc' AS format", "'orc' is not a valid Format"),
        ("d", "'soon' AS start", "it begins at 'soon'"),
        ("e", "0 AS interval_ms", "its interval is 0 ms"),
        ("f", "'lost' AS status", "'lost' is not a valid FeedStatus"),
        ("g", "map('route', 'body=x') AS options", "write header=NAME"),
        ("h", "'hand.*' AS name, '*' AS table", "nothing says which table a record is for"),
        (
            "i",
            "map('route', 'key=:', 'like', 'brokerhouse.messages') AS options",
            "cannot write into the database brokerhouse",
        ),
        (
            "j",
            "map('route', 'key=:', 'like', 'hand.*') AS options",
            "tables cannot be made like hand.*",
        ),
    ],
)
def test_a_definition_that_is_written_by_hand_cannot_do_more_than_its_writer(
    tables: TypedTables, table: str, change: str, why: str
) -> None:
    before = tables.broker.log_size()
    tables.sql(
        "INSERT INTO brokerhouse.table_feed_versions SELECT * REPLACE ("
        f" generateUUIDv4() AS feed_id, {change}) FROM (SELECT 'hand.{table}' AS name,"
        f" 1 AS version, generateUUIDv4() AS feed_id, 'hand' AS database, '{table}' AS table,"
        " ['orders'] AS topics, 'json' AS format, map() AS paths, 'earliest' AS start,"
        " 250 AS interval_ms, false AS stop_on_error, map() AS options, 'running' AS status,"
        " toDateTime64(0, 3) AS replay_asked_at, now64(3) AS changed_at)"
    )
    until(lambda: why in tables.broker.log(before), "the broker says what is wrong")


def test_a_feed_goes_on_after_a_restart(tables: TypedTables) -> None:
    create_topic(tables.broker.kafka, "kept", 1)
    tables("create", "kept.t", "--topic", "kept", "--columns", "id UInt64")
    tables.produce("kept", '{"id": 1}')
    tables.await_rows("kept.t", 1)
    tables.broker.restart()
    tables.produce("kept", '{"id": 2}')
    tables.await_rows("kept.t", 2)
    assert tables.sql("SELECT id FROM kept.t ORDER BY id") == [{"id": 1}, {"id": 2}]


AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
PROTOBUF = 'syntax = "proto3"; message Order { int64 id = 1; }'


@pytest.mark.parametrize(
    ("form", "number", "schema", "kind", "message"),
    [
        # The message: in Avro a zigzag number; in Protobuf the first message of the schema,
        # field 1 as a varint, and the number.
        ("avro", 1, json.dumps(AVRO), "AVRO", b"\x0e"),
        ("protobuf", 2, PROTOBUF, "PROTOBUF", b"\0\x08\x07"),
    ],
)
def test_a_table_is_filled_by_the_schemas_of_a_registry(
    tables: TypedTables,
    schemas: Schemas,
    form: str,
    number: int,
    schema: str,
    kind: str,
    message: bytes,
) -> None:
    schemas.add_text(number, schema, schemaType=kind)
    topic, name = f"by-{form}", f"registered.{form}"
    create_topic(tables.broker.kafka, topic, 1)
    tables("create", name, "--topic", topic, "--input-format", form, "--columns", "id UInt64")
    producer = confluent_kafka.Producer({"bootstrap.servers": tables.broker.kafka})
    producer.produce(topic, b"\0" + number.to_bytes(4, "big") + message)
    assert producer.flush(60) == 0
    tables.await_fed(name, 1)

    assert tables.sql(f"SELECT id FROM {name}") == [{"id": 7}]
