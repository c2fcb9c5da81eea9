"""What is committed in a topic, for consumers and in SQL, and what is not; how far it has come."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic, TopicPartition

from tests.support.waiting import until

_LIMIT_S = 120.0
_ASK_S = 5.0
_AWAY = (
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._TRANSPORT,
    KafkaError._UNKNOWN_PARTITION,  # librdkafka 2.16 has forgotten it, and asks anew
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
)
"""Errors while the leader of a partition changes."""
_ALL, _STABLE = "read_uncommitted", "read_committed"

Sql = Callable[[str, dict[str, str | int]], list[dict[str, Any]]]


class Row(NamedTuple):
    """A committed record."""

    partition: int
    offset: int
    key: str | None
    value: str


def create_topic(bootstrap: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(_LIMIT_S)


def committed_consumer(bootstrap: str) -> confluent_kafka.Consumer:
    """It reads committed records, tells the ends of partitions, and commits no offset."""
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,  # the broker waits so long before it tells the end
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )


def read_committed(bootstrap: str, topic: str, partitions: int, count: int) -> list[Row]:
    """What a read_committed consumer reads until it has `count` records and is at the end.

    Sorted by partition and offset. Raises AssertionError if fewer come within two minutes.
    """
    consumer = committed_consumer(bootstrap)
    rows: list[Row] = []
    ended: set[int | None] = set()
    deadline = time.monotonic() + _LIMIT_S
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        while len(rows) < count or len(ended) < partitions:
            assert time.monotonic() < deadline, f"{len(rows)} of {count} records of {topic} came"
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is None:
                rows.append(_row(message))
                ended.discard(message.partition())
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            elif error.code() not in _AWAY:
                raise KafkaException(error)
    finally:
        consumer.close()
    return sorted(rows)


def _row(message: Any) -> Row:
    key = message.key()
    decoded = None if key is None else key.decode()
    return Row(message.partition(), message.offset(), decoded, message.value().decode())


def committed_in_sql(sql: Sql, topic: str) -> list[Row]:
    """The rows of the view `messages_committed`, sorted by partition and offset."""
    rows = sql(
        "SELECT partition, offset, key, value FROM messages_committed WHERE topic = {topic:String}",
        {"topic": topic},
    )
    return sorted(Row(**row) for row in rows)


def aborted_transactions(sql: Sql, topic: str) -> int:
    """How many were aborted in the topic, each counted in every partition that it had begun in."""
    rows = sql(
        "SELECT DISTINCT partition, transaction_start FROM aborted_transactions"
        " WHERE topic = {topic:String}",
        {"topic": topic},
    )
    return len(rows)


class EndOffsets:
    """How far a topic has come, and whether a transaction is open, so that a test can act then."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._bootstrap = bootstrap
        self._partitions = [TopicPartition(topic, number) for number in range(partitions)]
        self._last = {_ALL: 0, _STABLE: 0}
        self._consumers = {isolation: self._opened(isolation) for isolation in self._last}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for consumer in self._consumers.values():
            consumer.close()

    def total(self) -> int:
        """The sum of the end offsets; the last known one while a leader is away."""
        return self._sum(_ALL)

    def await_more(self, count: int) -> None:
        """Wait until `count` records or markers more than now are there."""
        wanted = self.total() + count
        until(lambda: self.total() >= wanted, f"the topic has {wanted} offsets", _LIMIT_S)

    def await_open(self) -> None:
        """Wait for a transaction with records in the topic that has not ended."""
        until(lambda: self.total() > self._sum(_STABLE), "a transaction is open", _LIMIT_S)

    def _sum(self, isolation: str) -> int:
        try:
            self._last[isolation] = sum(self._end(isolation, one) for one in self._partitions)
        except KafkaException as error:
            if error.args[0].code() not in _AWAY:
                raise
            # librdkafka 2.16 goes on to ask the leader that it knows, though it is another one now.
            self._consumers[isolation].close()
            self._consumers[isolation] = self._opened(isolation)
        return self._last[isolation]

    def _opened(self, isolation: str) -> confluent_kafka.Consumer:
        return confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "watcher",
                "isolation.level": isolation,
                "log_level": 0,
            }
        )

    def _end(self, isolation: str, partition: TopicPartition) -> int:
        _, end = self._consumers[isolation].get_watermark_offsets(partition, _ASK_S)
        return int(end)
