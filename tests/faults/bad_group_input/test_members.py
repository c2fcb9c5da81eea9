"""What broken and hostile members can send to a group.

Each gets Kafka's error, the group works on for the others, and memory stays bounded. The error
codes are those of Kafka 4.3, against which these tests were run. Where this broker is stricter, to
bound its memory, the test says so.
"""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.admin import DeleteGroupsRequest, ListGroupsRequest

from protocol import errors
from tests.support import messages
from tests.support.group_answers import (
    COMMIT,
    DELETE,
    FENCED,
    ILLEGAL_GENERATION,
    INCONSISTENT_PROTOCOL,
    INVALID_GROUP_ID,
    INVALID_SESSION_TIMEOUT,
    JOIN,
    LEAVE,
    MEMBER_ID_REQUIRED,
    NONE,
    REBALANCE,
    SYNC,
    UNKNOWN_MEMBER,
    Connect,
    codes,
    committed,
    state,
)
from tests.support.member import Member
from tests.support.messages import ASSIGNMENT, NO_GROUP, NOBODY, SUBSCRIPTION, Target
from tests.support.waiting import until
from tests.support.wire import Closed, Wire, frame

NO_PROTOCOL: tuple[dict[str, Any], ...] = ({"protocols": ()}, {"protocol_type": ""})


class TestGroupIds:
    def test_members_need_one(self, wire: Wire, target: Target) -> None:
        nameless = Member(wire, "")
        nameless.member_id = NOBODY
        assert nameless.try_join().error_code == INVALID_GROUP_ID
        assert nameless.sync().error_code == INVALID_GROUP_ID
        assert nameless.heartbeat() == INVALID_GROUP_ID
        assert nameless.leave() == INVALID_GROUP_ID
        deleted = wire.ask(messages.offset_delete("", (target.name, [0])), 0)
        assert (deleted.error_code, deleted.topics) == (INVALID_GROUP_ID, [])

    def test_offsets_need_none(self, wire: Wire, target: Target) -> None:
        assert codes(wire.ask(messages.commit("", (target, {0: 4})), COMMIT)) == [NONE]
        assert committed(wire, "", target) == {0: (4, "")}
        assert state(wire, "") == "Empty"
        listed = wire.ask(ListGroupsRequest(states_filter=[], types_filter=[]), 5).groups
        assert [group.group_state for group in listed if group.group_id == ""] == ["Empty"]
        (deleted,) = wire.ask(DeleteGroupsRequest(groups_names=[""]), DELETE).results
        assert deleted.error_code == NONE
        assert state(wire, "") == "Dead"

    @pytest.mark.parametrize(
        "name",
        ["a b", ".", "é" * 100, "\0", "'; DROP TABLE messages --", "{x:String}", "x" * 30_000],
    )
    def test_any_text_is_one(self, wire: Wire, target: Target, topic: str, name: str) -> None:
        group_id = f"{name}{topic}"
        member = Member(wire, group_id)
        member.settle()
        assert member.commit(target, 8) == NONE
        assert committed(wire, group_id, target) == {0: (8, "")}
        assert state(wire, group_id) == "Stable"
        assert member.leave() == NONE
        (deleted,) = wire.ask(DeleteGroupsRequest(groups_names=[group_id]), DELETE).results
        assert (deleted.group_id, deleted.error_code) == (group_id, NONE)

    def test_a_text_longer_than_the_protocol_has_closes_the_connection(
        self, connect: Connect
    ) -> None:
        assert state(connect(), "x" * 32_767) == "Dead"
        with pytest.raises(Closed):
            state(connect(), "x" * 32_768)

    def test_a_client_may_have_a_very_long_name(self, wire: Wire, group: str) -> None:
        """Member ids contain it."""
        for version in (3, JOIN):
            request = messages.join(f"{group}-{version}")
            request.API_VERSION = version
            request.with_header(correlation_id=1, client_id="c" * 32_767)
            wire.send(frame(bytes(request.encode(header=True))))
            answer = wire.receive_response(request, version, 1)
            assert answer.error_code in (NONE, MEMBER_ID_REQUIRED)
            assert answer.member_id.startswith("c")

    def test_the_name_of_an_instance_has_a_limit(self, wire: Wire, group: str) -> None:
        """Member ids contain it too, and a shortened one could be that of another member."""
        Member(wire, group, instance_id="i" * 16_384).settle()
        answer = Member(wire, group, instance_id="i" * 16_385).try_join()
        assert answer.error_code == errors.InvalidRequest.code


class TestMembers:
    def test_nobody_is_told_so(self, wire: Wire, target: Target, member: Member) -> None:
        for group_id in (member.group_id, NO_GROUP):
            stranger = Member(wire, group_id)
            stranger.member_id, stranger.generation = NOBODY, 1
            answer = stranger.try_join()
            assert (answer.error_code, answer.member_id) == (UNKNOWN_MEMBER, NOBODY)
            assert (answer.generation_id, answer.leader, answer.members) == (-1, "", [])
            assert (answer.protocol_type, answer.protocol_name) == (None, None)
            answer = stranger.sync()
            assert (answer.error_code, answer.assignment) == (UNKNOWN_MEMBER, b"")
            assert (answer.protocol_type, answer.protocol_name) == (None, None)
            assert stranger.heartbeat() == UNKNOWN_MEMBER
            assert stranger.leave() == UNKNOWN_MEMBER
        assert member.heartbeat() == NONE

    @pytest.mark.parametrize("version", range(6))
    def test_leaving_as_nobody(self, wire: Wire, member: Member, version: int) -> None:
        for group_id in (member.group_id, NO_GROUP):
            answer = wire.ask(messages.leave(group_id, (NOBODY, None)), version)
            if version < 3:
                assert answer.error_code == UNKNOWN_MEMBER
            else:
                assert answer.error_code == NONE
                (one,) = answer.members
                assert (one.member_id, one.group_instance_id) == (NOBODY, None)
                assert one.error_code == UNKNOWN_MEMBER
        assert member.heartbeat() == NONE

    def test_several_leave_and_each_is_told(
        self, connect: Connect, group: str, member: Member
    ) -> None:
        wire = connect()
        leaving = (("", None), (NOBODY, None), ("", NOBODY), (member.member_id, NOBODY))
        answer = wire.ask(messages.leave(group, *leaving, (member.member_id, None)), LEAVE)
        assert answer.error_code == NONE
        assert [one.error_code for one in answer.members] == [UNKNOWN_MEMBER] * 4 + [NONE]
        assert [(one.member_id, one.group_instance_id) for one in answer.members] == [
            *leaving,
            (member.member_id, None),
        ]
        assert member.heartbeat() == UNKNOWN_MEMBER
        answer = wire.ask(messages.leave(group), LEAVE)
        assert (answer.error_code, answer.members) == (NONE, [])

    def test_the_id_of_a_member_of_another_group(
        self, connect: Connect, target: Target, group: str, member: Member
    ) -> None:
        other = Member(connect(), f"{group}-other")
        other.settle()
        other.member_id = member.member_id
        assert other.heartbeat() == UNKNOWN_MEMBER
        assert other.sync().error_code == UNKNOWN_MEMBER
        assert other.commit(target) == UNKNOWN_MEMBER
        assert other.try_join().error_code == UNKNOWN_MEMBER
        assert other.leave() == UNKNOWN_MEMBER

    def test_other_generations(self, member: Member) -> None:
        current = member.generation
        for generation in (current + 1, current - 1, -1, 2**31 - 1, -(2**31)):
            assert member.heartbeat(generation=generation) == ILLEGAL_GENERATION
            member.generation = generation
            answer = member.sync({member.member_id: b"another"})
            assert (answer.error_code, answer.assignment) == (ILLEGAL_GENERATION, b"")
            member.generation = current
        assert member.sync({member.member_id: b"another"}).assignment == ASSIGNMENT
        assert member.heartbeat() == NONE

    def test_a_follower_assigns_nothing(self, connect: Connect, group: str) -> None:
        leader, follower = Member(connect(), group), Member(connect(), group)
        leader.settle()
        follower.begin_join()
        until(lambda: leader.heartbeat() == REBALANCE)
        leader.send_join()
        assert [m.receive_join().error_code for m in (leader, follower)] == [NONE, NONE]
        assert (leader.leads, follower.leads) == (True, False)
        follower.send_sync({leader.member_id: b"stolen", follower.member_id: b"everything"})
        assert follower.wire.is_silent_for(0.3)
        answer = leader.sync({follower.member_id: b"a little", NOBODY: b"nothing"})
        assert (answer.error_code, answer.assignment) == (NONE, b"")
        answer = follower.receive_sync()
        assert (answer.error_code, answer.assignment) == (NONE, b"a little")
        answer = follower.sync({follower.member_id: b"everything"})
        assert (answer.error_code, answer.assignment) == (NONE, b"a little")

    def test_of_two_assignments_for_one_member_the_last_counts(
        self, wire: Wire, group: str
    ) -> None:
        member = Member(wire, group)
        member.join()
        request = messages.sync(group, member.member_id, member.generation)
        one = request.SyncGroupRequestAssignment
        request.assignments = [
            one(member_id=member.member_id, assignment=assignment) for assignment in (b"a", b"b")
        ]
        assert wire.ask(request, SYNC).assignment == b"b"

    @pytest.mark.parametrize("timeout_ms", [5_999, 1_800_001])
    def test_session_time_outs_out_of_range(
        self, wire: Wire, group: str, member: Member, timeout_ms: int
    ) -> None:
        for group_id in (group, f"{group}-other"):
            other = Member(wire, group_id, session_timeout_ms=timeout_ms)
            answer = other.try_join()
            assert (answer.error_code, answer.member_id) == (INVALID_SESSION_TIMEOUT, "")
            other.member_id = NOBODY
            assert other.try_join().error_code == INVALID_SESSION_TIMEOUT
        assert state(wire, f"{group}-other") == "Dead"
        member.session_timeout_ms = timeout_ms
        assert member.try_join().error_code == INVALID_SESSION_TIMEOUT
        assert member.heartbeat() == NONE

    @pytest.mark.parametrize("timeout_ms", [6_000, 1_800_000])
    def test_session_time_outs_at_the_ends_of_the_range(
        self, wire: Wire, group: str, timeout_ms: int
    ) -> None:
        Member(wire, group, session_timeout_ms=timeout_ms).settle()

    @pytest.mark.parametrize("timeout_ms", [0, -1, -(2**31), 2**31 - 1])
    def test_any_rebalance_time_out_is_taken(self, wire: Wire, group: str, timeout_ms: int) -> None:
        member = Member(wire, group, rebalance_timeout_ms=timeout_ms)
        assert member.join().error_code == NONE


class TestProtocols:
    @pytest.mark.parametrize("version", [0, 3, 4, 9])
    def test_none_at_all(self, wire: Wire, group: str, version: int) -> None:
        for asked in NO_PROTOCOL:
            member = Member(wire, group, era=version, **asked)
            answer = member.try_join()
            assert (answer.error_code, answer.member_id) == (INCONSISTENT_PROTOCOL, "")
            assert answer.protocol_name == (None if version >= 7 else "")
        until(
            lambda: state(wire, group) == "Empty", "it is kept until the next clean-up, as in Kafka"
        )

    def test_none_that_the_others_have(
        self, connect: Connect, target: Target, member: Member
    ) -> None:
        other = Member(connect(), member.group_id, protocols=(("sticky", b""),))
        assert other.try_join().error_code == INCONSISTENT_PROTOCOL
        other = Member(connect(), member.group_id, protocol_type="connect")
        assert other.try_join().error_code == INCONSISTENT_PROTOCOL
        assert member.heartbeat() == NONE
        other = Member(connect(), member.group_id, protocols=(("sticky", b""), ("range", b"")))
        other.begin_join()
        until(lambda: member.heartbeat() == REBALANCE)
        member.send_join()
        assert member.receive_join().protocol_name == "range"
        assert other.receive_join().protocol_name == "range"

    @pytest.mark.parametrize(
        ("protocol_type", "protocol_name"),
        [("connect", "range"), ("consumer", "sticky"), (None, "range"), ("consumer", None)],
    )
    def test_syncing_with_another_than_was_chosen(
        self, wire: Wire, member: Member, protocol_type: str | None, protocol_name: str | None
    ) -> None:
        request = messages.sync(
            member.group_id,
            member.member_id,
            member.generation,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
        )
        assert wire.ask(request, 5).error_code == INCONSISTENT_PROTOCOL
        assert wire.ask(request, 4).error_code == NONE

    def test_the_same_twice(self, wire: Wire, group: str) -> None:
        """Kafka does not answer this, nor some of the next."""
        member = Member(wire, group, protocols=(("range", b"first"), ("range", b"second")))
        answer = member.join()
        assert (answer.protocol_name, answer.members[0].metadata) == ("range", b"first")

    def test_what_the_bytes_are_is_the_members_own_affair(
        self, wire: Wire, target: Target, group: str
    ) -> None:
        for number, metadata in enumerate((b"", b"\0", b"\xff" * 100, SUBSCRIPTION[:-3])):
            member = Member(wire, f"{group}-{number}", protocols=(("range", metadata),))
            member.settle(assignment=metadata)
            assert member.commit(target) == NONE


class TestStaticMembers:
    def test_a_twin_fences_the_one_before(
        self, connect: Connect, target: Target, group: str
    ) -> None:
        first = Member(connect(), group, instance_id="twin")
        first.settle()
        second = Member(connect(), group, instance_id="twin")
        assert second.join().member_id != first.member_id
        assert first.heartbeat() == FENCED
        answer = first.sync()
        assert (answer.error_code, answer.assignment) == (FENCED, b"")
        assert first.commit(target) == FENCED
        assert first.try_join().error_code == FENCED
        assert first.leave() == FENCED
        assert second.sync().assignment == ASSIGNMENT
        assert second.heartbeat() == NONE
        assert second.commit(target) == NONE

    def test_a_twin_fences_one_that_waits_for_its_generation(
        self, connect: Connect, group: str
    ) -> None:
        member = Member(connect(), group)
        member.settle()
        first = Member(connect(), group, instance_id="twin")
        first.send_join()
        until(lambda: member.heartbeat() == REBALANCE)
        second = Member(connect(), group, instance_id="twin")
        second.send_join()
        assert first.receive_join().error_code == FENCED
        member.send_join()
        assert second.receive_join().error_code == NONE
        assert member.receive_join().error_code == NONE

    def test_an_instance_that_nobody_is(self, connect: Connect, member: Member) -> None:
        stranger = Member(connect(), member.group_id, instance_id=NOBODY)
        stranger.generation = member.generation
        for member_id in (NOBODY, member.member_id):
            stranger.member_id = member_id
            assert stranger.heartbeat() == UNKNOWN_MEMBER
            assert stranger.sync().error_code == UNKNOWN_MEMBER
            assert stranger.leave() == UNKNOWN_MEMBER
            assert stranger.try_join().error_code == UNKNOWN_MEMBER

    def test_the_instance_of_another_member(self, connect: Connect, group: str) -> None:
        static = Member(connect(), group, instance_id="one")
        static.settle()
        thief = Member(connect(), group, instance_id="one")
        thief.member_id, thief.generation = NOBODY, static.generation
        assert thief.heartbeat() == FENCED
        assert thief.sync().error_code == FENCED
        assert thief.leave() == FENCED
        assert thief.try_join().error_code == FENCED
        assert static.heartbeat() == NONE

    def test_leaving_by_the_name_of_the_instance_alone(self, connect: Connect, group: str) -> None:
        static = Member(connect(), group, instance_id="one")
        static.settle()
        answer = connect().ask(messages.leave(group, ("", "two"), ("", "one")), LEAVE)
        assert [one.error_code for one in answer.members] == [UNKNOWN_MEMBER, NONE]
        assert static.heartbeat() == UNKNOWN_MEMBER
