"""Transactions with real clients: Java in version 2 (KIP-890), the others in the older flow."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import confluent_kafka
import pytest
from confluent_kafka.cimpl import TopicPartition

from brokerhouse.protocol import errors
from tests.support import messages
from tests.support.broker_process import BrokerProcess
from tests.support.helper_process import HelperProcess
from tests.support.member import Member
from tests.support.messages import Target
from tests.support.pairwise import also_in_test_all
from tests.support.transactional import (
    AiokafkaProducer,
    ConfluentProducer,
    HelpedProducer,
    KafkaPythonProducer,
    TransactionalProducer,
)
from tests.support.waiting import LIMIT_S, until
from tests.support.wire import Wire

CLIENTS = ("java", "confluent-kafka", "aiokafka", "kafka-python", "kafkajs")
BY_NAME = 9
"""The newest version of OffsetCommit that names topics."""
FENCED = r"(?i)fenced|newer|epoch|InvalidTxnState|abortable"
"""What clients say of a producer whose transaction was taken away."""
Opened = Callable[..., TransactionalProducer]


@pytest.fixture
def opened(java: HelperProcess, node: HelperProcess) -> Iterator[Opened]:
    """`opened(name, address, transactional_id)`: a producer of the client with this name."""
    with ExitStack() as closed:

        def open_one(
            name: str, address: str, transactional_id: str, **options: int
        ) -> TransactionalProducer:
            made: TransactionalProducer
            if name in ("java", "kafkajs"):
                helper = java if name == "java" else node
                made = HelpedProducer(helper, address, transactional_id, **options)
            else:
                makers: dict[str, Opened] = {
                    "confluent-kafka": ConfluentProducer,
                    "aiokafka": AiokafkaProducer,
                    "kafka-python": KafkaPythonProducer,
                }
                made = makers[name](address, transactional_id, **options)
            closed.callback(_closed, made)
            return made

        yield open_one


def _closed(producer: TransactionalProducer) -> None:
    try:
        producer.close()
    except Exception as error:  # a fenced producer may say so again
        print(f"closing: {error!r}")


@pytest.fixture
def events(broker: BrokerProcess) -> str:
    name = f"events-{uuid4()}"
    with_partitions(broker, name, 2)
    return name


def with_partitions(broker: BrokerProcess, name: str, partitions: int) -> None:
    with Wire(broker) as wire:
        messages.create_topic(wire, name, partitions)


def read(broker: BrokerProcess, topic: str, isolation: str, partition: int = 0) -> list[str]:
    """Every value that a consumer gets up to the end that it sees."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.kafka,
            "group.id": "readers",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,  # the broker waits so long before it tells the end
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    values: list[str] = []
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        while True:
            message = consumer.poll(LIMIT_S)
            assert message is not None, f"no end after {values}"
            error = message.error()
            if error is not None:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                return values
            value = message.value()
            assert value is not None
            values.append(value.decode())
    finally:
        consumer.close()


def await_committed(
    broker: BrokerProcess, topic: str, values: list[str], partition: int = 0
) -> None:
    """EndTxn is answered before the markers are written."""
    until(lambda: read(broker, topic, "read_committed", partition) == values)


def in_sql(broker: BrokerProcess, topic: str, view: str = "messages_committed") -> list[str]:
    rows = broker.sql(
        f"SELECT partition, offset, value FROM {view} WHERE topic = {{topic:String}}"
        " AND NOT control",
        {"topic": topic},
    )
    # A cluster answers with the rows of one shard after the other.
    in_order = sorted(rows, key=lambda row: (int(row["partition"]), int(row["offset"])))
    return [str(row["value"]) for row in in_order]


def committed_offset(broker: BrokerProcess, group: str, topic: str) -> int:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.kafka, "group.id": group, "log_level": 0}
    )
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], LIMIT_S)
        return int(found.offset)
    finally:
        consumer.close()


@pytest.mark.parametrize("name", CLIENTS)
def test_committed_records_are_read_and_aborted_ones_are_not(
    broker: BrokerProcess, opened: Opened, events: str, name: str
) -> None:
    producer = opened(name, broker.kafka, f"id-{uuid4()}")
    expected = []
    for number in range(6):
        producer.begin()
        for partition in (0, 1):
            producer.send(events, f"{number} {partition}", partition)
        producer.flush()
        if number % 3 == 1:
            producer.abort()
        else:
            producer.commit()
            expected.append(number)
    for partition in (0, 1):
        await_committed(broker, events, [f"{number} {partition}" for number in expected], partition)
        assert len(read(broker, events, "read_uncommitted", partition)) == 6
    assert in_sql(broker, events) == [f"{n} {p}" for p in (0, 1) for n in expected]
    assert len(in_sql(broker, events, "messages")) == 12


@pytest.mark.parametrize("name", CLIENTS)
def test_committed_readers_stop_before_an_open_transaction(
    broker: BrokerProcess, opened: Opened, events: str, name: str
) -> None:
    producer = opened(name, broker.kafka, f"id-{uuid4()}")
    other = confluent_kafka.Producer({"bootstrap.servers": broker.kafka, "log_level": 0})
    other.produce(events, b"before", partition=0)
    other.flush(LIMIT_S)
    producer.begin()
    producer.send(events, "inside")
    producer.flush()
    other.produce(events, b"behind", partition=0)
    other.flush(LIMIT_S)
    assert read(broker, events, "read_committed") == ["before"] == in_sql(broker, events)
    assert read(broker, events, "read_uncommitted") == ["before", "inside", "behind"]
    producer.commit()
    until(lambda: read(broker, events, "read_committed") == ["before", "inside", "behind"])
    assert in_sql(broker, events) == ["before", "inside", "behind"]


@pytest.mark.parametrize("name", CLIENTS)
def test_a_new_instance_fences_the_old_one_and_aborts_its_transaction(
    broker: BrokerProcess, opened: Opened, events: str, name: str
) -> None:
    transactional_id = f"id-{uuid4()}"
    zombie = opened(name, broker.kafka, transactional_id)
    zombie.begin()
    zombie.send(events, "of the zombie")
    zombie.flush()
    successor = opened(name, broker.kafka, transactional_id)
    successor.begin()
    successor.send(events, "of the successor")
    successor.flush()
    with pytest.raises(Exception, match=FENCED):
        zombie.commit()
    successor.commit()
    until(lambda: read(broker, events, "read_committed") == ["of the successor"])
    assert in_sql(broker, events) == ["of the successor"]


@pytest.mark.parametrize("name", CLIENTS)
def test_offsets_in_a_transaction_are_committed_with_it(
    broker: BrokerProcess, opened: Opened, events: str, name: str
) -> None:
    group = f"group-{uuid4()}"
    producer = opened(name, broker.kafka, f"id-{uuid4()}")
    producer.begin()
    producer.send(events, "derived")
    producer.send_offset(group, events, 5)
    producer.abort()
    until(lambda: committed_offset(broker, group, events) < 0)
    producer.begin()
    producer.send(events, "derived again")
    producer.send_offset(group, events, 7)
    producer.flush()
    assert stored_offset(broker, group) is None, "it is not committed yet"
    producer.commit()
    until(lambda: committed_offset(broker, group, events) == 7)
    assert stored_offset(broker, group) == 7


@pytest.fixture
def live(broker: BrokerProcess) -> Iterator[Callable[..., Member]]:
    """`live(group)`: a member on a connection of its own, which has not joined yet."""
    with ExitStack() as closed:

        def member(group: str, **options: Any) -> Member:
            _, address = broker.coordinator(group)
            wire = closed.enter_context(Wire(SimpleNamespace(kafka=address)))
            return Member(wire, group, **options)

        yield member


@pytest.mark.parametrize("name", CLIENTS)
def test_a_producer_without_a_member_id_sends_offsets_of_a_group_with_a_live_member(
    broker: BrokerProcess,
    opened: Opened,
    live: Callable[..., Member],
    events: str,
    name: str,
) -> None:
    member = live(f"group-{uuid4()}")
    member.settle()
    producer = opened(name, broker.kafka, f"id-{uuid4()}")
    producer.begin()
    producer.send(events, "derived")
    producer.send_offset(member.group_id, events, 7)
    producer.commit()
    until(lambda: committed_offset(broker, member.group_id, events) == 7)
    assert member.heartbeat() == 0


def test_a_member_sends_offsets_to_a_transaction_while_its_group_completes_a_rebalance(
    broker: BrokerProcess, opened: Opened, live: Callable[..., Member], events: str
) -> None:
    member = live(f"group-{uuid4()}", era=BY_NAME)
    member.join()
    target = Target(events, UUID(int=0))
    assert member.commit(target) == errors.RebalanceInProgress.code, "there is no assignment yet"
    producer = opened("java", broker.kafka, f"id-{uuid4()}")
    assert isinstance(producer, HelpedProducer)
    producer.begin()
    producer.send(events, "derived")
    producer.send_offset(member.group_id, events, 7, member=member)
    producer.commit()
    until(lambda: committed_offset(broker, member.group_id, events) == 7)


def test_a_static_member_that_was_replaced_sends_no_offsets_to_a_transaction(
    broker: BrokerProcess, opened: Opened, live: Callable[..., Member], events: str
) -> None:
    group = f"group-{uuid4()}"
    replaced, successor = live(group, instance_id="one"), live(group, instance_id="one")
    replaced.settle()
    successor.join()
    assert successor.generation == replaced.generation
    producer = opened("java", broker.kafka, f"id-{uuid4()}")
    assert isinstance(producer, HelpedProducer)
    producer.begin()
    producer.send(events, "derived")
    with pytest.raises(Exception, match="FencedInstanceId"):
        producer.send_offset(group, events, 7, member=replaced)
    producer.abort()
    producer.begin()
    producer.send_offset(group, events, 8, member=successor)
    producer.commit()
    until(lambda: committed_offset(broker, group, events) == 8)


def stored_offset(broker: BrokerProcess, group: str) -> int | None:
    rows = broker.sql(
        "SELECT offset FROM current_offsets WHERE group_id = {group:String}",
        {"group": group},
    )
    return int(rows[0]["offset"]) if rows else None


def test_every_transaction_of_version_2_has_an_epoch_of_its_own(
    broker: BrokerProcess, opened: Opened, events: str
) -> None:
    producer = opened("java", broker.kafka, f"id-{uuid4()}")
    for number in range(3):
        producer.begin()
        producer.send(events, str(number))
        producer.commit()
    until(lambda: read(broker, events, "read_committed") == ["0", "1", "2"])
    rows = broker.sql(
        "SELECT producer_epoch, control FROM messages WHERE topic = {topic:String} ORDER BY offset",
        {"topic": events},
    )
    found = [(row["producer_epoch"], row["control"]) for row in rows]
    assert found == [(0, False), (1, True), (1, False), (2, True), (2, False), (3, True)]


@pytest.mark.parametrize("name", also_in_test_all(["java", "kafka-python"], CLIENTS))
def test_a_transaction_is_aborted_after_its_timeout(
    broker: BrokerProcess, opened: Opened, events: str, name: str
) -> None:
    begun: list[TransactionalProducer] = []

    def has_stored() -> bool:
        """Whether that was done within the time of the transaction."""
        producer = opened(name, broker.kafka, f"id-{uuid4()}", timeout_ms=1500)
        try:
            producer.begin()
            producer.send(events, "too slow")
            producer.flush()
        except Exception as error:
            if not re.search(FENCED, str(error)):
                raise
            return False
        begun.append(producer)
        return True

    until(has_stored, "a record is stored while its transaction is open")
    other = confluent_kafka.Producer({"bootstrap.servers": broker.kafka, "log_level": 0})
    other.produce(events, b"behind", partition=0)
    other.flush(LIMIT_S)
    until(lambda: read(broker, events, "read_committed") == ["behind"])
    with pytest.raises(Exception, match=FENCED):
        begun[0].commit()
    assert in_sql(broker, events) == ["behind"]


@pytest.mark.parametrize("name", also_in_test_all(["java"], CLIENTS))
def test_a_transaction_survives_two_kills_of_the_broker(
    own_broker: Callable[..., BrokerProcess], opened: Opened, name: str
) -> None:
    own = own_broker()
    topic = "events"
    with_partitions(own, topic, 2)
    producer = opened(name, own.kafka, "id")
    producer.begin()
    producer.send(topic, "aborted")
    producer.flush()
    producer.abort()
    producer.begin()
    producer.send(topic, "before")
    producer.send_offset("group", topic, 3)
    producer.flush()
    own.kill()
    own.start()
    assert read(own, topic, "read_committed") == []
    assert read(own, topic, "read_uncommitted") == ["aborted", "before"]
    producer.send(topic, "after")
    producer.flush()
    producer.commit()
    until(lambda: read(own, topic, "read_committed") == ["before", "after"])
    assert committed_offset(own, "group", topic) == 3
    own.kill()
    own.start()
    assert read(own, topic, "read_committed") == ["before", "after"] == in_sql(own, topic)
    assert committed_offset(own, "group", topic) == 3
