"""Many small Native blocks as one: `storage/_merge_blocks.pyx` in readable Python.

`storage/_merge_blocks.pyi` says what each function means.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from brokerhouse.protocol.varints import length_prefixed, varuint
from brokerhouse.storage.native_types import (
    COLUMNS_MAX,
    DICTIONARY_VERSION,
    HEADS_MAX_BYTES,
    INDEX_WIDTH_MASK,
    INDEX_WIDTH_MAX,
    OWN_KEYS,
    UPDATED_KEYS,
    Dictionary,
    Fixed,
    Layout,
    Lists,
    Several,
    Strings,
    UnmergeableBlock,
    UnsupportedType,
    layout,
)
from tests.reference.byte_reader import ByteReader

_INDEX_LAYOUTS: Final = "BHIQ"


def merge_blocks(blocks: Sequence[bytes]) -> bytes:
    if not blocks:
        raise ValueError("there are no blocks to merge")
    shapes = []
    for index, data in enumerate(blocks):
        try:
            shapes.append(_shape(data))
        except UnmergeableBlock as error:
            raise UnmergeableBlock(f"block {index} of {len(blocks)}: {error}") from None
    first = shapes[0]
    for index, shape in enumerate(shapes):
        if shape.heads != first.heads:
            raise UnmergeableBlock(
                f"block {index} of {len(blocks)}: its columns are not those of block 0"
            )
    full = [(data, shape.rows) for data, shape in zip(blocks, shapes, strict=True) if shape.rows]
    if len(full) <= 1:
        return full[0][0] if full else blocks[0]
    sources = [_Source(data, _reader(data), rows) for data, rows in full]
    for source in sources:
        _read_counts(source.reader)
    parts = [varuint(len(first.heads)), varuint(sum(rows for _, rows in full))]
    for head, kind in zip(first.heads, first.layouts, strict=True):
        for source in sources:
            source.reader.read(len(head))
        parts += (head, _merged(kind, sources))
    return b"".join(parts)


def block_rows(block: bytes) -> int:
    return _shape(block).rows


def block_columns(block: bytes) -> list[tuple[str, str]]:
    columns = []
    for head in _shape(block).heads:
        reader = _reader(head)
        name, kind = (reader.read(reader.varuint()).decode(errors="replace") for _ in range(2))
        columns.append((name, kind))
    return columns


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a block is, without its values."""

    rows: int
    heads: list[bytes]
    layouts: list[Layout]


@dataclass(frozen=True, slots=True)
class _Source:
    """One of the blocks, and how many values are to be read where its reader stands."""

    data: bytes
    reader: ByteReader
    count: int


def _reader(data: bytes) -> ByteReader:
    return ByteReader(data, UnmergeableBlock)


def _read_counts(reader: ByteReader) -> tuple[int, int]:
    """The number of columns, the number of rows."""
    return reader.varuint(), reader.varuint()


def _shape(data: bytes) -> _Shape:
    reader = _reader(data)
    columns, rows = _read_counts(reader)
    if not 0 < columns <= COLUMNS_MAX:
        raise UnmergeableBlock(f"it has {columns} columns")
    shape = _Shape(rows, [], [])
    heads_bytes = 0
    for index in range(columns):
        start = reader.position
        name = reader.read(reader.varuint())
        type_name = reader.read(reader.varuint())
        head = data[start : reader.position]
        heads_bytes += len(head)
        if heads_bytes > HEADS_MAX_BYTES:
            raise UnmergeableBlock(f"its columns' names and types exceed {HEADS_MAX_BYTES} bytes")
        try:
            kind = layout(type_name.decode())
            if rows:
                _merged(kind, [_Source(data, reader, rows)])
        except (UnmergeableBlock, UnsupportedType, UnicodeDecodeError) as error:
            raise UnmergeableBlock(
                f"column {index}, {name[:64].decode(errors='replace')!r}: {error}"
            ) from None
        shape.heads.append(head)
        shape.layouts.append(kind)
    if reader.left:
        raise UnmergeableBlock(f"{reader.left} bytes are left over after the last column")
    return shape


def _merged(kind: Layout, sources: Sequence[_Source]) -> bytes:
    """The values of all sources as one column. Every source is read up to the end of its own."""
    match kind:
        case Fixed(width):
            return b"".join(source.reader.read(source.count * width) for source in sources)
        case Strings():
            return b"".join(map(_strings, sources))
        case Several(parts):
            return b"".join(_merged(part, sources) for part in parts)
        case Lists(element):
            return _merged_lists(element, sources)
        case Dictionary(nullable):
            return _merged_dictionary(nullable, sources)


def _strings(source: _Source) -> bytes:
    reader = source.reader
    if source.count > reader.left:
        raise UnmergeableBlock(f"{source.count} strings are claimed where {reader.left} bytes are")
    start = reader.position
    for _ in range(source.count):
        reader.read(reader.varuint())
    return source.data[start : reader.position]


def _merged_lists(element: Layout, sources: Sequence[_Source]) -> bytes:
    before = 0
    merged: list[int] = []
    elements = []
    for source in sources:
        ends = struct.unpack(f"<{source.count}Q", source.reader.read(8 * source.count))
        if list(ends) != sorted(ends):
            raise UnmergeableBlock("the ends of its arrays do not grow")
        count = ends[-1] if ends else 0
        elements.append(_Source(source.data, source.reader, count))
        merged += (before + end for end in ends)
        before += count
    inner = _merged(element, elements)
    return struct.pack(f"<{len(merged)}Q", *merged) + inner


def _merged_dictionary(nullable: bool, sources: Sequence[_Source]) -> bytes:
    """Each key once, the default value (or null) first, as servers have it."""
    keys: dict[bytes | None, int] = {None if nullable else b"": 0}
    indexes: list[int] = []
    for source in sources:
        own_keys, own_indexes = _read_dictionary(source)
        if nullable and own_keys:
            own_keys[0] = None
        merged = [keys.setdefault(key, len(keys)) for key in own_keys]
        indexes += (merged[index] for index in own_indexes)
    width_log2 = 0 if len(keys) <= 1 << 8 else 1 if len(keys) <= 1 << 16 else 2
    return b"".join(
        (
            struct.pack("<QQQ", DICTIONARY_VERSION, OWN_KEYS | width_log2, len(keys)),
            *(length_prefixed(key or b"") for key in keys),
            struct.pack("<Q", len(indexes)),
            struct.pack(f"<{len(indexes)}{_INDEX_LAYOUTS[width_log2]}", *indexes),
        )
    )


def _read_dictionary(source: _Source) -> tuple[list[bytes | None], Sequence[int]]:
    """The keys, and the indexes of the rows."""
    reader = source.reader
    version, flags, key_count = struct.unpack("<QQQ", reader.read(24))
    if version != DICTIONARY_VERSION:
        raise UnmergeableBlock(f"version {version} of LowCardinality is not supported")
    width_log2 = flags & INDEX_WIDTH_MASK
    if width_log2 > INDEX_WIDTH_MAX or flags & ~UPDATED_KEYS != OWN_KEYS | width_log2:
        raise UnmergeableBlock(f"flags {flags:#x} of LowCardinality are not supported")
    if key_count > reader.left:
        raise UnmergeableBlock(f"{key_count} keys are claimed where {reader.left} bytes are")
    keys: list[bytes | None] = [reader.read(reader.varuint()) for _ in range(key_count)]
    (rows,) = struct.unpack("<Q", reader.read(8))
    if rows != source.count:
        raise UnmergeableBlock(f"LowCardinality has {rows} rows where there are {source.count}")
    indexes = struct.unpack(f"<{rows}{_INDEX_LAYOUTS[width_log2]}", reader.read(rows << width_log2))
    if any(index >= key_count for index in indexes):
        raise UnmergeableBlock(f"an index of LowCardinality is not below {key_count}")
    return keys, indexes
