"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources."""

from typing import Any

import pytest

from brokerhouse.protocol.versions import ApiKey
from brokerhouse.storage.topic_configs import TOPIC_CONFIGS
from tests.support.admin_requests import (
    APPEND,
    BROKER,
    DELETE,
    INVALID_CONFIG,
    INVALID_REQUEST,
    INVALID_TOPIC,
    SET,
    SUBTRACT,
    TOPIC,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSUPPORTED_VERSION,
    AdminWire,
    AlterConfigs,
    IncrementalAlterConfigs,
    alter,
    codes,
    create,
    describe,
    new_topic,
    values,
)
from tests.support.broker_process import BrokerProcess


@pytest.mark.parametrize("version", range(1, 5))
def test_configs_of_a_topic_are_described_in_every_version(
    wire: AdminWire, topic: str, version: int
) -> None:
    create(wire, new_topic(topic, configs={"max.message.bytes": "5000"}))
    fields: dict[str, Any] = {"include_synonyms": True}
    if version >= 3:
        fields["include_documentation"] = True
    result = describe(wire, TOPIC, topic, version=version, **fields)
    assert result.error_code == 0
    found = {entry.name: entry for entry in result.configs}
    assert found.keys() == TOPIC_CONFIGS.keys()
    entry = found["max.message.bytes"]
    assert (entry.value, entry.config_source, entry.read_only) == ("5000", 1, False)
    assert [(s.name, s.value, s.source) for s in entry.synonyms] == [
        ("max.message.bytes", "5000", 1),
        ("message.max.bytes", "1048588", 5),
    ]
    if version >= 3:
        assert entry.config_type == 3
        assert "batch" in entry.documentation


def test_only_the_configs_asked_for_are_described(wire: AdminWire, topic: str) -> None:
    create(wire, new_topic(topic))
    result = describe(wire, TOPIC, topic, ["retention.ms", "no.such"])
    assert [entry.name for entry in result.configs] == ["retention.ms"]
    assert result.configs[0].documentation is None
    assert list(result.configs[0].synonyms) == []


@pytest.mark.one_broker("says what the only broker there is says of itself")
def test_describing_configs_of_unknown_resources_is_refused(wire: AdminWire, topic: str) -> None:
    for kind, name, code in (
        (TOPIC, topic, UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a b", INVALID_TOPIC),
        (BROKER, "2", INVALID_REQUEST),
        (BROKER, "one", INVALID_REQUEST),
        (8, "2", INVALID_REQUEST),
        (16, "", INVALID_REQUEST),
        (32, "", INVALID_REQUEST),
        (99, "1", INVALID_REQUEST),
    ):
        result = describe(wire, kind, name)
        assert (result.error_code, list(result.configs)) == (code, [])
        assert result.error_message


def test_configs_of_the_broker_are_its_settings_and_hide_secrets(
    configured: BrokerProcess, topic: str
) -> None:
    process = configured
    wire = AdminWire(process.kafka)
    result = describe(wire, BROKER, "1", include_synonyms=True, include_documentation=True)
    found = {entry.name: entry for entry in result.configs}
    assert not found["message.max.bytes"].read_only
    assert found["num.partitions"].read_only
    for name, value, source in (
        ("node.id", "1", 5),
        ("broker.id", "1", 5),
        ("message.max.bytes", "100000", 4),
        ("num.partitions", "3", 4),
        ("auto.create.topics.enable", "false", 4),
        ("socket.request.max.bytes", "104857600", 5),
        ("log.dirs", str(process.data_dir.resolve()), 4),
        ("advertised.listeners", f"PLAINTEXT://{process.kafka}", 5),
        ("log.retention.ms", "-1", 4),
        ("brokerhouse.sql_user", "writer", 4),
    ):
        assert (found[name].value, found[name].config_source) == (value, source), name
    secret = found["brokerhouse.sql_password"]
    assert (secret.value, secret.is_sensitive, secret.config_type) == (None, True, 9)
    assert all(synonym.value is None for synonym in secret.synonyms)
    assert "hush" not in str(result)
    # What the broker is set to is what a topic gets, and says where it comes from.
    create(wire, new_topic(topic))
    [entry] = describe(wire, TOPIC, topic, ["max.message.bytes"], include_synonyms=True).configs
    assert (entry.value, entry.config_source) == ("100000", 4)
    assert [(s.name, s.value, s.source) for s in entry.synonyms] == [
        ("message.max.bytes", "100000", 4),
        ("message.max.bytes", "1048588", 5),
    ]
    assert [entry.name for entry in describe(wire, BROKER, "").configs] == ["min.insync.replicas"]
    wire.close()


def test_synonyms_of_defaults_are_those_of_kafka(wire: AdminWire, topic: str) -> None:
    create(wire, new_topic(topic))
    found = {
        entry.name: [(one.name, one.value, one.source) for one in entry.synonyms]
        for entry in describe(wire, TOPIC, topic, include_synonyms=True).configs
    }
    for name in ("retention.ms", "segment.ms", "segment.jitter.ms", "flush.ms"):
        assert found[name] == [], name
    assert found["min.insync.replicas"] == [
        ("min.insync.replicas", "1", 3),
        ("min.insync.replicas", "1", 5),
    ]
    assert found["segment.bytes"] == [("log.segment.bytes", "1073741824", 5)]
    assert found["remote.storage.enable"] == []
    assert not [name for name in found if name.startswith("remote.copy")]
    assert (found["leader.replication.throttled.replicas"], len(found)) == ([], 33)


@pytest.mark.parametrize("version", range(3))
def test_alter_configs_replaces_all_overrides(wire: AdminWire, topic: str, version: int) -> None:
    create(wire, new_topic(topic, configs={"retention.ms": "1", "segment.ms": "2"}))

    def replace(validate_only: bool, **configs: str | None) -> int:
        resource = AlterConfigs.AlterConfigsResource(
            resource_type=TOPIC,
            resource_name=topic,
            configs=[
                AlterConfigs.AlterConfigsResource.AlterableConfig(
                    name=name.replace("_", "."), value=value
                )
                for name, value in configs.items()
            ],
        )
        answer = wire.ask(
            ApiKey.AlterConfigs, version, resources=[resource], validate_only=validate_only
        )
        return int(answer.responses[0].error_code)

    assert replace(True, flush_ms="5") == 0
    assert values(wire, topic) == {"retention.ms": "1", "segment.ms": "2"}
    assert replace(False, flush_ms="-5") == INVALID_CONFIG
    assert replace(False, flush_ms=None) == INVALID_REQUEST
    assert values(wire, topic) == {"retention.ms": "1", "segment.ms": "2"}
    assert replace(False, flush_ms="5") == 0
    assert values(wire, topic) == {"flush.ms": "5"}


@pytest.mark.parametrize("version", range(2))
def test_configs_are_set_deleted_appended_and_subtracted(
    wire: AdminWire, topic: str, version: int
) -> None:
    create(wire, new_topic(topic, configs={"retention.ms": "1"}))

    def after(*steps: tuple[str, int, str | None]) -> dict[str, str]:
        assert alter(wire, TOPIC, topic, *steps, version=version).error_code == 0
        return values(wire, topic)

    assert after(("segment.ms", SET, "9"), ("cleanup.policy", APPEND, "compact")) == {
        "retention.ms": "1",
        "segment.ms": "9",
        "cleanup.policy": "delete,compact",
    }
    assert after(("retention.ms", DELETE, None), ("cleanup.policy", SUBTRACT, "delete")) == {
        "segment.ms": "9",
        "cleanup.policy": "compact",
    }
    assert after(("cleanup.policy", APPEND, "compact"), ("segment.ms", DELETE, "ignored")) == {
        "cleanup.policy": "compact"
    }
    assert after(("flush.ms", DELETE, None)) == {"cleanup.policy": "compact"}


def test_a_wrong_change_of_topic_configs_changes_nothing(wire: AdminWire, topic: str) -> None:
    create(wire, new_topic(topic, configs={"retention.ms": "1"}))
    good = ("segment.ms", SET, "9")
    for steps, code in (
        ([good, ("no.such", SET, "1")], INVALID_CONFIG),
        ([good, ("retention.ms", SET, "soon")], INVALID_CONFIG),
        ([good, ("retention.ms", APPEND, "1")], INVALID_CONFIG),
        ([good, ("cleanup.policy", APPEND, "forget")], INVALID_CONFIG),
        ([good, ("retention.ms", SET, None)], INVALID_REQUEST),
        ([good, good], INVALID_REQUEST),
        ([good, ("retention.ms", 9, "1")], INVALID_REQUEST),
    ):
        result = alter(wire, TOPIC, topic, *steps)
        assert result.error_code == code, steps
        assert result.error_message
    assert alter(wire, TOPIC, topic, good, validate_only=True).error_code == 0
    assert values(wire, topic) == {"retention.ms": "1"}


@pytest.mark.one_broker("says what the only broker there is says of itself")
def test_altering_configs_of_unknown_resources_is_refused(wire: AdminWire, topic: str) -> None:
    good = ("segment.ms", SET, "9")
    assert alter(wire, TOPIC, topic, good).error_code == UNKNOWN_TOPIC_OR_PARTITION
    assert alter(wire, TOPIC, "", good).error_code == INVALID_REQUEST
    assert alter(wire, TOPIC, "a b", good).error_code == INVALID_TOPIC
    assert alter(wire, BROKER, "2", good).error_code == INVALID_REQUEST
    refused = alter(wire, 99, "x", good)
    assert refused.error_code == INVALID_REQUEST
    assert "CLIENT_METRICS (16)" in refused.error_message


def test_a_resource_named_twice_in_a_request_is_refused_both_times(
    wire: AdminWire, topic: str
) -> None:
    create(wire, new_topic(topic))
    rows = IncrementalAlterConfigs.AlterConfigsResource
    resource = rows(
        resource_type=TOPIC,
        resource_name=topic,
        configs=[rows.AlterableConfig(name="flush.ms", config_operation=SET, value="1")],
    )
    answer = wire.ask(
        ApiKey.IncrementalAlterConfigs, resources=[resource, resource], validate_only=False
    )
    assert codes(answer.responses) == [INVALID_REQUEST] * 2
    assert values(wire, topic) == {}


@pytest.mark.one_broker("says what the only broker there is says of itself")
def test_list_config_resources_lists_topics_brokers_and_loggers(
    wire: AdminWire, topic: str
) -> None:
    create(wire, new_topic(topic))
    assert list(wire.ask(ApiKey.ListConfigResources, 0).config_resources) == []

    def listed(*types: int) -> set[tuple[int, str]]:
        answer = wire.ask(ApiKey.ListConfigResources, 1, resource_types=list(types))
        assert answer.error_code == 0
        return {(row.resource_type, row.resource_name) for row in answer.config_resources}

    assert {(TOPIC, topic), (BROKER, "1"), (8, "1")} <= listed()
    assert listed(BROKER) == {(BROKER, "1")}
    assert listed(8) == {(8, "1")}
    assert listed(16, 32) == set()
    refused = wire.ask(ApiKey.ListConfigResources, 1, resource_types=[99])
    assert refused.error_code == UNSUPPORTED_VERSION
