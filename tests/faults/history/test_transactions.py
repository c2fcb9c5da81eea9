"""Transactions of librdkafka's producers while a cluster loses parts, checked as a history.

The short run is for every day; the long one is by hand: `make history-transactions SEED=7
MINUTES=10`. A failure names its seed.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.cimpl import TopicPartition

from tests.faults.history.cluster_faults import doubled, faults_of
from tests.faults.history.conftest import MakeCluster
from tests.faults.history.nemesis import Step, play, schedule
from tests.faults.history.run import make_topic
from tests.support.cluster_processes import Cluster
from tests.support.committed import committed_consumer
from tests.support.transaction_history import History, Writer, Written, ended, violations
from tests.support.waiting import until

PARTITIONS = 6
PRODUCERS = 5
FAULTS_S = 14.0
SEED = 7514
LIMIT_S = 60.0
ENOUGH = 60
CALL_S = 10.0
REPEATED_S = 30.0


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> Cluster:
    cluster = make_cluster()
    cluster.start()
    return cluster


class Producer(Writer):
    """One transactional id, until `stopped`; every instance but the first is fencing the last."""

    def __init__(self, bootstrap: str, topic: str, seed: int, stopped: threading.Event) -> None:
        super().__init__(daemon=True, name=f"id-{seed}")
        self._address = bootstrap
        self._topic = topic
        self._random = random.Random(seed)
        self._stopped = stopped
        self._number = 0
        self._sent_offset = 0
        self.history = History()

    @property
    def group(self) -> str:
        return f"group-{self.name}"

    def run(self) -> None:
        consumer = confluent_kafka.Consumer(
            {"group.id": self.group, "bootstrap.servers": "127.0.0.1:1", "log_level": 0}
        )
        try:
            metadata = consumer.consumer_group_metadata()
            while not self._stopped.is_set():
                with suppress(confluent_kafka.KafkaException):
                    self._one_instance(metadata)
        except BaseException as failure:
            self.failure = failure
        finally:
            consumer.close()

    def _one_instance(self, metadata: Any) -> None:
        """Returns or raises when only a new instance can go on."""
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self._address,
                "transactional.id": self.name,
                "transaction.timeout.ms": 10_000,
                "reconnect.backoff.max.ms": 250,
                "log_level": 0,
            }
        )
        producer.init_transactions(CALL_S)
        while not self._stopped.is_set():
            written = Written()
            self.history.unknown.append(written)
            try:
                self._write(producer, metadata, written)
                if self._random.random() < 0.3:
                    self._end(producer.abort_transaction)
                    ended = self.history.aborted
                else:
                    self._end(producer.commit_transaction)
                    ended = self.history.committed
            except confluent_kafka.KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                self._end(producer.abort_transaction)
                ended = self.history.aborted
            self.history.unknown.remove(written)
            ended.append(written)

    def _write(self, producer: Any, metadata: Any, written: Written) -> None:
        producer.begin_transaction()
        for _ in range(self._random.randint(1, 8)):
            self._number += 1
            value = f"{self.name} {self._number}".encode()
            partition = self._random.randrange(PARTITIONS)
            written.values[partition].append(value)
            told = partial(_told, written)
            producer.produce(self._topic, value, partition=partition, on_delivery=told)
        self._sent_offset += 1
        written.offset = self._sent_offset
        offset = TopicPartition(self._topic, 0, self._sent_offset)
        self._end(partial(_send_offset, producer, offset, metadata))

    def _end(self, call: Any) -> None:
        """Repeat what may be repeated. Raises `KafkaException`."""
        deadline = time.monotonic() + REPEATED_S
        while True:
            try:
                call(CALL_S)
                return
            except confluent_kafka.KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise


def _told(written: Written, error: Any, message: Any) -> None:
    """When a call to abort is repeated, librdkafka may drop the first records of the next
    transaction, and then commit the rest; it says so.
    """
    if error is not None:
        written.values[message.partition()].remove(message.value())


class Hangs(confluent_kafka.KafkaException):
    """A call of the client does not return."""


def _send_offset(producer: Any, offset: TopicPartition, metadata: Any, limit_s: float) -> None:
    """librdkafka 2.16 may wait for ever when a coordinator has gone (its issues 5456 and 5511)."""
    outcome: list[BaseException | None] = []

    def send() -> None:
        try:
            producer.send_offsets_to_transaction([offset], metadata, limit_s)
            outcome.append(None)
        except BaseException as error:
            outcome.append(error)

    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    sending.join(limit_s + 1)
    if not outcome:
        raise Hangs(confluent_kafka.KafkaError(confluent_kafka.KafkaError._TIMED_OUT))
    if outcome[0] is not None:
        raise outcome[0]


@contextmanager
def producing(bootstrap: str, topic: str, seed: int) -> Iterator[list[Producer]]:
    stopped = threading.Event()
    producers = [
        Producer(bootstrap, topic, seed % 100_000 * 10 + number, stopped)
        for number in range(PRODUCERS)
    ]
    for one in producers:
        one.start()
    with ended(producers, stopped):
        yield producers


def play_history(cluster: Cluster, topic: str, seed: int, steps: list[Step]) -> None:
    print("\n".join([f"seed {seed}", *map(str, steps)]))
    make_topic([broker.kafka for broker in cluster.brokers], topic, PARTITIONS)
    with producing(cluster.bootstrap, topic, seed) as producers:
        play(steps, lambda _: None)
        await_enough(producers)
    end_what_is_open(cluster.bootstrap, producers)
    histories = [one.history for one in producers]
    for kind in ("committed", "aborted", "unknown"):
        print(kind, sum(len(getattr(one, kind)) for one in histories))
    read = read_committed(cluster.bootstrap, topic)
    shown = in_sql(cluster, topic)
    found = {value for some in shown.values() for value in some}
    wrong = violations(histories, shown, read)
    for one in producers:
        committed = committed_offset(cluster.bootstrap, one.group, topic)
        wanted = one.history.last_offset(found)
        if committed != wanted:
            wrong.append(f"{one.group} is at {committed}, and sent {wanted}")
    assert not wrong, f"seed {seed}: {wrong}"


def await_enough(producers: list[Producer]) -> None:
    """After the last fault all go on."""
    before = [len(one.history.committed) for one in producers]

    def all_go_on() -> bool:
        return all(
            len(one.history.committed) >= count + ENOUGH // PRODUCERS
            for one, count in zip(producers, before, strict=True)
        )

    until(all_go_on, "all producers go on", 2 * LIMIT_S)


def end_what_is_open(bootstrap: str, producers: list[Producer]) -> None:
    for one in producers:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": one.name, "log_level": 0}
        )
        producer.init_transactions(LIMIT_S)


def read_committed(bootstrap: str, topic: str) -> dict[int, list[bytes]]:
    values: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    consumer = committed_consumer(bootstrap)
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in values])
        ended: set[int] = set()
        deadline = time.monotonic() + LIMIT_S
        while len(ended) < len(values):
            assert time.monotonic() < deadline, f"only {ended} were read to their ends"
            message = consumer.poll(1.0)
            if message is None:
                continue
            partition, value, error = message.partition(), message.value(), message.error()
            assert partition is not None
            if error is None:
                assert value is not None
                values[partition].append(value)
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                ended.add(partition)
    finally:
        consumer.close()
    return values


def in_sql(cluster: Cluster, topic: str) -> dict[int, list[bytes]]:
    rows = sorted(
        (int(row["partition"]), int(row["offset"]), str(row["value"]))
        for engine in cluster.engines
        for row in engine.sql(
            "SELECT partition, offset, value FROM messages_committed WHERE topic = {topic:String}",
            {"topic": topic},
        )
    )
    values: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    for partition, _, value in rows:
        values[partition].append(value.encode())
    return values


def committed_offset(bootstrap: str, group: str, topic: str) -> int:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0}
    )
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], LIMIT_S)
        return max(int(found.offset), -1)
    finally:
        consumer.close()


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(SEED, id="fixed"),
        pytest.param(random.randrange(2**32), id="random", marks=pytest.mark.slow),
    ],
)
def test_transactions_are_whole_whatever_happens_to_a_cluster(
    cluster: Cluster, topic: str, seed: int
) -> None:
    play_history(cluster, topic, seed, schedule(faults_of(cluster), seed, FAULTS_S))


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_transactions_are_whole_though_a_cluster_loses_two_parts_at_a_time_for_long(
    cluster: Cluster, topic: str
) -> None:
    seed = int(os.environ.get("HISTORY_SEED") or random.randrange(2**32))
    minutes = float(os.environ.get("HISTORY_MINUTES") or 5)
    play_history(cluster, topic, seed, schedule(doubled(cluster, seed), seed, minutes * 60))
