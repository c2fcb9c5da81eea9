"""Rows of records as Arrow columns of an Iceberg schema.

A value is fitted to its column's type if nothing is lost: text with a number is a number, a number
is text. Otherwise the record is a dead letter. Timestamps are ISO 8601 or milliseconds since 1970.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from types import NoneType
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import MappedField, parse_mapping_from_json
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

Row = dict[str, Any]
Convert = Callable[[Any], Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INT_MAX, LONG_MAX = 2**31, 2**63
NAME_MAPPING = "schema.name-mapping.default"
FieldNames = Mapping[int, Sequence[str]]
"""What fields are called in records, by their id, where that is not the column's name."""


class DoesNotFit(ValueError):
    """A value does not fit its column. One sentence says why."""


# --- values


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError


def _whole(limit: int) -> Convert:
    def convert(value: Any) -> int:
        number = Decimal(value) if isinstance(value, str) else value
        if isinstance(number, bool) or not isinstance(number, int | float | Decimal):
            raise ValueError
        whole = int(number)
        if whole != number or not -limit <= whole < limit:
            raise ValueError
        return whole

    return convert


def _double(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise ValueError
    return float(value)


def _number(value: Any) -> float:
    number = _double(value)
    if math.isnan(number):
        raise ValueError
    return number


def _decimal(kind: DecimalType) -> Convert:
    step = Decimal(1).scaleb(-kind.scale)

    def convert(value: Any) -> Decimal:
        if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
            raise ValueError
        exact = Decimal(str(value))
        fitted = exact.quantize(step)
        if fitted != exact or len(fitted.as_tuple().digits) > kind.precision:
            raise ValueError
        return fitted

    return convert


def _string(value: Any) -> str:
    if isinstance(value, str):
        value.encode()  # text of a binary format that is not UTF-8 has surrogates
        return value
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, bool | dict | list):
        value = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        value.encode()
        return str(value)
    return str(value)


def _binary(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise ValueError
    return value.encode("utf-8", "surrogateescape")


def _moment(value: Any) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _EPOCH + timedelta(milliseconds=value)
    if not isinstance(value, str):
        raise ValueError
    return datetime.fromisoformat(value)


def _timestamp(value: Any) -> datetime:
    moment = _moment(value)
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment


def _timestamptz(value: Any) -> datetime:
    moment = _moment(value)
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def _date(value: Any) -> date:
    if isinstance(value, int) and not isinstance(value, bool):
        return date(1970, 1, 1) + timedelta(days=value)
    if not isinstance(value, str):
        raise ValueError
    return date.fromisoformat(value)


def _time(value: Any) -> time:
    if not isinstance(value, str):
        raise ValueError
    return time.fromisoformat(value)


def _uuid(value: Any) -> bytes:
    return uuid.UUID(value).bytes


def _fixed(kind: FixedType) -> Convert:
    def convert(value: Any) -> bytes:
        found = _binary(value)
        if len(found) != len(kind):
            raise ValueError
        return found

    return convert


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
        return [(key(k), _or_null(item, one, kind.value_required)) for k, one in value.items()]

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


_SIMPLE: Mapping[type[IcebergType], Convert] = {
    BooleanType: _bool,
    IntegerType: _whole(INT_MAX),
    LongType: _whole(LONG_MAX),
    FloatType: _double,
    DoubleType: _double,
    StringType: _string,
    BinaryType: _binary,
    UUIDType: _uuid,
    TimestampType: _timestamp,
    TimestamptzType: _timestamptz,
    DateType: _date,
    TimeType: _time,
}


def converter(kind: IcebergType, names: FieldNames) -> Convert:
    """How a value that is not null becomes one of this type. It raises ValueError and others."""
    if type(kind) in _SIMPLE:
        return _SIMPLE[type(kind)]
    if isinstance(kind, DecimalType):
        return _decimal(kind)
    if isinstance(kind, FixedType):
        return _fixed(kind)
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
                _number if field.field_id in no_nan else converter(field.field_type, names),
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
        rows: Sequence[Row], errors: dict[int, str], field: NestedField, names: Sequence[str],
        convert: Convert, arrow: pa.DataType,
    ) -> pa.Array:  # fmt: skip
        values = _values(rows, names)
        fitting = _AS_THEY_ARE.get(type(field.field_type))
        if fitting is not None and convert is not _number:
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
            except (ValueError, TypeError, OverflowError, InvalidOperation, RecursionError):
                fitted.append(None)
                shown = "nothing" if value is None else str(value)[:100]
                reason = f"{names[0]}: {shown} does not fit {field.field_type}"
                errors.setdefault(number, reason.encode("utf-8", "replace").decode())
        return pa.array(fitted, arrow) if not errors else pa.nulls(len(fitted), arrow)


_AS_THEY_ARE: Mapping[type[IcebergType], set[type]] = {
    BooleanType: {bool, NoneType},
    IntegerType: {int, NoneType},
    LongType: {int, NoneType},
    DoubleType: {int, float, NoneType},
    StringType: {str, NoneType},
    BinaryType: {bytes, NoneType},
}
"""Values of Python that Arrow takes for a type at once, and refuses if they are too large."""


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
