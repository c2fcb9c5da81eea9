"""Fetch: from offset 0, without a session."""

from typing import Any

from kafka.protocol.consumer import FetchRequest

from tests.support import messages
from tests.support.messages import Target
from tests.support.one_partition import batches
from tests.support.samples import Asked, Sample


def request(target: Target, version: int) -> FetchRequest:
    return messages.fetch(target, 0, partition_max_bytes=10_000)


def check(asked: Asked, answer: Any) -> None:
    (topic,) = answer.responses
    (partition,) = topic.partitions
    if asked.version >= 13:
        assert topic.topic_id == asked.target.topic_id
    else:
        assert topic.topic == asked.target.name
    if asked.version >= 7:
        assert (answer.error_code, answer.session_id) == (0, 0)
    assert (partition.partition_index, partition.error_code) == (0, 0)
    assert partition.high_watermark == partition.last_stable_offset >= 2
    if asked.version >= 5:
        assert partition.log_start_offset == 0
    assert not partition.aborted_transactions
    if asked.version >= 11:
        assert partition.preferred_read_replica == -1
    first = batches(partition.records)[0]
    assert (first.base_offset, first.count) == (0, 2)
    sent = messages.small_batch()
    assert bytes(partition.records)[21 : len(sent)] == sent[21:]


SAMPLE = Sample(request, check, names_the_topic=True)
