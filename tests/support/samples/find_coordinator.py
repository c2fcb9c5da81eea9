"""FindCoordinator: of one group, and of two from version 4 on."""

from typing import Any

from kafka.protocol.metadata import FindCoordinatorRequest

from tests.support.messages import Target
from tests.support.samples import Asked, Sample


def request(target: Target, version: int) -> FindCoordinatorRequest:
    return FindCoordinatorRequest(key="group", key_type=0, coordinator_keys=["group", "other"])


def check(asked: Asked, answer: Any) -> None:
    found = answer.coordinators if asked.version >= 4 else [answer]
    assert [item.error_code for item in found] == [0] * len(found)
    assert {item.node_id for item in found} == {1}
    assert {f"{item.host}:{item.port}" for item in found} == {asked.broker.kafka}
    if asked.version >= 4:
        assert [item.key for item in found] == ["group", "other"]


SAMPLE = Sample(request, check, throttle_time_since=1)
