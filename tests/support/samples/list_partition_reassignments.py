"""ListPartitionReassignments: nothing is ever being moved."""

from typing import Any

from kafka.protocol.admin import ListPartitionReassignmentsRequest

from tests.support.messages import Target
from tests.support.samples import Asked, Sample


def request(target: Target, version: int) -> ListPartitionReassignmentsRequest:
    topic = ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics
    return ListPartitionReassignmentsRequest(
        timeout_ms=1000, topics=[topic(name=target.name, partition_indexes=[0])]
    )


def check(asked: Asked, answer: Any) -> None:
    assert (answer.error_code, answer.error_message, list(answer.topics)) == (0, None, [])


SAMPLE = Sample(request, check, throttle_time_since=0)
