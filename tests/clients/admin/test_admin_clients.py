"""The admin clients that people use: confluent-kafka and kafka-python."""

from typing import Any

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient as ConfluentAdmin
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry
from confluent_kafka.admin._config import ConfigResource as ConfluentResource
from confluent_kafka.cimpl import KafkaException, NewPartitions, NewTopic

from tests.support.admin_requests import LIMIT_S
from tests.support.broker_process import BrokerProcess


def outcome(future: Any) -> Any:
    """What an admin future ends with: its value, or the name of its error."""
    try:
        return future.result(LIMIT_S)
    except KafkaException as error:
        return error.args[0].name()


@pytest.mark.each_change
def test_confluent_kafka_creates_changes_describes_and_deletes_topics(
    broker: BrokerProcess, confluent: ConfluentAdmin, topic: str
) -> None:
    made = confluent.create_topics(
        [
            NewTopic(topic, 3, 1, config={"retention.ms": "5"}),
            NewTopic(f"{topic}-rf", 1, 3),
            NewTopic(f"{topic}-assigned", 2, replica_assignment=[[1], [1]]),
        ]
    )
    assert {name: outcome(future) for name, future in made.items()} == {
        topic: None,
        f"{topic}-rf": "INVALID_REPLICATION_FACTOR",
        f"{topic}-assigned": None,
    }
    [grown] = confluent.create_partitions([NewPartitions(topic, 5)]).values()
    assert outcome(grown) is None
    # For librdkafka it is no error that the broker has not waited.
    [begun] = confluent.create_topics([NewTopic(f"{topic}-begun")], operation_timeout=0).values()
    assert outcome(begun) is None
    broker.await_topic(f"{topic}-begun")
    change = ConfluentResource(
        ConfluentResource.Type.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry(
                "cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND
            ),
            ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
        ],
    )
    [changed] = confluent.incremental_alter_configs([change]).values()
    assert outcome(changed) is None
    broker.await_topic(topic)
    resource = ConfluentResource(ConfluentResource.Type.TOPIC, topic)
    configs = outcome(confluent.describe_configs([resource])[resource])
    assert configs["cleanup.policy"].value == "delete,compact"
    assert configs["retention.ms"].value == "604800000"
    described = outcome(confluent.describe_topics(TopicCollection([topic]))[topic])
    assert [partition.id for partition in described.partitions] == [0, 1, 2, 3, 4]
    assert topic in confluent.list_topics(timeout=LIMIT_S).topics
    cluster = outcome(confluent.describe_cluster(include_authorized_operations=True))
    assert 1 in [node.id for node in cluster.nodes]
    deleted = confluent.delete_topics([topic, f"{topic}-assigned", f"{topic}-x"])
    assert {name: outcome(future) for name, future in deleted.items()} == {
        topic: None,
        f"{topic}-assigned": None,
        f"{topic}-x": "UNKNOWN_TOPIC_OR_PART",
    }


@pytest.mark.each_change
def test_kafka_python_creates_grows_describes_and_deletes_topics(
    broker: BrokerProcess, kafka_python: Any, topic: str
) -> None:
    kafka_python.create_topics({topic: {"num_partitions": 2, "configs": {"retention.ms": "5"}}})
    kafka_python.create_partitions({topic: 4})
    broker.await_topic(topic)
    [described] = kafka_python.describe_topics([topic])
    assert len(described["partitions"]) == 4
    assert topic in kafka_python.list_topics()
    assert kafka_python.describe_cluster()["brokers"][0]["broker_id"] == 1
    kafka_python.delete_topics([topic])
    broker.await_topic(topic)
    assert topic not in kafka_python.list_topics()
