"""ElectLeaders: the leader of one partition is elected already."""

from typing import Any

from kafka.protocol.admin import ElectLeadersRequest

from tests.support.messages import Target
from tests.support.samples import Asked, Sample


def request(target: Target, version: int) -> ElectLeadersRequest:
    partitions = ElectLeadersRequest.TopicPartitions(topic=target.name, partitions=[0])
    return ElectLeadersRequest(election_type=0, topic_partitions=[partitions], timeout_ms=1000)


def check(asked: Asked, answer: Any) -> None:
    if asked.version >= 1:
        assert answer.error_code == 0
    (topic,) = answer.replica_election_results
    (partition,) = topic.partition_result
    assert topic.topic == asked.target.name
    assert (partition.partition_id, partition.error_code) == (0, 84)
    assert partition.error_message


SAMPLE = Sample(request, check, throttle_time_since=0, names_the_topic=True)
