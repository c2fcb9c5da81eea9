"""AlterPartitionReassignments: a reassignment is cancelled, and there is none."""

from typing import Any

from kafka.protocol.admin import AlterPartitionReassignmentsRequest

from tests.support.messages import Target
from tests.support.samples import Asked, Sample


def request(target: Target, version: int) -> AlterPartitionReassignmentsRequest:
    topic = AlterPartitionReassignmentsRequest.ReassignableTopic
    cancelled = topic.ReassignablePartition(partition_index=0, replicas=None)
    return AlterPartitionReassignmentsRequest(
        timeout_ms=1000,
        allow_replication_factor_change=version == 0,
        topics=[topic(name=target.name, partitions=[cancelled])],
    )


def check(asked: Asked, answer: Any) -> None:
    assert (answer.error_code, answer.error_message) == (0, None)
    if asked.version >= 1:
        assert answer.allow_replication_factor_change is False
    (topic,) = answer.responses
    (partition,) = topic.partitions
    assert topic.name == asked.target.name
    assert (partition.partition_index, partition.error_code) == (0, 85)


SAMPLE = Sample(request, check, throttle_time_since=0, names_the_topic=True)
