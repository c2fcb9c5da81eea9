"""Responses that are not with the transport yet, in the order in which they are sent.

The transport gets them in slices, so that it holds little. Small pieces are joined only when their
slice is sent: until then they are the objects that other responses and the caches hold, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain

Piece = bytes | bytearray

_SLICE_BYTES = 256 << 10
_SMALL_PIECE_BYTES = 16 << 10
"""Smaller pieces are copied: many pieces cost the transport more."""


class Outgoing:
    """Pieces of responses, first in, first out."""

    __slots__ = ("_responses",)

    def __init__(self) -> None:
        self._responses: deque[deque[Piece]] = deque()

    def __bool__(self) -> bool:
        return bool(self._responses)

    def add(self, pieces: Sequence[Piece]) -> None:
        self._responses.append(deque(pieces))

    def next_slice(self) -> list[Piece]:
        """About 256 KB, and at least one piece: they leave this queue."""
        found: list[Piece] = []
        small: list[Piece] = []
        size = 0
        while self._responses and size < _SLICE_BYTES:
            pieces = self._responses[0]
            while pieces and size < _SLICE_BYTES:
                piece = pieces.popleft()
                size += len(piece)
                if len(piece) < _SMALL_PIECE_BYTES:
                    small.append(piece)
                    continue
                if small:
                    found.append(b"".join(small))
                    small.clear()
                found.append(piece)
            if not pieces:
                self._responses.popleft()
        if small:
            found.append(small[0] if len(small) == 1 else b"".join(small))
        return found

    def take_all(self) -> list[Piece]:
        """Everything, as it is."""
        found = list(chain.from_iterable(self._responses))
        self._responses.clear()
        return found
