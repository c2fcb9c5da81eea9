"""The state machine of consumer groups: one case a test; the test sets the clock.

Who may commit is in test_commit_rules.py; what a broker answers to all of it, over a socket, in
tests/faults/bad_group_input."""

from __future__ import annotations

from typing import Any

import pytest

from brokerhouse.coordinator.group_states import TRANSITIONS, GroupState, Transition
from brokerhouse.protocol.errors import (
    CoordinatorNotAvailable,
    FencedInstanceId,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidSessionTimeout,
    KafkaError,
    RebalanceInProgress,
    UnknownMemberId,
)
from tests.support.group_machine import (
    ANY,
    DELAY_MS,
    NEW_MEMBER_MS,
    OTHER,
    REBALANCE_MS,
    SESSION_MS,
    STATIC,
    Coordinator,
    joined,
    stable,
)


def test_states_follow_each_other_as_in_kafka() -> None:
    table = """
        Empty               -> PreparingRebalance Dead
        PreparingRebalance  -> CompletingRebalance Empty Dead
        CompletingRebalance -> Stable PreparingRebalance Dead
        Stable              -> PreparingRebalance Dead
        Dead                ->
    """
    rows = [line.split("->") for line in table.strip().splitlines()]
    expected = {before.strip(): set(after.split()) for before, after in rows}
    found = {
        str(before): {
            str(then.state)
            for then in events.values()
            if isinstance(then, Transition) and then.state is not before
        }
        for before, events in TRANSITIONS.items()
    }
    assert found == expected


# The initial rebalance


def test_an_empty_group_waits_for_more_members() -> None:
    at = Coordinator()
    asked = at.join()
    at.wait(DELAY_MS - 1)
    assert asked.waits
    at.wait(1)
    assert asked.joined.generation == 1


def test_each_newcomer_prolongs_the_first_wait_up_to_the_rebalance_time_out() -> None:
    at = Coordinator()
    first = at.join(rebalance_ms=10_000)
    for _ in range(9):
        at.wait(1_000)
        at.join(rebalance_ms=10_000)
    at.wait(999)
    assert first.waits
    at.wait(1)
    assert len(first.joined.members) == 10


def test_the_first_wait_ends_when_nobody_came_during_its_last_part() -> None:
    at = Coordinator()
    first = at.join()
    at.wait(DELAY_MS - 1)
    second = at.join()
    at.wait(DELAY_MS)
    assert first.waits
    at.wait(1)
    assert second.joined.generation == first.joined.generation == 1


def test_without_a_delay_the_first_member_is_alone_at_once() -> None:
    at = Coordinator(initial_rebalance_delay_ms=0)
    asked = at.join()
    at.wait(0)
    assert asked.joined.generation == 1


def test_a_rebalance_of_a_group_with_members_has_no_initial_delay() -> None:
    at, (first,) = stable(ANY)
    second = at.join()
    assert at.join(first).joined.generation == second.joined.generation == 2


def test_a_group_that_everybody_leaves_during_the_first_wait_is_empty_at_once() -> None:
    at = Coordinator()
    asked = at.join(at.knock())
    member_id = at.group.record(1).members[0].member_id
    assert at.leave(member_id) is None
    assert asked.failed_with(UnknownMemberId)
    assert at.group.state is GroupState.EMPTY
    assert at.group.next_deadline() is None


# The leader


def test_the_member_that_joined_first_leads_and_only_it_is_shown_the_members() -> None:
    at = Coordinator()
    asked = [at.join(), at.join(instance="s"), at.join()]
    at.wait(2 * DELAY_MS)
    ids = [one.joined.member_id for one in asked]
    assert {one.joined.leader for one in asked} == {ids[0]}
    members = asked[0].joined.members
    assert [(m.member_id, m.group_instance_id) for m in members] == [
        (ids[0], None),
        (ids[1], "s"),
        (ids[2], None),
    ]
    assert asked[1].joined.members == asked[2].joined.members == ()


def test_when_the_leader_leaves_the_next_earliest_leads() -> None:
    at, (first, second, third) = stable(ANY, ANY, ANY)
    at.leave(first)
    at.join(third)
    assert at.join(second).joined.leader == second


def test_when_the_leader_does_not_join_again_the_earliest_that_did_leads() -> None:
    at, (first, second, third) = stable(STATIC, ANY, ANY)
    short: dict[str, Any] = {"rebalance_ms": SESSION_MS // 2}
    at = at.restart_with(rebalance_timeout_ms=SESSION_MS // 2)
    asked = [at.join(third, protocols=OTHER, **short), at.join(second, **short)]
    at.wait(SESSION_MS // 2)
    assert {one.joined.leader for one in asked} == {second}
    assert at.member_count == 3
    at.heartbeat(first, instance="s")


def test_a_leader_that_dies_between_join_and_sync_is_replaced() -> None:
    at, (first, second) = joined(ANY, ANY)
    asked = at.sync(second)
    at.wait(SESSION_MS - 1)
    assert asked.waits
    at.wait(1)
    assert asked.failed_with(RebalanceInProgress)
    assert at.join(second).joined.leader == second
    with pytest.raises(UnknownMemberId):
        at.sync(first)


def test_a_leader_that_joins_again_unchanged_begins_a_rebalance() -> None:
    at, (first, second) = stable(ANY, ANY)
    assert at.join(first).waits
    with pytest.raises(RebalanceInProgress):
        at.heartbeat(second)


# SyncGroup


def test_followers_may_sync_before_the_leader_and_after_it() -> None:
    at, (first, second, third) = joined(ANY, ANY, ANY)
    early = at.sync(second)
    assert early.waits
    assert at.sync(first, {first: b"1", second: b"2", third: b"3"}).assignment == b"1"
    assert early.assignment == b"2"
    assert at.sync(third).assignment == b"3"


def test_a_member_that_the_leader_left_out_is_assigned_nothing() -> None:
    at, (first, second) = joined(ANY, ANY)
    asked = at.sync(second)
    at.sync(first, {"nobody": b"x"})
    assert asked.assignment == b""


def test_assignments_sent_by_followers_are_ignored() -> None:
    at, (first, second) = joined(ANY, ANY)
    asked = at.sync(second, {first: b"x", second: b"y"})
    at.sync(first, {first: b"1", second: b"2"})
    assert asked.assignment == b"2"


def test_a_member_that_syncs_again_gets_the_same_assignment() -> None:
    at, (first, _) = stable(ANY, ANY)
    assert at.sync(first, {first: b"another"}).assignment == first.encode()


def test_the_older_of_two_syncs_of_one_member_is_told_to_join_again() -> None:
    at, (_, second) = joined(ANY, ANY)
    older = at.sync(second)
    newer = at.sync(second)
    assert older.failed_with(RebalanceInProgress)
    assert newer.waits


def test_followers_that_wait_are_told_when_another_rebalance_begins() -> None:
    at, (_, second) = joined(ANY, ANY)
    asked = at.sync(second)
    at.join()
    assert asked.failed_with(RebalanceInProgress)
    with pytest.raises(RebalanceInProgress):
        at.sync(second)


def test_members_that_do_not_sync_in_time_are_removed() -> None:
    at, (first, second) = joined({"rebalance_ms": 20_000}, {"rebalance_ms": 20_000})
    at.sync(first, {first: b"1", second: b"2"})
    for _ in range(4):
        at.wait(4_000)
        at.heartbeat(first)
        at.heartbeat(second)
    at.wait(4_000)
    with pytest.raises(RebalanceInProgress):
        at.heartbeat(first)
    with pytest.raises(UnknownMemberId):
        at.heartbeat(second)


# Time-outs


def test_a_silent_member_is_removed_and_the_others_are_told_to_join_again() -> None:
    at, (first, second) = stable(ANY, ANY)
    at.wait(SESSION_MS - 1)
    at.heartbeat(first)
    at.wait(1)
    with pytest.raises(RebalanceInProgress):
        at.heartbeat(first)
    with pytest.raises(UnknownMemberId):
        at.heartbeat(second)
    assert at.join(first).joined.generation == 2


@pytest.mark.parametrize("sign_of_life", ["heartbeat", "sync"])
def test_every_request_of_a_member_keeps_its_session(sign_of_life: str) -> None:
    at, (first,) = stable(ANY)
    for _ in range(3):
        at.wait(SESSION_MS - 1)
        getattr(at, sign_of_life)(first)
    assert at.group.state is GroupState.STABLE


def test_a_member_that_waits_needs_no_heartbeats() -> None:
    at, (first, second) = stable(ANY, ANY)
    asked = at.join(first)
    for _ in range(5):
        at.wait(SESSION_MS - 1)
        with pytest.raises(RebalanceInProgress):
            at.heartbeat(second)
    assert asked.waits
    assert at.member_count == 2


def test_a_new_member_waits_five_minutes_at_most() -> None:
    """Nobody knows whether its client is still there."""
    long: dict[str, Any] = {"rebalance_ms": 2 * NEW_MEMBER_MS}
    at, (first,) = stable(long)
    asked = at.join()
    while at.now_ms < DELAY_MS * 2 + NEW_MEMBER_MS - SESSION_MS:
        at.wait(SESSION_MS - 1)
        with pytest.raises(RebalanceInProgress):
            at.heartbeat(first)
    assert asked.waits
    at.wait(SESSION_MS)
    assert asked.failed_with(UnknownMemberId)


def test_members_that_do_not_join_again_in_time_are_removed() -> None:
    at, (first, second) = stable(ANY, ANY)
    asked = at.join(first)
    while at.now_ms < 2 * DELAY_MS + REBALANCE_MS - SESSION_MS:
        at.wait(SESSION_MS - 1)
        with pytest.raises(RebalanceInProgress):
            at.heartbeat(second)
    assert asked.waits
    at.wait(SESSION_MS)
    assert [member.member_id for member in asked.joined.members] == [first]


def test_the_longest_rebalance_time_out_of_the_members_applies() -> None:
    at, (first, second) = stable({"rebalance_ms": 1_000}, {"rebalance_ms": 8_000})
    asked = at.join(first, rebalance_ms=1_000)
    at.wait(7_999)
    assert asked.waits
    at.wait(1)
    assert asked.joined.generation == 2
    assert at.member_count == 1
    with pytest.raises(UnknownMemberId):
        at.join(second)


def test_a_group_whose_members_all_time_out_is_empty() -> None:
    at, _ = stable(ANY, STATIC)
    at.wait(SESSION_MS)
    record = at.group.record(1)
    assert (record.state, record.generation, record.members) == ("Empty", 2, ())
    assert (record.protocol_type, record.protocol_name, record.leader) == ("consumer", "", "")
    assert at.group.is_unused
    assert at.group.next_deadline() is None


@pytest.mark.parametrize("session_ms", [-(2**31), -1, 0, 5_999, 1_800_001, 2**31 - 1])
def test_a_session_time_out_outside_the_limits_is_refused(session_ms: int) -> None:
    with pytest.raises(InvalidSessionTimeout):
        Coordinator().join(session_ms=session_ms)


def test_a_late_tick_handles_every_deadline_that_has_passed() -> None:
    at, _ = stable(ANY, STATIC, ANY)
    at.now_ms += 10**9
    at.group.tick(at.now)
    assert at.group.state is GroupState.EMPTY


# Which error comes first

NOBODY, WRONG = "nobody", 99


@pytest.mark.parametrize("ask", ["heartbeat", "sync"])
@pytest.mark.parametrize(
    ("member_id", "instance", "generation", "error"),
    [
        (NOBODY, None, WRONG, UnknownMemberId),
        (NOBODY, "nobody", WRONG, UnknownMemberId),
        (NOBODY, "s", WRONG, FencedInstanceId),
        ("", "s", WRONG, FencedInstanceId),
        ("first", "s", WRONG, FencedInstanceId),
        ("first", "nobody", WRONG, UnknownMemberId),
        ("first", None, WRONG, IllegalGeneration),
        ("static", "s", WRONG, IllegalGeneration),
        ("static", None, WRONG, IllegalGeneration),
        ("first", None, 0, IllegalGeneration),
    ],
)
@pytest.mark.parametrize("rebalancing", [False, True])
def test_an_unknown_member_is_refused_before_a_wrong_generation_and_that_before_the_state(
    ask: str,
    member_id: str,
    instance: str | None,
    generation: int,
    error: type[KafkaError],
    rebalancing: bool,
) -> None:
    at, (first, static) = stable(ANY, STATIC)
    if rebalancing:
        at.join()
    asked_by = {"first": first, "static": static}.get(member_id, member_id)
    with pytest.raises(error):
        getattr(at, ask)(asked_by, instance=instance, generation=generation)


@pytest.mark.parametrize(
    ("names", "error"),
    [
        ({"protocol_type": "connect"}, InconsistentGroupProtocol),
        ({"protocol_name": "other"}, InconsistentGroupProtocol),
        ({"protocol_type": "connect", "generation": WRONG}, IllegalGeneration),
        ({"protocol_type": "consumer", "protocol_name": "range"}, RebalanceInProgress),
        ({}, RebalanceInProgress),
    ],
)
def test_a_sync_has_to_name_the_protocol_that_was_chosen(
    names: dict[str, Any], error: type[KafkaError]
) -> None:
    at, (first, _) = stable(ANY, ANY)
    at.join()
    with pytest.raises(error):
        at.sync(first, **names)


def test_a_sync_before_the_first_generation_may_name_any_protocol() -> None:
    at = Coordinator()
    member_id = at.knock()
    at.join(member_id)
    with pytest.raises(RebalanceInProgress):
        at.sync(member_id, generation=0, protocol_type="consumer", protocol_name="any")


def test_an_empty_group_answers_every_member_as_unknown() -> None:
    at, (first,) = stable(ANY)
    at.leave(first)
    for ask in (at.heartbeat, at.sync, at.join, at.commit):
        with pytest.raises(UnknownMemberId):
            ask(first)


def test_a_deleted_group_answers_that_its_coordinator_is_not_available() -> None:
    at, (first,) = stable(ANY)
    at.leave(first)
    at.group.delete(at.now)
    for ask in (at.heartbeat, at.sync, at.join, at.commit, at.leave):
        with pytest.raises(CoordinatorNotAvailable):
            ask(first)
    with pytest.raises(CoordinatorNotAvailable):
        at.join()
    assert at.group.state is GroupState.DEAD


def test_waiting_members_get_an_error_when_the_coordinator_stops() -> None:
    at, (first, second) = stable(ANY, ANY)
    asked = [at.join(first), at.join()]
    at.group.shut_down(CoordinatorNotAvailable("stops"))
    at.wait(0)
    at._hand_on()
    assert all(one.failed_with(CoordinatorNotAvailable) for one in asked)
    assert second in {member.member_id for member in at.group.record(1).members}
