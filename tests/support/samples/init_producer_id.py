"""InitProducerId: of an idempotent producer, without a transactional id."""

from typing import Any

from kafka.protocol.producer import InitProducerIdRequest

from tests.support.messages import Target
from tests.support.samples import Asked, Sample


def request(target: Target, version: int) -> InitProducerIdRequest:
    return InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )


def check(asked: Asked, answer: Any) -> None:
    assert (answer.error_code, answer.producer_epoch) == (0, 0)
    assert answer.producer_id >= 0


SAMPLE = Sample(request, check)
