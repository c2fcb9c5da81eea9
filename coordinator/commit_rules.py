"""Who can commit offsets of a group: the rules of OffsetCommit and TxnOffsetCommit.

The code looks every commit up in `RULES`, one table for each kind of commit. A cell is the error of
a commit, or None if the commit is accepted. The row is the sender and the generation that it names,
the column is the state of the group.

The tables differ in two rows. A transactional commit needs no member (clients before KIP-447,
aiokafka and kafkajs name none), because the producer's epoch fences it. And a member can send it
before the leader has assigned the partitions.

Source: `validateOffsetCommit` of Kafka's `ClassicGroup`, and `validateOffsetCommit` and
`validateTransactionalOffsetCommit` of its `OffsetMetadataManager`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType

from coordinator.group_members import Members
from coordinator.group_states import GroupState
from coordinator.messages import UNKNOWN_MEMBER_ID, Committer
from protocol.errors import (
    CoordinatorNotAvailable,
    FencedInstanceId,
    GroupIdNotFound,
    IllegalGeneration,
    KafkaError,
    RebalanceInProgress,
    UnknownMemberId,
)


class CommitKind(Enum):
    PLAIN = auto()
    """OffsetCommit."""
    TRANSACTIONAL = auto()
    """TxnOffsetCommit."""


class CommitSender(Enum):
    """Who sends a commit."""

    NOBODY = auto()
    """Neither a member id nor an instance id is given: a tool, or a consumer that chooses its
    partitions itself."""
    MEMBER = auto()
    FENCED = auto()
    """The instance id belongs to another member id by now (KIP-345)."""
    STRANGER = auto()
    """The member id or the instance id is not one of the group."""


class NamedGeneration(Enum):
    """The generation that a commit names."""

    NONE = auto()
    """It is negative."""
    CURRENT = auto()
    OTHER = auto()


Outcome = type[KafkaError] | None
Row = tuple[CommitSender, NamedGeneration]

COLUMNS: tuple[GroupState | None, ...] = (
    None,
    GroupState.EMPTY,
    GroupState.PREPARING_REBALANCE,
    GroupState.COMPLETING_REBALANCE,
    GroupState.STABLE,
    GroupState.DEAD,
)
"""The state of the group; None: it does not exist."""

_OK = None
_ABSENT = GroupIdNotFound
_UNKNOWN = UnknownMemberId
_FENCED = FencedInstanceId
_ILLEGAL = IllegalGeneration
_WAIT = RebalanceInProgress
_DEAD = CoordinatorNotAvailable

_By, _Gen = CommitSender, NamedGeneration
# fmt: off
_PLAIN: dict[Row, tuple[Outcome, ...]] = {
    #                              absent    Empty     Preparing  Completing  Stable    Dead
    (_By.NOBODY, _Gen.NONE):      (_OK,      _OK,      _UNKNOWN,  _UNKNOWN,   _UNKNOWN, _DEAD),
    (_By.NOBODY, _Gen.CURRENT):   (_ABSENT,  _UNKNOWN, _UNKNOWN,  _UNKNOWN,   _UNKNOWN, _DEAD),
    (_By.NOBODY, _Gen.OTHER):     (_ABSENT,  _UNKNOWN, _UNKNOWN,  _UNKNOWN,   _UNKNOWN, _DEAD),
    (_By.STRANGER, _Gen.NONE):    (_OK,      _OK,      _UNKNOWN,  _UNKNOWN,   _UNKNOWN, _DEAD),
    (_By.STRANGER, _Gen.CURRENT): (_ABSENT,  _UNKNOWN, _UNKNOWN,  _UNKNOWN,   _UNKNOWN, _DEAD),
    (_By.STRANGER, _Gen.OTHER):   (_ABSENT,  _UNKNOWN, _UNKNOWN,  _UNKNOWN,   _UNKNOWN, _DEAD),
    (_By.FENCED, _Gen.NONE):      (_OK,      _OK,      _FENCED,   _FENCED,    _FENCED,  _DEAD),
    (_By.FENCED, _Gen.CURRENT):   (_ABSENT,  _FENCED,  _FENCED,   _FENCED,    _FENCED,  _DEAD),
    (_By.FENCED, _Gen.OTHER):     (_ABSENT,  _FENCED,  _FENCED,   _FENCED,    _FENCED,  _DEAD),
    (_By.MEMBER, _Gen.NONE):      (_OK,      _OK,      _ILLEGAL,  _ILLEGAL,   _ILLEGAL, _DEAD),
    (_By.MEMBER, _Gen.CURRENT):   (_ABSENT,  _OK,      _OK,       _WAIT,      _OK,      _DEAD),
    (_By.MEMBER, _Gen.OTHER):     (_ABSENT,  _ILLEGAL, _ILLEGAL,  _ILLEGAL,   _ILLEGAL, _DEAD),
}
_TRANSACTIONAL = _PLAIN | {
    (_By.NOBODY, _Gen.NONE):      (_OK,      _OK,      _OK,       _OK,        _OK,      _DEAD),
    (_By.MEMBER, _Gen.CURRENT):   (_ABSENT,  _OK,      _OK,       _OK,        _OK,      _DEAD),
}
# fmt: on

RULES: Mapping[CommitKind, Mapping[Row, Mapping[GroupState | None, Outcome]]] = MappingProxyType(
    {
        kind: MappingProxyType(
            {
                row: MappingProxyType(dict(zip(COLUMNS, outcomes, strict=True)))
                for row, outcomes in rows.items()
            }
        )
        for kind, rows in (
            (CommitKind.PLAIN, _PLAIN),
            (CommitKind.TRANSACTIONAL, _TRANSACTIONAL),
        )
    }
)

_REASONS: Mapping[type[KafkaError], str] = MappingProxyType(
    {
        GroupIdNotFound: "the group does not exist",
        UnknownMemberId: "the commit does not come from a member of the group",
        FencedInstanceId: "another member has this instance id now",
        IllegalGeneration: "the group is in another generation",
        RebalanceInProgress: "the generation has no assignment yet",
        CoordinatorNotAvailable: "the group has just been deleted",
    }
)


def check_commit(
    kind: CommitKind, state: GroupState | None, sender: CommitSender, named: NamedGeneration
) -> None:
    """Raises the `KafkaError` of the commit, if it has one."""
    outcome = RULES[kind][sender, named][state]
    if outcome is not None:
        raise outcome(_REASONS[outcome])


def check_commit_without_group(kind: CommitKind, committer: Committer) -> None:
    """A commit to a group that does not exist. Raises as `check_commit`."""
    sender = commit_sender(committer, Members())
    check_commit(kind, None, sender, named_generation(committer, None))


def commit_sender(committer: Committer, members: Members) -> CommitSender:
    member_id, instance = committer.member_id, committer.group_instance_id
    if member_id == UNKNOWN_MEMBER_ID and instance is None:
        return CommitSender.NOBODY
    holder = members.of_instance(instance)
    if holder is not None and holder.member_id != member_id:
        return CommitSender.FENCED
    if member_id not in members or (instance is not None and holder is None):
        return CommitSender.STRANGER
    return CommitSender.MEMBER


def named_generation(committer: Committer, current: int | None) -> NamedGeneration:
    if committer.generation < 0:
        return NamedGeneration.NONE
    return NamedGeneration.CURRENT if committer.generation == current else NamedGeneration.OTHER
