"""Idempotent producers: producer ids, sequence numbers, epochs, retries."""

from __future__ import annotations

import pytest
from kafka.protocol.producer import InitProducerIdRequest

from brokerhouse.protocol import errors
from tests.support import messages
from tests.support.broker_process import BrokerProcess
from tests.support.messages import Target
from tests.support.one_partition import PRODUCE, listed, produced
from tests.support.record_batches import Record, batch_of
from tests.support.wire import Wire

pytestmark = pytest.mark.one_broker("asks one connection for every partition and group")


class Producer:
    """An idempotent producer that can be told to misbehave."""

    def __init__(self, wire: Wire, target: Target) -> None:
        self.wire = wire
        self.target = target
        answer = wire.ask(InitProducerIdRequest(transactional_id=None, producer_id=-1), 4)
        self.producer_id = answer.producer_id

    def batch(self, sequence: int, count: int = 2, epoch: int = 0) -> bytes:
        records = [Record(value=b"%d" % (sequence + number)) for number in range(count)]
        return batch_of(
            *records,
            producer_id=self.producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        ).data

    def send(self, sequence: int, count: int = 2, epoch: int = 0) -> tuple[int, int]:
        """(error, base offset)."""
        answer = produced(self.wire, self.target, self.batch(sequence, count, epoch))
        return answer.error_code, answer.base_offset


@pytest.fixture
def producer(wire: Wire, target: Target) -> Producer:
    return Producer(wire, target)


GAP = (errors.OutOfOrderSequenceNumber.code, -1)
FENCED = (errors.InvalidProducerEpoch.code, -1)


class TestIdempotence:
    def test_each_producer_id_is_given_once(self, wire: Wire) -> None:
        request = InitProducerIdRequest(transactional_id=None, producer_id=-1, producer_epoch=-1)
        ids = [wire.ask(request, 4).producer_id for _ in range(50)]
        assert len(set(ids)) == 50

    def test_a_repeated_batch_is_answered_with_its_first_offset(self, producer: Producer) -> None:
        assert [producer.send(sequence) for sequence in (0, 2, 4)] == [(0, 0), (0, 2), (0, 4)]
        assert [producer.send(sequence) for sequence in (4, 0, 2)] == [(0, 4), (0, 0), (0, 2)]
        assert producer.send(6) == (0, 6)

    def test_the_last_five_batches_can_be_repeated(self, producer: Producer) -> None:
        for sequence in range(0, 14, 2):
            assert producer.send(sequence) == (0, sequence)
        for sequence in range(4, 14, 2):
            assert producer.send(sequence) == (0, sequence)
        assert producer.send(2) == GAP

    def test_a_sequence_that_does_not_follow_is_refused(self, producer: Producer) -> None:
        assert producer.send(0) == (0, 0)
        for sequence in (1, 3, 4, 2**31 - 1):
            assert producer.send(sequence) == GAP
        assert producer.send(0, count=1) == GAP, "a part of a batch is another batch"
        assert producer.send(2) == (0, 2)

    def test_a_newer_epoch_begins_at_0_and_fences_the_older(self, producer: Producer) -> None:
        assert producer.send(0) == (0, 0)
        assert producer.send(2, epoch=1) == GAP
        assert producer.send(0, epoch=1) == (0, 2)
        assert producer.send(2, epoch=0) == FENCED
        assert producer.send(0, epoch=0) == FENCED
        assert producer.send(2, epoch=1) == (0, 4)

    def test_sequences_wrap_after_the_largest_int32(self, producer: Producer) -> None:
        last = 2**31 - 1
        assert producer.send(last - 1) == (0, 0)
        assert producer.send(0) == (0, 2)
        assert producer.send(2, count=5) == (0, 4)
        assert producer.send(last - 1) == (0, 0)

    def test_sequences_wrap_within_a_batch(self, producer: Producer) -> None:
        assert producer.send(2**31 - 2, count=4) == (0, 0)
        assert producer.send(2**31 - 2, count=4) == (0, 0)
        assert producer.send(2) == (0, 4)

    def test_sequences_of_two_producers_are_independent(self, wire: Wire, target: Target) -> None:
        one, other = Producer(wire, target), Producer(wire, target)
        assert [one.send(0), other.send(0), one.send(2), other.send(2)] == [
            (0, 0),
            (0, 2),
            (0, 4),
            (0, 6),
        ]

    def test_five_batches_in_flight_can_be_sent_twice(self, producer: Producer) -> None:
        """As a client does that lost its connection and does not know what has arrived."""
        wire, version = producer.wire, PRODUCE
        requests = [
            messages.produce(producer.target, producer.batch(sequence))
            for sequence in (0, 2, 4, 6, 8, 0, 2, 4, 6, 8)
        ]
        ids = [wire.send_request(request, version) for request in requests]
        found = [
            wire.receive_response(request, version, correlation_id)
            .responses[0]
            .partition_responses[0]
            for request, correlation_id in zip(requests, ids, strict=True)
        ]
        assert [item.error_code for item in found] == [0] * 10
        assert [item.base_offset for item in found] == [0, 2, 4, 6, 8] * 2
        assert listed(wire, producer.target, -1) == (0, -1, 10)

    def test_batches_in_flight_after_a_gap_are_refused(self, producer: Producer) -> None:
        wire = producer.wire
        requests = [
            messages.produce(producer.target, producer.batch(sequence)) for sequence in (0, 4, 6, 2)
        ]
        ids = [wire.send_request(request, PRODUCE) for request in requests]
        codes = [
            wire.receive_response(request, PRODUCE, correlation_id)
            .responses[0]
            .partition_responses[0]
            .error_code
            for request, correlation_id in zip(requests, ids, strict=True)
        ]
        assert codes == [0, GAP[0], GAP[0], 0]

    def test_sequences_and_epochs_of_producers_survive_a_kill(
        self, restartable: BrokerProcess, topic: str
    ) -> None:
        broker = restartable
        with Wire(broker) as wire:
            target = messages.create_topic(wire, topic)
            producer, wrapped = Producer(wire, target), Producer(wire, target)
            for sequence in (0, 2, 4):
                producer.send(sequence)
            assert producer.send(0, epoch=3) == (0, 6)
            assert producer.send(2, epoch=3) == (0, 8)
            assert wrapped.send(2**31 - 2, count=4) == (0, 10)
        broker.kill()
        broker.start()
        with Wire(broker) as wire:
            producer.wire = wrapped.wire = wire
            assert producer.send(2, epoch=3) == (0, 8)
            assert producer.send(0, epoch=3) == (0, 6)
            assert producer.send(6, epoch=3) == GAP
            assert producer.send(6, epoch=0) == FENCED
            assert producer.send(4, epoch=3) == (0, 14)
            assert wrapped.send(2**31 - 2, count=4) == (0, 10)
            assert wrapped.send(3) == GAP
            assert wrapped.send(2) == (0, 16)
            fresh = Producer(wire, target)
            assert fresh.producer_id not in (producer.producer_id, wrapped.producer_id)
            assert fresh.send(0) == (0, 18)
