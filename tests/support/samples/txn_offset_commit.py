"""TxnOffsetCommit: an offset, for a transactional id that nobody has initialised."""

from typing import Any

from kafka.protocol.producer import TxnOffsetCommitRequest

from brokerhouse.protocol import errors
from tests.support.messages import Target
from tests.support.samples import NO_TRANSACTIONAL_ID, OFFSETS_GROUP, Asked, Sample


def request(target: Target, version: int) -> TxnOffsetCommitRequest:
    topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    partition = topic.TxnOffsetCommitRequestPartition
    return TxnOffsetCommitRequest(
        transactional_id=NO_TRANSACTIONAL_ID,
        group_id=OFFSETS_GROUP,
        producer_id=1,
        producer_epoch=0,
        generation_id=-1,
        member_id="",
        group_instance_id=None,
        topics=[
            topic(
                name=target.name,
                partitions=[
                    partition(
                        partition_index=0,
                        committed_offset=1,
                        committed_leader_epoch=-1,
                        committed_metadata="a note",
                    )
                ],
            )
        ],
    )


def check(asked: Asked, answer: Any) -> None:
    (topic,) = answer.topics
    assert topic.name == asked.target.name
    (partition,) = topic.partitions
    assert partition.partition_index == 0
    assert partition.error_code == errors.InvalidProducerIdMapping.code


SAMPLE = Sample(request, check, throttle_time_since=0, names_the_topic=True)
