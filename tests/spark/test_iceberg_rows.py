"""Values of records in columns of each Iceberg type, and columns by what records have."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
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

from brokerhouse.spark_jobs.iceberg.evolution import Evolution, inferred
from brokerhouse.spark_jobs.iceberg.rows import NAME_MAPPING, RowFitter

LIST = ListType(2, IntegerType(), element_required=False)
MAP = MapType(3, StringType(), 4, LongType(), value_required=False)
STRUCT = StructType(NestedField(5, "n", LongType()), NestedField(6, "s", StringType()))
MOMENT = datetime(2026, 11, 25, 10, 0, 0, 500_000)
SOME_UUID = uuid.UUID("6f1e0a3c-7a0b-4c55-9a43-8d1a3f0b2c4d")

FITS: list[tuple[IcebergType, Any, Any]] = [
    (BooleanType(), True, True),
    (BooleanType(), "TRUE", True),
    (IntegerType(), 7, 7),
    (IntegerType(), "7", 7),
    (IntegerType(), 7.0, 7),
    (LongType(), -(2**63), -(2**63)),
    (LongType(), "9223372036854775807", 2**63 - 1),
    (FloatType(), 1.5, 1.5),
    (DoubleType(), 3, 3.0),
    (DoubleType(), "1e3", 1000.0),
    (DecimalType(10, 2), 9.99, Decimal("9.99")),
    (DecimalType(10, 2), "12345678.90", Decimal("12345678.90")),
    (StringType(), "é", "é"),
    (StringType(), 7, "7"),
    (StringType(), b"\xc3\xa9", "é"),
    (StringType(), {"a": [1]}, '{"a":[1]}'),
    (StringType(), True, "true"),
    (BinaryType(), "a\udcff", b"a\xff"),
    (FixedType(2), "ab", b"ab"),
    (UUIDType(), str(SOME_UUID), SOME_UUID),
    (TimestampType(), "2026-11-25T12:00:00.5+02:00", MOMENT),
    (TimestampType(), "2026-11-25 10:00:00.500", MOMENT),
    (TimestamptzType(), "2026-11-25T10:00:00.5Z", MOMENT.replace(tzinfo=UTC)),
    (TimestamptzType(), 1795600800500, MOMENT.replace(tzinfo=UTC)),
    (DateType(), "2026-11-25", date(2026, 11, 25)),
    (DateType(), 1, date(1970, 1, 2)),
    (TimeType(), "10:00:00", time(10)),
    (LIST, [1, None, "3"], [1, None, 3]),
    (MAP, {"a": 1, "b": None}, [("a", 1), ("b", None)]),
    (STRUCT, {"n": 1, "other": 2}, {"n": 1, "s": None}),
]
DOES_NOT_FIT: list[tuple[IcebergType, Any]] = [
    (BooleanType(), 1),
    (BooleanType(), "yes"),
    (IntegerType(), 2**31),
    (IntegerType(), 7.5),
    (IntegerType(), True),
    (LongType(), 2**63),
    (LongType(), 7.5),
    (LongType(), True),
    (LongType(), "x"),
    (LongType(), float("nan")),
    (DoubleType(), "x"),
    (DoubleType(), True),
    (DecimalType(4, 2), "100.00"),
    (DecimalType(4, 2), "1.005"),
    (StringType(), "a\udcff"),
    (StringType(), b"\xff"),
    (BinaryType(), 7),
    (FixedType(2), "abc"),
    (UUIDType(), "x"),
    (TimestampType(), "yesterday"),
    (TimestamptzType(), 10**30),
    (DateType(), "2026-13-01"),
    (TimeType(), 7),
    (LIST, 7),
    (LIST, ["x"]),
    (MAP, [1]),
    (STRUCT, "x"),
    (STRUCT, {"n": "x"}),
]


def fitter(kind: IcebergType, *, required: bool = False) -> RowFitter:
    return RowFitter(Schema(NestedField(1, "v", kind, required=required)), {})


@pytest.mark.parametrize(("kind", "value", "expected"), FITS, ids=str)
def test_a_value_is_fitted_if_nothing_is_lost(kind: IcebergType, value: Any, expected: Any) -> None:
    found, errors = fitter(kind).fit([{"v": value}, {"v": None}, {}])
    assert errors == {}
    assert found.column("v").to_pylist() == [expected, None, None]


@pytest.mark.parametrize(("kind", "value"), DOES_NOT_FIT, ids=str)
def test_a_value_that_does_not_fit_is_named_and_the_other_rows_are_taken(
    kind: IcebergType, value: Any
) -> None:
    [good] = [one for known, one, _ in FITS if type(known) is type(kind)][:1]
    found, errors = fitter(kind).fit([{"v": good}, {"v": value}, {"v": good}])
    assert list(errors) == [1]
    assert errors[1].startswith("v: ")
    assert errors[1].endswith(f" does not fit {kind}")
    assert found.num_rows == 2
    errors[1].encode()


def test_a_required_column_takes_no_null() -> None:
    found, errors = fitter(LongType(), required=True).fit([{"v": 1}, {}, {"v": None}])
    assert found.column("v").to_pylist() == [1]
    assert errors == dict.fromkeys((1, 2), "v: nothing does not fit long")


def test_each_row_names_its_column_that_does_not_fit() -> None:
    schema = Schema(NestedField(1, "a", LongType()), NestedField(2, "b", LongType()))
    found, errors = RowFitter(schema, {}).fit([{"a": 1, "b": "x"}, {"a": "x"}, {"a": 3, "b": 4}])
    assert errors == {0: "b: x does not fit long", 1: "a: x does not fit long"}
    assert found.to_pylist() == [{"a": 3, "b": 4}]


def test_columns_are_inferred_from_all_rows() -> None:
    rows = [
        {"i": 1, "f": 1, "s": "x", "b": True, "o": {"a": 1}, "l": [{"x": 1}], "n": None, "m": 1},
        {"i": 2, "f": 1.5, "o": {"b": ["y"]}, "l": [{"y": 2.5}], "e": {}, "m": "x", "big": 2**70},
    ]
    found = {field.name: field.type for field in inferred(rows)}
    assert found == {
        "i": pa.int64(),
        "f": pa.float64(),
        "s": pa.string(),
        "b": pa.bool_(),
        "o": pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]),
        "l": pa.list_(pa.struct([("x", pa.int64()), ("y", pa.float64())])),
        "e": pa.string(),
        "m": pa.string(),
        "big": pa.string(),
    }
    assert inferred(rows, {"i"}).names == ["i"]


def lacking(schema: Schema, *rows: Any, ignored: Collection[str] = ()) -> dict[str, pa.DataType]:
    found = Evolution(schema, {}, ignored).lacking(rows)
    return {} if found is None else {field.name: field.type for field in found}


def test_int_and_float_are_widened_only_where_a_value_needs_it() -> None:
    schema = Schema(NestedField(1, "i", IntegerType()), NestedField(2, "f", FloatType()))
    assert lacking(schema, {"i": 2**31 - 1, "f": 1.5}, {"f": float("nan")}) == {}
    found = lacking(schema, {"i": 2**31, "f": 0.1})
    assert found == {"i": pa.int64(), "f": pa.float64()}


def test_numbers_that_no_wider_type_takes_widen_nothing() -> None:
    schema = Schema(NestedField(1, "i", IntegerType()), NestedField(2, "f", FloatType()))
    assert lacking(schema, {"i": 2**63, "f": 2**53 + 1}, {"f": 10**400, "i": True}) == {}
    found = lacking(schema, {"f": 2**24 + 1}, {"i": -(2**31) - 1})
    assert found == {"i": pa.int64(), "f": pa.float64()}


def test_columns_and_fields_that_a_schema_lacks_are_found_in_all_rows() -> None:
    item = StructType(NestedField(5, "a", IntegerType()))
    schema = Schema(
        NestedField(1, "o", StructType(NestedField(2, "n", IntegerType()))),
        NestedField(3, "l", ListType(4, item)),
        NestedField(6, "m", MAP),
    )
    plain = {"o": {"n": 1}, "l": [{"a": 1}, None, 7], "m": {"x": 1}}
    assert lacking(schema, plain, {"o": None, "l": None}, {"o": 5, "l": {"a": 2}}) == {}
    rows = [
        plain,
        {"o": {"p": {"q": 1}}, "new": True},
        {"o": {"n": 2**40, "p": {"r": "x"}}, "l": [{}, {"b": 1.5}]},
        {"not": 1},
    ]
    inner = pa.struct([("q", pa.int64()), ("r", pa.string())])
    assert lacking(schema, *rows, ignored={"not"}) == {
        "new": pa.bool_(),
        "o": pa.struct([("p", inner), ("n", pa.int64())]),
        "l": pa.list_(pa.field("element", pa.struct([("b", pa.float64())]), nullable=False)),
    }


def test_fields_that_the_schema_cannot_get_are_told_by_row() -> None:
    schema = Schema(
        NestedField(1, "o", StructType(NestedField(2, "n", LongType()))),
        NestedField(3, "l", ListType(4, StructType(NestedField(5, "a", LongType())))),
        NestedField(6, "m", MAP),
    )
    rows: list[dict[str, Any]] = [
        {"o": {"n": 1}, "m": {"": 1}},
        {"o": {"": 1}},
        {"l": [{"a": 1}, {"\ud800": 1}]},
        {"": 1},
        {"o": {"p": json.loads("[" * 60 + "]" * 60)}},
    ]
    assert Evolution(schema, {}).refusals(rows) == {
        1: "'o': no column can have this name",
        2: "'l': no column can have this name",
        3: "'': no column can have this name",
        4: "'o': nested more than 50 times",
    }


def test_nested_fields_have_names_by_the_mapping() -> None:
    schema = Schema(NestedField(1, "o", StructType(NestedField(2, "n", LongType()))))
    mapping = [
        {"field-id": 1, "names": ["object"], "fields": [{"field-id": 2, "names": ["N", "number"]}]}
    ]
    properties = {NAME_MAPPING: json.dumps(mapping)}
    rows = [{"object": {"number": 1}}, {"object": {"N": 2, "number": 3}}, {"o": {"n": 4}}]
    found, errors = RowFitter(schema, properties).fit(rows)
    assert errors == {}
    assert found.to_pylist() == [{"o": {"n": 1}}, {"o": {"n": 2}}, {"o": None}]
    assert Evolution(schema, properties).lacking(rows) is None
