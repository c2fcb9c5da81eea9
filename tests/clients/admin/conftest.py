"""A connection that speaks any version, and the admin clients that people use."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient as ConfluentAdmin
from kafka.admin import KafkaAdminClient

from tests.support.admin_requests import AdminWire
from tests.support.broker_process import BrokerProcess


@pytest.fixture(scope="session")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker with settings of its own. Tests change and restart it, and leave it as it was."""
    settings = {
        "auto_create_topics": "false",
        "group_max_size": "7",
        "log_level": "error",
        "message_max_bytes": "100000",
        "num_partitions": "3",
        "offsets_retention_minutes": "60",
        "rack": "here",
        "retention_check_interval_ms": "100",
        "retention_ms": "-1",
        "sql_password": "hush",
        "sql_user": "writer",
    }
    process = BrokerProcess(tmp_path_factory.mktemp("configured") / "data", settings)
    process.start()
    yield process
    process.stop()


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
