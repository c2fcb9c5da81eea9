"""Kafka's own command line tools, as Kafka ships them, against the broker.

The classes are those that Kafka's shell scripts start: kafka-topics.sh is TopicCommand, and so on.
"""

import re
import shlex
import subprocess
import time
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, TopicPartition
from kafka.structs import OffsetAndMetadata

from tests.support import tools
from tests.support.adapters import ConfluentKafka, Kcat
from tests.support.broker_process import BrokerProcess
from tests.support.command_line import output
from tests.support.console_tools import CLUSTER, CONFIGS, LIMIT_S, TRANSACTIONS, Tools
from tests.support.group_consumer import consuming
from tests.support.records import Record, rows
from tests.support.transactional import ConfluentProducer
from tests.support.waiting import until

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
GROUPS = "org.apache.kafka.tools.GroupsCommand"
CONSUMER_PERFORMANCE = "org.apache.kafka.tools.ConsumerPerformance"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
GET_OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
API_VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"
MESSAGE_COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"


@pytest.mark.each_change
def test_kafka_topics_creates_lists_describes_widens_and_deletes_a_topic(
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
    led = r"Partition: \d+\s+Leader: (\d+)\s+Replicas: \1\s+Isr: \1\b"
    assert len(re.findall(led, described)) == 3

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
    run.alone(
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
    shown = run.alone(
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


def test_console_consumer_prints_all_records_from_the_earliest_offset(
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
        HAVING records > 0
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


def test_broker_api_versions_finds_the_apis_of_the_broker_usable(run: Tools) -> None:
    printed = run(API_VERSIONS)

    for api in ("Produce(0)", "Fetch(1)", "ListOffsets(2)", "Metadata(3)", "ApiVersions(18)"):
        assert re.search(rf"{re.escape(api)}: .*\[usable: \d+\]", printed), printed


def test_kafka_cluster_prints_the_id_of_the_cluster(run: Tools) -> None:
    assert re.search(r"Cluster ID: \S{22}$", run(CLUSTER, "cluster-id"), re.MULTILINE)


# Groups


@pytest.fixture
def group(topic: str) -> str:
    return f"{topic}.group"


@pytest.fixture
def numbers(broker: BrokerProcess, topic: str) -> str:
    """A topic whose records are the numbers from 0 to 9, one for each of the last ten hours."""
    now_ms = int(time.time() * 1000)
    records = [
        Record(None, b"%d" % n, timestamp_ms=now_ms - (10 - n) * 3_600_000) for n in range(10)
    ]
    ConfluentKafka().produce(broker.kafka, topic, records)
    return topic


@pytest.fixture
def stopped(broker: BrokerProcess, group: str, numbers: str) -> str:
    """A group without members that committed offset 4 of `numbers`."""
    with KafkaAdminClient(bootstrap_servers=broker.kafka) as admin:
        commit = {TopicPartition(numbers, 0): OffsetAndMetadata(4, "", None)}
        assert [error.errno for error in admin.alter_group_offsets(group, commit).values()] == [0]
    return group


def committed(broker: BrokerProcess, group: str) -> list[int]:
    with KafkaAdminClient(bootstrap_servers=broker.kafka) as admin:
        offsets = admin.list_group_offsets({group: None})[group]
        return [offset.offset for _, offset in sorted(offsets.items())]


def cells(printed: str) -> list[list[str]]:
    """The words of every line that is not empty."""
    return [line.split() for line in printed.splitlines() if line.strip()]


def test_a_console_consumer_continues_where_the_last_one_of_its_group_stopped(
    broker: BrokerProcess, run: Tools, group: str, numbers: str
) -> None:
    read = (CONSOLE_CONSUMER, "--topic", numbers, "--group", group, "--from-beginning")
    assert run(*read, "--max-messages", "6").split() == list("012345")
    assert committed(broker, group) == [6]
    assert run(*read, "--max-messages", "4").split() == list("6789")
    assert committed(broker, group) == [10]


def test_consumer_performance_reads_as_a_group_and_commits(
    broker: BrokerProcess, run: Tools, group: str, topic: str
) -> None:
    Kcat().produce(broker.kafka, topic, [Record(None, b"x" * 100)] * 20_000)

    printed = run(
        CONSUMER_PERFORMANCE,
        *("--topic", topic, "--group", group, "--num-records", "20000", "--timeout", "30000"),
    )

    heading, figures = [line.split(", ") for line in printed.splitlines() if ", " in line]
    assert dict(zip(heading, figures, strict=True))["data.consumed.in.nMsg"] == "20000"
    assert committed(broker, group) == [20_000]


def test_the_tools_list_groups_with_type_protocol_and_state(
    broker: BrokerProcess, run: Tools, stopped: str, numbers: str
) -> None:
    live = f"{stopped}.live"
    with consuming(broker, live, numbers) as consumer:
        consumer.values_to_the_end()
        assert {live, stopped} <= set(run(CONSUMER_GROUPS, "--list").split())
        listed = cells(run(CONSUMER_GROUPS, "--list", "--state", "--type"))
        assert listed[0] == ["GROUP", "TYPE", "STATE"]
        assert [live, "Classic", "Stable"] in listed
        assert [stopped, "Classic", "Empty"] in listed
        stable = cells(run(CONSUMER_GROUPS, "--list", "--state", "stable"))
        assert [live, "Stable"] in stable
        assert stopped not in {line[0] for line in stable}
        every = cells(run(GROUPS, "--list"))
        assert every[0] == ["GROUP", "TYPE", "PROTOCOL"]
        assert [live, "Classic", "consumer"] in every


@pytest.mark.each_change
def test_consumer_groups_describes_state_members_and_offsets_of_a_live_group(
    broker: BrokerProcess, run: Tools, group: str, numbers: str
) -> None:
    settings = {"client.id": "reader", "group.instance.id": "one"}
    with consuming(broker, group, numbers, **settings) as consumer:
        consumer.values_to_the_end()
        consumer.commit(numbers, 7)
        describe = (CONSUMER_GROUPS, "--describe", "--group", group)
        state = cells(run(*describe, "--state"))
        members = cells(run(*describe, "--members", "--verbose"))
        offsets = cells(run(*describe))
        every = cells(run(CONSUMER_GROUPS, "--describe", "--all-groups", "--state"))
        member = consumer.member_id

    node_id, address = broker.coordinator(group)
    assert state[1] == [group, address, f"({node_id})", "range", "Stable", "1"]
    assert dict(zip(members[0], members[1], strict=False)) == {
        "GROUP": group,
        "CONSUMER-ID": member,
        "GROUP-INSTANCE-ID": "one",
        "HOST": "/127.0.0.1",
        "CLIENT-ID": "reader",
        "#PARTITIONS": "1",
        "CURRENT-EPOCH": "-",
        "CURRENT-ASSIGNMENT": f"{numbers}:0",
        "TARGET-EPOCH": "-",
        "TARGET-ASSIGNMENT": "-",
    }
    assert dict(zip(*offsets, strict=True)) == {
        "GROUP": group,
        "TOPIC": numbers,
        "PARTITION": "0",
        "CURRENT-OFFSET": "7",
        "LOG-END-OFFSET": "10",
        "LAG": "3",
        "CONSUMER-ID": member,
        "HOST": "/127.0.0.1",
        "CLIENT-ID": "reader",
    }
    assert state[1] in every


def test_consumer_groups_describes_a_group_without_members_and_reports_an_unknown_one(
    run: Tools, stopped: str, numbers: str
) -> None:
    offsets = cells(run(CONSUMER_GROUPS, "--describe", "--group", stopped))
    assert offsets[-1] == [stopped, numbers, "0", "4", "10", "6", "-", "-", "-"]
    unknown = run.complaint(CONSUMER_GROUPS, "--describe", "--group", "nobody")
    assert "GroupIdNotFoundException: Group nobody not found." in unknown


@pytest.mark.parametrize(
    ("arguments", "offset"),
    [
        (["--to-earliest"], 0),
        (["--to-latest"], 10),
        (["--to-offset", "9"], 9),
        (["--shift-by", "-3"], 1),
        (["--to-datetime", "2001-02-03T04:05:06.789"], 0),
        (["--by-duration", "PT3H30M"], 7),
    ],
)
def test_consumer_groups_resets_the_offsets_of_a_stopped_group(
    broker: BrokerProcess,
    run: Tools,
    stopped: str,
    numbers: str,
    arguments: list[str],
    offset: int,
) -> None:
    printed = run(
        CONSUMER_GROUPS,
        *("--reset-offsets", "--group", stopped, "--topic", numbers, "--execute", *arguments),
    )

    assert cells(printed)[-1] == [stopped, numbers, "0", str(offset)]
    assert committed(broker, stopped) == [offset]


def test_consumer_groups_and_brokerhouse_reset_from_each_others_exports(
    broker: BrokerProcess, run: Tools, stopped: str, numbers: str, tmp_path: Path
) -> None:
    theirs, ours = tmp_path / "theirs.csv", tmp_path / "ours.csv"
    reset = (CONSUMER_GROUPS, "--reset-offsets", "--group", stopped)
    own = ("groups", "reset-offsets", stopped, "--bootstrap", broker.kafka)

    # Their dry run, which changes nothing.
    theirs.write_text(run(*reset, "--all-topics", "--to-earliest", "--dry-run", "--export"))
    assert committed(broker, stopped) == [4]
    ours.write_text(output(*own, "--all-topics", "--to-current", "--export"))

    output(*own, "--from-file", str(theirs), "--execute")
    assert committed(broker, stopped) == [0]
    run(*reset, "--from-file", str(ours), "--execute")
    assert committed(broker, stopped) == [4]


def test_consumer_groups_cannot_reset_or_delete_a_live_group(
    broker: BrokerProcess, run: Tools, stopped: str, numbers: str
) -> None:
    group = ("--group", stopped)
    with consuming(broker, stopped, numbers) as consumer:
        consumer.values_to_the_end()
        reset = run(
            CONSUMER_GROUPS, "--reset-offsets", *group, "--all-topics", "--to-earliest", "--execute"
        )
        assert "is inactive, but the current state is Stable" in reset
        deleted = run(CONSUMER_GROUPS, "--delete", *group)
        assert "GroupNotEmptyException: The group is not empty." in deleted
        offsets = run(CONSUMER_GROUPS, "--delete-offsets", *group, "--topic", numbers)
        assert "GroupSubscribedToTopicException" in offsets
    assert committed(broker, stopped) == [4]


@pytest.mark.each_change
def test_consumer_groups_deletes_offsets_and_groups(
    broker: BrokerProcess, run: Tools, stopped: str, numbers: str
) -> None:
    group = ("--group", stopped)
    offsets = run(CONSUMER_GROUPS, "--delete-offsets", *group, "--topic", f"{numbers}:0")
    assert cells(offsets)[-1] == [numbers, "0", "Successful"]
    assert committed(broker, stopped) == []

    with KafkaAdminClient(bootstrap_servers=broker.kafka) as admin:
        commit = {TopicPartition(numbers, 0): OffsetAndMetadata(1, "", None)}
        admin.alter_group_offsets(stopped, commit)
    deleted = run(CONSUMER_GROUPS, "--delete", *group, "--group", "nobody")
    assert "* Group 'nobody' could not be deleted" in deleted
    assert "GroupIdNotFoundException" in deleted
    assert f"deleted successfully: '{stopped}'" in deleted
    assert committed(broker, stopped) == []


def test_kafka_transactions_finds_and_aborts_a_hanging_transaction(
    broker: BrokerProcess, run: Tools, topic: str
) -> None:
    run(TOPICS, "--create", "--topic", topic)
    transactional_id = f"{topic}-id"
    producer = ConfluentProducer(broker.kafka, transactional_id)
    producer.begin()
    producer.send(topic, "hangs")
    producer.flush()

    listed = cells(run(TRANSACTIONS, "list", "--transactional-id-pattern", f"{topic}.*"))
    assert {row[0] for row in listed[1:]} == {transactional_id}
    ours = next(row for row in listed if row[0] == transactional_id)
    producer_id, state = ours[-2], ours[-1]
    assert state == "Ongoing"
    described = run(TRANSACTIONS, "describe", "--transactional-id", transactional_id)
    assert "Ongoing" in described
    assert f"{topic}-0" in described
    at = ("--topic", topic, "--partition", "0")
    (active,) = cells(run(TRANSACTIONS, "describe-producers", *at))[1:]
    assert (active[0], active[-1]) == (producer_id, "0"), "its transaction begins at offset 0"

    run(TRANSACTIONS, "abort", *at, "--start-offset", "0")

    (active,) = cells(run(TRANSACTIONS, "describe-producers", *at))[1:]
    assert active[-1] == "None"
    committed_view = "SELECT count() AS n FROM messages_committed WHERE topic = {topic:String}"
    assert broker.sql(committed_view, {"topic": topic}) == [{"n": 0}]
    producer.close()


def test_kafka_producer_perf_test_writes_transactions(
    broker: BrokerProcess, run: Tools, topic: str
) -> None:
    run(TOPICS, "--create", "--topic", topic)
    printed = run(
        PRODUCER_PERFORMANCE,
        *shlex.split(
            f"--topic {topic} --num-records 2000 --record-size 100 --throughput -1"
            f" --transactional-id {topic}-id --transaction-duration-ms 20"
        ),
    )
    assert "2000 records sent" in printed
    query = (
        "SELECT countIf(NOT control) AS records, countIf(control) > 0 AS markers FROM messages"
        " WHERE topic = {topic:String} HAVING records > 0"
    )
    assert broker.sql(query, {"topic": topic}) == [{"records": 2000, "markers": 1}]


@pytest.mark.test_all
def test_kafkas_message_copier_copies_each_record_once_although_it_is_killed(
    broker: BrokerProcess, run: Tools, topic: str
) -> None:
    """Consume, transform, produce: offsets are part of transactions, some of which it aborts."""
    copy, count = f"{topic}-copy", 6000
    for name in (topic, copy):
        run(TOPICS, "--create", "--topic", name)
    ConfluentKafka().produce(broker.kafka, topic, [Record(b"%d" % n, b"") for n in range(count)])
    command = [
        *tools.java_command(),
        MESSAGE_COPIER,
        *shlex.split(
            f"--broker-list {broker.kafka} --input-topic {topic} --input-partition 0"
            f" --output-topic {copy} --consumer-group {topic}-group --transactional-id"
            f" {topic}-id --transaction-size 100 --enable-random-aborts --max-messages"
        ),
    ]

    def copied() -> int:
        rows = broker.sql(
            "SELECT count() AS n FROM messages_committed WHERE topic = {topic:String}",
            {"topic": copy},
        )
        return sum(int(row["n"]) for row in rows)

    def copy_until(enough: int) -> None:
        copier = subprocess.Popen(
            [*command, str(count)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until(lambda: copied() >= enough)
        copier.kill()
        copier.wait(LIMIT_S)
        # What it began is ended now, and what it had decided is done. The next one asks for its
        # offsets first, which would wait for the transaction's timeout if they are part of it.
        ConfluentProducer(broker.kafka, f"{topic}-id").close()

    copy_until(count // 4)
    copy_until(count // 2)
    left = count - committed(broker, f"{topic}-group")[0]
    tools.run([*command, str(left)], limit_s=LIMIT_S)

    values = "SELECT key FROM messages_committed WHERE topic = {topic:String} ORDER BY offset"
    keys = [row["key"] for row in broker.sql(values, {"topic": copy})]
    assert keys == [str(n) for n in range(count)]
