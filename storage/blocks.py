"""Rows of Python values as one ClickHouse Native block, for inserts into the small tables.

A `Type` turns all values of a column into bytes at once. Text and bytes that a client sent are
stored unchanged; nothing in a block is ever parsed as SQL. A value that does not fit its column (a
number with too many bits, a None in a column that is not nullable) raises: it is a bug in the
caller.

The rows of the log have an encoder of their own (protocol/_decode_batches.pyx).
Format: https://clickhouse.com/docs/interfaces/formats/Native.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any
from uuid import UUID

Values = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Type:
    """A column type: its name in ClickHouse, how to encode its values, what stands for null."""

    name: str
    encode: Callable[[Values], bytes]
    default: object


@dataclass(frozen=True, eq=False, slots=True)
class Table:
    """A table, and its columns that are written in blocks. Other columns get their defaults."""

    name: str
    columns: tuple[tuple[str, Type], ...]
    column_list: str = field(init=False)
    heads: tuple[bytes, ...] = field(init=False)
    """What a block has in front of the values of each column: its name and its type."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "column_list", ", ".join(name for name, _ in self.columns))
        heads = tuple(_text(name) + _text(kind.name) for name, kind in self.columns)
        object.__setattr__(self, "heads", heads)


def block(table: Table, rows: Sequence[Sequence[Any]]) -> bytes:
    """One block of at least one row; each has a value for every column of `table`, in order."""
    columns = list(zip(*rows, strict=True))
    if len(columns) != len(table.columns):
        raise ValueError(f"a row of {table.name} must have {len(table.columns)} values")
    parts = [_varint(len(columns)), _varint(len(rows))]
    for head, (_, kind), values in zip(table.heads, table.columns, columns, strict=True):
        parts += (head, kind.encode(values))
    return b"".join(parts)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _sized(data: bytes) -> bytes:
    size = len(data)
    return (size.to_bytes(1) if size < 0x80 else _varint(size)) + data


def _text(text: str) -> bytes:
    return _sized(text.encode())


def _each(encode: Callable[[Any], bytes]) -> Callable[[Values], bytes]:
    """A column whose values are encoded one by one, each distinct value once."""

    def column(values: Values) -> bytes:
        if values and values.count(values[0]) == len(values):
            return encode(values[0]) * len(values)
        encoded = {value: encode(value) for value in set(values)}
        return b"".join(map(encoded.__getitem__, values))

    return column


def _numbers(layout: str) -> Callable[[Values], bytes]:
    return lambda values: struct.pack(f"<{len(values)}{layout}", *values)


def _uuid(value: UUID) -> bytes:
    high, low = divmod(value.int, 1 << 64)
    return struct.pack("<QQ", high, low)


STRING = Type("String", _each(_text), "")
BYTES = Type("String", _each(_sized), b"")
BOOL = Type("Bool", bytes, False)
INT8 = Type("Int8", _numbers("b"), 0)
INT16 = Type("Int16", _numbers("h"), 0)
INT32 = Type("Int32", _numbers("i"), 0)
UINT32 = Type("UInt32", _numbers("I"), 0)
INT64 = Type("Int64", _numbers("q"), 0)
UINT64 = Type("UInt64", _numbers("Q"), 0)
DATETIME64_MS = Type("DateTime64(3, 'UTC')", _numbers("q"), 0)
"""Given as milliseconds since 1970."""
UUIDS = Type("UUID", _each(_uuid), UUID(int=0))


def nullable(inner: Type) -> Type:
    """None is null."""

    def encode(values: Values) -> bytes:
        nulls = values.count(None)
        if nulls == 0:
            return bytes(len(values)) + inner.encode(values)
        if nulls == len(values):
            return b"\1" * nulls + inner.encode((inner.default,) * nulls)
        missing = bytes(value is None for value in values)
        return missing + inner.encode([inner.default if v is None else v for v in values])

    return Type(f"Nullable({inner.name})", encode, None)


def array_of(inner: Type) -> Type:
    """Given as sequences."""

    def encode(values: Values) -> bytes:
        return _ends(values) + _nested(inner, list(chain.from_iterable(values)))

    return Type(f"Array({inner.name})", encode, ())


def tuple_of(**fields: Type) -> Type:
    """Given as tuples."""
    inner = tuple(fields.values())

    def encode(values: Values) -> bytes:
        columns = zip(*values, strict=True) if values else ((),) * len(inner)
        return b"".join(kind.encode(column) for kind, column in zip(inner, columns, strict=True))

    names = ", ".join(f"{name} {kind.name}" for name, kind in fields.items())
    return Type(f"Tuple({names})", encode, tuple(kind.default for kind in inner))


def map_of(key: Type, value: Type) -> Type:
    """Given as mappings."""

    def encode(values: Sequence[Mapping[Any, Any]]) -> bytes:
        keys = list(chain.from_iterable(values))
        inner = list(chain.from_iterable(mapping.values() for mapping in values))
        return _ends(values) + _nested(key, keys) + _nested(value, inner)

    return Type(f"Map({key.name}, {value.name})", encode, {})


def _ends(values: Values) -> bytes:
    """The position after the last element of each value, in the column of all elements."""
    return struct.pack(f"<{len(values)}Q", *accumulate(map(len, values)))


def _nested(kind: Type, values: Values) -> bytes:
    return kind.encode(values) if values else b""
