"""Asks the coordinator whether a batch may begin a transaction on its partition (KIP-890).

A batch of a transaction is accepted only if the coordinator knows that the partition is part of it:
otherwise no marker would ever end it there. A client of transaction version 2 leaves it to the
broker to add the partition; an older one has added it, and that is verified. A marker that is
written before the batch makes the coordinator's word void (`PartitionLog.verifying`).
"""

from __future__ import annotations

import asyncio

from broker.log.partition import PartitionLog
from coordinator.transaction_states import Member, Producer
from coordinator.transactions import TransactionCoordinator
from protocol._batches import BatchHeader
from protocol.errors import (
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    NotEnoughReplicas,
    ProducerFenced,
    TransactionAbortable,
)

_ADDS_BY_PRODUCING = 12
"""The version of Produce from which the broker adds the partition."""


class TransactionChecks:
    """The questions that are under way, one for each producer and partition."""

    def __init__(self, coordinator: TransactionCoordinator) -> None:
        self._coordinator = coordinator
        self._asked: dict[tuple[PartitionLog, int, int], asyncio.Task[object]] = {}

    def may_begin(
        self,
        partition: PartitionLog,
        transactional_id: str,
        header: BatchHeader,
        produce_version: int,
    ) -> asyncio.Task[object]:
        """The task ends with what stands for the coordinator's word, or with a `KafkaError`."""
        key = partition, header.producer_id, header.producer_epoch
        task = self._asked.get(key)
        if task is None:
            task = asyncio.create_task(
                self._ask(partition, transactional_id, header, produce_version)
            )
            self._asked[key] = task
            task.add_done_callback(lambda _: self._asked.pop(key))
        return task

    async def _ask(
        self,
        partition: PartitionLog,
        transactional_id: str,
        header: BatchHeader,
        produce_version: int,
    ) -> object:
        producer = Producer(header.producer_id, header.producer_epoch)
        member = Member(partition.topic.name, partition.topic_id, partition.partition)
        adds = produce_version >= _ADDS_BY_PRODUCING
        try:
            if adds:
                await self._coordinator.add(transactional_id, producer, (member,), version=2)
            else:
                self._coordinator.verify(transactional_id, producer, member)
        except KafkaError as error:
            raise _for_producers(error, knows_newer_errors=adds) from error
        # Not earlier: the marker of the transaction before may have been written meanwhile. One of
        # this transaction that is written from now on makes the word void, and one that is in the
        # queue already has raised the epoch.
        return partition.verifying.setdefault(header.producer_id, object())


def _for_producers(error: KafkaError, *, knows_newer_errors: bool) -> KafkaError:
    """The error as a response to Produce may have it."""
    if isinstance(error, ProducerFenced):
        return InvalidProducerEpoch(error.message)
    if isinstance(error, CoordinatorNotAvailable):
        return NotEnoughReplicas(error.message)
    if knows_newer_errors:
        return error
    if isinstance(error, ConcurrentTransactions):
        return NotEnoughReplicas(error.message)
    if isinstance(error, TransactionAbortable):
        return InvalidTxnState(error.message)
    return error
