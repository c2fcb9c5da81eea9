"""AlterClientQuotas: only checked, of the default client id of a user."""

from typing import Any

from kafka.protocol.admin import AlterClientQuotasRequest

from tests.support.messages import Target
from tests.support.samples import Asked, Sample


def request(target: Target, version: int) -> AlterClientQuotasRequest:
    entry = AlterClientQuotasRequest.EntryData
    return AlterClientQuotasRequest(
        entries=[
            entry(
                entity=[
                    entry.EntityData(entity_type="user", entity_name="samples-nobody"),
                    entry.EntityData(entity_type="client-id", entity_name=None),
                ],
                ops=[
                    entry.OpData(key="producer_byte_rate", value=1024.0, remove=False),
                    entry.OpData(key="consumer_byte_rate", value=0.0, remove=True),
                ],
            )
        ],
        validate_only=True,
    )


def check(asked: Asked, answer: Any) -> None:
    (entry,) = answer.entries
    assert (entry.error_code, entry.error_message) == (0, None)
    named = [(part.entity_type, part.entity_name) for part in entry.entity]
    assert named == [("user", "samples-nobody"), ("client-id", None)]


SAMPLE = Sample(request, check, throttle_time_since=0)
