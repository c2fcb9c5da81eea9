"""Writes the markers that end transactions: into partitions as control records, and to groups."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol

from broker.log.block import Appended, Outcome, PendingAppend, PendingMarker
from broker.log.open_logs import OpenLogs
from broker.log.partition import PartitionLog
from common.clock import wall_ms
from coordinator.coordinator import GroupCoordinator
from coordinator.transaction_states import Producer, Transaction
from protocol._batches import parse_headers
from protocol.control_batches import control_batch
from protocol.errors import InvalidProducerEpoch, UnknownTopicOrPartition


class Appending(Protocol):
    def append(self, append: PendingAppend) -> None:
        """Queue one batch: see `Appender.append`."""


async def write_marker(
    appender: Appending,
    partition: PartitionLog,
    producer: Producer,
    *,
    commit: bool,
    coordinator_epoch: int,
    raises_epoch: bool,
) -> None:
    """Returns when the marker is stored, or was before. Raises `KafkaError`."""
    told: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def tell(outcome: Outcome) -> None:
        if not told.done():
            told.set_result(outcome)

    # The lane makes the batch again, when it knows the offset.
    batch = control_batch(
        *producer, commit=commit, coordinator_epoch=coordinator_epoch, timestamp_ms=wall_ms()
    )
    appender.append(
        PendingMarker(
            partition, batch, parse_headers(batch)[0], tell,
            commit=commit, coordinator_epoch=coordinator_epoch, raises_epoch=raises_epoch,
        )
    )  # fmt: skip
    outcome = await told
    if not isinstance(outcome, Appended):
        raise outcome


class LocalMarkers:
    """`Markers` of a broker that leads every partition and coordinates every group."""

    def __init__(self, appender: Appending, logs: OpenLogs, groups: GroupCoordinator) -> None:
        self._appender = appender
        self._logs = logs
        self._groups = groups

    async def write(self, transaction: Transaction) -> None:
        """Raises `KafkaError` and `EngineError`: then some may be written."""
        producer = Producer(transaction.producer_id, transaction.epoch)
        logs = [self._logs.find(one.topic_id, one.partition) for one in transaction.members]
        await asyncio.gather(
            *(self._end_in(log, producer, transaction) for log in logs if log is not None),
            *(
                self._groups.pending.end(group_id, producer, commit=transaction.commits)
                for group_id in transaction.groups
            ),
        )

    async def _end_in(
        self, log: PartitionLog, producer: Producer, transaction: Transaction
    ) -> None:
        # Otherwise a later marker has ended it, or the topic is deleted.
        with suppress(InvalidProducerEpoch, UnknownTopicOrPartition):
            await write_marker(
                self._appender,
                log,
                producer,
                commit=transaction.commits,
                coordinator_epoch=0,
                raises_epoch=transaction.version >= 2,
            )
