"""Column types of Native blocks, by how their values are laid out.

A type's name, such as `Array(Tuple(key String, value Nullable(String)))`, says how the bytes of a
column are cut into values. Nothing here reads the values, nor knows whether a table has the column.

What must hold: no value of a supported type takes zero bytes, so that no block can claim more
values than it has bytes. Names may come from clients: reading one takes time in proportion to its
length, and types nest `NESTED_MAX` deep at most.

Format: https://clickhouse.com/docs/interfaces/formats/Native.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

NESTED_MAX: Final = 32
COLUMNS_MAX: Final = 10_000
"""Of a block that may come from a client."""
HEADS_MAX_BYTES: Final = 1 << 16
"""Of such a block: the names and types of all columns together."""

_WIDTHS: Final = {
    **dict.fromkeys(("Bool", "Int8", "UInt8"), 1),
    **dict.fromkeys(("Int16", "UInt16", "Date"), 2),
    **dict.fromkeys(("Int32", "UInt32", "Float32", "Date32", "IPv4"), 4),
    **dict.fromkeys(("Int64", "UInt64", "Float64"), 8),
    **dict.fromkeys(("Int128", "UInt128", "UUID", "IPv6"), 16),
    **dict.fromkeys(("Int256", "UInt256"), 32),
}
_WIDTHS_WITH_ARGUMENTS: Final = {
    "Enum8": 1,
    "Enum16": 2,
    "DateTime": 4,
    "DateTime64": 8,
    "Decimal32": 4,
    "Decimal64": 8,
    "Decimal128": 16,
    "Decimal256": 32,
}
_DECIMAL_WIDTHS: Final = ((9, 4), (18, 8), (38, 16), (76, 32))  # digits at most, bytes
_FIXED_STRING_MAX_BYTES: Final = 0xFFFFFF

# A name, a number, a quoted text, or one other character. A quote that is never closed takes the
# rest: the parenthesis around it is then never closed either.
_TOKEN: Final = re.compile(r"\w+|'(?:[^'\\]|\\.)*'?|`(?:[^`\\]|\\.)*`?|\S", re.ASCII | re.DOTALL)
_MARKS: Final = frozenset("(),")
_CACHED_MAX_CHARS: Final = 1024


class UnsupportedType(ValueError):
    """The layout of a column type is not known."""


class UnmergeableBlock(ValueError):
    """Bytes that are not one whole Native block, or blocks that cannot become one block."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Each value takes `width` bytes."""

    width: int


@dataclass(frozen=True, slots=True)
class Strings:
    """Each value is a varint length, and as many bytes."""


@dataclass(frozen=True, slots=True)
class Several:
    """All values of the first part, then all values of the next: a tuple, null flags and values."""

    parts: tuple[Layout, ...]


@dataclass(frozen=True, slots=True)
class Lists:
    """The UInt64 end of each list among the elements, then all elements: an array, a map."""

    element: Layout


@dataclass(frozen=True, slots=True)
class Dictionary:
    """Strings as indexes of keys: LowCardinality.

    UInt64 version, UInt64 flags, UInt64 number of keys, the keys, UInt64 number of rows, an index
    for each row. `nullable`: the key at index 0 stands for null, whatever it is.
    """

    nullable: bool


Layout = Fixed | Strings | Several | Lists | Dictionary


DICTIONARY_VERSION: Final = 1

# The flags of a Dictionary: log2 of an index's bytes, and bits. Servers add UPDATED_KEYS, which
# means nothing in a block; shared keys (bit 8) are elsewhere, so a block never has them.
INDEX_WIDTH_MASK: Final = 0xFF
INDEX_WIDTH_MAX: Final = 3
OWN_KEYS: Final = 1 << 9
UPDATED_KEYS: Final = 1 << 10


def layout(type_name: str) -> Layout:
    """Raises `UnsupportedType`."""
    return _cached(type_name) if len(type_name) <= _CACHED_MAX_CHARS else _parse(type_name)


def _parse(type_name: str) -> Layout:
    parser = _TypeParser(_TOKEN.findall(type_name))
    found = parser.column()
    if found is None:
        raise UnsupportedType(f"type {type_name[:64]!r} is not supported")
    return found


_cached = lru_cache(maxsize=256)(_parse)


class _TypeParser:
    """Reads the tokens of one type name, from the front. None: the type is not supported."""

    def __init__(self, tokens: list[str]) -> None:
        self._left = tokens[::-1]

    def column(self) -> Layout | None:
        # LowCardinality is supported as a column, not inside another type: there its version stands
        # before the whole column.
        if self._take("LowCardinality", "(", "String", ")"):
            found: Layout | None = Dictionary(nullable=False)
        elif self._take("LowCardinality", "(", "Nullable", "(", "String", ")", ")"):
            found = Dictionary(nullable=True)
        else:
            found = self._type(1)
        return None if self._left else found

    def _take(self, *expected: str) -> bool:
        """Whether the next tokens are these; if so, they are taken."""
        count = len(expected)
        if self._left[: -count - 1 : -1] != list(expected):
            return False
        del self._left[-count:]
        return True

    def _type(self, depth: int) -> Layout | None:
        name = self._left.pop() if self._left else ""
        if name == "String":
            return Strings()
        if name in _WIDTHS:
            return Fixed(_WIDTHS[name])
        if name in _WIDTHS_WITH_ARGUMENTS:
            return Fixed(_WIDTHS_WITH_ARGUMENTS[name]) if self._skip_arguments() else None
        if name == "Decimal":
            return self._decimal()
        if name == "FixedString":
            return self._fixed_string()
        if name not in ("Nullable", "Array", "Map", "Tuple") or depth == NESTED_MAX:
            return None
        inner = self._inner(depth + 1, named=name == "Tuple")
        if name == "Tuple" and inner:
            return Several(tuple(inner))
        if name == "Map" and len(inner) == 2:
            return Lists(Several(tuple(inner)))
        if name == "Array" and len(inner) == 1:
            return Lists(inner[0])
        if name == "Nullable" and len(inner) == 1 and isinstance(inner[0], Fixed | Strings):
            return Several((Fixed(1), inner[0]))
        return None

    def _inner(self, depth: int, named: bool) -> list[Layout]:
        """The types in parentheses, which may have names. Empty: one is not supported."""
        found = []
        before = "("
        while self._take(before):
            if named and len(self._left) > 1 and _MARKS.isdisjoint(self._left[-2:]):
                self._left.pop()  # of two words in a row, the first is a name
            element = self._type(depth)
            if element is None:
                return []
            found.append(element)
            before = ","
        return found if self._take(")") else []

    def _number(self) -> int:
        """The next token as a number of up to 8 digits. 0: it is none."""
        token = self._left.pop() if self._left else ""
        return int(token) if token.isascii() and token.isdecimal() and len(token) <= 8 else 0

    def _fixed_string(self) -> Layout | None:
        width = self._number() if self._take("(") else 0
        return Fixed(width) if 0 < width <= _FIXED_STRING_MAX_BYTES and self._take(")") else None

    def _decimal(self) -> Layout | None:
        digits = self._number() if self._take("(") else 0
        if not (self._take(",") and self._left and self._left.pop() and self._take(")")):
            return None
        widths = (width for most, width in _DECIMAL_WIDTHS if 0 < digits <= most)
        width = next(widths, 0)
        return Fixed(width) if width else None

    def _skip_arguments(self) -> bool:
        """Skips parentheses, if any, and what is in them. False: they are never closed."""
        depth = 0
        while self._left and (depth or self._left[-1] == "("):
            token = self._left.pop()
            depth += (token == "(") - (token == ")")
            if depth == 0:
                break
        return depth == 0
