"""Idempotent producers of one partition: what they have stored, and which batch may come next.

Values and functions, without IO or clock. Kafka's rules (KIP-98; `ProducerStateManager` in
Kafka's source): the last five batches of a producer are remembered, because a client has at most
five in flight. A remembered batch that is sent again is a duplicate and is answered with its first
offset; a sequence that does not follow the last one is out of order; an epoch below the known one
is fenced.

After a restart the batches are read back (producer_recovery.py: `recovered`). Neighbouring batches
have become one range there, so a batch is a duplicate if it lies inside a range.

Unlike Kafka, a batch is no duplicate of one whose transaction has ended: UNKNOWN_PRODUCER_ID. A
client that ends a transaction waits for its batches or gives them up, and does not send them again.
But some clients go back to the sequences of a batch that they gave up when its broker had gone,
although it may be stored (librdkafka 2.16 when it aborts: `rd_kafka_toppar_purge_queues`). Taken
for a duplicate, the record that is sent with such a sequence would be acknowledged and lost. With
this error a client aborts its transaction and asks for a new epoch.

`find_duplicate` raises INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER and UNKNOWN_PRODUCER_ID
for a producer that the partition knows. broker/log/block.py raises the second for one that it does
not know. If an earlier batch got a retriable error, broker/api/produce.py
answers later batches with the same error (broker/log/refused_batches.py).
"""

from __future__ import annotations

from typing import NamedTuple

from brokerhouse.protocol._batches import BatchHeader
from brokerhouse.protocol.errors import (
    InvalidProducerEpoch,
    OutOfOrderSequenceNumber,
    UnknownProducerId,
)

BATCHES_KEPT = 5
SEQUENCES = 1 << 31


class SequenceRange(NamedTuple):
    """Sequences first..last (wrapping at 2^31) that are stored from `first_offset` on."""

    first: int
    last: int
    first_offset: int

    @property
    def last_offset(self) -> int:
        return self.first_offset + (self.last - self.first) % SEQUENCES

    def offset_of(self, first: int, last: int) -> int | None:
        """The offset of `first` when first..last lies within this range."""
        start = (first - self.first) % SEQUENCES
        length = (self.last - self.first) % SEQUENCES
        if start + (last - first) % SEQUENCES <= length:
            return self.first_offset + start
        return None


def comes_after(sequence: int, other: int) -> bool:
    """Whether a producer sends `sequence` after `other`; half of all sequences are before it."""
    return 0 < (sequence - other) % SEQUENCES < SEQUENCES // 2


def recovered_range(first_offset: int, last_offset: int, last_sequence: int) -> SequenceRange:
    """The range of neighbouring rows; if its sequences wrapped around, the end of it."""
    length = min(last_offset - first_offset, SEQUENCES // 2)
    return SequenceRange((last_sequence - length) % SEQUENCES, last_sequence, last_offset - length)


class ProducerEntry(NamedTuple):
    """What a partition knows about one producer. `last_append_ms` is by the wall clock, for expiry.

    `begins_at` is the sequence that must come first while `ranges` is empty. `coordinator_epoch`:
    the highest of its transaction markers, -1 without one. `ended_offset`: of its last marker.
    """

    epoch: int
    ranges: tuple[SequenceRange, ...]
    last_append_ms: int
    recovered: bool = False
    begins_at: int = 0
    coordinator_epoch: int = -1
    ended_offset: int = -1

    @property
    def next_sequence(self) -> int:
        return (self.ranges[-1].last + 1) % SEQUENCES if self.ranges else self.begins_at

    def after(self, header: BatchHeader, base_offset: int, now_ms: int) -> ProducerEntry:
        """The entry once this batch is stored at `base_offset`."""
        stored = SequenceRange(header.base_sequence, header.last_sequence, base_offset)
        ranges = self.ranges if header.producer_epoch == self.epoch else ()
        return ProducerEntry(
            header.producer_epoch,
            (*ranges[1 - BATCHES_KEPT :], stored),
            now_ms,
            self.recovered,
            coordinator_epoch=self.coordinator_epoch,
            ended_offset=self.ended_offset,
        )


def first_entry(header: BatchHeader, base_offset: int, now_ms: int) -> ProducerEntry:
    """The entry of a producer whose first batch on this partition is stored at `base_offset`."""
    return ProducerEntry(header.producer_epoch, (), now_ms).after(header, base_offset, now_ms)


def refused_first_entry(entry: ProducerEntry) -> ProducerEntry:
    """What remains of a `first_entry` whose batch was not stored after all.

    The client sends that batch again; batches that it sent after it must not come first.
    """
    return ProducerEntry(entry.epoch, (), entry.last_append_ms, begins_at=entry.ranges[0].first)


def find_duplicate(entry: ProducerEntry | None, header: BatchHeader) -> int | None:
    """The first offset of an earlier copy of this batch; None when it is the next one.

    Raises `InvalidProducerEpoch`, `OutOfOrderSequenceNumber` and `UnknownProducerId`.
    """
    if entry is None:
        return None
    if header.producer_epoch < entry.epoch:
        raise InvalidProducerEpoch(
            f"Producer {header.producer_id} uses epoch {header.producer_epoch}. "
            f"The partition has seen epoch {entry.epoch}."
        )
    if header.producer_epoch > entry.epoch:
        if header.base_sequence != 0:
            raise OutOfOrderSequenceNumber(
                f"Producer {header.producer_id} begins epoch {header.producer_epoch} at sequence "
                f"{header.base_sequence}, not 0."
            )
        return None
    if header.base_sequence == entry.next_sequence:
        return None
    if _goes_back_behind_a_marker(entry, header):
        raise UnknownProducerId(
            f"Producer {header.producer_id} sent sequence {header.base_sequence} again, but the "
            f"transaction of that record has ended. The next sequence is {entry.next_sequence}."
        )
    for known in entry.ranges:
        offset = _offset_in(known, header, exact=not entry.recovered)
        if offset is not None:
            return offset
    raise OutOfOrderSequenceNumber(
        f"Producer {header.producer_id} sent sequence {header.base_sequence}. "
        f"The next sequence is {entry.next_sequence}."
    )


def _goes_back_behind_a_marker(entry: ProducerEntry, header: BatchHeader) -> bool:
    if not entry.ranges or entry.ranges[0].first_offset > entry.ended_offset:
        return False
    begun = (known.first for known in entry.ranges if known.first_offset > entry.ended_offset)
    return comes_after(next(begun, entry.next_sequence), header.base_sequence)


def _offset_in(known: SequenceRange, header: BatchHeader, exact: bool) -> int | None:
    if exact:
        same = known.first == header.base_sequence and known.last == header.last_sequence
        return known.first_offset if same else None
    return known.offset_of(header.base_sequence, header.last_sequence)
