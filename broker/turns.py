"""Large responses are made one in each turn of the event loop, in the order of their requests.

Thousands of clients that ask for much at once would otherwise hold up everybody for seconds: the
loop runs all that is ready before it looks at sockets again.
"""

from __future__ import annotations

import asyncio
from collections import deque

_CROWD = 16
_LONGEST_REST_S = 0.05


class Turns:
    """Who makes a large response next."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_taken = False
        self._began = 0.0

    async def next(self) -> None:
        """Wait for a turn of the loop in which nobody else makes a large response."""
        loop = asyncio.get_running_loop()
        if self._is_taken:
            turn: asyncio.Future[None] = loop.create_future()
            self._waiting.append(turn)
            await turn
        else:
            self._is_taken = True
            self._began = loop.time()
            loop.call_soon(self._pass_on)

    def _pass_on(self) -> None:
        """The next one's turn. While a crowd waits, two thirds of the time are for all others."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        rest_s = 2 * (now - self._began) if len(self._waiting) >= _CROWD else 0.0
        if rest_s > 0:
            loop.call_later(min(rest_s, _LONGEST_REST_S), self._begin_next)
        else:
            self._begin_next()

    def _begin_next(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # otherwise its client has left
                self._began = loop.time()
                turn.set_result(None)
                # The one whose turn it is runs before this.
                loop.call_soon(self._pass_on)
                return
        self._is_taken = False
