"""ListTransactions: those in a state that no transaction has, and in one that does not exist."""

from typing import Any

from kafka.protocol.admin import ListTransactionsRequest

from tests.support.messages import Target
from tests.support.samples import Asked, Sample


def request(target: Target, version: int) -> ListTransactionsRequest:
    return ListTransactionsRequest(
        state_filters=["PrepareCommit", "Asleep"], producer_id_filters=[], duration_filter=-1
    )


def check(asked: Asked, answer: Any) -> None:
    assert (answer.error_code, answer.unknown_state_filters) == (0, ["Asleep"])
    assert answer.transaction_states == []


SAMPLE = Sample(request, check, throttle_time_since=0)
