"""AlterConfigs, only validated: one config of a topic."""

from typing import Any

from kafka.protocol.admin import AlterConfigsRequest

from tests.support.messages import Target
from tests.support.samples import TOPIC_TYPE, Asked, Sample


def request(target: Target, version: int) -> AlterConfigsRequest:
    resource = AlterConfigsRequest.AlterConfigsResource
    changed = [resource.AlterableConfig(name="retention.ms", value="12345")]
    return AlterConfigsRequest(
        resources=[resource(resource_type=TOPIC_TYPE, resource_name=target.name, configs=changed)],
        validate_only=True,
    )


def check(asked: Asked, answer: Any) -> None:
    (resource,) = answer.responses
    assert (resource.error_code, resource.error_message) == (0, None)
    assert (resource.resource_type, resource.resource_name) == (TOPIC_TYPE, asked.target.name)


SAMPLE = Sample(request, check, names_the_topic=True)
