"""What a lane has stored, counted in plain attributes; broker/monitoring/ reads them."""

from __future__ import annotations

import time

from common.timings import Timings

_REFUSED_LATELY_S = 30.0
"""So long a refusal counts if nothing is appended after it: the next block may be accepted."""


class LaneCounts:
    """`inserts` are those of blocks of the log, until their outcome was known."""

    __slots__ = ("_refusal", "_refused_s", "batch_bytes", "blocks", "inserts", "records", "refused")

    def __init__(self) -> None:
        self.inserts = Timings()
        self.blocks = 0
        self.refused = 0
        """Blocks that the engine refused."""
        self._refusal: str | None = None
        self._refused_s = 0.0
        self.records = 0
        self.batch_bytes = 0
        """Of record batches as consumers get them: compressed, if their producer did that."""

    def note_refused(self, error: Exception) -> None:
        """The engine refused a block."""
        self.refused += 1
        self._refusal, self._refused_s = str(error), time.monotonic()

    def note_stored(self) -> None:
        self._refusal = None

    def refusal(self) -> str | None:
        """Why the engine refused the last block; None if it did not, or not lately."""
        is_recent = time.monotonic() - self._refused_s < _REFUSED_LATELY_S
        return self._refusal if is_recent else None

    def note_batch(self, records: int, size: int) -> None:
        self.records += records
        self.batch_bytes += size
