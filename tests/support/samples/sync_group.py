"""SyncGroup: by a member that does not exist."""

from typing import Any

from kafka.protocol.consumer import SyncGroupRequest

from brokerhouse.protocol import errors
from tests.support import messages
from tests.support.messages import ASSIGNMENT, NOBODY, Target
from tests.support.samples import MEMBERS_GROUP, Asked, Sample


def request(target: Target, version: int) -> SyncGroupRequest:
    return messages.sync(MEMBERS_GROUP, NOBODY, 1, {NOBODY: ASSIGNMENT})


def check(asked: Asked, answer: Any) -> None:
    assert (answer.error_code, answer.assignment) == (errors.UnknownMemberId.code, b"")
    if asked.version >= 5:
        assert (answer.protocol_type, answer.protocol_name) == (None, None)


SAMPLE = Sample(request, check, throttle_time_since=1)
