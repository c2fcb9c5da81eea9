"""AddOffsetsToTxn: a group, for a transactional id that nobody has initialised."""

from typing import Any

from kafka.protocol.producer import AddOffsetsToTxnRequest

from brokerhouse.protocol import errors
from tests.support.messages import Target
from tests.support.samples import NO_TRANSACTIONAL_ID, OFFSETS_GROUP, Asked, Sample


def request(target: Target, version: int) -> AddOffsetsToTxnRequest:
    return AddOffsetsToTxnRequest(
        transactional_id=NO_TRANSACTIONAL_ID,
        producer_id=1,
        producer_epoch=0,
        group_id=OFFSETS_GROUP,
    )


def check(asked: Asked, answer: Any) -> None:
    assert answer.error_code == errors.InvalidProducerIdMapping.code


SAMPLE = Sample(request, check, throttle_time_since=0)
