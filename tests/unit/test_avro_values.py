"""Logical types of Avro, at and beyond the edges of Python's own types."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import fastavro
import pytest

from brokerhouse.feeds.decoding.formats import Avro, as_json
from brokerhouse.feeds.decoding.registry import SchemaRegistry
from tests.support.schemas import Schemas

YEAR_1 = (datetime(1, 1, 1, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)).days
YEAR_10000 = (datetime(9999, 12, 31, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)).days + 1
DAY_S = 86_400
LONG_MAX = 2**63 - 1


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def fixed(size: int, name: str, **more: Any) -> dict[str, Any]:
    return {**logical("fixed", name, **more), "name": "F", "size": size}


DECIMAL = logical("bytes", "decimal", precision=4, scale=2)
TEXTS: list[tuple[dict[str, Any], Any, str]] = [
    (logical("int", "date"), 0, "1970-01-01"),
    (logical("int", "date"), YEAR_1, "0001-01-01"),
    (logical("int", "date"), YEAR_1 - 1, "0000-12-31"),
    (logical("int", "date"), YEAR_1 - 367, "-0001-12-31"),
    (logical("int", "date"), YEAR_10000 - 1, "9999-12-31"),
    (logical("int", "date"), YEAR_10000, "+10000-01-01"),
    (logical("int", "date"), 2**31 - 1, "+5881580-07-11"),
    (logical("int", "date"), -(2**31), "-5877641-06-23"),
    (logical("long", "timestamp-millis"), 1, "1970-01-01T00:00:00.001Z"),
    (logical("long", "timestamp-millis"), -1, "1969-12-31T23:59:59.999Z"),
    (logical("long", "timestamp-millis"), YEAR_1 * DAY_S * 1000, "0001-01-01T00:00:00.000Z"),
    (logical("long", "timestamp-millis"), YEAR_1 * DAY_S * 1000 - 1, "0000-12-31T23:59:59.999Z"),
    (
        logical("long", "timestamp-millis"),
        YEAR_10000 * DAY_S * 1000 - 1,
        "9999-12-31T23:59:59.999Z",
    ),
    (logical("long", "timestamp-millis"), YEAR_10000 * DAY_S * 1000, "+10000-01-01T00:00:00.000Z"),
    (logical("long", "timestamp-millis"), LONG_MAX, "+292278994-08-17T07:12:55.807Z"),
    (logical("long", "timestamp-micros"), 1, "1970-01-01T00:00:00.000001Z"),
    (
        logical("long", "timestamp-micros"),
        YEAR_10000 * DAY_S * 10**6,
        "+10000-01-01T00:00:00.000000Z",
    ),
    (logical("long", "timestamp-micros"), LONG_MAX, "+294247-01-10T04:00:54.775807Z"),
    (logical("long", "timestamp-nanos"), 1, "1970-01-01T00:00:00.000000001Z"),
    (logical("long", "timestamp-nanos"), LONG_MAX, "2262-04-11T23:47:16.854775807Z"),
    (logical("long", "local-timestamp-millis"), -1, "1969-12-31T23:59:59.999"),
    (logical("long", "local-timestamp-micros"), 1, "1970-01-01T00:00:00.000001"),
    (logical("long", "local-timestamp-nanos"), -1, "1969-12-31T23:59:59.999999999"),
    (logical("int", "time-millis"), DAY_S * 1000 - 1, "23:59:59.999"),
    (logical("int", "time-millis"), DAY_S * 1000, "24:00:00.000"),
    (logical("long", "time-micros"), 1, "00:00:00.000001"),
    (logical("long", "time-micros"), -1, "-00:00:00.000001"),
    (DECIMAL, b"", "0.00"),
    (DECIMAL, (-1).to_bytes(1, "big", signed=True), "-0.01"),
    (DECIMAL, (10**12 + 1).to_bytes(6, "big"), "10000000000.01"),
    (DECIMAL, (10**90 + 1).to_bytes(40, "big"), f"1{'0' * 87}0.01"),
    (logical("bytes", "decimal", precision=4), (9999).to_bytes(2, "big"), "9999"),
    (logical("bytes", "decimal", precision=20, scale=12), b"\1", "0.000000000001"),
    (fixed(2, "decimal", precision=4, scale=1), (1234).to_bytes(2, "big"), "123.4"),
    (logical("string", "uuid"), "no uuid", "no uuid"),
    (fixed(16, "uuid"), bytes(range(16)), "00010203-0405-0607-0809-0a0b0c0d0e0f"),
]


@pytest.fixture(scope="module")
def schemas() -> Iterator[Schemas]:
    made = Schemas()
    yield made
    made.close()


def decoded(schemas: Schemas, number: int, kind: Any, value: Any) -> Any:
    """What a record of one field has; it is written without the logical type."""
    record = {"type": "record", "name": "R", "fields": [{"name": "v", "type": kind}]}
    schemas.add(number, record)
    plain = json.loads(json.dumps(record).replace('"logicalType"', '"was"'))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(plain), {"v": value})
    [row] = Avro(SchemaRegistry(schemas.url))(b"\0" + number.to_bytes(4, "big") + out.getvalue())
    return row["v"]


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else str(as_json(value))


@pytest.mark.parametrize(("kind", "value", "text"), TEXTS)
def test_a_logical_value_is_its_text_with_all_digits(
    schemas: Schemas, kind: dict[str, Any], value: Any, text: str
) -> None:
    number = TEXTS.index((kind, value, text)) + 1
    assert as_text(decoded(schemas, number, kind, value)) == text
    assert as_text(decoded(schemas, 100 + number, ["null", kind], value)) == text
    [inner] = decoded(schemas, 200 + number, {"type": "array", "items": kind}, [value])
    assert as_text(inner) == text


def test_a_duration_stays_bytes(schemas: Schemas) -> None:
    assert decoded(schemas, 999, fixed(12, "duration"), b"x" * 12) == b"x" * 12
