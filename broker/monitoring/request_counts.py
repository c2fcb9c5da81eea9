"""Counts for /metrics: requests by API with their times, bytes and errors; connections.

Every count is a plain attribute. Connections change it, and broker/monitoring/ reads it.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any, NamedTuple

from brokerhouse.common.timings import Timings
from brokerhouse.protocol.versions import ApiKey

CLOSED = 0
"""Instead of an error code: the connection was closed, as there was no other way to tell."""


class ApiCounts:
    """The requests of one API. An error code counts as often as it stands in responses."""

    __slots__ = ("errors", "received_bytes", "sent_bytes", "timings")

    def __init__(self) -> None:
        self.timings = Timings()
        self.received_bytes = 0
        self.sent_bytes = 0
        self.errors: Counter[int] = Counter()

    def note_response(self, response: Any) -> None:
        """Count the errors in a response, unless its handler has encoded it already."""
        if response is not None and not isinstance(response, bytes):
            for code in error_codes(response):
                self.errors[code] += 1

    def note_error(self, error: Exception) -> None:
        """The request is not answered, because of this error."""
        self.errors[getattr(error, "code", CLOSED)] += 1


class RequestCounts:
    """The requests of all connections."""

    def __init__(self) -> None:
        self.apis: dict[ApiKey, ApiCounts] = {}
        self.accepted = 0
        """Connections."""
        self.refused = 0
        """Connections beyond the limit."""
        self.aborted = 0
        """Connections that the broker closed: idle, malformed requests, unread responses."""

    def of(self, key: ApiKey) -> ApiCounts:
        counts = self.apis.get(key)
        if counts is None:
            counts = self.apis[key] = ApiCounts()
        return counts


class FetchedCounts:
    """What consumers were given, and where it came from."""

    __slots__ = ("bytes", "cold_reads", "records", "tail_reads")

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self.tail_reads = 0
        """Reads of a partition that the tail cache had."""
        self.cold_reads = 0
        """Reads of a partition that the table was asked for."""


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
