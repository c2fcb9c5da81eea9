"""Idempotent producers (KIP-98): Kafka's rules as a table, and against a model that keeps all."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from brokerhouse.broker.log.producers import (
    BATCHES_KEPT,
    ProducerEntry,
    SequenceRange,
    find_duplicate,
    first_entry,
)
from brokerhouse.protocol._batches import BatchHeader
from brokerhouse.protocol.errors import (
    InvalidProducerEpoch,
    KafkaError,
    OutOfOrderSequenceNumber,
    UnknownProducerId,
)
from tests.support.examples import up_to

LAST = 2**31 - 1


def batch(sequence: int, count: int, epoch: int = 0) -> BatchHeader:
    """The header of a batch with these sequences; everything else is nothing special."""
    return BatchHeader(0, 61, 0, -1, 2, 0, 0, count - 1, 0, 0, 7, epoch, sequence, count)


def entry_of(*batches: BatchHeader) -> ProducerEntry:
    """What is known after these batches, stored one after the other from offset 100 on."""
    offset = 100
    entry = first_entry(batches[0], offset, 0)
    for earlier, later in pairwise(batches):
        offset += earlier.count
        entry = entry.after(later, offset, 0)
    return entry


def verdict(entry: ProducerEntry | None, header: BatchHeader) -> int | type[KafkaError] | None:
    """The offset of the earlier copy, None for "store it", or the error."""
    try:
        return find_duplicate(entry, header)
    except KafkaError as error:
        return type(error)


FIVE = entry_of(*(batch(n * 10, 10) for n in range(5)))
SEVEN = entry_of(*(batch(n * 10, 10) for n in range(7)))
WRAPPED = entry_of(batch(LAST - 4, 3), batch(LAST - 1, 4))
SECOND_EPOCH = entry_of(batch(0, 10), batch(10, 10), batch(0, 5, epoch=1))


@pytest.mark.parametrize(
    ("entry", "header", "expected"),
    [
        pytest.param(None, batch(0, 1), None, id="an unknown producer begins at 0"),
        pytest.param(None, batch(77, 1), None, id="an unknown producer begins anywhere (KIP-360)"),
        pytest.param(FIVE, batch(50, 3), None, id="the next batch"),
        pytest.param(FIVE, batch(40, 10), 140, id="the last batch again"),
        pytest.param(FIVE, batch(0, 10), 100, id="the fifth last batch again"),
        pytest.param(SEVEN, batch(20, 10), 120, id="the fifth last of more batches again"),
        pytest.param(
            SEVEN, batch(10, 10), OutOfOrderSequenceNumber, id="the sixth last batch is forgotten"
        ),
        pytest.param(FIVE, batch(51, 1), OutOfOrderSequenceNumber, id="a gap of one"),
        pytest.param(FIVE, batch(49, 1), OutOfOrderSequenceNumber, id="a part of the last batch"),
        pytest.param(FIVE, batch(40, 11), OutOfOrderSequenceNumber, id="more than the last batch"),
        pytest.param(FIVE, batch(30, 20), OutOfOrderSequenceNumber, id="two batches as one"),
        pytest.param(FIVE, batch(0, 1), OutOfOrderSequenceNumber, id="from the beginning"),
        pytest.param(WRAPPED, batch(2, 1), None, id="the next batch after the wrap"),
        pytest.param(WRAPPED, batch(LAST - 1, 4), 103, id="the batch that wraps again"),
        pytest.param(WRAPPED, batch(LAST - 4, 3), 100, id="the one before the wrap again"),
        pytest.param(WRAPPED, batch(3, 1), OutOfOrderSequenceNumber, id="a gap after the wrap"),
        pytest.param(
            entry_of(batch(LAST, 1)), batch(0, 1), None, id="0 follows the largest sequence"
        ),
        pytest.param(FIVE, batch(0, 1, epoch=1), None, id="a new epoch begins at 0"),
        pytest.param(
            FIVE, batch(50, 1, epoch=1), OutOfOrderSequenceNumber, id="a new epoch elsewhere"
        ),
        pytest.param(SECOND_EPOCH, batch(5, 1, epoch=1), None, id="the new epoch goes on"),
        pytest.param(SECOND_EPOCH, batch(0, 5, epoch=1), 120, id="a retry in the new epoch"),
        pytest.param(
            SECOND_EPOCH,
            batch(0, 10, epoch=1),
            OutOfOrderSequenceNumber,
            id="sequences of the old epoch are no duplicates in the new one",
        ),
        pytest.param(SECOND_EPOCH, batch(20, 1), InvalidProducerEpoch, id="the old epoch goes on"),
        pytest.param(SECOND_EPOCH, batch(10, 10), InvalidProducerEpoch, id="an old epoch's retry"),
    ],
)
def test_a_batch_is_new_a_duplicate_or_refused(
    entry: ProducerEntry | None, header: BatchHeader, expected: int | type[KafkaError] | None
) -> None:
    assert verdict(entry, header) == expected


ENDED = entry_of(batch(0, 10), batch(10, 10))._replace(ended_offset=120)
BEGUN = ENDED.after(batch(20, 10), 121, 0).after(batch(30, 10), 131, 0)
ALL_BEGUN = FIVE._replace(ended_offset=99)


@pytest.mark.parametrize("recovered", [False, True])
@pytest.mark.parametrize(
    ("entry", "header", "expected"),
    [
        pytest.param(ENDED, batch(20, 1), None, id="the next transaction goes on"),
        pytest.param(ENDED, batch(10, 10), UnknownProducerId, id="the last batch again"),
        pytest.param(ENDED, batch(10, 11), UnknownProducerId, id="more than the last batch"),
        pytest.param(ENDED, batch(19, 1), UnknownProducerId, id="the last sequence again"),
        pytest.param(ENDED, batch(21, 1), OutOfOrderSequenceNumber, id="a gap"),
        pytest.param(ENDED, batch(10, 10, epoch=1), OutOfOrderSequenceNumber, id="another epoch"),
        pytest.param(ENDED, batch(0, 10, epoch=1), None, id="another epoch begins"),
        pytest.param(BEGUN, batch(40, 1), None, id="the transaction goes on"),
        pytest.param(BEGUN, batch(20, 10), 121, id="its first batch again"),
        pytest.param(BEGUN, batch(30, 10), 131, id="its last batch again"),
        pytest.param(BEGUN, batch(10, 10), UnknownProducerId, id="one before its first again"),
        pytest.param(BEGUN, batch(25, 10), OutOfOrderSequenceNumber, id="parts of its batches"),
        pytest.param(ALL_BEGUN, batch(0, 10), 100, id="the fifth last of one transaction again"),
    ],
)
def test_a_batch_of_an_ended_transaction_is_not_taken_for_a_duplicate(
    entry: ProducerEntry, header: BatchHeader, expected: object, recovered: bool
) -> None:
    assert verdict(entry._replace(recovered=recovered), header) == expected


RECOVERED = ProducerEntry(
    0, (SequenceRange(LAST - 9, 9, 100), SequenceRange(10, 29, 200)), 0, recovered=True
)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        pytest.param(batch(30, 5), None, id="the next batch"),
        pytest.param(batch(10, 20), 200, id="a whole range"),
        pytest.param(batch(15, 3), 205, id="a batch within a range"),
        pytest.param(batch(LAST - 1, 4), 108, id="a batch that wraps within a range"),
        pytest.param(batch(0, 10), 110, id="the end of a range that wraps"),
        pytest.param(batch(5, 10), OutOfOrderSequenceNumber, id="a batch across two ranges"),
        pytest.param(batch(25, 6), OutOfOrderSequenceNumber, id="a batch that is half new"),
        pytest.param(batch(LAST - 10, 2), OutOfOrderSequenceNumber, id="one that is half older"),
        pytest.param(batch(31, 1), OutOfOrderSequenceNumber, id="a gap"),
        pytest.param(batch(0, 1, epoch=1), None, id="a new epoch"),
    ],
)
def test_after_a_restart_a_batch_within_a_stored_range_is_a_duplicate(
    header: BatchHeader, expected: int | type[KafkaError] | None
) -> None:
    assert verdict(RECOVERED, header) == expected


def test_a_refusal_names_producer_and_sequences() -> None:
    with pytest.raises(
        OutOfOrderSequenceNumber, match=r"Producer 7 sent sequence 60\. The next sequence is 50"
    ):
        find_duplicate(FIVE, batch(60, 1))
    with pytest.raises(
        InvalidProducerEpoch, match=r"uses epoch 0\. The partition has seen epoch 1"
    ):
        find_duplicate(SECOND_EPOCH, batch(60, 1))


def test_no_more_than_five_batches_are_remembered() -> None:
    assert len(SEVEN.ranges) == BATCHES_KEPT == 5


@dataclass
class Model:
    """All batches of one producer that were ever stored, with their offsets."""

    stored: list[tuple[BatchHeader, int]] = field(default_factory=list)


class Producers(RuleBasedStateMachine):
    """Producers that send, retry, restart with a new epoch, or send nonsense, in any order.

    The log is written as the lane writes it; the model keeps everything and knows what each batch
    must become.
    """

    entries: dict[int, ProducerEntry]

    @initialize(start=st.sampled_from([0, 5, LAST - 20]))
    def begin(self, start: int) -> None:
        self.start = start
        self.entries = {}
        self.models = [Model() for _ in range(3)]
        self.log: list[tuple[int, int, int]] = []  # (producer, epoch, sequence) by offset

    def send(self, producer: int, header: BatchHeader) -> int | type[KafkaError] | None:
        """As the lane does."""
        entry = self.entries.get(producer)
        found = verdict(entry, header)
        if found is None:
            offset = len(self.log)
            self.entries[producer] = (
                first_entry(header, offset, 0) if entry is None else entry.after(header, offset, 0)
            )
            self.log += [
                (producer, header.producer_epoch, (header.base_sequence + n) % 2**31)
                for n in range(header.count)
            ]
            self.models[producer].stored.append((header, offset))
        return found

    def next_of(self, producer: int, count: int) -> BatchHeader:
        if not self.models[producer].stored:
            return batch(self.start, count)
        last, _ = self.models[producer].stored[-1]
        return batch((last.base_sequence + last.count) % 2**31, count, last.producer_epoch)

    @rule(producer=st.integers(0, 2), count=st.integers(1, 9))
    def the_next_batch_is_stored(self, producer: int, count: int) -> None:
        assert self.send(producer, self.next_of(producer, count)) is None

    @rule(producer=st.integers(0, 2), back=st.integers(1, 5))
    def a_retry_of_one_of_the_last_five_is_answered_with_its_offset(
        self, producer: int, back: int
    ) -> None:
        stored = self.models[producer].stored
        if len(stored) >= back:
            header, offset = stored[-back]
            if header.producer_epoch == stored[-1][0].producer_epoch:
                assert self.send(producer, header) == offset

    @rule(producer=st.integers(0, 2), back=st.integers(6, 12))
    def an_older_retry_is_never_stored_again(self, producer: int, back: int) -> None:
        stored = self.models[producer].stored
        if len(stored) >= back:
            header, offset = stored[-back]
            expected = {offset, OutOfOrderSequenceNumber, InvalidProducerEpoch}
            assert self.send(producer, header) in expected

    @rule(producer=st.integers(0, 2), skip=st.integers(1, 2**30), count=st.integers(1, 9))
    def a_gap_is_refused(self, producer: int, skip: int, count: int) -> None:
        if self.models[producer].stored:
            header = self.next_of(producer, count)
            later = batch((header.base_sequence + skip) % 2**31, count, header.producer_epoch)
            assert self.send(producer, later) is OutOfOrderSequenceNumber

    @rule(producer=st.integers(0, 2), count=st.integers(1, 9))
    def a_new_epoch_begins_at_0_and_fences_the_old(self, producer: int, count: int) -> None:
        stored = self.models[producer].stored
        if stored:
            old = self.next_of(producer, count)
            assert self.send(producer, batch(0, count, old.producer_epoch + 1)) is None
            assert self.send(producer, old) is InvalidProducerEpoch

    @precondition(lambda self: self.log)
    @rule()
    def the_broker_restarts_and_reads_its_rows(self) -> None:
        self.entries = {
            producer: entry
            for producer in range(3)
            if (entry := recovered(self.log, producer)) is not None
        }

    @invariant()
    def the_log_holds_every_sequence_once_and_in_order(self) -> None:
        following: dict[tuple[int, int], int] = {}
        for producer, epoch, sequence in self.log:
            begin = 0 if epoch else self.start
            assert sequence == following.get((producer, epoch), begin)
            following[producer, epoch] = (sequence + 1) % 2**31


def recovered(log: list[tuple[int, int, int]], producer: int) -> ProducerEntry | None:
    """What the rows tell: runs of neighbouring offsets whose sequences follow each other."""
    epochs = [epoch for who, epoch, _ in log if who == producer]
    if not epochs:
        return None
    runs: list[SequenceRange] = []
    before = -2
    for offset, (who, epoch, sequence) in enumerate(log):
        if (who, epoch) == (producer, epochs[-1]):
            if before == offset - 1:
                runs[-1] = SequenceRange(runs[-1].first, sequence, runs[-1].first_offset)
            else:
                runs.append(SequenceRange(sequence, sequence, offset))
            before = offset
    return ProducerEntry(epochs[-1], tuple(runs[-BATCHES_KEPT:]), 0, recovered=True)


TestProducers = Producers.TestCase
TestProducers.settings = settings(max_examples=up_to(60), stateful_step_count=40)
