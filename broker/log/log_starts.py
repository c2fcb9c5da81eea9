"""Moves the starts of logs, for retention, DeleteRecords and everything else that removes records.

The states of producers below it are stored first (producer_states.py), then the checkpoint, on
every engine that may have rows of the partition. Then consumers get OFFSET_OUT_OF_RANGE below it.
Rows are deleted last, in the background (broker/log/sweep.py): after a crash at any point a record
is either stored in full, or not served.

A log start is never above the high watermark, and the floor that is stored with it is the high
watermark: an emptied partition continues with its next offset after any restart. In a cluster, a
broker that has lost a slot without knowing it may still store a log start. That is harmless: it is
not above a high watermark that was reached, log starts only grow, and the new leader adopts it
(`Retention`). Until then its consumers find a gap instead of an error.

The table is in checkpoints.py, which is apart because producer_states.py writes checkpoints, too.
"""

from __future__ import annotations

import asyncio

from brokerhouse.broker.log.checkpoints import CHECKPOINTS
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.producer_states import ProducerStates
from brokerhouse.broker.log.row_sources import RowLanes
from brokerhouse.storage.row_lane import TableRows


class LogStarts:
    """Moves log starts. Nothing else moves one while its log is open."""

    def __init__(self, checkpoints: RowLanes, producer_states: ProducerStates) -> None:
        self._checkpoints = checkpoints
        self._producer_states = producer_states

    async def raise_to(self, partition: PartitionLog, offset: int) -> None:
        """Remove the records below `offset`, which is at most the high watermark.

        Raises `EngineError`: then the log start has not moved. Many calls at once cost little more
        than one: their checkpoints are stored together.
        """
        assert offset <= partition.high_watermark, f"{partition}: {offset} is beyond the end"
        if offset <= partition.log_start_offset:
            return
        lanes = self._checkpoints.lanes(partition)
        await self._producer_states.save(partition, offset)
        partition.has_deleted = True  # the rows may go as soon as one engine has the checkpoint
        row = (
            partition.topic_id,
            partition.partition,
            offset,
            partition.high_watermark,
            bool(partition.has_forgotten),
        )
        checkpoint = TableRows(CHECKPOINTS, [row])
        await asyncio.gather(*(lane.store(checkpoint) for lane in lanes))
        partition.begin_at(offset)
