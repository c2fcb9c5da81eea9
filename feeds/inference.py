"""Columns for fields of JSON, by a sample of objects: types that hold each of its values exactly.

true, false                                    Bool
whole numbers                                  Int64, UInt64 above that, Int128 ... Int256
numbers with a fraction                        Float64; Decimal where that loses digits
text                                           String; where a person is asked, ISO 8601 is
                                               Date32 or DateTime64
arrays                                         Array of the type that their items have
objects                                        a column for each field, or one of type JSON
different kinds, numbers that nothing holds    String
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from math import isfinite
from typing import Any, NamedTuple

from brokerhouse.feeds.definition import BLOCK_COLUMN, METADATA_COLUMNS
from brokerhouse.feeds.paths import Path, path_as_text

Object = dict[str, Any]

_DEPTH_MAX = 20
"""Of objects whose fields get columns: those of objects below are in one of type JSON."""


class InferredColumn(NamedTuple):
    """`path`: as `--path` has it."""

    name: str
    type: str
    path: str


class ExactNumber(Decimal):
    """A number with all digits that were written."""


def parse_sample(values: Iterable[bytes]) -> list[Object]:
    """The objects of values that are JSON; other values are left out."""
    found: list[Object] = []
    for value in values:
        try:
            parsed = json.loads(value.decode("utf-8-sig"), parse_float=ExactNumber)
        except (ValueError, RecursionError):
            continue
        rows = parsed if isinstance(parsed, list) else [parsed]
        found += [row for row in rows if isinstance(row, dict)]
    return found


def flat_columns(rows: Iterable[Object]) -> list[InferredColumn]:
    """A column for each path: fields of nested objects get one each. No two have one name."""
    found: dict[Path, list[Any]] = {}
    for row in rows:
        for path, value in _leaves(row, ()):
            found.setdefault(path, []).append(value)
    names: dict[str, int] = {}
    columns = []
    # A field that is an object in some records and something else in others: one column of text.
    shallow = {path for path in found if not any(path[:n] in found for n in range(1, len(path)))}
    deeper = {path[:n] for path in found for n in range(1, len(path))}
    for path, values in found.items():
        if path not in shallow:
            continue
        wanted = "_".join(path).replace(".", "_") if len(path) > 1 else path[0]
        names[wanted] = names.get(wanted, 0) + 1
        name = wanted if names[wanted] == 1 else f"{wanted}_{names[wanted]}"
        kind = "Nullable(String)" if path in deeper else column_type(values, with_dates=True)
        columns.append(InferredColumn(name, kind, path_as_text(path)))
    return columns


def field_columns(
    rows: Iterable[Object], names: Collection[str] | None = None
) -> list[InferredColumn]:
    """A column for each field of the record itself; one for a nested object is of type JSON.

    `names`: only these. Fields named like the columns that are not filled from values, and those
    that are null everywhere, are left out.
    """
    found: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            if value is not None and (names is None or name in names):
                found.setdefault(name, []).append(value)
    return [
        InferredColumn(name, column_type(values), path_as_text((name,)))
        for name, values in found.items()
        if _can_be_column(name)
    ]


def fields_without_columns(rows: Iterable[Object]) -> list[str]:
    """Fields of the record itself that `flat_columns` leaves out although they have values."""
    names = {name for row in rows for name, value in row.items() if value is not None}
    return sorted(name for name in names if not _can_be_column(name))


def _can_be_column(name: str) -> bool:
    return bool(name) and name not in METADATA_COLUMNS and name != BLOCK_COLUMN and _is_text(name)


def _is_text(name: str) -> bool:
    return not any("\ud800" <= one <= "\udfff" for one in name) and "\0" not in name


def _leaves(row: Object, above: Path) -> Iterator[tuple[Path, Any]]:
    for name, value in row.items():
        path = (*above, name)
        if not name or not _is_text(name) or (not above and not _can_be_column(name)):
            continue
        if isinstance(value, dict) and value and len(path) < _DEPTH_MAX:
            yield from _leaves(value, path)
        elif value is not None:
            yield path, value


def column_type(values: Iterable[Any], *, with_dates: bool = False) -> str:
    """Of values that are not null: each fits, as it was written.

    `with_dates`: text in ISO 8601 is a date or a time.
    """
    kind = _type_of(list(values), with_dates)
    return kind if kind.startswith(("Array", "JSON")) else f"Nullable({kind})"


def _type_of(values: Sequence[Any], with_dates: bool) -> str:
    kinds = set(map(type, values))
    if kinds == {bool}:
        return "Bool"
    if kinds == {int}:
        return _whole(values)
    if kinds and kinds <= {int, float, ExactNumber}:
        return _number(
            [Decimal(repr(one)) if isinstance(one, float) else Decimal(one) for one in values]
        )
    if kinds == {list}:
        items = [item for value in values for item in value if item is not None]
        return f"Array({column_type(items)})"
    if kinds == {dict}:
        return "JSON"
    if kinds == {str} and with_dates:
        return _date_or_text(values)
    return "String"


def _whole(values: Sequence[int]) -> str:
    least, most = min(values), max(values)
    for name, low, high in _WHOLE:
        if low <= least and most < high:
            return name
    return "String"


_WHOLE = (
    ("Int64", -(1 << 63), 1 << 63),
    ("UInt64", 0, 1 << 64),
    ("Int128", -(1 << 127), 1 << 127),
    ("Int256", -(1 << 255), 1 << 255),
)


def _number(values: Sequence[Decimal]) -> str:
    """Of numbers some of which have a fraction."""
    if all(map(_is_double, values)):
        return "Float64"
    finite = [one.normalize(_EXACT) for one in values if one.is_finite()]
    scale = max((-exponent_of(one) for one in finite), default=0)
    whole = max((one.adjusted() + 1 for one in finite), default=0)
    if len(finite) < len(values) or max(whole, 1) + max(scale, 0) > _DECIMAL_DIGITS:
        return "String"
    precision = 38 if max(whole, 1) + scale <= 38 else _DECIMAL_DIGITS
    return f"Decimal({precision}, {max(scale, 0)})"


_DECIMAL_DIGITS = 76
_EXACT = Context(prec=2000, Emax=MAX_EMAX, Emin=MIN_EMIN)


def exponent_of(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int), "finite"
    return exponent


def _is_double(number: Decimal) -> bool:
    """Whether the shortest text of the double next to it is the number."""
    found = float(number)
    return not number.is_finite() or (isfinite(found) and Decimal(repr(found)) == number)


def _date_or_text(values: Sequence[str]) -> str:
    found = [_ISO.fullmatch(value) for value in values]
    if not all(found) or not all(map(_is_moment, values)):
        return "String"
    matches = [one for one in found if one is not None]
    if not any(one["time"] for one in matches):
        return "Date32"
    zoned = {bool(one["zone"]) for one in matches}
    if len(zoned) > 1 or not all(one["time"] for one in matches):
        return "String"
    digits = max(len(one["fraction"] or "") for one in matches)
    scale = next(one for one in (3, 6, 9) if digits <= one)
    return f"DateTime64({scale}, 'UTC')" if True in zoned else f"DateTime64({scale})"


_ISO = re.compile(
    r"(?P<year>\d{4})-\d\d-\d\d(?P<time>[T ]\d\d:\d\d:\d\d(\.(?P<fraction>\d{1,9}))?"
    r"(?P<zone>Z|[+-]\d\d:\d\d)?)?"
)
_YEARS = (1900, 2262)


def _is_moment(text: str) -> bool:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return False
    first, end = _YEARS
    return first < moment.year < end
