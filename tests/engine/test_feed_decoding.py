"""Typed tables from binary formats: each record is decoded by itself, in a process of its own."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import msgpack
import pytest

from brokerhouse.feeds.blocks import BlockCounts
from brokerhouse.feeds.definition import Format
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import EngineError
from tests.support.feed_tables import FEED, FeedTables
from tests.support.schemas import Schemas

MSGPACK = replace(FEED, format=Format.MSGPACK)
AVRO = replace(FEED, format=Format.AVRO)


@pytest.fixture
async def fed(engine: EmbeddedEngine, tmp_path: Path) -> AsyncIterator[FeedTables]:
    made = FeedTables(engine, tmp_path)
    yield made
    await made.close()


async def test_maps_and_arrays_of_messagepack_become_rows(fed: FeedTables) -> None:
    await fed.make("id UInt64, city LowCardinality(String), _offset Int64")
    feed = replace(MSGPACK, paths={"city": "address.city"})
    offsets = await fed.produce(
        msgpack.packb({"id": 1, "address": {"city": "Köln"}, "more": [1]}),
        msgpack.packb([{"id": 2}, {"id": 3, "address": {"city": "Bonn"}}]),
        msgpack.packb([4, "Ulm"]),
        msgpack.packb([]),
        None,
    )

    assert await fed.write(offsets, feed=feed) == BlockCounts(4, 0)
    assert await fed.rows() == [[1, "Köln", 0], [2, "", 1], [3, "Bonn", 1], [4, "Ulm", 2]]


TYPES: Sequence[tuple[str, Any, str]] = [
    ("Bool", True, "true"),
    ("Int64", -(2**63), str(-(2**63))),
    ("UInt64", 2**64 - 1, str(2**64 - 1)),
    ("Float64", 0.1, "0.1"),
    ("Float64", float("inf"), "inf"),
    ("Float64", float("nan"), "nan"),
    ("Decimal(18, 2)", "9.99", "9.99"),
    ("String", "a\nb\u2028\"c'", "a\nb\u2028\"c'"),
    ("String", "NaN or Infinity", "NaN or Infinity"),
    ("Nullable(String)", None, ""),
    ("DateTime64(3, 'UTC')", datetime(2026, 11, 24, 1, 2, 3, 4000, UTC), "2026-11-24 01:02:03.004"),
    ("Array(UInt8)", [1, 2], "[1,2]"),
    ("Map(String, Int32)", {"a": 1}, "{'a':1}"),
    ("Map(UInt8, Int32)", {5: 1}, "{5:1}"),
]


@pytest.mark.parametrize(("kind", "value", "expected"), TYPES)
async def test_a_messagepack_value_of_each_type_is_stored(
    fed: FeedTables, kind: str, value: object, expected: str
) -> None:
    await fed.make(f"v {kind}")
    offsets = await fed.produce(msgpack.packb({"v": value}, datetime=True))

    assert await fed.write(offsets, feed=MSGPACK) == BlockCounts(1, 0), await fed.errors()
    assert await fed.rows("ifNull(toString(v), '')") == [[expected]]


async def test_bytes_that_are_not_utf_8_are_stored_unchanged(fed: FeedTables) -> None:
    await fed.make("v String")
    offsets = await fed.produce(msgpack.packb({"v": bytes(range(256))}))

    assert await fed.write(offsets, feed=MSGPACK) == BlockCounts(1, 0)
    assert await fed.rows("hex(v)") == [[bytes(range(256)).hex().upper()]]


async def test_bad_messagepack_makes_a_dead_letter_with_the_reason(fed: FeedTables) -> None:
    await fed.make("id UInt8, name String")
    bad = [
        b"\xc1",
        msgpack.packb({"id": 1})[:-1],
        msgpack.packb({"id": 1}) + b"\x00",
        msgpack.packb(7),
        msgpack.packb([1, 2, 3]),
        msgpack.packb({"id": 300}),
        msgpack.packb({"id": msgpack.ExtType(5, b"x")}),
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 5000,
        b"",
    ]
    good = msgpack.packb({"id": 1, "name": "good"})
    offsets = await fed.produce(*[one for value in bad for one in (value, good)])

    assert await fed.write(offsets, feed=MSGPACK) == BlockCounts(len(bad), len(bad))
    assert await fed.rows() == [[1, "good"]] * len(bad)
    errors = await fed.errors()
    assert [offset for offset, _ in errors] == list(range(0, 2 * len(bad), 2))
    texts = [error for _, error in errors]
    assert texts[3] == "neither a map nor an array"
    assert texts[4] == "an array of 3 values for 2 columns"
    assert texts[5] == "id: 300 does not fit UInt8"
    assert texts[6] == "an extension of type 5"
    assert all(texts)


ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {
            "name": "amount",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 18, "scale": 2},
        },
        {"name": "key", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {
            "name": "address",
            "type": {
                "type": "record",
                "name": "Address",
                "fields": [{"name": "city", "type": "string"}],
            },
        },
    ],
}
KEY = UUID("6c84fb90-12c4-11e1-840d-7b25c5ee775a")
RECORD = {
    "id": 1,
    "at": datetime(2026, 11, 24, 1, 2, 3, 4000, UTC),
    "day": date(2026, 11, 24),
    "amount": Decimal("9.99"),
    "key": KEY,
    "state": "PAID",
    "note": None,
    "tags": ["a", "b"],
    "counts": {"x": 1},
    "address": {"city": "Köln"},
}


def avro(schema_id: int, schema: Any, record: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), record)
    return b"\0" + schema_id.to_bytes(4, "big") + stream.getvalue()


async def test_avro_records_are_dead_letters_if_the_broker_has_no_schema_registry(
    fed: FeedTables,
) -> None:
    await fed.make("id UInt64")
    offsets = await fed.produce(avro(1, ORDER, RECORD))

    assert await fed.write(offsets, feed=AVRO) == BlockCounts(0, 1)
    [[_, error]] = await fed.errors()
    assert error == "the broker has no schema registry: set schema_registry"


async def test_records_do_not_become_dead_letters_while_the_schema_registry_is_away(
    engine: EmbeddedEngine, tmp_path: Path
) -> None:
    fed = FeedTables(engine, tmp_path, "http://127.0.0.1:9/")
    await fed.make("id UInt64")
    offsets = await fed.produce(avro(1, ORDER, RECORD))

    with pytest.raises(EngineError, match=r"http://127.0.0.1:9/schemas/ids/1"):
        await fed.write(offsets, feed=AVRO)
    assert await fed.errors() == []
    await fed.close()


async def test_a_block_does_not_repeat_decoded_values_of_an_earlier_block(fed: FeedTables) -> None:
    await fed.make("id UInt64")
    first = await fed.produce(msgpack.packb({"id": 1}))
    assert await fed.write(first, "one", MSGPACK) == BlockCounts(1, 0)
    second = await fed.produce(None, None)

    assert await fed.write(second, "two", MSGPACK) == BlockCounts(0, 0)
    assert await fed.rows() == [[1]]


async def test_a_first_block_with_no_values_stores_no_rows(fed: FeedTables) -> None:
    await fed.make("id UInt64")
    offsets = await fed.produce(None, None)

    assert await fed.write(offsets, feed=MSGPACK) == BlockCounts(0, 0)


async def test_a_decoder_that_was_killed_is_started_again(fed: FeedTables) -> None:
    await fed.make("id UInt64")
    offsets = await fed.produce(msgpack.packb({"id": 1}))
    assert await fed.write(offsets, "one", MSGPACK) == BlockCounts(1, 0)
    process = fed.decoder._process
    assert process is not None
    process.kill()
    await process.wait()

    assert await fed.write(offsets, "two", MSGPACK) == BlockCounts(1, 0)
    assert await fed.rows() == [[1], [1]]


@pytest.fixture
def schemas() -> Iterator[Schemas]:
    made = Schemas()
    yield made
    made.close()


@pytest.fixture
async def with_schemas(
    engine: EmbeddedEngine, tmp_path: Path, schemas: Schemas
) -> AsyncIterator[FeedTables]:
    made = FeedTables(engine, tmp_path, schemas.url)
    yield made
    await made.close()


async def test_records_of_avro_become_rows(with_schemas: FeedTables, schemas: Schemas) -> None:
    schemas.add(1, ORDER)
    await with_schemas.make(
        "id UInt32, at DateTime64(3, 'UTC'), day Date, amount Decimal(18, 2), key UUID,"
        " state Enum8('NEW' = 1, 'PAID' = 2), note Nullable(String), tags Array(String),"
        " counts Map(String, UInt8), address Tuple(city String)"
    )
    offsets = await with_schemas.produce(avro(1, ORDER, RECORD), None, avro(1, ORDER, RECORD))

    assert await with_schemas.write(offsets, feed=AVRO) == BlockCounts(2, 0)
    row = [
        1,
        "2026-11-24 01:02:03.004",
        "2026-11-24",
        9.99,
        str(KEY),
        "PAID",
        None,
        ["a", "b"],
        {"x": 1},
        {"city": "Köln"},
    ]
    assert await with_schemas.rows() == [row, row]
    assert schemas.asked == ["/api/schemas/ids/1"]
    assert schemas.user == "Basic c29tZTpib2R5"


async def test_a_dead_letter_names_the_field_whose_date_or_time_its_column_cannot_hold(
    with_schemas: FeedTables, schemas: Schemas
) -> None:
    """Its record is decoded all the same."""
    kinds: dict[str, dict[str, Any]] = {
        "at": {"type": "long", "logicalType": "timestamp-millis"},
        "exact": {"type": "long", "logicalType": "timestamp-nanos"},
        "day": {"type": "int", "logicalType": "date"},
        "amount": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
    }
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    plain = [{"name": name, "type": kind["type"]} for name, kind in kinds.items()]
    record = {"type": "record", "name": "R", "fields": fields}
    schemas.add(1, record)
    await with_schemas.make(
        "at DateTime64(3, 'UTC'), exact DateTime64(9, 'UTC'), day Date32, amount Decimal(18, 2)"
    )
    good = {"at": 1, "exact": 1_764_000_000_123_456_789, "day": 1, "amount": b"\7\7\7\7"}
    year_12345 = 327_400_000_000_000
    rows = [good, {**good, "at": year_12345}, {**good, "day": 4_000_000}, {**good, "at": -(2**62)}]
    written = {**record, "fields": plain}
    offsets = await with_schemas.produce(*(avro(1, written, row) for row in rows))

    assert await with_schemas.write(offsets, feed=AVRO) == BlockCounts(1, 3)
    assert await with_schemas.rows("toString(at), toString(exact), toString(amount)") == [
        ["1970-01-01 00:00:00.001", "2025-11-24 16:00:00.123456789", "1179010.63"]
    ]
    errors = [error for _, error in await with_schemas.errors()]
    assert errors[0].startswith("at: +12344-")
    assert errors[1].startswith("day: +12921-")
    assert errors[2].startswith("at: -146")


async def test_timestamps_of_messagepack_keep_all_digits(fed: FeedTables) -> None:
    await fed.make("v DateTime64(9, 'UTC'), n UInt8")
    sent = [(1, 123_456_789), (1, 500_000_000), (1, 0), (2**50, 0)]
    offsets = await fed.produce(
        *(msgpack.packb({"v": msgpack.Timestamp(*one), "n": n}) for n, one in enumerate(sent))
    )

    assert await fed.write(offsets, feed=MSGPACK) == BlockCounts(3, 1)
    texts = [f"1970-01-01 00:00:01.{fraction:09}" for _, fraction in sent[:3]]
    assert await fed.rows("toString(v)") == sorted([one] for one in texts)
    [[_, error]] = await fed.errors()
    assert error.startswith("v: +35680317-")


async def test_records_of_several_schemas_in_one_block_become_rows(
    with_schemas: FeedTables, schemas: Schemas
) -> None:
    """Of them one refers to another one, which is under a subject of its own."""
    old = {"type": "record", "name": "A", "fields": [{"name": "id", "type": "int"}]}
    inner = {"type": "record", "name": "shop.B", "fields": [{"name": "n", "type": "long"}]}
    new = {
        "type": "record",
        "name": "A",
        "fields": [{"name": "id", "type": "long"}, {"name": "b", "type": "shop.B"}],
    }
    schemas.add(1, old)
    schemas.add(2, new, references=[{"name": "shop.B", "subject": "b/c", "version": 3}])
    schemas.answers["/api/subjects/b%2Fc/versions/3"] = (200, {"schema": json.dumps(inner)})
    whole = {**new, "fields": [new["fields"][0], {"name": "b", "type": inner}]}
    await with_schemas.make("id UInt64, n Int64")
    feed = replace(AVRO, paths={"n": "b.n"})
    offsets = await with_schemas.produce(
        avro(1, old, {"id": 1}), avro(2, whole, {"id": 2, "b": {"n": 7}}), avro(1, old, {"id": 3})
    )

    assert await with_schemas.write(offsets, feed=feed) == BlockCounts(3, 0)
    assert await with_schemas.rows() == [[1, 0], [2, 7], [3, 0]]


@pytest.mark.test_all  # reading it takes seconds
async def test_an_avro_array_of_countless_nulls_is_a_dead_letter(
    with_schemas: FeedTables, schemas: Schemas
) -> None:
    schemas.add(5, {"type": "array", "items": "null"})
    many = b"\0\0\0\0\5" + bytes([0xFE, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01]) + b"\0"
    await with_schemas.make("id UInt8")
    assert await with_schemas.write(await with_schemas.produce(many), feed=AVRO) == BlockCounts(
        0, 1
    )
    ((_, error),) = await with_schemas.errors()
    assert error


async def test_bad_avro_makes_a_dead_letter_with_the_reason(
    with_schemas: FeedTables, schemas: Schemas
) -> None:
    record = {"type": "record", "name": "A", "fields": [{"name": "id", "type": "long"}]}
    schemas.add(1, record)
    schemas.add(2, "message A {}", schemaType="PROTOBUF")
    schemas.add(3, {"type": "no type"})
    schemas.add(4, "string")
    half = {"type": "enum", "name": "E", "symbols": ["\ud800"]}
    schemas.add(6, {**record, "fields": [{"name": "id", "type": half}]})
    good = avro(1, record, {"id": 5})
    bad = {
        b"": "it does not begin with a zero and the id of a schema",
        b'{"id": 1}': "it does not begin with a zero and the id of a schema",
        good + b"\0": "1 bytes more than its schema has",
        good[:-1]: "",
        b"\0\0\0\0\x09\x02": "the schema registry has no schema 9",
        b"\0\0\0\0\2\x02": "schema 2 is of type PROTOBUF, not AVRO",
        b"\0\0\0\0\3\x02": "schema 3 is not understood",
        avro(4, "string", "text"): "its schema is neither a record nor an array of records",
        b"\0\0\0\0\6\0": "",  # half of a character, which no encoding has
        avro(1, record, {"id": 300}): "id: 300 does not fit UInt8",
    }
    await with_schemas.make("id UInt8")
    offsets = await with_schemas.produce(*[one for value in bad for one in (value, good)])

    assert await with_schemas.write(offsets, feed=AVRO) == BlockCounts(len(bad), len(bad))
    assert await with_schemas.rows() == [[5]] * len(bad)
    errors = await with_schemas.errors()
    assert [offset for offset, _ in errors] == list(range(0, 2 * len(bad), 2))
    for (_, error), expected in zip(errors, bad.values(), strict=True):
        assert error.startswith(expected)
        assert error


async def test_a_registry_that_fails_is_asked_again(
    with_schemas: FeedTables, schemas: Schemas
) -> None:
    await with_schemas.make("id UInt64")
    record = {"type": "record", "name": "A", "fields": [{"name": "id", "type": "long"}]}
    offsets = await with_schemas.produce(avro(1, record, {"id": 1}))
    failures: list[tuple[int, Any]] = [(500, {}), (401, {"message": "who"}), (200, []), (200, {})]
    for answer in failures:
        schemas.answers["/api/schemas/ids/1"] = answer
        with pytest.raises(EngineError, match="avro cannot be decoded") as raised:
            await with_schemas.write(offsets, feed=AVRO)
        assert "body" not in str(raised.value)  # the password

    schemas.add(1, record)
    assert await with_schemas.write(offsets, feed=AVRO) == BlockCounts(1, 0)
    assert await with_schemas.errors() == []


async def test_a_schema_missing_right_after_the_registry_was_away_is_asked_for_again(
    with_schemas: FeedTables, schemas: Schemas
) -> None:
    await with_schemas.make("id UInt64")
    record = {"type": "record", "name": "A", "fields": [{"name": "id", "type": "long"}]}
    offsets = await with_schemas.produce(avro(1, record, {"id": 1}))
    schemas.answers["/api/schemas/ids/1"] = (503, {})
    with pytest.raises(EngineError, match="answers 503"):
        await with_schemas.write(offsets, feed=AVRO)
    del schemas.answers["/api/schemas/ids/1"]
    with pytest.raises(EngineError, match="/schemas/ids/1 is not there yet"):
        await with_schemas.write(offsets, feed=AVRO)

    schemas.add(1, record)
    assert await with_schemas.write(offsets, feed=AVRO) == BlockCounts(1, 0)
    assert await with_schemas.errors() == []
