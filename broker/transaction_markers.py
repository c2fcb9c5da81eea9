"""Writes the markers that end transactions: into partitions as control records, and to groups."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from broker.log.aborted_table import aborted_row
from broker.log.block import Appended, Appending, Outcome, PendingMarker
from broker.log.open_logs import OpenLogs
from broker.log.partition import PartitionLog
from common.clock import wall_ms
from coordinator.coordinator import GroupCoordinator
from coordinator.transaction_states import Producer, Transaction
from protocol._batches import parse_headers
from protocol.control_batches import control_batch
from protocol.errors import InvalidProducerEpoch, UnknownTopicOrPartition
from storage.row_lane import RowLane


class MarkerWriter:
    """Ends the transaction of a producer on a partition that this broker leads."""

    def __init__(self, appender: Appending, rows: RowLane) -> None:
        self._appender = appender
        self._rows = rows

    async def write(
        self,
        log: PartitionLog,
        producer: Producer,
        *,
        commit: bool,
        coordinator_epoch: int = 0,
        raises_epoch: bool = False,
    ) -> None:
        """Returns when the marker is stored, or was before. Raises `KafkaError`, `EngineError`."""
        told: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def tell(outcome: Outcome) -> None:
            if not told.done():
                told.set_result(outcome)

        # The lane makes the batch again, when it knows the offset.
        batch = control_batch(
            *producer, commit=commit, coordinator_epoch=coordinator_epoch, timestamp_ms=wall_ms()
        )
        self._appender.append(
            PendingMarker(
                log, batch, parse_headers(batch)[0], tell,
                commit=commit, coordinator_epoch=coordinator_epoch, raises_epoch=raises_epoch,
            )
        )  # fmt: skip
        outcome = await told
        if not isinstance(outcome, Appended):
            raise outcome
        # Also for a marker that was written before: the broker may have ended right after it.
        aborted = None if commit else log.transactions.last_aborted(producer.producer_id)
        if aborted is not None:
            await self._rows.store(aborted_row(log, aborted))


class LocalMarkers:
    """`Markers` of a broker that leads every partition and coordinates every group."""

    def __init__(self, writer: MarkerWriter, logs: OpenLogs, groups: GroupCoordinator) -> None:
        self._writer = writer
        self._logs = logs
        self._groups = groups

    async def write(self, transaction: Transaction) -> None:
        """Raises `KafkaError` and `EngineError`: then some may be written."""
        producer = Producer(transaction.producer_id, transaction.epoch)
        logs = [self._logs.find(one.topic_id, one.partition) for one in transaction.members]
        ended = await asyncio.gather(
            *(self._end_in(log, producer, transaction) for log in logs if log is not None),
            *(
                self._groups.pending.end(
                    group_id, transaction.producer_id, commit=transaction.commits
                )
                for group_id in transaction.groups
            ),
            return_exceptions=True,  # all have ended when it is tried again
        )
        for failure in ended:
            if failure is not None:
                raise failure

    async def _end_in(
        self, log: PartitionLog, producer: Producer, transaction: Transaction
    ) -> None:
        # Otherwise a later marker has ended it, or the topic is deleted.
        with suppress(InvalidProducerEpoch, UnknownTopicOrPartition):
            await self._writer.write(
                log,
                producer,
                commit=transaction.commits,
                raises_epoch=transaction.version >= 2,
            )
