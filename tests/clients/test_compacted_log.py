"""A log with gaps, as compaction leaves it: every client reads the remaining records."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.adapters import CLIENTS, ConfluentKafka, GetClient
from tests.support.broker_process import BrokerProcess
from tests.support.cluster_processes import Cluster
from tests.support.records import Record, rows

WRITER = {"user": "writer", "password": "secret"}
LIMIT_S = 60.0
COUNT = 600
EACH_EDGE = "aiokafka"
"""The client that begins at each edge of a gap, which no client knows of."""
RunBroker = Callable[..., AbstractContextManager[BrokerProcess]]


@pytest.fixture(scope="module")
def compacted(run_broker: RunBroker) -> Iterator[BrokerProcess]:
    with run_broker("compacted", sql_user="writer", sql_password="secret") as process:
        yield process


def remove(broker: BrokerProcess, topic: str, ranges: list[tuple[int, int]]) -> None:
    """Remove as the job does: it writes a batch, and the broker removes the records."""
    broker.sql(
        "INSERT INTO compaction_removals (run_id, batch_id, topic_id, partition, ranges)"
        " SELECT generateUUIDv4(), generateUUIDv4(), topic_id, 0,"
        f" [{','.join(map(str, ranges))}]::Array(Tuple(first Int64, last Int64))"
        " FROM topics WHERE name = {topic:String}",
        {"topic": topic},
        **WRITER,
    )
    give_up = time.monotonic() + LIMIT_S
    while broker.sql("SELECT 1 FROM compaction_batches WHERE state = 'pending'"):
        assert time.monotonic() < give_up, "the broker does not remove"
        time.sleep(0.05)
    assert broker.sql("SELECT DISTINCT state FROM compaction_batches") == [{"state": "applied"}]


@pytest.mark.one_broker("removals are written through the broker's own SQL")
@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_reads_past_removed_records_and_from_offsets_within_them(
    compacted: BrokerProcess, client: GetClient, topic: str, name: str
) -> None:
    broker = compacted
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    made = NewTopic(topic, 1, config={"cleanup.policy": "compact"})
    admin.create_topics([made])[topic].result(LIMIT_S)
    records = [Record(b"%d" % n, b"value %d" % n, (), 1_700_000_000_000 + n) for n in range(COUNT)]
    client(name).produce(broker.kafka, topic, records)
    chance = random.Random(name)
    holes = [(0, 20), (100, 399), *((n, n) for n in range(401, COUNT - 1) if chance.random() < 0.7)]
    remove(broker, topic, holes)

    left = rows(broker, topic)
    gone = {offset for first, last in holes for offset in range(first, last + 1)}
    assert [record.offset for record in left] == [n for n in range(COUNT) if n not in gone]
    starts = [10, 250, chance.randrange(COUNT)]
    if name == EACH_EDGE:
        starts += [0, 21, 399, 400, *chance.sample(range(COUNT), 3)]
    for start in starts:
        from_there = [client(name).as_shown(one) for one in left if one.offset >= start]
        read = client(name).read_from_offset(broker.kafka, topic, start, len(from_there))
        assert read == from_there, f"from {start}"
    if name != "kcat":  # which gives its records no timestamps
        (one,) = client(name).read_from_timestamp(broker.kafka, topic, 1_700_000_000_150, 1)
        assert one.offset == 400

    client(name).produce(broker.kafka, topic, [Record(b"new", b"value")])
    last = client(name).read_from_offset(broker.kafka, topic, COUNT - 1, 2)
    assert [(record.offset, record.key) for record in last] == [
        (COUNT - 1, b"%d" % (COUNT - 1)),
        (COUNT, b"new"),
    ]


@pytest.mark.test_all  # a cluster
@pytest.mark.one_broker("has a cluster of its own accord")
def test_the_leader_in_a_cluster_applies_removals_written_to_any_shard(
    cluster: Cluster, topic: str
) -> None:
    partitions, count = 6, 50
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    made = NewTopic(topic, partitions, config={"cleanup.policy": "compact"})
    admin.create_topics([made])[topic].result(LIMIT_S)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    for n in range(partitions * count):
        producer.produce(topic, b"%d" % n, b"key", partition=n % partitions)
    assert producer.flush(LIMIT_S) == 0

    def ask(query: str, shard: int | None = None) -> list[dict[str, Any]]:
        engines = cluster.engines if shard is None else [cluster.engines[shard]]
        return [row for engine in engines for row in engine.sql(query, {"topic": topic})]

    on_shards = ask("SELECT count() AS n FROM messages WHERE topic = {topic:String}")
    assert all(row["n"] for row in on_shards), "both shards have partitions"
    ask(
        "INSERT INTO compaction_removals (run_id, batch_id, topic_id, partition, ranges)"
        " SELECT generateUUIDv4(), generateUUIDv4(number), topic_id, number,"
        " [(0, 19), (21, 1000)]::Array(Tuple(first Int64, last Int64))"
        " FROM numbers(7) AS n CROSS JOIN topics AS t WHERE name = {topic:String}",
        shard=0,
    )
    noted = "SELECT partition, removed, refused FROM compaction_batches WHERE state != 'pending'"
    give_up = time.monotonic() + LIMIT_S
    while len(found := ask(f"{noted} ORDER BY partition")) < partitions + 1:
        assert time.monotonic() < give_up, found
        time.sleep(0.05)

    assert [(row["removed"], row["refused"]) for row in found] == [
        *[(count - 2, "")] * partitions,
        (0, f"The topic {topic!r} has no partition 6."),
    ]
    for partition in range(partitions):
        read = ConfluentKafka().read_from_offset(
            cluster.bootstrap, topic, 0, 2, partition=partition
        )
        assert [record.offset for record in read] == [20, count - 1]
