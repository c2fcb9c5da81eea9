"""Settings that change while the broker runs, levels of loggers, configs of groups and metrics."""

from typing import Any

import pytest
from confluent_kafka.admin import AdminClient as ConfluentAdmin
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry
from confluent_kafka.admin._config import ConfigResource as ConfluentResource

from brokerhouse.broker.settings.dynamic_settings import STORED_CONFIGS
from brokerhouse.protocol.errors import MessageTooLarge
from brokerhouse.protocol.versions import ApiKey
from tests.support import messages
from tests.support.admin_requests import (
    APPEND,
    BROKER,
    DELETE,
    INVALID_CONFIG,
    INVALID_REQUEST,
    LIMIT_S,
    NO_ID,
    SET,
    TOPIC,
    AdminWire,
    AlterConfigs,
    alter,
    create,
    describe,
    new_topic,
)
from tests.support.broker_process import BrokerProcess
from tests.support.messages import Target
from tests.support.waiting import until
from tests.support.wire import Wire

BROKER_LOGGER, CLIENT_METRICS, GROUP = 8, 16, 32
ALL = ""
NAME = "x/y \0 line\n quotes \"'` back\\slash é 😀"
OF_TOPIC, OF_BROKER, OF_ALL, STATIC, DEFAULT = range(1, 6)


def entry(wire: AdminWire, kind: int, name: str, config: str) -> Any:
    (found,) = describe(wire, kind, name, [config], include_synonyms=True).configs
    return found


def shown(wire: AdminWire, kind: int, name: str, config: str) -> tuple[Any, ...]:
    """The value, its source, and the sources of all synonyms."""
    found = entry(wire, kind, name, config)
    return found.value, found.config_source, [one.source for one in found.synonyms]


def test_a_setting_of_one_broker_wins_over_that_of_all_and_survives_a_kill(
    configured: BrokerProcess, topic: str
) -> None:
    process, own = configured, f"{topic}-own"
    wire = AdminWire(process.kafka)
    create(wire, new_topic(topic), new_topic(own, configs={"max.message.bytes": "300000"}))
    assert shown(wire, BROKER, "1", "message.max.bytes") == ("100000", STATIC, [STATIC, DEFAULT])
    for name, value in ((ALL, "200000"), ("1", "50")):
        assert alter(wire, BROKER, name, ("message.max.bytes", SET, value)).error_code == 0
    expected = ("50", OF_BROKER, [OF_BROKER, OF_ALL, STATIC, DEFAULT])
    assert shown(wire, BROKER, "1", "message.max.bytes") == expected
    assert shown(wire, TOPIC, topic, "max.message.bytes") == expected
    assert shown(wire, BROKER, ALL, "message.max.bytes") == ("200000", OF_ALL, [OF_ALL])
    assert shown(wire, TOPIC, own, "max.message.bytes")[:2] == ("300000", OF_TOPIC)
    wire.close()
    process.kill()
    process.start()
    wire = AdminWire(process.kafka)
    assert shown(wire, TOPIC, topic, "max.message.bytes") == expected
    with Wire(process) as producer:
        assert produced(producer, Target(topic, NO_ID)) == MessageTooLarge.code
    assert alter(wire, BROKER, "1", ("message.max.bytes", DELETE, None)).error_code == 0
    assert shown(wire, TOPIC, topic, "max.message.bytes")[:2] == ("200000", OF_ALL)
    assert alter(wire, BROKER, ALL, ("message.max.bytes", DELETE, None)).error_code == 0
    assert shown(wire, TOPIC, topic, "max.message.bytes")[:2] == ("100000", STATIC)
    wire.close()


def produced(wire: Wire, target: Target) -> int:
    """The error code of a produce request with a small batch."""
    answer = wire.ask(messages.produce(target, messages.small_batch()), 9)
    return int(answer.responses[0].partition_responses[0].error_code)


def test_a_change_of_message_max_bytes_refuses_larger_batches_at_once(
    configured: BrokerProcess, topic: str
) -> None:
    wire = AdminWire(configured.kafka)
    with Wire(configured) as producer:
        target = messages.create_topic(producer, topic)
        assert produced(producer, target) == 0
        assert alter(wire, BROKER, ALL, ("message.max.bytes", SET, "20")).error_code == 0
        assert produced(producer, target) == MessageTooLarge.code
        assert alter(wire, BROKER, ALL, ("message.max.bytes", DELETE, None)).error_code == 0
        assert produced(producer, target) == 0
    wire.close()


def test_a_change_of_log_retention_ms_deletes_older_records(
    configured: BrokerProcess, topic: str
) -> None:
    wire = AdminWire(configured.kafka)
    with Wire(configured) as producer:
        target = messages.create_topic(producer, topic)
        producer.ask(messages.produce(target, messages.small_batch()), 9)

        def begins_at() -> int:
            answer = producer.ask(messages.list_offsets(target, -2), 7)
            return int(answer.topics[0].partitions[0].offset)

        assert begins_at() == 0
        assert alter(wire, BROKER, "1", ("log.retention.ms", SET, "1")).error_code == 0
        until(lambda: begins_at() == 2)
    assert shown(wire, TOPIC, topic, "retention.ms")[:2] == ("1", OF_BROKER)
    assert alter(wire, BROKER, "1", ("log.retention.ms", DELETE, None)).error_code == 0
    wire.close()


def test_a_change_of_max_connections_refuses_more_connections_at_once(
    configured: BrokerProcess, topic: str
) -> None:
    process = configured
    wire = AdminWire(process.kafka)
    assert alter(wire, BROKER, "1", ("max.connections", SET, "1")).error_code == 0
    with Wire(process) as refused:
        assert refused.frames_until_closed() == []
    assert alter(wire, BROKER, "1", ("max.connections", DELETE, None)).error_code == 0
    AdminWire(process.kafka).close()
    with Wire(process) as accepted:
        messages.create_topic(accepted, topic)
    wire.close()


@pytest.mark.one_broker("names the only broker there is")
def test_a_refused_change_of_a_setting_names_the_setting(wire: AdminWire) -> None:
    for steps, code, named in (
        ([("num.partitions", SET, "3")], INVALID_REQUEST, "num_partitions"),
        ([("num.partitions", DELETE, None)], INVALID_REQUEST, "num_partitions"),
        ([("no.such.config", SET, "3")], INVALID_REQUEST, "no.such.config"),
        ([("listeners", SET, "x")], INVALID_REQUEST, "listeners"),
        ([("message.max.bytes", SET, "many")], INVALID_REQUEST, "message.max.bytes"),
        ([("message.max.bytes", SET, "0")], INVALID_REQUEST, "at least 1"),
        ([("message.max.bytes", SET, "104857601")], INVALID_REQUEST, "request_max_bytes"),
        ([("message.max.bytes", APPEND, "3")], INVALID_CONFIG, "not a list"),
        ([("brokerhouse.log_level", SET, "loud")], INVALID_REQUEST, "brokerhouse.log_level"),
        ([("min.insync.replicas", SET, "0")], INVALID_REQUEST, "at least 1"),
        (
            [("max.connections", SET, "500"), ("node.id", SET, "2")],
            INVALID_REQUEST,
            "node_id",
        ),
    ):
        for name in ("1", ALL):
            result = alter(wire, BROKER, name, *steps)
            assert (result.error_code, named in result.error_message) == (code, True), result
    good = ("max.connections", SET, "500")
    assert alter(wire, BROKER, "1", good, validate_only=True).error_code == 0
    assert shown(wire, BROKER, "1", "max.connections")[1] == DEFAULT
    found = describe(wire, BROKER, "1").configs
    assert {one.name for one in found if not one.read_only} - STORED_CONFIGS.keys() == {
        "auto.create.topics.enable",
        "brokerhouse.log_level",
        "brokerhouse.offset_metadata_max_bytes",
        "fetch.max.bytes",
        "log.retention.ms",
        "max.connections",
        "message.max.bytes",
        "offset.metadata.max.bytes",
    }


def test_alter_configs_replaces_all_that_is_set_for_a_broker(configured: BrokerProcess) -> None:
    wire = AdminWire(configured.kafka)

    def replace(**configs: str) -> int:
        row = AlterConfigs.AlterConfigsResource
        resource = row(
            resource_type=BROKER,
            resource_name="1",
            configs=[
                row.AlterableConfig(name=name.replace("_", "."), value=value)
                for name, value in configs.items()
            ],
        )
        answer = wire.ask(ApiKey.AlterConfigs, resources=[resource], validate_only=False)
        return int(answer.responses[0].error_code)

    def own() -> dict[str, str]:
        found = describe(wire, BROKER, "1").configs
        return {one.name: one.value for one in found if one.config_source == OF_BROKER}

    assert replace(max_connections="50", fetch_max_bytes="5000") == 0
    assert own() == {"max.connections": "50", "fetch.max.bytes": "5000"}
    assert replace(fetch_max_bytes="6000") == 0
    assert own() == {"fetch.max.bytes": "6000"}
    assert replace(num_partitions="5") == INVALID_REQUEST
    assert own() == {"fetch.max.bytes": "6000"}
    assert replace() == 0
    assert own() == {}
    wire.close()


def test_confluent_kafka_changes_a_setting_of_the_broker(configured: BrokerProcess) -> None:
    admin = ConfluentAdmin({"bootstrap.servers": configured.kafka})

    def after(operation: AlterConfigOpType, value: str | None) -> tuple[str | None, int]:
        change = ConfigEntry("max.connections", value, incremental_operation=operation)
        resource = ConfluentResource(
            ConfluentResource.Type.BROKER, "1", incremental_configs=[change]
        )
        [changed] = admin.incremental_alter_configs([resource]).values()
        changed.result(LIMIT_S)
        resource = ConfluentResource(ConfluentResource.Type.BROKER, "1")
        entry = admin.describe_configs([resource])[resource].result(LIMIT_S)["max.connections"]
        return entry.value, entry.source

    assert after(AlterConfigOpType.SET, "70") == ("70", OF_BROKER)
    assert after(AlterConfigOpType.DELETE, None)[1] == DEFAULT


def test_levels_of_loggers_change_until_a_restart(configured: BrokerProcess) -> None:
    process = configured
    wire = AdminWire(process.kafka)

    def level(name: str) -> str:
        return str(entry(wire, BROKER_LOGGER, "1", name).value)

    assert (level("root"), level("broker"), level("broker.net.connection")) == ("ERROR",) * 3
    malformed = b"\0\0\0\x0anot Kafka!"
    assert alter(wire, BROKER_LOGGER, "1", ("broker", SET, "INFO")).error_code == 0
    assert (level("root"), level("broker.net.connection")) == ("ERROR", "INFO")
    with Wire(process) as bad:
        bad.send(malformed)
        until(lambda: "closed:" in process.printed())
    for steps, code in (
        ([("no.such.logger", SET, "INFO")], INVALID_CONFIG),
        ([("root", SET, "LOUD")], INVALID_CONFIG),
        ([("root", DELETE, None)], INVALID_REQUEST),
        ([("broker", APPEND, "INFO")], INVALID_REQUEST),
        ([("broker", SET, "FATAL"), ("no.such.logger", SET, "INFO")], INVALID_CONFIG),
    ):
        assert alter(wire, BROKER_LOGGER, "1", *steps).error_code == code, steps
    assert alter(wire, BROKER_LOGGER, "2", ("root", SET, "INFO")).error_code == INVALID_REQUEST
    assert level("broker") == "INFO"
    assert alter(wire, BROKER_LOGGER, "1", ("broker", DELETE, None)).error_code == 0
    assert level("broker") == "ERROR"
    change = ("brokerhouse.log_level", SET, "debug")
    assert alter(wire, BROKER, "1", change).error_code == 0
    assert alter(wire, BROKER_LOGGER, "1", ("storage", SET, "WARN")).error_code == 0
    assert (level("root"), level("storage")) == ("DEBUG", "WARN")
    process.restart()
    wire = AdminWire(process.kafka)
    assert (level("root"), level("storage")) == ("DEBUG", "DEBUG")
    assert alter(wire, BROKER, "1", ("brokerhouse.log_level", DELETE, None)).error_code == 0
    assert level("root") == "ERROR"
    wire.close()


@pytest.mark.test_all
def test_configs_of_groups_and_client_metrics_survive_a_kill(configured: BrokerProcess) -> None:
    process = configured
    wire = AdminWire(process.kafka)
    rows = (
        (GROUP, "consumer.session.timeout.ms", "50000", 8),
        (CLIENT_METRICS, "interval.ms", "1000", 7),
    )

    def listed(kind: int) -> list[str]:
        answer = wire.ask(ApiKey.ListConfigResources, 1, resource_types=[kind])
        return [one.resource_name for one in answer.config_resources]

    for kind, config, value, _ in rows:
        assert shown(wire, kind, NAME, config)[1] == DEFAULT
        assert listed(kind) == []
        assert alter(wire, kind, NAME, (config, SET, value)).error_code == 0
    wire.close()
    process.kill()
    process.start()
    wire = AdminWire(process.kafka)
    for kind, config, value, source in rows:
        assert shown(wire, kind, NAME, config)[:2] == (value, source)
        assert listed(kind) == [NAME]
        assert shown(wire, kind, "x", config)[1] == DEFAULT
        assert alter(wire, kind, NAME, (config, DELETE, None)).error_code == 0
        assert shown(wire, kind, NAME, config)[1] == DEFAULT
        assert listed(kind) == []
    wire.close()


def test_wrong_configs_of_groups_and_client_metrics_are_refused(
    wire: AdminWire, topic: str
) -> None:
    for kind, name, step, code in (
        (GROUP, topic, ("consumer.session.timeout.ms", SET, "1"), INVALID_CONFIG),
        (GROUP, topic, ("share.auto.offset.reset", SET, "soon"), INVALID_CONFIG),
        (GROUP, topic, ("no.such", SET, "1"), INVALID_CONFIG),
        (GROUP, "", ("consumer.session.timeout.ms", SET, "50000"), INVALID_REQUEST),
        (CLIENT_METRICS, topic, ("interval.ms", SET, "1"), INVALID_CONFIG),
        (CLIENT_METRICS, topic, ("match", SET, "planet=mars"), INVALID_CONFIG),
        (CLIENT_METRICS, topic, ("match", SET, "client_id=("), INVALID_CONFIG),
        (CLIENT_METRICS, topic, ("no.such", SET, "1"), INVALID_REQUEST),
        (CLIENT_METRICS, "", ("interval.ms", SET, "1000"), INVALID_REQUEST),
        (CLIENT_METRICS, "x" * 5000, ("interval.ms", SET, "1000"), INVALID_REQUEST),
    ):
        result = alter(wire, kind, name, step)
        assert result.error_code == code, (kind, step)
        assert result.error_message
    for kind in (GROUP, CLIENT_METRICS):
        sources = {one.config_source for one in describe(wire, kind, topic).configs}
        assert sources == {DEFAULT}
