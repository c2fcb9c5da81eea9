"""The states of a transactional id: the rules of requests one by one, then random histories."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest

from brokerhouse.coordinator.transaction_states import (
    ENDED,
    MAX_EPOCH,
    NO_EPOCH,
    NO_PRODUCER_ID,
    PREPARED,
    TRANSITIONS,
    Member,
    Producer,
    Transaction,
    TransactionEvent,
    TransactionState,
)
from brokerhouse.protocol.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
    TransactionAbortable,
)

TIMEOUT_MS = 60_000
FRESH = 77
MEMBER = Member("events", UUID(int=1), 0)
OTHER = Member("events", UUID(int=1), 1)
NEW = Transaction("id", 5, TIMEOUT_MS)


def begun(version: int = 2) -> Transaction:
    first = NEW.initialised(TIMEOUT_MS, None, FRESH, 10)
    return first.with_added(current(first), (MEMBER,), ("group",), version, 20)


def current(transaction: Transaction) -> Producer:
    return Producer(transaction.producer_id, transaction.epoch)


def ended(transaction: Transaction, *, commit: bool = True, version: int = 2) -> Transaction:
    return transaction.ended(
        current(transaction), commit=commit, version=version, fresh_id=FRESH, now_ms=30
    )


def test_the_table_has_a_cell_for_every_event_and_state() -> None:
    assert set(TRANSITIONS) == set(TransactionEvent)
    assert all(set(outcomes) == set(TransactionState) for outcomes in TRANSITIONS.values())


def test_a_transaction_that_was_prepared_ends_as_it_was_prepared() -> None:
    ends = {
        TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
        TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
    }
    for prepared, end in ends.items():
        following = {outcomes[prepared] for outcomes in TRANSITIONS.values()}
        assert {one for one in following if isinstance(one, TransactionState)} == {end}


def test_a_new_id_begins_with_epoch_0_and_every_instance_has_the_next() -> None:
    first = NEW.initialised(TIMEOUT_MS, None, FRESH, 10)
    assert (first.state, current(first)) == (TransactionState.EMPTY, (5, 0))
    assert current(first.initialised(TIMEOUT_MS, None, FRESH, 20)) == (5, 1)


def test_a_producer_that_names_its_last_epoch_gets_the_next_one_even_if_it_repeats_that() -> None:
    first = NEW.initialised(TIMEOUT_MS, None, FRESH, 10)
    second = first.initialised(TIMEOUT_MS, current(first), FRESH, 20)
    assert current(second) == (5, 1)
    assert current(second.initialised(TIMEOUT_MS, current(first), FRESH, 30)) == (5, 1)
    third = second.initialised(TIMEOUT_MS, None, FRESH, 40)
    for stale in (current(first), current(second), Producer(6, 2)):
        with pytest.raises(ProducerFenced):
            third.initialised(TIMEOUT_MS, stale, FRESH, 50)


def test_a_new_instance_waits_for_the_end_of_the_transaction_before_it() -> None:
    for unfinished in (begun(), begun().fenced(30)):
        with pytest.raises(ConcurrentTransactions):
            unfinished.initialised(TIMEOUT_MS, None, FRESH, 40)


def test_the_id_after_the_last_epoch_is_a_fresh_one() -> None:
    used_up = replace(NEW, epoch=MAX_EPOCH - 1, state=TransactionState.COMPLETE_COMMIT)
    rotated = used_up.initialised(TIMEOUT_MS, None, FRESH, 10)
    assert (current(rotated), rotated.previous_producer_id) == ((FRESH, 0), 5)
    fenced = replace(begun(), epoch=MAX_EPOCH - 1).fenced(30)
    assert fenced.epoch == MAX_EPOCH


@pytest.mark.parametrize("version", [1, 2])
def test_only_the_current_producer_adds_partitions(version: int) -> None:
    transaction = begun(version)
    assert transaction.with_added(current(transaction), (MEMBER,), (), version, 30) is transaction
    larger = transaction.with_added(current(transaction), (OTHER,), (), version, 30)
    assert larger.members == {MEMBER, OTHER}
    assert (set(larger.groups), larger.started_ms) == ({"group"}, 20)
    with pytest.raises(ProducerFenced):
        transaction.with_added(Producer(5, 7), (OTHER,), (), version, 30)
    with pytest.raises(InvalidProducerIdMapping):
        transaction.with_added(Producer(6, 0), (OTHER,), (), version, 30)
    prepared = ended(transaction, version=version)
    with pytest.raises(ConcurrentTransactions):
        prepared.with_added(current(prepared), (OTHER,), (), version, 30)


def test_a_partition_or_group_outside_the_transaction_is_not_verified() -> None:
    transaction = begun()
    transaction.verify(current(transaction), MEMBER)
    transaction.verify_group(current(transaction), "group")
    with pytest.raises(TransactionAbortable):
        transaction.verify(current(transaction), OTHER)
    with pytest.raises(TransactionAbortable):
        transaction.verify_group(current(transaction), "another")
    done = ended(transaction).completed(40)
    with pytest.raises(TransactionAbortable):
        done.verify(current(done), MEMBER)


@pytest.mark.parametrize("commit", [True, False])
def test_in_version_1_the_epoch_stays_at_an_end(commit: bool) -> None:
    prepared = ended(begun(1), commit=commit, version=1)
    assert (prepared.epoch, prepared.commits, set(prepared.members)) == (0, commit, {MEMBER})
    done = prepared.completed(40)
    assert (done.epoch, done.members, done.groups) == (0, frozenset(), frozenset())
    assert ended(done, commit=commit, version=1) is done, "repeated"
    with pytest.raises(InvalidTxnState):
        ended(done, commit=not commit, version=1)


@pytest.mark.parametrize("commit", [True, False])
def test_in_version_2_every_end_raises_the_epoch_and_may_be_repeated(commit: bool) -> None:
    transaction = begun()
    prepared = ended(transaction, commit=commit)
    assert current(prepared) == (5, 1)
    done = prepared.completed(40)
    again = done.ended(Producer(5, 0), commit=commit, version=2, fresh_id=FRESH, now_ms=50)
    assert again is done
    with pytest.raises(InvalidTxnState):
        done.ended(Producer(5, 0), commit=not commit, version=2, fresh_id=FRESH, now_ms=50)
    following = done.with_added(current(done), (MEMBER,), (), 2, 60)
    with pytest.raises(InvalidTxnState):
        following.ended(Producer(5, 0), commit=commit, version=2, fresh_id=FRESH, now_ms=70)


def test_in_version_2_an_abort_without_a_transaction_raises_the_epoch_too() -> None:
    first = NEW.initialised(TIMEOUT_MS, None, FRESH, 10)
    aborted = ended(first, commit=False)
    assert (aborted.state, aborted.epoch) == (TransactionState.PREPARE_ABORT, 1)
    assert aborted.members == frozenset()
    with pytest.raises(InvalidTxnState):
        ended(first, commit=True)


def test_in_version_2_a_fresh_id_follows_the_last_epoch() -> None:
    prepared = ended(replace(begun(), epoch=MAX_EPOCH - 1))
    assert (current(prepared), prepared.next_producer_id) == ((5, MAX_EPOCH), FRESH)
    done = prepared.completed(40)
    assert (current(done), done.next_producer_id) == ((FRESH, 0), NO_PRODUCER_ID)
    again = done.ended(Producer(5, MAX_EPOCH - 1), commit=True, version=2, fresh_id=78, now_ms=50)
    assert again is done, "the producer did not get the answer"


def test_a_transaction_that_was_fenced_cannot_be_committed() -> None:
    for version in (1, 2):
        transaction = begun(version)
        fenced = transaction.fenced(30)
        assert fenced.epoch > transaction.epoch
        for one in (fenced, fenced.completed(40)):
            with pytest.raises(ProducerFenced):
                one.ended(
                    current(transaction), commit=True, version=version, fresh_id=FRESH, now_ms=50
                )


def test_only_an_ongoing_transaction_times_out() -> None:
    transaction = begun()
    assert not transaction.has_timed_out(20 + TIMEOUT_MS - 1)
    assert transaction.has_timed_out(20 + TIMEOUT_MS)
    assert not ended(transaction).has_timed_out(10**12)


class World:
    """An id under random requests of producers that are current, stale or made up."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = replace(NEW, epoch=self.random.choice([NO_EPOCH, MAX_EPOCH - 4]))
        self.seen: list[Producer] = [Producer(5, 0)]
        self.decided: TransactionState | None = None
        self.ids = 100

    def producer(self) -> Producer:
        if self.random.random() < 0.6:
            return current(self.now)
        return self.random.choice([*self.seen, Producer(6, 0)])

    def step(self) -> None:
        self.ids += 1
        version = self.random.choice([1, 2])
        commit = self.random.random() < 0.5
        requests: list[Callable[[], Transaction]] = [
            lambda: self.now.initialised(
                TIMEOUT_MS, self.random.choice([None, self.producer()]), self.ids, 0
            ),
            lambda: self.now.with_added(
                self.producer(), (self.random.choice([MEMBER, OTHER]),), (), version, 0
            ),
            lambda: self.now.ended(
                self.producer(), commit=commit, version=version, fresh_id=self.ids, now_ms=0
            ),
        ]
        if self.now.state in PREPARED:
            requests += [lambda: self.now.completed(0)] * 2
        if self.now.state is TransactionState.ONGOING:
            requests.append(lambda: self.now.fenced(0))
        before = self.now
        try:
            after = self.random.choice(requests)()
        except KafkaError:
            return
        self.check(before, after)
        self.now = after
        self.seen.append(current(after))

    def check(self, before: Transaction, after: Transaction) -> None:
        """What always holds: see the module."""
        assert after.epoch <= MAX_EPOCH
        if after.producer_id == before.producer_id:
            assert after.epoch >= before.epoch
        else:
            assert after.producer_id > before.producer_id, "an old id is never used again"
            assert (after.epoch, after.previous_producer_id) == (0, before.producer_id)
        if before.state in PREPARED and after.state is not before.state:
            done = {
                TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
                TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
            }
            assert after.state is done[before.state]
        if before.state in PREPARED and after.state in PREPARED:
            assert after == before
        if before.state is TransactionState.ONGOING:
            assert after.state is TransactionState.ONGOING or after.state in PREPARED
            assert after.members >= before.members, "a partition would never get its marker"
        if after.state in ENDED:
            assert not after.members
            assert after.epoch < MAX_EPOCH or after.next_producer_id == NO_PRODUCER_ID


def test_invariants_of_transactions_hold_in_random_histories() -> None:
    states = set()
    for seed in range(300):
        world = World(seed)
        for _ in range(60):
            world.step()
            states.add(world.now.state)
    assert states == set(TransactionState)
