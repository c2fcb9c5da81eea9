"""A stored value reads back as the one that was sent, or the record is a dead letter: all types."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import msgpack
import pytest

from brokerhouse.feeds.blocks import BlockCounts, Offsets
from brokerhouse.feeds.definition import FeedDefinition, FeedOptions, Format
from brokerhouse.storage.embedded import EmbeddedEngine
from tests.support.feed_tables import BLOCK, FEED, TOPIC_ID, FeedTables
from tests.support.feed_values import (
    DEAD,
    NESTS,
    SCALARS,
    Nest,
    Sent,
    as_python,
    is_same,
    nests_of,
)
from tests.support.schemas import Schemas


@pytest.fixture
async def fed(engine: EmbeddedEngine, tmp_path: Path) -> AsyncIterator[FeedTables]:
    made = FeedTables(engine, tmp_path)
    yield made
    await made.close()


ONE_OF_EACH_SORT = ("Int64", "Float64", "Decimal(38, 10)", "Bool", "String", "DateTime64(3, 'UTC')")
KINDS = [
    pytest.param(kind, marks=[] if kind in ONE_OF_EACH_SORT else [pytest.mark.test_all])
    for kind in SCALARS
]
"""Every type; `make test` takes one of each sort, as decoders differ by the sort of a value."""

Record = tuple[bytes, str, str | None]
"""A value, the nest that it fills, and what that has to store."""


async def check(
    fed: FeedTables,
    kind: str,
    nests: Mapping[str, Nest],
    sent: Sequence[Record],
    feed: FeedDefinition = FEED,
) -> None:
    """Each value is stored as it should be, or its record is a dead letter that names it.

    The table has a column for each nest, called as it is.
    """
    columns = ", ".join(f"{name} {nest.type.format(kind)}" for name, nest in nests.items())
    await fed.session.execute("SET flatten_nested = 0, allow_suspicious_low_cardinality_types = 1")
    await fed.session.execute("CREATE DATABASE IF NOT EXISTS shop")
    await fed.session.execute(
        f"CREATE TABLE shop.orders ({columns}, _offset Int64, {BLOCK}) ENGINE = MergeTree"
        " ORDER BY _offset SETTINGS non_replicated_deduplication_window = 100"
    )
    offsets = await produce_all(fed, [value for value, _, _ in sent])
    counted = await fed.write(offsets, feed=feed)
    shown = ", ".join(nest.stored.format(name) for name, nest in nests.items())
    rows = {
        row[0]: dict(zip(nests, row[1:], strict=True))
        for row in await fed.rows(f"_offset, {shown}")
    }
    errors = dict(await fed.errors())
    wrong = []
    for offset, (value, nest, expected) in enumerate(sent, offsets.first):
        found = rows[offset][nest] if offset in rows else errors.get(offset)
        if expected is DEAD:
            if offset in rows or not is_named(errors.get(offset, ""), nest, kind):
                wrong.append((value, found, "a dead letter"))
        elif offset not in rows or not is_same(kind, rows[offset][nest], expected):
            wrong.append((value, found, expected))
    assert not wrong, f"{kind}: {len(wrong)} of {len(sent)}, such as {wrong[:8]}"
    assert counted == BlockCounts(len(rows), len(sent) - len(rows))


def is_named(error: str, column: str, kind: str) -> bool:
    """Whether an error says which field, which value and which type."""
    field, _, rest = error.partition(": ")
    return field == column and " does not fit " in rest and kind.split("(")[0] in rest


async def produce_all(fed: FeedTables, values: Sequence[bytes]) -> Offsets:
    rows = ", ".join(
        f"('orders', '{TOPIC_ID}', 0, {n}, 0, unhex('{value.hex()}'), now64(3))"
        for n, value in enumerate(values)
    )
    columns = "topic, topic_id, partition, offset, timestamp_ms, value, append_time"
    await fed.engine.execute(f"INSERT INTO messages ({columns}) VALUES {rows}")
    return Offsets(0, len(values))


@pytest.mark.parametrize("kind", KINDS)
async def test_nested_json_values_read_back_unchanged_or_become_dead_letters(
    fed: FeedTables, kind: str
) -> None:
    await check_json(fed, kind, nests_of(kind))


@pytest.mark.parametrize("kind", SCALARS)
async def test_json_values_read_back_unchanged_or_become_dead_letters(
    fed: FeedTables, kind: str
) -> None:
    await check_json(fed, kind, {"alone": NESTS["alone"]})


async def check_json(fed: FeedTables, kind: str, nests: Mapping[str, Nest]) -> None:
    sent = [
        (f'{{"{name}": {nest.wrap(one.json)}}}'.encode(), name, one.stored)
        for name, nest in nests.items()
        for one in SCALARS[kind]()
    ]
    await check(fed, kind, nests, sent)


@pytest.mark.parametrize("kind", KINDS)
async def test_messagepack_values_read_back_unchanged_or_become_dead_letters(
    fed: FeedTables, kind: str
) -> None:
    nests = {name: NESTS[name] for name in ("alone", "array", "map")}
    sent = []
    for one in SCALARS[kind]():
        try:
            value = as_python(one.json)
            if kind == "String" and not isinstance(value, str) and json.dumps(value) != one.json:
                continue  # blanks, or a number that Python writes in another way
            packed = {"alone": value, "array": [value], "map": {"k": value}}
            sent += [(msgpack.packb({name: packed[name]}), name, one.stored) for name in nests]
        except (ValueError, OverflowError):
            continue  # MessagePack has no such value
    assert len(sent) > 2
    await check(fed, kind, nests, sent, replace(FEED, format=Format.MSGPACK))


@pytest.mark.parametrize("kind", KINDS)
async def test_csv_values_read_back_unchanged_or_become_dead_letters(
    fed: FeedTables, kind: str
) -> None:
    """Text in quotes is text, and what is not in quotes may be a number."""
    sent = []
    for one in SCALARS[kind]():
        value = json.loads(one.json, parse_float=str, parse_int=str, parse_constant=str)
        is_text = one.json.startswith('"')
        if not isinstance(value, str) or one.json.startswith('"\\ud'):
            continue  # half of a surrogate pair is no text of CSV
        # Nobody can tell whether digits such as 20240101 are a day or a number.
        is_either = "Date" in kind and not is_text and len(value) in (8, 14) and value.isdigit()
        text = '"{}"'.format(value.replace('"', '""')) if is_text else value
        sent.append((text.encode(), "alone", DEAD if is_either else one.stored))
    nests = {"alone": NESTS["alone"]}
    await check(fed, kind, nests, sent, replace(FEED, format=Format.CSV))


LARGE = [
    ("UInt64", float(2**63), str(2**63)),
    ("UInt128", 1e30, str(int(1e30))),
    ("Decimal(76, 0)", -1e70, str(int(-1e70))),
    ("Float64", float(2**63), str(float(2**63))),
    ("Int64", 1e22, DEAD),
    ("Float32", 1e39, DEAD),
]


@pytest.mark.parametrize(("kind", "value", "stored"), LARGE)
async def test_a_large_double_is_stored_with_all_its_digits(
    fed: FeedTables, kind: str, value: float, stored: str | None
) -> None:
    """Its shortest text, 9.223372036854776e+18, is another whole number."""
    nests = {name: NESTS[name] for name in ("alone", "array")}
    packed = {"alone": value, "array": [value]}
    sent = [(msgpack.packb({name: packed[name]}), name, stored) for name in nests]
    await check(fed, kind, nests, sent, replace(FEED, format=Format.MSGPACK))


ANY = ["null", "boolean", "long", "double", "string"]
UNION = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "alone", "type": ANY, "default": None},
        {"name": "array", "type": ["null", {"type": "array", "items": ANY}], "default": None},
        {"name": "map", "type": ["null", {"type": "map", "values": ANY}], "default": None},
    ],
}


@pytest.fixture
async def registered(engine: EmbeddedEngine, tmp_path: Path) -> AsyncIterator[FeedTables]:
    schemas = Schemas()
    schemas.add(1, UNION)
    schemas.add_text(2, PROTO, schemaType="PROTOBUF")
    made = FeedTables(engine, tmp_path, schemas.url)
    yield made
    await made.close()
    schemas.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_avro_values_read_back_unchanged_or_become_dead_letters(
    registered: FeedTables, kind: str
) -> None:
    nests = {name: NESTS[name] for name in ("alone", "array", "map")}
    sent: list[Record] = []
    for one in SCALARS[kind]():
        try:
            value = as_written(kind, one)
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                continue  # no long; fastavro would write a double
            wrapped = {"alone": value, "array": [value], "map": {"k": value}}
            for name in nests:
                encoded = io.BytesIO(b"\0\0\0\0\1")
                encoded.seek(0, io.SEEK_END)
                fastavro.schemaless_writer(encoded, UNION, {name: wrapped[name]})
                sent.append((encoded.getvalue(), name, one.stored))
        except (ValueError, OverflowError):
            continue  # the schema has no such value
    assert len(sent) > 2
    await check(registered, kind, nests, sent, replace(FEED, format=Format.AVRO))


PROTO = """
syntax = "proto3";
message Row { oneof v { sint64 i = 1; uint64 u = 2; double d = 3; string s = 4; bool b = 5; } }
"""


@pytest.mark.parametrize("kind", KINDS)
async def test_protobuf_values_read_back_unchanged_or_become_dead_letters(
    registered: FeedTables, kind: str
) -> None:
    """The column is filled from the field of the kind that a value has."""
    sent: list[Record] = []
    for one in SCALARS[kind]():
        try:
            field, encoded = protobuf_field(as_written(kind, one))
        except ValueError:
            continue  # no field has such a value
        sent.append((b"\0\0\0\0\2\0" + encoded, field, one.stored))
    nests = dict.fromkeys("iudsb", NESTS["nullable"])
    await check(registered, kind, nests, sent, replace(FEED, format=Format.PROTOBUF))


def as_written(kind: str, one: Sent) -> Any:
    """Raises ValueError for a value that only JSON can write."""
    value = as_python(one.json)
    if isinstance(value, (dict, list)) or (isinstance(value, str) and "\\ud" in one.json.lower()):
        raise ValueError("only JSON")
    if kind.startswith(("String", "Fixed")) and json.dumps(value).strip('"') != one.json.strip('"'):
        raise ValueError("Python writes it in another way")
    return value


def protobuf_field(value: Any) -> tuple[str, bytes]:
    """The name of a field, and its bytes: https://protobuf.dev/programming-guides/encoding/."""
    if isinstance(value, bool):
        return "b", bytes([5 << 3, value])
    if isinstance(value, int) and 0 <= value < 2**64:
        return "u", bytes([2 << 3]) + varint(value)
    if isinstance(value, int) and -(2**63) <= value < 0:
        return "i", bytes([1 << 3]) + varint(-2 * value - 1)
    if isinstance(value, float):
        return "d", bytes([3 << 3 | 1]) + struct.pack("<d", value)
    if isinstance(value, str):
        text = value.encode()
        return "s", bytes([4 << 3 | 2]) + varint(len(text)) + text
    raise ValueError("no field has such a value")


def varint(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


UNITS = [
    ("Date", "days", "19723", "2024-01-01"),
    ("Date", "ms", "1704067200000", "2024-01-01"),
    ("Date", "ms", "1704067200001", DEAD),
    ("Date32", "s", '"1704067200"', "2024-01-01"),
    ("Date32", "us", "-86400000000", "1969-12-31"),
    ("Date", "s", "1e30", DEAD),
    ("DateTime('UTC')", "ms", "1704067200000", "2024-01-01 00:00:00"),
    ("DateTime('UTC')", "ms", "1704067200001", DEAD),
    ("DateTime('UTC')", "days", "19723", "2024-01-01 00:00:00"),
    ("DateTime64(3, 'UTC')", "s", "1704067200", "2024-01-01 00:00:00.000"),
    ("DateTime64(3, 'UTC')", "s", "1704067200.123", "2024-01-01 00:00:00.123"),
    ("DateTime64(3, 'UTC')", "us", "1704067200123000", "2024-01-01 00:00:00.123"),
    ("DateTime64(3, 'UTC')", "us", "1704067200123001", DEAD),
    ("DateTime64(6, 'UTC')", "ms", '"1704067200123"', "2024-01-01 00:00:00.123000"),
    ("DateTime64(9, 'UTC')", "ns", "1704067200123456789", "2024-01-01 00:00:00.123456789"),
    ("DateTime64(6, 'UTC')", "days", "-1", "1969-12-31 00:00:00.000000"),
    ("DateTime64(3, 'UTC')", "s", '"2024-01-01T00:00:00Z"', "2024-01-01 00:00:00.000"),
    ("DateTime64(3, 'UTC')", "s", '"20240101"', "1970-08-23 06:15:01.000"),
]


@pytest.mark.parametrize(("kind", "unit", "value", "stored"), UNITS)
async def test_the_unit_of_a_column_decides_which_time_a_number_means(
    fed: FeedTables, kind: str, unit: str, value: str, stored: str | None
) -> None:
    nests = {name: NESTS[name] for name in ("alone", "array", "map")}
    feed = replace(FEED, options=FeedOptions(units=dict.fromkeys(nests, unit)))
    sent = [
        (f'{{"{name}": {nest.wrap(value)}}}'.encode(), name, stored) for name, nest in nests.items()
    ]
    await check(fed, kind, nests, sent, feed)
