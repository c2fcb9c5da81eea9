"""The rows of a feed: what the scanner writes for a table's columns, and SQL that makes them rows.

    record --scanner--> _offset | _error | c0 | c1 | ...      RowBinary
           --SQL------> _offset | _feed_error | columns       the temporary table `feed_rows`

The columns of a table that were made as one `Nested` (ClickHouse flattens it into `items.sku`,
`items.qty`) are filled from an array of objects in the field `items`, if the record has no field
that is called `items.sku`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from brokerhouse.feeds.definition import METADATA_COLUMNS, Format
from brokerhouse.feeds.paths import Path
from brokerhouse.feeds.values._scan import RowScanner
from brokerhouse.feeds.values.plan import (
    Conversion,
    ScanNode,
    TimeSettings,
    conversion,
)
from brokerhouse.feeds.values.types import parse_type
from brokerhouse.storage.parameters import literal, quoted

SHOWN_CHARACTERS = 100


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a feed's table that an insert may name.

    `path`: where its value is in a record with names. `default`: its expression, or empty. `unit`:
    of numbers, if a person has named it. `zone`: the server's.
    """

    name: str
    type: str
    path: Path
    default: str = ""
    unit: str | None = None
    zone: str = ""

    @property
    def is_metadata(self) -> bool:
        return self.name in METADATA_COLUMNS

    def as_list(self) -> list[Any]:
        """For JSON."""
        return [self.name, self.type, list(self.path), self.default, self.unit, self.zone]


def column_from_list(stored: Sequence[Any]) -> Column:
    name, kind, path, default, unit, zone = stored
    return Column(name, kind, tuple(path), default, unit, zone)


@dataclass(frozen=True, slots=True)
class _Scanned:
    """A column of what the scanner writes."""

    label: str
    type: str
    slot: int
    node: ScanNode
    written: str


@dataclass(frozen=True, slots=True)
class _Filled:
    """A column of `feed_rows`. `bad`: the text that does not fit, or null. `present`: whether the
    record has it, where null does not say that."""

    column: Column
    type: str
    bad: str
    value: str
    present: str | None = None


_Wanted = tuple[int, dict[str, "_Wanted"] | None]
"""The slot of a field's value, or -1; and what is wanted of the fields in it."""


_OWN_NAME = re.compile(r"__[rp][0-9]+")
"""Columns of `feed_rows`: a default may name any column of the table beside them."""


class RowLayout:
    """Of one table and format. Raises ValueError if no record can become a row of it."""

    def __init__(
        self, columns: Sequence[Column], kind: Format, *, collects_unknown: bool = False
    ) -> None:
        self.columns = columns
        self.values = [column for column in columns if not column.is_metadata]
        self._kind = kind
        self._collects = collects_unknown
        for column in columns:
            if _OWN_NAME.fullmatch(column.name):
                raise ValueError(f"column {column.name}: feeds use this name themselves")
        self._fields: dict[str, _Wanted] = {}
        self._slots = 0
        self._scanned: list[_Scanned] = []
        self._filled: list[_Filled] = []
        flattened = _flattened(self.values) if kind.has_paths else {}
        nested = {prefix: self._nested(group) for prefix, group in flattened.items()}
        for column in self.values:
            prefix = column.name.rpartition(".")[0]
            if column in flattened.get(prefix, ()):
                place = flattened[prefix].index(column) + 1
                self._add_flattened(column, nested[prefix], place)
            else:
                self._add(column)
        self._lengths = [group for group in flattened.values() if len(group) > 1]

    def scanner(self) -> RowScanner:
        kind = self._kind.value
        if self._kind.has_paths:
            kind = "doubles" if self._kind.has_doubles else "json"
        columns = [(one.label, one.type, one.slot, one.node) for one in self._scanned]
        return RowScanner(kind, columns, self._fields, self._slots, self._collects)

    @cached_property
    def structure(self) -> str:
        """Of the rows that the scanner writes."""
        columns = [f"c{number} {one.written}" for number, one in enumerate(self._scanned)]
        return ", ".join(["_offset Int64", "_error String", *columns])

    @cached_property
    def rows(self) -> str:
        """The columns of `feed_rows`."""
        columns = [f"__r{number} {one.type}" for number, one in enumerate(self._filled)]
        flags = [f"__p{number} Bool" for number, one in enumerate(self._filled) if one.present]
        return ", ".join(["_offset Int64", "_feed_error String", *columns, *flags])

    def conversion(self, source: str) -> str:
        """A query: the rows of `feed_rows` from the scanner's rows.

        Each value is converted once, in the inner query.
        """
        made = [f"tuple({one.bad}, {one.value}) AS t{n}" for n, one in enumerate(self._filled)]
        flags = [f"{one.present} AS p{n}" for n, one in enumerate(self._filled) if one.present]
        errors = ["_error != '', _error"]
        errors += [
            _error_of(one, f"t{n}.1") for n, one in enumerate(self._filled) if one.bad != "NULL"
        ]
        errors += [self._length_error(group) for group in self._lengths]
        values = [f"t{n}.2" for n in range(len(self._filled))]
        present = [f"p{n}" for n, one in enumerate(self._filled) if one.present]
        error = f"multiIf({', '.join(errors)}, '')"
        outer = ", ".join(["_offset", error, *values, *present])
        inner = ", ".join(["_offset", "_error", *made, *flags])
        return f"SELECT {outer} FROM (SELECT {inner} FROM {source})"

    def inserted(self, source: str, of_kafka: Mapping[str, str]) -> str:
        """A query: the columns of the table from `source`, which has those of `feed_rows`.

        `of_kafka`: expressions for the columns with what Kafka says of a record. What a record does
        not have is its column's default, whose expression may use other columns: a level of the
        query for those that need the level below.
        """
        ready = [
            f"{of_kafka[one.name]} AS {quoted(one.name)}" for one in self.columns if one.is_metadata
        ]
        waiting: dict[int, _Filled] = {}
        for number, one in enumerate(self._filled):
            if one.column.default:
                waiting[number] = one
            else:
                ready.append(
                    f"{_or_type_default(one, f'__r{number}')} AS {quoted(one.column.name)}"
                )
        kept = [f"__r{n}" for n in waiting] + [
            f"__p{n}" for n, one in waiting.items() if one.present
        ]
        query = f"SELECT {', '.join([*ready, *kept])} FROM {source}"
        while waiting:
            names = {one.column.name for one in waiting.values()}
            now = {n: one for n, one in waiting.items() if not uses(one.column.default, names)}
            if not now:
                named = ", ".join(sorted(names))
                raise ValueError(f"the defaults of the columns {named} use each other")
            made = [f"{_or_default(one, n)} AS {quoted(one.column.name)}" for n, one in now.items()]
            query = f"SELECT *, {', '.join(made)} FROM ({query})"
            waiting = {n: one for n, one in waiting.items() if n not in now}
        names_of_all = ", ".join(quoted(one.name) for one in self.columns)
        return f"SELECT {names_of_all} FROM ({query})"

    # --- how columns are filled

    def _add(self, column: Column) -> None:
        made = self._conversion(column)
        if made.is_optional or (made.type.is_nullable and column.default):
            written = self._scan(column, _optional(made), f"Array({made.written})", column.path)
            bad, value = made.apply(f"{written}[1]")
            present = f"notEmpty({written})" if column.default else None
        else:
            written = self._scan(column, made.node, made.written, column.path)
            bad, value = made.apply(written)
            present = None
        self._filled.append(_Filled(column, _row_type(made), bad, value, present))

    def _nested(self, group: Sequence[Column]) -> tuple[str, Conversion]:
        """The array of objects that a group of columns is: what is written, and how it is read."""
        first = group[0]
        prefix = first.name.rpartition(".")[0]
        elements = ", ".join(
            f"{quoted(one.name.removeprefix(f'{prefix}.'))} {_item_of(one)}" for one in group
        )
        units = {one.unit for one in group if "Date" in one.type}
        if len(units) > 1:
            names = ", ".join(one.name for one in group if "Date" in one.type)
            raise ValueError(f"the columns {names} are of one array: give them the same --unit")
        unit = next(iter(units), None)
        whole = Column(prefix, f"Array(Tuple({elements}))", (prefix,), unit=unit, zone=first.zone)
        made = self._conversion(whole)
        return self._scan(whole, _optional(made), f"Array({made.written})", whole.path), made

    def _add_flattened(self, column: Column, nested: tuple[str, Conversion], place: int) -> None:
        whole, whole_made = nested
        own = self._conversion(column)
        written = self._scan(column, _optional(own), f"Array({own.written})", column.path)
        own_bad, own_value = own.apply(f"{written}[1]")
        bad, objects = whole_made.apply(f"{whole}[1]")
        kind = literal(column.type)
        element = f"CAST(tupleElement({objects}, {place}), {kind})"
        value = f"if(notEmpty({written}), CAST({own_value}, {kind}), {element})"
        present = f"notEmpty({written}) OR notEmpty({whole})" if column.default else None
        both = bad if own_bad == "NULL" else f"coalesce({own_bad}, {bad})"
        self._filled.append(_Filled(column, column.type, both, value, present))

    def _length_error(self, group: Sequence[Column]) -> str:
        """ClickHouse refuses a block in which the arrays of a row have other lengths."""
        values = [f"t{n}.2" for n, one in enumerate(self._filled) if one.column in group]
        same = " AND ".join(f"length({values[0]}) = length({one})" for one in values[1:])
        names = ", ".join(one.name for one in group)
        return f"NOT ({same}), {literal(f'the arrays {names} have not the same length')}"

    def _scan(self, column: Column, node: ScanNode, written: str, path: Path) -> str:
        """The name of a new column of what the scanner writes."""
        slot = self._slot(path) if self._kind.has_paths else len(self._scanned)
        self._slots = max(self._slots, slot + 1)
        self._scanned.append(_Scanned(column.name, column.type, slot, node, written))
        return f"c{len(self._scanned) - 1}"

    def _slot(self, path: Path) -> int:
        """Where the scanner puts the value at a path; the same one for the same path."""
        level = self._fields
        for step in path[:-1]:
            above, below = level.get(step, (-1, None))
            below = {} if below is None else below
            level[step] = (above, below)
            level = below
        known, below = level.get(path[-1], (-1, None))
        place = self._slots if known < 0 else known
        level[path[-1]] = (place, below)
        return place

    @staticmethod
    def _conversion(column: Column) -> Conversion:
        try:
            return conversion(parse_type(column.type), TimeSettings(column.unit, column.zone))
        except ValueError as error:
            raise ValueError(f"column {column.name}: {error}") from error


def _error_of(filled: _Filled, bad: str) -> str:
    """Two arguments of multiIf. `bad`: the text that does not fit."""
    column = filled.column
    return (
        f"isNotNull({bad}), concat({literal(f'{column.name}: ')},"
        f" substringUTF8(assumeNotNull({bad}), 1, {SHOWN_CHARACTERS}),"
        f" {literal(f' does not fit {column.type}')})"
    )


def _optional(made: Conversion) -> ScanNode:
    return ScanNode("optional", children=(made.node,))


def _row_type(made: Conversion) -> str:
    """As what a value waits for its insert: null where the record has none."""
    bare = made.type.bare
    if made.is_optional or bare.name in ("Dynamic", "JSON", "Object"):
        return made.type.text
    return f"Nullable({bare.text})"


def _or_type_default(filled: _Filled, value: str) -> str:
    """Nothing is the default of the column's type, where the type does not have null."""
    kind = filled.column.type
    if not filled.type.startswith("Nullable(") or parse_type(kind).is_nullable:
        return value
    return f"ifNull({value}, defaultValueOfTypeName({literal(kind)}))"


def _or_default(filled: _Filled, number: int) -> str:
    column = filled.column
    is_there = f"__p{number}" if filled.present else f"isNotNull(__r{number})"
    value = f"CAST(__r{number}, {literal(column.type)})"
    if not parse_type(column.type).is_nullable and filled.type.startswith("Nullable("):
        value = f"CAST({_or_type_default(filled, f'__r{number}')}, {literal(column.type)})"
    return f"if({is_there}, {value}, CAST(({column.default}), {literal(column.type)}))"


_STRINGS = re.compile(r"'(?:[^'\\]|\\.)*'")
_WORDS = re.compile(r"`((?:[^`\\]|\\.)*)`|([A-Za-z_][A-Za-z0-9_.]*)")


def uses(expression: str, names: Collection[str]) -> bool:
    """Whether an expression uses one of these columns."""
    words = _WORDS.findall(_STRINGS.sub("''", expression))
    return any((quoted_name or word) in names for quoted_name, word in words)


def _item_of(column: Column) -> str:
    return parse_type(column.type).bare.arguments[0].text


def _flattened(columns: Sequence[Column]) -> Mapping[str, Sequence[Column]]:
    """Columns of arrays whose names begin alike up to the last dot, by that beginning."""
    groups: dict[str, list[Column]] = {}
    names = {column.name for column in columns}
    for column in columns:
        prefix, dot, _ = column.name.rpartition(".")
        is_array = column.type.startswith("Array(") and column.path == (column.name,)
        if dot and prefix and prefix not in names and is_array:
            groups.setdefault(prefix, []).append(column)
    return groups
