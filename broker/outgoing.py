"""Responses that were not given to the transport yet, in the order in which they are sent.

The transport gets them in slices, so that it holds little. Small pieces are joined only when their
slice is sent. Until then they share their memory with other responses and the caches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

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
