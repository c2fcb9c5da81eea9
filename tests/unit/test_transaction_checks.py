"""The coordinator's word on a batch or an offset, and markers that come while it is asked."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.slots.slot_transactions import CoordinatorCalls
from brokerhouse.broker.transactions.transaction_checks import TransactionChecks
from brokerhouse.coordinator.pending_offsets import PendingOffsets
from brokerhouse.coordinator.transaction_states import Member, Producer
from brokerhouse.protocol._batches import BatchHeader
from brokerhouse.protocol.errors import (
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    KafkaError,
    NotCoordinator,
    NotEnoughReplicas,
    ProducerFenced,
)
from tests.support.log_parts import header_of, make_log
from tests.support.record_batches import Record, batch_of

ID, GROUP = "id", "group"
PRODUCER = Producer(7, 0)
ADDS, VERIFIES = 12, 11
"""Versions of Produce."""


class Coordinator:
    """`CoordinatorCalls` that does something each time it is asked."""

    def __init__(self, *meanwhile: Callable[[], None]) -> None:
        self._meanwhile = list(meanwhile)
        self.asked: list[str] = []

    def _answer(self, question: str) -> None:
        self.asked.append(question)
        if self._meanwhile:
            self._meanwhile.pop(0)()

    async def add(self, transactional_id: str, producer: Producer, member: Member) -> None:
        self._answer("add")

    async def verify(self, transactional_id: str, producer: Producer, member: Member) -> None:
        self._answer("verify")

    async def add_group(self, transactional_id: str, producer: Producer, group_id: str) -> None:
        self._answer("add_group")

    async def verify_group(self, transactional_id: str, producer: Producer, group_id: str) -> None:
        self._answer("verify_group")


def header() -> BatchHeader:
    batch = batch_of(Record(value=b"a"), producer_id=7, producer_epoch=0, base_sequence=0)
    return header_of(batch.data)


def pending() -> PendingOffsets:
    return cast(PendingOffsets, SimpleNamespace(verifying={}))


def failing(error: KafkaError) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def checks_of(coordinator: Coordinator) -> TransactionChecks:
    return TransactionChecks(cast(CoordinatorCalls, coordinator))


async def asked(log: PartitionLog, coordinator: Coordinator, version: int = ADDS) -> object:
    return await checks_of(coordinator).may_begin(log, ID, header(), version)


@pytest.mark.parametrize(("version", "question"), [(ADDS, "add"), (VERIFIES, "verify")])
async def test_the_coordinator_is_asked_again_if_a_marker_arrived_during_the_check(
    version: int, question: str
) -> None:
    log = make_log()
    coordinator = Coordinator(log.verifying.clear)
    word = await asked(log, coordinator, version)
    assert coordinator.asked == [question] * 2
    assert log.verifying == {7: word}


async def test_a_check_gives_up_when_markers_keep_arriving() -> None:
    log = make_log()
    coordinator = Coordinator(*[log.verifying.clear] * 9)
    with pytest.raises(ConcurrentTransactions):
        await asked(log, coordinator)
    assert (len(coordinator.asked), log.verifying) == (3, {})


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ProducerFenced("newer"), InvalidProducerEpoch),
        (NotCoordinator("moved"), NotEnoughReplicas),
        (ConcurrentTransactions("ends"), ConcurrentTransactions),
    ],
)
async def test_a_refused_check_is_not_remembered(error: KafkaError, told: type[KafkaError]) -> None:
    log = make_log()
    with pytest.raises(told):
        await asked(log, Coordinator(failing(error)))
    assert log.verifying == {}


@pytest.mark.parametrize(("adds", "question"), [(True, "add_group"), (False, "verify_group")])
async def test_offsets_are_checked_again_if_a_marker_arrived_during_the_check(
    adds: bool, question: str
) -> None:
    sent_to = pending()
    coordinator = Coordinator(sent_to.verifying.clear)
    checks = checks_of(coordinator)
    await checks.may_send_offsets(sent_to, ID, PRODUCER, GROUP, adds=adds)
    assert coordinator.asked == [question] * 2
    assert sent_to.verifying == {}


async def test_offsets_are_refused_while_their_coordinator_is_elsewhere() -> None:
    sent_to = pending()
    checks = checks_of(Coordinator(failing(NotCoordinator("moved"))))
    with pytest.raises(CoordinatorNotAvailable):
        await checks.may_send_offsets(sent_to, ID, PRODUCER, GROUP, adds=True)
    assert sent_to.verifying == {}
