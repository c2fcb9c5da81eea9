"""Several tables from one topic: which table a record names, and which records a feed takes.

A feed of one table with a route takes the records that name `value`. A feed `DATABASE.*`, a router,
has no table of its own: it looks at all records, and makes a feed for each table that they name
(router.py). So each table has blocks, a state and counts of its own, and one that is slow or
refuses its rows holds up no other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from brokerhouse.feeds.paths import path_from_text
from brokerhouse.storage.parameters import literal

ANY_TABLE = "*"
TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class RouteBy(Enum):
    """Where a record says which table it is for."""

    HEADER = "header"
    FIELD = "field"
    KEY = "key"


@dataclass(frozen=True, slots=True)
class Route:
    """`name`: the header's name, the field's JSON path, or what ends the prefix of the key."""

    by: RouteBy
    name: str

    def __str__(self) -> str:
        return f"{self.by.value}={self.name}"

    @property
    def expression(self) -> str:
        """What a row of the log names, as SQL; null if it names nothing."""
        name = literal(self.name)
        if self.by is RouteBy.HEADER:
            return f"arrayLast(one -> one.1 = {name}, headers).2"
        if self.by is RouteBy.KEY:
            return (
                f"if(position(key, {name}) > 1, splitByString({name}, assumeNotNull(key))[1], NULL)"
            )
        path = ", ".join(map(literal, path_from_text(self.name)))
        return f"JSONExtract(assumeNotNull(value), {path}, 'Nullable(String)')"

    def condition(self, value: str) -> str:
        """Whether a row of the log names this, as SQL."""
        return f"ifNull({self.expression} = {literal(value)}, false)"


def route_from_text(text: str) -> Route:
    """Of `header=NAME`, `field=PATH` or `key=SEPARATOR`. Raises ValueError with a sentence."""
    by, equals, name = text.partition("=")
    if by not in {one.value for one in RouteBy} or not equals or not name:
        raise ValueError(
            "write header=NAME, field=PATH or key=SEPARATOR, for example header=table,"
            f" not {text!r}"
        )
    if by == RouteBy.FIELD.value:
        path_from_text(name)
    return Route(RouteBy(by), name)
