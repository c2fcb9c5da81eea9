"""JoinGroup: a member that rebalances in 10 ms, so that no test waits for one that has left.

Version 0 has no rebalance time-out of its own, so in that version the member is unknown. From
version 5 on it is a static member.
"""

from typing import Any

from kafka.protocol.consumer import JoinGroupRequest

from brokerhouse.protocol import errors
from tests.support import messages
from tests.support.messages import NOBODY, SUBSCRIPTION, Target
from tests.support.samples import MEMBERS_GROUP, STATIC_MEMBER, Asked, Sample


def request(target: Target, version: int) -> JoinGroupRequest:
    return messages.join(
        MEMBERS_GROUP,
        member_id=NOBODY if version == 0 else "",
        instance_id=STATIC_MEMBER if version >= 5 else None,
        session_timeout_ms=6_000,
        rebalance_timeout_ms=10,
    )


def check(asked: Asked, answer: Any) -> None:
    if asked.version == 0:
        assert (answer.error_code, answer.member_id) == (errors.UnknownMemberId.code, NOBODY)
    elif asked.version == 4:
        assert answer.error_code == errors.MemberIdRequired.code
        assert answer.member_id.startswith("wire-")
    else:
        assert answer.error_code == 0
        assert answer.generation_id >= 1
        assert answer.protocol_name == "range"
        members = {member.member_id: member.metadata for member in answer.members}
        leads = answer.leader == answer.member_id
        assert members.get(answer.member_id) == (SUBSCRIPTION if leads else None)
        if asked.version >= 7:
            assert answer.protocol_type == "consumer"
        return
    assert (answer.generation_id, answer.leader, answer.members) == (-1, "", [])
    assert not answer.protocol_name


SAMPLE = Sample(request, check, throttle_time_since=2)
