"""JoinGroup: who may be a member, with which id, and which member it replaces. One case a test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from brokerhouse.coordinator.group_states import GroupState
from brokerhouse.coordinator.groups import Group, selected_metadata
from brokerhouse.coordinator.messages import (
    Client,
    LeavingMember,
)
from brokerhouse.protocol.errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    InconsistentGroupProtocol,
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
    stable,
)

# Member ids


def test_a_member_is_given_an_id_and_joins_with_it() -> None:
    at = Coordinator()
    member_id = at.knock()
    assert member_id.startswith("client-")
    assert at.member_count == 0
    asked = at.join(member_id, handshake=True)
    at.wait(DELAY_MS)
    assert asked.joined.member_id == member_id


def test_a_static_member_joins_without_an_id() -> None:
    at = Coordinator()
    asked = at.join(instance="s", handshake=True)
    at.wait(DELAY_MS)
    assert asked.joined.member_id.startswith("s-")


def test_a_rebalance_waits_for_members_that_have_just_been_given_an_id() -> None:
    at, (first,) = stable(ANY)
    second = at.knock()
    asked = at.join(first)
    assert asked.waits
    at.join(second)
    assert asked.joined.generation == 2


def test_an_id_that_nobody_comes_back_with_is_waited_for_no_longer_than_its_session() -> None:
    at, (first,) = stable(ANY)
    second = at.knock()
    asked = at.join(first)
    at.wait(SESSION_MS)
    assert asked.joined.generation == 2
    with pytest.raises(UnknownMemberId):
        at.join(second)


def test_an_id_is_not_waited_for_after_its_client_has_left() -> None:
    at, (first,) = stable(ANY)
    second = at.knock()
    asked = at.join(first)
    assert at.leave(second) is None
    assert asked.joined.generation == 2


def test_a_client_that_leaves_before_it_has_joined_causes_no_rebalance() -> None:
    at, _ = stable(ANY)
    assert at.leave(at.knock()) is None
    assert at.group.state is GroupState.STABLE


def test_an_id_that_was_never_given_is_unknown() -> None:
    at, _ = stable(ANY)
    with pytest.raises(UnknownMemberId):
        at.join("client-0")


def test_ids_that_were_given_are_not_known_after_a_restart() -> None:
    at, _ = stable(ANY)
    member_id = at.knock()
    with pytest.raises(UnknownMemberId):
        at.restart().join(member_id)


# Protocols


@pytest.mark.parametrize(
    ("protocols", "chosen"),
    [
        ([("a", "b"), ("a", "b"), ("b", "a")], "a"),  # most like it best
        ([("b", "a"), ("a", "b"), ("a", "b")], "a"),
        ([("a", "b"), ("b",), ("a", "b")], "b"),  # all support it
        ([("a", "b"), ("b", "a")], "a"),  # as many like either: the leader decides
        ([("b", "a"), ("a", "b")], "b"),
        ([("a", "c"), ("b", "c")], "c"),
    ],
)
def test_the_protocol_is_one_that_all_support_and_most_like_best(
    protocols: list[tuple[str, ...]], chosen: str
) -> None:
    at, _ = joined(*({"protocols": one} for one in protocols))
    assert at.protocol_name == chosen


def test_the_leader_is_shown_the_metadata_of_the_protocol_that_was_chosen() -> None:
    at = Coordinator()
    leader = at.join(protocols=("a", "b"))
    at.join(protocols=("b",))
    at.wait(2 * DELAY_MS)
    assert [member.metadata for member in leader.joined.members] == [b"about b", b"about b"]
    record = at.group.record(1)
    assert selected_metadata(record, record.members[0]) == b"about b"


@pytest.mark.parametrize(
    "member",
    [
        {"protocols": ("other",)},
        {"protocol_type": "connect"},
        {"protocols": ()},
        {"protocol_type": ""},
    ],
)
def test_a_member_that_cannot_agree_with_the_others_is_refused(member: dict[str, Any]) -> None:
    at, _ = stable({"protocols": ("range", "sticky")})
    with pytest.raises(InconsistentGroupProtocol):
        at.join(**member)
    assert at.group.state is GroupState.STABLE


@pytest.mark.parametrize("member", [{"protocols": ()}, {"protocol_type": ""}])
def test_a_first_member_without_a_protocol_is_refused(member: dict[str, Any]) -> None:
    with pytest.raises(InconsistentGroupProtocol):
        Coordinator().join(**member)


def test_joining_and_leaving_members_change_the_protocols_that_all_support() -> None:
    at, (first, second) = stable({"protocols": ("a", "b")}, {"protocols": ("b", "a")})
    at.join(first, protocols=("a",))
    with pytest.raises(InconsistentGroupProtocol):
        at.join(second, protocols=("b",))
    at.leave(first)
    assert at.join(second, protocols=("b", "a")).joined.protocol_name == "b"


def test_a_protocol_named_twice_by_one_member_counts_once() -> None:
    at, _ = joined({"protocols": ("a", "a", "b")}, {"protocols": ("b",)})
    assert at.protocol_name == "b"


def test_an_empty_group_may_change_its_protocol_type() -> None:
    at, (member_id,) = stable(ANY)
    at.leave(member_id)
    assert at.group.state is GroupState.EMPTY
    assert at.protocol_type == "consumer"
    asked = at.join(protocol_type="connect", protocols=("x",))
    at.wait(DELAY_MS)
    assert (asked.joined.protocol_type, asked.joined.protocol_name) == ("connect", "x")
    assert asked.joined.generation == 3


# Joining again


def test_a_follower_that_joins_again_unchanged_is_told_its_generation_again() -> None:
    at, (_, second) = stable(ANY, ANY)
    assert at.join(second).joined.generation == 1
    assert at.group.state is GroupState.STABLE


def test_members_that_join_again_before_the_assignment_are_told_their_generation_again() -> None:
    at, (first, second) = joined(ANY, ANY)
    assert len(at.join(first).joined.members) == 2
    assert at.join(second).joined.members == ()
    assert at.group.state is GroupState.COMPLETING_REBALANCE


@pytest.mark.parametrize("begin", [joined, stable])
def test_a_follower_that_subscribes_to_something_else_begins_a_rebalance(
    begin: Callable[..., tuple[Coordinator, list[str]]],
) -> None:
    at, (first, second) = begin(ANY, ANY)
    assert at.join(second, protocols=OTHER).waits
    asked = at.join(first)
    assert asked.joined.generation == 2
    assert asked.joined.members[1].metadata == b"something else"


def test_the_older_of_two_joins_of_one_member_is_told_to_join_again() -> None:
    at, (first, _) = stable(ANY, ANY)
    older = at.join(first)
    newer = at.join(first)
    assert older.failed_with(RebalanceInProgress)
    assert newer.waits


def test_cooperative_members_give_partitions_up_in_one_generation_and_take_them_in_the_next() -> (
    None
):
    def owning(*partitions: int) -> Mapping[str, Any]:
        return {"protocols": (("cooperative-sticky", bytes(partitions)),)}

    at, (first,) = stable(owning())
    second = at.join(**owning())
    with pytest.raises(RebalanceInProgress):
        at.heartbeat(first)
    at.commit(first)
    second_id = at.join(first, **owning(0, 1)).joined.members[1].member_id
    assert second.joined.generation == 2
    kept = at.sync(first, {first: bytes([0]), second_id: b""})
    assert kept.assignment == bytes([0])
    assert at.sync(second_id).assignment == b""
    again = at.join(first, **owning(0))
    with pytest.raises(RebalanceInProgress):
        at.heartbeat(second_id)
    at.join(second_id, **owning())
    assert again.joined.generation == 3
    at.sync(first, {first: bytes([0]), second_id: bytes([1])})
    assert at.sync(second_id).assignment == bytes([1])


# Static members


def test_a_static_member_restarts_without_a_rebalance() -> None:
    at, (first, old) = stable(ANY, STATIC)
    answer = at.join(instance="s", client=Client("client", "/127.0.0.2")).joined
    assert answer.member_id != old
    assert (answer.generation, answer.leader, answer.members) == (1, first, ())
    assert not answer.skip_assignment
    assert at.group.state is GroupState.STABLE
    assert at.sync(answer.member_id, instance="s").assignment == old.encode()
    at.heartbeat(first)
    assert at.group.record(1).members[1].client.host == "/127.0.0.2"


def test_a_static_leader_that_restarts_is_told_to_assign_nothing() -> None:
    at, (old, second) = stable(STATIC, ANY)
    answer = at.join(instance="s").joined
    assert answer.leader == answer.member_id
    assert answer.skip_assignment
    assert [member.member_id for member in answer.members] == [answer.member_id, second]
    assert at.sync(answer.member_id, {second: b"x"}).assignment == old.encode()


def test_an_old_static_leader_that_restarts_is_told_that_it_does_not_lead() -> None:
    at, (old, _) = stable(STATIC, ANY)
    answer = at.join(instance="s", skips=False).joined
    assert (answer.leader, answer.members, answer.skip_assignment) == (old, (), False)
    assert at.leader == answer.member_id


def test_a_static_member_that_returns_with_other_protocols_begins_a_rebalance() -> None:
    at, (_, second) = stable({"protocols": ("a", "b")}, STATIC | {"protocols": ("a", "b")})
    asked = at.join(instance="s", protocols=("b",))
    assert asked.waits
    with pytest.raises(FencedInstanceId):
        at.heartbeat(second, instance="s")


def test_a_static_member_that_restarts_before_the_assignment_begins_a_rebalance() -> None:
    at, (first, _) = joined(ANY, STATIC)
    asked = at.join(instance="s")
    assert asked.waits
    at.join(first)
    assert asked.joined.generation == 2


def test_a_static_member_that_restarts_during_a_rebalance_takes_its_own_place() -> None:
    at, (first, second) = stable(STATIC, ANY)
    older = at.join(first, instance="s")
    newer = at.join(instance="s")
    assert older.failed_with(FencedInstanceId)
    at.join(second)
    assert newer.joined.leader == newer.joined.member_id
    assert at.member_count == 2


def test_a_static_member_that_restarts_during_a_rebalance_waits_for_the_others() -> None:
    at, (first, _) = stable(ANY, ANY, initial_rebalance_delay_ms=0)
    at.join(instance="s")
    newer = at.join(instance="s")
    for _ in range(5):
        at.wait(SESSION_MS - 1)
        with pytest.raises(RebalanceInProgress):
            at.heartbeat(first)
    assert newer.waits
    at.join(first)
    at.wait(SESSION_MS)
    assert newer.joined.generation == 2


@pytest.mark.parametrize("begin", [joined, stable])
def test_the_replaced_instance_of_a_static_member_is_fenced_in_every_request(
    begin: Callable[..., tuple[Coordinator, list[str]]],
) -> None:
    at, (_, old) = begin(ANY, STATIC)
    at.join(instance="s")
    for ask in (at.heartbeat, at.sync, at.join, at.commit):
        with pytest.raises(FencedInstanceId):
            ask(old, instance="s")
    assert isinstance(at.leave(old, "s"), FencedInstanceId)


def test_the_replaced_instance_of_a_static_member_is_fenced_while_it_waits_for_its_assignment() -> (
    None
):
    at, (_, old) = joined(ANY, STATIC)
    asked = at.sync(old, instance="s")
    at.join(instance="s")
    assert asked.failed_with(FencedInstanceId)


def test_the_old_id_of_a_static_member_is_unknown_without_its_instance_id() -> None:
    at, (_, old) = stable(ANY, STATIC)
    at.join(instance="s")
    with pytest.raises(UnknownMemberId):
        at.heartbeat(old)


def test_a_static_member_stays_when_a_rebalance_ends_without_it() -> None:
    at, (first, static) = stable(ANY, STATIC)
    at = at.restart_with(rebalance_timeout_ms=6_000)
    asked = at.join(first, rebalance_ms=6_000)
    at.wait(6_000)
    assert [member.member_id for member in asked.joined.members] == [first, static]
    at.sync(first, {})
    at.wait(5_999)
    at.heartbeat(first)
    at.wait(1)
    with pytest.raises(RebalanceInProgress):
        at.heartbeat(first)
    assert [member.member_id for member in at.group.record(1).members] == [first]


def test_a_rebalance_that_no_static_member_joins_is_put_off_until_their_sessions_end() -> None:
    """And the clock does not spin, whatever rebalance time-out they asked for."""
    at, (first, _) = stable(ANY, STATIC)
    at = at.restart_with(rebalance_timeout_ms=0)
    at.leave(first)
    state: str = at.group.state
    assert state == "PreparingRebalance"
    for _ in range(SESSION_MS // 1_000 + 1):
        deadline = at.group.next_deadline()
        at.now_ms = at.now_ms if deadline is None else max(deadline, at.now_ms)
        at.group.tick(at.now)
    state = at.group.state
    assert state == "Empty"


def test_an_administrator_removes_a_static_member_by_its_instance_id() -> None:
    at, (first, static) = stable(ANY, STATIC)
    assert at.leave("", "s") is None
    assert [m.member_id for m in at.group.record(1).members] == [first]
    assert at.group.state is GroupState.PREPARING_REBALANCE
    with pytest.raises(UnknownMemberId):
        at.heartbeat(static, instance="s")


@pytest.mark.parametrize(
    ("member_id", "instance"), [("", "nobody"), ("", None), ("nobody", None), ("nobody", "nobody")]
)
def test_removing_an_unknown_member_is_refused(member_id: str, instance: str | None) -> None:
    at, _ = stable(ANY, STATIC)
    assert isinstance(at.leave(member_id, instance), UnknownMemberId)
    assert at.group.state is GroupState.STABLE


def test_members_that_leave_together_cause_one_rebalance() -> None:
    at, (first, second, third) = stable(ANY, ANY, ANY)
    leaving = [LeavingMember(second, None), LeavingMember("x", None), LeavingMember(third, None)]
    outcomes = at.group.leave(leaving, at.now)
    assert [type(outcome) for outcome in outcomes] == [type(None), UnknownMemberId, type(None)]
    assert at.join(first).joined.generation == 2


# Size


def test_a_full_group_takes_no_more_members() -> None:
    at, ids = stable(ANY, ANY, max_size=2)
    with pytest.raises(GroupMaxSizeReached):
        at.join()
    with pytest.raises(GroupMaxSizeReached):
        at.join("nobody")
    for member_id in ids:
        at.heartbeat(member_id)


def test_member_ids_that_were_given_count_towards_the_size_of_a_group() -> None:
    """However many knock, and however often, memory is bounded."""
    at = Coordinator(max_size=5)
    ids = [at.knock() for _ in range(5)]
    for _ in range(10_000):
        with pytest.raises(GroupMaxSizeReached):
            at.join(handshake=True)
    at.wait(SESSION_MS)
    assert at.group.is_unused
    assert at.knock() not in ids


def test_a_static_member_of_a_full_group_restarts() -> None:
    at, _ = stable(ANY, STATIC, max_size=2)
    assert at.join(instance="s").joined.generation == 1


def test_the_members_of_a_group_that_became_too_large_stay_in_the_order_they_join_again() -> None:
    at, ids = stable(ANY, ANY, ANY)
    smaller = Group.restored(at.group.record(1), replace(LIMITS, max_size=2), at.now)
    at = Coordinator(smaller, at.now_ms)
    at.heartbeat(ids[1])
    asked = [at.join(ids[0]), at.join(ids[2])]
    with pytest.raises(GroupMaxSizeReached):
        at.join(ids[1])
    assert [one.joined.generation for one in asked] == [2, 2]
    assert at.member_count == 2


def test_an_id_that_finds_the_group_full_is_not_waited_for() -> None:
    at, ids = stable(ANY, ANY, ANY)
    at = Coordinator(
        Group.restored(at.group.record(1), replace(LIMITS, max_size=4), at.now), at.now_ms
    )
    member_id = at.knock()
    at.group._admission._limits = replace(LIMITS, max_size=3)
    asked = [at.join(one) for one in ids]
    assert all(one.waits for one in asked)
    with pytest.raises(GroupMaxSizeReached):
        at.join(member_id)
    assert all(one.joined.generation == 2 for one in asked)


def test_everything_that_clients_send_counts_as_size() -> None:
    at = Coordinator()
    before = at.group.size_bytes
    empty = [(f"{number}", b"") for number in range(10)]
    at.join(protocols=(("p" * 1_000, b"m" * 1_000), *empty))
    assert at.group.size_bytes >= before + 2_000 + 10 * 50
    at.wait(DELAY_MS)
    (member,) = at.group.record(1).members
    size = at.group.member_bytes(member.member_id)
    at.sync(member.member_id, {member.member_id: b"a" * 1_000})
    assert at.group.member_bytes(member.member_id) == size + 1_000
    assert at.group.member_bytes("nobody") == 0
    at.leave(member.member_id)
    assert at.group.size_bytes == before
