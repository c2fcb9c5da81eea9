"""The answers about a group that tests ask a broker for, and their error codes by short names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafka.protocol.admin import DescribeGroupsRequest

from brokerhouse.protocol import errors
from tests.support import messages
from tests.support.messages import Target
from tests.support.wire import Wire

COMMIT, FETCH, LEAVE, DESCRIBE = (
    9,
    9,
    5,
    6,
)  # versions for tests of behaviour that is the same in every version
JOIN, SYNC, BEAT, DELETE = 9, 5, 4, 2

NONE = 0
UNKNOWN_SERVER_ERROR = errors.UnknownServerError.code
UNKNOWN_TOPIC_OR_PARTITION = errors.UnknownTopicOrPartition.code
METADATA_TOO_LARGE = errors.OffsetMetadataTooLarge.code
ILLEGAL_GENERATION = errors.IllegalGeneration.code
INCONSISTENT_PROTOCOL = errors.InconsistentGroupProtocol.code
INVALID_GROUP_ID = errors.InvalidGroupId.code
UNKNOWN_MEMBER = errors.UnknownMemberId.code
INVALID_SESSION_TIMEOUT = errors.InvalidSessionTimeout.code
REBALANCE = errors.RebalanceInProgress.code
NON_EMPTY = errors.NonEmptyGroup.code
GROUP_NOT_FOUND = errors.GroupIdNotFound.code
MEMBER_ID_REQUIRED = errors.MemberIdRequired.code
FULL = errors.GroupMaxSizeReached.code
FENCED = errors.FencedInstanceId.code
SUBSCRIBED = errors.GroupSubscribedToTopic.code
UNKNOWN_TOPIC_ID = errors.UnknownTopicId.code

Connect = Callable[[], Wire]
"""Opens a connection that is closed when the test ends."""


def committed(wire: Wire, group_id: str, target: Target) -> dict[int, tuple[int, str]]:
    """The committed (offset, metadata) of each partition of a topic."""
    answer = wire.ask(messages.offset_fetch(FETCH, {group_id: [(target, [0, 1])]}), FETCH)
    (group,) = answer.groups
    assert group.error_code == NONE
    (topic,) = group.topics
    assert [partition.error_code for partition in topic.partitions] == [NONE, NONE]
    return {
        partition.partition_index: (partition.committed_offset, partition.metadata)
        for partition in topic.partitions
        if partition.committed_offset >= 0
    }


def codes(answer: Any) -> list[int]:
    """Per partition of an answer to OffsetCommit or OffsetDelete, in the order of the request."""
    return [int(partition.error_code) for topic in answer.topics for partition in topic.partitions]


def described(wire: Wire, *group_ids: str, version: int = DESCRIBE) -> list[Any]:
    request = DescribeGroupsRequest(groups=list(group_ids), include_authorized_operations=False)
    return list(wire.ask(request, version).groups)


def state(wire: Wire, group_id: str) -> str:
    (group,) = described(wire, group_id)
    return str(group.group_state)
