"""Writes the markers that end transactions: into partitions as control records, and to groups."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from brokerhouse.broker.log.block import Appended, Appending, Outcome, PendingMarker, Sender
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.row_sources import RowLanes
from brokerhouse.broker.log.transaction_tables import ended_rows
from brokerhouse.common.clock import wall_ms
from brokerhouse.coordinator.transaction_states import Producer
from brokerhouse.protocol._batches import parse_headers
from brokerhouse.protocol.control_batches import control_batch


@dataclass(frozen=True, slots=True)
class Marker:
    """Ends the transaction of a producer."""

    producer: Producer
    commit: bool
    coordinator_epoch: int = 0
    raises_epoch: bool = False
    """Whether its epoch is above that of the records (transaction version 2)."""


class MarkerWriter:
    """Ends the transaction of a producer on a partition that this broker leads."""

    def __init__(self, appender: Appending, rows: RowLanes) -> None:
        self._appender = appender
        self._rows = rows

    async def write(self, log: PartitionLog, marker: Marker, sender: Sender | None = None) -> None:
        """Returns when the marker is stored, or was before. Raises `KafkaError`, `EngineError`.

        `sender`: the connection of another broker; a marker is not written when it has left.
        """
        told: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def tell(outcome: Outcome) -> None:
            if not told.done():
                told.set_result(outcome)

        # The lane makes the batch again, when it knows the offset.
        batch = control_batch(
            *marker.producer,
            commit=marker.commit,
            coordinator_epoch=marker.coordinator_epoch,
            timestamp_ms=wall_ms(),
        )
        self._appender.append(
            PendingMarker(
                log,
                batch,
                parse_headers(batch)[0],
                tell,
                sender,
                commit=marker.commit,
                coordinator_epoch=marker.coordinator_epoch,
                raises_epoch=marker.raises_epoch,
            )
        )
        outcome = await told
        if not isinstance(outcome, Appended):
            raise outcome
        # Also for a marker that was written before: these rows may not have been stored then.
        producer_id = marker.producer.producer_id
        if producer_id not in log.transactions.open:
            aborted = None if marker.commit else log.transactions.last_aborted(producer_id)
            ended = ended_rows(log, *marker.producer, () if aborted is None else (aborted,))
            await asyncio.gather(*(lane.store(*ended) for lane in self._rows.lanes(log)))
