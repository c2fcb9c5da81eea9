"""Consumer groups that lag in each possible way, made with a real client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from confluent_kafka import Consumer, TopicPartition
from kafka import KafkaProducer

from tests.support.adapters import ConfluentKafka
from tests.support.broker_process import BrokerProcess
from tests.support.group_consumer import consuming

RECORDS = 100
COMMITTED = {"done": 100, "elsewhere": 5, "gone": 10, "hanging": 60}
"""What each group has committed of the one partition of `orders`.

`hanging` has a member that reads it, `elsewhere` one that reads another topic, the others none.
"""


def commit(broker: BrokerProcess, group: str, offset: int) -> None:
    """Commit for `orders` as a consumer outside of group management does; the group is Empty."""
    outside = Consumer(
        {
            "bootstrap.servers": broker.kafka,
            "group.id": group,
            "client.id": f"{group}-client",
            "enable.auto.commit": False,
        }
    )
    try:
        place = TopicPartition("orders", 0, offset)
        for done in outside.commit(offsets=[place], asynchronous=False):
            assert done.error is None, done.error
    finally:
        outside.close()


@contextmanager
def lagging_groups(broker: BrokerProcess) -> Iterator[None]:
    """The groups of COMMITTED, on a broker of their own; members stay until this ends."""
    for topic in ("orders", "other"):
        ConfluentKafka().create_topic(broker.kafka, topic, 1)
    with closing(KafkaProducer(bootstrap_servers=broker.kafka)) as producer:
        for n in range(RECORDS):
            producer.send("orders", b"%03d" % n, partition=0)
        producer.flush()
    with ExitStack() as members:
        for group, offset in COMMITTED.items():
            commit(broker, group, offset)
        for group, topic in (("hanging", "orders"), ("elsewhere", "other")):
            identity = {"client.id": f"{group}-client", "fetch.wait.max.ms": "500"}
            member = members.enter_context(consuming(broker, group, topic, **identity))
            member.values_to_the_end()  # so it has joined
        yield
