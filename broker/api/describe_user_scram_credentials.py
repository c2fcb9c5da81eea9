"""DescribeUserScramCredentials (50), version 0: which users can log in with SCRAM (KIP-554).

This broker has no SASL, so no user has credentials: a list of all is empty, and a user that is
named does not exist. Kafka answers the same before the first credential is made; its tools ask when
they describe users.

Errors of a user: RESOURCE_NOT_FOUND, DUPLICATE_RESOURCE (named twice).
"""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

from kafka.protocol.admin import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.protocol.errors import DuplicateResource, KafkaError, ResourceNotFound

_Result: TypeAlias = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult


async def describe_user_scram_credentials(
    ctx: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    times = Counter(user.name for user in request.users or ())
    return DescribeUserScramCredentialsResponse(
        throttle_time_ms=0,
        error_code=0,
        error_message=None,
        results=[_undescribed(name, count) for name, count in times.items()],
    )


def _undescribed(user: str, count: int) -> _Result:
    error: KafkaError
    if count > 1:
        error = DuplicateResource(f"The request names the user {user!r} more than once.")
    else:
        error = ResourceNotFound(f"The user {user!r} has no SCRAM credentials.")
    return _Result(
        user=user, error_code=error.code, error_message=error.message, credential_infos=[]
    )


API = Api(
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    versions=(0, 0),
    handler=describe_user_scram_credentials,
)
