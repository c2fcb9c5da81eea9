"""DescribeTopicPartitions: one topic, from a cursor."""

from typing import Any

from kafka.protocol.admin import DescribeTopicPartitionsRequest

from tests.support.messages import Target
from tests.support.samples import Asked, Sample


def request(target: Target, version: int) -> DescribeTopicPartitionsRequest:
    return DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsRequest.TopicRequest(name=target.name)],
        response_partition_limit=10,
        cursor=DescribeTopicPartitionsRequest.Cursor(topic_name=target.name, partition_index=0),
    )


def check(asked: Asked, answer: Any) -> None:
    (topic,) = answer.topics
    assert (topic.error_code, topic.name) == (0, asked.target.name)
    assert topic.topic_id == asked.target.topic_id
    (partition,) = topic.partitions
    assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (0, 1, 0)
    assert answer.next_cursor is None


SAMPLE = Sample(request, check, names_the_topic=True)
