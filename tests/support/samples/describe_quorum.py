"""DescribeQuorum: of the metadata, and of a topic, which has none."""

from typing import Any

from kafka.protocol.admin import DescribeQuorumRequest

from tests.support.messages import Target
from tests.support.samples import Asked, Sample

METADATA = "__cluster_metadata"


def request(target: Target, version: int) -> DescribeQuorumRequest:
    topic = DescribeQuorumRequest.TopicData
    return DescribeQuorumRequest(
        topics=[
            topic(topic_name=name, partitions=[topic.PartitionData(partition_index=0)])
            for name in (METADATA, target.name)
        ]
    )


def check(asked: Asked, answer: Any) -> None:
    assert answer.error_code == 0
    metadata, other = answer.topics
    assert (metadata.topic_name, other.topic_name) == (METADATA, asked.target.name)
    (partition,) = metadata.partitions
    assert (partition.error_code, partition.leader_id) == (0, 1)
    assert partition.leader_epoch >= 1
    assert partition.high_watermark > 0
    (voter,) = partition.current_voters
    assert (voter.replica_id, voter.log_end_offset) == (1, partition.high_watermark)
    if asked.version >= 1:
        assert voter.last_caught_up_timestamp > 0
    if asked.version >= 2:
        assert 1 in [node.node_id for node in answer.nodes]
    (refused,) = other.partitions
    assert refused.error_code == 3


SAMPLE = Sample(request, check, names_the_topic=True)
