"""One block of the log: the rows that a lane builds from its queued appends.

A block is stored atomically. Until its insert has returned, everything that the block changed can
be undone: offsets and producer state (`Staging`). The lane (broker/log/lane.py) decides when a
block is built, sent and answered; this file builds it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from brokerhouse.broker.log.batch_records import BatchRecords
from brokerhouse.broker.log.partition import PartitionLog, Staging
from brokerhouse.broker.log.partition_transactions import OpenTransaction
from brokerhouse.broker.log.producers import ProducerEntry, comes_after, find_duplicate, first_entry
from brokerhouse.common.counted_lines import counted
from brokerhouse.protocol._batches import BatchHeader, parse_headers, stamp_batch
from brokerhouse.protocol._decode_batches import BlockBuilder
from brokerhouse.protocol.batches import BATCH_OVERHEAD
from brokerhouse.protocol.control_batches import control_batch
from brokerhouse.protocol.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    OutOfOrderSequenceNumber,
    RequestTimedOut,
    TransactionCoordinatorFenced,
)
from brokerhouse.storage.slot_map import FIRST_EPOCH

log = logging.getLogger(__name__)


class Appended(NamedTuple):
    """Where a batch is stored. `log_append_time_ms` is -1 unless the broker set the timestamps."""

    base_offset: int
    log_append_time_ms: int


Outcome: TypeAlias = Appended | KafkaError
"""What a producer is told about one batch."""


@dataclass(frozen=True, slots=True)
class AppendLimits:
    """How large a block and a decompressed batch may be, and how long a producer is remembered."""

    block_max_bytes: int
    block_max_rows: int
    decompressed_max_bytes: int
    linger_ms: int
    producer_id_expiration_ms: int


class Sender(Protocol):
    """Where a batch came from: a connection."""

    @property
    def has_left(self) -> bool:
        """Whether it is closed."""


@dataclass(slots=True)
class PendingAppend:
    """One batch whose producer waits for an answer.

    `told` is called once, with the outcome, and calls nothing of the lane. `decompressed`: its
    records, or why it is refused, if it was not decompressed by its lane.
    """

    partition: PartitionLog
    records: bytes
    header: BatchHeader
    told: Callable[[Outcome], None]
    sender: Sender | None = None
    expects_answer: bool = True
    is_answered: bool = False
    verified: object | None = None
    """For the first batch of a transaction: the entry of `PartitionLog.verifying` that it had."""
    decompressed: bytes | KafkaError | None = None

    @property
    def size(self) -> int:
        """Bytes of the batch."""
        return self.header.end - self.header.start

    @property
    def is_verified(self) -> bool:
        """Whether the coordinator's word on the transaction still holds: no marker came since."""
        known = self.partition.verifying.get(self.header.producer_id)
        return self.verified is not None and known is self.verified

    @property
    def is_abandoned(self) -> bool:
        """Whether its client left without waiting for the answer. With acks=0 none waits."""
        return self.expects_answer and self.sender is not None and self.sender.has_left

    def answer(self, outcome: Outcome) -> None:
        """Does nothing for a producer that has been answered."""
        if self.is_answered:
            return
        self.is_answered = True
        try:
            self.told(outcome)
        except Exception:
            log.exception("bug: cannot answer a producer about its batch", extra=counted())

    def refuse(self, error: KafkaError) -> None:
        """Answer with an error, and note that the client must resend this batch first."""
        self.partition.note_refused(self.header)
        self.answer(error)


class Appending(Protocol):
    def append(self, append: PendingAppend) -> None:
        """Queue one checked batch: see `Appender.append`."""


@dataclass(slots=True)
class PendingMarker(PendingAppend):
    """The end of a transaction on one partition. Its batch is made when its offset is known."""

    commit: bool = False
    coordinator_epoch: int = 0
    raises_epoch: bool = False
    """Whether the epoch is above that of the records (transaction version 2)."""


@dataclass(slots=True)
class PendingBlock:
    """A block before its outcome is known: its rows, and an answer for each append in it."""

    append_time_ms: int
    staging: Staging = field(default_factory=Staging)
    answers: list[tuple[PendingAppend, Outcome]] = field(default_factory=list)
    new_batches: list[tuple[PartitionLog, int, int, bytes]] = field(default_factory=list)
    """Where each batch goes: its partition, first <= offset < end, and the batch for consumers."""
    data: bytes = b""
    rows: int = 0
    is_stored: bool = False
    """Whether the engine that built it stored it, too. Else it is not sent yet."""
    left_over: list[PendingAppend] = field(default_factory=list)
    set_aside: list[tuple[PendingAppend, BatchRecords | None]] = field(default_factory=list)
    """Batches that are large when decompressed, and what is done of that; later batches of their
    partitions, in order."""

    def answer_all(self) -> None:
        """The block is stored: every append gets its answer."""
        for append, answer in self.answers:
            append.answer(answer)

    def fail_all(self, error: KafkaError) -> None:
        """The block is not stored. Appends that had an error of their own keep it."""
        self.staging.take_back()
        for append, answer in self.answers:
            # The original of a duplicate may be in this same block; then both fail.
            append.answer(answer if isinstance(answer, KafkaError) else error)


def build_block(
    appends: list[PendingAppend], limits: AppendLimits, append_time_ms: int, *, pack: bool
) -> PendingBlock:
    """Check, decompress, number and encode the appends of one block. Runs in a thread.

    `pack`: as a packed block (protocol/packed_blocks.py), for an engine that takes such blocks.

    Decompressed batches may be much larger than what was received: those that do not fit stay
    in `left_over`, for the next block. Those that would take long to decompress are in `set_aside`.
    """
    builder = BlockBuilder(append_time_ms)
    block = PendingBlock(append_time_ms)
    waiting: set[PartitionLog] = set()
    begun_bytes = 0
    for position, append in enumerate(appends):
        if builder.bytes + begun_bytes >= limits.block_max_bytes:
            block.left_over = appends[position:]
            break
        if append.is_answered:
            append.partition.note_refused(append.header)
            continue
        if append.partition in waiting:
            block.set_aside.append((append, None))
            continue
        try:
            answer: Outcome = _add(append, builder, block, limits)
        except _IsLarge as large:
            block.set_aside.append((append, large.begun))
            waiting.add(append.partition)
            begun_bytes += large.begun.size
            continue
        except KafkaError as error:
            # A copy: the tracebacks of the error and its cause hold the batch and its decompressed
            # data, in a cycle that only a full garbage collection finds (measured: 1.3 GB after
            # ten).
            answer = type(error)(*error.args)
        block.answers.append((append, answer))
    block.rows = builder.rows
    if builder.rows:
        block.data = builder.pack() if pack else builder.finish()
    return block


def _add(
    append: PendingAppend, builder: BlockBuilder, block: PendingBlock, limits: AppendLimits
) -> Appended:
    """Put one batch into the block, unless it is a duplicate. Raises `KafkaError`, `_IsLarge`."""
    partition, header, now_ms = append.partition, append.header, block.append_time_ms
    if partition.closed is not None:
        raise partition.closed
    topic, producer_id = partition.topic, header.producer_id
    append_time_ms = now_ms if topic.config.message_timestamp_type == "LogAppendTime" else None
    answered_ms = -1 if append_time_ms is None else append_time_ms
    partition.forget_producers(now_ms - limits.producer_id_expiration_ms)
    entry = partition.producers.get(producer_id)
    if isinstance(append, PendingMarker):
        return _add_marker(append, entry, builder, block)
    if producer_id >= 0:
        if header.transactional or partition.transactions.open:
            _check_transaction(append, entry)
        if entry is None:
            _check_first_batch(partition, header)
        duplicate_of = find_duplicate(entry, header)
        if duplicate_of is not None:
            return Appended(duplicate_of, answered_ms)

    payload = memoryview(append.records)[header.start + BATCH_OVERHEAD : header.end]
    if header.codec:
        payload = memoryview(_decompressed(append, limits))
    base_offset = partition.next_offset
    transaction_start = -1
    if header.transactional:
        open_one = partition.transactions.open.get(producer_id)
        transaction_start = base_offset if open_one is None else open_one.first_offset
    builder.append(
        topic.name,
        topic.topic_id.bytes,
        partition.partition,
        base_offset,
        partition.leader_epoch,
        header,
        payload,
        append_time_ms,
        "compact" in topic.config.cleanup_policy,
        transaction_start,
    )
    data = stamp_batch(append.records, header, base_offset, partition.leader_epoch, append_time_ms)
    block.staging.reserve(partition, header.count)
    if producer_id >= 0:
        block.staging.set_producer(
            partition,
            producer_id,
            entry.after(header, base_offset, now_ms)
            if entry is not None
            else first_entry(header, base_offset, now_ms),
        )
    if header.transactional:
        begun = OpenTransaction(base_offset, header.producer_epoch)
        block.staging.begin_transaction(partition, producer_id, begun)
    block.new_batches.append((partition, base_offset, base_offset + header.count, data))
    return Appended(base_offset, answered_ms)


def _check_transaction(append: PendingAppend, entry: ProducerEntry | None) -> None:
    """Raises `InvalidTxnState` for a batch that is not part of the transaction that is open.

    The coordinator has said that a batch which begins a transaction here may do so
    (broker/api/produce.py). If a marker came meanwhile, that is not true any more.
    """
    partition, header = append.partition, append.header
    is_open = header.producer_id in partition.transactions.open
    if entry is not None and header.producer_epoch < entry.epoch:
        return  # it is told that it is fenced
    if (
        header.transactional
        and not partition.transactions.has_open(header.producer_id, header.producer_epoch)
        and (is_open or not append.is_verified)
    ):
        raise InvalidTxnState(
            f"Producer {header.producer_id} has no transaction that includes {partition}."
        )
    if is_open and not header.transactional:
        raise InvalidTxnState(
            f"Producer {header.producer_id} has an open transaction in {partition}, but the batch"
            " is not part of one."
        )


def _add_marker(
    marker: PendingMarker, entry: ProducerEntry | None, builder: BlockBuilder, block: PendingBlock
) -> Appended:
    """Put a marker into the block, unless it is there already. Raises `KafkaError`."""
    partition, header, now_ms = marker.partition, marker.header, block.append_time_ms
    producer_id, epoch = header.producer_id, header.producer_epoch
    if entry is not None and epoch < entry.epoch:
        raise InvalidProducerEpoch(
            f"A marker of producer {producer_id} has epoch {epoch}. {partition} has seen epoch"
            f" {entry.epoch}."
        )
    if marker.is_abandoned:
        # Its coordinator has asked again and may have gone on: this could end the next transaction.
        raise RequestTimedOut(f"The marker of producer {producer_id} was not written in time.")
    if entry is not None and marker.coordinator_epoch < entry.coordinator_epoch:
        raise TransactionCoordinatorFenced(
            f"A marker of producer {producer_id} has coordinator epoch {marker.coordinator_epoch}."
            f" {partition} has seen epoch {entry.coordinator_epoch}."
        )
    partition.verifying.pop(producer_id, None)  # also if it was written: what it ends is over
    ended = partition.transactions.open.get(producer_id)
    first_offset = None if ended is None else ended.first_offset
    if entry is not None and epoch == entry.epoch:
        # It was written before. A later coordinator writes it again, which fences the one before.
        is_repeated = marker.coordinator_epoch == entry.coordinator_epoch
        if marker.raises_epoch or (first_offset is None and is_repeated):
            return Appended(-1, -1)
    offset = partition.next_offset
    batch = control_batch(
        producer_id,
        epoch,
        commit=marker.commit,
        coordinator_epoch=marker.coordinator_epoch,
        timestamp_ms=now_ms,
    )
    batch_header = parse_headers(batch)[0]
    builder.append(
        partition.topic.name,
        partition.topic_id.bytes,
        partition.partition,
        offset,
        partition.leader_epoch,
        batch_header,
        memoryview(batch)[BATCH_OVERHEAD:],
        None,
        False,
        -1 if first_offset is None else first_offset,
    )
    block.staging.reserve(partition, 1)
    after = (
        ProducerEntry(epoch, (), now_ms)
        if entry is None or entry.epoch != epoch
        else entry._replace(last_append_ms=now_ms)
    )._replace(coordinator_epoch=marker.coordinator_epoch, ended_offset=offset)
    block.staging.set_producer(partition, producer_id, after)
    block.staging.end_transaction(partition, producer_id, offset, commit=marker.commit)
    data = stamp_batch(batch, batch_header, offset, partition.leader_epoch, None)
    block.new_batches.append((partition, offset, offset + 1, data))
    return Appended(offset, -1)


class _IsLarge(Exception):
    """A batch is larger than what a lane decompresses itself."""

    def __init__(self, begun: BatchRecords) -> None:
        super().__init__()
        self.begun = begun


def compressed_records(append: PendingAppend, limits: AppendLimits) -> BatchRecords:
    """To decompress the batch. Raises `KafkaError` if its header alone breaks a limit."""
    return BatchRecords(append.records, append.header, limits.decompressed_max_bytes)


def _decompressed(append: PendingAppend, limits: AppendLimits) -> bytes:
    """Raises `KafkaError`, and `_IsLarge`."""
    found = append.decompressed
    if isinstance(found, KafkaError):
        raise found
    if found is not None:
        return found
    records = compressed_records(append, limits)
    if not records.advance_inline():
        raise _IsLarge(records)
    return records.result()


def _check_first_batch(partition: PartitionLog, header: BatchHeader) -> None:
    """Raises `OutOfOrderSequenceNumber` if an earlier batch was refused and must be sent first."""
    epoch, sequence = partition.refused.get(header.producer_id, (-1, -1))
    if epoch == header.producer_epoch and comes_after(header.base_sequence, sequence):
        raise OutOfOrderSequenceNumber(
            f"Producer {header.producer_id} sent sequence {header.base_sequence}. Sequence "
            f"{sequence} was refused and must be sent first."
        )
    # An earlier leader may have refused batches of this producer. No producer was forgotten here,
    # and this one is not known, so its first batch must come first: a client takes the
    # acknowledgement of a later batch as proof that all before it are stored. In the first epoch
    # there was no earlier leader.
    if (
        header.base_sequence != 0
        and partition.leader_epoch != FIRST_EPOCH
        and not partition.has_forgotten
    ):
        raise OutOfOrderSequenceNumber(
            f"Producer {header.producer_id} begins at sequence {header.base_sequence}, not 0."
        )
    partition.refused.pop(header.producer_id, None)
