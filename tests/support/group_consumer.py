"""A consumer in a group, for tests of commands and views that show groups."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import confluent_kafka

from tests.support.broker_process import BrokerProcess
from tests.support.waiting import LIMIT_S


class GroupConsumer:
    """A member of a group: librdkafka's own threads keep it one between two polls."""

    def __init__(self, broker: BrokerProcess, group: str, topic: str, **settings: str) -> None:
        self._client = confluent_kafka.Consumer(
            {
                "bootstrap.servers": broker.kafka,
                "group.id": group,
                "enable.auto.commit": "false",
                "auto.offset.reset": "earliest",
                "enable.partition.eof": "true",
                "fetch.wait.max.ms": "50",  # the broker waits so long before it tells the end
                **settings,
            }
        )
        self._client.subscribe([topic])

    def close(self) -> None:
        """Leaves the group."""
        self._client.close()

    @property
    def member_id(self) -> str:
        return str(self._client.memberid())

    def values_to_the_end(self, partitions: int = 1) -> list[str]:
        """The records that it reads until it is at the end of so many of its partitions."""
        values, ends = [], 0
        deadline = time.monotonic() + LIMIT_S
        while ends < partitions:
            message = self._client.poll(deadline - time.monotonic())
            assert message is not None, f"at the end of {ends} partitions of {partitions}"
            error, value = message.error(), message.value()
            if error is None:
                assert value is not None
                values.append(value.decode())
            else:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                ends += 1
        return values

    def commit(self, topic: str, offset: int, partition: int = 0) -> None:
        self._client.commit(
            offsets=[confluent_kafka.TopicPartition(topic, partition, offset)], asynchronous=False
        )


@contextmanager
def consuming(
    broker: BrokerProcess, group: str, topic: str, **settings: str
) -> Iterator[GroupConsumer]:
    consumer = GroupConsumer(broker, group, topic, **settings)
    try:
        yield consumer
    finally:
        consumer.close()
