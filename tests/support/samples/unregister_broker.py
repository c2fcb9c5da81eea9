"""UnregisterBroker: a broker that does not exist."""

from typing import Any

from brokerhouse.protocol.messages import UnregisterBrokerRequest
from tests.support.messages import Target
from tests.support.samples import Asked, Sample


def request(target: Target, version: int) -> UnregisterBrokerRequest:
    return UnregisterBrokerRequest(broker_id=77)


def check(asked: Asked, answer: Any) -> None:
    assert answer.error_code == 102
    assert "77" in answer.error_message


SAMPLE = Sample(request, check, throttle_time_since=0)
