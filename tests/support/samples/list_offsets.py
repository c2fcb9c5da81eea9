"""ListOffsets: the end of the partition."""

from typing import Any

from kafka.protocol.consumer import ListOffsetsRequest

from tests.support import messages
from tests.support.messages import Target
from tests.support.samples import Asked, Sample


def request(target: Target, version: int) -> ListOffsetsRequest:
    return messages.list_offsets(target, -1)


def check(asked: Asked, answer: Any) -> None:
    (topic,) = answer.topics
    (partition,) = topic.partitions
    assert (topic.name, partition.partition_index) == (asked.target.name, 0)
    assert (partition.error_code, partition.timestamp) == (0, -1)
    assert partition.offset >= 2
    if asked.version >= 4:
        assert partition.leader_epoch == 0


SAMPLE = Sample(request, check, throttle_time_since=2, names_the_topic=True)
