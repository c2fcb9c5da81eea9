"""ShareGroupHeartbeat: a member that joins, and is refused."""

from typing import Any

from brokerhouse.protocol import errors
from brokerhouse.protocol.messages import ShareGroupHeartbeatRequest
from tests.support.messages import Target
from tests.support.samples import Asked, Sample


def request(target: Target, version: int) -> ShareGroupHeartbeatRequest:
    return ShareGroupHeartbeatRequest(
        group_id="group",
        member_id="member",
        member_epoch=0,
        rack_id=None,
        subscribed_topic_names=["events"],
    )


def check(asked: Asked, answer: Any) -> None:
    assert answer.error_code == errors.UnsupportedVersion.code
    assert "share groups" in answer.error_message
    assert answer.assignment is None


SAMPLE = Sample(request, check, throttle_time_since=0)
