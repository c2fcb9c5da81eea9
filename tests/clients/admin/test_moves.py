"""ElectLeaders, reassignments, log directories, features, the quorum, UnregisterBroker.

Every partition has one replica, on its leader, so what these requests ask for is done already or
cannot be done.
"""

from typing import Any

import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient as ConfluentAdmin

from brokerhouse.broker.api import APIS
from brokerhouse.protocol.versions import ApiKey
from tests.support.admin_requests import (
    INVALID_REPLICA_ASSIGNMENT,
    INVALID_REQUEST,
    LIMIT_S,
    UNKNOWN_TOPIC_OR_PARTITION,
    AdminWire,
    create,
    new_topic,
)
from tests.support.broker_process import BrokerProcess

LOG_DIR_NOT_FOUND = 57
ELECTION_NOT_NEEDED = 84
NO_REASSIGNMENT_IN_PROGRESS = 85
INVALID_UPDATE_VERSION = 95
BROKER_ID_NOT_REGISTERED = 102

ElectLeaders = APIS[ApiKey.ElectLeaders].request
AlterReassignments = APIS[ApiKey.AlterPartitionReassignments].request
AlterReplicaLogDirs = APIS[ApiKey.AlterReplicaLogDirs].request
UpdateFeatures = APIS[ApiKey.UpdateFeatures].request


def elect(wire: AdminWire, wanted: dict[str, list[int]] | None, kind: int = 0) -> Any:
    topics = ElectLeaders.TopicPartitions
    partitions = (
        None if wanted is None else [topics(topic=t, partitions=p) for t, p in wanted.items()]
    )
    return wire.ask(
        ApiKey.ElectLeaders, election_type=kind, topic_partitions=partitions, timeout_ms=1000
    )


def results(answer: Any) -> dict[str, list[tuple[int, int]]]:
    return {
        topic.topic: [(one.partition_id, one.error_code) for one in topic.partition_result]
        for topic in answer.replica_election_results
    }


@pytest.mark.parametrize("kind", [0, 1])
def test_an_election_of_a_partition_is_answered_as_not_needed(
    wire: AdminWire, topic: str, kind: int
) -> None:
    create(wire, new_topic(topic, 2))
    answer = elect(wire, {topic: [0, 1, 7], "no-such-topic": [0]}, kind)
    assert answer.error_code == 0
    assert results(answer) == {
        topic: [
            (0, ELECTION_NOT_NEEDED),
            (1, ELECTION_NOT_NEEDED),
            (7, UNKNOWN_TOPIC_OR_PARTITION),
        ],
        "no-such-topic": [(0, UNKNOWN_TOPIC_OR_PARTITION)],
    }


def test_an_election_of_all_partitions_leaves_out_those_that_need_none(
    wire: AdminWire, topic: str
) -> None:
    create(wire, new_topic(topic, 2))
    answer = elect(wire, None)
    assert answer.error_code == 0
    assert results(answer)[topic] == []


def test_an_unknown_type_of_election_is_refused(wire: AdminWire, topic: str) -> None:
    create(wire, new_topic(topic))
    answer = elect(wire, {topic: [0]}, 9)
    assert answer.error_code == INVALID_REQUEST
    assert results(answer) == {topic: [(0, INVALID_REQUEST)]}


def test_confluent_and_kafka_python_elect_leaders(
    confluent: ConfluentAdmin, kafka_python: Any, wire: AdminWire, topic: str
) -> None:
    create(wire, new_topic(topic))
    future = confluent.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, 0)])
    ((_, error),) = future.result(LIMIT_S).items()
    assert error.code() == ELECTION_NOT_NEEDED
    (found,) = kafka_python.elect_leaders(0, {topic: [0]}).replica_election_results
    assert [one.error_code for one in found.partition_result] == [ELECTION_NOT_NEEDED]


def reassign(
    wire: AdminWire, topic: str, index: int, replicas: list[int] | None, **more: Any
) -> Any:
    rows = AlterReassignments.ReassignableTopic
    partition = rows.ReassignablePartition(partition_index=index, replicas=replicas)
    answer = wire.ask(
        ApiKey.AlterPartitionReassignments,
        timeout_ms=1000,
        topics=[rows(name=topic, partitions=[partition])],
    )
    assert answer.error_code == 0
    ((result,),) = [one.partitions for one in answer.responses]
    assert (result.error_code == 0) == (result.error_message is None)
    return result


@pytest.mark.one_broker("names the only broker there is")
def test_a_partition_can_be_reassigned_only_to_where_it_is(wire: AdminWire, topic: str) -> None:
    create(wire, new_topic(topic))
    for index, replicas, code in (
        (0, [1], 0),
        (0, [2], INVALID_REPLICA_ASSIGNMENT),
        (0, [1, 2], INVALID_REPLICA_ASSIGNMENT),
        (0, [1, 1], INVALID_REPLICA_ASSIGNMENT),
        (0, [], INVALID_REPLICA_ASSIGNMENT),
        (0, None, NO_REASSIGNMENT_IN_PROGRESS),
        (5, [1], UNKNOWN_TOPIC_OR_PARTITION),
    ):
        assert reassign(wire, topic, index, replicas).error_code == code, (index, replicas)
    assert reassign(wire, "no-such-topic", 0, [1]).error_code == UNKNOWN_TOPIC_OR_PARTITION
    wanted: list[list[Any] | None] = [None, []]
    for topics in wanted:
        listed = wire.ask(ApiKey.ListPartitionReassignments, timeout_ms=1000, topics=topics)
        assert (listed.error_code, list(listed.topics)) == (0, [])


@pytest.mark.one_broker("asks for the data directory")
def test_a_partition_can_be_moved_only_to_the_directory_it_is_in(
    broker: BrokerProcess, wire: AdminWire, topic: str
) -> None:
    create(wire, new_topic(topic))
    rows = AlterReplicaLogDirs.AlterReplicaLogDir

    def moved(path: str) -> dict[tuple[str, int], int]:
        topics = [
            rows.AlterReplicaLogDirTopic(name=name, partitions=[0, 5])
            for name in (topic, "no-such-topic")
        ]
        answer = wire.ask(ApiKey.AlterReplicaLogDirs, dirs=[rows(path=path, topics=topics)])
        return {
            (one.topic_name, partition.partition_index): partition.error_code
            for one in answer.results
            for partition in one.partitions
        }

    assert moved(str(broker.data_dir.resolve())) == {
        (topic, 0): 0,
        (topic, 5): UNKNOWN_TOPIC_OR_PARTITION,
        ("no-such-topic", 0): UNKNOWN_TOPIC_OR_PARTITION,
        ("no-such-topic", 5): UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert set(moved("/nowhere").values()) == {LOG_DIR_NOT_FOUND}


def update(wire: AdminWire, *levels: tuple[str, int], kind: int = 1, version: int = 2) -> Any:
    rows = [
        UpdateFeatures.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
        for name, level in levels
    ]
    return wire.ask(
        ApiKey.UpdateFeatures,
        version,
        timeout_ms=1000,
        feature_updates=rows,
        validate_only=False,
    )


def test_features_are_listed_and_stay_at_their_levels(wire: AdminWire) -> None:
    answer = wire.ask(ApiKey.ApiVersions, 4, client_software_name="w", client_software_version="1")
    levels = {one.name: one.max_version_level for one in answer.finalized_features}
    assert levels == {"metadata.version": 30, "transaction.version": 2}
    assert {one.name: one.max_version for one in answer.supported_features} == levels
    assert answer.finalized_features_epoch >= 0
    assert update(wire, *levels.items()).error_code == 0
    assert update(wire).error_code == 0
    for name, level, kind in (
        ("transaction.version", 3, 1),
        ("transaction.version", 1, 2),
        ("transaction.version", 0, 3),
        ("transaction.version", 2, 9),
        ("metadata.version", 7, 2),
        ("group.version", 1, 1),
    ):
        refused = update(wire, (name, level), kind=kind)
        assert refused.error_code == INVALID_UPDATE_VERSION, (name, level, kind)
        assert name in refused.error_message


@pytest.mark.one_broker("names the only broker there is")
def test_only_a_broker_that_is_gone_could_be_unregistered(wire: AdminWire) -> None:
    gone = wire.ask(ApiKey.UnregisterBroker, broker_id=7)
    assert (gone.error_code, "7" in gone.error_message) == (BROKER_ID_NOT_REGISTERED, True)
    running = wire.ask(ApiKey.UnregisterBroker, broker_id=1)
    assert (running.error_code, "running" in running.error_message) == (INVALID_REQUEST, True)


@pytest.mark.one_broker("names the only broker there is")
def test_kafka_python_describes_the_quorum_and_the_features(kafka_python: Any) -> None:
    assert "'leader_id': 1" in str(kafka_python.describe_metadata_quorum())
    assert "transaction.version" in str(kafka_python.describe_features())
