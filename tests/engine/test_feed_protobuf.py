"""Typed tables from Protobuf, with a schema registry."""

from __future__ import annotations

import base64
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

from brokerhouse.feeds.blocks import BlockCounts
from brokerhouse.feeds.definition import Format
from brokerhouse.storage.embedded import EmbeddedEngine
from tests.support.feed_tables import FEED, FeedTables
from tests.support.schemas import Schemas

PROTOBUF = replace(FEED, format=Format.PROTOBUF)
MONEY = """
syntax = "proto3";
package shop;
message Money { string amount = 1; Currency currency = 2; }
enum Currency { NONE = 0; EUR = 1; }
"""
ORDER = """
syntax = "proto3";
package shop;
import "shop/money.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/wrappers.proto";
message Other { int32 n = 1; message Inner { int64 deep = 1; } }
message Order {
    uint64 id = 1;
    google.protobuf.Timestamp at = 2;
    Money price = 3;
    repeated string tags = 4;
    map<string, int32> counts = 5;
    optional string note = 6;
    google.protobuf.Int64Value seen = 7;
    double weight = 8;
    bytes raw = 9;
    repeated Money parts = 10;
    map<int32, Money> by_day = 11;
    google.protobuf.Struct free = 12;
    bool paid = 13;
    oneof how { string card = 14; int32 cash = 15; }
    Order earlier = 16;
    google.protobuf.Duration took = 17;
}
"""


@pytest.fixture
def schemas() -> Iterator[Schemas]:
    made = Schemas()
    made.add_text(
        1,
        ORDER,
        schemaType="PROTOBUF",
        references=[{"name": "shop/money.proto", "subject": "money", "version": 2}],
    )
    made.answers["/api/subjects/money/versions/2"] = (200, {"schema": MONEY})
    yield made
    made.close()


@pytest.fixture
async def fed(
    engine: EmbeddedEngine, tmp_path: Path, schemas: Schemas
) -> AsyncIterator[FeedTables]:
    made = FeedTables(engine, tmp_path, schemas.url)
    yield made
    await made.close()


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> descriptor_pool.DescriptorPool:
    """The messages of the schema, as the producer's compiler makes them."""
    directory = tmp_path_factory.mktemp("protobuf")
    (directory / "shop").mkdir()
    (directory / "shop/money.proto").write_text(MONEY)
    (directory / "order.proto").write_text(ORDER)
    subprocess.run(
        [
            sys.executable,
            *shlex.split(
                "-m grpc_tools.protoc -I. --include_imports --descriptor_set_out=set order.proto"
            ),
        ],
        cwd=directory,
        check=True,
    )
    made = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString((directory / "set").read_bytes()).file:
        made.Add(file)
    return made


def message(pool: descriptor_pool.DescriptorPool, name: str, fields: dict[str, Any]) -> bytes:
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    encoded: bytes = json_format.ParseDict(fields, kind()).SerializeToString()
    return encoded


HEADER = b"\0\0\0\0\1"
SECOND = HEADER + b"\2\2"  # one index, 1: as zigzag varints
FIRST = HEADER + b"\0"
INNER = HEADER + b"\4\0\0"


async def test_protobuf_messages_become_rows(
    fed: FeedTables, schemas: Schemas, pool: descriptor_pool.DescriptorPool
) -> None:
    await fed.make(
        "id UInt64, at Nullable(DateTime64(3, 'UTC')), amount Decimal(18, 2), currency String,"
        " tags Array(String), counts Map(String, Int32), note Nullable(String),"
        " seen Nullable(Int64), weight Float64, raw String, parts Array(Tuple(amount String)),"
        " by_day Map(Int32, String), free JSON, paid Bool, card Nullable(String),"
        " cash Nullable(Int32), before Nullable(UInt64), took Nullable(String)"
    )
    paths = {"amount": "price.amount", "currency": "price.currency", "before": "earlier.id"}
    full = message(
        pool,
        "shop.Order",
        {
            "id": 2**64 - 1,
            "at": "2026-11-24T01:02:03.004Z",
            "price": {"amount": "9.99", "currency": "EUR"},
            "tags": ["a", "ü"],
            "counts": {"x": -1},
            "note": "",
            "seen": 0,
            "weight": "Infinity",
            "raw": "/wA=",
            "parts": [{"amount": "1"}],
            "by_day": {"-3": {"amount": "5"}},
            "free": {"k": [1, None]},
            "paid": True,
            "cash": 7,
            "earlier": {"id": 3},
            "took": "1.5s",
        },
    )
    empty = message(pool, "shop.Order", {"price": {"amount": "0"}})
    offsets = await fed.produce(SECOND + full, None, SECOND + empty)

    counted = await fed.write(offsets, feed=replace(PROTOBUF, paths=paths))
    assert counted == BlockCounts(2, 0), await fed.errors()
    bare, row = await fed.rows(
        "toString(id), toString(at), amount, currency, tags, counts, note, seen, toString(weight),"
        " hex(raw), parts.amount, toString(by_day), toString(free), paid, card, cash, before, took"
    )
    plain = [str(2**64 - 1), "2026-11-24 01:02:03.004", 9.99, "EUR", ["a", "ü"], {"x": -1}, "", 0]
    nested = ["inf", "FF00", ["1"], """{-3:'{"amount":"5","currency":"NONE"}'}""", '{"k":[1,null]}']
    assert row == [*plain, *nested, True, None, 7, 3, "1.500s"]
    bare_plain: list[object] = ["0", None, 0, "NONE", [], {}, None, None]
    assert bare == [*bare_plain, "0", "", [], "{}", "{}", False, None, None, None, None]
    assert schemas.asked == ["/api/schemas/ids/1", "/api/subjects/money/versions/2"]


async def test_every_message_type_of_a_protobuf_schema_can_be_decoded(
    fed: FeedTables, pool: descriptor_pool.DescriptorPool
) -> None:
    await fed.make("n Int32, deep Int64")
    other = message(pool, "shop.Other", {"n": 5})
    offsets = await fed.produce(
        FIRST + other,
        HEADER + b"\2\0" + other,
        INNER + message(pool, "shop.Other.Inner", {"deep": -6}),
    )

    assert await fed.write(offsets, feed=PROTOBUF) == BlockCounts(3, 0), await fed.errors()
    assert await fed.rows("n, toString(deep)") == [[0, "-6"], [5, "0"], [5, "0"]]


async def test_bad_protobuf_makes_a_dead_letter_with_the_reason(
    fed: FeedTables, schemas: Schemas, pool: descriptor_pool.DescriptorPool
) -> None:
    def add(schema_id: int, text: str, *imported: str) -> bytes:
        schemas.add_text(
            schema_id,
            text,
            schemaType="PROTOBUF",
            references=[{"name": name, "subject": "money", "version": 2} for name in imported],
        )
        return b"\0\0\0\0" + bytes([schema_id]) + b"\0"

    schemas.add(2, "string")
    good = FIRST + message(pool, "shop.Other", {"n": 5})
    late = b"\x07\x08\x80\xa0\x94\xa5\x8d\x1d"  # its length, and 10^12 seconds
    bad = {
        b"": "it does not begin with a zero and the id of a schema",
        HEADER: "it ends before it says which message it is",
        HEADER + b"\xff" * 20: "it ends before it says which message it is",
        HEADER + b"\1": "-1 indexes of a message",
        HEADER + b"\2\1": "the index -1 of a message",
        HEADER + b"\2\6": "its schema has no message [3]",
        HEADER + b"\xfe\x7f": "8191 indexes of a message",
        good[:-1]: "",
        good + b"\xff": "",
        FIRST + b"\x0a\xff\xff\xff\xff\x0f": "",
        b"\0\0\0\0\2\0": "schema 2 is of type AVRO, not PROTOBUF",
        b"\0\0\0\0\x09\0": "the schema registry has no schema 9",
        add(3, "message"): "schema 3 is not understood: ",
        add(4, 'syntax = "proto3"; import "no.proto"; message A {}'): "schema 4 is not understood",
        add(5, "", "../../../a.proto"): "schema 5 is not understood: '../../../a.proto' cannot be",
        add(6, "", "/tmp/a.proto"): "schema 6 is not understood: '/tmp/a.proto' cannot be",
        add(7, 'syntax = "proto3";'): "its schema has no message [0]",
        FIRST + message(pool, "shop.Other", {"n": 300}): "n: 300 does not fit UInt8",
        SECOND + b"\x12" + late: "at: seconds: 1000000000000 does not fit google.protobuf.",
        SECOND + b"\x82\x01\x09\x12" + late: "earlier.at: seconds: 1000000000000 does not",
        SECOND + b"\x8a\x01" + late: "took: seconds: 1000000000000 does not fit google.",
    }
    await fed.make("n UInt8")
    offsets = await fed.produce(*[one for value in bad for one in (value, good)])

    assert await fed.write(offsets, feed=PROTOBUF) == BlockCounts(len(bad), len(bad))
    assert await fed.rows() == [[5]] * len(bad)
    errors = await fed.errors()
    assert [offset for offset, _ in errors] == list(range(0, 2 * len(bad), 2))
    for (_, error), expected in zip(errors, bad.values(), strict=True):
        assert error.startswith(expected)
        assert error


@pytest.mark.parametrize(
    "serialized", [{"shop/money.proto"}, {"order.proto"}, {"shop/money.proto", "order.proto"}]
)
async def test_a_schema_that_is_a_compiled_file_in_base64_is_understood(
    fed: FeedTables, schemas: Schemas, pool: descriptor_pool.DescriptorPool, serialized: set[str]
) -> None:
    """Confluent's client for Python registers it so, and Apicurio's registry keeps it so."""

    def text(name: str, source: str) -> str:
        if name not in serialized:
            return source
        file = descriptor_pb2.FileDescriptorProto()
        pool.FindFileByName(name).CopyToProto(file)
        return base64.b64encode(file.SerializeToString()).decode()

    schemas.add_text(
        1,
        text("order.proto", ORDER),
        schemaType="PROTOBUF",
        references=[{"name": "shop/money.proto", "subject": "money", "version": 2}],
    )
    schemas.answers["/api/subjects/money/versions/2"] = (
        200,
        {"schema": text("shop/money.proto", MONEY)},
    )
    await fed.make("id UInt64, amount Decimal(18, 2), at DateTime64(3, 'UTC')")
    value = message(
        pool, "shop.Order", {"id": 5, "price": {"amount": "9.99"}, "at": "2026-11-24T01:02:03.004Z"}
    )
    offsets = await fed.produce(SECOND + value)

    feed = replace(PROTOBUF, paths={"amount": "price.amount"})
    assert await fed.write(offsets, feed=feed) == BlockCounts(1, 0), await fed.errors()
    assert await fed.rows("toString(id), amount, toString(at)") == [
        ["5", 9.99, "2026-11-24 01:02:03.004"]
    ]
