"""Makes one large response in each turn of the event loop, first for clients that got least.

Otherwise thousands of clients with large fetches would delay all others for seconds, because the
loop runs everything that is ready before it looks at sockets again.
"""

from __future__ import annotations

import asyncio
import heapq
from itertools import count
from typing import NamedTuple

_CROWD = 16
_LONGEST_REST_S = 0.05
_WAIT_PER_BYTE_S = 1 / (1 << 20)
_LONGEST_WAIT_S = 10.0
_HIGH_BYTES = 512 << 10


class RecentCost:
    """What about the last eight responses of a client cost, in bytes of records.

    A client that is new counts as costly until it has been answered once.
    """

    __slots__ = ("in_all", "is_high")

    def __init__(self) -> None:
        self.in_all = 0
        self.is_high = True

    def add(self, cost: int) -> None:
        """One more response, which cost this much."""
        self.in_all += cost - self.in_all // 8
        self.is_high = self.in_all > _HIGH_BYTES


class _Turn(NamedTuple):
    due: float
    number: int
    given: asyncio.Future[None]


class Turns:
    """Who makes a large response next."""

    def __init__(self) -> None:
        self._waiting: list[_Turn] = []
        self._numbers = count()
        self._is_taken = False
        self._began = 0.0

    @property
    def is_crowded(self) -> bool:
        """Whether so many wait that others need time between two turns."""
        return len(self._waiting) >= _CROWD

    async def next(self, cost: int) -> None:
        """Wait for a turn of the loop in which nobody else makes a large response.

        Each MiB that the last responses of a client cost counts as if it had come a second later,
        up to ten: so a new client does not wait behind a crowd, and nobody waits for ever.
        """
        loop = asyncio.get_running_loop()
        if self._is_taken:
            due = loop.time() + min(cost * _WAIT_PER_BYTE_S, _LONGEST_WAIT_S)
            turn = _Turn(due, next(self._numbers), loop.create_future())
            heapq.heappush(self._waiting, turn)
            await turn.given
        else:
            self._is_taken = True
            self._began = loop.time()
            loop.call_soon(self._pass_on)

    def _pass_on(self) -> None:
        """The next one's turn. While a crowd waits, two thirds of the time are for all others."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        rest_s = 2 * (now - self._began) if self.is_crowded else 0.0
        if rest_s > 0:
            loop.call_later(min(rest_s, _LONGEST_REST_S), self._begin_next)
        else:
            self._begin_next()

    def _begin_next(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            turn = heapq.heappop(self._waiting).given
            if not turn.done():  # otherwise its client has left
                self._began = loop.time()
                turn.set_result(None)
                # The one whose turn it is runs before this.
                loop.call_soon(self._pass_on)
                return
        self._is_taken = False
