"""WriteTxnMarkers: a commit of a producer that has nothing to commit."""

from typing import Any

from kafka.protocol.producer import WriteTxnMarkersRequest

from tests.support.messages import Target
from tests.support.samples import Asked, Sample

PRODUCER_ID = 987_654_321


def request(target: Target, version: int) -> WriteTxnMarkersRequest:
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    topic = marker.WritableTxnMarkerTopic
    return WriteTxnMarkersRequest(
        markers=[
            marker(
                producer_id=PRODUCER_ID,
                producer_epoch=0,
                transaction_result=True,
                topics=[topic(name=target.name, partition_indexes=[0])],
                coordinator_epoch=0,
                transaction_version=2,
            )
        ]
    )


def check(asked: Asked, answer: Any) -> None:
    (marker,) = answer.markers
    assert marker.producer_id == PRODUCER_ID
    (topic,) = marker.topics
    (partition,) = topic.partitions
    assert (topic.name, partition.partition_index) == (asked.target.name, 0)
    assert partition.error_code == 0


SAMPLE = Sample(request, check, names_the_topic=True)
