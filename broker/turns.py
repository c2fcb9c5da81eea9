"""Large responses are made one in each turn of the event loop, in the order of their requests.

Thousands of clients that ask for much at once would otherwise hold up everybody for seconds: the
loop runs all that is ready before it looks at sockets again.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Turns:
    """Who makes a large response next."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_taken = False

    async def next(self) -> None:
        """Wait for a turn of the loop in which nobody else makes a large response."""
        loop = asyncio.get_running_loop()
        if self._is_taken:
            turn: asyncio.Future[None] = loop.create_future()
            self._waiting.append(turn)
            await turn
        else:
            self._is_taken = True
            loop.call_soon(self._pass_on)

    def _pass_on(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # otherwise its client has left
                turn.set_result(None)
                asyncio.get_running_loop().call_soon(self._pass_on)
                return
        self._is_taken = False
