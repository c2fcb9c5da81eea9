"""A client that asks for a group protocol that is not served reports an error at once."""

from __future__ import annotations

from uuid import uuid4

import confluent_kafka
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.helper_process import HelperError, HelperProcess
from tests.support.waiting import LIMIT_S

UNSUPPORTED_VERSION = 35


def settings(broker: BrokerProcess) -> dict[str, str | int]:
    return {"bootstrap.servers": broker.kafka, "group.id": f"group-{uuid4()}", "log_level": 0}


def test_a_consumer_of_librdkafka_with_the_consumer_protocol_reports_a_fatal_error(
    broker: BrokerProcess, topic: str
) -> None:
    consumer = confluent_kafka.Consumer(settings(broker) | {"group.protocol": "consumer"})
    try:
        consumer.subscribe([topic])
        message = consumer.poll(LIMIT_S)
        assert message is not None, "it waits without a word"
        error = message.error()
        assert error is not None
        assert error.code() == confluent_kafka.KafkaError._FATAL
        assert "API version not supported" in error.str()
    finally:
        consumer.close()


def test_a_share_consumer_of_librdkafka_reports_a_fatal_error(
    broker: BrokerProcess, topic: str
) -> None:
    consumer = confluent_kafka.ShareConsumer(settings(broker))
    try:
        consumer.subscribe([topic])
        with pytest.raises(confluent_kafka.KafkaException) as raised:
            consumer.poll(LIMIT_S)
        error = raised.value.args[0]
        assert error.fatal()
        assert error.code() == UNSUPPORTED_VERSION
    finally:
        consumer.close()


@pytest.mark.parametrize(
    ("protocol", "advice"),
    [
        ("consumer", "Set group.protocol=classic"),
        ("share", "does not support the share group protocol"),
    ],
)
def test_a_java_consumer_says_that_the_broker_does_not_serve_its_protocol(
    broker: BrokerProcess, java: HelperProcess, topic: str, protocol: str, advice: str
) -> None:
    with pytest.raises(HelperError, match=f"UnsupportedVersionException: .*{advice}"):
        java.ask(
            "subscribe", kafka=broker.kafka, group=f"g-{uuid4()}", topic=topic, protocol=protocol
        )
