"""What a partition knows about producers outlives their records: after DeleteRecords or retention
and a kill, a producer goes on with its next sequence, and a batch that it sends again is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest

from brokerhouse.protocol import errors
from tests.support import messages
from tests.support.broker_process import BrokerProcess
from tests.support.log_parts import numbered
from tests.support.messages import Target
from tests.support.transactional import (
    AiokafkaProducer,
    ConfluentProducer,
    KafkaPythonProducer,
    TransactionalProducer,
)
from tests.support.waiting import until
from tests.support.wire import Wire

OwnBroker = Callable[..., BrokerProcess]
Opened = Callable[[str, str], list[TransactionalProducer]]
pytestmark = pytest.mark.test_all

OLDER_FLOW: Sequence[Callable[[str, str], TransactionalProducer]] = (
    ConfluentProducer,
    KafkaPythonProducer,
    AiokafkaProducer,
)
"""Clients that use one epoch for all their transactions, so that sequences go on."""
PRODUCE, LIST, DELETE = 12, 7, 2
EARLIEST = -2
HIGH_WATERMARK = -1
PRODUCER = 7


@pytest.fixture
def opened() -> Iterator[Opened]:
    with ExitStack() as closed:

        def open_all(address: str, transactional_id: str) -> list[TransactionalProducer]:
            made: list[TransactionalProducer] = []
            for number, kind in enumerate(OLDER_FLOW):
                made.append(kind(address, f"{transactional_id}-{number}"))
                closed.callback(made[-1].close)
            return made

        yield open_all


def delete(
    broker: BrokerProcess, target: Target, to: int = HIGH_WATERMARK, partitions: int = 1
) -> list[int]:
    """Delete the records below this offset. The new log starts."""
    with Wire(broker) as wire:
        request = messages.delete_records(target, to, 0, *((n, to) for n in range(1, partitions)))
        (answer,) = wire.ask(request, DELETE).topics
    assert [one.error_code for one in answer.partitions] == [0] * partitions
    return [int(one.low_watermark) for one in answer.partitions]


def log_start(broker: BrokerProcess, target: Target) -> int:
    with Wire(broker) as wire:
        request = messages.list_offsets(target, EARLIEST)
        (found,) = wire.ask(request, LIST).topics[0].partitions
    return int(found.offset)


def restart(broker: BrokerProcess) -> None:
    broker.kill()
    broker.start()


def rows_are_deleted(broker: BrokerProcess, topic: str, kept: int = 0) -> None:
    count = "SELECT count() AS n FROM messages WHERE topic = {t:String}"
    until(
        lambda: int(broker.sql(count, {"t": topic})[0]["n"]) == kept,
        "the rows are deleted",
        every_s=0.1,
    )


def committed(broker: BrokerProcess, topic: str) -> list[str]:
    found = broker.sql(
        "SELECT value FROM messages_committed WHERE topic = {t:String} ORDER BY partition, offset",
        {"t": topic},
    )
    return [str(row["value"]) for row in found]


@pytest.mark.parametrize("kept", ["the last marker", "nothing"])
def test_transactional_producers_go_on_after_their_records_were_deleted_and_a_kill(
    own_broker: OwnBroker, opened: Opened, topic: str, kept: str
) -> None:
    start = 4 if kept == "nothing" else 3
    broker = own_broker(retention_check_interval_ms="100")
    with Wire(broker) as wire:
        target = messages.create_topic(wire, topic, len(OLDER_FLOW))
    producers = opened(broker.kafka, topic)

    def commit_one_each(value: str) -> None:
        for partition, producer in enumerate(producers):
            producer.begin()
            producer.send(topic, f"{value}-{partition}", partition)
            producer.commit()

    commit_one_each("first")
    commit_one_each("second")
    until(lambda: len(committed(broker, topic)) == 6, "all are committed")
    assert delete(broker, target, start, len(OLDER_FLOW)) == [start] * 3
    rows_are_deleted(broker, topic, kept=3 * (4 - start))
    restart(broker)
    commit_one_each("third")
    restart(broker)
    commit_one_each("fourth")
    wanted = [f"{value}-{partition}" for partition in range(3) for value in ("third", "fourth")]
    until(lambda: committed(broker, topic) == wanted, "the later ones are committed")
    for partition, producer in enumerate(producers):
        producer.begin()
        producer.send(topic, "deleted while open", partition)
        producer.flush()
    delete(broker, target, partitions=len(OLDER_FLOW))
    rows_are_deleted(broker, topic)
    restart(broker)
    for partition, producer in enumerate(producers):
        producer.send(topic, f"fifth-{partition}", partition)
        producer.commit()
    wanted = [f"fifth-{partition}" for partition in range(3)]
    until(lambda: committed(broker, topic) == wanted, "what is left of them is committed")


@pytest.mark.parametrize("removed_by", ["retention", "DeleteRecords"])
def test_an_idempotent_producer_without_records_goes_on_and_its_retries_are_found_after_a_kill(
    own_broker: OwnBroker, topic: str, removed_by: str
) -> None:
    broker = own_broker(retention_check_interval_ms="100")

    def sent(first: int, count: int) -> tuple[int, int]:
        """Error and base offset."""
        with Wire(broker) as wire:
            request = messages.produce(target, numbered(first, count, PRODUCER).data)
            (answer,) = wire.ask(request, PRODUCE).responses[0].partition_responses
        return int(answer.error_code), int(answer.base_offset)

    by_age = removed_by == "retention"
    with Wire(broker) as wire:
        wire.ask(messages.init_producer("reserves the first block of ids"), 4)
        target = messages.create_topic(
            wire, topic, configs={"retention.ms": "1"} if by_age else None
        )
    assert [sent(n * 2, 2) for n in range(6)] == [(0, n * 2) for n in range(6)]
    if by_age:
        until(lambda: log_start(broker, target) == 12, "all are too old", every_s=0.1)
    else:
        assert delete(broker, target) == [12]
    rows_are_deleted(broker, topic)
    for end in (12, 14):
        restart(broker)
        retries = [sent(first, 2) for first in range(end - 10, end, 2)]
        assert retries == [(0, first) for first in range(end - 10, end, 2)]
        assert sent(end + 1, 1) == (errors.OutOfOrderSequenceNumber.code, -1)
        assert sent(end, 2) == (0, end)
