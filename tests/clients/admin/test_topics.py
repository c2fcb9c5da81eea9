"""CreateTopics, DeleteTopics and CreatePartitions, in every version."""

from typing import Any

import pytest

from brokerhouse.protocol.versions import ApiKey
from brokerhouse.storage.topic_configs import TOPIC_CONFIGS
from tests.support.admin_requests import (
    APPEND,
    BROKER,
    DELETE,
    INVALID_CONFIG,
    INVALID_PARTITIONS,
    INVALID_REPLICA_ASSIGNMENT,
    INVALID_REPLICATION_FACTOR,
    INVALID_REQUEST,
    INVALID_TOPIC,
    POLICY_VIOLATION,
    REQUEST_TIMED_OUT,
    SET,
    TOPIC,
    TOPIC_ALREADY_EXISTS,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    AdminWire,
    CreatePartitions,
    DeleteTopics,
    alter,
    asked,
    codes,
    create,
    delete,
    metadata,
    new_topic,
    values,
)
from tests.support.broker_process import BrokerProcess
from tests.support.on_demand import made_on_demand
from tests.support.waiting import until


@pytest.mark.parametrize("version", range(2, 8))
def test_a_topic_is_created_in_every_version(wire: AdminWire, topic: str, version: int) -> None:
    configs = {"retention.ms": "1000"}
    [made] = create(wire, new_topic(topic, 4, 1, configs=configs), version=version)
    assert (made.name, made.error_code, made.error_message) == (topic, 0, None)
    [described] = metadata(wire, asked(topic)).topics
    assert len(described.partitions) == 4
    if version >= 5:
        assert (made.num_partitions, made.replication_factor) == (4, 1)
        shown = {entry.name: (entry.value, entry.config_source) for entry in made.configs}
        assert shown.keys() == TOPIC_CONFIGS.keys()
        assert shown["retention.ms"] == ("1000", 1)
        assert shown["cleanup.policy"] == ("delete", 5)
    if version >= 7:
        assert made.topic_id == described.topic_id


def test_a_new_topic_has_as_many_partitions_as_the_setting_says(
    configured: BrokerProcess, topic: str
) -> None:
    wire = AdminWire(configured.kafka)
    create(wire, new_topic(topic))
    assert len(metadata(wire, asked(topic)).topics[0].partitions) == 3
    on_demand = asked(f"{topic}-on-demand")
    allowed = "auto.create.topics.enable"
    assert alter(wire, BROKER, "", (allowed, SET, "true")).error_code == 0
    [made] = made_on_demand(
        lambda: metadata(wire, on_demand, allow_auto_topic_creation=True).topics,
        lambda topics: codes(topics)[0],
    )
    assert alter(wire, BROKER, "", (allowed, DELETE, None)).error_code == 0
    assert len(made.partitions) == 3
    wire.close()


def test_validate_only_creates_no_topic(wire: AdminWire, topic: str) -> None:
    [checked] = create(wire, new_topic(topic, 2), validate_only=True)
    assert (checked.error_code, checked.num_partitions) == (0, 2)
    assert codes(metadata(wire, asked(topic)).topics) == [UNKNOWN_TOPIC_OR_PARTITION]
    [refused] = create(wire, new_topic(topic, 0), validate_only=True)
    assert refused.error_code == INVALID_PARTITIONS


def test_each_topic_of_a_create_request_succeeds_or_fails_by_itself(
    wire: AdminWire, topic: str
) -> None:
    create(wire, new_topic(f"{topic}.old"))
    wanted = {
        f"{topic}-good": (new_topic(f"{topic}-good"), 0),
        f"{topic}.old": (new_topic(f"{topic}.old"), TOPIC_ALREADY_EXISTS),
        f"{topic}_old": (new_topic(f"{topic}_old"), INVALID_TOPIC),
        "a b": (new_topic("a b"), INVALID_TOPIC),
        "__cluster_metadata": (new_topic("__cluster_metadata"), INVALID_REQUEST),
        f"{topic}-rf0": (new_topic(f"{topic}-rf0", 1, 0), INVALID_REPLICATION_FACTOR),
        f"{topic}-rf3": (new_topic(f"{topic}-rf3", 1, 3), INVALID_REPLICATION_FACTOR),
        f"{topic}-p0": (new_topic(f"{topic}-p0", 0, 1), INVALID_PARTITIONS),
        f"{topic}-p-2": (new_topic(f"{topic}-p-2", -2, 1), INVALID_PARTITIONS),
        f"{topic}-c1": (new_topic(f"{topic}-c1", configs={"no.such": "1"}), INVALID_CONFIG),
        f"{topic}-c2": (new_topic(f"{topic}-c2", configs={"retention.ms": "x"}), INVALID_CONFIG),
        f"{topic}-c3": (new_topic(f"{topic}-c3", configs={"retention.ms": None}), INVALID_CONFIG),
    }
    results = create(wire, *(row for row, _ in wanted.values()))
    assert {r.name: r.error_code for r in results} == {n: c for n, (_, c) in wanted.items()}
    assert all(r.error_message for r in results if r.error_code)


@pytest.mark.one_broker("says what the only broker there is says of itself")
def test_partitions_of_a_new_topic_can_be_assigned_to_the_only_broker(
    wire: AdminWire, topic: str
) -> None:
    rows = {
        "good": ([(1, [1]), (0, [1])], 0),
        "gap": ([(0, [1]), (2, [1])], INVALID_REPLICA_ASSIGNMENT),
        "twice": ([(0, [1]), (0, [1])], INVALID_REPLICA_ASSIGNMENT),
        "nobody": ([(0, [])], INVALID_REPLICA_ASSIGNMENT),
        "stranger": ([(0, [7])], INVALID_REPLICA_ASSIGNMENT),
        "same": ([(0, [1, 1])], INVALID_REPLICA_ASSIGNMENT),
    }
    results = create(
        wire, *(new_topic(f"{topic}-{n}", assignments=a) for n, (a, _) in rows.items())
    )
    assert codes(results) == [code for _, code in rows.values()]
    assert results[0].num_partitions == 2
    [mixed] = create(wire, new_topic(f"{topic}-mixed", 1, -1, assignments=[(0, [1])]))
    assert mixed.error_code == INVALID_REQUEST


def test_a_topic_named_twice_in_a_request_is_not_created(wire: AdminWire, topic: str) -> None:
    [result] = create(wire, new_topic(topic, 1), new_topic(topic, 2))
    assert (result.name, result.error_code) == (topic, INVALID_REQUEST)
    assert codes(metadata(wire, asked(topic)).topics) == [UNKNOWN_TOPIC_OR_PARTITION]


def test_a_request_for_too_many_partitions_is_refused_as_a_whole(
    wire: AdminWire, topic: str
) -> None:
    results = create(wire, new_topic(topic, 1), new_topic(f"{topic}-2", 10_000))
    assert codes(results) == [POLICY_VIOLATION] * 2
    assert "10000 at most" in results[0].error_message


def test_topics_and_their_configs_survive_a_restart(configured: BrokerProcess, topic: str) -> None:
    process = configured
    wire = AdminWire(process.kafka)
    [made] = create(wire, new_topic(topic, 3, configs={"retention.ms": "77"}))
    alter(wire, TOPIC, topic, ("cleanup.policy", APPEND, "compact"))
    wire.close()
    process.restart()
    wire = AdminWire(process.kafka)
    [described] = metadata(wire, asked(topic)).topics
    assert (described.topic_id, len(described.partitions)) == (made.topic_id, 3)
    assert values(wire, topic) == {"retention.ms": "77", "cleanup.policy": "delete,compact"}
    wire.close()


@pytest.mark.parametrize("version", range(1, 7))
def test_a_topic_is_deleted_by_name_in_every_version(
    wire: AdminWire, topic: str, version: int
) -> None:
    create(wire, new_topic(topic))
    named = (
        {"topics": [DeleteTopics.DeleteTopicState(name=topic, topic_id=None)]}
        if version >= 6
        else {"topic_names": [topic]}
    )
    [result] = wire.ask(ApiKey.DeleteTopics, version, timeout_ms=10_000, **named).responses
    assert (result.name, result.error_code) == (topic, 0)
    assert codes(metadata(wire, asked(topic)).topics) == [UNKNOWN_TOPIC_OR_PARTITION]


def test_a_topic_deleted_by_id_is_created_again_with_another_id(
    wire: AdminWire, topic: str
) -> None:
    [first] = create(wire, new_topic(topic))
    [gone] = delete(wire, (None, first.topic_id))
    assert (gone.name, gone.topic_id, gone.error_code) == (topic, first.topic_id, 0)
    [second] = create(wire, new_topic(topic))
    assert second.topic_id != first.topic_id
    assert codes(delete(wire, (None, first.topic_id))) == [UNKNOWN_TOPIC_ID]
    assert codes(metadata(wire, asked(topic)).topics) == [0]


def test_a_change_with_a_timeout_of_0_is_answered_as_timed_out_and_happens(
    wire: AdminWire, topic: str
) -> None:
    def found() -> Any:
        [described] = metadata(wire, asked(topic)).topics
        return described

    [made] = create(wire, new_topic(topic), timeout_ms=0)
    assert made.error_code == REQUEST_TIMED_OUT
    assert "The change continues" in made.error_message
    until(lambda: found().error_code == 0, "the topic is made")
    assert codes(grow(wire, 3, (topic, 4, None), timeout_ms=0)) == [REQUEST_TIMED_OUT]
    until(lambda: len(found().partitions) == 4, "the topic has grown")
    assert codes(delete(wire, (topic, None), timeout_ms=0)) == [REQUEST_TIMED_OUT]
    until(lambda: found().error_code == UNKNOWN_TOPIC_OR_PARTITION, "the topic is deleted")


def test_a_delete_request_with_unclear_topics_deletes_nothing(wire: AdminWire, topic: str) -> None:
    [made] = create(wire, new_topic(topic))
    assert codes(delete(wire, (f"{topic}-x", None))) == [UNKNOWN_TOPIC_OR_PARTITION]
    assert codes(delete(wire, (None, None))) == [INVALID_REQUEST]
    assert codes(delete(wire, (topic, made.topic_id))) == [INVALID_REQUEST]
    assert codes(delete(wire, (topic, None), (topic, None))) == [INVALID_REQUEST]
    both_ways = delete(wire, (topic, None), (None, made.topic_id))
    assert codes(both_ways) == [INVALID_REQUEST] * 2
    assert codes(metadata(wire, asked(topic)).topics) == [0]


def grow(
    wire: AdminWire,
    version: int,
    *rows: tuple[str, int, Any],
    validate: bool = False,
    timeout_ms: int = 10_000,
) -> list[Any]:
    topics = [
        CreatePartitions.CreatePartitionsTopic(
            name=name,
            count=count,
            assignments=None
            if assignments is None
            else [
                CreatePartitions.CreatePartitionsTopic.CreatePartitionsAssignment(broker_ids=ids)
                for ids in assignments
            ],
        )
        for name, count, assignments in rows
    ]
    answer = wire.ask(
        ApiKey.CreatePartitions,
        version,
        topics=topics,
        timeout_ms=timeout_ms,
        validate_only=validate,
    )
    return list(answer.results)


@pytest.mark.parametrize("version", range(4))
def test_a_topic_grows_in_every_version(wire: AdminWire, topic: str, version: int) -> None:
    create(wire, new_topic(topic, 2))
    assert codes(grow(wire, version, (topic, 5, None), validate=True)) == [0]
    assert len(metadata(wire, asked(topic)).topics[0].partitions) == 2
    assert codes(grow(wire, version, (topic, 5, None))) == [0]
    assert len(metadata(wire, asked(topic)).topics[0].partitions) == 5


def test_a_topic_cannot_shrink(wire: AdminWire, topic: str) -> None:
    create(wire, new_topic(topic, 2))
    for count in (2, 1, 0, -1):
        [result] = grow(wire, 3, (topic, count, None))
        assert result.error_code == INVALID_PARTITIONS
        assert "has 2 partitions" in result.error_message
    assert codes(grow(wire, 3, (f"{topic}-x", 2, None))) == [UNKNOWN_TOPIC_OR_PARTITION]
    assert codes(grow(wire, 3, (topic, 3, None), (topic, 4, None))) == [INVALID_REQUEST]
    assert codes(grow(wire, 3, (topic, 10_003, None))) == [POLICY_VIOLATION]


@pytest.mark.one_broker("says what the only broker there is says of itself")
def test_new_partitions_can_be_assigned_only_to_the_only_broker(
    wire: AdminWire, topic: str
) -> None:
    create(wire, new_topic(topic, 1))
    assert codes(grow(wire, 3, (topic, 3, [[1]]))) == [INVALID_REPLICA_ASSIGNMENT]
    assert codes(grow(wire, 3, (topic, 3, [[1], [2]]))) == [INVALID_REPLICA_ASSIGNMENT]
    assert codes(grow(wire, 3, (topic, 3, [[1], []]))) == [INVALID_REPLICA_ASSIGNMENT]
    assert codes(grow(wire, 3, (topic, 3, [[1], [1]]))) == [0]


def test_many_topics_are_created_grown_and_deleted_in_one_change_each(
    configured: BrokerProcess, topic: str
) -> None:
    broker = configured
    wire = AdminWire(broker.kafka)
    names = [f"{topic}-{n}" for n in range(50)]

    def changes(version: int) -> list[dict[str, Any]]:
        return broker.sql(
            "SELECT count() AS topics, uniqExact(changed_at) AS changes"
            " FROM topic_versions"
            f" WHERE version = {version} AND startsWith(name, '{topic}')"
        )

    assert set(codes(create(wire, *(new_topic(name) for name in names)))) == {0}
    assert changes(1) == [{"topics": 50, "changes": 1}]
    grown = grow(wire, 3, (f"{topic}-x", 4, None), *((name, 4, None) for name in names))
    assert codes(grown) == [UNKNOWN_TOPIC_OR_PARTITION] + [0] * 50
    assert changes(2) == [{"topics": 50, "changes": 1}]
    assert {len(one.partitions) for one in metadata(wire, asked(*names)).topics} == {4}
    gone = delete(wire, (f"{topic}-x", None), *((name, None) for name in names))
    assert codes(gone) == [UNKNOWN_TOPIC_OR_PARTITION] + [0] * 50
    assert set(codes(metadata(wire, asked(*names)).topics)) == {UNKNOWN_TOPIC_OR_PARTITION}
    wire.close()
    broker.kill()
    broker.start()
    left = broker.sql(f"SELECT count() AS n FROM topics WHERE startsWith(name, '{topic}')")
    assert left == [{"n": 0}]
