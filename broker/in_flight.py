"""The memory that requests may use, over all connections together."""

from __future__ import annotations

import asyncio
from typing import Protocol

_SMALL_SHARE_BYTES = 1 << 20
_STALLED_AFTER_S = 5.0


class Throttled(Protocol):
    """What `InFlight` needs of a connection."""

    last_active: float
    """When bytes last arrived, by the event loop's clock."""

    @property
    def idle(self) -> bool:
        """Whether none of its requests is being answered."""

    def update_reading(self) -> None:
        """Call `InFlight.holds_back` again."""

    def abort(self, reason: str) -> None:
        """Close it now."""


class InFlight:
    """Bytes of unanswered requests, over all connections.

    Past the budget only one connection at a time has the turn and is still read. Without that,
    half-received requests could fill the budget and all wait for each other. A connection that has
    the turn and sends nothing is closed. The newest one is next, because clients that stalled are
    among the older ones.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.size = 0
        self._held_back: dict[Throttled, None] = {}  # a set that keeps its order
        self._turn: Throttled | None = None

    def change(self, delta: int) -> None:
        self.size += delta
        if self._held_back and self.size < self.max_bytes:
            released, self._held_back = self._held_back, {}
            for connection in released:
                connection.update_reading()

    def holds_back(self, connection: Throttled, held: int) -> bool:
        """Whether a connection that holds `held` bytes must not be read for now.

        A connection that holds little is always read, so that small requests get through while
        large ones wait.
        """
        if self.size < self.max_bytes or held <= _SMALL_SHARE_BYTES:
            self._held_back.pop(connection, None)
            if self._turn is connection:
                self.forget(connection)
            return False
        if self._turn is None:
            self._give_turn(connection)
        if self._turn is connection:
            return False
        self._held_back[connection] = None
        return True

    def forget(self, connection: Throttled) -> None:
        """This connection needs no turn, or is closed: the next one gets the turn."""
        self._held_back.pop(connection, None)
        if self._turn is connection:
            self._turn = None
        while self._held_back and self._turn is None:
            waiting, _ = self._held_back.popitem()
            waiting.update_reading()

    def _give_turn(self, connection: Throttled) -> None:
        self._turn = connection
        self._held_back.pop(connection, None)
        loop = asyncio.get_running_loop()
        loop.call_later(_STALLED_AFTER_S, self._check_turn, connection, loop.time())

    def _check_turn(self, connection: Throttled, since: float) -> None:
        if self._turn is not connection:
            return
        if self._held_back and connection.idle and connection.last_active <= since:
            connection.abort("its request stopped arriving while other connections wait for memory")
            return
        self._give_turn(connection)
