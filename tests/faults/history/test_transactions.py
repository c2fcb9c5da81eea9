"""Transactions of librdkafka's producers while a cluster loses parts, checked as a history.

The short run is part of `make test-all`; the long one is by hand: `make history-transactions
SEED=7 MINUTES=10`. A failure names its seed.
"""

from __future__ import annotations

import os
import random
import time

import confluent_kafka
import pytest
from confluent_kafka.cimpl import TopicPartition

from tests.faults.history.cluster_faults import doubled, faults_of
from tests.faults.history.conftest import MakeCluster
from tests.faults.history.nemesis import Step, play, schedule
from tests.faults.history.run import make_topic
from tests.faults.history.transactional_clients import CALL_S, Producer, producing
from tests.faults.history.workers import PASSING
from tests.support.cluster_processes import Cluster
from tests.support.committed import committed_consumer
from tests.support.transaction_history import violations
from tests.support.waiting import until

PARTITIONS = 6
PRODUCERS = 5
FAULTS_S = 14.0
SEED = 7514
LIMIT_S = 60.0
ENOUGH = 60


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> Cluster:
    cluster = make_cluster()
    cluster.start()
    return cluster


def play_history(cluster: Cluster, topic: str, seed: int, steps: list[Step]) -> None:
    print("\n".join([f"seed {seed}", *map(str, steps)]))
    make_topic([broker.kafka for broker in cluster.brokers], topic, PARTITIONS)
    with producing(cluster.bootstrap, topic, PARTITIONS, PRODUCERS, seed) as producers:
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
    deadline = time.monotonic() + LIMIT_S
    try:
        while True:
            try:
                (found,) = consumer.committed([TopicPartition(topic, 0)], CALL_S)
                return max(int(found.offset), -1)
            except confluent_kafka.KafkaException as error:
                if error.args[0].code() not in PASSING or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
    finally:
        consumer.close()


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(SEED, id="fixed", marks=pytest.mark.test_all),
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
