"""ConsumerGroupHeartbeat: a member that joins, and is refused."""

from typing import Any

from brokerhouse.protocol import errors
from brokerhouse.protocol.messages import ConsumerGroupHeartbeatRequest
from tests.support.messages import Target
from tests.support.samples import Asked, Sample


def request(target: Target, version: int) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id="group",
        member_id="member",
        member_epoch=0,
        instance_id=None,
        rack_id=None,
        rebalance_timeout_ms=300_000,
        subscribed_topic_names=["events"],
        subscribed_topic_regex=None,
        server_assignor=None,
        topic_partitions=[],
    )


def check(asked: Asked, answer: Any) -> None:
    assert answer.error_code == errors.UnsupportedVersion.code
    assert "group.protocol=classic" in answer.error_message
    assert answer.assignment is None


SAMPLE = Sample(request, check, throttle_time_since=0)
