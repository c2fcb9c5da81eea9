"""ListConfigResources: topics and brokers."""

from typing import Any

from kafka.protocol.admin import ListConfigResourcesRequest

from tests.support.messages import Target
from tests.support.samples import BROKER_TYPE, TOPIC_TYPE, Asked, Sample


def request(target: Target, version: int) -> ListConfigResourcesRequest:
    return ListConfigResourcesRequest(resource_types=[TOPIC_TYPE, BROKER_TYPE])


def check(asked: Asked, answer: Any) -> None:
    assert answer.error_code == 0
    named = {(item.resource_name, item.resource_type) for item in answer.config_resources}
    if asked.version == 0:
        assert named == set()  # version 0 lists client metrics, and this broker has none
    else:
        assert {(asked.target.name, TOPIC_TYPE), ("1", BROKER_TYPE)} <= named


SAMPLE = Sample(request, check)
