"""Records of Debezium, and what is read from them. Most are real (support/debezium_samples.py)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from brokerhouse.feeds.decoding.debezium import Debezium, DebeziumError, MessageReader, packed
from brokerhouse.feeds.decoding.debezium_columns import columns_of_change, key_columns
from brokerhouse.feeds.definition import Format
from brokerhouse.feeds.tables import table_engine, table_to_make
from tests.support.debezium_samples import CONNECTORS, KINDS, PLAIN, Sample, samples

COLUMNS = [("id",), ("name",), ("_op",), ("_deleted",)]


def decoded(decode: Debezium, sample: Sample) -> Any:
    """Its id, name, `_op` and `_deleted`; None for a tombstone."""
    if sample.value is None:
        return None
    [row] = decode(packed(sample.key, sample.value))
    return tuple(row.get(name) for (name,) in COLUMNS)


CHANGES = [
    (0, "zero", "r", 0),
    (1, "one", "c", 0),
    (1, "uno", "u", 0),
    (1, None, "d", 1),
    (10, "uno", "c", 0),
    (10, None, "d", 1),
    (2, "two", "c", 0),
    (2, "two", "u", 0),
    (2, None, "d", 1),
    (2, "again", "c", 0),
    (3, "the last", "c", 0),
]


@pytest.mark.parametrize("connector", ["default", "noschema", "nulls", "rewrite_fields"])
def test_every_form_of_a_change_is_the_same_row(connector: str) -> None:
    decode = Debezium(COLUMNS)
    found = [decoded(decode, one) for one in samples(connector, PLAIN)]
    assert [row for row in found if row is not None] == CHANGES


@pytest.mark.parametrize("connector", ["unwrap", "rewrite"])
def test_a_row_without_an_op_has_only_the_column_deleted(connector: str) -> None:
    decode = Debezium(COLUMNS)
    found = [decoded(decode, one) for one in samples(connector, PLAIN)]
    assert found == [
        (number, name, op if deleted else None, deleted) for number, name, op, deleted in CHANGES
    ]


def test_op_and_deleted_are_left_out_unless_a_table_has_columns_for_them() -> None:
    decode = Debezium([("id",)])
    for sample in samples("default", PLAIN):
        if sample.value is not None:
            [row] = decode(packed(sample.key, sample.value))
            assert not {"_op", "_deleted"} & row.keys()


@pytest.mark.parametrize("connector", CONNECTORS)
def test_a_reader_that_has_seen_the_schema_reads_the_same_rows(connector: str) -> None:
    """In any order of schemas: of the two that a table has, one has a column more."""
    kept = MessageReader("value")
    values = [
        one.value
        for table in CONNECTORS[connector].tables
        for one in samples(connector, table)
        if one.value is not None
    ]
    for value in [*values, *reversed(values)]:
        assert kept.read(value) == MessageReader("value").read(value)


SCHEMA = {"type": "struct", "fields": [{"field": "v", "type": "bytes"}]}


@pytest.mark.parametrize(
    "text",
    [
        '{"payload": {"v": "AA=="}, "schema": SCHEMA}',
        '  {"schema":SCHEMA,"payload":{"v":"AA=="}}  ',
        '{"schema":SCHEMA,"payload" : {"v":"AA=="}}',
    ],
)
def test_a_message_is_read_whatever_its_order_of_keys_and_its_spaces(text: str) -> None:
    reader = MessageReader("value")
    reader.read(b'{"schema":%b,"payload":null}' % json.dumps(SCHEMA).encode())
    message = reader.read(text.replace("SCHEMA", json.dumps(SCHEMA)).encode())
    assert message.row(message.payload) == {"v": b"\0"}


def test_a_row_with_the_columns_schema_and_payload_is_a_row() -> None:
    decode = Debezium([("schema",), ("payload",)])
    assert decode(packed(None, b'{"schema":"a","payload":1}')) == [{"schema": "a", "payload": 1}]


@pytest.mark.parametrize(
    ("scale", "text", "expected"),
    [
        (2, "AJY=", "1.50"),
        (2, "/w==", "-0.01"),
        (0, "AA==", "0"),
        (2, "", "0.00"),
        (-3, "Ag==", "2000"),
        (20, "AQ==", "0.00000000000000000001"),
    ],
)
def test_decimals_have_all_their_digits(scale: int, text: str, expected: str) -> None:
    schema = {
        "field": "v",
        "type": "bytes",
        "name": "org.apache.kafka.connect.data.Decimal",
        "parameters": {"scale": str(scale)},
    }
    value = {"schema": {"type": "struct", "fields": [schema]}, "payload": {"v": text}}
    assert Debezium([("v",)])(packed(None, json.dumps(value).encode())) == [{"v": expected}]


def test_a_key_that_is_not_json_is_an_error_only_of_a_deletion() -> None:
    decode = Debezium(COLUMNS)
    change, deletion = (samples("noschema", PLAIN)[place].value or b"" for place in (1, 3))
    assert decode(packed(b"plain text", change))
    with pytest.raises(DebeziumError, match="the key is not JSON"):
        decode(packed(b"plain text", deletion))


INFERRED = {
    "id": "Int64",
    "a_text": "String",
    "a_boolean": "Nullable(Bool)",
    "a_smallint": "Nullable(Int16)",
    "a_real": "Nullable(Float32)",
    "a_decimal": "Nullable(Decimal(18, 2))",
    "a_numeric": "Nullable(String)",
    "an_integral": "Nullable(Decimal(20, 0))",
    "a_date": "Nullable(Date32)",
    "a_time": "Nullable(String)",
    "a_timestamp": "Nullable(DateTime64(6, 'UTC'))",
    "a_timestamp3": "Nullable(DateTime64(3, 'UTC'))",
    "a_timestamptz": "Nullable(DateTime64(6, 'UTC'))",
    "an_interval": "Nullable(Int64)",
    "a_uuid": "Nullable(UUID)",
    "a_jsonb": "Nullable(String)",
    "a_bytea": "Nullable(String)",
    "ints": "Array(Nullable(Int32))",
    "decimals": "Array(Nullable(Decimal(10, 2)))",
    "days": "Array(Nullable(Date32))",
    "a_mood": "LowCardinality(Nullable(String))",
    "a_money": "Nullable(Decimal(38, 2))",
    "bits": "Nullable(UInt16)",
    "a_point": "JSON",
}


def test_columns_are_those_of_the_schema() -> None:
    sample = samples("default", KINDS)[0]
    found = {one.name: one.type for one in columns_of_change(sample.value or b"")}
    assert {name: found[name] for name in INFERRED} == INFERRED
    assert key_columns(sample.key or b"") == ["id"]


@pytest.mark.parametrize("connector", ["noschema", "rewrite_fields"])
def test_without_a_schema_there_are_no_columns(connector: str) -> None:
    assert columns_of_change(samples(connector, PLAIN)[0].value or b"") == []


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ("MergeTree", "ReplicatedMergeTree('/clickhouse/tables/{shard}/a/b', '{replica}')"),
        (
            "ReplacingMergeTree(_offset, _deleted)",
            "ReplicatedReplacingMergeTree('/clickhouse/tables/{shard}/a/b', '{replica}', _offset,"
            " _deleted)",
        ),
    ],
)
def test_the_engine_of_a_replicated_table_has_its_place_in_keeper(
    engine: str, expected: str
) -> None:
    assert table_engine("a", "b", engine, replicated=True) == expected
    assert table_engine("a", "b", engine, replicated=False) == engine


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ("id Int64", "id Int64, _offset Int64, _deleted UInt8"),
        ("id Int64, `_deleted` Bool", "id Int64, `_deleted` Bool, _offset Int64"),
        ("_offset UInt64,\n_deleted UInt8, id Int64", "_offset UInt64,\n_deleted UInt8, id Int64"),
    ],
)
def test_a_table_of_changes_gets_the_columns_that_its_engine_needs(
    columns: str, expected: str
) -> None:
    assert table_to_make(Format.DEBEZIUM, columns, "id", None) == (
        expected,
        "ReplacingMergeTree(_offset, _deleted)",
    )
    assert table_to_make(Format.DEBEZIUM, columns, None, "MergeTree") == (columns, "MergeTree")
    assert table_to_make(Format.JSON, columns, None, None) == (columns, "MergeTree")
    with pytest.raises(ValueError, match="give --order-by"):
        table_to_make(Format.DEBEZIUM, columns, None, None)
