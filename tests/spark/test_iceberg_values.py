"""A value in an Iceberg table reads back as the one that was sent, or its record is a dead letter.

Values are at and beyond every edge of each type, alone and in lists, maps and structs. What they
have to be is worked out by Python's exact arithmetic,
not by the job (tests/support/feed_values.py).
"""

from __future__ import annotations

import io
import json
import math
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from brokerhouse.feeds.definition import Format
from brokerhouse.spark_jobs.iceberg.rows import RowFitter
from brokerhouse.spark_jobs.iceberg.tables import LOCAL_CATALOG, local_catalog, open_catalog
from brokerhouse.spark_jobs.iceberg.values import ValueReader
from tests.support.feed_values import DEAD, SCALARS, Sent

NEST = "NEST"

# --- a value in each place


class Place:
    """Where a value is: the type of a column, a record, and the value that was read."""

    def __init__(
        self, kind: Callable[[IcebergType], IcebergType], value: Any, read: Callable[[Any], Any]
    ) -> None:
        self.kind, self._value, self.read = kind, value, read

    def json(self, text: str) -> str:
        return json.dumps(self._value).replace(json.dumps(NEST), text)

    def python(self, value: Any) -> Any:
        return _replaced(self._value, value)


def _replaced(shape: Any, value: Any) -> Any:
    if shape == NEST:
        return value
    if isinstance(shape, list):
        return [_replaced(one, value) for one in shape]
    if isinstance(shape, dict):
        return {key: _replaced(one, value) for key, one in shape.items()}
    return shape


def _list(kind: IcebergType) -> ListType:
    return ListType(10, kind, element_required=True)


def _map(kind: IcebergType) -> MapType:
    return MapType(20, StringType(), 21, kind, value_required=True)


def _struct(kind: IcebergType) -> StructType:
    return StructType(NestedField(30, "n", LongType()), NestedField(31, "x", kind, required=True))


PLACES: Mapping[str, Place] = {
    "alone": Place(lambda kind: kind, NEST, lambda found: found),
    "list": Place(_list, [NEST, NEST], lambda found: found[1]),
    "map": Place(_map, {"k": NEST}, lambda found: dict(found)["k"]),
    "struct": Place(_struct, {"n": 1, "x": NEST}, lambda found: found["x"]),
    "list_of_structs": Place(
        lambda kind: ListType(40, _struct(kind), element_required=True),
        [{"n": 1, "x": NEST}],
        lambda found: found[0]["x"],
    ),
    "map_of_lists": Place(
        lambda kind: MapType(50, StringType(), 51, _list(kind), value_required=True),
        {"k": [NEST]},
        lambda found: dict(found)["k"][0],
    ),
}


def fitter(kind: IcebergType) -> RowFitter:
    return RowFitter(Schema(NestedField(1, "v", kind)), {})


def stored(table: pa.Table) -> list[Any]:
    """As Parquet has it."""
    file = io.BytesIO()
    pq.write_table(table, file)
    found: list[Any] = pq.read_table(io.BytesIO(file.getvalue())).column("v").to_pylist()
    return found


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, float) and math.isnan(expected):
        return isinstance(found, float) and math.isnan(found)
    return type(found) is type(expected) and found == expected


def check(
    kind: IcebergType, place: Place, rows: list[Any], expected: list[Any], sent: list[str]
) -> None:
    """All at once, as in a batch; each is then known by its number."""
    column = place.kind(kind)
    found, errors = fitter(column).fit(rows)
    good = [number for number, one in enumerate(expected) if one is not DEAD]
    wrong = [sent[n] for n in range(len(rows)) if (n in errors) == (expected[n] is not DEAD)]
    assert wrong == [], errors
    values = [place.read(one) for one in stored(found)]
    for number, value in zip(good, values, strict=True):
        assert same(value, expected[number]), (sent[number], value, expected[number])
    for reason in errors.values():
        assert reason.startswith("v: ")
        assert reason.endswith(f" does not fit {column}")


def test_uuids_are_written_in_all_places(tmp_path: Path) -> None:
    """With PyIceberg, as the job does."""
    catalog = open_catalog(LOCAL_CATALOG, local_catalog(str(tmp_path)))
    catalog.create_namespace("shop")
    fields = [
        NestedField(100 * n, name, place.kind(UUIDType()))
        for n, (name, place) in enumerate(PLACES.items(), 1)
    ]
    table = catalog.create_table("shop.t", Schema(*fields))
    row = {name: place.python(UUID_TEXT) for name, place in PLACES.items()}
    fitted, errors = RowFitter(table.schema(), {}).fit([row])
    assert errors == {}
    table.append(fitted)
    [read] = table.scan().to_arrow().to_pylist()
    found = {name: place.read(read[name]) for name, place in PLACES.items()}
    assert {str(_as_uuid(one)) for one in found.values()} == {UUID_TEXT}


def _as_uuid(found: Any) -> uuid.UUID:
    return found if isinstance(found, uuid.UUID) else uuid.UUID(bytes=found)


# --- JSON

Expect = Callable[[str], Any]


def _float32(text: str) -> float:
    return float(pa.scalar(float(text), pa.float32()).as_py())


NUMBERS: list[tuple[IcebergType, str, Expect]] = [
    (IntegerType(), "Int32", int),
    (LongType(), "Int64", int),
    (FloatType(), "Float32", _float32),
    (DoubleType(), "Float64", float),
    (DecimalType(9, 2), "Decimal(9, 2)", Decimal),
    (DecimalType(18, 0), "Decimal(18, 0)", Decimal),
    (DecimalType(38, 10), "Decimal(38, 10)", Decimal),
]
NO_NUMBERS = [" 7", "7 ", "1_000", "٣", "\uff11", "0x10", "1e", "e5", ".", "+-1", "1.2.3", "True"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("kind", "typed", "expect"), NUMBERS, ids=str)
def test_numbers_of_json_keep_all_digits_or_are_refused(
    kind: IcebergType, typed: str, expect: Expect, place: str
) -> None:
    sent = [*SCALARS[typed](), *(Sent(json.dumps(text), DEAD) for text in NO_NUMBERS)]
    sent += [Sent(text, DEAD) for text in ("1e400", "-1e999999999", "9" * 5000, "1e" + "9" * 400)]
    expected = [DEAD if one.stored is DEAD else expect(one.stored) for one in sent]
    reader = ValueReader(Format.JSON, "")
    rows: list[Any] = []
    for one in sent:
        rows += reader.rows(f'{{"v":{PLACES[place].json(one.json)}}}'.encode(), [])
    check(kind, PLACES[place], rows, expected, [one.json for one in sent])


AS_WRITTEN = [
    "5",
    "1.50",
    "1e3",
    "-0.0",
    "1E+2",
    "0.00001",
    "12345678901234567890.12345",
    "1e400",
    "1e-400",
    "18446744073709551616",
    "-9223372036854775809",
    "9007199254740993",
    "9" * 5000,
    "true",
]


@pytest.mark.parametrize("place", PLACES)
def test_numbers_of_json_are_text_as_they_were_written(place: str) -> None:
    reader = ValueReader(Format.JSON, "")
    rows: list[Any] = []
    for text in AS_WRITTEN:
        rows += reader.rows(f'{{"v":{PLACES[place].json(text)}}}'.encode(), [])
    check(StringType(), PLACES[place], rows, list(AS_WRITTEN), AS_WRITTEN)


def test_objects_and_arrays_of_json_are_text_with_all_digits() -> None:
    text = '{"a":[1,1.50,12345678901234567890.12345,1e400],"b":{"c":null,"ü\\n":"\\"x"},"d":true}'
    [row] = ValueReader(Format.JSON, "").rows(f'{{"v":{text}}}'.encode(), [])
    found, errors = fitter(StringType()).fit([row])
    assert errors == {}
    assert stored(found) == [text]


# --- Python's values, as other formats have them

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
FIRST = datetime(1, 1, 1, tzinfo=UTC)
UUID_TEXT = "c98f0a1e-9d0c-4f3e-8b5a-000000000001"


def _moments() -> Iterator[tuple[Any, datetime | None]]:
    """`expected`: in UTC."""
    one = datetime(2026, 11, 24, 10, 0, 0, 123456, UTC)
    for text in (
        "2026-11-24T10:00:00.123456",
        "2026-11-24 10:00:00.123456000Z",
        "2026-11-24T12:00:00.123456+02:00",
        "20261124T100000.123456Z",
        "2026-11-24T10:00:00,123456Z",
    ):
        yield text, one
    yield from (("0001-01-01T00:00:00Z", FIRST), ("9999-12-31T23:59:59.999999Z", LAST))
    for text in (
        "2026-11-24T10:00:00.123456789Z",
        "2026-11-24T10:00:00.1234567",
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00",
        "+12345-01-01T00:00:00Z",
        "0000-01-01T00:00:00Z",
        "10:00:00",
        "-0043-03-15T00:00:00Z",
        "2026-11-24T10:00:00.",
        "2026-11-24+02:00",
        "2026-11-24.100000",
        "2026-11-24T10:00:00.1+02:00:00.5",
        "\uff12026-11-24",
        "2026-11-24x10:00",
        "2026-02-30",
        "",
        " 2026-11-24",
        "2026-11-24T25:00",
        "2026-11-24T10:00.5",
        "1e400",
        "5",
        "1795600800000",
    ):
        yield text, DEAD
    ms = (LAST - EPOCH) // timedelta(milliseconds=1)
    yield from ((ms, LAST.replace(microsecond=999000)), (ms + 1, DEAD), (10**30, DEAD))
    low = (FIRST - EPOCH) // timedelta(milliseconds=1)
    yield from ((low, FIRST), (low - 1, DEAD), (True, DEAD), (float("nan"), DEAD))
    yield from ((1.5, EPOCH + timedelta(microseconds=1500)), (0.0001, DEAD), (float("inf"), DEAD))
    yield from ((1795600800000.123, datetime(2026, 11, 25, 10, 0, 0, 123, UTC)), (b"5", DEAD))
    yield from ((Decimal("0.001"), EPOCH + timedelta(microseconds=1)), ([], DEAD), ({}, DEAD))
    yield Decimal("1.00000000000000000000000000000000000001"), DEAD
    yield msgpack.Timestamp(1, 5000), EPOCH + timedelta(seconds=1, microseconds=5)
    yield from ((msgpack.Timestamp(1, 5001), DEAD), (msgpack.Timestamp(2**60, 0), DEAD))


def _days() -> Iterator[tuple[Any, date | None]]:
    last = (date.max - date(1970, 1, 1)).days
    yield from ((1, date(1970, 1, 2)), (1.0, date(1970, 1, 2)), (-1, date(1969, 12, 31)))
    yield from ((last, date.max), (last + 1, DEAD), (2**31, DEAD), (10**400, DEAD), (1.5, DEAD))
    for text in ("2026-11-24", "20261124", "2026-W48-2"):
        yield text, date(2026, 11, 24)
    yield from (("0001-01-01", date.min), ("9999-12-31", date.max))
    others: list[Any] = [
        "+12345-01-01",
        "0000-01-01",
        "2026-02-30",
        "1",
        "",
        "2026-11-24T00:00:00Z",
        "\uff12026-11-24",
        True,
        [],
        {},
        b"2026-11-24",
        float("nan"),
    ]
    for other in others:
        yield other, DEAD


def _times() -> Iterator[tuple[Any, time | None]]:
    yield from (("10:00:00", time(10)), ("23:59:59.999999", time.max), ("00:00", time()))
    yield from (("10:00:00.1234560", time(10, 0, 0, 123456)), ("100000", time(10)))
    others: list[Any] = [
        "10:00:00.1234567",
        "10:00:00+02:00",
        "10:00:00Z",
        "24:00:00",
        "10:60",
        "",
        7,
        "-01:00:00",
        "T10:00",
        " 10:00",
        "2026-11-24T10:00",
        True,
        b"10:00",
        [],
    ]
    for other in others:
        yield other, DEAD


def _floats() -> Iterator[tuple[Any, float | None]]:
    yield from ((float("nan"), float("nan")), (float("inf"), float("inf")), (-0.0, -0.0))
    yield from ((16777216, 16777216.0), (16777217, DEAD), (1e39, DEAD), (1e-60, DEAD))
    yield from ((Decimal("0.5"), 0.5), (Decimal(16777217), DEAD), (10**400, DEAD), (True, DEAD))
    yield from ((b"1", DEAD), ([], DEAD), ({}, DEAD), ("1_0", DEAD), (Decimal("NaN"), DEAD))


def _doubles() -> Iterator[tuple[Any, float | None]]:
    yield from ((1e300, 1e300), (2**53, 2.0**53), (2**53 + 1, DEAD), (1875924584784080993, DEAD))
    yield from ((12345678901234567000, 12345678901234567000.0), (10**400, DEAD), (True, DEAD))
    yield from ((Decimal("0.1"), 0.1), (Decimal(2**53 + 1), DEAD), (Decimal("1e999"), DEAD))
    yield from ((Decimal("1e-999"), DEAD), (float("-inf"), float("-inf")), (b"1", DEAD))


def _wholes(low: int, high: int) -> Iterator[tuple[Any, int | None]]:
    yield from ((low, low), (high, high), (low - 1, DEAD), (high + 1, DEAD), (10**400, DEAD))
    yield from ((7.0, 7), (7.5, DEAD), (Decimal(7), 7), (Decimal("7.1"), DEAD), (True, DEAD))
    yield from ((Decimal("1e999999999"), DEAD), (float("nan"), DEAD), (float("inf"), DEAD))
    yield from (("1e999999999", DEAD), ("0e999999999", 0), (b"7", DEAD), ([7], DEAD), ("", DEAD))


def _decimals() -> Iterator[tuple[Any, Decimal | None]]:
    most = Decimal("9" * 36 + ".99")
    yield from ((str(most), most), (most, most), (f"{most}0", most), (f"{most}1", DEAD))
    yield from ((10**36 - 1, Decimal(10**36 - 1)), (10**36, DEAD))
    yield from ((9.99, Decimal("9.99")), (0.125, DEAD), (float("nan"), DEAD), (True, DEAD))
    yield from (("1e999999999", DEAD), (Decimal("Infinity"), DEAD), ("nan", DEAD), (b"1", DEAD))


OF_PYTHON: Mapping[IcebergType, Callable[[], Iterator[tuple[Any, Any]]]] = {
    BooleanType(): lambda: iter(
        [
            (True, True),
            ("FALSE", False),
            (1, DEAD),
            (0.0, DEAD),
            ("yes", DEAD),
            ("", DEAD),
            ([], DEAD),
            (b"true", DEAD),
        ]
    ),
    IntegerType(): lambda: _wholes(-(2**31), 2**31 - 1),
    LongType(): lambda: _wholes(-(2**63), 2**63 - 1),
    FloatType(): _floats,
    DoubleType(): _doubles,
    DecimalType(38, 2): _decimals,
    StringType(): lambda: iter(
        [
            ("é\0", "é\0"),
            (b"\xc3\xa9", "é"),
            (b"\xff", DEAD),
            ("a\udcff", DEAD),
            ("\ud83d", DEAD),
            (2**70, str(2**70)),
            (Decimal("0E-10"), "0.0000000000"),
            (Decimal("1E+3"), "1000"),
            ({"a": Decimal("1.10"), "b": b"x", 5: [None]}, '{"a":"1.10","b":"x","5":[null]}'),
            ([b"\xff"], DEAD),
            (msgpack.Timestamp(1, 1), "1970-01-01T00:00:01.000000001Z"),
            (10**5000, DEAD),
            (object(), DEAD),
        ]
    ),
    BinaryType(): lambda: iter(
        [
            (b"\xff\0", b"\xff\0"),
            ("a\udcff", b"a\xff"),
            (7, DEAD),
            (1.5, DEAD),
            ("\ud83d", DEAD),
            ([1], DEAD),
            (True, DEAD),
        ]
    ),
    FixedType(2): lambda: iter(
        [
            (b"ab", b"ab"),
            ("é", b"\xc3\xa9"),
            (b"abc", DEAD),
            ("", DEAD),
            (12, DEAD),
            ("\udc80a", b"\x80a"),
        ]
    ),
    UUIDType(): lambda: iter(
        [
            (UUID_TEXT, uuid.UUID(UUID_TEXT)),
            (UUID_TEXT.upper(), uuid.UUID(UUID_TEXT)),
            (UUID_TEXT.replace("-", ""), uuid.UUID(UUID_TEXT)),
            (5, DEAD),
            (1.5, DEAD),
            (f"{{{UUID_TEXT}}}", DEAD),
            (f"urn:uuid:{UUID_TEXT}", DEAD),
            (UUID_TEXT[:-1], DEAD),
            (f"{UUID_TEXT[:-2]}_1", DEAD),
            (b"x" * 16, DEAD),
            ([], DEAD),
            ({}, DEAD),
            (True, DEAD),
        ]
    ),
    TimestampType(): lambda: (
        (sent, found and found.replace(tzinfo=None)) for sent, found in _moments()
    ),
    TimestamptzType(): _moments,
    DateType(): _days,
    TimeType(): _times,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", OF_PYTHON, ids=str)
def test_values_of_any_format_read_back_or_are_refused(kind: IcebergType, place: str) -> None:
    sent, expected = zip(*OF_PYTHON[kind](), strict=True)
    rows = [{"v": PLACES[place].python(one)} for one in sent]
    shown = [ascii(one)[:100] if not isinstance(one, int) else f"{one:x}"[:100] for one in sent]
    check(kind, PLACES[place], rows, list(expected), shown)


@pytest.mark.parametrize("kind", OF_PYTHON, ids=str)
def test_a_value_alone_in_its_batch_is_as_one_among_others(kind: IcebergType) -> None:
    """Values of one type are taken as they are, without a look at each."""
    for sent, expected in OF_PYTHON[kind]():
        check(kind, PLACES["alone"], [{"v": sent}], [expected], [ascii(type(sent))])


@pytest.mark.parametrize("place", [name for name in PLACES if name != "alone"])
@pytest.mark.parametrize("kind", OF_PYTHON, ids=str)
def test_null_in_a_required_part_is_refused(kind: IcebergType, place: str) -> None:
    check(kind, PLACES[place], [{"v": PLACES[place].python(None)}], [DEAD], ["null"])


def test_keys_of_a_map_that_become_one_are_refused() -> None:
    kind = MapType(2, LongType(), 3, StringType(), value_required=False)
    found, errors = fitter(kind).fit([{"v": {"1": "a", "1.0": "b"}}, {"v": {"1": "a", "2": "b"}}])
    assert errors.keys() == {0}
    assert stored(found) == [[(1, "a"), (2, "b")]]


def test_a_key_that_is_null_is_refused() -> None:
    kind = MapType(2, StringType(), 3, LongType(), value_required=False)
    _, errors = fitter(kind).fit([{"v": {None: 1}}])
    assert errors.keys() == {0}


def test_a_value_that_cannot_be_shown_is_refused_by_its_type() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    _, errors = fitter(StringType()).fit([{"v": deep}, {"v": 10**5000}])
    assert errors == {
        0: "v: a value of type list does not fit string",
        1: "v: a value of type int does not fit string",
    }
