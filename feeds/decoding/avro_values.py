"""Logical types of Avro as what they mean, with all digits: https://avro.apache.org/docs/1.12.0/

fastavro's own readers make objects of Python. These have no year above 9999, no nanoseconds, and
decimals are rounded to the precision of the schema; what they do not have ends the whole record,
and the error does not say which field it was. Here each value is read:

    timestamp-millis, -micros, -nanos           2026-11-24T10:00:00.123Z
    local-timestamp-millis, -micros, -nanos     2026-11-24T10:00:00.123
    date                                        2026-11-24
    time-millis, -micros                        10:00:00.123
    decimal                                     a Decimal, also beyond its precision
    uuid                                        the text as it was written; of 16 bytes, its text

Durations have no type in a table, and stay bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from functools import partial
from typing import Any
from uuid import UUID

from fastavro.read import LOGICAL_READERS

from brokerhouse.feeds.decoding.calendar import day_text, moment_text, time_text

Read = Callable[..., Any]
"""Called with the value, the writer's schema and the reader's schema, which is None."""


def _moment(digits: int, zone: str, value: int, *_: Any) -> str:
    return moment_text(value, digits, zone)


def _time(digits: int, value: int, *_: Any) -> str:
    return time_text(value, digits)


def _date(value: int, *_: Any) -> str:
    return day_text(value)


def _decimal(value: bytes, schema: Mapping[str, Any], *_: Any) -> Decimal:
    unscaled = int.from_bytes(value, "big", signed=True)
    digits = Context(prec=len(value) * 3 + 1, Emax=MAX_EMAX, Emin=MIN_EMIN)
    return Decimal(unscaled).scaleb(-schema.get("scale", 0), digits)


def _uuid(value: str | bytes, *_: Any) -> str:
    return value if isinstance(value, str) else str(UUID(bytes=value))


_DIGITS = {"millis": 3, "micros": 6, "nanos": 9}
READERS: Mapping[str, Read] = {
    **{f"long-timestamp-{unit}": partial(_moment, n, "Z") for unit, n in _DIGITS.items()},
    **{f"long-local-timestamp-{unit}": partial(_moment, n, "") for unit, n in _DIGITS.items()},
    "int-date": _date,
    "int-time-millis": partial(_time, 3),
    "long-time-micros": partial(_time, 6),
    "bytes-decimal": _decimal,
    "fixed-decimal": _decimal,
    "string-uuid": _uuid,
    "fixed-uuid": _uuid,
}


def register() -> None:
    """fastavro has one set of readers for a process."""
    LOGICAL_READERS.update(READERS)
