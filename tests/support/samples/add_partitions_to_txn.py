"""AddPartitionsToTxn: a partition, for a transactional id that nobody has initialised."""

from typing import Any

from kafka.protocol.producer import AddPartitionsToTxnRequest

from brokerhouse.protocol import errors
from tests.support.messages import Target
from tests.support.samples import NO_TRANSACTIONAL_ID, Asked, Sample

BATCHED_SINCE = 4


def request(target: Target, version: int) -> AddPartitionsToTxnRequest:
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    topics = [topic(name=target.name, partitions=[0])]
    if version < BATCHED_SINCE:
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=NO_TRANSACTIONAL_ID,
            v3_and_below_producer_id=1,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=topics,
        )
    transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
    return AddPartitionsToTxnRequest(
        transactions=[
            transaction(
                transactional_id=NO_TRANSACTIONAL_ID,
                producer_id=1,
                producer_epoch=0,
                verify_only=verify_only,
                topics=topics,
            )
            for verify_only in (False, True)
        ]
    )


def check(asked: Asked, answer: Any) -> None:
    if asked.version < BATCHED_SINCE:
        results = [answer.results_by_topic_v3_and_below]
    else:
        assert answer.error_code == 0
        ids = [one.transactional_id for one in answer.results_by_transaction]
        assert ids == [NO_TRANSACTIONAL_ID] * 2
        results = [one.topic_results for one in answer.results_by_transaction]
    for (topic,) in results:
        assert topic.name == asked.target.name
        (partition,) = topic.results_by_partition
        assert partition.partition_index == 0
        assert partition.partition_error_code == errors.InvalidProducerIdMapping.code


SAMPLE = Sample(request, check, throttle_time_since=0, names_the_topic=True)
