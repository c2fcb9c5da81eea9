"""What a person's CREATE may define: the engines of tables and databases, and dictionaries.

The engine's own parser says what the engine of a definition is, apart from the functions in its
ORDER BY, PARTITION BY and TTL (parseQueryToJSON, chdb-core 26.9). What is not known is refused.

A dictionary is loaded in the background with the rights of the engine, so whatever its source says
would run with them: a source names a table, and no SQL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from sql.http.errors import access_denied

# Table engines that keep data here. Others forward rows to another table with rights of their own,
# or reach outside.
_ENGINES = re.compile(
    r"(?:|Replacing|Summing|Aggregating|Collapsing|VersionedCollapsing|Graphite|Coalescing)MergeTree"
    r"|Memory|Log|TinyLog|StripeLog|Null|Set|Join|GenerateRandom|Dictionary|Atomic"
)
# https://clickhouse.com/docs/sql-reference/statements/create/dictionary/layouts: all but the
# layouts that keep their data in a file.
_LAYOUTS = re.compile(
    r"flat|(?:complex_key_)?(?:sparse_)?hashed|(?:complex_key_)?hashed_array"
    r"|(?:complex_key_)?range_hashed|(?:complex_key_)?cache|(?:complex_key_)?direct"
    r"|ip_trie|polygon(?:_simple|_index_each|_index_cell)?"
)
_DICTIONARY_PARTS = {"type", "primary_key", "source", "lifetime", "layout", "range"}
_SOURCE_KEYS = ("table", "db")

_Node = dict[str, Any]


def refuse_definitions(parsed: bytes, definitions: int) -> None:
    """Raises ACCESS_DENIED for a definition that could reach outside, or borrows rights.

    `parsed`: the statement as parseQueryToJSON gives it. `definitions`: how many its syntax tree
    has, none of which may be missing here.
    """
    try:
        found = [node for node in _nodes(json.loads(parsed)) if node.get("type") in _CHECKS]
    except (RecursionError, ValueError):
        raise access_denied("The definition is nested too deeply to be checked.") from None
    if len(found) != definitions:
        raise access_denied("A definition in this statement cannot be checked.")
    for node in found:
        _CHECKS[node["type"]](node)


def _nodes(root: Any) -> Iterator[_Node]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)


def _refuse_engine(storage: _Node) -> None:
    if "engine" not in storage:
        return  # a default of the engine, which is a MergeTree or keeps data in memory
    name = storage["engine"]["name"]
    if _ENGINES.fullmatch(name) is None:
        raise access_denied(f"Engine {name} is not available here.")


def _refuse_dictionary(dictionary: _Node) -> None:
    source = dictionary.get("source", {})
    if source.get("name", "clickhouse") != "clickhouse":
        raise access_denied(f"A dictionary cannot read from {source['name']} here.")
    for pair in source.get("elements", {}).get("children", []):
        literal = pair.get("second", {})
        if pair.get("first") not in _SOURCE_KEYS or literal.get("type") != "Literal":
            raise access_denied(
                "The source of a dictionary is a table or a view of this server,"
                " as in SOURCE(CLICKHOUSE(TABLE 't' DB 'd')), and names nothing else."
            )
    layout = dictionary.get("layout", {}).get("layout_type", "flat")
    if _LAYOUTS.fullmatch(layout) is None:
        raise access_denied(f"The layout {layout} of a dictionary is not available here.")
    if unknown := dictionary.keys() - _DICTIONARY_PARTS:
        raise access_denied(f"A dictionary cannot have {min(unknown)} here.")


_CHECKS = {"Storage": _refuse_engine, "Dictionary": _refuse_dictionary}
