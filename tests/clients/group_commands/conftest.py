"""A topic with records, and a group that has read some of them."""

import time

import confluent_kafka
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.command_line import LIMIT_S
from tests.support.group_commands import COMMITTED, HOUR_MS, RECORDS
from tests.support.group_consumer import consuming


@pytest.fixture
def group(topic: str) -> str:
    return f"{topic}.group"


@pytest.fixture
def to(broker: BrokerProcess) -> tuple[str, str]:
    return ("--bootstrap", broker.kafka)


@pytest.fixture
def filled(broker: BrokerProcess, topic: str) -> str:
    """A topic with one partition and RECORDS records, one for each of the last hours."""
    now_ms = int(time.time() * 1000)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka})
    for n in range(RECORDS):
        at_ms = now_ms - (RECORDS - n) * HOUR_MS
        producer.produce(topic, str(n).encode(), partition=0, timestamp=at_ms)
    assert producer.flush(LIMIT_S) == 0
    return topic


@pytest.fixture
def stopped_group(broker: BrokerProcess, group: str, filled: str) -> str:
    """A group whose only member read `filled` up to COMMITTED and left."""
    with consuming(broker, group, filled) as consumer:
        consumer.values_to_the_end()
        consumer.commit(filled, COMMITTED)
    return group
