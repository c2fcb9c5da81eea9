"""Rows of records as Arrow columns of an Iceberg schema, and schemas by what rows have.

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
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import parse_mapping_from_json
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
_INT_MAX, _LONG_MAX = 2**31, 2**63
_DEPTH_MAX = 50
"""Of nested fields of new columns; PyIceberg's visitors call themselves several times for each."""
NAME_MAPPING = "schema.name-mapping.default"


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


def _list(kind: ListType) -> Convert:
    item = converter(kind.element_type)

    def convert(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise ValueError
        return [_or_null(item, one, kind.element_required) for one in value]

    return convert


def _map(kind: MapType) -> Convert:
    key, item = converter(kind.key_type), converter(kind.value_type)

    def convert(value: Any) -> list[tuple[Any, Any]]:
        if not isinstance(value, dict):
            raise ValueError
        return [(key(k), _or_null(item, one, kind.value_required)) for k, one in value.items()]

    return convert


def _struct(kind: StructType) -> Convert:
    fields = [(field.name, converter(field.field_type), field.required) for field in kind.fields]

    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError
        return {name: _or_null(make, value.get(name), need) for name, make, need in fields}

    return convert


def _or_null(make: Convert, value: Any, required: bool) -> Any:
    if value is None:
        if required:
            raise ValueError
        return None
    return make(value)


_SIMPLE: Mapping[type[IcebergType], Convert] = {
    BooleanType: _bool,
    IntegerType: _whole(_INT_MAX),
    LongType: _whole(_LONG_MAX),
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


def converter(kind: IcebergType) -> Convert:
    """How a value that is not null becomes one of this type. It raises ValueError and others."""
    if type(kind) in _SIMPLE:
        return _SIMPLE[type(kind)]
    if isinstance(kind, DecimalType):
        return _decimal(kind)
    if isinstance(kind, FixedType):
        return _fixed(kind)
    if isinstance(kind, ListType):
        return _list(kind)
    if isinstance(kind, MapType):
        return _map(kind)
    if isinstance(kind, StructType):
        return _struct(kind)
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
        self._columns = [
            (
                field,
                names,
                _number if field.field_id in no_nan else converter(field.field_type),
                self.arrow.field(field.name).type,
            )
            for field, names in _named(schema, properties)
        ]
        self._known = {name for _, names, *_ in self._columns for name in names}

    def unknown(self, rows: Iterable[Row]) -> set[str]:
        """Fields that no column takes."""
        found: set[str] = set()
        for row in rows:
            found.update(row)
        return found - self._known

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
        as_it_is = isinstance(field.field_type, _AS_THEY_ARE) and convert is not _number
        if as_it_is and not field.required:
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


_AS_THEY_ARE = (LongType, DoubleType, StringType)
"""Types that Arrow fills from Python's own values at once, and refuses others."""


def _values(rows: Sequence[Row], names: Sequence[str]) -> list[Any]:
    if len(names) == 1:
        name = names[0]
        return [row.get(name) for row in rows]
    return [next((row[name] for name in names if name in row), None) for row in rows]


def _named(
    schema: Schema, properties: Mapping[str, str]
) -> Iterable[tuple[NestedField, Sequence[str]]]:
    mapped: dict[int, list[str]] = {}
    if text := properties.get(NAME_MAPPING):
        mapped = {
            one.field_id: list(one.names)
            for one in parse_mapping_from_json(text)
            if one.field_id is not None
        }
    for field in schema.fields:
        yield field, mapped.get(field.field_id) or [field.name]


# --- schemas


def no_column(row: Row, known: Collection[str] = ()) -> str | None:
    """Why fields of a row cannot have a column. `known`: those that have one."""
    for name, value in row.items():
        if name not in known and (reason := _no_column(name, value, 1)) is not None:
            return f"{name[:100]!a}: {reason}"
    return None


def _no_column(name: str, value: Any, depth: int) -> str | None:
    if not name or any("\ud800" <= one <= "\udfff" for one in name):
        return "no column can have this name"
    if depth > _DEPTH_MAX:
        return f"nested more than {_DEPTH_MAX} times"
    inner: Iterable[tuple[str, Any]] = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = ((name, one) for one in value if isinstance(one, dict | list))
    reasons = (_no_column(*one, depth + 1) for one in inner)
    return next((reason for reason in reasons if reason is not None), None)


def inferred(rows: Iterable[Row], names: Iterable[str] | None = None) -> pa.Schema:
    """Columns for fields, by their values: whole numbers are `long`, nested objects are structs.

    `names`: only these. A field that is always null has no column yet.
    """
    wanted = None if names is None else set(names)
    types: dict[str, pa.DataType] = {}
    for row in rows:
        for name, value in row.items():
            if value is None or (wanted is not None and name not in wanted):
                continue
            found = _type_of(value)
            if found is not None:
                types[name] = _common(types[name], found) if name in types else found
    return pa.schema(types.items())


def _type_of(value: Any) -> pa.DataType | None:
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64() if -_LONG_MAX <= value < _LONG_MAX else pa.string()
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, dict):
        fields = [(name, _type_of(one)) for name, one in value.items()]
        known = [(name, kind) for name, kind in fields if kind is not None]
        return pa.struct(known) if known else pa.string()
    if isinstance(value, list):
        items = [kind for kind in map(_type_of, value) if kind is not None]
        found = items[0] if items else pa.string()
        for item in items[1:]:
            found = _common(found, item)
        return pa.list_(found)
    if isinstance(value, bytes):
        return pa.binary()
    return None if value is None else pa.string()


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if one == other:
        return one
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            known = fields.get(field.name)
            fields[field.name] = field.type if known is None else _common(known, field.type)
        return pa.struct(fields.items())
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(_common(one.value_type, other.value_type))
    return pa.string()


def widened(schema: Schema, rows: Iterable[Row]) -> dict[str, IcebergType]:
    """Columns that are too narrow for the rows, and the type that Iceberg may give them."""
    narrow = {
        field.name: field.field_type
        for field in schema.fields
        if isinstance(field.field_type, IntegerType | FloatType)
    }
    found: dict[str, IcebergType] = {}
    for row in rows if narrow else ():
        for name, kind in narrow.items():
            value = row.get(name)
            if isinstance(kind, IntegerType) and _is_beyond_int(value):
                found[name] = LongType()
            elif isinstance(kind, FloatType) and _is_beyond_float(value):
                found[name] = DoubleType()
    return found


def _is_beyond_int(value: Any) -> bool:
    return isinstance(value, int) and not -_INT_MAX <= value < _INT_MAX


def _is_beyond_float(value: Any) -> bool:
    return (
        isinstance(value, float)
        and not math.isnan(value)
        and pa.scalar(value, pa.float32()).as_py() != value
    )
