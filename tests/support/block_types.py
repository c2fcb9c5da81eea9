"""Columns of Native blocks written by hand, and random ones, for tests only.

A LowCardinality column is written here without any code of the broker.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from brokerhouse.storage.block_file import Join
from brokerhouse.storage.blocks import (
    BOOL,
    BYTES,
    DATETIME64_MS,
    INT32,
    INT64,
    STRING,
    UINT32,
    UINT64,
    UUIDS,
    Type,
    array_of,
    map_of,
    nullable,
    tuple_of,
)
from tests.support import record_batches

OWN_KEYS, UPDATED_KEYS = 1 << 9, 1 << 10


def varuint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number % 128 + 128])
        number //= 128
    return out + bytes([number])


def text(data: bytes) -> bytes:
    return varuint(len(data)) + data


def written_into(join: Join, blocks: Sequence[bytes]) -> bytes:
    """The block that `join` writes into a buffer that is larger than the block."""
    buffer = bytearray()

    def room(size: int) -> bytearray:
        buffer.extend(b"x" * (size + 9))
        return buffer

    size = join(blocks, room)
    assert buffer[size:] == b"x" * 9
    return bytes(buffer[:size])


def native(rows: int, *columns: tuple[str, str, bytes]) -> bytes:
    """A block of columns: name, type, values."""
    parts = [text(name.encode()) + text(kind.encode()) + data for name, kind, data in columns]
    return varuint(len(columns)) + varuint(rows) + b"".join(parts)


def dictionary(
    keys: Sequence[bytes],
    indexes: Sequence[int],
    width_log2: int = 0,
    bits: int = OWN_KEYS | UPDATED_KEYS,
    version: int = 1,
    rows: int | None = None,
) -> bytes:
    """The values of a LowCardinality column, as a server writes them if nothing else is said."""
    return b"".join(
        (
            struct.pack("<QQQ", version, bits | width_log2, len(keys)),
            *map(text, keys),
            struct.pack("<Q", len(indexes) if rows is None else rows),
            struct.pack(f"<{len(indexes)}{'BHIQ'[width_log2]}", *indexes),
        )
    )


_SCALARS: list[tuple[Type, st.SearchStrategy[Any]]] = [
    (STRING, st.text(max_size=5) | st.just("x" * 200)),
    (BYTES, st.binary(max_size=5) | st.just(b"y" * 130)),
    (BOOL, st.booleans()),
    (INT32, st.integers(*record_batches.INT32)),
    (UINT32, st.integers(0, 2**32 - 1)),
    (INT64, st.integers(*record_batches.INT64)),
    (UINT64, st.integers(0, 2**64 - 1)),
    (DATETIME64_MS, st.integers(0, 2**41)),
    (UUIDS, st.builds(UUID, int=st.integers(0, 2**128 - 1))),
]

Values = st.SearchStrategy[Any]


def _nested(
    inner: st.SearchStrategy[tuple[Type, Values]],
) -> st.SearchStrategy[tuple[Type, Values]]:
    def array(one: tuple[Type, Values]) -> tuple[Type, Values]:
        return array_of(one[0]), st.lists(one[1], max_size=3)

    def pair(a: tuple[Type, Values], b: tuple[Type, Values]) -> tuple[Type, Values]:
        return tuple_of(a=a[0], b=b[0]), st.tuples(a[1], b[1])

    def mapping(key: tuple[Type, Values], value: tuple[Type, Values]) -> tuple[Type, Values]:
        return map_of(key[0], value[0]), st.dictionaries(key[1], value[1], max_size=3)

    scalars = st.sampled_from(_SCALARS)
    return (
        st.builds(array, inner) | st.builds(pair, inner, inner) | st.builds(mapping, scalars, inner)
    )


def _maybe(one: tuple[Type, Values]) -> tuple[Type, Values]:
    return nullable(one[0]), st.none() | one[1]


def types() -> st.SearchStrategy[tuple[Type, Values]]:
    """A type, and a strategy for its values."""
    scalars = st.sampled_from(_SCALARS)
    return st.recursive(scalars | st.builds(_maybe, scalars), _nested, max_leaves=4)


@st.composite
def tables_of_blocks(draw: st.DrawFn) -> tuple[list[tuple[str, Type]], list[list[tuple[Any, ...]]]]:
    """The columns of a table, and the rows of a few blocks, of which none is empty."""
    chosen = draw(st.lists(types(), min_size=1, max_size=4))
    row = st.tuples(*(values for _, values in chosen))
    rows = draw(st.lists(st.lists(row, min_size=1, max_size=4), min_size=1, max_size=5))
    return [(f"column {n}", kind) for n, (kind, _) in enumerate(chosen)], rows
