"""Transactions byte by byte: what a client of version 2 sends that does not wait for anything."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from kafka.protocol.admin import DescribeProducersRequest, ListTransactionsRequest
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.producer import AddPartitionsToTxnRequest

from brokerhouse.coordinator.transaction_states import Producer
from brokerhouse.protocol import errors
from tests.support import messages
from tests.support.broker_process import BrokerProcess
from tests.support.messages import Target
from tests.support.record_batches import Record, batch_of
from tests.support.waiting import until
from tests.support.wire import Wire

pytestmark = pytest.mark.one_broker("one connection asks the leader and the coordinator")

TRANSACTIONAL = 0x10
NEWEST, BY_NAME = 5, 12
WAITS_S = 0.9
"""A request waits 1 s for the end of the transaction before, then it says to ask again."""


class Client:
    """A transactional id on a connection. `version` is that of the flow: 1 or 2."""

    def __init__(self, wire: Wire, transactional_id: str, version: int = 2) -> None:
        self._wire = wire
        self._id = transactional_id
        self._version = version
        self.sequence = 0
        self.producer = self.initialised()

    def on(self, wire: Wire) -> Client:
        """The same instance, on another connection."""
        self._wire = wire
        return self

    def _ask(self, request: ApiMessage, version: int, code_of: Callable[[Any], int]) -> Any:
        """The answer; while the transaction before has not ended, it asks again, as clients do."""
        answers: list[Any] = []

        def is_answered() -> bool:
            began = time.monotonic()
            answers.append(self._wire.ask(request, version))
            if code_of(answers[-1]) != errors.ConcurrentTransactions.code:
                return True
            assert time.monotonic() - began > WAITS_S, "the broker waits for that end"
            return False

        until(is_answered, "the transaction before has ended")
        return answers[-1]

    def initialised(self) -> Producer:
        answer = self._ask(messages.init_producer(self._id), NEWEST, error_code)
        assert answer.error_code == 0
        return Producer(answer.producer_id, answer.producer_epoch)

    def produce(self, target: Target, *, count: int = 1, transactional: bool = True) -> int:
        """The error code; `sequence` goes on if there is none."""
        batch = batch_of(
            *(Record(value=b"v") for _ in range(count)),
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
            base_sequence=self.sequence,
            attributes=TRANSACTIONAL if transactional else 0,
        )
        request = messages.produce(target, batch.data)
        request.transactional_id = self._id

        def code_of(answer: Any) -> int:
            return int(answer.responses[0].partition_responses[0].error_code)

        version = BY_NAME if self._version == 2 else BY_NAME - 1
        code = code_of(self._ask(request, version, code_of))
        if not code:
            self.sequence += count
        return code

    def add(self, target: Target) -> int:
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self.producer.producer_id,
            v3_and_below_producer_epoch=self.producer.epoch,
            v3_and_below_topics=[topic(name=target.name, partitions=[0])],
        )

        def code_of(answer: Any) -> int:
            results = answer.results_by_topic_v3_and_below[0].results_by_partition
            return int(results[0].partition_error_code)

        return code_of(self._ask(request, 3, code_of))

    def end(self, *, commit: bool = True) -> int:
        request = messages.end_transaction(self._id, *self.producer, commit=commit)
        version = NEWEST if self._version == 2 else NEWEST - 1
        answer = self._ask(request, version, error_code)
        if not answer.error_code and self._version == 2:
            self.producer = Producer(answer.producer_id, answer.producer_epoch)
            self.sequence = 0
        return int(answer.error_code)


def error_code(answer: Any) -> int:
    return int(answer.error_code)


def committed(broker: BrokerProcess, target: Target) -> int:
    rows = broker.sql(
        "SELECT count() AS n FROM messages_committed WHERE topic = {topic:String}",
        {"topic": target.name},
    )
    return int(rows[0]["n"])


@pytest.mark.parametrize("version", [1, 2])
def test_transactions_follow_each_other_at_once(wire: Wire, target: Target, version: int) -> None:
    client = Client(wire, f"{target.name} {version}", version)
    for _ in range(100):
        if version == 1:
            assert client.add(target) == 0
        assert client.produce(target) == 0
        assert client.end() == 0


@pytest.mark.parametrize("asked", [-3, messages.TIME_MS], ids=["largest timestamp", "timestamp"])
def test_offsets_of_an_open_transaction_are_not_listed_for_read_committed(
    wire: Wire, target: Target, asked: int
) -> None:
    client = Client(wire, f"{target.name} {asked}")
    assert client.produce(target) == 0
    request = messages.list_offsets(target, asked)
    for isolation_level, offset, epoch in ((0, 0, 0), (1, -1, -1)):
        request.isolation_level = isolation_level
        (found,) = wire.ask(request, 11).topics[0].partitions
        assert (found.error_code, found.offset, found.leader_epoch) == (0, offset, epoch)
    assert client.end() == 0


def test_a_batch_without_add_partitions_is_refused_in_the_older_flow(
    wire: Wire, target: Target
) -> None:
    client = Client(wire, target.name, 1)
    assert client.produce(target) == errors.InvalidTxnState.code
    assert client.add(target) == 0
    assert client.produce(target) == 0
    assert client.produce(target, transactional=False) == errors.InvalidTxnState.code
    assert client.end(commit=False) == 0


def test_a_batch_after_the_end_of_its_transaction_is_refused(
    broker: BrokerProcess, wire: Wire, target: Target
) -> None:
    client = Client(wire, target.name)
    before = client.producer
    assert client.produce(target) == 0
    assert client.end() == 0
    until(lambda: committed(broker, target) == 1)  # until then it would be part of it
    after, client.producer, client.sequence = client.producer, before, 1
    assert client.produce(target) == errors.InvalidProducerEpoch.code
    assert client.end() == 0, "it is told again what it was told"
    assert client.producer == after
    client.producer = before
    assert client.end(commit=False) == errors.InvalidTxnState.code
    assert committed(broker, target) == 1


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_sequence_of_an_ended_transaction_is_not_taken_for_a_duplicate(
    restartable: BrokerProcess, topic: str, is_killed: bool
) -> None:
    """librdkafka sends another record with the sequence of one that it gave up when it aborted.

    A success would lose that record, and it would tear its transaction.
    """
    broker = restartable
    with Wire(broker) as wire:
        target = messages.create_topic(wire, topic)
        client = Client(wire, topic, 1)
        assert client.add(target) == 0
        assert client.produce(target) == 0
        assert client.end(commit=False) == 0
    if is_killed:
        broker.kill()
        broker.start()
    with Wire(broker) as wire:
        client.on(wire)
        client.sequence = 0
        assert client.add(target) == 0
        assert client.produce(target) == errors.UnknownProducerId.code
        client.sequence = 1
        assert client.produce(target) == 0
        client.sequence = 1
        assert client.produce(target) == 0, "of the same transaction it is a duplicate"
        assert client.end() == 0
    assert committed(broker, target) == 1


def test_a_fenced_producer_can_neither_produce_nor_commit(
    broker: BrokerProcess, wire: Wire, target: Target
) -> None:
    zombie = Client(wire, target.name)
    assert zombie.produce(target) == 0
    successor = Client(wire, target.name)
    assert zombie.produce(target) == errors.InvalidProducerEpoch.code
    assert zombie.end() == errors.ProducerFenced.code
    assert successor.produce(target) == 0
    assert successor.end() == 0
    assert committed(broker, target) == 1


def test_transaction_timeouts_beyond_the_limit_are_refused(wire: Wire) -> None:
    for timeout_ms in (0, -1, 900_001):
        request = messages.init_producer("id", timeout_ms)
        assert wire.ask(request, NEWEST).error_code == errors.InvalidTransactionTimeout.code


def test_transactions_are_listed_by_a_pattern_of_the_whole_id(wire: Wire, target: Target) -> None:
    for number in range(3):
        Client(wire, f"{target.name}-{number}")

    def listed(pattern: str) -> list[str]:
        request = ListTransactionsRequest(
            state_filters=[],
            producer_id_filters=[],
            duration_filter=-1,
            transactional_id_pattern=pattern,
        )
        answer = wire.ask(request, 2)
        assert answer.error_code in (0, errors.InvalidRegularExpression.code)
        if answer.error_code:
            return [errors.InvalidRegularExpression.__name__]
        return sorted(one.transactional_id for one in answer.transaction_states)

    assert listed(f"{target.name}-[12]") == [f"{target.name}-1", f"{target.name}-2"]
    assert listed(f"{target.name}-0|{target.name}-2") == [f"{target.name}-0", f"{target.name}-2"]
    assert listed(target.name) == [], "only a part of the ids"
    assert set(listed("")) >= {f"{target.name}-{number}" for number in range(3)}
    for wrong in ("(", "a)|(b", "[", "*"):
        assert listed(wrong) == [errors.InvalidRegularExpression.__name__], wrong
    assert listed("(a|a)*" * 50 + "b") == [], "Python would compute for ever"


def test_records_of_an_open_transaction_may_be_deleted(
    restartable: BrokerProcess, topic: str
) -> None:
    """Some of its records, or all; before and after a kill."""
    broker = restartable
    clients: dict[tuple[int, bool], tuple[Client, Target]] = {}
    with Wire(broker) as wire:
        for up_to, commit in itertools.product((2, 4), (True, False)):
            target = messages.create_topic(wire, f"{topic}-{up_to}-{commit}")
            client = Client(wire, target.name)
            assert client.produce(target, count=4) == 0
            deleted = wire.ask(messages.delete_records(target, up_to), 2).topics[0].partitions[0]
            assert (deleted.error_code, deleted.low_watermark) == (0, up_to)
            assert stable_offset(wire, target, up_to) == up_to, "nothing of it is stable"
            assert committed(broker, target) == 0
            assert client.produce(target) == 0
            clients[up_to, commit] = client, target
    broker.kill()
    broker.start()
    for (up_to, commit), (client, target) in clients.items():
        with Wire(broker) as wire:
            end_with_records_deleted(broker, client.on(wire), target, up_to, commit=commit)


def end_with_records_deleted(
    broker: BrokerProcess, client: Client, target: Target, up_to: int, *, commit: bool
) -> None:
    """Ends a transaction of five records, of which those below `up_to` are deleted."""
    with Wire(broker) as wire:
        assert stable_offset(wire, target, up_to) == up_to
        assert client.produce(target) == 0
        assert client.end(commit=commit) == 0
        until(lambda: stable_offset(wire, target, up_to) == 7, "the marker is written")
    rows = "SELECT offset FROM messages_committed WHERE topic = {topic:String} AND offset >= 4"
    shown = [row["offset"] for row in broker.sql(rows, {"topic": target.name})]
    assert shown == ([4, 5] if commit else [])


def stable_offset(wire: Wire, target: Target, offset: int) -> int:
    answer = wire.ask(messages.fetch(target, offset, isolation_level=1), 12)
    (partition,) = answer.responses[0].partitions
    assert partition.error_code == 0
    return int(partition.last_stable_offset)


def test_a_producer_with_an_open_transaction_is_described_as_before_a_kill(
    restartable: BrokerProcess, topic: str
) -> None:
    """Whoever aborts what hangs has to know the epoch of its coordinator."""
    broker = restartable
    asked = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[0])

    def described() -> tuple[int, ...]:
        with Wire(broker) as wire:
            answer = wire.ask(DescribeProducersRequest(topics=[asked]), 0)
        (partition,) = answer.topics[0].partitions
        assert partition.error_code == 0
        (state,) = partition.active_producers
        return (
            state.producer_epoch,
            state.last_sequence,
            state.coordinator_epoch,
            state.current_txn_start_offset,
        )

    with Wire(broker) as wire:
        target = messages.create_topic(wire, topic)
        client = Client(wire, topic)
        assert client.produce(target) == 0
        assert client.end() == 0
        assert client.produce(target, count=3) == 0
    before = described()
    assert before == (client.producer.epoch, 2, 0, 2)
    broker.kill()
    broker.start()
    assert described() == before


@pytest.mark.test_all
def test_a_thousand_producers_have_transactions_at_once(broker: BrokerProcess, topic: str) -> None:
    count, rounds = 1000, 3
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(broker)) for _ in range(count)]
        target = messages.create_topic(wires[0], topic, 10)
        begun = all_ask(wires, [messages.init_producer(f"{topic}-{n}") for n in range(count)], 5)
        producers = [Producer(one.producer_id, one.producer_epoch) for one in begun]
        for _ in range(rounds):
            produces = []
            for number, (producer_id, epoch) in enumerate(producers):
                batch = batch_of(
                    Record(value=b"v"),
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    base_sequence=0,
                    attributes=TRANSACTIONAL,
                )
                produce = messages.produce(target, batch.data, partition=number % 10)
                produce.transactional_id = f"{topic}-{number}"
                produces.append(produce)
            all_ask(wires, produces, BY_NAME)
            ends = [
                messages.end_transaction(f"{topic}-{number}", *producer, commit=number % 10 != 0)
                for number, producer in enumerate(producers)
            ]
            ended = all_ask(wires, ends, NEWEST)
            producers = [Producer(one.producer_id, one.producer_epoch) for one in ended]
    until(
        lambda: committed(broker, target) == rounds * count * 9 // 10,
        "nine of ten transactions are committed",
    )


def all_ask(wires: Sequence[Wire], requests: Sequence[ApiMessage], version: int) -> list[Any]:
    """All requests at once, each on its connection, until each has worked."""
    answers: dict[int, Any] = {}
    left = list(range(len(wires)))
    while left:
        sent = [(n, wires[n].send_request(requests[n], version)) for n in left]
        found = [
            (n, wires[n].receive_response(requests[n], version, sent_as)) for n, sent_as in sent
        ]
        answers.update(found)
        codes = {
            n: one.responses[0].partition_responses[0].error_code
            if hasattr(one, "responses")
            else one.error_code
            for n, one in found
        }
        assert set(codes.values()) <= {0, errors.ConcurrentTransactions.code}
        left = [n for n, code in codes.items() if code]
    return [answers[n] for n in range(len(wires))]


def test_transactional_and_other_records_share_the_parts_of_the_table(
    broker: BrokerProcess, topic: str
) -> None:
    """A part for each change between the two would hold up everything that reads the table."""

    def inserted() -> int:
        """How many blocks the table has taken."""
        (row,) = broker.sql(
            "SELECT sum(last) AS n FROM (SELECT max(max_block_number) AS last FROM system.parts"
            " WHERE database = currentDatabase() AND table = 'messages' GROUP BY partition)"
        )
        return int(row["n"])

    before = inserted()
    with Wire(broker) as wire:
        target = messages.create_topic(wire, topic)
        client = Client(wire, topic)
        for _ in range(100):
            assert client.produce(target) == 0
            batch = batch_of(Record(value=b"of no transaction"))
            wire.ask(messages.produce(target, batch.data), BY_NAME)
        assert client.end() == 0
    assert committed(broker, target) == 200
    assert inserted() - before < 50
