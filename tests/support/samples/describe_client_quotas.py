"""DescribeClientQuotas: of a user and a client id that have none."""

from typing import Any

from kafka.protocol.admin import DescribeClientQuotasRequest

from tests.support.messages import Target
from tests.support.samples import Asked, Sample


def request(target: Target, version: int) -> DescribeClientQuotasRequest:
    component = DescribeClientQuotasRequest.ComponentData
    return DescribeClientQuotasRequest(
        components=[
            component(entity_type="user", match_type=0, match="samples-nobody"),
            component(entity_type="client-id", match_type=2, match=None),
        ],
        strict=True,
    )


def check(asked: Asked, answer: Any) -> None:
    assert (answer.error_code, answer.error_message, list(answer.entries)) == (0, None, [])


SAMPLE = Sample(request, check, throttle_time_since=0)
