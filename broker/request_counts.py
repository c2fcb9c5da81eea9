"""Counts for /metrics: requests by API with their times, bytes and errors; connections.

Every count is a plain attribute. Connections change it, and broker/monitoring/ reads it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from common.timings import Timings
from protocol.response_errors import error_codes
from protocol.versions import ApiKey

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
