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
from itertools import chain
from types import MappingProxyType

from brokerhouse.common.text_table import read_table
from brokerhouse.coordinator.group_members import Members
from brokerhouse.coordinator.group_states import GroupState
from brokerhouse.coordinator.messages import UNKNOWN_MEMBER_ID, Committer
from brokerhouse.protocol.errors import (
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

_PLAIN = """
                  absent  Empty   PreparingRebalance CompletingRebalance Stable  Dead
NOBODY/NONE       ok      ok      unknown            unknown             unknown dead
NOBODY/CURRENT    missing unknown unknown            unknown             unknown dead
NOBODY/OTHER      missing unknown unknown            unknown             unknown dead
STRANGER/NONE     ok      ok      unknown            unknown             unknown dead
STRANGER/CURRENT  missing unknown unknown            unknown             unknown dead
STRANGER/OTHER    missing unknown unknown            unknown             unknown dead
FENCED/NONE       ok      ok      fenced             fenced              fenced  dead
FENCED/CURRENT    missing fenced  fenced             fenced              fenced  dead
FENCED/OTHER      missing fenced  fenced             fenced              fenced  dead
MEMBER/NONE       ok      ok      illegal            illegal             illegal dead
MEMBER/CURRENT    missing ok      ok                 wait                ok      dead
MEMBER/OTHER      missing illegal illegal            illegal             illegal dead
"""
_TRANSACTIONAL = """
                  absent  Empty   PreparingRebalance CompletingRebalance Stable  Dead
NOBODY/NONE       ok      ok      ok                 ok                  ok      dead
MEMBER/CURRENT    missing ok      ok                 ok                  ok      dead
"""
_CELLS: Mapping[str, Outcome] = {
    "ok": None,
    "missing": GroupIdNotFound,
    "unknown": UnknownMemberId,
    "fenced": FencedInstanceId,
    "illegal": IllegalGeneration,
    "wait": RebalanceInProgress,
    "dead": CoordinatorNotAvailable,
}


def _rules(*tables: str) -> Mapping[Row, Mapping[GroupState | None, Outcome]]:
    """Rows of a later table take the place of earlier ones."""
    rules: dict[Row, Mapping[GroupState | None, Outcome]] = {}
    for name, words in chain.from_iterable(read_table(one).items() for one in tables):
        sender, generation = name.split("/")
        rules[CommitSender[sender], NamedGeneration[generation]] = MappingProxyType(
            {
                None if state == "absent" else GroupState(state): _CELLS[word]
                for state, word in words.items()
            }
        )
    return MappingProxyType(rules)


RULES: Mapping[CommitKind, Mapping[Row, Mapping[GroupState | None, Outcome]]] = MappingProxyType(
    {
        CommitKind.PLAIN: _rules(_PLAIN),
        CommitKind.TRANSACTIONAL: _rules(_PLAIN, _TRANSACTIONAL),
    }
)

_REASONS: Mapping[type[KafkaError], str] = MappingProxyType(
    {
        GroupIdNotFound: "The group does not exist.",
        UnknownMemberId: "The commit does not come from a member of the group.",
        FencedInstanceId: "Another member uses this instance id now.",
        IllegalGeneration: "The group is in another generation.",
        RebalanceInProgress: "The generation has no assignment yet.",
        CoordinatorNotAvailable: "The group has just been deleted.",
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
