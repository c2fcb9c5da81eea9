"""EndTxn: commit, for a transactional id that nobody has initialised."""

from typing import Any

from kafka.protocol.producer import EndTxnRequest

from brokerhouse.protocol import errors
from tests.support.messages import Target
from tests.support.samples import NO_TRANSACTIONAL_ID, Asked, Sample


def request(target: Target, version: int) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=NO_TRANSACTIONAL_ID, producer_id=1, producer_epoch=0, committed=True
    )


def check(asked: Asked, answer: Any) -> None:
    assert answer.error_code == errors.InvalidProducerIdMapping.code
    if asked.version >= 5:
        assert (answer.producer_id, answer.producer_epoch) == (-1, -1)


SAMPLE = Sample(request, check, throttle_time_since=0)
