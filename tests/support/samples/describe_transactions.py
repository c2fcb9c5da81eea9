"""DescribeTransactions: a transactional id that nobody has initialised, and an empty one."""

from typing import Any

from kafka.protocol.admin import DescribeTransactionsRequest

from brokerhouse.protocol import errors
from tests.support.messages import Target
from tests.support.samples import NO_TRANSACTIONAL_ID, Asked, Sample


def request(target: Target, version: int) -> DescribeTransactionsRequest:
    return DescribeTransactionsRequest(transactional_ids=[NO_TRANSACTIONAL_ID, ""])


def check(asked: Asked, answer: Any) -> None:
    unknown, empty = answer.transaction_states
    assert (unknown.transactional_id, empty.transactional_id) == (NO_TRANSACTIONAL_ID, "")
    assert unknown.error_code == errors.TransactionalIdNotFound.code
    assert empty.error_code == errors.InvalidRequest.code


SAMPLE = Sample(request, check, throttle_time_since=0)
