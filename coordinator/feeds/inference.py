"""Columns for JSON fields, by the types that ClickHouse found in a sample.

`types`: of each path, as `distinctJSONPathsAndTypes` answers.
https://clickhouse.com/docs/sql-reference/aggregate-functions/reference/distinctjsonpaths
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from coordinator.feeds.definition import BLOCK_COLUMN, METADATA_COLUMNS

_NUMBERS = frozenset({"Int64", "UInt64", "Float64"})


class InferredColumn(NamedTuple):
    name: str
    type: str
    path: str


def flat_columns(types: Mapping[str, Sequence[str]]) -> list[InferredColumn]:
    """A column for each path: fields of nested objects get one each."""
    return [
        InferredColumn(path.replace(".", "_"), _common(found), path)
        for path, found in types.items()
    ]


def field_columns(types: Mapping[str, Sequence[str]]) -> list[InferredColumn]:
    """A column for each field of the record itself; one for a nested object is of type JSON.

    Fields named like the columns that are not filled from values are left out.
    """
    columns = {}
    for path, found in types.items():
        name, _, below = path.partition(".")
        columns[name] = "JSON" if below else _common(found)
    return [
        InferredColumn(name, kind, name)
        for name, kind in columns.items()
        if name and name not in METADATA_COLUMNS and name != BLOCK_COLUMN
    ]


def _common(types: Sequence[str]) -> str:
    """The type of a column for values that were found with these types; any may be absent."""
    known = set(types)
    if len(known) == 1:
        found = types[0]
    elif known <= _NUMBERS:
        found = "Float64"
    else:
        found = "String"
    return found if found.startswith(("Array", "Map", "Tuple")) else f"Nullable({found})"
