"""The job `feed`: Spark fills a typed table from Kafka, each committed record once.

`FEED_SEED` chooses the moments of kills; the long test is in `make test-spark`.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import confluent_kafka
import fastavro
import pytest
from click.testing import CliRunner

from brokerhouse.spark_jobs import audit, feed
from tests.spark.feed_job import LIMIT_S, FeedJob, run_feed
from tests.spark.history import run_job
from tests.support.broker_process import BrokerProcess
from tests.support.committed import create_topic
from tests.support.debezium_samples import PLAIN, samples
from tests.support.feed_values import SCALARS
from tests.support.schemas import Schemas
from tests.support.sql_client import USER
from tests.support.sql_rows import SqlError
from tests.support.steady_producer import producing
from tests.support.typed_tables import SETTINGS, TypedTables
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("spark_with_kafka")
TABLE = "fed.events"


@pytest.fixture
def tables(own_broker: Callable[..., BrokerProcess]) -> TypedTables:
    return TypedTables(own_broker(**SETTINGS))


@pytest.mark.parametrize(
    ("credentials", "sentence"),
    [
        (["--user", USER, "--password", "wrong"], f"refuses user {USER}"),
        ([], "allows only its sql_user to do this"),
    ],
)
def test_a_run_that_may_store_no_dead_letter_ends_at_once_with_one_sentence(
    sink_broker: BrokerProcess, credentials: list[str], sentence: str
) -> None:
    ended = CliRunner().invoke(
        feed.command,
        [
            *shlex.split(
                f"{TABLE} --topic events --bootstrap {sink_broker.kafka}"
                f" --http {sink_broker.http_url}"
            ),
            *credentials,
            "--columns",
            "id UInt64",
        ],
    )
    assert ended.exit_code == 1
    assert sentence in ended.stderr
    assert "starting Spark" not in ended.stderr


@pytest.mark.test_all
def test_a_password_that_is_changed_while_the_job_runs_ends_it_with_one_sentence(
    tables: TypedTables,
) -> None:
    broker = tables.broker
    create_topic(broker.kafka, "events", 1)
    tables.produce("events", '{"id": 1}')
    with FeedJob(broker, TABLE, "--topic", "events", "--columns", "id UInt64") as running:
        # Not in the middle of a block: the job would ask while the broker is away.
        until(lambda: has_completed_a_block(tables), "the first block is complete", LIMIT_S)
        broker.stop()
        broker.settings["sql_password"] = "another one"
        broker.start()
        tables.produce("events", "bad")
        printed = running.ends(1)
    assert printed.count(f"refuses user {USER}") == 1
    assert f"refuses user {USER}: give the right user and password" in printed


def has_completed_a_block(tables: TypedTables) -> bool:
    table = "database = 'brokerhouse_feeds' AND name = 'table_feed_blocks'"
    if not tables.sql(f"SELECT 1 FROM system.tables WHERE {table}"):
        return False
    return bool(
        tables.sql(
            "SELECT 1 FROM brokerhouse_feeds.table_feed_blocks"
            f" WHERE feed = '{TABLE}' AND phase = 'after' AND rows > 0"
        )
    )


def test_json_becomes_rows_and_dead_letters(sink_broker: BrokerProcess, topic: str) -> None:
    tables = TypedTables(sink_broker)
    create_topic(sink_broker.kafka, topic, 2)
    big = "12345678901234567890.12345"
    good = [
        f'{{"id": 1, "amount": {big}, "tags": ["a", 2.50], "a": {{"b": "x"}}}}',
        '[{"id": 2}, {"id": "3", "amount": "0.10"}]',
        ' {"id": 4, "at": "2026-11-24T10:00:00.5Z", "other": 1}',
        "[]",
    ]
    bad = ['{"id": 5', '{"id": 300}', "7", '[{"id": 8}, 9]', '{"id": 9, "id": 9}', ""]
    tables.produce(topic, *good, *bad, partition=1)
    columns = (
        "id UInt8, amount Nullable(Decimal(38, 5)), tags Array(String), ab String,"
        " at DateTime64(3, 'UTC'), _topic String, _partition Int32, _offset Int64,"
        " _timestamp DateTime64(3), _key Nullable(String)"
    )
    arguments = (TABLE, "--topic", topic, "--once", "--path", "ab=a.b")
    printed = run_feed(sink_broker, *arguments, "--columns", columns, "--order-by", "id")

    assert f"{TABLE}: 4 rows fed, 6 dead letters" in printed
    rows = tables.sql(
        "SELECT * EXCEPT (_timestamp, amount), toString(amount) AS amount, _timestamp > 0 AS t"
        f" FROM {TABLE} ORDER BY id"
    )
    said = {"_topic": topic, "_partition": 1, "_key": None, "t": 1}
    empty: dict[str, Any] = {"amount": None, "tags": [], "ab": "", "at": "1970-01-01 00:00:00.000"}
    assert rows == [
        {**empty, "id": 1, "amount": big, "tags": ["a", "2.50"], "ab": "x", "_offset": 0, **said},
        {**empty, "id": 2, "_offset": 1, **said},
        {**empty, "id": 3, "amount": "0.1", "_offset": 1, **said},
        {**empty, "id": 4, "at": "2026-11-24 10:00:00.500", "_offset": 2, **said},
    ]
    dead = tables.sql(
        f"SELECT offset, error FROM brokerhouse_feeds.dead_letters WHERE topic = '{topic}'"
        " ORDER BY offset"
    )
    no_rows, not_json = "neither an object nor", "not valid JSON"
    twice = "the field id comes twice"
    errors = [not_json, "id: 300 does not fit UInt8", no_rows, no_rows, twice, not_json]
    assert [row["offset"] for row in dead] == list(range(4, 10))
    assert all(row["error"].startswith(one) for row, one in zip(dead, errors, strict=True)), dead

    tables.produce(topic, json.dumps({"id": 10}), partition=0)
    told = run_feed(sink_broker, *arguments, "--dry-run")
    assert f"{TABLE}: would feed up to 1 record; nothing was written" in told
    assert f"{TABLE}: 1 row fed, 0 dead letters" in run_feed(sink_broker, *arguments)
    assert f"{TABLE}: 0 rows fed, 0 dead letters" in run_feed(sink_broker, *arguments)


COLUMNS = "id UInt64, name String, _partition Int32, _offset Int64"
BAD_EVERY = 50
PARTITIONS = 2


class Numbers:
    """Records with numbers, in both partitions; some do not fit."""

    def __init__(self, tables: TypedTables) -> None:
        self.tables = tables
        self._numbers = itertools.count()
        self.sent = 0

    def record(self) -> tuple[str, str]:
        number = next(self._numbers)
        value = {"id": number, "name": f"n{number}"} if number % BAD_EVERY else {"id": "none"}
        return str(number), json.dumps(value)

    @contextmanager
    def coming(self) -> Iterator[None]:
        create_topic(self.tables.broker.kafka, "events", PARTITIONS)
        with producing(self.tables.broker.kafka, "events", self.record):
            yield
        self.sent = next(self._numbers)

    def check(self) -> None:
        """The table equals the log, row for row."""
        sql = self.tables.sql
        logged = sql(
            "SELECT JSONExtractUInt(value, 'id') AS id, JSONExtractString(value, 'name') AS name,"
            " partition AS _partition, offset AS _offset FROM brokerhouse.messages"
            " WHERE topic = 'events' AND name != '' ORDER BY id"
        )
        assert sql(f"SELECT * FROM {TABLE} ORDER BY id, _offset") == logged
        assert [row["id"] for row in logged] == [n for n in range(self.sent) if n % BAD_EVERY]
        [dead] = sql(
            "SELECT count() AS n, uniqExact(partition, offset) AS offsets"
            " FROM brokerhouse_feeds.dead_letters"
        )
        assert dead == {"n": -(-self.sent // BAD_EVERY), "offsets": dead["n"]}


SETTLED_S = 0.3
"""Statements of a job that was stopped have come to their end."""
KILLED = (
    *shlex.split(f"{TABLE} --topic events --columns"),
    COLUMNS,
    *shlex.split("--block-records 3000 --partition-by 'id % 2' --interval-ms 10"),
)


def check_table_equals_log(tables: TypedTables, numbers: Numbers) -> int:
    """After the rest is fed. Returns how many blocks were repeated."""
    run_feed(tables.broker, *KILLED, "--once")
    numbers.check()
    [repeated] = tables.sql(
        "SELECT count() AS n FROM (SELECT partition, first_offset FROM"
        " brokerhouse_feeds.table_feed_blocks FINAL WHERE phase = 'before' GROUP BY ALL"
        " HAVING uniqExact(epoch) > 1)"
    )
    return int(repeated["n"])


def rows_in(tables: TypedTables) -> int:
    try:
        [row] = tables.sql(f"SELECT count() AS n FROM {TABLE}")
    except SqlError:
        return 0
    return int(row["n"])


def await_more_rows(tables: TypedTables) -> None:
    before = rows_in(tables)
    until(lambda: rows_in(tables) > before, "the job feeds", LIMIT_S)


def stop_in_a_block(tables: TypedTables, job: FeedJob) -> None:
    """Stop the job while some block has begun and is not complete."""
    newest = (
        "SELECT 1 FROM (SELECT argMax(phase, version) AS newest FROM"
        " brokerhouse_feeds.table_feed_blocks GROUP BY partition) WHERE newest = 'before'"
    )

    def is_in_a_block() -> bool:
        if not tables.sql(newest):
            return False
        job.signal(signal.SIGSTOP)
        time.sleep(SETTLED_S)
        if tables.sql(newest):
            return True
        job.signal(signal.SIGCONT)
        return False

    until(is_in_a_block, "the job stores a block", LIMIT_S)


@pytest.mark.test_all
@pytest.mark.timeout(600)
def test_the_table_equals_the_log_if_the_job_is_killed_in_a_block(tables: TypedTables) -> None:
    numbers = Numbers(tables)
    with numbers.coming(), FeedJob(tables.broker, *KILLED) as job:
        await_more_rows(tables)
        stop_in_a_block(tables, job)
    assert check_table_equals_log(tables, numbers) > 0


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_the_table_equals_the_log_after_many_kills_of_the_job(tables: TypedTables) -> None:
    seed = int(os.environ.get("FEED_SEED") or random.randrange(2**32))
    kills = int(os.environ.get("FEED_KILLS") or 20)
    print(f"seed {seed}")
    chance = random.Random(seed)
    numbers = Numbers(tables)
    with numbers.coming():
        for _ in range(kills):
            with FeedJob(tables.broker, *KILLED):
                await_more_rows(tables)
                time.sleep(chance.random())  # a random moment is what this is about
    repeated = check_table_equals_log(tables, numbers)
    print(f"{numbers.sent} records, {kills} kills, {repeated} blocks were repeated")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_of_two_jobs_at_once_the_first_is_fenced_and_the_audit_knows_both(
    tables: TypedTables,
) -> None:
    numbers = Numbers(tables)
    arguments = (TABLE, "--topic", "events", "--columns", COLUMNS, "--interval-ms", "10")
    with numbers.coming(), FeedJob(tables.broker, *arguments) as first:
        await_more_rows(tables)
        with FeedJob(tables.broker, *arguments) as second:
            assert f"another run of the feed {TABLE} has taken over" in first.ends(code=1)
            await_more_rows(tables)
            assert second.process.poll() is None
    run_feed(tables.broker, *arguments, "--once")
    numbers.check()
    audited = run_job(audit.command, tables.broker.http_url)
    assert "0 anomalies" in audited.stdout, audited
    tables.sql(f"DELETE FROM {TABLE} WHERE id IN (7, 8)")
    audited = run_job(audit.command, tables.broker.http_url)
    assert audited.code == 1
    assert "rows in the table, and" in audited.stdout


AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {
            "name": "amount",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
        },
    ],
}
NEWER = {**AVRO, "fields": [*AVRO["fields"], {"name": "name", "type": "string"}]}
PROTOBUF = """
    syntax = "proto3";
    message Order { uint64 id = 1; string name = 2; string amount = 3; }
"""


@pytest.mark.test_all
def test_avro_and_protobuf_become_rows_by_schemas_of_a_registry(tables: TypedTables) -> None:
    schemas = Schemas()
    schemas.add(1, AVRO)
    schemas.add(2, NEWER)
    schemas.add_text(3, PROTOBUF, schemaType="PROTOBUF")

    def avro(schema_id: int, schema: dict[str, Any], record: object) -> bytes:
        data = io.BytesIO()
        fastavro.schemaless_writer(data, fastavro.parse_schema(schema), record)
        return b"\0" + schema_id.to_bytes(4, "big") + data.getvalue()

    old = avro(1, AVRO, {"id": 1, "amount": Decimal("1.50")})
    new = avro(2, NEWER, {"id": 2, "amount": Decimal("0.05"), "name": "é"})
    message = b"\0\0\0\0\3" + b"\0" + b"\x08\x07\x12\x02ab\x1a\x031.5"
    create_topic(tables.broker.kafka, "avro", 1)
    create_topic(tables.broker.kafka, "protobuf", 1)
    unknown = b"\0" + (99).to_bytes(4, "big")
    produce(tables, "avro", old, new, old[:-1], unknown, b"{}")
    produce(tables, "protobuf", message, message[:-1], old)
    columns = ("--columns", "id UInt64, amount Decimal(18, 2), name String, _offset Int64")
    more = ("--once", "--schema-registry", schemas.url, *columns)
    try:
        told = run_feed(
            tables.broker, "fed.avro", "--topic", "avro", "--input-format", "avro", *more
        ) + run_feed(
            tables.broker,
            *shlex.split("fed.protobuf --topic protobuf --input-format protobuf"),
            *more,
        )
    finally:
        schemas.close()
    assert "fed.avro: 2 rows fed, 3 dead letters" in told
    assert "fed.protobuf: 1 row fed, 2 dead letters" in told
    shown = "SELECT id, toString(amount) AS amount, name FROM fed.{} ORDER BY id"
    assert tables.sql(shown.format("avro")) == [
        {"id": 1, "amount": "1.5", "name": ""},
        {"id": 2, "amount": "0.05", "name": "é"},
    ]
    assert tables.sql(shown.format("protobuf")) == [{"id": 7, "amount": "1.5", "name": "ab"}]


def produce(tables: TypedTables, topic: str, *values: bytes | None) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": tables.broker.kafka})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(60) == 0


CSV: list[bytes | None] = [
    b'1,"two\nlines, ""quoted""",1.50,a',
    b"2,x,,\n",
    b"3,x\r\n",
    b"4,y,1,a\n5,z,1,b",
    b"300,x,1,a",
    b"a,b,1,c",
    b"7,\n0,8,x",
    None,
    b"",
    b'8,"open,1,a',
    b'9,"closed",2,"b"',
    b"10, x ,0.1,c",
    b"11,\xff\xfe,1,a",
    b'12,"\xc3",1,b',
    b'13,\xe2\x82,1,"',
    b'14,a"b,-1,a',
    b'"',
    b"15,x,1,unknown",
    b"16,x,12345678901234567890.123456,b",
    b"17,,,",
]
"""Of which most are no row of these columns."""
CSV_COLUMNS = (
    "id UInt8, note String, amount Nullable(Decimal(38, 5)), kind Enum8('' = 0, 'a' = 1, 'b' = 2,"
    " 'c' = 3), _topic String, _offset Int64, _key Nullable(String), _timestamp DateTime64(3)"
)


@pytest.mark.test_all
def test_csv_gives_the_same_rows_as_the_brokers_own_feed(tables: TypedTables) -> None:
    create_topic(tables.broker.kafka, "csv", 1)
    produce(tables, "csv", *CSV)
    tables(
        *shlex.split("create own.csv --topic csv --input-format csv --order-by id --columns"),
        CSV_COLUMNS,
    )
    # In blocks of three: a quote that is open must not reach others in any of them.
    told = run_feed(
        tables.broker,
        *shlex.split("fed.csv --topic csv --input-format csv --once --block-records 3 --columns"),
        CSV_COLUMNS,
    )
    tables.await_fed("own.csv", len(CSV))

    shown = "SELECT * REPLACE (hex(note) AS note, toString(amount) AS amount) FROM {} ORDER BY id"
    rows = tables.sql(shown.format("fed.csv"))
    assert rows == tables.sql(shown.format("own.csv"))
    assert [row["id"] for row in rows] == [1, 2, 9, 10, 11, 12, 14, 17]
    errors = "SELECT offset, error FROM {}.dead_letters ORDER BY offset"
    dead = tables.sql(errors.format("brokerhouse_feeds"))
    assert dead == tables.sql(errors.format("brokerhouse"))
    assert f"fed.csv: {len(rows)} rows fed, {len(dead)} dead letters" in told
    assert len(rows) + len(dead) == len(CSV) - 1
    assert "not one line of CSV with the columns id, note, amount, kind" in dead[0]["error"]


@pytest.mark.test_all
def test_debezium_changes_give_the_same_rows_as_the_brokers_own_feed(
    tables: TypedTables,
) -> None:
    create_topic(tables.broker.kafka, "changes", 1)
    producer = confluent_kafka.Producer({"bootstrap.servers": tables.broker.kafka})
    records = samples("default", PLAIN)
    for one in records:
        producer.produce("changes", key=one.key, value=one.value)
    assert producer.flush(60) == 0
    options = [
        "--columns",
        "id Int64, name String, paid Nullable(Decimal(18, 2))",
        "--order-by",
        "id",
    ]
    tables("create", "own.changes", "--topic", "changes", "--input-format", "debezium", *options)
    told = run_feed(
        tables.broker,
        *shlex.split(
            "fed.changes --topic changes --input-format debezium --once --block-records 3"
        ),
        *options,
    )
    tables.await_fed("own.changes", len(records))

    shown = "SELECT * FROM {} FINAL ORDER BY id"
    rows = tables.sql(shown.format("fed.changes"))
    assert rows == tables.sql(shown.format("own.changes"))
    assert [(row["id"], row["name"]) for row in rows] == [
        (0, "zero"),
        (2, "again"),
        (3, "the last"),
    ]
    assert "0 dead letters" in told


@pytest.mark.test_all
def test_values_of_all_types_give_the_same_rows_as_the_brokers_own_feed(
    tables: TypedTables,
) -> None:
    """The same rows and the same dead letters, alone and in an array."""
    create_topic(tables.broker.kafka, "values", 1)
    values, columns = [], []
    for number, kind in enumerate(SCALARS):
        columns += [f"v{number} Nullable({kind})", f"a{number} Array({kind})"]
        for one in SCALARS[kind]():
            values += [f'{{"v{number}": {one.json}}}', f'{{"a{number}": [{one.json}]}}']
    tables.produce("values", *values)
    shown = ("--columns", f"_offset Int64, {', '.join(columns)}", "--order-by", "_offset")
    tables("create", "own.values", "--topic", "values", *shown)
    told = run_feed(tables.broker, "fed.values", "--topic", "values", "--once", *shown)
    tables.await_fed("own.values", len(values))

    compared = "SELECT cityHash64(groupArray(tuple(*))) AS all, count() AS n FROM"
    [fed], [own] = (
        tables.sql(f"{compared} (SELECT toString(tuple(*)) FROM {name} ORDER BY _offset)")
        for name in ("fed.values", "own.values")
    )
    assert fed == own
    errors = "SELECT offset, error FROM {}.dead_letters ORDER BY offset"
    dead = tables.sql(errors.format("brokerhouse_feeds"))
    assert dead == tables.sql(errors.format("brokerhouse"))
    assert f"fed.values: {fed['n']:,} rows fed, {len(dead)} dead letters" in told
    assert 1000 < fed["n"] < fed["n"] + len(dead) == len(values)


@pytest.mark.test_all
def test_dead_letters_are_parsed_again_after_a_fix(tables: TypedTables) -> None:
    create_topic(tables.broker.kafka, "events", 2)
    more = ("--topic", "events", "--once", "--block-records", "2")
    for partition in (0, 1):
        values = [{"id": n, "a": n * 100, "b": {"c": n}} for n in range(6)]
        tables.produce("events", *map(json.dumps, values), "bad", partition=partition)
    columns = "id UInt8, a UInt8, c UInt8, _partition Int32, _timestamp DateTime64(3)"
    told = run_feed(tables.broker, TABLE, *more, "--columns", columns)
    assert f"{TABLE}: 6 rows fed, 8 dead letters" in told
    told = run_feed(tables.broker, TABLE, *more, "--replay", "--dry-run")
    assert "would feed up to 0 records, and parse 8 dead letters again; nothing was" in told

    tables.sql(f"ALTER TABLE {TABLE} MODIFY COLUMN a UInt16")
    tables.produce("events", '{"id": 6}')
    fixed = (*more, "--replay", "--path", "c=b.c")
    told = run_feed(tables.broker, TABLE, *fixed)
    assert f"{TABLE}: 1 row fed, 0 dead letters; dead letters parsed again: 6 rows, 2 are" in told
    assert "; now the feed has 2 dead letters" in told
    told = run_feed(tables.broker, TABLE, *fixed)
    assert f"{TABLE}: 0 rows fed, 0 dead letters; dead letters parsed again: 0 rows, 2 are" in told
    rows = tables.sql(f"SELECT id, a, c, _partition FROM {TABLE} ORDER BY _partition, id")
    before = [(n, n * 100, 0) for n in range(3)]
    after = [(n, n * 100, n) for n in range(3, 6)]
    expected = [(*one, partition) for partition in (0, 1) for one in before + after]
    assert sorted(tuple(row.values()) for row in rows) == sorted([*expected, (6, 0, 0, 0)])
    dead = tables.sql("SELECT partition, offset FROM brokerhouse_feeds.dead_letters")
    assert dead == [{"partition": 0, "offset": 6}, {"partition": 1, "offset": 6}]
    assert tables.sql(f"SELECT count() AS n FROM {TABLE} WHERE _timestamp = 0") == [{"n": 0}]
