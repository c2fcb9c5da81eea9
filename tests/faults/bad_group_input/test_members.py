"""What broken and hostile members can send to a group.

Each gets Kafka's error, the group works on for the others, and memory stays bounded. The error
codes are those of Kafka 4.3, against which these tests were run. Where this broker is stricter, to
bound its memory, the test says so.
"""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.admin import DeleteGroupsRequest, ListGroupsRequest

from brokerhouse.protocol import errors
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
    def test_a_member_without_a_group_id_is_refused(self, wire: Wire, target: Target) -> None:
        nameless = Member(wire, "")
        nameless.member_id = NOBODY
        assert nameless.try_join().error_code == INVALID_GROUP_ID
        assert nameless.sync().error_code == INVALID_GROUP_ID
        assert nameless.heartbeat() == INVALID_GROUP_ID
        assert nameless.leave() == INVALID_GROUP_ID
        deleted = wire.ask(messages.offset_delete("", (target.name, [0])), 0)
        assert (deleted.error_code, deleted.topics) == (INVALID_GROUP_ID, [])

    def test_offsets_may_be_committed_to_the_empty_group_id(
        self, wire: Wire, target: Target
    ) -> None:
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
    def test_any_text_is_accepted_as_a_group_id(
        self, wire: Wire, target: Target, topic: str, name: str
    ) -> None:
        group_id = f"{name}{topic}"
        member = Member(wire, group_id)
        member.settle()
        assert member.commit(target, 8) == NONE
        assert committed(wire, group_id, target) == {0: (8, "")}
        assert state(wire, group_id) == "Stable"
        assert member.leave() == NONE
        (deleted,) = wire.ask(DeleteGroupsRequest(groups_names=[group_id]), DELETE).results
        assert (deleted.group_id, deleted.error_code) == (group_id, NONE)

    def test_a_group_id_longer_than_the_protocol_allows_closes_the_connection(
        self, connect: Connect
    ) -> None:
        assert state(connect(), "x" * 32_767) == "Dead"
        with pytest.raises(Closed):
            state(connect(), "x" * 32_768)

    def test_a_client_with_a_very_long_client_id_joins(self, wire: Wire, group: str) -> None:
        """Member ids contain it."""
        for version in (3, JOIN):
            request = messages.join(f"{group}-{version}")
            request.API_VERSION = version
            request.with_header(correlation_id=1, client_id="c" * 32_767)
            wire.send(frame(bytes(request.encode(header=True))))
            answer = wire.receive_response(request, version, 1)
            assert answer.error_code in (NONE, MEMBER_ID_REQUIRED)
            assert answer.member_id.startswith("c")

    def test_an_instance_id_longer_than_the_limit_is_refused(self, wire: Wire, group: str) -> None:
        """Member ids contain it too, and a shortened one could be that of another member."""
        Member(wire, group, instance_id="i" * 16_384).settle()
        answer = Member(wire, group, instance_id="i" * 16_385).try_join()
        assert answer.error_code == errors.InvalidRequest.code


class TestMembers:
    def test_an_unknown_member_is_refused_in_every_request(
        self, wire: Wire, target: Target, member: Member
    ) -> None:
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
    def test_an_unknown_member_that_leaves_is_refused_in_each_version(
        self, wire: Wire, member: Member, version: int
    ) -> None:
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

    def test_members_that_leave_together_each_get_an_answer(
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

    def test_a_member_id_of_another_group_is_refused(
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

    def test_requests_of_another_generation_are_refused_and_a_second_assignment_is_ignored(
        self, member: Member
    ) -> None:
        current = member.generation
        for generation in (current + 1, current - 1, -1, 2**31 - 1, -(2**31)):
            assert member.heartbeat(generation=generation) == ILLEGAL_GENERATION
            member.generation = generation
            answer = member.sync({member.member_id: b"another"})
            assert (answer.error_code, answer.assignment) == (ILLEGAL_GENERATION, b"")
            member.generation = current
        assert member.sync({member.member_id: b"another"}).assignment == ASSIGNMENT
        assert member.heartbeat() == NONE

    def test_an_assignment_sent_by_a_follower_is_ignored(
        self, connect: Connect, group: str
    ) -> None:
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

    def test_the_last_of_two_assignments_for_one_member_counts(
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
    def test_a_session_time_out_outside_the_limits_is_refused(
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
    def test_a_session_time_out_at_a_limit_is_accepted(
        self, wire: Wire, group: str, timeout_ms: int
    ) -> None:
        Member(wire, group, session_timeout_ms=timeout_ms).settle()

    @pytest.mark.parametrize("timeout_ms", [0, -1, -(2**31), 2**31 - 1])
    def test_any_rebalance_time_out_is_accepted(
        self, wire: Wire, group: str, timeout_ms: int
    ) -> None:
        member = Member(wire, group, rebalance_timeout_ms=timeout_ms)
        assert member.join().error_code == NONE


class TestProtocols:
    @pytest.mark.parametrize("version", [0, 3, 4, 9])
    def test_a_member_without_a_protocol_is_refused(
        self, wire: Wire, group: str, version: int
    ) -> None:
        for asked in NO_PROTOCOL:
            member = Member(wire, group, era=version, **asked)
            answer = member.try_join()
            assert (answer.error_code, answer.member_id) == (INCONSISTENT_PROTOCOL, "")
            assert answer.protocol_name == (None if version >= 7 else "")
        until(
            lambda: state(wire, group) == "Empty", "it is kept until the next clean-up, as in Kafka"
        )

    def test_a_member_without_a_common_protocol_is_refused(
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
    def test_a_sync_with_another_protocol_than_the_chosen_one_is_refused(
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

    def test_the_first_of_two_protocols_of_the_same_name_counts(
        self, wire: Wire, group: str
    ) -> None:
        """Kafka does not answer this, nor some of the next."""
        member = Member(wire, group, protocols=(("range", b"first"), ("range", b"second")))
        answer = member.join()
        assert (answer.protocol_name, answer.members[0].metadata) == ("range", b"first")

    def test_any_bytes_are_accepted_as_metadata_and_assignment(
        self, wire: Wire, target: Target, group: str
    ) -> None:
        for number, metadata in enumerate((b"", b"\0", b"\xff" * 100, SUBSCRIPTION[:-3])):
            member = Member(wire, f"{group}-{number}", protocols=(("range", metadata),))
            member.settle(assignment=metadata)
            assert member.commit(target) == NONE


class TestStaticMembers:
    def test_a_second_instance_fences_the_first(
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

    def test_a_second_instance_fences_the_first_while_it_waits_for_its_generation(
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

    def test_an_unknown_instance_id_is_refused(self, connect: Connect, member: Member) -> None:
        stranger = Member(connect(), member.group_id, instance_id=NOBODY)
        stranger.generation = member.generation
        for member_id in (NOBODY, member.member_id):
            stranger.member_id = member_id
            assert stranger.heartbeat() == UNKNOWN_MEMBER
            assert stranger.sync().error_code == UNKNOWN_MEMBER
            assert stranger.leave() == UNKNOWN_MEMBER
            assert stranger.try_join().error_code == UNKNOWN_MEMBER

    def test_a_member_with_the_instance_id_of_another_is_fenced(
        self, connect: Connect, group: str
    ) -> None:
        static = Member(connect(), group, instance_id="one")
        static.settle()
        thief = Member(connect(), group, instance_id="one")
        thief.member_id, thief.generation = NOBODY, static.generation
        assert thief.heartbeat() == FENCED
        assert thief.sync().error_code == FENCED
        assert thief.leave() == FENCED
        assert thief.try_join().error_code == FENCED
        assert static.heartbeat() == NONE

    def test_a_static_member_leaves_by_its_instance_id_alone(
        self, connect: Connect, group: str
    ) -> None:
        static = Member(connect(), group, instance_id="one")
        static.settle()
        answer = connect().ask(messages.leave(group, ("", "two"), ("", "one")), LEAVE)
        assert [one.error_code for one in answer.members] == [UNKNOWN_MEMBER, NONE]
        assert static.heartbeat() == UNKNOWN_MEMBER
