"""Kafka's own command line tools, as Kafka ships them, against the broker.

The classes are those that Kafka's shell scripts start: kafka-topics.sh is TopicCommand, and so on.
"""

import re

import pytest

from tests.broker_process import BrokerProcess
from tests.clients import tools
from tests.clients.adapters import Kcat
from tests.clients.records import Record, rows

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
GET_OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
API_VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
LIMIT_S = 60.0


class Tools:
    """Runs the tools against one broker."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker

    def __call__(self, main_class: str, *arguments: str, typed: bytes = b"") -> str:
        """What the tool prints; fails when it fails."""
        printed, errors = tools.run(
            [
                *tools.java_command(),
                main_class,
                *arguments,
                "--bootstrap-server",
                self._broker.kafka,
            ],
            limit_s=LIMIT_S,
            typed=typed,
        )
        assert "ERROR" not in errors, errors
        assert "Exception" not in errors, errors
        return printed


@pytest.fixture(scope="session")
def run(broker: BrokerProcess) -> Tools:
    return Tools(broker)


def test_kafka_topics_makes_lists_describes_widens_and_deletes_a_topic(
    broker: BrokerProcess, run: Tools, topic: str
) -> None:
    created = run(
        TOPICS,
        "--create",
        "--topic",
        topic,
        "--partitions",
        "3",
        "--config",
        "retention.ms=3600000",
    )
    assert f"Created topic {topic}" in created
    assert topic in run(TOPICS, "--list").splitlines()

    described = run(TOPICS, "--describe", "--topic", topic)
    assert re.search(rf"Topic: {topic}\s+TopicId: \S{{22}}\s+PartitionCount: 3\s", described)
    assert "retention.ms=3600000" in described
    assert len(re.findall(r"Partition: \d+\s+Leader: 1\s+Replicas: 1\s+Isr: 1\b", described)) == 3

    run(TOPICS, "--alter", "--topic", topic, "--partitions", "5")
    assert "PartitionCount: 5" in run(TOPICS, "--describe", "--topic", topic)

    run(TOPICS, "--delete", "--topic", topic)
    assert topic not in run(TOPICS, "--list").splitlines()
    assert broker.sql("SELECT * FROM topics WHERE name = {topic:String}", {"topic": topic}) == []


def test_kafka_configs_changes_and_shows_a_topics_configuration(
    broker: BrokerProcess, run: Tools, topic: str
) -> None:
    Kcat().produce(broker.kafka, topic, [Record(b"k", b"v")])
    entity = ("--entity-type", "topics", "--entity-name", topic)

    run(CONFIGS, "--alter", *entity, "--add-config", "retention.ms=60000,cleanup.policy=compact")
    shown = run(CONFIGS, "--describe", *entity)
    assert "retention.ms=60000" in shown
    assert "cleanup.policy=compact" in shown

    run(CONFIGS, "--alter", *entity, "--delete-config", "retention.ms")
    shown = run(CONFIGS, "--describe", *entity)
    assert "retention.ms" not in shown
    assert "cleanup.policy=compact" in shown
    assert "  retention.ms=604800000 " in run(CONFIGS, "--describe", "--all", *entity)


def test_console_producer_and_console_consumer_carry_keys_and_headers(
    broker: BrokerProcess, run: Tools, topic: str
) -> None:
    run(
        CONSOLE_PRODUCER,
        *("--topic", topic, "--compression-codec", "zstd"),
        *("--reader-property", "parse.key=true", "--reader-property", "parse.headers=true"),
        *("--reader-property", "null.marker=NULL"),
        typed=b"a:1,b:2,a:3\tfirst\tone\nh:x\tsecond\tNULL\nh:y\tthird\tthree\n",
    )

    stored = rows(broker, topic)
    assert [(record.key, record.value, record.headers) for record in stored] == [
        (b"first", b"one", (("a", b"1"), ("b", b"2"), ("a", b"3"))),
        (b"second", None, (("h", b"x"),)),
        (b"third", b"three", (("h", b"y"),)),
    ]
    shown = run(
        CONSOLE_CONSUMER,
        *("--topic", topic, "--partition", "0", "--offset", "1", "--max-messages", "2"),
        *("--formatter-property", "print.timestamp=true"),
        *("--formatter-property", "print.offset=true"),
        *("--formatter-property", "print.key=true"),
        *("--formatter-property", "print.headers=true"),
        *("--formatter-property", "null.literal=NULL"),
    )
    assert shown.splitlines() == [
        f"CreateTime:{stored[1].timestamp_ms}\tOffset:1\th:x\tsecond\tNULL",
        f"CreateTime:{stored[2].timestamp_ms}\tOffset:2\th:y\tthird\tthree",
    ]


def test_console_consumer_reads_from_the_beginning_to_a_quiet_end(
    broker: BrokerProcess, run: Tools, topic: str
) -> None:
    records = [Record(b"%d" % n, b"value %d" % n) for n in range(1000)]
    Kcat().produce(broker.kafka, topic, records, codec="lz4")

    shown = run(
        CONSOLE_CONSUMER,
        *("--topic", topic, "--partition", "0", "--offset", "earliest", "--max-messages", "1000"),
    )

    assert shown.splitlines() == [f"value {n}" for n in range(1000)]


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_producer_performance_sends_all_its_records(
    broker: BrokerProcess, run: Tools, topic: str, codec: str
) -> None:
    printed = run(
        PRODUCER_PERFORMANCE,
        *("--topic", topic, "--num-records", "50000", "--record-size", "100"),
        *("--throughput", "-1", "--command-property", f"compression.type={codec}"),
    )

    assert "50000 records sent" in printed
    found = broker.sql(
        """
        SELECT count() AS records, max(offset) AS last, uniqExact(offset) AS offsets,
               min(length(value)) AS shortest, max(length(value)) AS longest
        FROM messages WHERE topic = {topic:String}
        """,
        {"topic": topic},
    )
    assert found == [
        {"records": 50000, "last": 49999, "offsets": 50000, "shortest": 100, "longest": 100}
    ]


def test_get_offsets_shows_the_first_the_last_and_the_offset_of_a_time(
    broker: BrokerProcess, run: Tools, topic: str
) -> None:
    Kcat().produce(broker.kafka, topic, [Record(b"%d" % n, b"v") for n in range(7)])
    last = rows(broker, topic)[-1]

    def offsets(time: str) -> str:
        return run(GET_OFFSETS, "--topic", topic, "--time", time).strip()

    assert offsets("earliest") == f"{topic}:0:0"
    assert offsets("latest") == f"{topic}:0:7"
    newest = next(r for r in rows(broker, topic) if r.timestamp_ms == last.timestamp_ms)
    assert offsets("max-timestamp") == f"{topic}:0:{newest.offset}"
    assert offsets(str(last.timestamp_ms)) == f"{topic}:0:{newest.offset}"
    assert offsets(str((last.timestamp_ms or 0) + 1)) == ""


def test_log_dirs_shows_a_topics_size(broker: BrokerProcess, run: Tools, topic: str) -> None:
    Kcat().produce(broker.kafka, topic, [Record(b"k", b"v" * 1000)])

    printed = run(LOG_DIRS, "--describe", "--topic-list", topic)

    size = re.search(rf'"partition":"{topic}-0","size":(\d+)', printed)
    assert size is not None, printed
    assert int(size[1]) > 0


def test_broker_api_versions_finds_every_api_that_it_knows_of_usable(run: Tools) -> None:
    printed = run(API_VERSIONS)

    for api in ("Produce(0)", "Fetch(1)", "ListOffsets(2)", "Metadata(3)", "ApiVersions(18)"):
        assert re.search(rf"{re.escape(api)}: .*\[usable: \d+\]", printed), printed


def test_the_cluster_has_an_id(run: Tools) -> None:
    assert re.search(r"Cluster ID: \S{22}$", run(CLUSTER, "cluster-id"), re.MULTILINE)
