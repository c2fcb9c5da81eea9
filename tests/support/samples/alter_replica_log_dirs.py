"""AlterReplicaLogDirs: to a directory that the broker does not have."""

from typing import Any

from kafka.protocol.admin import AlterReplicaLogDirsRequest

from tests.support.messages import Target
from tests.support.samples import Asked, Sample


def request(target: Target, version: int) -> AlterReplicaLogDirsRequest:
    directory = AlterReplicaLogDirsRequest.AlterReplicaLogDir
    topic = directory.AlterReplicaLogDirTopic(name=target.name, partitions=[0])
    return AlterReplicaLogDirsRequest(dirs=[directory(path="/nowhere", topics=[topic])])


def check(asked: Asked, answer: Any) -> None:
    (topic,) = answer.results
    (partition,) = topic.partitions
    assert topic.topic_name == asked.target.name
    assert (partition.partition_index, partition.error_code) == (0, 57)


SAMPLE = Sample(request, check, throttle_time_since=0)
