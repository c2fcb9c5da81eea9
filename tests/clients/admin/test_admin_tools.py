"""Kafka's own admin tools: features, elections, reassignments, the quorum, quotas."""

import json
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.console_tools import (
    ACLS,
    CLUSTER,
    CONFIGS,
    FEATURES,
    LEADER_ELECTION,
    METADATA_QUORUM,
    REASSIGN_PARTITIONS,
    Tools,
)

BROKER_1 = ("--entity-type", "brokers", "--entity-name", "1")
TOPICS = "org.apache.kafka.tools.TopicCommand"
pytestmark = pytest.mark.one_broker("names the only broker there is")


def test_kafka_features_lists_the_features_and_leaves_them_at_their_levels(run: Tools) -> None:
    described = run(FEATURES, "describe")
    levels = {line.split()[1]: line.split() for line in described.splitlines() if line}
    assert "4.3-IV0" in levels["metadata.version"]
    assert levels["transaction.version"][-3] == "2"
    same = run(FEATURES, "upgrade", "--feature", "transaction.version=2")
    assert "was upgraded to 2" in same
    refused = run.refused(FEATURES, "downgrade", "--feature", "transaction.version=1")
    assert "transaction.version is at level 2" in refused


def test_kafka_features_with_dry_run_says_what_it_would_do(run: Tools) -> None:
    def dry(command: str, *levels: str) -> tuple[str, ...]:
        features = [part for level in levels for part in ("--feature", level)]
        return FEATURES, command, "--dry-run", *features

    levels = ("metadata.version=30", "transaction.version=2")
    same = run(*dry("upgrade", *levels))
    assert "metadata.version can be upgraded to 30" in same
    assert "transaction.version can be upgraded to 2" in same
    assert "can be downgraded to 2" in run(*dry("downgrade", "transaction.version=2"))
    disabled = run(FEATURES, "disable", "--dry-run", "--feature", "group.version")
    assert "group.version can be disabled" in disabled
    refused = run.refused(*dry("downgrade", "metadata.version=29"))
    assert "metadata.version is at level 30; it cannot be set to 29" in refused
    # Asks for every feature of that release: the answer names all that are missing.
    refused = run.refused(FEATURES, "upgrade", "--dry-run", "--release-version", "4.3-IV0")
    for feature in ("group.version", "kraft.version", "share.version"):
        assert f"does not have the feature '{feature}'; leave it out." in refused


def test_kafka_leader_election_finds_the_leader_elected(run: Tools, topic: str) -> None:
    run(TOPICS, "--create", "--topic", topic, "--partitions", "2")
    one = run(LEADER_ELECTION, "--election-type", "preferred", "--topic", topic, "--partition", "1")
    assert f"Valid replica already elected for partitions {topic}-1" in one
    run(LEADER_ELECTION, "--election-type", "preferred", "--all-topic-partitions")


def test_kafka_metadata_quorum_shows_the_broker(run: Tools, broker: BrokerProcess) -> None:
    status = run(METADATA_QUORUM, "describe", "--status")
    assert "LeaderId:               1\n" in status
    assert broker.kafka in status
    shown = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    assert int(shown["LeaderEpoch"]) >= 1
    before = int(shown["HighWatermark"])
    replicas = run(METADATA_QUORUM, "describe", "--replication").splitlines()
    _, _, end, lag, *_, role = replicas[1].split()
    assert int(end) >= before > 0
    assert (lag, role) == ("0", "Leader")


def test_kafka_configs_describes_users_of_a_broker_without_passwords(run: Tools) -> None:
    users = ("--entity-type", "users")
    run(CONFIGS, "--describe", *users)
    assert run(CONFIGS, "--describe", *users, "--entity-name", "nobody-with-a-password") == ""
    password = ("--add-config", "SCRAM-SHA-256=[password=secret]")
    refused = run.refused(CONFIGS, "--alter", *users, "--entity-name", "eve", *password)
    assert "UnsupportedSaslMechanismException: This broker does not authenticate" in refused


@pytest.mark.parametrize(
    "arguments",
    [
        ("--list",),
        ("--add", "--allow-principal", "User:eve", "--operation", "Read", "--topic", "t"),
        ("--remove", "--force", "--topic", "t"),
    ],
    ids=lambda arguments: str(arguments[0]),
)
def test_kafka_acls_says_that_no_authorizer_is_configured(
    run: Tools, arguments: tuple[str, ...]
) -> None:
    told = run.refused(ACLS, *arguments)
    assert "SecurityDisabledException: No Authorizer is configured" in told


def test_kafka_reassign_partitions_succeeds_only_to_the_broker_with_the_partition(
    run: Tools, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    run(TOPICS, "--create", "--topic", topic)
    plan = tmp_path / "plan.json"

    def planned(broker_id: int, directory: str) -> tuple[str, str]:
        replica = {"topic": topic, "partition": 0, "replicas": [broker_id], "log_dirs": [directory]}
        plan.write_text(json.dumps({"version": 1, "partitions": [replica]}))
        return "--reassignment-json-file", str(plan)

    here = planned(1, str(broker.data_dir.resolve()))
    started = run(REASSIGN_PARTITIONS, "--execute", *here)
    assert f"Successfully started partition reassignment for {topic}-0" in started
    assert "Successfully started moving log directory" in started
    throttled = run(REASSIGN_PARTITIONS, "--execute", "--throttle", "5000", *here)
    assert "throttle limit was set to 5000" in throttled
    verified = run(REASSIGN_PARTITIONS, "--verify", *here)
    assert f"Reassignment of partition {topic}-0 is completed" in verified
    assert "throttled.rate" not in run(CONFIGS, "--describe", *BROKER_1)
    assert "No partition reassignments found" in run(REASSIGN_PARTITIONS, "--list")
    refused = run.refused(REASSIGN_PARTITIONS, "--execute", *planned(1, "/nowhere"))
    assert "LogDirNotFoundException" in refused


def test_kafka_cluster_cannot_unregister_a_broker_that_runs(run: Tools) -> None:
    assert "There is no broker 7" in run.refused(CLUSTER, "unregister", "--id", "7")
    assert "Broker 1 is running" in run.refused(CLUSTER, "unregister", "--id", "1")


def test_kafka_configs_sets_and_describes_quotas(run: Tools, topic: str) -> None:
    of_user = ("--entity-type", "users", "--entity-name", topic)
    of_client = (*of_user, "--entity-type", "clients", "--entity-default")
    run(CONFIGS, "--alter", *of_user, "--add-config", "producer_byte_rate=1024")
    run(CONFIGS, "--alter", *of_client, "--add-config", "request_percentage=12.5")
    run(CONFIGS, "--alter", *of_client, "--add-config", "consumer_byte_rate=3")
    run(CONFIGS, "--alter", *of_client, "--delete-config", "consumer_byte_rate")
    described = run(CONFIGS, "--describe", *of_client)
    assert f"user-principal '{topic}', the default client-id" in described
    assert described.rstrip().endswith("are request_percentage=12.5")
    run(CONFIGS, "--alter", *of_user, "--delete-config", "producer_byte_rate")
    run(CONFIGS, "--alter", *of_client, "--delete-config", "request_percentage")
    of_address = ("--entity-type", "ips", "--entity-name", "127.0.0.1")
    run(CONFIGS, "--alter", *of_address, "--add-config", "connection_creation_rate=10")
    assert "connection_creation_rate=10.0" in run(CONFIGS, "--describe", *of_address)
    run(CONFIGS, "--alter", *of_address, "--delete-config", "connection_creation_rate")


def test_kafka_configs_changes_settings_loggers_groups_and_client_metrics(
    run: Tools, topic: str
) -> None:
    for entity, config, value in (
        (BROKER_1, "fetch.max.bytes", "5000000"),
        (("--entity-type", "brokers", "--entity-default"), "fetch.max.bytes", "6000000"),
        (
            ("--entity-type", "groups", "--entity-name", topic),
            "share.isolation.level",
            "read_committed",
        ),
        (("--entity-type", "client-metrics", "--entity-name", topic), "interval.ms", "1000"),
    ):
        run(CONFIGS, "--alter", *entity, "--add-config", f"{config}={value}")
        assert f"{config}={value}" in run(CONFIGS, "--describe", *entity), entity
        run(CONFIGS, "--alter", *entity, "--delete-config", config)
        assert f"{config}={value}" not in run(CONFIGS, "--describe", *entity), entity
    logger = ("--entity-type", "broker-loggers", "--entity-name", "1")
    run(CONFIGS, "--alter", *logger, "--add-config", "broker.topics.catalog=ERROR")
    assert "broker.topics.catalog=ERROR" in run(CONFIGS, "--describe", *logger)
    run(CONFIGS, "--alter", *logger, "--delete-config", "broker.topics.catalog")
    refused = run.refused(CONFIGS, "--alter", *BROKER_1, "--add-config", "num.partitions=3")
    assert "the setting num_partitions" in refused
