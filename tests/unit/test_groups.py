"""The state machine of consumer groups: one situation a test, the clock moved by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest

from common.clock import Moment
from coordinator.admission import GroupLimits
from coordinator.group_states import TRANSITIONS, GroupState, Transition
from coordinator.groups import Group, selected_metadata
from coordinator.messages import (
    Client,
    Committer,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    MemberIdGiven,
    SyncAnswer,
    SyncRequest,
)
from protocol.errors import (
    CoordinatorNotAvailable,
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidSessionTimeout,
    KafkaError,
    RebalanceInProgress,
    UnknownMemberId,
)

SESSION_MS = 10_000
REBALANCE_MS = 60_000
DELAY_MS = 3_000
NEW_MEMBER_MS = 300_000
LIMITS = GroupLimits(6_000, 1_800_000, DELAY_MS, max_size=10)
CLIENT = Client("client", "/127.0.0.1")


@dataclass
class Asked:
    """A request, and what it has been answered; None while it waits."""

    outcome: JoinAnswer | SyncAnswer | KafkaError | None = None

    @property
    def waits(self) -> bool:
        return self.outcome is None

    @property
    def joined(self) -> JoinAnswer:
        assert isinstance(self.outcome, JoinAnswer)
        return self.outcome

    @property
    def assignment(self) -> bytes:
        assert isinstance(self.outcome, SyncAnswer)
        return self.outcome.assignment

    def failed_with(self, error: type[KafkaError]) -> bool:
        return isinstance(self.outcome, error)


class Coordinator:
    """What drives a group: hands its answers on, and calls `tick` when it is due."""

    def __init__(self, group: Group | None = None, now_ms: int = 0, /, **limits: int) -> None:
        self.now_ms = now_ms
        self.group = group or Group("g", replace(LIMITS, **limits), self.now, map(str, count(1)))

    @property
    def now(self) -> Moment:
        return Moment(self.now_ms, self.now_ms)

    @property
    def generation(self) -> int:
        return self.group._rebalance.generation

    @property
    def leader(self) -> str:
        return self.group._rebalance.members.leader

    @property
    def protocol_type(self) -> str:
        return self.group._rebalance.protocol_type

    @property
    def protocol_name(self) -> str:
        return self.group._rebalance.protocol_name

    @property
    def member_count(self) -> int:
        return len(self.group._rebalance.members)

    def join(
        self,
        member_id: str = "",
        *,
        instance: str | None = None,
        protocols: tuple[str | tuple[str, bytes], ...] = ("range",),
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        handshake: bool = False,
        skips: bool = True,
        client: Client = CLIENT,
    ) -> Asked:
        request = JoinRequest(
            member_id,
            instance,
            client,
            session_ms,
            rebalance_ms,
            protocol_type,
            tuple((p, b"about " + p.encode()) if isinstance(p, str) else p for p in protocols),
            handshake,
            skips,
        )
        return self._ask(lambda asked: self.group.join(request, asked, self.now))

    def knock(self) -> str:
        with pytest.raises(MemberIdGiven) as given:
            self.join(handshake=True)
        return given.value.member_id

    def sync(
        self,
        member_id: str,
        assignments: Mapping[str, bytes] | None = None,
        *,
        instance: str | None = None,
        generation: int | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> Asked:
        request = SyncRequest(
            member_id,
            instance,
            self.generation if generation is None else generation,
            protocol_type,
            protocol_name,
            assignments or {},
        )
        return self._ask(lambda asked: self.group.sync(request, asked, self.now))

    def heartbeat(
        self, member_id: str, *, instance: str | None = None, generation: int | None = None
    ) -> None:
        generation = self.generation if generation is None else generation
        self.group.heartbeat(member_id, instance, generation, self.now)

    def commit(
        self, member_id: str, *, instance: str | None = None, generation: int | None = None
    ) -> None:
        generation = self.generation if generation is None else generation
        self.group.check_commit(Committer(member_id, instance, generation, CLIENT), self.now)

    def leave(self, member_id: str, instance: str | None = None) -> KafkaError | None:
        (outcome,) = self.group.leave([LeavingMember(member_id, instance)], self.now)
        self._hand_on()
        return outcome

    def wait(self, for_ms: int) -> None:
        until = self.now_ms + for_ms
        while (deadline := self.group.next_deadline()) is not None and deadline <= until:
            self.now_ms = max(self.now_ms, deadline)
            self.group.tick(self.now)
            self._hand_on()
        self.now_ms = until

    def restart(self) -> Coordinator:
        """Another broker, from what this one would have stored by now."""
        group = Group.restored(self.group.record(1), LIMITS, self.now)
        return Coordinator(group, self.now_ms)

    def restart_with(self, *, rebalance_timeout_ms: int) -> Coordinator:
        """As `restart`, and every member has asked for that."""
        record = self.group.record(1)
        members = tuple(
            replace(member, rebalance_timeout_ms=rebalance_timeout_ms) for member in record.members
        )
        group = Group.restored(replace(record, members=members), LIMITS, self.now)
        return Coordinator(group, self.now_ms)

    def _ask(self, send: Callable[[Asked], None]) -> Asked:
        asked = Asked()
        try:
            send(asked)
        finally:
            self._hand_on()
        return asked

    def _hand_on(self) -> None:
        for answer in self.group.take_answers():
            assert answer.waiter.outcome is None, "answered twice"
            answer.waiter.outcome = answer.outcome


def joined(*members: Mapping[str, Any], **limits: int) -> tuple[Coordinator, list[str]]:
    """A group in its first generation that waits for the leader's assignment."""
    at = Coordinator(**limits)
    asked = [at.join(**member) for member in members]
    at.wait(2 * DELAY_MS)
    assert at.group.state is GroupState.COMPLETING_REBALANCE
    return at, [one.joined.member_id for one in asked]


def stable(*members: Mapping[str, Any], **limits: int) -> tuple[Coordinator, list[str]]:
    """A group in its first generation where everybody has an assignment: the own member id."""
    at, ids = joined(*members, **limits)
    settle(at, ids)
    return at, ids


def settle(at: Coordinator, ids: list[str]) -> None:
    synced = [
        at.sync(one, {each: each.encode() for each in ids} if one == at.leader else None)
        for one in ids
    ]
    assert [one.assignment for one in synced] == [one.encode() for one in ids]
    assert at.group.state is GroupState.STABLE


ANY: dict[str, Any] = {}
STATIC: dict[str, Any] = {"instance": "s"}
OTHER = (("range", b"something else"),)


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


# Member ids


def test_a_member_is_given_an_id_and_joins_with_it() -> None:
    at = Coordinator()
    member_id = at.knock()
    assert member_id.startswith("client-")
    assert at.member_count == 0
    asked = at.join(member_id, handshake=True)
    at.wait(DELAY_MS)
    assert asked.joined.member_id == member_id


def test_an_old_client_joins_without_an_id() -> None:
    _, (member_id,) = joined(ANY)
    assert member_id.startswith("client-")


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


def test_a_client_that_leaves_before_it_has_joined_disturbs_nobody() -> None:
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
def test_the_first_member_too_has_to_name_a_protocol(member: dict[str, Any]) -> None:
    with pytest.raises(InconsistentGroupProtocol):
        Coordinator().join(**member)


def test_members_that_come_and_go_change_what_all_support() -> None:
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


def test_a_group_that_has_members_waits_for_no_more() -> None:
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


def test_a_leader_that_joins_again_begins_a_rebalance_though_nothing_of_it_changed() -> None:
    at, (first, second) = stable(ANY, ANY)
    assert at.join(first).waits
    with pytest.raises(RebalanceInProgress):
        at.heartbeat(second)


# Joining again


def test_a_follower_whose_answer_was_lost_is_told_the_generation_again() -> None:
    at, (_, second) = stable(ANY, ANY)
    assert at.join(second).joined.generation == 1
    assert at.group.state is GroupState.STABLE


def test_members_whose_answers_were_lost_before_the_assignment_are_told_again() -> None:
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


def test_what_followers_assign_is_ignored() -> None:
    at, (first, second) = joined(ANY, ANY)
    asked = at.sync(second, {first: b"x", second: b"y"})
    at.sync(first, {first: b"1", second: b"2"})
    assert asked.assignment == b"2"


def test_a_lost_assignment_can_be_asked_for_again() -> None:
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


def test_a_static_leader_that_cannot_be_told_so_is_told_that_it_does_not_lead() -> None:
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


def test_a_static_member_that_restarts_while_others_are_waited_for_is_waited_with() -> None:
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
def test_the_twin_of_a_static_member_is_fenced_whatever_it_asks(
    begin: Callable[..., tuple[Coordinator, list[str]]],
) -> None:
    at, (_, old) = begin(ANY, STATIC)
    at.join(instance="s")
    for ask in (at.heartbeat, at.sync, at.join, at.commit):
        with pytest.raises(FencedInstanceId):
            ask(old, instance="s")
    assert isinstance(at.leave(old, "s"), FencedInstanceId)


def test_a_twin_that_waits_for_its_assignment_is_fenced() -> None:
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
def test_nobody_else_can_be_removed(member_id: str, instance: str | None) -> None:
    at, _ = stable(ANY, STATIC)
    assert isinstance(at.leave(member_id, instance), UnknownMemberId)
    assert at.group.state is GroupState.STABLE


def test_members_leave_together_in_one_rebalance() -> None:
    at, (first, second, third) = stable(ANY, ANY, ANY)
    leaving = [LeavingMember(second, None), LeavingMember("x", None), LeavingMember(third, None)]
    outcomes = at.group.leave(leaving, at.now)
    assert [type(outcome) for outcome in outcomes] == [type(None), UnknownMemberId, type(None)]
    assert at.join(first).joined.generation == 2


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


@pytest.mark.parametrize("sign_of_life", ["heartbeat", "commit", "sync"])
def test_whatever_a_member_says_keeps_its_session(sign_of_life: str) -> None:
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


def test_the_longest_rebalance_time_out_counts() -> None:
    at, (first, second) = stable({"rebalance_ms": 1_000}, {"rebalance_ms": 8_000})
    asked = at.join(first, rebalance_ms=1_000)
    at.wait(7_999)
    assert asked.waits
    at.wait(1)
    assert asked.joined.generation == 2
    assert at.member_count == 1
    with pytest.raises(UnknownMemberId):
        at.join(second)


def test_a_group_whose_members_have_all_gone_is_empty() -> None:
    at, _ = stable(ANY, STATIC)
    at.wait(SESSION_MS)
    record = at.group.record(1)
    assert (record.state, record.generation, record.members) == ("Empty", 2, ())
    assert (record.protocol_type, record.protocol_name, record.leader) == ("consumer", "", "")
    assert at.group.is_unused
    assert at.group.next_deadline() is None


@pytest.mark.parametrize("session_ms", [-1, 0, 5_999, 1_800_001])
def test_session_time_outs_have_limits(session_ms: int) -> None:
    with pytest.raises(InvalidSessionTimeout):
        Coordinator().join(session_ms=session_ms)


def test_a_late_clock_does_everything_that_is_due() -> None:
    at, _ = stable(ANY, STATIC, ANY)
    at.now_ms += 10**9
    at.group.tick(at.now)
    assert at.group.state is GroupState.EMPTY


# Commits


def test_members_commit_in_their_generation_also_while_the_next_is_prepared() -> None:
    at, (first, second) = stable(ANY, STATIC)
    at.commit(first)
    at.commit(second, instance="s")
    at.join(first)
    at.commit(second, instance="s")


def test_commits_from_old_generations_are_refused() -> None:
    at, (first,) = stable(ANY)
    at.join(first)
    settle(at, [first])
    with pytest.raises(IllegalGeneration):
        at.commit(first, generation=1)
    with pytest.raises(IllegalGeneration):
        at.commit(first, generation=3)


def test_nothing_is_committed_before_the_assignment() -> None:
    at, (first,) = joined(ANY)
    with pytest.raises(RebalanceInProgress):
        at.commit(first)


def test_without_members_anybody_commits_who_names_no_generation() -> None:
    at = Coordinator()
    at.commit("", generation=-1)
    at.commit("whoever", generation=-1)
    with pytest.raises(UnknownMemberId):
        at.commit("whoever", generation=1)


# Which error comes first

NOBODY, WRONG = "nobody", 99


@pytest.mark.parametrize("ask", ["heartbeat", "sync", "commit"])
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
def test_who_asks_comes_before_the_generation_and_that_before_the_state(
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


def test_no_protocol_name_is_wrong_before_the_first_is_chosen() -> None:
    at = Coordinator()
    member_id = at.knock()
    at.join(member_id)
    with pytest.raises(RebalanceInProgress):
        at.sync(member_id, generation=0, protocol_type="consumer", protocol_name="any")


def test_in_an_empty_group_nobody_is_known() -> None:
    at, (first,) = stable(ANY)
    at.leave(first)
    for ask in (at.heartbeat, at.sync, at.join, at.commit):
        with pytest.raises(UnknownMemberId):
            ask(first)


def test_a_deleted_group_sends_everybody_to_find_the_coordinator_again() -> None:
    at, (first,) = stable(ANY)
    at.leave(first)
    at.group.delete(at.now)
    for ask in (at.heartbeat, at.sync, at.join, at.commit, at.leave):
        with pytest.raises(CoordinatorNotAvailable):
            ask(first)
    with pytest.raises(CoordinatorNotAvailable):
        at.join()
    assert at.group.state is GroupState.DEAD


def test_everybody_who_waits_is_told_when_the_coordinator_goes() -> None:
    at, (first, second) = stable(ANY, ANY)
    asked = [at.join(first), at.join()]
    at.group.shut_down(CoordinatorNotAvailable("stops"))
    at.wait(0)
    at._hand_on()
    assert all(one.failed_with(CoordinatorNotAvailable) for one in asked)
    assert second in {member.member_id for member in at.group.record(1).members}


# Size


def test_a_full_group_takes_no_more_members() -> None:
    at, ids = stable(ANY, ANY, max_size=2)
    with pytest.raises(GroupMaxSizeReached):
        at.join()
    with pytest.raises(GroupMaxSizeReached):
        at.join("nobody")
    for member_id in ids:
        at.heartbeat(member_id)


def test_ids_that_were_given_take_room() -> None:
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


def test_what_has_to_be_stored_is_marked() -> None:
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


def test_nobody_is_recorded_with_partitions_of_the_generation_before() -> None:
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
