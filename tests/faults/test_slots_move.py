"""A slot that is moved to another shard, while it is written to: old rows stay, new ones go on."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.cluster_processes import SLOTS, Cluster, Engine
from tests.server_process import PROJECT

TOPIC = "moving"
PARTITIONS = 8
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("moving"), brokers=2)
    try:
        made.start()
        yield made
    finally:
        made.close()


class Sender:
    """One idempotent producer over the whole test: its ids and sequences go on."""

    def __init__(self, cluster: Cluster) -> None:
        self._producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 2}
        )
        self.sent: defaultdict[int, list[bytes]] = defaultdict(list)
        self.offsets: defaultdict[int, list[int]] = defaultdict(list)
        self._failures: list[KafkaError] = []
        self._count = 0

    def send(self, count: int) -> None:
        """Sends, and returns at once."""
        for _ in range(count):
            partition, value = self._count % PARTITIONS, b"%d" % self._count
            self._producer.produce(
                TOPIC, value, partition=partition, timestamp=1_000 + self._count,
                on_delivery=self._delivered,
            )  # fmt: skip
            self._producer.poll(0)
            self.sent[partition].append(value)
            self._count += 1

    def flush(self) -> None:
        assert self._producer.flush(LIMIT_S) == 0
        assert self._failures == []

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failures.append(error)
            return
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        self.offsets[partition].append(offset)


def read_all(cluster: Cluster, count: int) -> dict[int, list[tuple[int, bytes]]]:
    """Offsets and values of every partition, from the beginning, by a consumer of its own."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "of nobody"})
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
    found: defaultdict[int, list[tuple[int, bytes]]] = defaultdict(list)
    read = 0
    while read < count:
        messages = consumer.consume(count - read, LIMIT_S)
        assert messages, f"only {read} of {count} came"
        for message in messages:
            assert message.error() is None, message.error()
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None
            assert offset is not None
            assert isinstance(value, bytes)
            found[partition].append((offset, value))
            read += 1
    consumer.close()
    return found


def rows(engine: Engine) -> dict[int, tuple[int, int]]:
    """First and last offset of each partition that a shard has rows of."""
    return {
        row["partition"]: (row["first"], row["last"])
        for row in engine.sql(
            "SELECT partition, min(offset) AS first, max(offset) AS last FROM messages"
            f" WHERE topic = '{TOPIC}' GROUP BY partition"
        )
    }


def command(cluster: Cluster, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "broker.cli", *words, "--config", str(cluster.config_path)],
        cwd=PROJECT, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_whole(cluster: Cluster, sender: Sender) -> None:
    count = sum(len(values) for values in sender.sent.values())
    found = read_all(cluster, count)
    for partition, values in sender.sent.items():
        assert [value for _, value in found[partition]] == values
        assert [offset for offset, _ in found[partition]] == list(range(len(values)))
        assert sender.offsets[partition] == list(range(len(values)))


def test_a_slot_moves_while_it_is_written_to_and_nothing_is_lost_or_twice(
    cluster: Cluster,
) -> None:
    one, two = cluster.engines
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(LIMIT_S)
    sender = Sender(cluster)
    sender.send(2_000)
    sender.flush()
    before = rows(one)
    assert before, "no partition of the topic is on the first shard"
    assert before.keys() | rows(two).keys() == set(range(PARTITIONS))

    half = f"0-{SLOTS // 2 - 1}"
    sender.send(2_000)
    assert "shard2" in command(cluster, "slots", "move", "--slots", half, "--to", "shard2")
    sender.send(2_000)
    sender.flush()

    old, new = rows(one), rows(two)
    assert new.keys() == set(range(PARTITIONS)), "new rows go to the second shard alone"
    for partition in old:
        assert new[partition][0] == old[partition][1] + 1, "it goes on where it ended"
    shown = command(cluster, "slots", "show")
    assert "shard1" in shown
    assert "shard2" in shown
    check_whole(cluster, sender)

    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "times"})
    for partition in old:
        wanted = int(sender.sent[partition][5]) + 1_000
        (found,) = consumer.offsets_for_times([TopicPartition(TOPIC, partition, wanted)])
        assert found.offset == 5, "a time that is found among the old rows"
    consumer.close()

    # What begins anew after the move knows all of it from the tables.
    for broker in cluster.brokers:
        broker.kill()
    for broker in cluster.brokers:
        broker.launch()
    sender.send(1_000)
    for broker in cluster.brokers:
        broker.await_ready()
    sender.flush()
    check_whole(cluster, sender)
    assert rows(one) == old, "nothing was added to the first shard"

    # A slot may come back: what the other shard has lies between what this one has.
    command(cluster, "slots", "move", "--slots", half, "--to", "shard1")
    sender.send(1_000)
    sender.flush()
    for partition, (_, last) in rows(one).items():
        assert last == len(sender.sent[partition]) - 1
    check_whole(cluster, sender)
