"""CreatePartitions, only validated: a second partition with an assigned replica."""

from typing import Any

from kafka.protocol.admin import CreatePartitionsRequest

from tests.support.messages import Target
from tests.support.samples import Asked, Sample


def request(target: Target, version: int) -> CreatePartitionsRequest:
    topic = CreatePartitionsRequest.CreatePartitionsTopic
    return CreatePartitionsRequest(
        topics=[
            topic(
                name=target.name,
                count=2,
                assignments=[topic.CreatePartitionsAssignment(broker_ids=[1])],
            )
        ],
        timeout_ms=10_000,
        validate_only=True,
    )


def check(asked: Asked, answer: Any) -> None:
    (topic,) = answer.results
    assert (topic.name, topic.error_code) == (asked.target.name, 0)
    assert topic.error_message is None


SAMPLE = Sample(request, check, names_the_topic=True)
