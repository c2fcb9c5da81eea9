"""One partition of one topic, as its leader sees it.

What readers see (`log_start_offset`, `high_watermark`, the tail) changes on the event loop only,
when a block is stored. What the lane prepares (`next_offset`, `producers`) belongs to the lane of
the partition and is ahead of that; the changes of a rejected block are undone (`Staging`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

from brokerhouse.broker.log.leader_epochs import EpochStart, LeaderEpochs
from brokerhouse.broker.log.partition_transactions import (
    AbortedTransaction,
    OpenTransaction,
    PartitionTransactions,
)
from brokerhouse.broker.log.producers import ProducerEntry, comes_after, refused_first_entry
from brokerhouse.broker.log.tail_cache import PartitionTail
from brokerhouse.broker.log.topic import Topic
from brokerhouse.protocol._batches import BatchHeader
from brokerhouse.protocol.errors import KafkaError
from brokerhouse.storage.engine import Engine
from brokerhouse.storage.slot_map import FIRST_EPOCH

_REFUSED_KEPT = 10_000


class PartitionLog:
    """Offsets: `log_start_offset` <= any readable offset < `high_watermark` <= `next_offset`."""

    __slots__ = (
        "closed",
        "earlier",
        "epochs",
        "first_fresh_producer_id",
        "has_deleted",
        "has_forgotten",
        "high_watermark",
        "last_stable_offset",
        "leader_epoch",
        "log_start_offset",
        "next_offset",
        "opened_at",
        "partition",
        "producers",
        "producers_before",
        "producers_saved_below",
        "refused",
        "tail",
        "topic",
        "transactions",
        "verifying",
        "waiters",
    )

    def __init__(
        self,
        topic: Topic,
        partition: int,
        log_start_offset: int,
        next_offset: int,
        first_fresh_producer_id: int,
        leader_epoch: int = FIRST_EPOCH,
    ) -> None:
        self.topic = topic  # replaced by the catalog when the topic's configs change
        self.partition = partition
        self.log_start_offset = log_start_offset
        self.high_watermark = next_offset
        self.last_stable_offset = next_offset
        self.next_offset = next_offset
        self.transactions = PartitionTransactions()
        # Producers whose first batch of a transaction waits for the coordinator's word.
        self.verifying: dict[int, object] = {}
        self.leader_epoch = leader_epoch
        self.epochs = LeaderEpochs((EpochStart(leader_epoch, log_start_offset),))
        self.earlier: Sequence[Engine] = ()  # engines with older rows, if its slot was moved
        self.closed: KafkaError | None = None  # why appends are refused
        self.producers: dict[int, ProducerEntry] = {}  # the one silent for longest comes first
        # The first refused batch of each producer, which it may resend: epoch and sequence.
        self.refused: dict[int, tuple[int, int]] = {}
        # Producers with a lower id may have rows from before this process started.
        self.first_fresh_producer_id = first_fresh_producer_id
        # Rows of the partition; None: not known yet (producer_recovery.py).
        self.has_deleted: bool | None = None
        # A producer that wrote here and is in no table. None as above.
        self.has_forgotten: bool | None = None
        self.opened_at = next_offset  # `producers` has all that was appended from here on
        # Below this offset the states of producers are stored (producer_states.py).
        self.producers_saved_below = log_start_offset
        # What producers were before the block that is being stored; None: not known.
        self.producers_before: dict[int, ProducerEntry | None] = {}
        self.tail = PartitionTail()
        self.waiters: set[Callable[[PartitionLog], None]] = set()

    @property
    def topic_id(self) -> UUID:
        return self.topic.topic_id

    @property
    def first_fetchable(self) -> int:
        """The lowest offset that a fetch may name."""
        return self.log_start_offset

    def __str__(self) -> str:
        return f"{self.topic.name}-{self.partition}"

    def advance(self, high_watermark: int) -> None:
        """Make everything below `high_watermark` readable and wake those who wait for it."""
        assert high_watermark >= self.high_watermark, f"{self}: high watermark went back"
        self.high_watermark = high_watermark
        self.find_stable_offset()
        self.wake()

    def find_stable_offset(self) -> None:
        """Set `last_stable_offset`, when a block is stored and no other is being built."""
        first_open = self.transactions.first_open_offset()
        self.last_stable_offset = (
            self.high_watermark if first_open is None else max(first_open, self.log_start_offset)
        )

    def begin_at(self, offset: int) -> None:
        """Serve nothing below `offset` any more. A checkpoint with it has been stored."""
        assert offset <= self.high_watermark, f"{self}: the log cannot begin beyond its end"
        if offset > self.log_start_offset:
            self.has_deleted = True
            # Whoever stored the checkpoint has stored these states.
            self.producers_saved_below = max(self.producers_saved_below, offset)
        self.log_start_offset = max(self.log_start_offset, offset)
        self.epochs = self.epochs.since(self.log_start_offset)
        self.transactions.forget_below(self.log_start_offset)
        # Not `find_stable_offset`: a block may be on its way that has changed what is open.
        self.last_stable_offset = max(self.last_stable_offset, self.log_start_offset)

    def close(self, why: KafkaError) -> None:
        """Refuse appends from now on, and wake waiting fetches. The first reason stays."""
        if self.closed is None:
            self.closed = why
        self.wake()

    def note_refused(self, header: BatchHeader) -> None:
        """Remember a refused batch of an unknown producer: no later batch may come before it.

        The client sends all batches again, from the earliest refused one on.
        """
        if not header.control:
            self.note_refused_from(header.producer_id, header.producer_epoch, header.base_sequence)

    def note_refused_from(self, producer_id: int, epoch: int, sequence: int) -> None:
        """As `note_refused`, for a batch that begins with this sequence."""
        if producer_id < 0 or producer_id in self.producers:
            return
        known = self.refused.get(producer_id)
        if known is None or _comes_earlier(epoch, sequence, *known):
            self.refused[producer_id] = epoch, sequence
            while len(self.refused) > _REFUSED_KEPT:
                del self.refused[next(iter(self.refused))]

    def forget_producers(self, silent_since_ms: int) -> None:
        """Drop producers that have not appended since then (`producer_id_expiration_ms`)."""
        while self.producers:
            producer_id, entry = next(iter(self.producers.items()))
            if entry.last_append_ms >= silent_since_ms:
                return
            del self.producers[producer_id]
            self.has_forgotten = True

    def stored_producers(self) -> dict[int, ProducerEntry]:
        """The producers by what is stored, without the block that is on its way."""
        found: dict[int, ProducerEntry | None] = dict(self.producers)
        # In this order: the thread that builds a block notes here what it changes before it does.
        found.update(self.producers_before)
        return {producer_id: one for producer_id, one in found.items() if one is not None}

    def wake(self) -> None:
        """Make every waiting fetch look at this partition again."""
        for waiter in tuple(self.waiters):
            waiter(self)


def _comes_earlier(epoch: int, sequence: int, known_epoch: int, known_sequence: int) -> bool:
    """Whether a batch has a later epoch than the known one, or comes before it in the same."""
    if epoch != known_epoch:
        return epoch > known_epoch
    return comes_after(known_sequence, sequence)


class Staging:
    """What a block has changed in its partitions before it is stored, to undo it."""

    def __init__(self) -> None:
        self._offsets: dict[PartitionLog, int] = {}
        self._producers: list[tuple[PartitionLog, int, ProducerEntry | None, ProducerEntry]] = []
        self._open: list[tuple[PartitionLog, int, OpenTransaction | None]] = []
        self.begun: list[tuple[PartitionLog, int, OpenTransaction]] = []
        self._aborted: list[tuple[PartitionLog, AbortedTransaction]] = []
        self._words: list[tuple[PartitionLog, int, object]] = []

    def reserve(self, partition: PartitionLog, count: int) -> None:
        """Give the next `count` offsets of the partition to the block."""
        self._offsets.setdefault(partition, partition.next_offset)
        partition.next_offset += count

    def set_producer(self, partition: PartitionLog, producer_id: int, entry: ProducerEntry) -> None:
        before = partition.producers.get(producer_id)
        partition.producers_before.setdefault(producer_id, before)
        self._producers.append((partition, producer_id, before, entry))
        partition.producers.pop(producer_id, None)  # it becomes the last
        partition.producers[producer_id] = entry

    def begin_transaction(
        self, partition: PartitionLog, producer_id: int, begun: OpenTransaction
    ) -> None:
        """Does nothing if the producer has an open one. The coordinator's word is used up."""
        word = partition.verifying.pop(producer_id, None)
        if word is not None:
            self._words.append((partition, producer_id, word))
        if producer_id not in partition.transactions.open:
            self._open.append((partition, producer_id, None))
            self.begun.append((partition, producer_id, begun))
            partition.transactions.open[producer_id] = begun

    def end_transaction(
        self, partition: PartitionLog, producer_id: int, marker_offset: int, *, commit: bool
    ) -> None:
        """The producer's transaction, if one is open, ends with the marker at this offset."""
        ended = partition.transactions.open.get(producer_id)
        if ended is None:
            return
        self._open.append((partition, producer_id, ended))
        del partition.transactions.open[producer_id]
        if not commit:
            aborted = AbortedTransaction(producer_id, ended.first_offset, marker_offset)
            self._aborted.append((partition, aborted))

    def publish(self) -> None:
        """The block is stored: aborted transactions are known from now on."""
        self._forget_before()
        for partition, aborted in self._aborted:
            partition.transactions.note_aborted(aborted)

    def _forget_before(self) -> None:
        for partition in self._offsets:
            partition.producers_before.clear()

    @property
    def first_offsets(self) -> dict[PartitionLog, int]:
        """The first offset of the block in each of its partitions."""
        return self._offsets

    def take_back(self) -> None:
        """Nothing of the block is stored: restore every offset and producer state."""
        for partition, producer_id, before, entry in reversed(self._producers):
            if before is not None:
                partition.producers[producer_id] = before
            elif entry.ranges:
                partition.producers[producer_id] = refused_first_entry(entry)
            else:  # a marker
                del partition.producers[producer_id]
        self._forget_before()
        for partition, producer_id, word in self._words:
            # Batches behind the first one have the same word, and no marker came.
            partition.verifying[producer_id] = word
        for partition, first_offset in self._offsets.items():
            partition.next_offset = first_offset
        for partition, producer_id, open_before in reversed(self._open):
            if open_before is None:
                del partition.transactions.open[producer_id]
            else:
                partition.transactions.open[producer_id] = open_before
