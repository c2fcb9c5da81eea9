"""Days and moments as ISO 8601, of any year and with all digits.

Python's datetime has the years 1 to 9999 and microseconds. Formats have more of both, and text has
room for all of it: a column that has not says which field does not fit.

    2026-11-24    +12345-01-01    -0043-03-15       the year 0 is 1 BC
    2026-11-24T10:00:00.123456789Z                  as many digits as the type has
"""

from __future__ import annotations

from datetime import date

_EPOCH_DAY = date(1970, 1, 1).toordinal()
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
_YEAR_MAX = 9999
DAY_S = 86_400


def day_of(days: int) -> tuple[int, int, int]:
    """Year, month and day, `days` after 1970-01-01. The year before 1 is 0."""
    cycles, rest = divmod(days + _EPOCH_DAY - 1, _CYCLE_DAYS)
    found = date.fromordinal(rest + 1)
    return found.year + cycles * _CYCLE_YEARS, found.month, found.day


def clock(seconds: int) -> str:
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def fraction(value: int, digits: int) -> str:
    """Of a second, with its point; empty if it is zero."""
    return f".{value:0{digits}}".rstrip("0") if value else ""


def day_text(days: int) -> str:
    year, month, day = day_of(days)
    shown = f"{year:04}" if 0 <= year <= _YEAR_MAX else f"{year:+05}"
    return f"{shown}-{month:02}-{day:02}"


def moment_text(ticks: int, digits: int, zone: str) -> str:
    """`ticks`: of 10^-digits seconds since 1970. All digits are written."""
    seconds, rest = divmod(ticks, 10**digits)
    days, second = divmod(seconds, DAY_S)
    return f"{day_text(days)}T{clock(second)}.{rest:0{digits}}{zone}"


def time_text(ticks: int, digits: int) -> str:
    """Of 10^-digits seconds since midnight. Beyond a day, it is no time that a column takes."""
    seconds, rest = divmod(abs(ticks), 10**digits)
    return f"{'-' if ticks < 0 else ''}{clock(seconds)}.{rest:0{digits}}"
