"""What a transaction of one transactional id is, and the table that moves it from state to state.

`TRANSITIONS` is what runs: each method of `Transaction` checks the producer, then looks its event
up there. A cell is the next state, or the error that the client gets. Without IO or clock: a method
answers with the next value, and whoever calls it stores that before anybody acts on it
(coordinator/transaction_coordinator.py). The rules are Kafka's (KIP-98, KIP-360, KIP-890;
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

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from brokerhouse.common.text_table import read_table
from brokerhouse.coordinator.messages import OFFSETS_TOPIC
from brokerhouse.protocol.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaError,
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


class TransactionEvent(Enum):
    """What can happen to a transaction. A producer that an event comes from was checked before."""

    NEW_PRODUCER = auto()
    """InitProducerId: a new instance of the producer begins."""
    ADD = auto()
    """AddPartitionsToTxn, AddOffsetsToTxn, or a record: partitions and groups become part of it."""
    VERIFY = auto()
    """Is a partition or group part of it?"""
    COMMIT_1 = auto()
    """EndTxn in version 1: the producer may send it twice, with the same epoch."""
    ABORT_1 = auto()
    COMMIT_2 = auto()
    """EndTxn in version 2, with the current epoch."""
    ABORT_2 = auto()
    COMMIT_AGAIN = auto()
    """EndTxn in version 2, with the epoch before: the producer did not get the answer."""
    ABORT_AGAIN = auto()
    FENCE = auto()
    """A new instance of the producer begins, or time is up."""
    MARKED = auto()
    """All markers are written."""


TransactionOutcome = TransactionState | type[KafkaError] | None
"""The next state, the error of the request, or None: only a bug causes this event here."""

# In version 2 an abort without a transaction succeeds: nothing was written, as far as is known, and
# what may still come is fenced by the raised epoch.
_TABLE = """
             Empty        Ongoing       PrepareCommit  PrepareAbort  CompleteCommit CompleteAbort
NEW_PRODUCER Empty        wait          wait           wait          Empty          Empty
ADD          Ongoing      Ongoing       wait           wait          Ongoing        Ongoing
VERIFY       abortable    Ongoing       wait           wait          abortable      abortable
COMMIT_1     invalid      PrepareCommit wait           invalid       CompleteCommit invalid
ABORT_1      invalid      PrepareAbort  invalid        wait          invalid        CompleteAbort
COMMIT_2     invalid      PrepareCommit wait           invalid       invalid        invalid
ABORT_2      PrepareAbort PrepareAbort  invalid        wait          PrepareAbort   PrepareAbort
COMMIT_AGAIN invalid      invalid       wait           invalid       CompleteCommit invalid
ABORT_AGAIN  invalid      invalid       invalid        wait          invalid        CompleteAbort
FENCE        -            PrepareAbort  -              -             -              -
MARKED       -            -             CompleteCommit CompleteAbort -              -
"""
_CELLS: Mapping[str, TransactionOutcome] = {
    **{state.value: state for state in TransactionState},
    "wait": ConcurrentTransactions,
    "invalid": InvalidTxnState,
    "abortable": TransactionAbortable,
    "-": None,
}

TRANSITIONS: Mapping[TransactionEvent, Mapping[TransactionState, TransactionOutcome]] = (
    MappingProxyType(
        {
            TransactionEvent[event]: MappingProxyType(
                {TransactionState(state): _CELLS[cell] for state, cell in row.items()}
            )
            for event, row in read_table(_TABLE).items()
        }
    )
)
"""For each event and state: the next state, or the error."""

_REASONS: Mapping[type[KafkaError], str] = MappingProxyType(
    {
        ConcurrentTransactions: "The last transaction of {id!r} has not ended yet.",
        InvalidTxnState: "Producer {id!r} cannot {what}: its transaction is in state {state}.",
        TransactionAbortable: "The transaction of {id!r} does not include {what}.",
    }
)

_VERSION_1 = TransactionEvent.COMMIT_1, TransactionEvent.ABORT_1
_VERSION_2 = TransactionEvent.COMMIT_2, TransactionEvent.ABORT_2
_AGAIN = TransactionEvent.COMMIT_AGAIN, TransactionEvent.ABORT_AGAIN


class Member(NamedTuple):
    """A partition with records of the transaction."""

    topic: str
    topic_id: UUID
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


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

    def _after(self, event: TransactionEvent, what: str = "") -> TransactionState:
        """The next state; `what` names what the request is about. Raises as `TRANSITIONS` says."""
        outcome = TRANSITIONS[event][self.state]
        if isinstance(outcome, TransactionState):
            return outcome
        assert outcome is not None, f"{event.name} in state {self.state}"
        raise self._refusal(outcome, what)

    def _refusal(self, error: type[KafkaError], what: str) -> KafkaError:
        reason = _REASONS[error]
        return error(reason.format(id=self.transactional_id, what=what, state=self.state))

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
            raise ProducerFenced(
                f"A newer producer uses the transactional id {self.transactional_id!r}."
            )
        begun = replace(
            self,
            state=self._after(TransactionEvent.NEW_PRODUCER),
            timeout_ms=timeout_ms,
            members=frozenset(),
            groups=frozenset(),
            started_ms=NOT_STARTED,
            updated_ms=now_ms,
            next_producer_id=NO_PRODUCER_ID,
        )
        if expected is not None and self.epoch != NO_EPOCH:
            ids = self.producer_id, self.previous_producer_id
            if expected.epoch == self.last_epoch and expected.producer_id in ids:
                return begun  # it repeats a request: what it was given stays
            if expected != (self.producer_id, self.epoch):
                raise ProducerFenced(
                    f"A newer producer uses the transactional id {self.transactional_id!r}."
                )
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
        raised = self.epoch + (2 if self.version >= 2 else 1)  # the second is that of every end
        return replace(
            self,
            state=self._after(TransactionEvent.FENCE),
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
        state = self._after(TransactionEvent.ADD)
        if self.state is state:
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
            state=state,
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
        self._verify(producer, str(member), is_part=member in self.members)

    def verify_group(self, producer: Producer, group_id: str) -> None:
        """The same for the offsets of a group."""
        self._verify(producer, f"group {group_id!r}", is_part=group_id in self.groups)

    def _verify(self, producer: Producer, what: str, *, is_part: bool) -> None:
        self._check(producer)
        self._after(TransactionEvent.VERIFY, what)
        if not is_part:
            raise self._refusal(TransactionAbortable, what)

    def _check(self, producer: Producer) -> None:
        if producer.producer_id != self.producer_id:
            raise InvalidProducerIdMapping(
                f"The transactional id {self.transactional_id!r} has another producer id than"
                f" {producer.producer_id}."
            )
        if not self._is_current(producer):
            raise ProducerFenced(
                f"The producer of {self.transactional_id!r} has epoch {self.epoch} now, not"
                f" {producer.epoch}."
            )

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
        if not is_repeated:
            self._check(producer)
        commits, aborts = _AGAIN if is_repeated else _VERSION_2 if version >= 2 else _VERSION_1
        what = "commit" if commit else "abort"
        state = self._after(commits if commit else aborts, what)
        return self if self.state is state else self._prepared(state, version, fresh_id, now_ms)

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
        done = replace(
            self,
            state=self._after(TransactionEvent.MARKED),
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
