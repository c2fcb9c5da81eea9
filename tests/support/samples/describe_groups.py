"""DescribeGroups: a group that has only offsets, and one that does not exist."""

from typing import Any

from kafka.protocol.admin import DescribeGroupsRequest

from brokerhouse.protocol import errors
from tests.support.messages import NO_GROUP, Target
from tests.support.samples import GROUP_OPERATIONS, NOT_ASKED, OFFSETS_GROUP, Asked, Sample


def request(target: Target, version: int) -> DescribeGroupsRequest:
    return DescribeGroupsRequest(
        groups=[OFFSETS_GROUP, NO_GROUP], include_authorized_operations=True
    )


def check(asked: Asked, answer: Any) -> None:
    ours, none = answer.groups
    assert (ours.group_id, ours.error_code) == (OFFSETS_GROUP, 0)
    assert (ours.group_state, ours.members) == ("Empty", [])
    assert (none.group_id, none.group_state, none.members) == (NO_GROUP, "Dead", [])
    assert {ours.protocol_type, ours.protocol_data} == {""}
    if asked.version >= 3:
        assert ours.authorized_operations == GROUP_OPERATIONS
    if asked.version < 6:
        assert none.error_code == 0
    else:
        assert ours.error_message is None
        assert none.error_code == errors.GroupIdNotFound.code
        assert NO_GROUP in none.error_message
        assert none.authorized_operations == NOT_ASKED


SAMPLE = Sample(request, check, throttle_time_since=1)
