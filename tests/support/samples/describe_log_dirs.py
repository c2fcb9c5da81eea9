"""DescribeLogDirs: the size of one partition."""

from typing import Any

from kafka.protocol.admin import DescribeLogDirsRequest

from tests.support.messages import Target
from tests.support.samples import Asked, Sample


def request(target: Target, version: int) -> DescribeLogDirsRequest:
    topic = DescribeLogDirsRequest.DescribableLogDirTopic
    return DescribeLogDirsRequest(topics=[topic(topic=target.name, partitions=[0])])


def check(asked: Asked, answer: Any) -> None:
    if asked.version >= 3:
        assert answer.error_code == 0
    (directory,) = answer.results
    assert (directory.error_code, directory.log_dir) == (0, str(asked.broker.data_dir))
    (topic,) = directory.topics
    (partition,) = topic.partitions
    assert (topic.name, partition.partition_index) == (asked.target.name, 0)
    assert partition.partition_size >= len(b"keyvalue")
    if asked.version >= 4:
        assert 0 < directory.usable_bytes < directory.total_bytes


SAMPLE = Sample(request, check)
