"""The configs of Kafka's brokers that mean nothing here: described, and stored where harmless."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import pytest

from brokerhouse.broker.settings import kafka_configs
from brokerhouse.broker.settings.dynamic_settings import STORED_CONFIGS
from brokerhouse.storage.config_definitions import ConfigType
from tests.support import tools
from tests.support.admin_requests import (
    BROKER,
    DELETE,
    INVALID_REQUEST,
    SET,
    AdminWire,
    alter,
    describe,
)
from tests.support.broker_process import BrokerProcess
from tests.support.console_tools import CONFIGS, Tools

pytestmark = pytest.mark.one_broker("names the only broker there is")

FILE = Path(kafka_configs.__file__).with_suffix(".tsv")
THROTTLES = {
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
}
"""Kafka's tools set them, and Kafka describes none of them."""
ALL, BROKER_1 = "", "1"
OF_BROKER = 2


def rows() -> list[Mapping[str, str]]:
    with FILE.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE, restval=""))


@pytest.mark.test_all
def test_the_file_has_every_config_of_kafka_with_its_type_default_and_mode() -> None:
    printed, _ = tools.run([*tools.java_command(), "BrokerConfigs"], limit_s=60)
    columns = ("name", "type", "default", "changes")
    kafkas = {tuple(line.split("\t")) for line in printed.splitlines()}
    ours = {tuple(row[one] for one in columns) for row in rows() if row["name"] not in THROTTLES}
    assert ours == kafkas
    assert len(kafkas) == 340


def test_every_config_of_kafka_is_described_with_its_type(wire: AdminWire) -> None:
    found = {entry.name: entry for entry in describe(wire, BROKER, BROKER_1).configs}
    for row in rows():
        entry = found[row["name"]]
        assert entry.config_type == ConfigType[row["type"].upper()], row
        assert entry.is_sensitive == (row["type"] == "password"), row
        if row["refused"]:
            assert entry.read_only, row
    backoff = found["log.cleaner.backoff.ms"]  # sarama's tests look for it
    assert (backoff.value, backoff.read_only, backoff.config_source) == ("15000", False, 5)
    assert found["broker.rack"].value is None


def test_settings_are_shown_under_kafkas_names(configured: BrokerProcess) -> None:
    wire = AdminWire(configured.kafka)
    found = {entry.name: entry.value for entry in describe(wire, BROKER, BROKER_1).configs}
    wire.close()
    assert found["group.max.size"] == "7"
    assert found["broker.rack"] == "here"
    assert found["offsets.retention.minutes"] == "60"


def test_configs_that_kafka_changes_at_runtime_are_stored_or_refused_with_a_reason(
    wire: AdminWire,
) -> None:
    for row in rows():
        name, value = row["name"], row["default"]
        if not row["changes"] or name == "listeners":
            continue
        result = alter(wire, BROKER, BROKER_1, (name, SET, value), validate_only=True)
        if row["refused"]:
            assert result.error_code == INVALID_REQUEST, name
            assert result.error_message.startswith(f"{name} cannot be set: "), result
        elif name in STORED_CONFIGS and value != r"\N":
            assert result.error_code == 0, result
            of_all = alter(wire, BROKER, ALL, (name, SET, value), validate_only=True)
            assert (of_all.error_code == 0) == (row["changes"] == "all"), of_all


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("log.cleaner.backoff.ms", "-1", "at least 0"),
        ("log.cleaner.threads", "many", "a whole number of at most 32 bits"),
        ("compression.gzip.level", "0", "from 1 to 9"),
        ("compression.type", "brotli", "one of uncompressed, zstd, lz4, snappy, gzip, producer"),
        ("unclean.leader.election.enable", "maybe", "be true or false"),
        ("log.segment.bytes", "1000", "at least 1048576"),
        ("sasl.login.refresh.window.factor", "x", "be a number"),
        ("ssl.keystore.location", "/key", "cannot be set: this broker has no TLS."),
        ("listeners", "SSL://:9093", "cannot be set: where this broker listens"),
        ("sasl.enabled.mechanisms", "PLAIN", "cannot be set: this broker does not authenticate"),
        ("max.connections.per.ip", "10", "cannot be set: this broker does not have this limit."),
        ("log.cleanup.policy", "compact", "cannot be set: this broker has no such default"),
    ],
)
def test_wrong_values_and_configs_without_an_effect_here_are_refused(
    wire: AdminWire, name: str, value: str, problem: str
) -> None:
    result = alter(wire, BROKER, BROKER_1, (name, SET, value))
    assert result.error_code == INVALID_REQUEST
    assert name in result.error_message
    assert problem in result.error_message


def test_a_stored_config_survives_a_restart_until_it_is_deleted(
    configured: BrokerProcess,
) -> None:
    process = configured
    name = "sasl.kerberos.min.time.before.relogin"  # librdkafka's test 81 sets it

    def shown() -> tuple[str, int]:
        wire = AdminWire(process.kafka)
        (entry,) = describe(wire, BROKER, BROKER_1, [name]).configs
        wire.close()
        return entry.value, entry.config_source

    wire = AdminWire(process.kafka)
    assert alter(wire, BROKER, BROKER_1, (name, SET, "58000")).error_code == 0
    assert shown() == ("58000", OF_BROKER)
    wire.close()
    process.restart()
    assert shown() == ("58000", OF_BROKER)
    wire = AdminWire(process.kafka)
    assert alter(wire, BROKER, BROKER_1, (name, DELETE, None)).error_code == 0
    assert shown() == ("60000", 5)
    wire.close()


def test_kafka_configs_shows_the_broker_config_that_it_has_set(run: Tools) -> None:
    broker = ("--entity-type", "brokers", "--entity-name", BROKER_1)
    run(CONFIGS, "--alter", *broker, "--add-config", "log.cleaner.threads=2")
    assert "log.cleaner.threads=2" in run(CONFIGS, "--describe", *broker)
    assert "log.cleaner.backoff.ms=15000" in run(CONFIGS, "--describe", "--all", *broker)
    run(CONFIGS, "--alter", *broker, "--delete-config", "log.cleaner.threads")
    assert "log.cleaner.threads" not in run(CONFIGS, "--describe", *broker)
