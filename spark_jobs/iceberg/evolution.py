"""Schemas by what rows have: columns that are missing, and those that are too narrow."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    NestedField,
    StructType,
)

from spark_jobs.iceberg.rows import (
    INT_MAX,
    LONG_MAX,
    FieldNames,
    Row,
    field_names,
    names_of,
)

_DEPTH_MAX = 50
"""Of nested fields of new columns; PyIceberg's visitors call themselves several times for each."""


class _Kind(Protocol):
    """A type that may change: an object or a list of them gets fields, a number gets wider."""

    def lacking(self, values: Iterable[Any]) -> pa.DataType | None:
        """What the type lacks for these values, and nothing else; None if it lacks nothing."""

    def refusal(self, value: Any, depth: int) -> str | None:
        """Why fields of a value, which the type lacks, cannot be added to it."""


def _kind(kind: IcebergType, names: FieldNames) -> _Kind | None:
    """None for a type that never changes."""
    if isinstance(kind, StructType):
        return _Object(kind.fields, names)
    if isinstance(kind, ListType):
        item = _kind(kind.element_type, names)
        return None if item is None else _Items(item, kind.element_required)
    if isinstance(kind, IntegerType | FloatType):
        return _Number(kind)
    return None


class _Object:
    def __init__(
        self, fields: Iterable[NestedField], names: FieldNames, ignored: Collection[str] = ()
    ) -> None:
        """`ignored`: fields of values that are never added."""
        self._fields = {name: field for field in fields for name in names_of(field, names)}
        # A column with other names by the table's mapping has its own, too.
        self._taken = {field.name for field in self._fields.values()} | set(ignored)
        kinds = {name: _kind(field.field_type, names) for name, field in self._fields.items()}
        self._inner = {name: kind for name, kind in kinds.items() if kind is not None}

    def lacking(self, values: Iterable[Any]) -> pa.StructType | None:
        objects = [one for one in values if isinstance(one, dict)]
        found: set[str] = set()
        for one in objects:
            found.update(one)
        unknown = found - self._fields.keys() - self._taken
        fields = list(inferred(objects, unknown)) if unknown else []
        for name, kind in self._inner.items():
            wanted = kind.lacking(one[name] for one in objects if name in one)
            if wanted is not None:
                field = self._fields[name]
                fields.append(pa.field(field.name, wanted, nullable=field.optional))
        return pa.struct(fields) if fields else None

    def refusal(self, value: Any, depth: int) -> str | None:
        if not isinstance(value, dict):
            return None
        for name, one in value.items():
            if name in self._inner:
                reason = self._inner[name].refusal(one, depth + 1)
            elif name in self._fields or name in self._taken:
                continue
            else:
                reason = _no_column(name, one, depth)
            if reason is not None:
                return f"{name[:100]!a}: {reason}" if depth == 1 else reason
        return None


class _Items:
    def __init__(self, item: _Kind, required: bool) -> None:
        self._item = item
        self._required = required

    def lacking(self, values: Iterable[Any]) -> pa.DataType | None:
        lists = (one for one in values if isinstance(one, list))
        wanted = self._item.lacking(item for one in lists for item in one)
        if wanted is None:
            return None
        return pa.list_(pa.field("element", wanted, nullable=not self._required))

    def refusal(self, value: Any, depth: int) -> str | None:
        items = value if isinstance(value, list) else ()
        reasons = (self._item.refusal(one, depth + 1) for one in items)
        return next((reason for reason in reasons if reason is not None), None)


class _Number:
    def __init__(self, kind: IntegerType | FloatType) -> None:
        self._is_whole = isinstance(kind, IntegerType)

    def lacking(self, values: Iterable[Any]) -> pa.DataType | None:
        if self._is_whole:
            return pa.int64() if any(map(_is_beyond_int, values)) else None
        return pa.float64() if any(map(_is_beyond_float, values)) else None

    def refusal(self, _value: Any, _depth: int) -> str | None:
        return None


class Evolution:
    """What a schema lacks for rows."""

    def __init__(
        self, schema: Schema, properties: Mapping[str, str], ignored: Collection[str] = ()
    ) -> None:
        """`properties`: of the table, with its name mapping. `ignored`: fields that never get a
        column."""
        self._row = _Object(schema.fields, field_names(properties), ignored)

    def lacking(self, rows: Sequence[Row]) -> pa.Schema | None:
        """Columns, and of nested ones the parts, that are missing or too narrow. None: nothing."""
        found = self._row.lacking(rows)
        return None if found is None else pa.schema(found)

    def refusals(self, rows: Sequence[Row]) -> dict[int, str]:
        """Why fields that the schema lacks cannot be added to it, by the number of the row."""
        found = {number: self._row.refusal(row, 1) for number, row in enumerate(rows)}
        return {number: reason for number, reason in found.items() if reason is not None}


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
        return pa.int64() if -LONG_MAX <= value < LONG_MAX else pa.string()
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


def _is_beyond_int(value: Any) -> bool:
    return isinstance(value, int) and not -INT_MAX <= value < INT_MAX


def _is_beyond_float(value: Any) -> bool:
    return (
        isinstance(value, float)
        and not math.isnan(value)
        and pa.scalar(value, pa.float32()).as_py() != value
    )
