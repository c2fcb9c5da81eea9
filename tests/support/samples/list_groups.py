"""ListGroups: classic groups that are empty or stable."""

from typing import Any

from kafka.protocol.admin import ListGroupsRequest

from tests.support.messages import Target
from tests.support.samples import OFFSETS_GROUP, Asked, Sample


def request(target: Target, version: int) -> ListGroupsRequest:
    return ListGroupsRequest(states_filter=["empty", "Stable"], types_filter=["Classic"])


def check(asked: Asked, answer: Any) -> None:
    assert answer.error_code == 0
    (ours,) = (group for group in answer.groups if group.group_id == OFFSETS_GROUP)
    assert ours.protocol_type == ""
    if asked.version >= 4:
        assert ours.group_state == "Empty"
        assert {group.group_state for group in answer.groups} <= {"Empty", "Stable"}
    if asked.version >= 5:
        assert ours.group_type == "classic"


SAMPLE = Sample(request, check, throttle_time_since=1)
