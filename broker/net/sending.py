"""Responses on their way to clients: made in turns, sent in slices, and taken by who reads them.

* Large responses are made one in each turn of the event loop, first for who was given least
  (`Turns`). Thousands of clients that ask for much at once would otherwise hold up everybody for
  seconds: the loop runs all that is ready before it looks at sockets again.
* Responses that are not with the transport yet wait in the order in which they are sent
  (`Outgoing`). The transport gets them in slices, so that it holds little. Small pieces are joined
  only when their slice is sent: until then they are the objects that other responses and the
  caches hold, too.
* Connections whose clients do not read their responses are closed (`SlowClients`). A connection
  with unsent bytes is watched. Its client makes progress when it takes 64 KB, or all of it. Without
  progress the connection is closed after `response_send_timeout_ms`; after a second if more than
  half of the memory for responses is used, the largest first, until it is not.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple, Protocol

from brokerhouse.broker.memory import ResponseMemory
from brokerhouse.common.counted_lines import counted

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


Piece = bytes | bytearray

_SLICE_BYTES = 256 << 10
_SMALL_PIECE_BYTES = 16 << 10
"""Smaller pieces are copied: many pieces cost the transport more."""


class Outgoing:
    """Pieces of responses, first in, first out."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: deque[Piece] = deque()

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add(self, pieces: Sequence[Piece]) -> None:
        """The pieces of one response."""
        self._pieces.extend(pieces)

    def next_slice(self) -> list[Piece]:
        """About 256 KB, and at least one piece: they leave this queue."""
        pieces = self._pieces
        found: list[Piece] = []
        small: list[Piece] = []
        size = 0
        while pieces and size < _SLICE_BYTES:
            piece = pieces.popleft()
            size += len(piece)
            if len(piece) < _SMALL_PIECE_BYTES:
                small.append(piece)
                continue
            if small:
                found.append(_joined(small))
                small.clear()
            found.append(piece)
        if small:
            found.append(_joined(small))
        return found

    def take_all(self) -> list[Piece]:
        """Everything, as it is."""
        found = list(self._pieces)
        self._pieces.clear()
        return found


def _joined(pieces: Sequence[Piece]) -> Piece:
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.5
_PATIENCE_WHEN_TIGHT_S = 1.0
_PROGRESS_BYTES = 64 << 10


class Receiver(Protocol):
    """A connection with responses that its client has not taken."""

    peer: str

    @property
    def held_bytes(self) -> int:
        """What its responses hold."""

    @property
    def sent_bytes(self) -> int:
        """What the socket has taken so far: a number that only grows."""

    def drop(self) -> None:
        """Close it now, and free what it holds. The caller logs it."""


@dataclass(slots=True)
class _Progress:
    sent_bytes: int
    since: float


class SlowClients:
    """The connections with unsent bytes."""

    def __init__(self, memory: ResponseMemory, timeout_s: float) -> None:
        self._memory = memory
        self._timeout_s = timeout_s
        self._watched: dict[Receiver, _Progress] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, receiver: Receiver) -> None:
        """It has unsent bytes from now on."""
        if receiver in self._watched:
            return
        loop = asyncio.get_running_loop()
        self._watched[receiver] = _Progress(receiver.sent_bytes, loop.time())
        if self._timer is None:
            self._timer = loop.call_later(_LOOK_EVERY_S, self._look)

    def forget(self, receiver: Receiver) -> None:
        """All is sent, or it is closed."""
        self._watched.pop(receiver, None)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        closed: list[str] = []
        stalled: list[tuple[int, Receiver]] = []
        for receiver, progress in tuple(self._watched.items()):
            sent = receiver.sent_bytes
            if sent - progress.sent_bytes >= _PROGRESS_BYTES:
                progress.sent_bytes, progress.since = sent, now
            elif now - progress.since >= self._timeout_s:
                closed.append(_drop(receiver, now - progress.since))
            elif now - progress.since >= _PATIENCE_WHEN_TIGHT_S:
                stalled.append((receiver.held_bytes, receiver))
        if self._memory.is_tight:
            stalled.sort(key=lambda one: one[0], reverse=True)
            for _, receiver in stalled:
                if not self._memory.is_tight:
                    break
                closed.append(_drop(receiver, now - self._watched[receiver].since))
        for line in closed:
            log.info("%s", line, extra=counted())
        self._timer = loop.call_later(_LOOK_EVERY_S, self._look) if self._watched else None


def _drop(receiver: Receiver, stalled_s: float) -> str:
    size = receiver.held_bytes
    receiver.drop()
    return (
        f"{receiver.peer} closed: its client has read nothing for {stalled_s:.1f} s"
        f" and holds {size} bytes of responses"
    )
