"""SQL shows what clients wrote to a cluster, through every replica.

These need ClickHouse servers that replicate, which no test on one machine can have.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.cluster.conftest import ClickHouse

PARTITIONS = 24
RECORDS = 6000
CALL_LIMIT_S = 60.0
ARRIVAL_LIMIT_S = 60.0
"""A replica that inserts need not wait for (quorum below the number of replicas) may be behind."""

Place = tuple[int, int]
"""Partition and offset."""


def make_topic(kafka: Sequence[str], name: str) -> None:
    admin = AdminClient({"bootstrap.servers": ",".join(kafka)})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(CALL_LIMIT_S)


def produce(bootstrap: str, topic: str, values: Sequence[str]) -> dict[Place, str]:
    """Sends them, idempotently and with keys; returns where each was acknowledged."""
    stored: dict[Place, str] = {}
    refused: list[KafkaError] = []

    def acknowledged(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            refused.append(error)
            return
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None
        assert offset is not None
        assert isinstance(value, bytes)
        stored[partition, offset] = value.decode()

    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number, value in enumerate(values):
        producer.produce(topic, value, key=f"key-{number % 500}", on_delivery=acknowledged)
        producer.poll(0)
    assert producer.flush(CALL_LIMIT_S) == 0, "not everything was answered in time"
    assert refused == []
    return stored


def consume(bootstrap: str, topic: str, group: str, count: int) -> dict[Place, str]:
    """Reads that many records with a group, and commits."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe([topic])
        found: dict[Place, str] = {}
        deadline = time.monotonic() + CALL_LIMIT_S
        while len(found) < count:
            assert time.monotonic() < deadline, f"read {len(found)} of {count}"
            for message in consumer.consume(1000, 1.0):
                assert message.error() is None, message.error()
                partition, offset, value = message.partition(), message.offset(), message.value()
                assert partition is not None
                assert offset is not None
                assert isinstance(value, bytes)
                found[partition, offset] = value.decode()
        ends: dict[int, int] = defaultdict(int)
        for partition, offset in found:
            ends[partition] = max(ends[partition], offset + 1)
        consumer.commit(
            offsets=[TopicPartition(topic, *place) for place in ends.items()], asynchronous=False
        )
        return found
    finally:
        consumer.close()


async def eventually(ask: Callable[[], Awaitable[Any]], wanted: object) -> None:
    """Until the answer is the one wanted; fails with the last one."""
    deadline = time.monotonic() + ARRIVAL_LIMIT_S
    while (answer := await ask()) != wanted:
        assert time.monotonic() < deadline, f"{answer!r} instead of {wanted!r}"
        await asyncio.sleep(0.2)


async def in_sql(server: ClickHouse, topic: str) -> dict[Place, str]:
    rows = await server.rows(
        "SELECT partition, offset, value FROM brokerhouse.messages"
        " WHERE topic = {topic:String} AND NOT control",
        {"topic": topic},
    )
    found = {(partition, offset): value for partition, offset, value in rows}
    assert len(found) == len(rows), "an offset is there twice"
    return found


async def test_acknowledged_records_are_rows_on_every_replica(
    kafka: list[str], clickhouse: Sequence[ClickHouse], name: str
) -> None:
    make_topic(kafka, name)
    stored: dict[Place, str] = {}
    share = RECORDS // len(kafka)
    for number, bootstrap in enumerate(kafka):
        values = [f"{number}-{each}" for each in range(share)]
        stored |= await asyncio.to_thread(produce, bootstrap, name, values)
    assert len(stored) == share * len(kafka)
    for server in clickhouse:
        await eventually(lambda server=server: in_sql(server, name), stored)  # type: ignore[misc]


async def test_acknowledged_records_are_read_through_every_broker(
    kafka: list[str], clickhouse: Sequence[ClickHouse], name: str
) -> None:
    make_topic(kafka, name)
    stored = await asyncio.to_thread(produce, kafka[0], name, [str(n) for n in range(RECORDS)])
    for number, bootstrap in enumerate(kafka):
        group = f"{name}-{number}"
        assert await asyncio.to_thread(consume, bootstrap, name, group, len(stored)) == stored


async def test_the_replicas_of_a_shard_hold_the_same_rows(
    kafka: list[str], clickhouse: Sequence[ClickHouse], name: str
) -> None:
    make_topic(kafka, name)
    await asyncio.to_thread(produce, kafka[0], name, [str(n) for n in range(RECORDS)])
    held: dict[str, list[ClickHouse]] = defaultdict(list)
    for server in clickhouse:
        [[shard]] = await server.rows("SELECT getMacro('shard')")
        held[shard].append(server)

    async def hold(server: ClickHouse) -> list[list[Any]]:
        return await server.rows(
            "SELECT partition, count(), groupBitXor(cityHash64(offset, key, value))"
            " FROM brokerhouse_shard.messages WHERE topic = {topic:String}"
            " GROUP BY partition ORDER BY partition",
            {"topic": name},
        )

    rows = 0
    for first, *others in held.values():
        wanted = await hold(first)
        rows += sum(count for _, count, _ in wanted)
        assert others, "a shard with one replica shows nothing"
        for other in others:
            await eventually(lambda other=other: hold(other), wanted)  # type: ignore[misc]
    assert rows == RECORDS


async def test_lag_is_the_same_through_every_replica(
    kafka: list[str], clickhouse: Sequence[ClickHouse], name: str
) -> None:
    make_topic(kafka, name)
    stored = await asyncio.to_thread(produce, kafka[0], name, [str(n) for n in range(RECORDS)])
    await asyncio.to_thread(consume, kafka[-1], name, name, len(stored))
    more = await asyncio.to_thread(produce, kafka[0], name, [str(n) for n in range(100)])
    for server in clickhouse:
        await eventually(
            lambda server=server: server.rows(  # type: ignore[misc]
                "SELECT sum(lag) FROM brokerhouse.consumer_lag WHERE group_id = {group:String}",
                {"group": name},
            ),
            [[len(more)]],
        )
