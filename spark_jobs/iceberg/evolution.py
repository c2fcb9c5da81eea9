"""Schemas by what rows have: columns that are missing, and those that are too narrow."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    MapType,
    NestedField,
    StructType,
)

from brokerhouse.spark_jobs.iceberg.rows import (
    FieldNames,
    Row,
    field_names,
    names_of,
)
from brokerhouse.spark_jobs.iceberg.scalars import (
    INT_MAX,
    LONG_MAX,
    UNFIT,
    Convert,
    fit_double,
    fit_float,
)

_DEPTH_MAX = 50
"""Of nested fields of new columns; PyIceberg's visitors call themselves several times for each."""


# --- names of columns

_Step = str | tuple[str]
"""A field, or the part of a list or map that has it: a field may be called `element`, too."""
_Path = tuple[_Step, ...]
_ELEMENT, _KEY, _VALUE = ("element",), ("key",), ("value",)


def _spelled(path: _Path) -> str:
    return ".".join(step if isinstance(step, str) else step[0] for step in path)


def _short(path: _Path) -> str:
    """What PyIceberg calls a field of objects in a list, too: `l.x` for `l.element.x`."""
    following = (*path[1:], _ELEMENT)
    return _spelled(
        tuple(
            step
            for step, after in zip(path, following, strict=True)
            if isinstance(step, str) or step == _KEY or not isinstance(after, str)
        )
    )


def _column_paths(fields: Iterable[NestedField]) -> Iterator[_Path]:
    for field in fields:
        yield (field.name,)
        for path in _inner_paths(field.field_type):
            yield (field.name, *path)


def _inner_paths(kind: IcebergType) -> Iterator[_Path]:
    if isinstance(kind, StructType):
        yield from _column_paths(kind.fields)
        return
    inner: list[tuple[tuple[str], IcebergType]] = []
    if isinstance(kind, ListType):
        inner = [(_ELEMENT, kind.element_type)]
    elif isinstance(kind, MapType):
        inner = [(_KEY, kind.key_type), (_VALUE, kind.value_type)]
    for step, one in inner:
        yield (step,)
        for path in _inner_paths(one):
            yield (step, *path)


class _NewNames:
    """Columns that a row needs, beside those that are there: `a.b` may be a column, or the field b
    of a, but not both in one table."""

    def __init__(self, taken: Mapping[str, _Path]) -> None:
        self._taken = taken
        self.names: dict[str, _Path] = {}

    def claim(self, path: _Path) -> bool:
        """False: the name is that of another column."""
        name = _spelled(path)
        if self._taken.get(name, path) != path or self.names.get(name, path) != path:
            return False
        self.names[name] = path
        return True


# --- columns


class _Kind(Protocol):
    """A type that may change: an object or a list of them gets fields, a number gets wider."""

    def lacking(self, values: Iterable[Any]) -> pa.DataType | None:
        """What the type lacks for these values, and nothing else; None if it lacks nothing."""

    def refusal(self, value: Any, path: _Path, names: _NewNames) -> str | None:
        """Why fields of a value, which the type lacks, cannot be added. `path`: of the value."""


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

    def refusal(self, value: Any, path: _Path, names: _NewNames) -> str | None:
        if not isinstance(value, dict):
            return None
        for name, one in value.items():
            if name in self._inner:
                reason = self._inner[name].refusal(one, (*path, self._fields[name].name), names)
            elif name in self._fields or name in self._taken:
                continue
            else:
                reason = _no_column(name, one, (*path, name), names)
            if reason is not None:
                return f"{str(name)[:100]!a}: {reason}" if not path else reason
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

    def refusal(self, value: Any, path: _Path, names: _NewNames) -> str | None:
        items = value if isinstance(value, list) else ()
        reasons = (self._item.refusal(one, (*path, _ELEMENT), names) for one in items)
        return next((reason for reason in reasons if reason is not None), None)


class _Number:
    def __init__(self, kind: IntegerType | FloatType) -> None:
        self._is_whole = isinstance(kind, IntegerType)

    def lacking(self, values: Iterable[Any]) -> pa.DataType | None:
        if self._is_whole:
            return pa.int64() if any(map(_is_beyond_int, values)) else None
        return pa.float64() if any(map(_is_beyond_float, values)) else None

    def refusal(self, _value: Any, _path: _Path, _names: _NewNames) -> str | None:
        return None


class Evolution:
    """What a schema lacks for rows."""

    def __init__(
        self, schema: Schema, properties: Mapping[str, str], ignored: Collection[str] = ()
    ) -> None:
        """`properties`: of the table, with its name mapping. `ignored`: fields that never get a
        column."""
        paths = list(_column_paths(schema.fields))
        self._names = {_short(path): path for path in paths}
        self._names |= {_spelled(path): path for path in paths}
        self._row = _Object(schema.fields, field_names(properties), ignored)

    def lacking(self, rows: Sequence[Row]) -> pa.Schema | None:
        """Columns, and of nested ones the parts, that are missing or too narrow. None: nothing."""
        found = self._row.lacking(rows)
        return None if found is None else pa.schema(found)

    def refusals(self, rows: Sequence[Row]) -> dict[int, str]:
        """Why fields that the schema lacks cannot be added to it, by the number of the row."""
        refused: dict[int, str] = {}
        taken = dict(self._names)
        for number, row in enumerate(rows):
            new = _NewNames(taken)
            reason = self._row.refusal(row, (), new)
            if reason is None:
                taken |= new.names
            else:
                refused[number] = reason
        return refused


def _is_name(name: Any) -> bool:
    """MessagePack has other keys than text."""
    if not isinstance(name, str):
        return False
    return name != "" and not any("\ud800" <= one <= "\udfff" for one in name)


def _shown_name(name: Any) -> str:
    """Of a field that gets no column, too: rows with such fields are refused."""
    return name if _is_name(name) else ascii(name)


def _no_column(name: Any, value: Any, path: _Path, names: _NewNames) -> str | None:
    """`path`: of the field, with its name."""
    if not _is_name(name):
        return "no column can have this name"
    if len(path) > _DEPTH_MAX:
        return f"nested more than {_DEPTH_MAX} times"
    if value is not None and not names.claim(path):
        return f"the table cannot tell the column {_spelled(path)} from another one of this name"
    inner: Iterable[tuple[str, Any, _Path]] = ()
    if isinstance(value, dict):
        inner = ((key, one, (*path, key)) for key, one in value.items())
    elif isinstance(value, list):
        inner = ((name, one, (*path, _ELEMENT)) for one in value if isinstance(one, dict | list))
    reasons = (_no_column(*one, names) for one in inner)
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
            name = _shown_name(name)
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
        fields = [(_shown_name(name), _type_of(one)) for name, one in value.items()]
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
    if not isinstance(value, int) or -INT_MAX <= value < INT_MAX:
        return False
    return -LONG_MAX <= value < LONG_MAX


def _is_beyond_float(value: Any) -> bool:
    """Whether `double` takes a number that `float` does not, or keeps more of it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return not _keeps(fit_float, value) and _keeps(fit_double, value)


def _keeps(fit: Convert, value: Any) -> bool:
    try:
        found = fit(value)
    except UNFIT:
        return False
    return not isinstance(value, float) or bool(found == value)
