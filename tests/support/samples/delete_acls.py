"""DeleteAcls: two filters, from a broker without an authorizer."""

from typing import Any

from kafka.protocol.admin import DeleteAclsRequest

from tests.support.messages import Target
from tests.support.samples import Asked, Sample

SECURITY_DISABLED = 54
ANY = 1


def request(target: Target, version: int) -> DeleteAclsRequest:
    return DeleteAclsRequest(
        filters=[
            DeleteAclsRequest.DeleteAclsFilter(
                resource_type_filter=ANY,
                resource_name_filter=name,
                pattern_type_filter=ANY,
                principal_filter="User:samples",
                host_filter=None,
                operation=ANY,
                permission_type=ANY,
            )
            for name in (target.name, None)
        ]
    )


def check(asked: Asked, answer: Any) -> None:
    found = [
        (one.error_code, one.error_message, list(one.matching_acls))
        for one in answer.filter_results
    ]
    assert found == [(SECURITY_DISABLED, "No Authorizer is configured.", [])] * 2


SAMPLE = Sample(request, check, throttle_time_since=1)
