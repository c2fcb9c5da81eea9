"""AlterUserScramCredentials: sets a password, and removes one that does not exist."""

from typing import Any

from kafka.protocol.admin import AlterUserScramCredentialsRequest

from tests.support.messages import Target
from tests.support.samples import Asked, Sample

UNSUPPORTED_SASL_MECHANISM, RESOURCE_NOT_FOUND, DUPLICATE_RESOURCE = 33, 91, 92
SHA_256 = 1


def request(target: Target, version: int) -> AlterUserScramCredentialsRequest:
    deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
    upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
    return AlterUserScramCredentialsRequest(
        deletions=[deletion(name=name, mechanism=SHA_256) for name in ("gone", "twin")],
        upsertions=[
            upsertion(
                name=name, mechanism=SHA_256, iterations=4096, salt=b"s", salted_password=b"p"
            )
            for name in ("new", "twin")
        ],
    )


def check(asked: Asked, answer: Any) -> None:
    assert [(one.user, one.error_code) for one in answer.results] == [
        ("gone", RESOURCE_NOT_FOUND),
        ("twin", DUPLICATE_RESOURCE),
        ("new", UNSUPPORTED_SASL_MECHANISM),
    ]


SAMPLE = Sample(request, check, throttle_time_since=0)
