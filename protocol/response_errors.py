"""The error codes inside a response, wherever they stand in it: of topics, partitions, groups.

Which fields hold error codes is worked out once for each class of kafka-python, from its schema.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple


class _ErrorFields(NamedTuple):
    """Where a structure has error codes: in fields of its own, and in structures inside it."""

    codes: tuple[str, ...]
    lists: tuple[tuple[str, _ErrorFields], ...]
    structures: tuple[tuple[str, _ErrorFields], ...]


def error_codes(response: Any) -> list[int]:
    """All error codes of the response but 0, in its order; one that comes twice is there twice."""
    found: list[int] = []
    _find(response, _error_fields(response.__class__), found)
    return found


def _find(data: Any, where: _ErrorFields, found: list[int]) -> None:
    found.extend(code for name in where.codes if (code := getattr(data, name)))
    for name, inside in where.lists:
        for one in getattr(data, name) or ():
            _find(one, inside, found)
    for name, inside in where.structures:
        if (one := getattr(data, name)) is not None:
            _find(one, inside, found)


@cache
def _error_fields(kind: type[Any]) -> _ErrorFields:
    codes: list[str] = []
    lists: list[tuple[str, _ErrorFields]] = []
    structures: list[tuple[str, _ErrorFields]] = []
    for name, field in kind._struct.fields.items():
        if name.endswith("error_code"):
            codes.append(name)
        elif field.is_struct_array() or field.is_struct():
            inside = _error_fields(field.data_class)
            if any(inside):
                (lists if field.is_struct_array() else structures).append((name, inside))
    return _ErrorFields(tuple(codes), tuple(lists), tuple(structures))
