"""DescribeAcls: of all resources, from a broker without an authorizer."""

from typing import Any

from kafka.protocol.admin import DescribeAclsRequest

from tests.support.messages import Target
from tests.support.samples import Asked, Sample

SECURITY_DISABLED = 54
ANY = 1
LITERAL = 3


def request(target: Target, version: int) -> DescribeAclsRequest:
    return DescribeAclsRequest(
        resource_type_filter=ANY,
        resource_name_filter=target.name,
        pattern_type_filter=LITERAL,
        principal_filter=None,
        host_filter="*",
        operation=ANY,
        permission_type=ANY,
    )


def check(asked: Asked, answer: Any) -> None:
    assert (answer.error_code, list(answer.resources)) == (SECURITY_DISABLED, [])
    assert answer.error_message == "No Authorizer is configured on the broker"


SAMPLE = Sample(request, check, throttle_time_since=1)
