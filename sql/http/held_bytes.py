"""How much all requests together may hold in memory or on disk outside of the engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from brokerhouse.sql.http.errors import sql_error


class Room:
    """So many bytes, for all who hold some at the same time."""

    def __init__(self, max_bytes: int, what: str) -> None:
        """`what` the bytes are of, for the error."""
        self._max_bytes = max_bytes
        self._what = what
        self._held_bytes = 0

    @contextmanager
    def hold(self) -> Iterator[Hold]:
        """What is taken of the room inside is given back at the end."""
        hold = Hold(self)
        try:
            yield hold
        finally:
            self._held_bytes -= hold.held_bytes

    def take(self, size: int) -> None:
        """Raises TOO_MANY_SIMULTANEOUS_QUERIES."""
        if self._held_bytes + size > self._max_bytes:
            raise sql_error(
                202,
                "TOO_MANY_SIMULTANEOUS_QUERIES",
                f"Too many simultaneous queries: their {self._what} would exceed {self._max_bytes}"
                " bytes: send the query again later",
            )
        self._held_bytes += size


class Hold:
    """What one request holds of a room."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self.held_bytes = 0

    def add(self, size: int) -> None:
        """Raises TOO_MANY_SIMULTANEOUS_QUERIES if there is no room."""
        self._room.take(size)
        self.held_bytes += size
