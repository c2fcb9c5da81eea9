"""A connection that speaks any version, and the admin clients that people use."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient as ConfluentAdmin
from kafka.admin import KafkaAdminClient

from tests.support.admin_requests import AdminWire
from tests.support.broker_process import BrokerProcess


@pytest.fixture
def wire(broker: BrokerProcess) -> Iterator[AdminWire]:
    connection = AdminWire(broker.kafka)
    yield connection
    connection.close()


@pytest.fixture
def confluent(broker: BrokerProcess) -> ConfluentAdmin:
    return ConfluentAdmin({"bootstrap.servers": broker.kafka})


@pytest.fixture
def kafka_python(broker: BrokerProcess) -> Iterator[Any]:
    admin = KafkaAdminClient(bootstrap_servers=broker.kafka)
    yield admin
    admin.close()
