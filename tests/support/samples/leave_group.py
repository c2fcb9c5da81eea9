"""LeaveGroup: a member that does not exist, and from version 3 on also the static member."""

from typing import Any

from kafka.protocol.consumer import LeaveGroupRequest

from brokerhouse.protocol import errors
from tests.support import messages
from tests.support.messages import NOBODY, Target
from tests.support.samples import MEMBERS_GROUP, STATIC_MEMBER, Asked, Sample

UNKNOWN_MEMBER = errors.UnknownMemberId.code


def request(target: Target, version: int) -> LeaveGroupRequest:
    return messages.leave(MEMBERS_GROUP, (NOBODY, None), ("", STATIC_MEMBER))


def check(asked: Asked, answer: Any) -> None:
    if asked.version < 3:
        assert answer.error_code == UNKNOWN_MEMBER
        return
    assert answer.error_code == 0
    nobody, static = answer.members
    assert (nobody.member_id, nobody.group_instance_id) == (NOBODY, None)
    assert nobody.error_code == UNKNOWN_MEMBER
    assert (static.member_id, static.group_instance_id) == ("", STATIC_MEMBER)
    assert static.error_code in (0, UNKNOWN_MEMBER)


SAMPLE = Sample(request, check, throttle_time_since=1)
