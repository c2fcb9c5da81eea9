"""Filters that Spark pushes down: which of them are applied here exactly, and how. Pure.

Filters on topic and partition decide which partitions are read at all; those on offset and
timestamp become conditions in SQL. A filter that cannot be applied exactly stays with Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

MAX_TIMESTAMP_MS = (2**63 - 1) // 1000
"""Kafka's timestamps are any int64 in milliseconds, Spark's in microseconds: a timestamp beyond
this, before or after 1970, does not fit and is null."""
FITS = f"timestamp_ms BETWEEN -{MAX_TIMESTAMP_MS} AND {MAX_TIMESTAMP_MS}"

_TYPES: Mapping[str, type] = {"topic": str, "partition": int, "offset": int, "timestamp": datetime}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_COMPARED: Mapping[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda found, value: found == value,
    GreaterThan: lambda found, value: found > value,
    GreaterThanOrEqual: lambda found, value: found >= value,
    LessThan: lambda found, value: found < value,
    LessThanOrEqual: lambda found, value: found <= value,
    In: lambda found, value: found in value,
    StringStartsWith: lambda found, value: found.startswith(value),
    StringEndsWith: lambda found, value: found.endswith(value),
    StringContains: lambda found, value: value in found,
}
_OPERATORS: Mapping[type[Filter], str] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}


@dataclass(slots=True)
class Filters:
    """The filters that are applied here; a record must pass all of them. Travels to tasks."""

    of_partitions: list[Filter] = field(default_factory=list)
    conditions: list[str] = field(default_factory=list)
    params: dict[str, int] = field(default_factory=dict)

    def push_down(self, filters: Iterable[Filter]) -> Iterable[Filter]:
        """Keep the filters that can be applied here; return the others."""
        for one in filters:
            plain, negated = (one.child, True) if isinstance(one, Not) else (one, False)
            column = _column(plain)
            if column is None:
                yield one
            elif column in ("topic", "partition"):
                self.of_partitions.append(one)
            else:
                self._add(plain, column, negated)

    def partition(self, topic: str, number: int) -> bool:
        """Whether any record of this partition can pass."""
        found = {"topic": topic, "partition": number}
        return all(_holds(one, found) for one in self.of_partitions)

    @property
    def sql(self) -> str:
        """The filters as SQL, to be added after other conditions of a WHERE."""
        return "".join(f" AND {condition}" for condition in self.conditions)

    def _add(self, plain: Filter, column: str, negated: bool) -> None:
        if isinstance(plain, IsNull | IsNotNull):
            exists = FITS if column == "timestamp" else "1"
            is_null = isinstance(plain, IsNull) != negated
            self.conditions.append(f"NOT ({exists})" if is_null else f"({exists})")
            return
        condition = self._offset(plain) if column == "offset" else self._time(plain)
        if negated:
            condition = f"NOT ({condition})"
        # Null is neither equal nor unequal to anything.
        self.conditions.append(f"({FITS} AND {condition})" if column == "timestamp" else condition)

    def _offset(self, plain: Any) -> str:
        if isinstance(plain, In):
            return self._in("offset", plain.value)
        return f"offset {_OPERATORS[type(plain)]} {self._bound(plain.value)}"

    def _time(self, plain: Any) -> str:
        """Comparison of microseconds, in whole milliseconds."""
        if isinstance(plain, In):
            times = [_microseconds(value) for value in plain.value]
            return self._in("timestamp_ms", [time // 1000 for time in times if time % 1000 == 0])
        floor, rest = divmod(_microseconds(plain.value), 1000)
        operator = _OPERATORS[type(plain)]
        if operator == "=" and rest:
            return "0"
        if rest and operator in (">=", "<"):
            floor += 1
        return f"timestamp_ms {operator} {self._bound(floor)}"

    def _in(self, column: str, values: Iterable[int]) -> str:
        bound = ", ".join(self._bound(value) for value in values)
        return f"{column} IN ({bound})" if bound else "0"

    def _bound(self, value: int) -> str:
        name = f"filter{len(self.params)}"
        self.params[name] = value
        return f"{{{name}:Int64}}"


def _column(plain: Filter) -> str | None:
    """The column of a filter that can be applied here; None for other filters."""
    column = ".".join(getattr(plain, "attribute", ()))
    kind = _TYPES.get(column)
    if kind is None:
        return None
    if isinstance(plain, IsNull | IsNotNull):
        return column
    if type(plain) not in _COMPARED:
        return None
    if kind is not str and type(plain) not in _OPERATORS and not isinstance(plain, In):
        return None
    value = getattr(plain, "value", None)
    values = value if isinstance(plain, In) and isinstance(value, tuple | list) else [value]
    return column if all(_is_plain(one, kind) for one in values) else None


def _is_plain(value: object, kind: type) -> bool:
    if type(value) is not kind:
        return False
    if isinstance(value, datetime):
        return value.tzinfo is not None
    return not isinstance(value, int) or -(2**63) <= value < 2**63


def _holds(one: Any, found: Mapping[str, Any]) -> bool:
    if isinstance(one, Not):
        return not _holds(one.child, found)
    if isinstance(one, IsNull | IsNotNull):
        return isinstance(one, IsNotNull)
    return _COMPARED[type(one)](found[one.attribute[0]], one.value)


def _microseconds(value: datetime) -> int:
    return (value - _EPOCH) // _MICROSECOND
