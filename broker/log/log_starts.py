"""Moves the starts of logs: retention, DeleteRecords and whatever else gives records up.

The checkpoint is stored first, on every engine that may have rows of the partition; then consumers
are told OFFSET_OUT_OF_RANGE below it; rows go last, in the background (broker/log/sweep.py), so a
crash at any point leaves records that are there whole, or that nobody is served any more.

A log start is never above the high watermark, and the floor that is stored with it is the high
watermark: an emptied partition goes on with the offset that comes next, after any restart. In a
cluster an owner that has lost its slot without knowing it may still store one. That is harmless:
what it stores is not above a high watermark that was reached, log starts only grow, and its
successor adopts it (`Retention`). Until then consumers there find a gap in place of an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from broker.log.checkpoints import CHECKPOINTS
from broker.log.partition import PartitionLog
from storage.row_lane import RowLane, TableRows


class LogStarts:
    """The only one who moves a log start while the log is open."""

    def __init__(self, lanes: Callable[[PartitionLog], Collection[RowLane]]) -> None:
        """`lanes`: of every engine that may have rows of a partition. Raises `EngineError`."""
        self._lanes = lanes

    async def raise_to(self, partition: PartitionLog, offset: int) -> None:
        """Give up what is below `offset`, which is at most the high watermark.

        Raises `EngineError`: nothing has moved then. Many at once cost little more than one: their
        checkpoints are stored together.
        """
        assert offset <= partition.high_watermark, f"{partition}: {offset} is beyond the end"
        if offset <= partition.log_start_offset:
            return
        row = (partition.topic_id, partition.partition, offset, partition.high_watermark)
        checkpoint = TableRows(CHECKPOINTS, [row])
        await asyncio.gather(*(lane.store(checkpoint) for lane in self._lanes(partition)))
        partition.begin_at(offset)
