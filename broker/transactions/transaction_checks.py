"""Asks the coordinator whether a batch or an offset may be part of a transaction (KIP-890).

The broker accepts it only if the coordinator knows that its partition, or its group, is part of the
transaction; otherwise no marker would ever end the transaction there. For a client of transaction
version 2 the broker adds the partition to the transaction. An older client has added it before, and
the broker verifies this.

Before the broker asks, it puts an object into `verifying` of the partition, or of the pending
offsets of the group. A marker that arrives removes that object. Then the broker asks again, because
the marker may have ended the previous transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import TypeVar

from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.slots.slot_transactions import CoordinatorCalls
from brokerhouse.coordinator.pending_offsets import PendingOffsets
from brokerhouse.coordinator.transaction_states import Member, Producer
from brokerhouse.protocol._batches import BatchHeader
from brokerhouse.protocol.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    NotCoordinator,
    NotEnoughReplicas,
    ProducerFenced,
    RequestTimedOut,
    TransactionAbortable,
)

_ADDS_BY_PRODUCING = 12
"""The version of Produce from which the broker adds the partition."""
_ASKED_AGAIN = 3
_ELSEWHERE = (CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator, RequestTimedOut)
"""The coordinator of the transaction could not be asked; the client asks this broker again."""

KeyT = TypeVar("KeyT")


class TransactionChecks:
    """The questions that are under way, one for each producer and partition."""

    def __init__(self, coordinators: CoordinatorCalls) -> None:
        self._coordinators = coordinators
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
        ask = self._coordinators.add if adds else self._coordinators.verify
        try:
            return await _word(
                partition.verifying,
                producer.producer_id,
                partial(ask, transactional_id, producer, member),
            )
        except KafkaError as error:
            raise _for_producers(error, knows_newer_errors=adds) from error

    async def may_send_offsets(
        self,
        pending: PendingOffsets,
        transactional_id: str,
        producer: Producer,
        group_id: str,
        *,
        adds: bool,
    ) -> None:
        """Returns when the offsets of the group are part of the producer's transaction.

        True until the caller awaits something: a marker of it comes later.
        """
        ask = self._coordinators.add_group if adds else self._coordinators.verify_group
        key = group_id, producer.producer_id
        try:
            await _word(pending.verifying, key, partial(ask, transactional_id, producer, group_id))
        except _ELSEWHERE as error:
            raise CoordinatorNotAvailable(error.message) from error
        finally:
            pending.verifying.pop(key, None)


async def _word(
    words: MutableMapping[KeyT, object], key: KeyT, ask: Callable[[], Awaitable[None]]
) -> object:
    """What stands for the coordinator's word: no marker came since the question was asked."""
    for _ in range(_ASKED_AGAIN):
        word = words.setdefault(key, object())
        try:
            await ask()
        except BaseException:
            if words.get(key) is word:
                del words[key]
            raise
        if words.get(key) is word:
            return word
    raise ConcurrentTransactions(
        "Transactions of the producer end faster than a new one can begin."
    )


def _for_producers(error: KafkaError, *, knows_newer_errors: bool) -> KafkaError:
    """The error as a response to Produce may have it."""
    if isinstance(error, ProducerFenced):
        return InvalidProducerEpoch(error.message)
    if isinstance(error, _ELSEWHERE):
        return NotEnoughReplicas(error.message)
    if knows_newer_errors:
        return error
    if isinstance(error, ConcurrentTransactions):
        return NotEnoughReplicas(error.message)
    if isinstance(error, TransactionAbortable):
        return InvalidTxnState(error.message)
    return error
