"""Real records of Debezium's connector for PostgreSQL, for tests that need no PostgreSQL.

`python -m tests.support.debezium_samples` makes debezium_samples.jsonl anew, in half a minute, with
a broker, a worker and a server. The converter repeats a schema in each record; the file has each
schema once, in lines of their own before the records. Nothing else of a record is changed.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.broker_process import BrokerProcess
from tests.support.connect_worker import ConnectWorker
from tests.support.debezium_source import Record, debezium_worker, postgres_source, records
from tests.support.postgres import Postgres
from tests.support.restarts import BROKER_SETTINGS

FILE = Path(__file__).with_suffix(".jsonl")
_NO_SCHEMAS = {"key.converter.schemas.enable": "false", "value.converter.schemas.enable": "false"}
_CONVERTERS = {
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
}
_UNWRAP = {
    "transforms": "unwrap",
    "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
}
_REWRITE = {"transforms.unwrap.delete.tombstone.handling.mode": "rewrite"}
PLAIN, FULL, TOASTED, KINDS = "public.plain", "public.full_rows", "public.toasted", "public.kinds"


class _Connector(NamedTuple):
    settings: Mapping[str, str]
    """All that are not the default."""
    tables: Sequence[str]


CONNECTORS = {
    "default": _Connector({}, (PLAIN, FULL, TOASTED, KINDS)),
    "noschema": _Connector(_NO_SCHEMAS, (PLAIN, KINDS)),
    "nulls": _Connector(
        {**_NO_SCHEMAS, "value.converter.replace.null.with.default": "false"}, (PLAIN,)
    ),
    "truncates": _Connector({**_NO_SCHEMAS, "skipped.operations": "none"}, (PLAIN,)),
    "unwrap": _Connector(_UNWRAP, (PLAIN,)),
    "unwrap_noschema": _Connector({**_UNWRAP, **_NO_SCHEMAS}, (PLAIN,)),
    "rewrite": _Connector({**_UNWRAP, **_REWRITE, **_NO_SCHEMAS}, (PLAIN,)),
    "rewrite_fields": _Connector(
        {
            **_UNWRAP,
            **_REWRITE,
            **_NO_SCHEMAS,
            "transforms.unwrap.add.fields": "op,source.lsn,source.ts_ms",
        },
        (PLAIN,),
    ),
    "strings": _Connector(
        {"decimal.handling.mode": "string", "time.precision.mode": "isostring"}, (KINDS,)
    ),
    "doubles": _Connector(
        {"decimal.handling.mode": "double", "time.precision.mode": "connect"}, (KINDS,)
    ),
    "numbers": _Connector({"value.converter.decimal.format": "NUMERIC"}, (KINDS,)),
}
"""Connectors by the prefix of their topics."""
_TABLES = (
    f"CREATE TABLE {PLAIN} (id bigint PRIMARY KEY, name text NOT NULL, paid numeric(18, 2),"
    " born date NOT NULL DEFAULT '1999-12-31', colour text DEFAULT 'red')",
    f"CREATE TABLE {FULL} (LIKE {PLAIN} INCLUDING ALL)",
    f"ALTER TABLE {FULL} REPLICA IDENTITY FULL",
    f"CREATE TABLE {TOASTED} (id int PRIMARY KEY, name text, a_text text NOT NULL, a_jsonb jsonb,"
    " a_bytea bytea, texts text[], ints int[], bigints bigint[], days date[], a_numeric numeric)",
    *(
        f"ALTER TABLE {TOASTED} ALTER {column} SET STORAGE EXTERNAL"
        for column in ("a_text", "a_jsonb", "a_bytea", "texts", "ints", "bigints", "days")
    ),
    f"INSERT INTO {PLAIN} VALUES (0, 'zero', 0.01)",
    "CREATE TYPE mood AS ENUM ('sad', 'happy')",
)
_CHANGES = (
    "INSERT INTO {table} VALUES (1, 'one', 1.50, '2024-02-29', NULL)",
    "UPDATE {table} SET name = 'uno', paid = NULL WHERE id = 1",
    "UPDATE {table} SET id = 10 WHERE id = 1",
    "DELETE FROM {table} WHERE id = 10",
    "BEGIN; INSERT INTO {table} VALUES (2, 'two', -20); UPDATE {table} SET paid = 3 WHERE id = 2;"
    " DELETE FROM {table} WHERE id = 2; INSERT INTO {table} VALUES (2, 'again', 4); COMMIT",
    "TRUNCATE {table}",
    "ALTER TABLE {table} ADD COLUMN added int DEFAULT 7",
    "INSERT INTO {table} VALUES (3, 'the last', 0)",
)
_TOASTED = (
    f"INSERT INTO {TOASTED} VALUES (1, 'one', repeat('t', 2100),"
    " to_jsonb(repeat('j', 2100)), convert_to(repeat('b', 2100), 'UTF8'),"
    " ARRAY[repeat('a', 2100)], array_fill(1, ARRAY[600]), array_fill(1, ARRAY[300]),"
    " array_fill('2024-02-29'::date, ARRAY[600]), NULL)",
    f"UPDATE {TOASTED} SET name = 'uno'",
)
LAST_ID = 3
_KINDS = {
    "id": ("bigint PRIMARY KEY", "1", "2", "3", "4"),
    "a_text": ("text NOT NULL", "'Grüße, 世界'", "''", "'old'", "'far'"),
    "a_varchar": ("varchar(20)", "'short'", "NULL", "NULL", "NULL"),
    "a_char": ("char(5)", "'ab'", "NULL", "NULL", "NULL"),
    "a_boolean": ("boolean", "true", "NULL", "false", "NULL"),
    "a_smallint": ("smallint", "-32768", "NULL", "32767", "NULL"),
    "an_int": ("int", "2147483647", "NULL", "-2147483648", "NULL"),
    "a_bigint": ("bigint", "9223372036854775807", "NULL", "-9223372036854775808", "NULL"),
    "a_real": ("real", "1.1", "'NaN'", "'Infinity'", "'-Infinity'"),
    "a_double": ("double precision", "1e300", "'NaN'", "'Infinity'", "'-Infinity'"),
    "a_decimal": ("numeric(18,2)", "1234567890123456.78", "'NaN'", "-0.01", "0"),
    "a_numeric": ("numeric", "12345678901234567890.123456789", "'NaN'", "'Infinity'", "1e20"),
    "an_integral": ("numeric(20)", "12345678901234567890", "NULL", "-1", "0"),
    "a_date": ("date", "'2024-02-29'", "'infinity'", "'0044-03-15 BC'", "'2300-01-01'"),
    "a_day": ("date", "'1900-01-01'", "'-infinity'", "'0001-01-01'", "'9999-12-31'"),
    "a_time": ("time", "'23:59:59.999999'", "'24:00:00'", "'00:00:00'", "NULL"),
    "a_time3": ("time(3)", "'12:34:56.789'", "NULL", "'00:00:00'", "NULL"),
    "a_timetz": ("timetz", "'12:34:56.789+02'", "NULL", "'00:00:00+00'", "NULL"),
    "a_timestamp": (
        "timestamp",
        "'2024-02-29 12:34:56.789012'",
        "'infinity'",
        "'0044-03-15 12:00 BC'",
        "'2300-01-01'",
    ),
    "a_timestamp0": (
        "timestamp(0)",
        "'1900-01-01 00:00:01'",
        "'-infinity'",
        "'0001-01-01'",
        "'9999-12-31'",
    ),
    "a_timestamp3": ("timestamp(3)", "'2024-02-29 12:34:56.789'", "'infinity'", "NULL", "NULL"),
    "a_timestamptz": (
        "timestamptz",
        "'2024-02-29 12:34:56.789012+02'",
        "'infinity'",
        "'0044-03-15 12:00+00 BC'",
        "'2300-01-01 00:00+00'",
    ),
    "a_timestamptz3": (
        "timestamptz(3)",
        "'2024-02-29 12:34:56.7+00'",
        "'-infinity'",
        "'0001-01-01 00:00+00'",
        "'9999-12-31 00:00+00'",
    ),
    "an_interval": ("interval", "'1 year 2 mons 3 days 04:05:06.789'", "'-1 day'", "NULL", "NULL"),
    "a_uuid": ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "NULL", "NULL", "NULL"),
    "a_json": ("json", """'{"a":  [1, "x"]}'""", "NULL", "'null'", "NULL"),
    "a_jsonb": ("jsonb", """'{"b": 1.0, "a": {}}'""", "NULL", "'1'", "NULL"),
    "a_bytea": (r"bytea", r"'\x00ff'", "NULL", r"'\x'", "NULL"),
    "ints": ("int[]", "'{1,NULL,-3}'", "NULL", "'{}'", "'{{1,2},{3,4}}'"),
    "texts": ("text[]", """'{a,"b c",NULL}'""", "NULL", "'{}'", "NULL"),
    "decimals": ("numeric(10,2)[]", "'{1.50,NULL}'", "NULL", "'{}'", "NULL"),
    "days": ("date[]", "'{2024-02-29}'", "NULL", "'{}'", "NULL"),
    "a_mood": ("mood", "'happy'", "NULL", "'sad'", "NULL"),
    "an_inet": ("inet", "'192.168.0.1/24'", "NULL", "'::1'", "NULL"),
    "a_money": ("money", "'12.50'", "NULL", "'-1'", "NULL"),
    "a_bit": ("bit", "B'1'", "NULL", "B'0'", "NULL"),
    "bits": ("varbit(12)", "B'100000001'", "NULL", "B'1'", "NULL"),
    "a_range": ("int4range", "'[1,5)'", "NULL", "'empty'", "NULL"),
    "a_point": ("point", "'(1,2)'", "NULL", "NULL", "NULL"),
    "an_xml": ("xml", "'<a/>'", "NULL", "NULL", "NULL"),
}
"""Columns of the table with one of each type, and their values in four rows."""


class Sample(NamedTuple):
    """A record as it was in the topic."""

    connector: str
    table: str
    key: bytes | None
    value: bytes | None


def samples(connector: str, table: str) -> list[Sample]:
    """The records of a connector of CONNECTORS and a table, in their order."""
    schemas: list[str] = []
    found: list[Sample] = []
    for line in FILE.read_text().splitlines():
        entry = json.loads(line)
        if "schema" in entry:
            schemas.append(entry["schema"])
        elif (entry["connector"], entry["table"]) == (connector, table):
            key, value = (_joined(schemas, entry[name]) for name in ("key", "value"))
            found.append(Sample(connector, table, key, value))
    return found


_BEGIN, _MIDDLE, _END = '{"schema":', ',"payload":', "}"


def _joined(schemas: Sequence[str], part: Any) -> bytes | None:
    if part is None or isinstance(part, str):
        return None if part is None else part.encode()
    number, payload = part
    return f"{_BEGIN}{schemas[number]}{_MIDDLE}{payload}{_END}".encode()


def _split(schemas: list[str], raw: bytes | None) -> Any:
    """The number of the schema and the payload, or all of it where it has no schema."""
    if raw is None or not raw.startswith(_BEGIN.encode()):
        return None if raw is None else raw.decode()
    schema, payload = raw.decode().removeprefix(_BEGIN).removesuffix(_END).split(_MIDDLE)
    if schema not in schemas:
        schemas.append(schema)
    return [schemas.index(schema), payload]


def make() -> None:
    lines: list[dict[str, Any]] = []
    schemas: list[str] = []
    with tempfile.TemporaryDirectory() as directory:
        for sample in _recorded(Path(directory)):
            key, value = _split(schemas, sample.key), _split(schemas, sample.value)
            lines.append({**sample._asdict(), "key": key, "value": value})
    written = [*({"schema": schema} for schema in schemas), *lines]
    FILE.write_text("".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in written))


def _recorded(directory: Path) -> Iterator[Sample]:
    broker = BrokerProcess(directory / "data", BROKER_SETTINGS)
    broker.start()
    try:
        with Postgres(directory) as postgres, debezium_worker(directory, broker.kafka) as worker:
            for connector in CONNECTORS:
                yield from _of_connector(broker, postgres, worker, connector)
    finally:
        broker.kill()


def _of_connector(
    broker: BrokerProcess, postgres: Postgres, worker: ConnectWorker, name: str
) -> Iterator[Sample]:
    """A connector finds some rows, and then sees changes."""
    settings, tables = CONNECTORS[name]
    postgres.run("DROP SCHEMA public CASCADE", "CREATE SCHEMA public", *_TABLES)
    postgres.run(_kinds_table(), _kinds_row(1), _kinds_row(2))
    config = postgres_source(postgres, name, tables, {**_CONVERTERS, **settings})
    worker.configure(name, config)
    for table in tables:
        rows = {PLAIN: 1, KINDS: 2}.get(table, 0)
        records(broker.kafka, f"{name}.{table}", partial(_has, rows))
    postgres.run(_kinds_row(3), _kinds_row(4), _kinds_row(2, number=5), *_TOASTED)
    for table in (PLAIN, FULL):
        postgres.run(*(change.format(table=table) for change in _CHANGES))
    for table in tables:
        for key, value in records(broker.kafka, f"{name}.{table}", _ENDS[table]):
            yield Sample(name, table, key, value)


def _has(count: int, found: Sequence[Record]) -> bool:
    return len(found) == count


def _has_the_last(found: Sequence[Record]) -> bool:
    return bool(found) and f'"id":{LAST_ID}' in (found[-1][0] or b"").decode()


_ENDS: dict[str, Callable[[Sequence[Record]], bool]] = {
    PLAIN: _has_the_last,
    FULL: _has_the_last,
    TOASTED: partial(_has, 2),
    KINDS: partial(_has, 5),
}


def _kinds_table() -> str:
    columns = ", ".join(f"{name} {column[0]}" for name, column in _KINDS.items())
    return f"CREATE TABLE {KINDS} ({columns})"


def _kinds_row(row: int, number: int = 0) -> str:
    values = [str(number or row), *(column[row] for column in list(_KINDS.values())[1:])]
    return f"INSERT INTO {KINDS} VALUES ({', '.join(values)})"


if __name__ == "__main__":
    make()
