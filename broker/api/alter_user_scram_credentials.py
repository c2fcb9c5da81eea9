"""AlterUserScramCredentials (51), version 0: sets and removes passwords of users (KIP-554).

This broker has no SASL. A password that is stored but never asked for would look like security, so
it is refused.

Errors of a user: UNSUPPORTED_SASL_MECHANISM (a credential to set), RESOURCE_NOT_FOUND (one to
remove), DUPLICATE_RESOURCE (a mechanism of a user that is named twice).
"""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

from kafka.protocol.admin import AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.protocol.errors import (
    DuplicateResource,
    KafkaError,
    ResourceNotFound,
    UnsupportedSaslMechanism,
)

_Result: TypeAlias = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult


async def alter_user_scram_credentials(
    ctx: RequestContext, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    deleted = [(one.name, one.mechanism) for one in request.deletions]
    set_ = [(one.name, one.mechanism) for one in request.upsertions]
    times = Counter(deleted + set_)
    errors: dict[str, KafkaError] = {}
    for user, _ in deleted:
        errors[user] = ResourceNotFound(f"The user {user!r} has no SCRAM credentials.")
    for user, _ in set_:
        errors[user] = UnsupportedSaslMechanism(
            "This broker does not authenticate Kafka clients, so it stores no passwords of them."
        )
    for (user, _), count in times.items():
        if count > 1:
            errors[user] = DuplicateResource(
                f"The request names the same credential of the user {user!r} more than once."
            )
    return AlterUserScramCredentialsResponse(
        throttle_time_ms=0,
        results=[
            _Result(user=user, error_code=error.code, error_message=error.message)
            for user, error in errors.items()
        ],
    )


API = Api(
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    versions=(0, 0),
    handler=alter_user_scram_credentials,
)
