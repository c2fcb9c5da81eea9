"""Producers: topics, acks, idempotence, refusals."""

import threading
from concurrent.futures import ThreadPoolExecutor

import confluent_kafka
import kafka
import kafka.record.default_records
import lz4.frame
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import TopicPartition

from tests.support.adapters import CLIENTS, Client, ConfluentKafka, GetClient, KafkaPython
from tests.support.broker_process import BrokerProcess
from tests.support.records import Record, rows
from tests.support.waiting import LIMIT_S

IDEMPOTENT_BY_DEFAULT = ["kafka-python", "java"]
RECORDS = [Record(b"%d" % n, b"value %d" % n) for n in range(500)]


def keys(records: list[Record]) -> list[bytes | None]:
    return [record.key for record in records]


@pytest.mark.each_change
@pytest.mark.parametrize("name", [name for name in CLIENTS if name != "kcat"])
def test_a_client_creates_a_topic_of_three_partitions(
    broker: BrokerProcess, client: GetClient, topic: str, name: str
) -> None:
    client(name).create_topic(broker.kafka, topic, 3)

    found = broker.sql(
        "SELECT partitions FROM topics WHERE name = {topic:String}", {"topic": topic}
    )
    assert found == [{"partitions": 3}]
    client(name).produce(broker.kafka, topic, RECORDS[:5], partition=2)
    assert keys(rows(broker, topic, 2)) == keys(RECORDS[:5])
    assert (
        client(name).read_from_offset(broker.kafka, topic, 4, 1, partition=2)
        == rows(broker, topic, 2)[4:]
    )


@pytest.mark.parametrize("name", [name for name in CLIENTS if name not in ("kcat", "aiokafka")])
def test_creating_a_topic_that_exists_fails(
    broker: BrokerProcess, client: GetClient, topic: str, name: str
) -> None:
    client(name).create_topic(broker.kafka, topic, 1)

    with pytest.raises(Exception, match=r"(?i)already|exists"):
        client(name).create_topic(broker.kafka, topic, 1)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_produces_with_every_acks(
    broker: BrokerProcess, client: GetClient, topic: str, name: str, acks: str
) -> None:
    client(name).create_topic(broker.kafka, topic, 1)

    broker.await_topic(topic)  # with acks=0 nobody says that it is not known yet
    client(name).produce(broker.kafka, topic, RECORDS, acks=acks, idempotent=False)

    # Reading waits for the records, which acks=0 does not.
    read = client(name).read_from_offset(broker.kafka, topic, 0, len(RECORDS))
    assert keys(read) == keys(RECORDS)
    assert keys(rows(broker, topic)) == keys(RECORDS)


@pytest.mark.each_change
@pytest.mark.parametrize("name", CLIENTS)
def test_an_idempotent_producer_leaves_its_id_and_its_sequence_in_the_rows(
    broker: BrokerProcess, client: GetClient, topic: str, name: str
) -> None:
    client(name).create_topic(broker.kafka, topic, 1)
    asked = None if name in IDEMPOTENT_BY_DEFAULT else True

    client(name).produce(broker.kafka, topic, RECORDS, idempotent=asked)

    found = broker.sql(
        """
        SELECT count() AS records, uniqExact(producer_id) AS producers,
               min(producer_id) >= 0 AS has_id, groupArray(sequence) = range(500) AS in_sequence
        FROM (SELECT * FROM messages WHERE topic = {topic:String} ORDER BY offset)
        HAVING records > 0
        """,
        {"topic": topic},
    )
    assert found == [{"records": 500, "producers": 1, "has_id": 1, "in_sequence": 1}]


def test_two_idempotent_producers_have_two_ids(
    broker: BrokerProcess, client: GetClient, topic: str
) -> None:
    for name in ("java", "confluent-kafka"):
        client(name).produce(broker.kafka, topic, RECORDS, idempotent=True)

    found = broker.sql(
        "SELECT uniqExact(producer_id) AS producers, count() AS records FROM messages "
        "WHERE topic = {topic:String} HAVING records > 0",
        {"topic": topic},
    )
    assert found == [{"producers": 2, "records": 1000}]


@pytest.mark.each_change
@pytest.mark.parametrize("name", ["confluent-kafka", "kafka-python", "aiokafka", "kcat", "java"])
def test_writing_to_an_unknown_topic_creates_it(
    broker: BrokerProcess, client: GetClient, topic: str, name: str
) -> None:
    client(name).produce(broker.kafka, topic, RECORDS[:3])

    assert keys(rows(broker, topic)) == keys(RECORDS[:3])


def test_a_consumer_that_waits_at_the_end_gets_a_record_at_once(
    broker: BrokerProcess, client: GetClient, topic: str
) -> None:
    producer = client("java")
    producer.create_topic(broker.kafka, topic, 1)
    # It asks the broker to wait for longer than the test does.
    limits = {"fetch.wait.max.ms": 240_000, "socket.timeout.ms": 300_000}
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.kafka, "group.id": "of no use", **limits}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])

    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(consumer.poll, LIMIT_S)
        producer.produce(broker.kafka, topic, RECORDS[:1])
        read = waiting.result()
    consumer.close()

    assert read is not None
    assert (read.error(), read.key()) == (None, RECORDS[0].key)


def test_a_record_that_is_too_large_is_refused_and_the_next_one_taken(
    broker: BrokerProcess, topic: str
) -> None:
    reports: list[confluent_kafka.KafkaError | None] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.kafka, "message.max.bytes": 8_000_000}
    )
    for size in (2_000_000, 10):
        producer.produce(topic, b"x" * size, on_delivery=lambda error, _: reports.append(error))
        assert producer.flush(LIMIT_S) == 0

    refused, taken = reports
    assert refused is not None
    assert refused.code() == confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE
    assert taken is None
    assert [record.value for record in rows(broker, topic)] == [b"x" * 10]


# kcat sends its own time, and kafkajs takes timestamps through JavaScript's 53-bit numbers.
@pytest.mark.parametrize("name", [name for name in CLIENTS if name not in ("kcat", "kafkajs")])
def test_a_timestamp_may_be_any_that_the_topic_allows(
    broker: BrokerProcess, client: GetClient, topic: str, name: str
) -> None:
    """Kafka 4 by default allows no timestamp an hour or more ahead (KIP-937)."""
    year_9999_ms, last_ms = 253_402_300_799_999, 2**63 - 1
    late = [Record(b"k", b"v", (), timestamp_ms) for timestamp_ms in (last_ms, year_9999_ms)]
    client(name).create_topic(broker.kafka, topic, 1)
    with pytest.raises(Exception, match=r"(?i)timestamp"):
        client(name).produce(broker.kafka, topic, late[1:])

    allow_any_timestamp(broker, topic)
    for record in late:
        client(name).produce(broker.kafka, topic, [record])

    expected = [record.at(offset) for offset, record in enumerate(late)]
    assert rows(broker, topic) == expected
    for reader in CLIENTS:
        assert client(reader).read_from_offset(broker.kafka, topic, 0, 2) == expected, reader


def allow_any_timestamp(broker: BrokerProcess, topic: str) -> None:
    resource = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry(
                "message.timestamp.after.max.ms",
                str(2**63 - 1),
                incremental_operation=AlterConfigOpType.SET,
            )
        ],
    )
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.incremental_alter_configs([resource])[resource].result(LIMIT_S)
    broker.await_topic(topic)


def test_an_lz4_batch_that_kafkas_clients_cannot_read_is_refused(
    broker: BrokerProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka knows no blocks that depend on earlier ones (KIP-57); its client and broker say so."""
    monkeypatch.setattr(
        kafka.record.default_records,
        "lz4_encode",
        lambda payload: lz4.frame.compress(payload, block_linked=True, block_size=4),
    )
    records = [Record(b"key", b"x" * 200_000)]

    with pytest.raises(kafka.errors.KafkaError):
        KafkaPython().produce(broker.kafka, topic, records, codec="lz4")


@pytest.mark.each_change
def test_many_producers_and_partitions_at_once(
    broker: BrokerProcess, client: GetClient, topic: str
) -> None:
    """Each partition has what each client sent, in order."""
    partitions, writers = 8, 10
    client("confluent-kafka").create_topic(broker.kafka, topic, partitions)
    ready = threading.Barrier(writers)

    def produce(writer: int) -> None:
        records = [Record(b"%d" % writer, b"%d" % n) for n in range(100)]
        ready.wait(LIMIT_S)
        for partition in range(partitions):
            writing_client: Client = ConfluentKafka()
            writing_client.produce(
                broker.kafka, topic, records, partition=partition, idempotent=True
            )

    with ThreadPoolExecutor(writers) as threads:
        for done in [threads.submit(produce, writer) for writer in range(writers)]:
            done.result(LIMIT_S)

    for partition in range(partitions):
        found = rows(broker, topic, partition)
        assert [record.offset for record in found] == list(range(100 * writers))
        for writer in range(writers):
            values = [record.value for record in found if record.key == b"%d" % writer]
            assert values == [b"%d" % n for n in range(100)]
