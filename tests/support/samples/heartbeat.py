"""Heartbeat: by a member that does not exist."""

from typing import Any

from kafka.protocol.consumer import HeartbeatRequest

from brokerhouse.protocol import errors
from tests.support import messages
from tests.support.messages import NOBODY, Target
from tests.support.samples import MEMBERS_GROUP, Asked, Sample


def request(target: Target, version: int) -> HeartbeatRequest:
    return messages.heartbeat(MEMBERS_GROUP, NOBODY, 1)


def check(asked: Asked, answer: Any) -> None:
    assert answer.error_code == errors.UnknownMemberId.code


SAMPLE = Sample(request, check, throttle_time_since=1)
