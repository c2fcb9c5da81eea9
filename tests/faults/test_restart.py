"""The broker is stopped or killed while producers write: no record is lost or doubled.

The producers are idempotent and retry unacknowledged records. So in the end every record that was
sent must be in the log exactly once, at the offset of its acknowledgement.
"""

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from tests.support import tools
from tests.support.adapters import ConfluentKafka
from tests.support.broker_process import BrokerProcess
from tests.support.helper_process import HelperProcess

PARTITIONS = 4
ENDS = 5
"""How often the broker ends in a test."""
ACKNOWLEDGED_LIMIT_S = 60.0

OwnBroker = Callable[..., BrokerProcess]
Acknowledged = tuple[int, int, int]
"""Partition, offset, and the number that the record carries as its value."""

END = {"SIGTERM": BrokerProcess.stop, "SIGKILL": BrokerProcess.kill}


class Load:
    """Numbered records from an idempotent librdkafka producer, and all its delivery reports."""

    def __init__(self, address: str, topic: str) -> None:
        self.acknowledged: list[Acknowledged] = []
        self.sent = 0
        self._failed: list[confluent_kafka.KafkaError] = []
        self._topic = topic
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.num.messages": 100,  # many small requests: some are always in flight
                "queue.buffering.max.messages": 5000,
                "reconnect.backoff.max.ms": 250,
                "log_level": 2,  # lost connections are what these tests are about
            }
        )

    def __enter__(self) -> "Load":
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.purge()
        self._producer.close()

    def send_until_acknowledged(self, count: int) -> None:
        deadline = time.monotonic() + ACKNOWLEDGED_LIMIT_S
        while len(self.acknowledged) < count:
            assert time.monotonic() < deadline, f"{len(self.acknowledged)} of {count} acknowledged"
            assert not self._failed, self._failed
            try:
                self._send(self.sent)
                self.sent += 1
                self._producer.poll(0)
            except BufferError:
                self._producer.poll(0.1)

    def finish(self) -> None:
        left = self._producer.flush(ACKNOWLEDGED_LIMIT_S)
        assert left == 0, f"{left} records without a delivery report"
        assert not self._failed, self._failed

    def _send(self, number: int) -> None:
        def report(
            error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message
        ) -> None:
            partition, offset = message.partition(), message.offset()
            if error is not None or partition is None or offset is None:
                self._failed.append(error or confluent_kafka.KafkaError(-1))
            else:
                self.acknowledged.append((partition, offset, number))

        self._producer.produce(
            self._topic, b"%d" % number, partition=number % PARTITIONS, on_delivery=report
        )


def log_by_sql(broker: BrokerProcess, topic: str) -> dict[int, list[tuple[int, int]]]:
    """Offsets and numbers of each partition."""
    found = broker.sql(
        """
        SELECT partition, groupArray((offset, toInt64(assumeNotNull(value)))) AS log
        FROM (SELECT * FROM messages WHERE topic = {topic:String} ORDER BY partition, offset)
        GROUP BY partition
        """,
        {"topic": topic},
    )
    return {row["partition"]: [(offset, number) for offset, number in row["log"]] for row in found}


def log_by_consumer(
    broker: BrokerProcess, topic: str, counts: dict[int, int]
) -> dict[int, list[tuple[int, int]]]:
    found = {}
    for partition, count in counts.items():
        read = ConfluentKafka().read_from_offset(broker.kafka, topic, 0, count, partition=partition)
        found[partition] = [(record.offset, int(record.value or b"-1")) for record in read]
    return found


def check(broker: BrokerProcess, topic: str, acknowledged: list[Acknowledged], sent: int) -> None:
    """All that was sent is there once, in order, where the producer was told that it is."""
    log = log_by_sql(broker, topic)
    told: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for partition, offset, number in sorted(acknowledged):
        told[partition].append((offset, number))
    for partition in range(PARTITIONS):
        wanted = list(enumerate(range(partition, sent, PARTITIONS)))
        assert log[partition] == wanted, f"partition {partition}"
        assert told[partition] == wanted, f"partition {partition}"
    counts = {partition: len(records) for partition, records in log.items()}
    assert log_by_consumer(broker, topic, counts) == log


def loaded_while_ended(broker: BrokerProcess, topic: str, ends: Sequence[str]) -> Load:
    """A producer's load while the broker ends in these ways. All is acknowledged in the end."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    ConfluentKafka().create_topic(broker.kafka, topic, PARTITIONS)
    with Load(broker.kafka, topic) as load:
        for end in ends:
            load.send_until_acknowledged(len(load.acknowledged) + chance.randrange(1, 8000))
            END[end](broker)
            broker.start()
        load.send_until_acknowledged(len(load.acknowledged) + 1000)
        load.finish()
    return load


def test_nothing_is_lost_or_doubled_when_the_broker_stops_and_is_killed_under_librdkafkas_load(
    restarted_broker: BrokerProcess, topic: str
) -> None:
    load = loaded_while_ended(restarted_broker, topic, ["SIGTERM", "SIGKILL"])
    check(restarted_broker, topic, load.acknowledged, load.sent)


@pytest.mark.test_all
@pytest.mark.parametrize("end", ["SIGTERM", "SIGKILL"])
def test_nothing_is_lost_or_doubled_when_the_broker_ends_often_under_librdkafkas_load(
    own_broker: OwnBroker, topic: str, end: str
) -> None:
    broker = own_broker()
    load = loaded_while_ended(broker, topic, [end] * ENDS)
    check(broker, topic, load.acknowledged, load.sent)
    broker.kill()
    broker.start()
    check(broker, topic, load.acknowledged, load.sent)


@pytest.fixture
def java(tmp_path: Path) -> Iterator[HelperProcess]:
    helper = HelperProcess([*tools.java_command(), "Helper"], tmp_path / "java.log")
    yield helper
    helper.close()


@pytest.mark.test_all
def test_nothing_is_lost_or_doubled_when_the_broker_is_killed_under_javas_load(
    own_broker: OwnBroker, java: HelperProcess, topic: str
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    broker = own_broker()
    ConfluentKafka().create_topic(broker.kafka, topic, PARTITIONS)
    java.ask("load_start", kafka=broker.kafka, topic=topic, partitions=PARTITIONS)

    count = 0
    for _ in range(ENDS):
        count += chance.randrange(1, 8000)
        java.ask("load_await", count=count)
        broker.kill()
        broker.start()
    java.ask("load_await", count=count + 1000)
    acknowledged = [
        (partition, offset, number) for partition, offset, number in java.ask("load_stop")
    ]

    check(broker, topic, acknowledged, len(acknowledged))


@pytest.mark.test_all
def test_a_broker_killed_while_it_starts_starts_the_next_time(
    own_broker: OwnBroker, topic: str
) -> None:
    broker = own_broker()
    ConfluentKafka().create_topic(broker.kafka, topic, PARTITIONS)
    with Load(broker.kafka, topic) as load:
        load.send_until_acknowledged(5000)
        broker.kill()

        # Kills spread over the time that a start takes.
        for part in range(1, 6):
            broker.launch()
            broker.kill(after_s=broker.start_s * part / 5)
        broker.start()
        load.finish()

    check(broker, topic, load.acknowledged, load.sent)


def test_a_deleted_topic_stays_deleted_after_a_kill_and_its_name_can_be_used_again(
    restarted_broker: BrokerProcess, topic: str
) -> None:
    broker = restarted_broker
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    ConfluentKafka().create_topic(broker.kafka, topic, PARTITIONS)
    with Load(broker.kafka, topic) as first:
        first.send_until_acknowledged(100)
        first.finish()
    admin.delete_topics([topic])[topic].result(20)

    broker.kill()
    broker.start()

    found = "SELECT name FROM topics WHERE name = {topic:String}"
    assert broker.sql(found, {"topic": topic}) == []
    ConfluentKafka().create_topic(broker.kafka, topic, PARTITIONS)
    with Load(broker.kafka, topic) as second:
        second.send_until_acknowledged(50)
        second.finish()
    assert min(offset for _, offset, _ in second.acknowledged) == 0
    check(broker, topic, second.acknowledged, second.sent)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_how_long_a_start_takes_with_ten_million_rows(
    own_broker: OwnBroker, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prints the figures; how fast the machine is, no test can know."""
    rows = 10_000_000
    broker = own_broker()
    ConfluentKafka().create_topic(broker.kafka, topic, PARTITIONS)
    broker.restart()
    empty_s = broker.start_s
    produce_in_bulk(broker, topic, rows)

    broker.restart()
    after_stop_s = broker.start_s
    broker.kill()
    broker.start()

    with capsys.disabled():
        print(f"\nstart with no rows               {empty_s:6.2f} s")
        print(f"start with {rows} rows         {after_stop_s:6.2f} s")
        print(f"the same after kill -9           {broker.start_s:6.2f} s")
    counted = broker.sql(
        "SELECT count() AS records FROM messages WHERE topic = {topic:String}", {"topic": topic}
    )
    assert counted == [{"records": rows}]


def produce_in_bulk(broker: BrokerProcess, topic: str, records: int) -> None:
    """By Kafka's perf tool, which is the fastest way in that is also the usual one."""
    tools.run(
        [
            *tools.java_command(),
            "org.apache.kafka.tools.ProducerPerformance",
            *("--bootstrap-server", broker.kafka, "--topic", topic, "--record-size", "100"),
            *("--num-records", str(records), "--throughput", "-1"),
            *("--command-property", "batch.size=131072", "linger.ms=5"),
        ],
        limit_s=900,
    )
