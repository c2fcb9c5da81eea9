"""Consumer groups that lag in each possible way, made with a real client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata

from tests.support.adapters import ConfluentKafka
from tests.support.broker_process import BrokerProcess

RECORDS = 100
COMMITTED = {"done": 100, "elsewhere": 5, "gone": 10, "hanging": 60}
"""What each group has committed of the one partition of `orders`.

`hanging` has a member that reads it, `elsewhere` one that reads another topic, the others none.
"""


def commit(broker: BrokerProcess, group: str, offset: int) -> None:
    """Commit for `orders` as a consumer outside of group management does; the group is Empty."""
    with closing(consumer(broker, group)) as outside:
        outside.assign([TopicPartition("orders", 0)])
        outside.commit({TopicPartition("orders", 0): OffsetAndMetadata(offset, "", -1)})


def consumer(broker: BrokerProcess, group: str) -> KafkaConsumer:
    return KafkaConsumer(
        bootstrap_servers=broker.kafka,
        group_id=group,
        client_id=f"{group}-client",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )


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
            member = members.enter_context(closing(consumer(broker, group)))
            member.subscribe([topic])
            while not member.assignment():
                member.poll(timeout_ms=100)
        yield
