"""Rows of records as Arrow columns of an Iceberg schema.

A value is fitted to its column's type if nothing is lost (scalars.py): text with a number is a
number, a number is text. Otherwise the record is a dead letter.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import NoneType
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import MappedField, parse_mapping_from_json
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DoubleType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from brokerhouse.spark_jobs.iceberg.scalars import UNFIT, Convert, WrittenFloat, scalar_converter

Row = dict[str, Any]
_SHOWN_CHARACTERS = 100
NAME_MAPPING = "schema.name-mapping.default"
FieldNames = Mapping[int, Sequence[str]]
"""What fields are called in records, by their id, where that is not the column's name."""


class DoesNotFit(ValueError):
    """A value does not fit its column. One sentence says why."""


# --- values in values


def _list(kind: ListType, names: FieldNames) -> Convert:
    item = converter(kind.element_type, names)

    def convert(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise ValueError
        return [_or_null(item, one, kind.element_required) for one in value]

    return convert


def _map(kind: MapType, names: FieldNames) -> Convert:
    key, item = converter(kind.key_type, names), converter(kind.value_type, names)

    def convert(value: Any) -> list[tuple[Any, Any]]:
        if not isinstance(value, dict):
            raise ValueError
        found = {key(k): _or_null(item, one, kind.value_required) for k, one in value.items()}
        if len(found) < len(value):
            raise ValueError  # 1 and "1" are one key
        return list(found.items())

    return convert


def _struct(kind: StructType, names: FieldNames) -> Convert:
    fields = [
        (field.name, names_of(field, names), converter(field.field_type, names), field.required)
        for field in kind.fields
    ]

    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError
        return {name: _or_null(make, _first(value, of), need) for name, of, make, need in fields}

    return convert


def _or_null(make: Convert, value: Any, required: bool) -> Any:
    if value is None:
        if required:
            raise ValueError
        return None
    return make(value)


def converter(kind: IcebergType, names: FieldNames) -> Convert:
    """How a value that is not null becomes one of this type. It raises `UNFIT`."""
    if simple := scalar_converter(kind):
        return simple
    if isinstance(kind, ListType):
        return _list(kind, names)
    if isinstance(kind, MapType):
        return _map(kind, names)
    if isinstance(kind, StructType):
        return _struct(kind, names)
    raise DoesNotFit(f"columns of type {kind} cannot be filled")


# --- columns


class RowFitter:
    """Rows to Arrow, for one schema. The table's name mapping, if it has one, names the fields."""

    def __init__(
        self, schema: Schema, properties: Mapping[str, str], no_nan: Collection[int] = ()
    ) -> None:
        """`no_nan`: ids of fields that take every number but NaN. Raises DoesNotFit."""
        self.schema = schema
        self.arrow = schema_to_pyarrow(schema, include_field_ids=False)
        names = field_names(properties)
        self._columns = [
            (
                field,
                names_of(field, names),
                _numbers_of(converter(field.field_type, names), field.field_id in no_nan),
                field.field_id in no_nan,
                self.arrow.field(field.name).type,
            )
            for field in schema.fields
        ]

    def fit(self, rows: Sequence[Row]) -> tuple[pa.Table, dict[int, str]]:
        """The rows that fit, and why others do not, by their number."""
        errors: dict[int, str] = {}
        columns = [self._column(rows, errors, *column) for column in self._columns]
        if errors:
            left = [row for number, row in enumerate(rows) if number not in errors]
            columns = [self._column(left, {}, *column) for column in self._columns]
        return pa.Table.from_arrays(columns, schema=self.arrow), errors

    @staticmethod
    def _column(
        rows: Sequence[Row],
        errors: dict[int, str],
        field: NestedField,
        names: Sequence[str],
        convert: Convert,
        no_nan: bool,
        arrow: pa.DataType,
    ) -> pa.Array:
        values = _values(rows, names)
        fitting = _AS_THEY_ARE.get(type(field.field_type))
        if fitting is not None and not no_nan:
            # Arrow by itself also takes 7.5 for 7, and true for 1.0.
            types = set(map(type, values))
            if types <= fitting and not (field.required and NoneType in types):
                try:
                    return pa.array(values, arrow)
                except (pa.ArrowException, ValueError, TypeError, OverflowError):
                    pass  # one by one, to say which does not fit
        fitted: list[Any] = []
        for number, value in enumerate(values):
            try:
                fitted.append(_or_null(convert, value, field.required))
            except UNFIT:
                fitted.append(None)
                reason = f"{names[0]}: {_shown(value)} does not fit {field.field_type}"
                errors.setdefault(number, reason.encode("utf-8", "replace").decode())
        return _array(fitted, arrow) if not errors else pa.nulls(len(fitted), arrow)


_AS_THEY_ARE: Mapping[type[IcebergType], set[type]] = {
    BooleanType: {bool, NoneType},
    IntegerType: {int, NoneType},
    LongType: {int, NoneType},
    DoubleType: {int, float, WrittenFloat, NoneType},
    StringType: {str, NoneType},
    BinaryType: {bytes, NoneType},
}
"""Values of Python that Arrow takes for a type at once, and refuses if they are too large."""


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """PyArrow makes no lists, maps and structs of UUIDs, but casts bytes to them."""
    bare = _without_extensions(kind)
    found = pa.array(values, bare)
    return found if bare == kind else found.cast(kind)


def _without_extensions(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    if pa.types.is_struct(kind):
        return pa.struct([one.with_type(_without_extensions(one.type)) for one in kind])
    if pa.types.is_map(kind):
        key = kind.key_field.with_type(_without_extensions(kind.key_type))
        item = kind.item_field.with_type(_without_extensions(kind.item_type))
        return pa.map_(key, item)
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        item = kind.value_field.with_type(_without_extensions(kind.value_type))
        return pa.large_list(item) if pa.types.is_large_list(kind) else pa.list_(item)
    return kind


def _numbers_of(convert: Convert, no_nan: bool) -> Convert:
    """`no_nan`: NaN does not fit."""
    if not no_nan:
        return convert

    def number(value: Any) -> float:
        found: float = convert(value)
        if math.isnan(found):
            raise ValueError
        return found

    return number


def _shown(value: Any) -> str:
    try:
        return "nothing" if value is None else str(value)[:_SHOWN_CHARACTERS]
    except (ValueError, RecursionError):  # thousands of digits, or of lists in each other
        return f"a value of type {type(value).__name__}"


def _values(rows: Sequence[Row], names: Sequence[str]) -> list[Any]:
    if len(names) == 1:
        name = names[0]
        return [row.get(name) for row in rows]
    return [_first(row, names) for row in rows]


def _first(row: Row, names: Sequence[str]) -> Any:
    return next((row[name] for name in names if name in row), None)


def field_names(properties: Mapping[str, str]) -> FieldNames:
    """Of all fields in the table's name mapping, also of nested ones."""
    found: dict[int, Sequence[str]] = {}

    def note(fields: Iterable[MappedField]) -> None:
        for one in fields:
            if one.field_id is not None and one.names:
                found[one.field_id] = list(one.names)
            note(one.fields)

    if text := properties.get(NAME_MAPPING):
        note(parse_mapping_from_json(text))
    return found


def names_of(field: NestedField, names: FieldNames) -> Sequence[str]:
    return names.get(field.field_id) or [field.name]
