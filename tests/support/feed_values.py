"""Values at and beyond the edges of every type, with what a typed table has to make of them.

The oracle is Python's exact arithmetic: it shares no code with the feeds. A value is given as JSON;
`DEAD` is what becomes a dead letter.
"""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, localcontext
from functools import partial
from typing import Any

DEAD = None
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST, LAST = datetime(1900, 1, 1, tzinfo=UTC), datetime(2299, 12, 31, 23, 59, 59, tzinfo=UTC)


@dataclass(frozen=True)
class Sent:
    """`json`: as a record has it. `stored`: `toString` of what a table has, or `DEAD`."""

    json: str
    stored: str | None


def whole_numbers(low: int, high: int) -> Iterator[Sent]:
    some = random.Random(low ^ high)
    edges = {n + d for n in (low, high, 0, 2**53, 2**63, 2**64, 2**128) for d in (-1, 0, 1)}
    edges |= {some.randint(low, high) for _ in range(10)}
    edges |= {high + some.randint(1, high) for _ in range(3)}
    for n in sorted(edges):
        fits = str(n) if low <= n <= high else DEAD
        yield Sent(str(n), fits)
        yield Sent(f'"{n}"', fits)
        yield Sent(f"{n}.0", fits)
        yield Sent(f"{n}.5", DEAD)
        yield Sent(f"{n}e2", str(n * 100) if low <= n * 100 <= high else DEAD)
    for other in (
        "true",
        "[1]",
        "{}",
        '"x"',
        '""',
        '"1,5"',
        '" 1"',
        '"1 "',
        "1e-1",
        "1e400",
        "NaN",
    ):
        yield Sent(other, DEAD)


def floats(shorten: Callable[[float], float], digits: int) -> Iterator[Sent]:
    """`shorten`: to the bits of the type. `digits`: that each number has in decimal."""
    some = random.Random(digits)
    largest = 1.7976931348623157e308 if digits == 15 else 3.4028234663852886e38
    drawn = [some.uniform(-1, 1) * 10.0 ** some.randint(-30, 30) for _ in range(30)]
    for value in [0.0, 0.1, -1.5, 1e22, 1e-30, largest, -largest, *drawn]:
        yield Sent(repr(value), repr(shorten(value)))
        yield Sent(f'"{value!r}"', repr(shorten(value)))
    for text in ("1e400", "-1e309", "1e-400", "9" * 400):
        yield Sent(text, DEAD)
    if digits == 6:
        yield from (Sent("1e39", DEAD), Sent("1e-60", DEAD), Sent("16777216", "16777216.0"))
        yield Sent("16777217", DEAD)
    else:
        yield from (Sent("9007199254740992", "9007199254740992.0"), Sent("9007199254740993", DEAD))
        yield from (Sent("1875924584784080993", DEAD), Sent("1e39", "1e+39"))
        yield Sent("9223372036854775808", "9.223372036854775808e18")
        yield Sent("12345678901234567000", repr(12345678901234567000.0))  # as JavaScript writes it
    for word, stored in (("nan", "nan"), ("inf", "inf"), ("-Infinity", "-inf")):
        yield Sent(f'"{word}"', stored)
    yield from (Sent("NaN", "nan"), Sent("true", DEAD), Sent('"x"', DEAD), Sent("[]", DEAD))


def decimals(precision: int, scale: int) -> Iterator[Sent]:
    some = random.Random(precision)
    with localcontext() as context:
        context.prec = 200
        most = (Decimal(10) ** precision - 1).scaleb(-scale)
        step = Decimal(1).scaleb(-scale)
        drawn = [
            Decimal(some.randint(-(10**precision), 10**precision)).scaleb(-scale) for _ in range(10)
        ]
        for value in (most, -most, most + step, step, -step, step / 10, step * 5 / 2, *drawn):
            fits = abs(value) <= most and value % step == 0
            stored = _plain(value) if fits else DEAD
            for text in (f"{value:f}", f"{value:f}0" if "." in f"{value:f}" else f"{value:f}.0"):
                yield from (Sent(text, stored), Sent(f'"{text}"', stored))
    yield from (Sent("0", "0"), Sent("-0.0", "0"), Sent("1e3", "1000"), Sent("1e300", DEAD))
    yield from (Sent('"x"', DEAD), Sent("NaN", DEAD), Sent("true", DEAD), Sent("{}", DEAD))


def _plain(value: Decimal) -> str:
    text = f"{value:f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) or "0"


def days(first: datetime, last: datetime) -> Iterator[Sent]:
    some = random.Random(first.year)
    low, high = (first - EPOCH).days, (last - EPOCH).days
    numbers = {n + d for n in (low, high, 0) for d in (-1, 0, 1)} | {20240101, -(10**9), 10**12}
    numbers |= {some.randint(low, high) for _ in range(10)}
    for number in sorted(numbers):
        fits = low <= number <= high
        stored = str((EPOCH + timedelta(days=number)).date()) if fits else DEAD
        yield from (Sent(str(number), stored), Sent(f"{number}.0", stored))
    texts = {
        *(str((EPOCH + timedelta(days=n)).date()) for n in numbers if abs(n) < 10**6),
        "0001-01-01",
        "0044-03-15",
        "9999-12-31",
        "1582-10-15",
    }
    for text in sorted(texts):
        day = datetime.fromisoformat(text).replace(tzinfo=UTC)
        stored = text if first <= day <= last else DEAD
        yield from (Sent(f'"{text}"', stored), Sent(f'"{text}T00:00:00Z"', stored))
        yield Sent(f'"{text.replace("-", "")}"', stored)
        yield from (Sent(f'"{text} 10:00:00"', DEAD), Sent(f'"{text}T00:00:00+02:00"', DEAD))
    yield from _no_days()


_NO_DAYS = (
    "0000-00-00|0000-01-01|2026-02-30|2026-13-01|2026-00-10|-2026-01-01|soon||12026-01-01"
    "|+12026-01-01|19782|5|10:00|2026|2026-05|infinity|Jan 5|2026-01-01x|5 May|31 Feb 2026"
    "|24/13/2026|24.11.26|Tue, 24 November 2026"
)
_NO_MOMENTS = (
    "9999-12-31T23:59:59Z, 1850-01-01T00:00:00Z, 0044-03-15 12:00:00, 2300-01-01 00:00:00,"
    " 2026-01-01T24:00:00Z, 2026-01-01T10:60:00Z, 2026-01-01T23:59:60Z, 1704067200, 1704067200123,"
    " 10:00:00, 2026-01-01T10:00:00., 2026-01-01T10:00:00+25:00"
)


def _no_days() -> Iterator[Sent]:
    for text in _NO_DAYS.split("|"):
        yield Sent(json.dumps(text), DEAD)
    yield from (Sent("1.5", DEAD), Sent("true", DEAD), Sent("[]", DEAD), Sent("1e30", DEAD))


def moments(scale: int, first: datetime, last: datetime, *, whole_seconds: bool) -> Iterator[Sent]:
    """`whole_seconds`: DateTime, whose numbers are seconds; otherwise they are ticks."""
    some = random.Random(scale)
    step = 10**scale
    low = int((first - EPOCH).total_seconds()) * step
    high = int((last - EPOCH).total_seconds()) * step + step - 1
    if scale == 9:
        high = min(high, 2**63 - 1)
    ticks = {n + d for n in (low, high, 0) for d in (-1, 0, 1)}
    ticks |= {some.randint(low, high) for _ in range(10)} | {946684800000, 1704067200123, -1000, 1}
    for tick in sorted(ticks):
        stored = _moment(tick, scale) if low <= tick <= high else DEAD
        yield Sent(str(tick), stored)
        if not whole_seconds and abs(tick) < 10**17:
            yield Sent(
                _decimal_seconds(tick, scale), stored
            )  # 1704067200.123, as ClickHouse has it
        if low <= tick <= high:
            yield from _texts_of(tick, scale)
    for text in _NO_MOMENTS.split(", "):
        yield Sent(json.dumps(text), DEAD)
    yield from (one for one in _no_days() if one.json != "1.5" or whole_seconds)


def _decimal_seconds(tick: int, scale: int) -> str:
    text = f"{Decimal(tick).scaleb(-scale):f}"
    return text if "." in text else f"{text}.0"


def _moment(tick: int, scale: int) -> str:
    second, fraction = divmod(tick, 10**scale)
    text = (EPOCH + timedelta(seconds=second)).strftime("%Y-%m-%d %H:%M:%S")
    return f"{text}.{fraction:0{scale}}" if scale else text


def _texts_of(tick: int, scale: int) -> Iterator[Sent]:
    stored = _moment(tick, scale)
    yield from (Sent(f'"{stored}"', stored), Sent(f'"{stored.replace(" ", "T")}Z"', stored))
    more = stored + ("" if scale else ".")
    yield Sent(f'"{more}000"', stored)
    yield Sent(f'"{more}{"0" * (9 - scale)}1"', DEAD)
    if scale < 9:
        yield Sent(f'"{more}1"', DEAD)
    second, fraction = divmod(tick, 10**scale)
    east = EPOCH + timedelta(seconds=second) + timedelta(hours=5, minutes=30)
    if FIRST.year < east.year:
        text = east.strftime("%Y-%m-%dT%H:%M:%S") + (f".{fraction:0{scale}}" if scale else "")
        yield Sent(f'"{text}+05:30"', stored)


def texts() -> Iterator[Sent]:
    odd = (
        "",
        "a",
        "ü",
        "\U0001f600",
        'a"b\\c/d',
        "line\nline\ttab",
        "\x00\x1f",
        "null",
        "5",
        "\u2028",
    )
    for text in (*odd, "x" * 5000):
        yield from (Sent(json.dumps(text), text), Sent(json.dumps(text, ensure_ascii=False), text))
    for number in ("5", "1.50", "-0", "1e3", "12345678901234567890123.4500"):
        yield Sent(number, number)
    for other in ("true", '{"a": [1,  2]}', "[ 1 ]"):
        yield Sent(other, other)
    for half in ('"\\ud83d"', '"\\udE00x"', '"\\ud83d\\u0041"'):
        yield Sent(half, DEAD)


def cases(stored: str, dead: str) -> Iterator[Sent]:
    """Values as `JSON=stored`, and those that no row may have; blanks are between them."""
    for one in stored.split():
        value, _, shown = one.partition("=")
        yield Sent(value, shown)
    yield from (Sent(value, DEAD) for value in dead.split())


def named(*pairs: tuple[str, str | None]) -> Iterator[Sent]:
    yield from (Sent(*pair) for pair in pairs)


def _float32(value: float) -> float:
    found: float = struct.unpack("f", struct.pack("f", value))[0]
    # The shortest text of 32 bits, as ClickHouse writes it.
    for digits in range(1, 12):
        text = float(f"{found:.{digits}g}")
        if abs(text) <= 3.4028235e38 and struct.pack("f", text) == struct.pack("f", value):
            return text
    return found


UUID_TEXT = "c98f0a1e-9d0c-4f3e-8b5a-000000000001"
UUID_TEXTS = (UUID_TEXT, UUID_TEXT.upper(), UUID_TEXT.replace("-", ""))
LAST_SECOND = datetime.fromtimestamp(2**32 - 1, UTC)
LAST_NANO = datetime(2262, 4, 11, 23, 47, 16, tzinfo=UTC)

SCALARS: Mapping[str, Callable[[], Iterator[Sent]]] = {
    **{f"UInt{bits}": partial(whole_numbers, 0, 2**bits - 1) for bits in (8, 16, 32, 64, 128, 256)},
    **{
        f"Int{bits}": partial(whole_numbers, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        for bits in (8, 16, 32, 64, 128, 256)
    },
    "Float64": lambda: floats(float, 15),
    "Float32": lambda: floats(_float32, 6),
    "Decimal(9, 2)": lambda: decimals(9, 2),
    "Decimal(18, 0)": lambda: decimals(18, 0),
    "Decimal(38, 10)": lambda: decimals(38, 10),
    "Decimal(76, 38)": lambda: decimals(76, 38),
    "Bool": lambda: cases(
        'true=true false=false 1=true 0=false "true"=true "FALSE"=false "1"=true 1.0=true',
        '2 -1 0.5 "yes" "" []',
    ),
    "String": texts,
    "FixedString(3)": lambda: cases('"abc"=abc "üa"=üa 123=123', '"abcd" "üü" 1234'),
    "Date": lambda: days(EPOCH, datetime(2149, 6, 6, tzinfo=UTC)),
    "Date32": lambda: days(FIRST, datetime(2299, 12, 31, tzinfo=UTC)),
    "DateTime('UTC')": lambda: moments(0, EPOCH, LAST_SECOND, whole_seconds=True),
    "DateTime64(0, 'UTC')": lambda: moments(0, FIRST, LAST, whole_seconds=False),
    "DateTime64(3, 'UTC')": lambda: moments(3, FIRST, LAST, whole_seconds=False),
    "DateTime64(6, 'UTC')": lambda: moments(6, FIRST, LAST, whole_seconds=False),
    "DateTime64(9, 'UTC')": lambda: moments(9, FIRST, LAST_NANO, whole_seconds=False),
    "UUID": lambda: cases(
        " ".join(f'"{text}"={UUID_TEXT}' for text in UUID_TEXTS),
        f'"{UUID_TEXT[:-1]}" "{UUID_TEXT}0" "c98f" 5 "" {{}}',
    ),
    "IPv4": lambda: cases(
        '"1.2.3.4"=1.2.3.4 "255.255.255.255"=255.255.255.255',
        '"1.2.3.256" "1.2.3" "1.2.3.4.5" 5 "01.2.3.4" ""',
    ),
    "IPv6": lambda: cases(
        '"::1"=::1 "2001:db8::ff00:42:8329"=2001:db8::ff00:42:8329 "::ffff:1.2.3.4"=::ffff:1.2.3.4',
        '"::x" "1:2:3" 1',
    ),
    "Enum8('new' = 1, 'pa\\'id' = 2)": lambda: named(
        ('"new"', "new"), ('"pa\'id"', "pa'id"), ('"lost"', DEAD), ("1", DEAD), ('""', DEAD)
    ),
    "Time": lambda: named(('"12:30:00"', "12:30:00"), ('"25"', DEAD), ('"x"', DEAD)),
}
"""By type, each value of which a record may be."""


@dataclass(frozen=True)
class Nest:
    """A type with another one in it, a value with another one in it, and its text in a row."""

    type: str
    json: str
    stored: str

    def wrap(self, value: str) -> str:
        return self.json.replace("VALUE", value)


_TEXTS = "arrayMap(one -> toString(one), {})"
NESTS: Mapping[str, Nest] = {
    "alone": Nest("{}", "VALUE", "toString({})"),
    "nullable": Nest("Nullable({})", "VALUE", "toString({})"),
    "array": Nest("Array({})", "[VALUE]", f"{_TEXTS}[1]"),
    "nullable_items": Nest("Array(Nullable({}))", "[null, VALUE]", f"{_TEXTS}[2]"),
    "array_of_array": Nest(
        "Array(Array({}))", "[[], [VALUE]]", "arrayMap(one -> toString(one), {}[2])[1]"
    ),
    "map": Nest(
        "Map(String, {})", '{"k": VALUE}', "if(mapContains({0}, 'k'), toString({0}['k']), '')"
    ),
    "named_tuple": Nest("Tuple(a UInt8, b {})", '{"a": 1, "b": VALUE}', "toString({}.b)"),
    "tuple": Nest("Tuple({}, UInt8)", "[VALUE, 1]", "toString({}.1)"),
    "nested": Nest(
        "Nested(a UInt8, b {})",
        '[{"a": 1, "b": VALUE}]',
        "arrayMap(one -> toString(one), {}.b)[1]",
    ),
    "low_cardinality": Nest("LowCardinality({})", "VALUE", "toString({})"),
}

_NOT_OF_LOW_CARDINALITY = "Decimal Enum DateTime64 Bool Time Int128 UInt128 Int256 UInt256"


def nests_of(kind: str) -> Mapping[str, Nest]:
    """Those that ClickHouse has for a type."""
    without = "low_cardinality" if kind.startswith(tuple(_NOT_OF_LOW_CARDINALITY.split())) else ""
    return {name: nest for name, nest in NESTS.items() if name != without}


def is_same(kind: str, stored: str, expected: str) -> bool:
    if kind.startswith("Float"):
        one, other = float(stored), float(expected)
        return one == other or (math.isnan(one) and math.isnan(other))
    if kind.startswith("FixedString"):
        return stored.rstrip("\0") == expected
    return stored == expected


def as_python(text: str) -> Any:
    """A JSON value as another format's writer gets it. Raises ValueError for what none has."""
    value = json.loads(text)
    if isinstance(value, float) and text[-1].isdigit() and repr(value) != text:
        raise ValueError("no double is this number, or it is written in another way")
    return value
