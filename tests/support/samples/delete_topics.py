"""DeleteTopics: a name that does not exist, and from version 6 on also an id."""

from typing import Any
from uuid import UUID

from kafka.protocol.admin import DeleteTopicsRequest

from tests.support.messages import NOWHERE, Target
from tests.support.samples import Asked, Sample


def request(target: Target, version: int) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(
        topics=[
            DeleteTopicsRequest.DeleteTopicState(name=NOWHERE, topic_id=None),
            DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=UUID(int=7)),
        ],
        topic_names=[NOWHERE],
        timeout_ms=10_000,
    )


def check(asked: Asked, answer: Any) -> None:
    if asked.version < 6:
        assert [(item.name, item.error_code) for item in answer.responses] == [(NOWHERE, 3)]
        return
    named, by_id = answer.responses
    assert (named.name, named.error_code) == (NOWHERE, 3)
    assert (by_id.name, by_id.topic_id, by_id.error_code) == (None, UUID(int=7), 100)
    assert named.error_message
    assert by_id.error_message


SAMPLE = Sample(request, check)
