"""Records deleted by age, by size or by DeleteRecords: no client gets them any more, their rows are
deleted, and offsets continue where they were, even if the broker is killed meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import OffsetOutOfRangeError
from kafka.structs import OffsetAndMetadata

from brokerhouse.protocol import errors
from brokerhouse.protocol.versions import ApiKey
from tests.support import messages, samples, tools
from tests.support.broker_process import BrokerProcess
from tests.support.engine_process import EngineProcess
from tests.support.messages import Target
from tests.support.record_batches import Record, batch_of
from tests.support.waiting import until
from tests.support.wire import Wire

EVERY_MS = "100"
"""How often a broker of these tests looks for what is to go."""
LIMIT_S = 60.0
LOOK_AGAIN_S = 0.1
"""The broker that removes records is the one that is asked."""
DAY_MS = 86_400_000
PRODUCE, FETCH, LIST, DELETE, LOG_DIRS = 12, 12, 7, 2, 4
EARLIEST, LATEST = -2, -1
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"

OwnBroker = Callable[..., BrokerProcess]
END = {"SIGTERM": BrokerProcess.stop, "SIGKILL": BrokerProcess.kill}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def write(wire: Wire, target: Target, count: int, timestamp_ms: int, partition: int = 0) -> int:
    """The base offset of a batch of records, all with this time."""
    batch = batch_of(
        *(Record(0, b"%d" % n, b"value %d" % n) for n in range(count)),
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
    )
    request = messages.produce(target, batch.data, partition=partition)
    (answer,) = wire.ask(request, PRODUCE).responses[0].partition_responses
    assert answer.error_code == 0, answer.error_message
    return int(answer.base_offset)


def offset(wire: Wire, target: Target, timestamp: int) -> int:
    (found,) = wire.ask(messages.list_offsets(target, timestamp), LIST).topics[0].partitions
    assert found.error_code == 0
    return int(found.offset)


def fetched(wire: Wire, target: Target, at: int) -> Any:
    return wire.ask(messages.fetch(target, at), FETCH).responses[0].partitions[0]


def deleted(wire: Wire, target: Target, to: int, *more: tuple[int, int]) -> list[tuple[int, int]]:
    """(error, low watermark) of each partition."""
    (topic,) = wire.ask(messages.delete_records(target, to, 0, *more), DELETE).topics
    return [(one.error_code, one.low_watermark) for one in topic.partitions]


def rows(broker: BrokerProcess, name: str) -> int:
    found = broker.sql(
        "SELECT count() AS rows FROM messages WHERE topic = {topic:String}", {"topic": name}
    )
    return int(found[0]["rows"])


def stats(broker: BrokerProcess, name: str) -> dict[str, Any]:
    (found,) = broker.sql(
        "SELECT log_start_offset, end_offset, records, bytes FROM partition_stats"
        " WHERE topic = {topic:String} AND partition = 0",
        {"topic": name},
    )
    return found


# --- by age ---


@pytest.mark.parametrize("end", [pytest.param("SIGTERM", marks=pytest.mark.test_all), "SIGKILL"])
def test_offsets_go_on_in_a_partition_that_was_emptied_whatever_ends_the_broker(
    restarted_broker: BrokerProcess, topic: str, end: str
) -> None:
    broker = restarted_broker
    with Wire(broker) as wire:
        target = messages.create_topic(wire, topic, configs={"retention.ms": "60000"})
        assert write(wire, target, 5, now_ms() - 3_600_000) == 0
        until(
            lambda: offset(wire, target, EARLIEST) == 5,
            "the log starts at its end",
            every_s=LOOK_AGAIN_S,
        )
        until(lambda: rows(broker, topic) == 0, "its rows are gone", every_s=LOOK_AGAIN_S)
        assert fetched(wire, target, 4).error_code == errors.OffsetOutOfRange.code
        assert fetched(wire, target, 5).error_code == 0
    END[end](broker)
    broker.start()
    with Wire(broker) as wire:
        assert (offset(wire, target, EARLIEST), offset(wire, target, LATEST)) == (5, 5)
        assert stats(broker, topic) == {
            "log_start_offset": 5,
            "end_offset": 5,
            "records": 0,
            "bytes": 0,
        }
        assert write(wire, target, 2, now_ms()) == 5
        assert offset(wire, target, LATEST) == 7


def test_a_retention_time_that_is_shortened_counts_at_the_next_look(
    restarted_broker: BrokerProcess, topic: str
) -> None:
    broker = restarted_broker
    with Wire(broker) as wire:
        target = messages.create_topic(wire, topic, configs={"retention.ms": "-1"})
        write(wire, target, 3, now_ms() - 3_600_000)
        write(wire, target, 2, now_ms())
        alter_retention(broker, topic, 7_200_000)
        assert offset(wire, target, EARLIEST) == 0
        alter_retention(broker, topic, 60_000)
        until(lambda: offset(wire, target, EARLIEST) == 3, "what is old is gone")
        assert offset(wire, target, LATEST) == 5


def alter_retention(broker: BrokerProcess, topic: str, retention_ms: int) -> None:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    resource.add_incremental_config(
        ConfigEntry("retention.ms", str(retention_ms), incremental_operation=AlterConfigOpType.SET)
    )
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(LIMIT_S)


# --- DeleteRecords ---


@pytest.mark.test_all
def test_a_kill_between_the_checkpoint_and_the_deletion_leaves_no_row_behind(
    own_broker: OwnBroker, topic: str
) -> None:
    broker = own_broker()  # which never looks for rows to delete
    with Wire(broker) as wire:
        target = messages.create_topic(wire, topic)
        write(wire, target, 10, now_ms())
        assert deleted(wire, target, 7) == [(0, 7)]
        assert rows(broker, topic) == 10
    broker.kill()
    broker.settings["retention_check_interval_ms"] = EVERY_MS
    broker.start()
    with Wire(broker) as wire:
        assert offset(wire, target, EARLIEST) == 7
        assert fetched(wire, target, 6).error_code == errors.OffsetOutOfRange.code
        until(lambda: rows(broker, topic) == 3, "what the kill left is removed")
        assert fetched(wire, target, 7).error_code == 0
        assert stats(broker, topic)["records"] == 3


def test_delete_records_answers_with_the_error_of_each_partition(
    broker: BrokerProcess, topic: str
) -> None:
    with Wire(broker) as wire:
        target = messages.create_topic(wire, topic, 3)
        write(wire, target, 10, now_ms())
        out_of_range = (errors.OffsetOutOfRange.code, -1)
        missing = (errors.UnknownTopicOrPartition.code, -1)
        assert deleted(wire, target, 4, (1, 0), (2, 1), (3, 0)) == [
            (0, 4),
            (0, 0),
            out_of_range,
            missing,
        ]
        assert deleted(wire, target, 2) == [(0, 4)]  # it starts further on already
        assert deleted(wire, target, 11) == [out_of_range]
        assert deleted(wire, target, -2) == [out_of_range]
        assert deleted(wire, target, 5, (0, 6)) == [(errors.InvalidRequest.code, -1)] * 2
        assert offset(wire, target, EARLIEST) == 4
        assert deleted(wire, target, -1) == [(0, 10)]
        assert (offset(wire, target, EARLIEST), offset(wire, target, LATEST)) == (10, 10)


@pytest.mark.parametrize(
    ("policy", "answer"),
    [
        ("compact", (errors.PolicyViolation.code, -1)),
        ("compact,delete", (0, 2)),
        ("delete", (0, 2)),
    ],
)
def test_records_of_a_topic_that_is_only_compacted_cannot_be_deleted(
    broker: BrokerProcess, topic: str, policy: str, answer: tuple[int, int]
) -> None:
    with Wire(broker) as wire:
        target = messages.create_topic(wire, topic, configs={"cleanup.policy": policy})
        write(wire, target, 3, now_ms())
        assert deleted(wire, target, 2) == [answer]


def by_kafka_python(broker: BrokerProcess, topic: str, to: int) -> None:
    with KafkaAdminClient(bootstrap_servers=broker.kafka) as admin:
        found = admin.delete_records({TopicPartition(topic, 0): to})
    assert found[TopicPartition(topic, 0)]["low_watermark"] == to


def by_confluent(broker: BrokerProcess, topic: str, to: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    (done,) = admin.delete_records([confluent_kafka.TopicPartition(topic, 0, to)]).values()
    assert done.result(LIMIT_S).low_watermark == to


def by_kafkas_tool(broker: BrokerProcess, topic: str, to: int, directory: Path) -> None:
    file = directory / "offsets.json"
    file.write_text(
        f'{{"version": 1, "partitions": [{{"topic": "{topic}", "partition": 0, "offset": {to}}}]}}'
    )
    command = [*tools.java_command(), DELETE_RECORDS, "--offset-json-file", str(file)]
    printed, _ = tools.run([*command, "--bootstrap-server", broker.kafka], limit_s=LIMIT_S)
    assert f"partition: {topic}-0\tlow_watermark: {to}" in printed


@pytest.mark.parametrize(
    "client",
    [
        "kafka-python",
        "confluent-kafka",
        pytest.param("kafka-delete-records", marks=pytest.mark.test_all),
    ],
)
def test_clients_delete_records_and_consumers_go_on_where_the_log_starts(
    broker: BrokerProcess, topic: str, tmp_path: Path, client: str
) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.kafka)
    for number in range(20):
        producer.send(topic, b"%d" % number, partition=0)
    producer.flush()
    group = f"{topic}.group"
    with consumer(broker, topic, group, "earliest") as reading:
        assert values(reading, 3)[:3] == [b"0", b"1", b"2"]
        reading.commit({TopicPartition(topic, 0): OffsetAndMetadata(3, "", -1)})
    match client:
        case "kafka-python":
            by_kafka_python(broker, topic, 12)
        case "confluent-kafka":
            by_confluent(broker, topic, 12)
        case _:
            by_kafkas_tool(broker, topic, 12, tmp_path)
    rest = [b"%d" % number for number in range(12, 20)]
    with consumer(broker, topic, group, "earliest") as reading:  # which has committed 3
        assert values(reading, 8) == rest
    with consumer(broker, topic, None, "earliest") as reading:
        assert values(reading, 8) == rest
    with consumer(broker, topic, group, "none") as reading, pytest.raises(OffsetOutOfRangeError):
        values(reading, 1)
    with consumer(broker, topic, None, "latest") as reading:
        reading.poll(timeout_ms=0)
        assert reading.position(TopicPartition(topic, 0)) == 20
        assert reading.beginning_offsets([TopicPartition(topic, 0)]) == {
            TopicPartition(topic, 0): 12
        }


@contextmanager
def consumer(
    broker: BrokerProcess, topic: str, group: str | None, reset: str
) -> Iterator[KafkaConsumer]:
    """A consumer of the one partition; it commits only when it is told."""
    made = KafkaConsumer(
        bootstrap_servers=broker.kafka,
        group_id=group,
        auto_offset_reset=reset,
        enable_auto_commit=False,
    )
    try:
        made.assign([TopicPartition(topic, 0)])
        yield made
    finally:
        made.close()


def values(reading: Any, count: int) -> list[bytes]:
    found: list[bytes] = []
    deadline = time.monotonic() + LIMIT_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records came"
        for records in reading.poll(timeout_ms=500).values():
            found += (record.value for record in records)
    return found


# --- by size, and days ---


@pytest.fixture
def aged(own_broker: OwnBroker, topic: str) -> tuple[BrokerProcess, dict[str, Target]]:
    """A broker whose topics have rows of earlier days; it was stopped while they were made."""
    broker = own_broker()
    configs = {
        "by-age": {"retention.ms": str(DAY_MS)},
        "by-size": {"retention.ms": "-1", "retention.bytes": "2500"},
        "kept": {"retention.ms": "-1"},
    }
    with Wire(broker) as wire:
        targets = {
            name: messages.create_topic(wire, f"{topic}.{name}", configs=some)
            for name, some in configs.items()
        }
    broker.stop()
    with EngineProcess(broker.data_dir) as engine:
        for name, day, first, count in (
            ("by-age", 5, 0, 100),  # a day of its own
            ("by-age", 4, 100, 100),
            ("kept", 4, 0, 10),
            ("by-age", 0, 200, 7),
            ("by-size", 3, 0, 30),  # of 100 bytes
            ("by-size", 2, 30, 20),
            ("by-size", 0, 50, 10),
        ):
            put_rows(engine, targets[name], day, first, count)
        # Then the broker counts the log from its first row on.
        engine.sql("TRUNCATE TABLE partition_minutes", database="brokerhouse")
    broker.settings["retention_check_interval_ms"] = EVERY_MS
    broker.start()
    return broker, targets


def put_rows(engine: EngineProcess, target: Target, days_ago: int, first: int, count: int) -> None:
    engine.sql(
        "INSERT INTO messages (topic, topic_id, partition, offset, timestamp_ms, value,"
        " append_time, producer_id, producer_epoch, sequence)"
        " WITH now64(3, 'UTC') - toIntervalDay({days:Int64}) - toIntervalMinute(5) AS time"
        " SELECT {topic:String}, {id:UUID}, 0, {first:Int64} + number,"
        " toUnixTimestamp64Milli(time), repeat('v', 100), time, -1, -1, -1"
        " FROM numbers({count:UInt64})",
        {
            "param_topic": target.name,
            "param_id": str(target.topic_id),
            "param_days": str(days_ago),
            "param_first": str(first),
            "param_count": str(count),
        },
        database="brokerhouse",
    )


@pytest.mark.test_all
def test_old_days_are_dropped_and_sizes_are_kept(
    aged: tuple[BrokerProcess, dict[str, Target]],
) -> None:
    broker, targets = aged
    by_age, by_size, kept = (targets[name] for name in ("by-age", "by-size", "kept"))
    with Wire(broker) as wire:
        until(lambda: offset(wire, by_age, EARLIEST) == 200, "what is a day old is given up")
        # 10 + 20 records are 3,000 bytes; without the 20 there would be less than 2,500.
        until(lambda: offset(wire, by_size, EARLIEST) == 30, "what is too much is given up")
        until(
            lambda: [rows(broker, one.name) for one in (by_age, by_size, kept)] == [7, 30, 10],
            "their rows are gone",
        )
        assert offset(wire, kept, EARLIEST) == 0
        assert write(wire, by_age, 1, now_ms()) == 207
        expected = {by_age.name: 700 + len("0value 0"), by_size.name: 3000, kept.name: 1000}
        # Until the minutes of the dropped rows are forgotten too, the sizes are estimates.
        until(lambda: sizes(wire, targets) == expected, "the sizes are those of what is left")
    assert "all 100 are before the starts of their logs" in broker.log(limit=1 << 20)
    days = broker.sql(
        "SELECT dateDiff('day', toDate(append_time), toDate(now('UTC'))) AS ago, count() AS rows"
        " FROM messages GROUP BY ago ORDER BY ago DESC"
    )
    assert sum(day["rows"] for day in days) == 7 + 1 + 30 + 10
    assert max(day["ago"] for day in days) <= 5
    broker.kill()
    broker.start()
    with Wire(broker) as wire:
        assert [offset(wire, one, EARLIEST) for one in (by_age, by_size)] == [200, 30]
        assert [offset(wire, one, LATEST) for one in (by_age, by_size, kept)] == [208, 60, 10]


def sizes(wire: Wire, targets: dict[str, Target]) -> dict[str, int]:
    """Of DescribeLogDirs."""
    request = samples.sample(ApiKey.DescribeLogDirs, LOG_DIRS, Target("", UUID(int=0)))
    request.topics = None
    (directory,) = wire.ask(request, LOG_DIRS).results
    return {
        topic.name: sum(partition.partition_size for partition in topic.partitions)
        for topic in directory.topics
        if topic.name in {target.name for target in targets.values()}
    }


# --- topics ---


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param(False, id="it runs on"),
        pytest.param(True, id="it is killed at once", marks=pytest.mark.test_all),
    ],
)
def test_a_topic_that_is_deleted_frees_its_rows_and_shows_none_to_its_successor(
    restarted_broker: BrokerProcess, topic: str, ends: bool
) -> None:
    broker = restarted_broker
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    with Wire(broker) as wire:
        old = messages.create_topic(wire, topic)
        write(wire, old, 50, now_ms())
        assert deleted(wire, old, 10) == [(0, 10)]
        for done in admin.delete_topics([topic]).values():
            done.result(LIMIT_S)
    if ends:
        broker.kill()
        broker.start()
    with Wire(broker) as wire:
        new = messages.create_topic(wire, topic)
        assert (offset(wire, new, EARLIEST), offset(wire, new, LATEST)) == (0, 0)
        assert write(wire, new, 3, now_ms()) == 0
        until(lambda: rows(broker, topic) == 3, "the rows of the old topic are gone")
        assert stats(broker, topic)["records"] == 3
        checkpoints = "SELECT * FROM partition_checkpoints WHERE topic_id = {id:UUID}"
        until(
            lambda: broker.sql(checkpoints, {"id": str(old.topic_id)}) == [],
            "nothing is left of where the old topic began",
        )


# --- compacted topics ---


def test_a_compacted_topic_refuses_records_without_a_key(broker: BrokerProcess, topic: str) -> None:
    with Wire(broker) as wire:
        target = messages.create_topic(wire, topic, configs={"cleanup.policy": "compact"})
        batch = batch_of(Record(0, b"a"), Record(0, None), Record(0, b""), Record(0, None))
        for version in (7, 8, 13):
            request = messages.produce(target, batch.data)
            (answer,) = wire.ask(request, version).responses[0].partition_responses
            assert answer.error_code == errors.InvalidRecord.code
            assert answer.base_offset == -1
            if version >= 8:
                assert [
                    (one.batch_index, one.batch_index_error_message) for one in answer.record_errors
                ] == [
                    (
                        at,
                        "Compacted topic cannot accept message without key in topic partition"
                        f" {topic}-0",
                    )
                    for at in (1, 3)
                ]
                assert "2 records have no key" in answer.error_message
        assert offset(wire, target, LATEST) == 0
        assert write(wire, target, 2, now_ms()) == 0


def test_producers_go_on_after_a_compacted_topic_refused_a_record_without_a_key(
    broker: BrokerProcess, topic: str
) -> None:
    with Wire(broker) as wire:
        messages.create_topic(wire, topic, configs={"cleanup.policy": "compact"})
    reports: list[confluent_kafka.KafkaError | None] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.kafka, "enable.idempotence": True}
    )
    for key in (b"k", None, b"k"):
        producer.produce(topic, b"value", key, on_delivery=lambda error, _: reports.append(error))
        assert producer.flush(LIMIT_S) == 0
    codes = [None if error is None else error.code() for error in reports]
    assert codes == [None, errors.InvalidRecord.code, None]
    assert rows(broker, topic) == 2
