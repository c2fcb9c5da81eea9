"""CreateTopics, only validated: one topic by number of partitions, one with assigned replicas."""

from typing import Any
from uuid import UUID

from kafka.protocol.admin import CreateTopicsRequest

from tests.support.messages import NOWHERE, Target
from tests.support.samples import Asked, Sample


def request(target: Target, version: int) -> CreateTopicsRequest:
    topic = CreateTopicsRequest.CreatableTopic
    return CreateTopicsRequest(
        topics=[
            topic(
                name=NOWHERE,
                num_partitions=3,
                replication_factor=1,
                assignments=[],
                configs=[topic.CreatableTopicConfig(name="retention.ms", value="1000")],
            ),
            topic(
                name=NOWHERE + "-assigned",
                num_partitions=-1,
                replication_factor=-1,
                assignments=[topic.CreatableReplicaAssignment(partition_index=0, broker_ids=[1])],
                configs=[],
            ),
        ],
        timeout_ms=10_000,
        validate_only=True,
    )


def check(asked: Asked, answer: Any) -> None:
    plain, assigned = answer.topics
    assert (plain.name, plain.error_code, plain.error_message) == (NOWHERE, 0, None)
    assert (assigned.name, assigned.error_code) == (NOWHERE + "-assigned", 0)
    if asked.version >= 5:
        assert (plain.num_partitions, plain.replication_factor) == (3, 1)
        assert (assigned.num_partitions, assigned.replication_factor) == (1, 1)
        configs = {config.name: config.value for config in plain.configs}
        assert configs["retention.ms"] == "1000"
    if asked.version >= 7:
        assert plain.topic_id in (UUID(int=0), None)  # nothing was created


SAMPLE = Sample(request, check)
