"""A slot is moved to another shard during writes: old rows stay, new rows go to the new shard."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from brokerhouse.protocol.errors import LeaderNotAvailable, NotLeaderOrFollower
from tests.support.cluster_processes import SLOTS, Cluster, Engine
from tests.support.cluster_view import await_leaders, epoch_end, node
from tests.support.messages import Target
from tests.support.one_partition import EPOCHS, NO_ID
from tests.support.server_process import PROJECT
from tests.support.transactional import ConfluentProducer
from tests.support.waiting import until
from tests.support.wire import Wire

pytestmark = pytest.mark.test_all

TOPIC = "moving"
PARTITIONS = 8
LIMIT_S = 60.0
MOVE_LIMIT_S = 150.0
"""More than `brokerhouse slots move` waits itself."""
NO_LEADER = (LeaderNotAvailable.code, NotLeaderOrFollower.code)
"""What is told while slots change hands, as they do when brokers have just begun."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(
        tmp_path_factory.mktemp("moving"),
        brokers=2,
        settings={"retention_check_interval_ms": "1000"},
    )
    try:
        made.start()
        yield made
    finally:
        made.close()


class Sender:
    """One idempotent producer over the whole test: its ids and sequences go on."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._topic = topic
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
                self._topic,
                value,
                partition=partition,
                timestamp=1_000 + self._count,
                on_delivery=self._delivered,
            )
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


def create(admin: AdminClient, topic: str) -> None:
    """A topic that keeps its records, however old their timestamps are."""
    made = NewTopic(topic, PARTITIONS, 1, config={"retention.ms": "-1"})
    admin.create_topics([made])[topic].result(LIMIT_S)


def rows(engine: Engine, topic: str = TOPIC) -> dict[int, tuple[int, int]]:
    """First and last offset of each partition that a shard has rows of."""
    return {
        row["partition"]: (row["first"], row["last"])
        for row in engine.sql(
            "SELECT partition, min(offset) AS first, max(offset) AS last FROM messages"
            f" WHERE topic = '{topic}' GROUP BY partition"
        )
    }


def epochs(engine: Engine, topic: str) -> dict[int, set[tuple[int, int]]]:
    """Where the leader epochs of each partition began, as this shard has it."""
    found: defaultdict[int, set[tuple[int, int]]] = defaultdict(set)
    for row in engine.sql(
        "SELECT partition, leader_epoch, start_offset FROM leader_epochs FINAL WHERE topic_id IN"
        f" (SELECT topic_id FROM topic_versions WHERE name = '{topic}')"
    ):
        found[row["partition"]].add((row["leader_epoch"], row["start_offset"]))
    return found


def command(cluster: Cluster, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "brokerhouse", *words, "--config", str(cluster.commands_path)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=MOVE_LIMIT_S,
    )
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
    create(admin, TOPIC)
    sender = Sender(cluster, TOPIC)
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
        assert new[partition][0] == old[partition][1] + 1, "new rows follow the old ones"
    shown = command(cluster, "slots", "show")
    assert "shard1" in shown
    assert "shard2" in shown
    check_whole(cluster, sender)

    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "times"})
    for partition in old:
        wanted = int(sender.sent[partition][5]) + 1_000
        (found,) = consumer.offsets_for_times(
            [TopicPartition(TOPIC, partition, wanted)], timeout=LIMIT_S
        )
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


def restart_all(cluster: Cluster) -> None:
    """All brokers are killed at once; returns when they are back."""
    for broker in cluster.brokers:
        broker.kill()
    for broker in cluster.brokers:
        broker.launch()
    for broker in cluster.brokers:
        broker.await_ready()


def delete_records(admin: AdminClient, topic: str, to: int) -> dict[int, int]:
    """The low watermark of each partition."""
    found: dict[int, int] = {}

    def is_done() -> bool:
        left = sorted(set(range(PARTITIONS)) - found.keys())
        asked = [TopicPartition(topic, number, to) for number in left]
        for one, done in admin.delete_records(asked).items():
            try:
                found[one.partition] = done.result(LIMIT_S).low_watermark
            except KafkaException as error:
                if error.args[0].code() not in NO_LEADER:
                    raise
        return len(found) == PARTITIONS

    until(is_done, f"the log starts at {to}")
    return found


def bounds(cluster: Cluster, topic: str) -> list[tuple[int, int]]:
    """First and next offset of each partition, as clients are told."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "of nobody"})
    found: list[tuple[int, int]] = []

    def is_done() -> bool:
        try:
            for number in range(len(found), PARTITIONS):
                place = TopicPartition(topic, number)
                found.append(consumer.get_watermark_offsets(place, LIMIT_S))
        except KafkaException as error:
            if error.args[0].code() not in NO_LEADER:
                raise
        return len(found) == PARTITIONS

    try:
        until(is_done, "every partition tells its bounds")
    finally:
        consumer.close()
    return found


def test_deleted_records_leave_every_shard_that_has_them_and_offsets_go_on(
    cluster: Cluster,
) -> None:
    one, two = cluster.engines
    topic = "given-up"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    create(admin, topic)
    sender = Sender(cluster, topic)
    sender.send(100 * PARTITIONS)
    sender.flush()
    first = await_leaders(cluster.brokers, topic, PARTITIONS)
    half = f"0-{SLOTS // 2 - 1}"
    to = "shard2" if len(rows(one, topic)) > 0 else "shard1"
    command(cluster, "slots", "move", "--slots", half, "--to", to)
    sender.send(100 * PARTITIONS)
    sender.flush()
    both = rows(one, topic).keys() & rows(two, topic).keys()
    assert both, "no partition has rows on both shards"
    old, new = (two, one) if to == "shard1" else (one, two)
    assert all(epochs(new, topic)[number] > epochs(old, topic)[number] for number in both)

    assert delete_records(admin, topic, 150) == dict.fromkeys(range(PARTITIONS), 150)
    assert bounds(cluster, topic) == [(150, 200)] * PARTITIONS
    until(
        lambda: all(first == 150 for some in (one, two) for first, _ in rows(some, topic).values()),
        "what lies below 150 is gone from both shards",
    )
    assert delete_records(admin, topic, -1) == dict.fromkeys(range(PARTITIONS), 200)

    restart_all(cluster)
    sender.send(10 * PARTITIONS)
    sender.flush()
    assert all(offsets[-10:] == list(range(200, 210)) for offsets in sender.offsets.values())
    assert bounds(cluster, topic) == [(200, 210)] * PARTITIONS
    for number, leader in await_leaders(cluster.brokers, topic, PARTITIONS).items():
        with Wire(node(cluster, leader.node_id)) as wire:
            asked = epoch_end(Target(topic, NO_ID), first[number].epoch, number)
            (told,) = wire.ask(asked, EPOCHS).topics[0].partitions
        # Of the records of the first epoch none is left, on any shard.
        assert (told.error_code, told.leader_epoch, told.end_offset) == (
            0,
            first[number].epoch,
            200,
        )


def committed(cluster: Cluster, topic: str) -> list[str]:
    """What SQL has as committed, on both shards."""
    query = f"SELECT value FROM messages_committed WHERE topic = '{topic}'"
    return sorted(row["value"] for engine in cluster.engines for row in engine.sql(query))


def read_committed(cluster: Cluster, topic: str, count: int) -> list[str]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "of nobody",
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found = [bytes(one.value() or b"").decode() for one in consumer.consume(count, LIMIT_S)]
    found += [bytes(one.value() or b"").decode() for one in consumer.consume(1, 0.5)]
    consumer.close()
    return sorted(found)


def test_a_transaction_that_is_open_while_its_slots_move_ends_whole(cluster: Cluster) -> None:
    topic = "moving-in-transactions"
    create(AdminClient({"bootstrap.servers": cluster.bootstrap}), topic)
    half = f"0-{SLOTS // 2 - 1}"
    command(cluster, "slots", "move", "--slots", half, "--to", "shard1")
    kept = ConfluentProducer(cluster.bootstrap, "kept")
    dropped = ConfluentProducer(cluster.bootstrap, "dropped")

    def write(when: str) -> None:
        for name, producer in (("kept", kept), ("dropped", dropped)):
            for number in range(PARTITIONS):
                producer.send(topic, f"{name} {number} {when}", number)
            producer.flush()

    kept.begin()
    dropped.begin()
    write("before")
    assert committed(cluster, topic) == []
    command(cluster, "slots", "move", "--slots", half, "--to", "shard2")
    write("after")
    assert committed(cluster, topic) == []
    begun = [rows(engine, topic) for engine in cluster.engines]
    assert any(begun[0][number] < begun[1][number] for number in begun[0].keys() & begun[1].keys())

    kept.commit()
    dropped.abort()

    expected = sorted(f"kept {n} {when}" for n in range(PARTITIONS) for when in ("before", "after"))
    until(lambda: committed(cluster, topic) == expected, "SQL has what was committed", LIMIT_S)
    assert read_committed(cluster, topic, len(expected)) == expected
    restart_all(cluster)
    assert read_committed(cluster, topic, len(expected)) == expected
    assert committed(cluster, topic) == expected
