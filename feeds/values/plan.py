"""How values become those of a column: one table for every type, also for what is inside of others.

A value is converted in two steps. The scanner (_scan.pyx) reads it from the record and fits it to
the type as far as bytes tell: whole numbers, floating-point numbers, text, dates. What needs
ClickHouse is done by SQL on what the scanner has written: zones of the time, decimals, UUIDs. A
value that does not come out as it was sent fits in neither.

    type                          the scanner writes          SQL makes of it
    Bool, Int, UInt to 64 bits    Nullable(type)              itself
    Float32, Float64              Nullable(type)              itself
    String, FixedString           Nullable(type)              itself
    Date, Date32                  Nullable(type)              itself
    DateTime, DateTime64          Nullable(type)              itself
    the same, not in UTC          (Nullable(type), text)      or the time in the column's zone
    Decimal, Int128 and larger    its digits                  accurateCastOrNull, and it reads back
    UUID, IPv4, IPv6, Enum, ...   text                        accurateCastOrNull, and it reads back
    JSON, Dynamic                 JSON                        accurateCastOrNull
    Array, Map, Tuple, Nested     the same of what is inside  the same of what is inside
    Variant                       each alternative or none    the first one that fits
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from enum import IntFlag

from brokerhouse.feeds.values.types import ColumnType, parse_type
from brokerhouse.storage.parameters import literal

UNITS: Mapping[str, int] = {"days": 100, "s": 0, "ms": 3, "us": 6, "ns": 9}
"""Of numbers that are moments; as the scanner knows them."""


class Takes(IntFlag):
    """Which kinds of JSON an alternative of a Variant takes."""

    NUMBERS = 1
    TEXTS = 2
    BOOLS = 4
    OBJECTS = 8
    ARRAYS = 16


@dataclass(frozen=True, slots=True)
class ScanNode:
    """What the scanner does with a value; see the table above.

    `size`: bytes of the type. `low` and `high`: the least and the greatest value. `unit`: of a
    number, one of `UNITS`; `has_unit`: a person has named it, so digits in a text have it, too.
    `is_utc`: a text without a zone is UTC.
    """

    op: str
    nullable: bool = False
    size: int = 0
    low: int = 0
    high: int = 0
    scale: int = 0
    unit: int = 0
    has_unit: bool = False
    is_utc: bool = False
    kinds: int = 0
    names: tuple[str, ...] = ()
    children: tuple[ScanNode, ...] = ()


Sql = Callable[[str, int], tuple[str, str]]
"""What the scanner has written, and how many lambdas are around it, as expressions: the text that
does not fit, or null; the value."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """`written`: the type of what the scanner writes. `sql`: None where that is the value."""

    type: ColumnType
    node: ScanNode
    written: str
    sql: Sql | None = field(compare=False)

    @property
    def is_optional(self) -> bool:
        """Whether what the scanner writes for this type cannot say that the value is missing."""
        return self.node.op in ("array", "map", "tuple", "variant")

    def apply(self, written: str, depth: int = 0) -> tuple[str, str]:
        return ("NULL", written) if self.sql is None else self.sql(written, depth)


@dataclass(frozen=True, slots=True)
class TimeSettings:
    """`unit`: of numbers, if a person has named it. `zone`: the server's."""

    unit: str | None = None
    zone: str = ""


def conversion(kind: ColumnType, times: TimeSettings) -> Conversion:
    """Raises ValueError for a type that no record can fill."""
    bare, nullable = kind.bare, kind.is_nullable
    if bare.name in _SHAPES:
        bare = parse_type(_SHAPES[bare.name])
    if bare.name in _WHOLE:
        return _whole(kind, bare, nullable)
    if bare.name in ("Float32", "Float64"):
        node = ScanNode(bare.name.lower(), nullable)
        return Conversion(kind, node, f"Nullable({bare.name})", None)
    if bare.name == "Bool":
        return Conversion(kind, ScanNode("bool", nullable), "Nullable(Bool)", None)
    if bare.name == "String":
        return Conversion(kind, ScanNode("text", nullable), "Nullable(String)", None)
    if bare.name == "FixedString":
        node = ScanNode("fixed", nullable, size=int(bare.options[0]))
        return Conversion(kind, node, f"Nullable({bare.text})", None)
    if bare.name in ("Date", "Date32"):
        return _days(kind, bare, nullable, times)
    if bare.name in ("DateTime", "DateTime32", "DateTime64"):
        return _moment(kind, bare, nullable, times)
    if bare.name in ("JSON", "Object", "Dynamic"):
        return _untyped(kind, bare, nullable)
    if bare.name in ("Array", "Nested"):
        return _array(kind, bare, times)
    if bare.name == "Map":
        return _map(kind, bare, times)
    if bare.name == "Tuple":
        return _tuple(kind, bare, nullable, times)
    if bare.name == "Variant":
        return _variant(kind, bare, times)
    if bare.name in _NEVER:
        raise ValueError(f"no record can fill a column of type {kind.text}")
    return _text(kind, bare, nullable)


# --- whole numbers

_WHOLE: Mapping[str, tuple[int, bool]] = {
    f"{sign}Int{bits}": (bits, sign == "") for sign in ("", "U") for bits in (8, 16, 32, 64)
}
"""Bits, and whether there are negative ones."""
_SHAPES: Mapping[str, str] = {
    "Point": "Tuple(Float64, Float64)",
    "Ring": "Array(Point)",
    "LineString": "Array(Point)",
    "MultiLineString": "Array(LineString)",
    "Polygon": "Array(Ring)",
    "MultiPolygon": "Array(Polygon)",
}
_NEVER = frozenset({"AggregateFunction", "Nothing"})


def _whole(kind: ColumnType, bare: ColumnType, nullable: bool) -> Conversion:
    bits, is_signed = _WHOLE[bare.name]
    high = (1 << (bits - is_signed)) - 1
    node = ScanNode("int" if is_signed else "uint", nullable, size=bits // 8, high=high)
    return Conversion(kind, node, f"Nullable({bare.name})", None)


# --- dates and times

_EPOCH = date(1970, 1, 1)
_FIRST_DAY = (date(1900, 1, 1) - _EPOCH).days
_LAST_DAY = (date(2299, 12, 31) - _EPOCH).days
_DATE_DAYS = {"Date": (2, 0, 65_535), "Date32": (4, _FIRST_DAY, _LAST_DAY)}
_DAY_S = 86_400
_MAX = (1 << 63) - 1
_ZONES_OF_UTC = frozenset(
    {"UTC", "Etc/UTC", "GMT", "Etc/GMT", "Etc/UCT", "UCT", "Zulu", "Etc/Zulu"}
)


def _days(kind: ColumnType, bare: ColumnType, nullable: bool, times: TimeSettings) -> Conversion:
    size, low, high = _DATE_DAYS[bare.name]
    node = ScanNode(
        "days",
        nullable,
        size,
        low,
        high,
        unit=UNITS[times.unit or "days"],
        has_unit=times.unit is not None,
    )

    return Conversion(kind, node, f"Nullable({bare.name})", None)


def _moment(kind: ColumnType, bare: ColumnType, nullable: bool, times: TimeSettings) -> Conversion:
    is_seconds = bare.name != "DateTime64"
    options = [*bare.options]
    scale = 0 if is_seconds else int(options.pop(0) if options else 3)
    zone = options[0] if options else ""
    # A type without a time zone uses the server's; so values for it are read in the server's zone.
    name = zone.strip("'") or times.zone
    step = 10**scale
    low, high = (
        (0, (1 << 32) - 1)
        if is_seconds
        else (_FIRST_DAY * _DAY_S * step, min(((_LAST_DAY + 1) * _DAY_S) * step - 1, _MAX))
    )
    node = ScanNode(
        "moment",
        nullable,
        4 if is_seconds else 8,
        low,
        high,
        scale,
        unit=scale if times.unit is None else UNITS[times.unit],
        has_unit=times.unit is not None,
        is_utc=name in _ZONES_OF_UTC,
    )
    if node.is_utc:
        return Conversion(kind, node, f"Nullable({bare.text})", None)
    where = f", {zone}" if zone else ""

    def sql(written: str, _: int) -> tuple[str, str]:
        text = f"{written}.2"
        found = f"toDateTime64OrNull({text}, {scale}{where})"
        # In the hour that a change of the clock leaves out there are no times.
        read = f"if(toString({found}) = {text}, {found}, NULL)"
        if is_seconds:
            read = f"accurateCastOrNull({read}, {literal(bare.text)})"
        misfit = f"if(isNotNull({text}) AND isNull({read}), {text}, NULL)"
        return misfit, f"ifNull({written}.1, {read})"

    return Conversion(kind, node, f"Tuple(Nullable({bare.text}), Nullable(String))", sql)


# --- what SQL reads from text


def _text(kind: ColumnType, bare: ColumnType, nullable: bool) -> Conversion:
    is_number = bare.name.startswith(("Decimal", "Int", "UInt")) and "Interval" not in bare.name
    compared = _COMPARED.get(bare.name, "{text}")

    def sql(written: str, _: int) -> tuple[str, str]:
        if bare.name.startswith("Enum"):
            value = f"CAST(if({written} IN ({_names_of(bare)}), {written}, NULL), {target})"
        else:
            read = f"accurateCastOrNull({written}, {literal(bare.text)})"
            back = _READ_BACK.get(bare.name, "toString({value})").format(value=read)
            same = "true" if bare.name == "IPv6" else f"{back} = {compared.format(text=written)}"
            value = f"if({same}, {read}, NULL)"
        return f"if({written} IS NOT NULL AND {value} IS NULL, {written}, NULL)", value

    target = literal(f"Nullable({bare.text})")
    node = ScanNode("decimal" if is_number else "text", nullable)
    return Conversion(kind, node, "Nullable(String)", sql)


_COMPARED: Mapping[str, str] = {"UUID": "lower(replaceAll({text}, '-', ''))"}
_READ_BACK: Mapping[str, str] = {"UUID": "replaceAll(toString({value}), '-', '')"}
_ENUM_NAME = re.compile(r"('(?:[^'\\]|\\.)*') *= *-?\d+")


def _names_of(enum: ColumnType) -> str:
    return ", ".join(_ENUM_NAME.findall(enum.options[0]))


def _untyped(kind: ColumnType, bare: ColumnType, nullable: bool) -> Conversion:
    is_json = bare.name != "Dynamic"

    def sql(written: str, _: int) -> tuple[str, str]:
        if is_json:
            value = f"accurateCastOrNull({written}, {literal(bare.text)})"
            found = value if nullable else f"assumeNotNull({value})"
        else:
            wrapped = f"concat('{{\"v\":', ifNull({written}, 'null'), '}}')"
            value = f"accurateCastOrNull({wrapped}, {literal(f'JSON(v {bare.text})')})"
            found = f"({value}).v"
        return f"if({written} IS NOT NULL AND {value} IS NULL, {written}, NULL)", found

    # JSON null is no object, but it is something Dynamic.
    return Conversion(
        kind, ScanNode("text" if is_json else "raw", nullable), "Nullable(String)", sql
    )


# --- what has others in it


def _array(kind: ColumnType, bare: ColumnType, times: TimeSettings) -> Conversion:
    if bare.name == "Nested":
        inner = parse_type(f"Tuple({bare.text.removeprefix('Nested(')}")
    else:
        inner = bare.arguments[0]
    item = conversion(inner, times)

    def sql(written: str, depth: int) -> tuple[str, str]:
        one = f"x{depth}"
        items = f"arrayMap({one} -> tuple({', '.join(_typed(item, one, depth + 1))}), {written})"
        return _first(f"tupleElement({items}, 1)"), f"tupleElement({items}, 2)"

    node = ScanNode("array", children=(item.node,))
    return Conversion(kind, node, f"Array({item.written})", sql)


def _map(kind: ColumnType, bare: ColumnType, times: TimeSettings) -> Conversion:
    key, item = (conversion(one, times) for one in bare.arguments)

    def sql(written: str, depth: int) -> tuple[str, str]:
        one = f"x{depth}"
        parts = (*_typed(key, f"{one}.1", depth + 1), *_typed(item, f"{one}.2", depth + 1))
        items = f"arrayMap({one} -> tuple({', '.join(parts)}), {written})"
        keys, values = f"tupleElement({items}, 2)", f"tupleElement({items}, 4)"
        bad = _either(_first(f"tupleElement({items}, 1)"), _first(f"tupleElement({items}, 3)"))
        return bad, f"CAST(({keys}, {values}), {literal(bare.text)})"

    node = ScanNode("map", children=(key.node, item.node))
    return Conversion(kind, node, f"Array(Tuple({key.written}, {item.written}))", sql)


def _tuple(kind: ColumnType, bare: ColumnType, nullable: bool, times: TimeSettings) -> Conversion:
    items = [conversion(one, times) for one in bare.arguments]

    def sql(written: str, depth: int) -> tuple[str, str]:
        parts = [_typed(one, f"{written}.{place}", depth) for place, one in enumerate(items, 1)]
        bad = [misfit for misfit, _ in parts if misfit != _FITS]
        value = f"tuple({', '.join(value for _, value in parts)})"
        return _either(*bad), f"CAST({value}, {literal(bare.text)})"

    names = bare.names
    node = ScanNode("tuple", nullable, names=names, children=tuple(one.node for one in items))
    return Conversion(kind, node, f"Tuple({', '.join(one.written for one in items)})", sql)


_FITS = "CAST(NULL, 'Nullable(String)')"


def _typed(inner: Conversion, written: str, depth: int) -> tuple[str, str]:
    """As `Conversion.apply`, and the value has exactly the type.

    A missing one is the type's default.
    """
    bad, value = inner.apply(written, depth)
    bad = _FITS if bad == "NULL" else bad
    if inner.is_optional:
        return bad, f"CAST({value}, {literal(inner.type.text)})"
    if not inner.type.is_nullable and inner.type.bare.name != "Dynamic":
        default = f"defaultValueOfTypeName({literal(inner.type.bare.text)})"
        value = f"ifNull({value}, {default})" if inner.type.bare.name != "JSON" else value
    return bad, f"CAST({value}, {literal(inner.type.text)})"


def _first(misfits: str) -> str:
    return f"arrayFilter(one -> isNotNull(one), {misfits})[1]"


def _either(*misfits: str) -> str:
    return f"coalesce({', '.join(misfits)})" if misfits else _FITS


# --- alternatives


def _variant(kind: ColumnType, bare: ColumnType, times: TimeSettings) -> Conversion:
    """The first alternative that fits, in an order in which those that say more come first.

    Text is a number only where no alternative takes text, and a number is a date or text only where
    none takes numbers.
    """
    ordered = sorted(bare.arguments, key=lambda one: _RANK.get(one.bare.name, 50))
    names = {one.bare.name for one in ordered}
    has_text, has_number = "String" in names, any(map(_is_number, ordered))
    items = [(conversion(one, times), _takes(one, has_text, has_number)) for one in ordered]

    def sql(written: str, depth: int) -> tuple[str, str]:
        one, branches = f"x{depth}", []
        for place, (item, _) in enumerate(items, 1):
            found = f"{written}.{place}"
            made = ", ".join(_typed(item, one, depth + 1))
            tried = f"arrayMap({one} -> tuple({made}), {found})"
            fits = f"arrayFilter(y{depth} -> isNull(y{depth}.1), {tried})"
            value = f"CAST(CAST(({fits})[1].2, {literal(item.type.text)}), {literal(bare.text)})"
            branches += [f"notEmpty({fits})", value]
        none = f"CAST(NULL, {literal(bare.text)})"
        value = f"multiIf({', '.join(branches)}, {none})"
        some = " OR ".join(f"notEmpty({written}.{place + 1})" for place in range(len(items)))
        return f"if(({some}) AND isNull({value}), 'a value', NULL)", value

    children = tuple(
        ScanNode("optional", kinds=int(takes), children=(item.node,)) for item, takes in items
    )
    written = ", ".join(f"Array({item.written})" for item, _ in items)
    return Conversion(kind, ScanNode("variant", True, children=children), f"Tuple({written})", sql)


_ORDERED = """
Bool UInt8 Int8 UInt16 Int16 UInt32 Int32 UInt64 Int64 UInt128 Int128 UInt256 Int256 Float64 Float32
Decimal Date Date32 DateTime DateTime64 UUID IPv4 IPv6 Enum8 Enum16 FixedString
"""
_RANK: Mapping[str, int] = {
    **{name: place for place, name in enumerate(_ORDERED.split())},
    "String": 100,
}


def _is_number(kind: ColumnType) -> bool:
    return kind.bare.name.startswith(("Int", "UInt", "Float", "Decimal"))


def _takes(kind: ColumnType, has_text: bool, has_number: bool) -> Takes:
    name = kind.bare.name
    if name in ("Array", "Nested") or (name == "Tuple" and not kind.bare.names):
        return Takes.ARRAYS
    if name in ("Map", "Tuple", "JSON"):
        return Takes.OBJECTS
    if name == "Bool":
        return Takes.BOOLS
    if _is_number(kind):
        return Takes.NUMBERS if has_text else Takes.NUMBERS | Takes.TEXTS
    if name == "String":
        return ~Takes(0)
    return Takes.TEXTS if has_number else Takes.TEXTS | Takes.NUMBERS
