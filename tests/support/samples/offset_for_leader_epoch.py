"""OffsetForLeaderEpoch: the end of epoch 0."""

from typing import Any

from kafka.protocol.consumer import OffsetForLeaderEpochRequest

from tests.support.messages import Target
from tests.support.samples import Asked, Sample


def request(target: Target, version: int) -> OffsetForLeaderEpochRequest:
    topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    asked = topic.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
    return OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[topic(topic=target.name, partitions=[asked])]
    )


def check(asked: Asked, answer: Any) -> None:
    (topic,) = answer.topics
    (partition,) = topic.partitions
    assert (topic.topic, partition.partition) == (asked.target.name, 0)
    assert (partition.error_code, partition.leader_epoch) == (0, 0)
    assert partition.end_offset >= 2


SAMPLE = Sample(request, check, names_the_topic=True)
