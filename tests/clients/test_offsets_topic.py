"""`__consumer_offsets`, read by Kafka's own formatters and as lag monitors read it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import confluent_kafka
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewPartitions

from brokerhouse.coordinator.slots import kafka_partition
from tests.support.adapters import Kcat
from tests.support.broker_process import BrokerProcess
from tests.support.cluster_processes import Cluster
from tests.support.cluster_view import topic_on_all
from tests.support.console_tools import Tools
from tests.support.group_consumer import consuming
from tests.support.records import Record
from tests.support.waiting import LIMIT_S, until

OFFSETS = "__consumer_offsets"
TOPICS = "org.apache.kafka.tools.TopicCommand"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
FORMATTERS = "org.apache.kafka.tools.consumer"
PARTITIONS = 50


def commit(kafka: str, group: str, topic: str, offset: int, metadata: str = "") -> None:
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": group})
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, offset, metadata)], asynchronous=False)
    finally:
        consumer.close()


def is_committed(kafka: str, group: str, topic: str, offset: int) -> bool:
    """Commits. False while the coordinator reads its groups, as just after a cluster's start."""
    try:
        commit(kafka, group, topic, offset)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.COORDINATOR_LOAD_IN_PROGRESS:
            raise
        return False
    return True


class Seen(NamedTuple):
    offset: int
    key: bytes
    value: bytes | None


def seen(message: confluent_kafka.Message[bytes, bytes] | None) -> Seen:
    assert message is not None, "nothing more came"
    if message.error():
        raise KafkaException(message.error())
    offset, key = message.offset(), message.key()
    assert offset is not None
    assert key is not None
    return Seen(offset, key, message.value())


class Monitor:
    """Reads one partition, from `start` on, as a lag monitor does."""

    def __init__(self, kafka: str, partition: int, start: int = confluent_kafka.OFFSET_BEGINNING):
        self.consumer = Consumer(
            {
                "bootstrap.servers": kafka,
                "group.id": "monitor",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": False,
            }
        )
        self.consumer.assign([TopicPartition(OFFSETS, partition, start)])
        self.partition = partition
        self.seen: list[Seen] = []

    def next(self) -> Seen:
        self.seen.append(seen(self.consumer.poll(LIMIT_S)))
        return self.seen[-1]

    def until(self, found: Callable[[Seen], bool]) -> Seen:
        while not found(message := self.next()):
            pass
        return message

    def watermarks(self) -> tuple[int, int]:
        low, high = self.consumer.get_watermark_offsets(
            TopicPartition(OFFSETS, self.partition), timeout=LIMIT_S
        )
        return low, high


def offset_of(record: Seen) -> int:
    assert record.value is not None
    assert record.value[:2] == b"\0\3"
    return int.from_bytes(record.value[2:10], "big")


def is_offset_of(group: str) -> Callable[[Seen], bool]:
    key = b"\0\1" + len(group).to_bytes(2, "big") + group.encode()
    return lambda record: record.key.startswith(key)


@pytest.fixture
def monitor(broker: BrokerProcess) -> Iterator[Callable[..., Monitor]]:
    made: list[Monitor] = []

    def make(partition: int, start: int = confluent_kafka.OFFSET_BEGINNING) -> Monitor:
        made.append(Monitor(broker.kafka, partition, start))
        return made[-1]

    yield make
    for one in made:
        one.consumer.close()


@pytest.fixture(scope="module")
def restartable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("offsets") / "data") as process:
        yield process


def test_kafkas_formatters_show_offsets_and_groups(
    broker: BrokerProcess, run: Tools, monitor: Callable[..., Monitor], topic: str
) -> None:
    def formatted(formatter: str, group: str) -> Any:
        """The value of the record of a group, as Kafka's console consumer shows it."""
        partition = kafka_partition(group)
        first, end = monitor(partition).watermarks()
        shown = run(
            CONSOLE_CONSUMER,
            *shlex.split(
                f"--topic {OFFSETS} --partition {partition} --offset earliest --max-messages"
            ),
            str(end - first),
            "--formatter",
            f"{FORMATTERS}.{formatter}",
        )
        records = json.loads(f"[{shown.strip().replace('}{', '},{')}]")
        keys = [one["key"]["data"] for one in records]
        return keys, next(
            one["value"]["data"] for one in records if one["key"]["data"]["group"] == group
        )

    Kcat().produce(broker.kafka, topic, [Record(b"k", b"v")] * 3)
    members, alone = f"{topic}-members", f"{topic}-alone"
    with consuming(broker, members, topic) as consumer:
        consumer.values_to_the_end()
        commit(broker.kafka, alone, topic, 2, "a note")
        keys, value = formatted("OffsetsMessageFormatter", alone)
        assert {"group": alone, "topic": topic, "partition": 0} in keys
        # librdkafka sends its strings with a NUL.
        assert (value["offset"], value["metadata"].rstrip("\0")) == (2, "a note")

        _, value = formatted("GroupMetadataMessageFormatter", members)
        assert value["protocolType"] == "consumer"
        assert value["generation"] >= 1
        (member,) = value["members"]
        assert member["memberId"] == value["leader"] == consumer.member_id


def test_a_monitor_reads_every_commit_at_once_with_dense_offsets(
    broker: BrokerProcess, monitor: Callable[..., Monitor], topic: str
) -> None:
    Kcat().produce(broker.kafka, topic, [Record(b"k", b"v")])
    group = f"{topic}-group"
    commit(broker.kafka, group, topic, 1)
    one = monitor(kafka_partition(group))
    assert offset_of(one.until(is_offset_of(group))) == 1
    for offset in range(2, 30):
        commit(broker.kafka, group, topic, offset)
        assert offset_of(one.until(is_offset_of(group))) == offset
    offsets = [record.offset for record in one.seen]
    assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))
    assert one.watermarks() == (offsets[0], offsets[-1] + 1)

    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.delete_consumer_groups([group])[group].result()
    gone = one.until(lambda record: record.value is None)
    assert is_offset_of(group)(gone)


@pytest.mark.parametrize("end", ["kill", pytest.param("stop", marks=pytest.mark.test_all)])
def test_a_monitor_reads_the_current_offsets_again_after_a_restart(
    restartable: BrokerProcess, topic: str, end: str
) -> None:
    broker = restartable
    Kcat().produce(broker.kafka, topic, [Record(b"k", b"v")])
    group = f"{end}ed"
    one = Monitor(broker.kafka, kafka_partition(group))
    for offset in (3, 5):
        commit(broker.kafka, group, topic, offset)
    one.until(lambda record: is_offset_of(group)(record) and offset_of(record) == 5)
    getattr(broker, end)()
    broker.start()
    again = one.until(is_offset_of(group))
    assert offset_of(again) == 5
    assert again.offset > one.seen[-2].offset
    commit(broker.kafka, group, topic, 6)
    assert offset_of(one.until(is_offset_of(group))) == 6
    one.consumer.close()


def test_a_group_can_read_the_offsets_topic_and_commit(
    restartable: BrokerProcess, topic: str
) -> None:
    broker = restartable
    Kcat().produce(broker.kafka, topic, [Record(b"k", b"v")])
    commit(broker.kafka, "g", topic, 1)

    def committed(partition: int) -> int:
        reader = Consumer({"bootstrap.servers": broker.kafka, "group.id": "readers"})
        (found,) = reader.committed([TopicPartition(OFFSETS, partition)], timeout=LIMIT_S)
        reader.close()
        return int(found.offset)

    reader = Consumer(
        {
            "bootstrap.servers": broker.kafka,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    reader.subscribe([OFFSETS])
    message = reader.poll(LIMIT_S)
    next_offset = seen(message).offset + 1
    assert message is not None
    partition = message.partition()
    assert partition is not None
    reader.commit(offsets=[TopicPartition(OFFSETS, partition, next_offset)], asynchronous=False)
    reader.close()
    assert committed(partition) == next_offset
    broker.stop()
    broker.start()
    assert committed(partition) == next_offset


def test_the_offsets_topic_is_described_by_name_and_listed(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    described = admin.list_topics(OFFSETS, timeout=LIMIT_S).topics[OFFSETS]
    assert described.error is None
    assert sorted(described.partitions) == list(range(PARTITIONS))
    assert OFFSETS in admin.list_topics(timeout=LIMIT_S).topics
    resource = ConfigResource(ConfigResource.Type.TOPIC, OFFSETS)
    configs = admin.describe_configs([resource])[resource].result()
    assert configs["cleanup.policy"].value == "compact"
    assert broker.sql(f"SELECT count() AS n FROM messages WHERE topic = '{OFFSETS}'") == [{"n": 0}]


@pytest.mark.one_broker("makes a topic of its own, and lists all")
def test_kafka_topics_lists_the_offsets_topic_unless_internal_topics_are_excluded(
    run: Tools, topic: str
) -> None:
    run(TOPICS, "--create", "--topic", topic)
    assert {OFFSETS, topic} <= set(run(TOPICS, "--list").split())
    without = set(run(TOPICS, "--list", "--exclude-internal").split())
    assert topic in without
    assert OFFSETS not in without


@pytest.mark.parametrize("with_internal", [True, False])
def test_a_subscription_by_pattern_has_the_offsets_topic_unless_the_client_excludes_it(
    broker: BrokerProcess, topic: str, with_internal: bool
) -> None:
    """librdkafka matches internal topics, as it does on Kafka, unless they are in its blacklist."""
    Kcat().produce(broker.kafka, topic, [Record(b"k", b"v")])
    config = {"bootstrap.servers": broker.kafka, "group.id": topic}
    consumer = Consumer(config if with_internal else config | {"topic.blacklist": "^__"})
    assigned: list[TopicPartition] = []
    consumer.subscribe(["^.*"], on_assign=lambda _, partitions: assigned.extend(partitions))

    def is_assigned() -> bool:
        consumer.poll(0.1)
        return bool(assigned)

    until(is_assigned, "the consumer has partitions")
    consumer.close()
    found = {partition.topic for partition in assigned}
    assert topic in found
    assert (OFFSETS in found) == with_internal


def refusals(admin: AdminClient, name: str) -> Iterator[Any]:
    yield admin.delete_topics([name])[name]
    yield admin.create_partitions([NewPartitions(name, 100)])[name]
    resource = ConfigResource(
        ConfigResource.Type.TOPIC,
        name,
        incremental_configs=[
            ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
        ],
    )
    yield admin.incremental_alter_configs([resource])[resource]
    yield admin.delete_records([TopicPartition(name, 0, 1)])[TopicPartition(name, 0, 1)]


def test_nobody_can_write_to_the_offsets_topic_or_change_it(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    for future in refusals(admin, OFFSETS):
        with pytest.raises(KafkaException) as refused:
            future.result()
        assert refused.value.args[0].code() == confluent_kafka.KafkaError.TOPIC_EXCEPTION
    told: list[Any] = []
    producer = Producer({"bootstrap.servers": broker.kafka})
    producer.produce(OFFSETS, b"v", on_delivery=lambda error, _: told.append(error), partition=0)
    producer.flush(LIMIT_S)
    assert [error.code() for error in told] == [confluent_kafka.KafkaError.TOPIC_EXCEPTION]


def test_producing_to_an_internal_topic_does_not_create_it(broker: BrokerProcess) -> None:
    told: list[Any] = []
    names = (OFFSETS, "__transaction_state")
    producer = Producer({"bootstrap.servers": broker.kafka, "message.timeout.ms": 3000})
    for name in names:
        producer.produce(name, b"v", on_delivery=lambda error, _: told.append(error))
    producer.flush(LIMIT_S)
    assert [error is None for error in told] == [False, False]
    assert broker.sql(f"SELECT name FROM topics WHERE name IN {names}") == []


@pytest.mark.test_all
def test_in_a_cluster_the_coordinator_of_the_groups_leads_the_partition(
    cluster: Cluster, topic: str
) -> None:
    kafka = ",".join(broker.kafka for broker in cluster.brokers)
    topic = topic_on_all(cluster, topic, 4).name
    groups = [f"{topic}-{n}" for n in range(8)]
    for group in groups:
        until(partial(is_committed, kafka, group, topic, 7), f"the coordinator of {group} serves")
    admin = AdminClient({"bootstrap.servers": kafka})
    described = admin.list_topics(OFFSETS, timeout=LIMIT_S).topics[OFFSETS]
    assert {one.leader for one in described.partitions.values()} == {
        one.id for one in admin.list_topics(timeout=LIMIT_S).brokers.values()
    }
    reader = Consumer({"bootstrap.servers": kafka, "group.id": "m", "enable.auto.commit": False})
    reader.assign(
        [TopicPartition(OFFSETS, n, confluent_kafka.OFFSET_BEGINNING) for n in described.partitions]
    )
    found: dict[str, int] = {}
    while len(found) < len(groups):
        record = seen(reader.poll(LIMIT_S))
        for group in groups:
            if is_offset_of(group)(record):
                found[group] = offset_of(record)
    assert found == dict.fromkeys(groups, 7)
    reader.close()
