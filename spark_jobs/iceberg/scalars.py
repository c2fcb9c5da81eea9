"""Single values as those of an Iceberg type, if nothing is lost.

Each function takes a value that is not null, of any type that a format has, and returns what Arrow
stores. It raises one of `UNFIT` for what would read back as another value: a number beyond the
type, digits that the type does not keep, half of a character.

* A whole number in a `double` or `float` keeps all digits: the double is it, or its shortest text
  is, as in typed tables (feeds/values/_numbers.pxd). A fraction is the one next to it.
* A number in text is ASCII digits with a sign, a point and an exponent, and nothing else.
* Timestamps are ISO 8601, or milliseconds since 1970; dates are ISO 8601, or days.
"""

from __future__ import annotations

import json
import math
import re
import struct
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow
from typing import Any

import msgpack
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
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from brokerhouse.feeds.decoding.formats import as_json, decimal_text

Convert = Callable[[Any], Any]
UNFIT = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError)
INT_MAX, LONG_MAX = 2**31, 2**63
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WHOLE_DIGITS_MAX = 20
_EXACT = Context(prec=200, traps=[Inexact, InvalidOperation, Overflow])
"""Raises an ArithmeticError where a digit would be lost."""
_MICROS_OF_MS = Decimal(1000)

# --- numbers


class WrittenFloat(float):
    """A number that Python would write in another way than it was written."""

    __slots__ = ("text",)
    text: str

    def __repr__(self) -> str:
        return self.text


class WrittenNumber(str):
    """A number that Python has not: 1e400, or thousands of digits."""

    __slots__ = ()


def written_fraction(text: str) -> float | WrittenNumber:
    """A number of JSON with a point or an exponent."""
    found = float(text)
    if repr(found) == text:
        return found
    if math.isinf(found) or (found == 0 and _has_digits(text)):
        return WrittenNumber(text)
    written = WrittenFloat(found)
    written.text = text
    return written


def written_whole(text: str) -> int | WrittenNumber:
    """A number of JSON without them. Python refuses thousands of digits."""
    try:
        return int(text)
    except ValueError:
        return WrittenNumber(text)


def _has_digits(text: str) -> bool:
    """Whether a number is not zero."""
    return re.search("[1-9]", re.split("[eE]", text)[0]) is not None


_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_PLAIN = re.compile(r"[+-]?[0-9]+")
_NO_NUMBER = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)


def _exact(value: Any) -> Decimal:
    """A number with all its digits. NaN and infinity are none."""
    if isinstance(value, bool):
        raise ValueError
    if isinstance(value, WrittenFloat):
        return Decimal(value.text)
    if isinstance(value, int | Decimal):
        found = Decimal(value)
    elif isinstance(value, float):
        found = Decimal(repr(value))
    elif isinstance(value, str) and _NUMBER.fullmatch(value):
        return Decimal(value)
    else:
        raise ValueError
    if not found.is_finite():
        raise ValueError
    return found


def _whole(limit: int) -> Convert:
    def convert(value: Any) -> int:
        if type(value) is int:
            whole = value
        else:
            number = _exact(value)
            if number and number.adjusted() > _WHOLE_DIGITS_MAX:
                raise ValueError
            whole = int(number) if number else 0
            if whole != number:
                raise ValueError
        if not -limit <= whole < limit:
            raise ValueError
        return whole

    return convert


def _shortest_float(value: float) -> Decimal:
    """The shortest text of a number of 32 bits."""
    for digits in range(6, 10):
        text = f"{value:.{digits}g}"
        if _float32(float(text)) == value:
            break
    return Decimal(text)


def _float32(value: float) -> float:
    """Raises OverflowError."""
    found: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return found


def fit_double(value: Any) -> float:
    """64 bits."""
    return _binary_number(value, lambda found: found, lambda found: Decimal(repr(found)))


def fit_float(value: Any) -> float:
    """32 bits."""
    return _binary_number(value, _float32, _shortest_float)


def _binary_number(
    value: Any, shorten: Callable[[float], float], shortest: Callable[[float], Decimal]
) -> float:
    """`shorten`: to the bits of the type. `shortest`: the text of such a number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise ValueError
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        if not _NO_NUMBER.fullmatch(value):
            raise ValueError
        return float(value)
    number = float(value)
    if not math.isfinite(number):
        if isinstance(value, float) and not isinstance(value, WrittenFloat):
            return number
        raise ValueError
    found = shorten(number)
    if math.isinf(found) or (found == 0 and _exact(value) != 0):
        raise ValueError
    is_whole = isinstance(value, int) or (
        not isinstance(value, float) and _PLAIN.fullmatch(_text_of_number(value))
    )
    if is_whole and _exact(value) not in (Decimal(found), shortest(found)):
        raise ValueError
    return found


def _text_of_number(value: str | Decimal) -> str:
    return value if isinstance(value, str) else decimal_text(value)


def _decimal(kind: DecimalType) -> Convert:
    step = Decimal(1).scaleb(-kind.scale)

    def convert(value: Any) -> Decimal:
        exact = _exact(value)
        fitted = exact.quantize(step, context=_EXACT)
        if len(fitted.as_tuple().digits) > kind.precision:
            raise ValueError
        return fitted

    return convert


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError


# --- text and bytes


def _string(value: Any) -> str:
    if isinstance(value, str):
        value.encode()  # text of a binary format that is not UTF-8 has surrogates
        return str(value)
    if isinstance(value, bytes):
        return value.decode()
    text = _json_text(value) if isinstance(value, bool | dict | list) else _key_text(value)
    text.encode()
    return text


def _key_text(value: Any) -> str:
    """A single value as text without quotes."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if value is None or isinstance(value, dict | list):
        raise ValueError
    return str(as_json(value))


def _json_text(value: Any) -> str:
    """As json.dumps, with numbers as they were written."""
    if isinstance(value, WrittenNumber):
        return str(value)
    if isinstance(value, dict):
        items = (f"{_quoted(_key_text(key))}:{_json_text(one)}" for key, one in value.items())
        return f"{{{','.join(items)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_json_text, value))}]"
    if isinstance(value, WrittenFloat):
        return value.text
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    return _quoted(_key_text(value))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _binary(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str) or isinstance(value, WrittenNumber):
        raise ValueError
    return value.encode("utf-8", "surrogateescape")


def _fixed(kind: FixedType) -> Convert:
    def convert(value: Any) -> bytes:
        found = _binary(value)
        if len(found) != len(kind):
            raise ValueError
        return found

    return convert


_UUID = re.compile(
    r"[0-9a-fA-F]{8}(-?)[0-9a-fA-F]{4}\1[0-9a-fA-F]{4}\1[0-9a-fA-F]{4}\1[0-9a-fA-F]{12}"
)


def _uuid(value: Any) -> bytes:
    if not isinstance(value, str) or not _UUID.fullmatch(value):
        raise ValueError
    return uuid.UUID(value).bytes


# --- dates and times

_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{8}|[0-9]{4}-?W[0-9]{2}(?:-?[0-9])?"
_CLOCK = r"[0-9]{2}(?::?[0-9]{2}(?::?[0-9]{2}(?P<fraction>[.,][0-9]+)?)?)?"
_ZONE = r"Z|[+-][0-9]{2}(?::?[0-9]{2}(?::?[0-9]{2})?)?"
_DAY = re.compile(_DATE)
_MOMENT = re.compile(rf"(?:{_DATE})(?:[T ]{_CLOCK}(?:{_ZONE})?)?")
_TIME = re.compile(_CLOCK)
_FRACTION_MAX = len(".123456")


def _with_micros(text: str, syntax: re.Pattern[str]) -> str:
    """ISO 8601 as Python reads it. Raises ValueError for more digits than microseconds have."""
    match = syntax.fullmatch(text)
    if match is None:
        raise ValueError
    if (fraction := match["fraction"]) is None:
        return text
    kept = fraction.rstrip("0")
    if len(kept) > _FRACTION_MAX:
        raise ValueError
    begin, end = match.span("fraction")
    return f"{text[:begin]}{kept:0<{_FRACTION_MAX}}{text[end:]}"


def _moment(value: Any) -> datetime:
    if isinstance(value, msgpack.Timestamp):
        value = as_json(value)
    if not isinstance(value, str):
        micros = _EXACT.multiply(_exact(value), _MICROS_OF_MS)
        return _EPOCH + timedelta(microseconds=_whole(LONG_MAX)(micros))
    return datetime.fromisoformat(_with_micros(value, _MOMENT))


def _timestamp(value: Any) -> datetime:
    moment = _moment(value)
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment


def _timestamptz(value: Any) -> datetime:
    moment = _moment(value)
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def _date(value: Any) -> date:
    if not isinstance(value, str):
        return date(1970, 1, 1) + timedelta(days=_whole(INT_MAX)(value))
    if not _DAY.fullmatch(value):
        raise ValueError
    return date.fromisoformat(value)


def _time(value: Any) -> time:
    if not isinstance(value, str):
        raise ValueError
    return time.fromisoformat(_with_micros(value, _TIME))


_SIMPLE: Mapping[type[IcebergType], Convert] = {
    BooleanType: _bool,
    IntegerType: _whole(INT_MAX),
    LongType: _whole(LONG_MAX),
    FloatType: fit_float,
    DoubleType: fit_double,
    StringType: _string,
    BinaryType: _binary,
    UUIDType: _uuid,
    TimestampType: _timestamp,
    TimestamptzType: _timestamptz,
    DateType: _date,
    TimeType: _time,
}


def scalar_converter(kind: IcebergType) -> Convert | None:
    """None for a type that has others in it, or that no value fits."""
    if isinstance(kind, DecimalType):
        return _decimal(kind)
    if isinstance(kind, FixedType):
        return _fixed(kind)
    return _SIMPLE.get(type(kind))
