"""Every cell of the rules that say who may commit, in the state machine of a group."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest

from brokerhouse.coordinator.commit_rules import (
    RULES,
    CommitKind,
    CommitSender,
    NamedGeneration,
    check_commit_without_group,
)
from brokerhouse.coordinator.group_states import GroupState
from brokerhouse.coordinator.messages import Committer
from tests.support.commit_cases import ABSENT, CASES, STATIC, CommitCase, identities
from tests.support.group_machine import ANY, CLIENT, SESSION_MS, Coordinator, joined, stable

KINDS = {
    "OffsetCommit": CommitKind.PLAIN,
    "TxnOffsetCommit": CommitKind.TRANSACTIONAL,
}
MEMBERS = ANY, {"instance": STATIC}


def empty() -> tuple[Coordinator, list[str]]:
    at, ids = stable(*MEMBERS)
    for member_id in ids:
        assert at.leave(member_id) is None
    return at, ids


def preparing() -> tuple[Coordinator, list[str]]:
    at, ids = stable(*MEMBERS)
    at.join()
    return at, ids


def dead() -> tuple[Coordinator, list[str]]:
    at, ids = empty()
    at.group.delete(at.now)
    return at, ids


GROUPS: dict[str, Callable[[], tuple[Coordinator, list[str]]]] = {
    "Empty": empty,
    "PreparingRebalance": preparing,
    "CompletingRebalance": lambda: joined(*MEMBERS),
    "Stable": lambda: stable(*MEMBERS),
    "Dead": dead,
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_commit_is_answered_as_by_kafka(case: CommitCase) -> None:
    """`ClassicGroup.validateOffsetCommit`; without a group `OffsetMetadataManager`."""
    kind = KINDS[case.request]
    at, ids = empty() if case.state == ABSENT else GROUPS[case.state]()
    assert case.state in (ABSENT, at.group.state)
    generation = {"none": -1, "current": at.generation, "other": at.generation - 1}
    named = generation[case.generation]
    for member_id, instance in identities(case.sender, *ids):
        with pytest.raises(case.error) if case.error else nullcontext():
            if case.state == ABSENT:
                check_commit_without_group(kind, Committer(member_id, instance, named, CLIENT))
            else:
                at.commit(member_id, instance=instance, generation=named, kind=kind)


def test_the_rules_have_a_cell_for_every_sender_generation_and_state() -> None:
    for rows in RULES.values():
        assert set(rows) == {
            (sender, named) for sender in CommitSender for named in NamedGeneration
        }
        assert all(set(outcomes) == {None, *GroupState} for outcomes in rows.values())
    assert set(RULES) == set(CommitKind)


def test_a_negative_generation_counts_as_no_generation() -> None:
    at, _ = stable(ANY)
    at.commit("", generation=-2, kind=CommitKind.TRANSACTIONAL)


@pytest.mark.parametrize("kind", CommitKind)
def test_only_an_offset_commit_keeps_the_session_of_its_member(kind: CommitKind) -> None:
    """`OffsetMetadataManager.commitOffset` and `commitTransactionalOffset`."""
    at, (first,) = stable(ANY)
    at.wait(SESSION_MS - 1)
    at.commit(first, kind=kind)
    at.wait(1)
    assert at.member_count == (1 if kind is CommitKind.PLAIN else 0)
