"""OffsetDelete: of a partition that the topic does not have."""

from typing import Any

from kafka.protocol.consumer import OffsetDeleteRequest

from brokerhouse.protocol import errors
from tests.support import messages
from tests.support.messages import Target
from tests.support.samples import OFFSETS_GROUP, Asked, Sample


def request(target: Target, version: int) -> OffsetDeleteRequest:
    return messages.offset_delete(OFFSETS_GROUP, (target.name, [1]))


def check(asked: Asked, answer: Any) -> None:
    assert answer.error_code == 0
    (topic,) = answer.topics
    (partition,) = topic.partitions
    assert (topic.name, partition.partition_index) == (asked.target.name, 1)
    assert partition.error_code == errors.UnknownTopicOrPartition.code


SAMPLE = Sample(request, check, throttle_time_since=0, names_the_topic=True)
