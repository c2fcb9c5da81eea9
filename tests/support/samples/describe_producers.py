"""DescribeProducers: of a partition."""

from typing import Any

from kafka.protocol.admin import DescribeProducersRequest

from tests.support.messages import Target
from tests.support.samples import Asked, Sample


def request(target: Target, version: int) -> DescribeProducersRequest:
    topic = DescribeProducersRequest.TopicRequest
    return DescribeProducersRequest(topics=[topic(name=target.name, partition_indexes=[0])])


def check(asked: Asked, answer: Any) -> None:
    (topic,) = answer.topics
    (partition,) = topic.partitions
    assert (topic.name, partition.partition_index) == (asked.target.name, 0)
    assert (partition.error_code, partition.error_message) == (0, None)
    assert all(one.current_txn_start_offset == -1 for one in partition.active_producers)


SAMPLE = Sample(request, check, throttle_time_since=0, names_the_topic=True)
