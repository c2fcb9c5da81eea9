"""Columns for the table of a Debezium feed, by the schema in a record.

PostgreSQL's types as Debezium names them become types that hold each of their values exactly, as
docs/debezium.md has them in a table. What has no such type is a String, with the text that
PostgreSQL shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from brokerhouse.feeds.decoding.debezium import MessageReader
from brokerhouse.feeds.definition import BLOCK_COLUMN, METADATA_COLUMNS
from brokerhouse.feeds.inference import InferredColumn
from brokerhouse.feeds.paths import path_as_text
from brokerhouse.feeds.tables import DELETED_COLUMN

_NOT_FIELDS = METADATA_COLUMNS | {BLOCK_COLUMN, DELETED_COLUMN}
_DECIMAL_DIGITS = 76
_UNKNOWN_DIGITS = 38
"""Of a decimal whose precision is not in the schema, as that of `money`."""

_ANY_LENGTH = 1 << 31


def columns_of_change(value: bytes) -> list[InferredColumn]:
    """Empty if the record has no schema. Raises `DebeziumError`."""
    return columns_of_fields(MessageReader("value").read(value).fields)


def columns_of_fields(fields: Mapping[str, Mapping[str, Any]]) -> list[InferredColumn]:
    """`fields`: schemas by name."""
    return [
        InferredColumn(name, column_type(schema), path_as_text((name,)))
        for name, schema in fields.items()
        if name not in _NOT_FIELDS and not name.startswith("__")
    ]


def key_columns(key: bytes) -> Sequence[str]:
    """The columns of the primary key. Raises `DebeziumError`."""
    payload = MessageReader("key").read(key).payload
    return list(payload) if isinstance(payload, dict) else []


def column_type(schema: Mapping[str, Any]) -> str:
    """Of a field with this schema."""
    kind = _type(schema)
    if not schema.get("optional") or kind.startswith(("Array", "JSON")):
        return kind
    if kind.startswith("LowCardinality("):
        return f"LowCardinality(Nullable({kind.removeprefix('LowCardinality(')})"
    return f"Nullable({kind})"


def _type(schema: Mapping[str, Any]) -> str:
    name, kind = schema.get("name", ""), schema["type"]
    if name in _NAMED:
        return _NAMED[name]
    if name == "org.apache.kafka.connect.data.Decimal":
        return _decimal(schema["parameters"])
    if name == "io.debezium.data.Bits":
        return _bits(schema.get("parameters", {}))
    if kind == "array":
        return f"Array({column_type(schema['items'])})"
    return _TYPES.get(kind, "JSON")


def _decimal(parameters: Mapping[str, str]) -> str:
    scale = int(parameters["scale"])
    precision = int(parameters.get("connect.decimal.precision", _UNKNOWN_DIGITS))
    digits = precision - min(scale, 0)
    if digits > _DECIMAL_DIGITS or scale > digits:
        return "String"
    return f"Decimal({digits}, {max(scale, 0)})"


def _bits(parameters: Mapping[str, str]) -> str:
    length = int(parameters.get("length", "0")) or _ANY_LENGTH
    return next((f"UInt{bits}" for bits in (8, 16, 32, 64, 128, 256) if length <= bits), "String")


_TYPES: Mapping[str, str] = {
    "int8": "Int8",
    "int16": "Int16",
    "int32": "Int32",
    "int64": "Int64",
    "boolean": "Bool",
    "float": "Float32",
    "double": "Float64",
    "string": "String",
    "bytes": "String",
}
_CONNECT, _TIME = "org.apache.kafka.connect.data.", "io.debezium.time."
_MOMENT = "DateTime64({}, 'UTC')"
_NAMED: Mapping[str, str] = {
    "io.debezium.data.VariableScaleDecimal": "String",
    "io.debezium.data.Uuid": "UUID",
    "io.debezium.data.Enum": "LowCardinality(String)",
    f"{_CONNECT}Date": "Date32",
    f"{_CONNECT}Time": "String",
    f"{_CONNECT}Timestamp": _MOMENT.format(3),
    f"{_TIME}Date": "Date32",
    f"{_TIME}IsoDate": "Date32",
    f"{_TIME}Time": "String",
    f"{_TIME}MicroTime": "String",
    f"{_TIME}NanoTime": "String",
    f"{_TIME}Timestamp": _MOMENT.format(3),
    f"{_TIME}MicroTimestamp": _MOMENT.format(6),
    f"{_TIME}NanoTimestamp": _MOMENT.format(9),
    f"{_TIME}IsoTimestamp": _MOMENT.format(6),
    f"{_TIME}ZonedTimestamp": _MOMENT.format(6),
}
