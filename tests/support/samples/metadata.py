"""Metadata: one topic, by id from version 12 on, with authorized operations."""

from typing import Any

from kafka.protocol.metadata import MetadataRequest

from tests.support.messages import Target
from tests.support.samples import ALL_OPERATIONS, Asked, Sample


def request(target: Target, version: int) -> MetadataRequest:
    topic = MetadataRequest.MetadataRequestTopic
    asked = topic(topic_id=target.topic_id, name=None) if version >= 12 else topic(name=target.name)
    return MetadataRequest(
        topics=[asked],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )


def check(asked: Asked, answer: Any) -> None:
    (node,) = answer.brokers
    assert f"{node.host}:{node.port}" == asked.broker.kafka
    if asked.version >= 1:
        assert answer.controller_id == node.node_id
    if asked.version >= 2:
        assert len(answer.cluster_id) == 22
    if 8 <= asked.version <= 10:
        assert answer.authorized_operations
    if asked.version >= 13:
        assert answer.error_code == 0
    (topic,) = answer.topics
    assert (topic.error_code, topic.name) == (0, asked.target.name)
    if asked.version >= 1:
        assert topic.is_internal is False
    if asked.version >= 8:
        assert topic.authorized_operations == ALL_OPERATIONS
    if asked.version >= 10:
        assert topic.topic_id == asked.target.topic_id
    (partition,) = topic.partitions
    assert (partition.error_code, partition.partition_index) == (0, 0)
    assert partition.leader_id == node.node_id
    assert partition.replica_nodes == partition.isr_nodes == [node.node_id]
    if asked.version >= 5:
        assert partition.offline_replicas == []
    if asked.version >= 7:
        assert partition.leader_epoch == 0


SAMPLE = Sample(request, check, throttle_time_since=3, names_the_topic=True)
