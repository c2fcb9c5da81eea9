"""What is stored of a group, and how it continues after a restart. One case a test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerhouse.coordinator.group_states import GroupState
from brokerhouse.coordinator.groups import Group
from brokerhouse.protocol.errors import (
    FencedInstanceId,
    RebalanceInProgress,
    UnknownMemberId,
)
from tests.support.group_machine import (
    ANY,
    DELAY_MS,
    LIMITS,
    OTHER,
    SESSION_MS,
    STATIC,
    Coordinator,
    joined,
    settle,
    stable,
)

# Restarts


def test_a_stable_group_goes_on_after_a_restart() -> None:
    at, (first, static) = stable(ANY, STATIC)
    at = at.restart()
    at.heartbeat(first)
    at.commit(static, instance="s")
    assert at.sync(static, instance="s").assignment == static.encode()
    assert at.join(instance="s").joined.generation == 1
    with pytest.raises(FencedInstanceId):
        at.heartbeat(static, instance="s")


def test_members_have_their_whole_session_to_come_back_after_a_restart() -> None:
    at, (first, second) = stable(ANY, ANY)
    at.now_ms += 10**6
    at = at.restart()
    at.wait(SESSION_MS - 1)
    at.heartbeat(first)
    at.wait(1)
    with pytest.raises(UnknownMemberId):
        at.heartbeat(second)


def test_a_generation_that_had_no_assignment_gets_it_after_a_restart() -> None:
    at, (first, second) = joined(ANY, ANY)
    at.sync(second)
    at = at.restart()
    asked = at.sync(second)
    at.sync(first, {second: b"2"})
    assert asked.assignment == b"2"


def test_members_that_do_not_sync_after_a_restart_are_removed() -> None:
    at, (first, second) = joined({"rebalance_ms": 6_000}, {"rebalance_ms": 6_000})
    at = at.restart()
    asked = at.sync(second)
    at.wait(6_000)
    assert asked.failed_with(RebalanceInProgress)
    assert at.join(second).joined.leader == second
    with pytest.raises(UnknownMemberId):
        at.join(first)


def test_a_rebalance_goes_on_after_a_restart() -> None:
    at, (first, second) = stable(ANY, ANY)
    at.join(second, protocols=OTHER)
    at = at.restart()
    asked = at.join(second)
    assert asked.waits
    at.join(first)
    assert (asked.joined.generation, asked.joined.leader) == (2, first)


def test_a_rebalance_that_nobody_comes_back_for_ends_after_a_restart() -> None:
    at, (first, _) = stable(ANY, ANY)
    at.join(first)
    at = at.restart()
    at.wait(SESSION_MS)
    assert at.group.state is GroupState.EMPTY


def test_an_empty_group_keeps_its_generation_over_a_restart() -> None:
    at, (first,) = stable(ANY)
    at.leave(first)
    at = at.restart()
    assert at.group.next_deadline() is None
    asked = at.join()
    at.wait(DELAY_MS)
    assert asked.joined.generation == 3


def test_a_group_whose_members_alone_were_stored_takes_them_back() -> None:
    """The first generation's members were stored, the group was not: it has no protocol type."""
    at, (first, second) = joined(ANY, ANY)
    record = replace(
        at.group.record(1),
        state="PreparingRebalance",
        protocol_type="",
        protocol_name="",
        leader="",
    )
    at = Coordinator(Group.restored(record, LIMITS, at.now), at.now_ms)
    asked = at.join(second)
    at.join(first)
    assert (asked.joined.leader, asked.joined.protocol_type) == (first, "consumer")
    assert asked.joined.generation == 2


def test_a_rebalance_of_a_group_without_members_ends_after_a_restart() -> None:
    at, _ = stable(ANY)
    record = replace(at.group.record(1), state="PreparingRebalance", members=())
    at = Coordinator(Group.restored(record, LIMITS, at.now), at.now_ms)
    at.wait(0)
    assert at.group.state is GroupState.EMPTY


# What is stored


def test_a_group_is_marked_as_changed_only_when_its_record_changes() -> None:
    at, (first, second) = stable(ANY, STATIC)
    at.group.record(1)
    at.heartbeat(first)
    at.commit(first)
    at.sync(first)
    at.join(second, instance="s")
    at.knock()
    assert not at.group.changed
    at.join(instance="s")
    assert at.group.changed


def test_a_record_is_not_changed_by_what_happens_afterwards() -> None:
    at, (first,) = joined(ANY)
    before = at.group.record(1)
    settle(at, [first])
    assert before.members[0].assignment == b""
    assert at.group.record(2).members[0].assignment == first.encode()


def test_a_new_generation_is_recorded_without_the_assignments_of_the_last_one() -> None:
    at, (first,) = stable(ANY)
    at.join(first)
    assert at.group.state is GroupState.COMPLETING_REBALANCE
    assert at.group.record(1).members[0].assignment == b""


def test_members_that_did_not_change_are_the_same_objects_in_the_next_record() -> None:
    """So that only what changed is written."""
    at, _ = stable(ANY, STATIC)
    before = at.group.record(1)
    at.join(instance="s")
    after = at.group.record(2)
    assert after.members[0] is before.members[0]
    assert after.members[1] != before.members[1]
