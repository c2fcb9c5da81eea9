"""CreateAcls: two entries, from a broker without an authorizer."""

from typing import Any

from kafka.protocol.admin import CreateAclsRequest

from tests.support.messages import Target
from tests.support.samples import Asked, Sample

SECURITY_DISABLED = 54
TOPIC, LITERAL, READ, WRITE, ALLOW = 2, 3, 3, 4, 3


def request(target: Target, version: int) -> CreateAclsRequest:
    return CreateAclsRequest(
        creations=[
            CreateAclsRequest.AclCreation(
                resource_type=TOPIC,
                resource_name=target.name,
                resource_pattern_type=LITERAL,
                principal="User:samples",
                host="*",
                operation=operation,
                permission_type=ALLOW,
            )
            for operation in (READ, WRITE)
        ]
    )


def check(asked: Asked, answer: Any) -> None:
    found = [(one.error_code, one.error_message) for one in answer.results]
    assert found == [(SECURITY_DISABLED, "No Authorizer is configured.")] * 2


SAMPLE = Sample(request, check, throttle_time_since=1)
