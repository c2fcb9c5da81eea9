"""DescribeUserScramCredentials: of a user who has none, and of one who is named twice."""

from typing import Any

from kafka.protocol.admin import DescribeUserScramCredentialsRequest

from tests.support.messages import Target
from tests.support.samples import Asked, Sample

RESOURCE_NOT_FOUND, DUPLICATE_RESOURCE = 91, 92


def request(target: Target, version: int) -> DescribeUserScramCredentialsRequest:
    user = DescribeUserScramCredentialsRequest.UserName
    return DescribeUserScramCredentialsRequest(
        users=[user(name=name) for name in ("nobody", "twin", "twin")]
    )


def check(asked: Asked, answer: Any) -> None:
    assert (answer.error_code, answer.error_message) == (0, None)
    assert [(one.user, one.error_code, list(one.credential_infos)) for one in answer.results] == [
        ("nobody", RESOURCE_NOT_FOUND, []),
        ("twin", DUPLICATE_RESOURCE, []),
    ]


SAMPLE = Sample(request, check, throttle_time_since=0)
