"""DeleteRecords: up to offset 0, so nothing is deleted."""

from typing import Any

from kafka.protocol.admin import DeleteRecordsRequest

from tests.support import messages
from tests.support.messages import Target
from tests.support.samples import Asked, Sample


def request(target: Target, version: int) -> DeleteRecordsRequest:
    return messages.delete_records(target, 0)


def check(asked: Asked, answer: Any) -> None:
    (topic,) = answer.topics
    (partition,) = topic.partitions
    assert topic.name == asked.target.name
    assert (partition.partition_index, partition.error_code) == (0, 0)
    assert partition.low_watermark == 0


SAMPLE = Sample(request, check, throttle_time_since=0, names_the_topic=True)
