"""OffsetCommit: one offset with metadata, of a group without members."""

from typing import Any

from kafka.protocol.consumer import OffsetCommitRequest

from tests.support import messages
from tests.support.messages import Target
from tests.support.samples import OFFSETS_GROUP, Asked, Sample


def request(target: Target, version: int) -> OffsetCommitRequest:
    return messages.commit(
        OFFSETS_GROUP, (target, {0: 1}), metadata="a note", retention_ms=3_600_000
    )


def check(asked: Asked, answer: Any) -> None:
    (topic,) = answer.topics
    (partition,) = topic.partitions
    asked.is_named_in(topic)
    assert (partition.partition_index, partition.error_code) == (0, 0)


SAMPLE = Sample(request, check, throttle_time_since=3, names_the_topic=True)
