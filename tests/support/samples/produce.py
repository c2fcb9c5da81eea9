"""Produce: a batch of two records."""

from typing import Any

from kafka.protocol.producer import ProduceRequest

from tests.support import messages
from tests.support.messages import Target
from tests.support.samples import Asked, Sample


def request(target: Target, version: int) -> ProduceRequest:
    return messages.produce(target, messages.small_batch())


def check(asked: Asked, answer: Any) -> None:
    (topic,) = answer.responses
    (partition,) = topic.partition_responses
    if asked.version >= 13:
        assert topic.topic_id == asked.target.topic_id
    else:
        assert topic.name == asked.target.name
    assert (partition.index, partition.error_code) == (0, 0)
    assert partition.base_offset >= 2
    assert partition.log_append_time_ms == -1
    if asked.version >= 5:
        assert partition.log_start_offset == 0
    if asked.version >= 8:
        assert partition.record_errors == []
        assert partition.error_message is None


SAMPLE = Sample(request, check, names_the_topic=True)
