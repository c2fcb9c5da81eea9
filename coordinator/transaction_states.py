"""What a transaction of one transactional id is, and how requests move it from state to state.

Values and functions, without IO or clock. A method answers with the next value, or raises the
error that the client gets; whoever calls it stores the new value before anybody acts on it
(coordinator/transactions.py). The rules are Kafka's (KIP-98, KIP-360, KIP-890;
`TransactionMetadata` and `TransactionCoordinator` in Kafka's source).

    Empty --> Ongoing --> PrepareCommit --> CompleteCommit --> Ongoing ...
                    \\-> PrepareAbort  --> CompleteAbort  --> Ongoing ...

Two flows are served. In the older one (transaction version 1) a producer keeps its epoch from one
transaction to the next, so a marker that comes late could end the wrong transaction. In version 2
(KIP-890) each end raises the epoch, and the marker has the raised one: what was sent before can
neither be stored nor end anything afterwards.

What always holds:

* The producer id and epoch of a transactional id never go back: (id, epoch) only grows, and an id
  that was replaced is never used again.
* A transaction that was prepared ends as it was prepared, whoever completes it.
* Partitions and groups are part of the value before a record or an offset of them is accepted.
* Only the producer with the current epoch, or the one before if it repeats a request, is answered.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from coordinator.messages import OFFSETS_TOPIC
from protocol.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTxnState,
    ProducerFenced,
    TransactionAbortable,
)

NO_PRODUCER_ID = -1
NO_EPOCH = -1
MAX_EPOCH = 2**15 - 1
"""Only to fence a producer: no client gets it, so there is always an epoch left to abort with."""
NOT_STARTED = -1


class TransactionState(StrEnum):
    """Named as Kafka's tools show them."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


PREPARED = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
ENDED = frozenset(
    {TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}
)


class Member(NamedTuple):
    """A partition with records of the transaction."""

    topic: str
    topic_id: UUID
    partition: int


def offsets_member(slot: int) -> Member:
    """Stands for the offsets of the groups in a slot: a partition of `__consumer_offsets`."""
    return Member(OFFSETS_TOPIC, UUID(int=0), slot)


class Producer(NamedTuple):
    """A producer as a request names it."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id: its producer, and its current or last transaction.

    `last_epoch` is the epoch before the last raise, of a producer that may repeat a request.
    `next_producer_id`: which id follows when the epochs of this one are used up.
    `version` is that of the client that last changed the state: 0 and 1 are the older flow.
    """

    transactional_id: str
    producer_id: int
    timeout_ms: int
    epoch: int = NO_EPOCH
    last_epoch: int = NO_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    state: TransactionState = TransactionState.EMPTY
    version: int = 0
    members: frozenset[Member] = frozenset()
    groups: frozenset[str] = frozenset()
    started_ms: int = NOT_STARTED
    updated_ms: int = 0

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer id has no epoch left for a client."""
        return self.epoch >= MAX_EPOCH - 1

    @property
    def commits(self) -> bool:
        """Whether a prepared transaction is to be committed."""
        return self.state is TransactionState.PREPARE_COMMIT

    def has_timed_out(self, now_ms: int) -> bool:
        return (
            self.state is TransactionState.ONGOING and now_ms >= self.started_ms + self.timeout_ms
        )

    # InitProducerId

    def initialised(
        self, timeout_ms: int, expected: Producer | None, fresh_id: int, now_ms: int
    ) -> Transaction:
        """A new instance of the producer begins. `fresh_id` is used if the epochs are used up.

        `expected`: the producer says which one it was; it goes on if it still is (KIP-360). Raises
        `ConcurrentTransactions` while a transaction ends or goes on (see `fenced`), and
        `ProducerFenced`.
        """
        if expected is not None and not self._may_be(expected):
            raise ProducerFenced(f"{self.transactional_id!r} has a newer producer")
        if self.state not in ENDED:
            raise ConcurrentTransactions(f"{self.transactional_id!r} has a transaction that ends")
        begun = replace(
            self,
            state=TransactionState.EMPTY,
            timeout_ms=timeout_ms,
            members=frozenset(),
            groups=frozenset(),
            started_ms=NOT_STARTED,
            updated_ms=now_ms,
            next_producer_id=NO_PRODUCER_ID,
        )
        if expected is not None and self.epoch != NO_EPOCH:
            if expected.epoch == self.last_epoch and expected.producer_id in (
                self.producer_id, self.previous_producer_id
            ):  # fmt: skip
                return begun  # it repeats a request: what it was given stays
            if expected != (self.producer_id, self.epoch):
                raise ProducerFenced(f"{self.transactional_id!r} has a newer producer")
        if self.is_exhausted:
            return replace(
                begun,
                previous_producer_id=self.producer_id,
                producer_id=fresh_id,
                epoch=0,
                last_epoch=NO_EPOCH if expected is None else expected.epoch,
            )
        return replace(
            begun,
            epoch=self.epoch + 1,
            last_epoch=NO_EPOCH if expected is None else expected.epoch,
        )

    def _may_be(self, expected: Producer) -> bool:
        return (
            self.epoch == NO_EPOCH
            or expected.producer_id == self.producer_id
            or (
                expected.producer_id == self.previous_producer_id
                and expected.epoch >= MAX_EPOCH - 1
            )
        )

    def fenced(self, now_ms: int) -> Transaction:
        """Abort what goes on, because a new instance begins or time is up: the epoch is raised."""
        assert self.state is TransactionState.ONGOING
        raised = self.epoch + (2 if self.version >= 2 else 1)  # the second is that of every end
        return replace(
            self,
            state=TransactionState.PREPARE_ABORT,
            epoch=min(raised, MAX_EPOCH),
            last_epoch=NO_EPOCH,
            updated_ms=now_ms,
        )

    # AddPartitionsToTxn, AddOffsetsToTxn and Produce

    def with_added(
        self,
        producer: Producer,
        members: Collection[Member],
        groups: Collection[str],
        version: int,
        now_ms: int,
    ) -> Transaction:
        """With these partitions and groups; a transaction begins if none goes on.

        The same value if all are part of it. Raises `InvalidProducerIdMapping`, `ProducerFenced`
        and `ConcurrentTransactions`.
        """
        self._check(producer)
        if self.state is TransactionState.ONGOING:
            if self.members.issuperset(members) and self.groups.issuperset(groups):
                return self
            return replace(
                self,
                members=self.members.union(members),
                groups=self.groups.union(groups),
                updated_ms=now_ms,
            )
        return replace(
            self,
            state=TransactionState.ONGOING,
            members=frozenset(members),
            groups=frozenset(groups),
            version=version,
            started_ms=now_ms,
            updated_ms=now_ms,
        )

    def verify(self, producer: Producer, member: Member) -> None:
        """Whether this partition is part of the producer's transaction, which goes on.

        Raises as `with_added`, and `TransactionAbortable` if it is not.
        """
        self._check(producer)
        if self.state is not TransactionState.ONGOING or member not in self.members:
            raise TransactionAbortable(
                f"{member.topic}-{member.partition} is not part of a transaction of"
                f" {self.transactional_id!r}"
            )

    def verify_group(self, producer: Producer, group_id: str) -> None:
        """The same for the offsets of a group."""
        self._check(producer)
        if self.state is not TransactionState.ONGOING or group_id not in self.groups:
            raise TransactionAbortable(
                f"group {group_id!r} is not part of a transaction of {self.transactional_id!r}"
            )

    def _check(self, producer: Producer) -> None:
        if producer.producer_id != self.producer_id:
            raise InvalidProducerIdMapping(
                f"{self.transactional_id!r} has another producer id than {producer.producer_id}"
            )
        if not self._is_current(producer):
            raise ProducerFenced(
                f"{self.transactional_id!r} is at epoch {self.epoch}, not {producer.epoch}"
            )
        if self.state in PREPARED:
            raise ConcurrentTransactions(f"{self.transactional_id!r} has a transaction that ends")

    def _is_current(self, producer: Producer) -> bool:
        """Whether its epoch is the current one; no client was given the last one."""
        return producer.epoch == self.epoch < MAX_EPOCH

    # EndTxn

    def ended(
        self, producer: Producer, *, commit: bool, version: int, fresh_id: int, now_ms: int
    ) -> Transaction:
        """Prepare to commit or abort; the same value if the request was answered before.

        In version 2 the epoch is raised; `fresh_id` follows if that was the last. Raises
        `InvalidProducerIdMapping`, `ProducerFenced`, `ConcurrentTransactions`, `InvalidTxnState`.
        """
        is_repeated = version >= 2 and self._repeats(producer)
        if producer.producer_id != self.producer_id and not is_repeated:
            raise InvalidProducerIdMapping(
                f"{self.transactional_id!r} has another producer id than {producer.producer_id}"
            )
        if not is_repeated and not self._is_current(producer):
            raise ProducerFenced(
                f"{self.transactional_id!r} is at epoch {self.epoch}, not {producer.epoch}"
            )
        wanted = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        done = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
        if self.state is wanted:
            raise ConcurrentTransactions(f"{self.transactional_id!r} has a transaction that ends")
        if self.state is TransactionState.ONGOING and not is_repeated:
            return self._prepared(wanted, version, fresh_id, now_ms)
        if self.state is done and (is_repeated or version < 2):
            return self
        if not commit and not is_repeated and version >= 2 and self.state in ENDED:
            # Nothing was written, as far as is known: what may still come is fenced all the same.
            return self._prepared(wanted, version, fresh_id, now_ms)
        raise InvalidTxnState(
            f"{self.transactional_id!r} cannot {'commit' if commit else 'abort'}"
            f" in state {self.state}"
        )

    def _prepared(
        self, state: TransactionState, version: int, fresh_id: int, now_ms: int
    ) -> Transaction:
        prepared = replace(self, state=state, updated_ms=now_ms, version=version)
        if self.state is not TransactionState.ONGOING:
            prepared = replace(prepared, members=frozenset(), groups=frozenset(), started_ms=now_ms)
        if version < 2:
            return prepared
        return replace(
            prepared,
            epoch=self.epoch + 1,
            last_epoch=self.epoch,
            next_producer_id=fresh_id if self.is_exhausted else NO_PRODUCER_ID,
        )

    def _repeats(self, producer: Producer) -> bool:
        """Whether the producer sends a request of version 2 again, whose answer it did not get."""
        if producer.producer_id == self.producer_id:
            return producer.epoch == self.last_epoch and self.epoch == producer.epoch + 1
        return (
            producer.producer_id == self.previous_producer_id
            and producer.epoch == MAX_EPOCH - 1
            and self.epoch == 0
        )

    def completed(self, now_ms: int) -> Transaction:
        """All markers are written."""
        assert self.state in PREPARED
        done = replace(
            self,
            state=TransactionState.COMPLETE_COMMIT
            if self.commits
            else TransactionState.COMPLETE_ABORT,
            members=frozenset(),
            groups=frozenset(),
            updated_ms=now_ms,
        )
        if self.next_producer_id == NO_PRODUCER_ID:
            return done
        return replace(
            done,
            previous_producer_id=self.producer_id,
            producer_id=self.next_producer_id,
            epoch=0,
            last_epoch=self.last_epoch,
            next_producer_id=NO_PRODUCER_ID,
        )
