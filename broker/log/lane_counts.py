"""What a lane has stored, counted in plain attributes; broker/monitoring/ reads them."""

from __future__ import annotations

from common.timings import Timings


class LaneCounts:
    """`inserts` are those of blocks of the log, until their outcome was known."""

    __slots__ = ("batch_bytes", "blocks", "inserts", "records", "refused")

    def __init__(self) -> None:
        self.inserts = Timings()
        self.blocks = 0
        self.refused = 0
        """Blocks that the engine refused."""
        self.records = 0
        self.batch_bytes = 0
        """Of record batches as consumers get them: compressed, if their producer did that."""

    def note_batch(self, records: int, size: int) -> None:
        self.records += records
        self.batch_bytes += size
