"""Which streams of the journal a statement needs in the tables before it runs.

`streams_of` is for the broker's own statements, which name tables and views of sql/schema/ alone.
`needed_by` is for statements that anybody sends to `brokerhouse engine`: what it does not
understand needs everything.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache, lru_cache

from brokerhouse.storage.cluster_sql import SHARD_DATABASE
from brokerhouse.storage.journal_files import STREAMS
from brokerhouse.storage.schema_files import tables_behind

LOG, ROWS = 0, 1
"""The streams: the table `messages`, and all others."""
ALL = tuple(range(STREAMS))
LOG_TABLE = "messages"

_WORD = re.compile(r"\w+")
_IN_KEEPER = frozenset(("registry", "topic_registry", "feed_registry"))
# A statement about the engine itself, and pings: a SELECT from nothing, or from one table of the
# database `system`, without functions.
_READS_ONLY_SYSTEM = re.compile(
    rb"(?is)\s*SELECT\b(?:(?!\bFROM\b|\bJOIN\b|\bIN\b|\w\s*\().)*"
    rb"(?:\bFROM\s+system\.\w+\b(?:(?!\bFROM\b|\bJOIN\b|\bIN\b|\w\s*\(|,).)*)?"
)
# What a table's name may follow. After FROM a subquery may stand, after IN a value.
_PLACES = re.compile(
    rb"\b(?:(?:FROM|INTO|TABLE)\b(?!\s*\(\s*SELECT\b)|IN\b(?!\s*[({\['0-9]|\s+PARTITION\b))"
    rb"(?:\s+([\w.]+))?(?P<list>(?:\s+AS)?(?:\s+\w+)?(?:\s+FINAL)?\s*,)?",
    re.IGNORECASE,
)
_BEYOND = re.compile(rb"\bJOIN\b|Identifier|dictGet|joinGet", re.IGNORECASE)
_CHANGES = re.compile(
    rb"(?:\s|--[^\n]*\n|/\*.*?\*/)*"
    rb"(?:ALTER|ATTACH|CREATE(?!\s+(?:OR\s+REPLACE\s+)?TEMPORARY\b)|DETACH|DROP|EXCHANGE|RENAME|REPLACE|RESTORE|UNDROP)\b",
    re.IGNORECASE | re.DOTALL,
)


def streams_of(sql: str) -> tuple[int, ...]:
    """The streams whose tables a statement of the broker names, itself or through views."""
    return _streams_of_names(frozenset(_tables_behind().keys() & _WORD.findall(sql)))


def needed_by(sql: bytes, database: str | None) -> tuple[int, ...]:
    """The streams that a statement may read. `database`: where names without one are.

    All of them, unless each of its tables is known: `system.tables` may be a view's only mention.
    """
    if reads_only_system(sql):
        return ()
    names: set[str] = set()
    for place in _PLACES.finditer(sql):
        name = _known(place[1], database)
        if name is None or place["list"]:
            return ALL
        names.add(name)
    if not names or _BEYOND.search(sql):
        return ALL
    return _streams_of_names(frozenset(names - _IN_KEEPER))


def reads_only_system(sql: bytes) -> bool:
    """Whether a statement reads nothing, or one table of the database `system`."""
    return _READS_ONLY_SYSTEM.fullmatch(sql) is not None


def changes_tables(sql: bytes, database: str | None) -> bool:
    """Whether a table or view may be another one after the statement. Not those in Keeper."""
    return _CHANGES.match(sql) is not None and needed_by(sql, database) != ()


def _known(name: bytes | None, database: str | None) -> str | None:
    """The name of a table or view of a shard, without its database; None for any other."""
    if name is None or not name.isascii():
        return None
    before, _, last = name.decode().rpartition(".")
    if (before or database) != SHARD_DATABASE:
        return None
    return last if last in _IN_KEEPER or last in _tables_behind() else None


@lru_cache(maxsize=1024)
def _streams_of_names(names: Collection[str]) -> tuple[int, ...]:
    tables = {table for name in names for table in _tables_behind()[name]}
    found = []
    if LOG_TABLE in tables:
        found.append(LOG)
    if tables - {LOG_TABLE}:
        found.append(ROWS)
    return tuple(found)


@cache
def _tables_behind() -> Mapping[str, frozenset[str]]:
    return tables_behind()
