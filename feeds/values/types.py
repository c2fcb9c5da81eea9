"""ClickHouse's names of types as trees: `Map(String, Array(Nullable(UInt8)))`.

https://clickhouse.com/docs/sql-reference/data-types
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^'\\]|\\.)*')|(?P<quoted>`(?:[^`\\]|\\.)*`)"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_.]*)|(?P<number>-?\d+(?:\.\d+)?)|(?P<sign>[(),=]))"
)
_ESCAPED = re.compile(r"\\(.)")
_NAMED = frozenset({"Tuple", "Nested"})
_FREE = frozenset({"JSON", "Object", "AggregateFunction", "Dynamic", "Enum8", "Enum16"})
"""Their arguments are not only types: they are kept as text."""


@dataclass(frozen=True, slots=True)
class ColumnType:
    """`text`: the whole of it, as ClickHouse writes it. `names`: of the elements of a Tuple, if
    they have names. `options`: arguments that are no types, such as a scale or a time zone."""

    name: str
    text: str
    arguments: tuple[ColumnType, ...] = ()
    names: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    @property
    def is_nullable(self) -> bool:
        return self.name == "Nullable" or (
            self.name == "LowCardinality" and self.arguments[0].is_nullable
        )

    @property
    def bare(self) -> ColumnType:
        """Without what changes how values are stored, but not which ones."""
        if self.name in ("Nullable", "LowCardinality"):
            return self.arguments[0].bare
        if self.name == "SimpleAggregateFunction":
            return self.arguments[-1].bare
        return self


@lru_cache(maxsize=4096)
def parse_type(text: str) -> ColumnType:
    """Raises ValueError for what is no type."""
    reader = _Reader(text)
    found = reader.type()
    if reader.rest:
        raise ValueError(f"{text!r} is not a type of ClickHouse")
    return found


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0

    @property
    def rest(self) -> str:
        return self._text[self._place :].strip()

    def type(self) -> ColumnType:
        start = self._place
        name = self._take("word")
        arguments: list[ColumnType] = []
        names: list[str] = []
        options: list[str] = []
        if self._next("sign") == "(":
            self._take("sign")
            if name in _FREE:
                options.append(self._up_to_the_end())
            else:
                self._arguments(name, arguments, names, options)
            if self._take("sign") != ")":
                raise ValueError(f"{self._text!r} is not a type of ClickHouse")
        whole = self._text[start : self._place].strip()
        return ColumnType(name, whole, tuple(arguments), tuple(names), tuple(options))

    def _arguments(
        self, name: str, arguments: list[ColumnType], names: list[str], options: list[str]
    ) -> None:
        while self._next("sign") != ")":
            if self._next("sign") == ",":
                self._take("sign")
            if (option := self._next("text") or self._next("number")) is not None:
                self._take("text" if option.startswith("'") else "number")
                options.append(option)
                continue
            if name in _NAMED and self._is_named():
                names.append(self._name())
            if name == "SimpleAggregateFunction" and not options:
                options.append(self._take("word"))  # the function
                if self._next("sign") == "(":
                    self._take("sign")
                    self._up_to_the_end()
                    self._take("sign")
                continue
            arguments.append(self.type())

    def _is_named(self) -> bool:
        """Whether a name stands before the type: two words follow each other."""
        if self._next("quoted") is not None:
            return True
        place = self._place
        self._take("word")
        named = self._next("word") is not None
        self._place = place
        return named

    def _name(self) -> str:
        quoted = self._next("quoted")
        if quoted is None:
            return self._take("word")
        self._take("quoted")
        return _ESCAPED.sub(r"\1", quoted[1:-1])

    def _up_to_the_end(self) -> str:
        """The text before the bracket that closes this one."""
        start, depth = self._place, 0
        while True:
            match = _TOKEN.match(self._text, self._place)
            if match is None:
                raise ValueError(f"{self._text!r} is not a type of ClickHouse")
            if match["sign"] == ")":
                if depth == 0:
                    return self._text[start : self._place].strip()
                depth -= 1
            depth += match["sign"] == "("
            self._place = match.end()

    def _next(self, kind: str) -> str | None:
        match = _TOKEN.match(self._text, self._place)
        return None if match is None else match[kind]

    def _take(self, kind: str) -> str:
        match = _TOKEN.match(self._text, self._place)
        if match is None or match[kind] is None:
            raise ValueError(f"{self._text!r} is not a type of ClickHouse")
        self._place = match.end()
        return match[kind]
