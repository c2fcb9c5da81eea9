"""What broken and hostile members, and clumsy tools, can send to a group, and what they are told.

Kafka's error for each, the group works on for the others, and memory stays bounded. The error codes
are those of Kafka 4.3, against which these tests were run; where this broker is stricter, to keep
its memory, the test says so.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.api_message import ApiMessage

from protocol import errors
from tests.conftest import OwnBrokers
from tests.support import messages
from tests.support.broker_process import BrokerProcess
from tests.support.member import Member
from tests.support.messages import ASSIGNMENT, NO_GROUP, NOBODY, SUBSCRIPTION, Target
from tests.support.waiting import until
from tests.support.wire import Closed, Wire, frame, request_body

MIB = 1 << 20
DEFECT = re.compile(r"Traceback|\[(error|critical) |never (retrieved|awaited)")
COMMIT, FETCH, LEAVE, DESCRIBE = 9, 9, 5, 6  # the versions where nothing depends on one
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

NO_PROTOCOL: tuple[dict[str, Any], ...] = ({"protocols": ()}, {"protocol_type": ""})

Connect = Callable[[], Wire]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One whose groups begin at once."""
    process = BrokerProcess(
        tmp_path_factory.mktemp("groups") / "data", {"group_initial_rebalance_delay_ms": "0"}
    )
    process.start()
    yield process
    process.stop()


@pytest.fixture(autouse=True)
def no_defects(broker: BrokerProcess) -> Iterator[None]:
    """Nothing that a client sends makes the broker log an error of its own."""
    before = broker.log_size()
    yield
    printed = broker.log(before, MIB)
    assert not DEFECT.search(printed), printed


@pytest.fixture
def connect(broker: BrokerProcess) -> Iterator[Connect]:
    """Opens connections that are closed with the test."""
    with contextlib.ExitStack() as opened:
        yield lambda: opened.enter_context(Wire(broker))


@pytest.fixture
def wire(connect: Connect) -> Wire:
    return connect()


@pytest.fixture
def target(wire: Wire, topic: str) -> Target:
    return messages.create_topic(wire, topic, partitions=2)


@pytest.fixture
def group(topic: str) -> str:
    """A group id that no other test uses."""
    return f"{topic}-group"


@pytest.fixture
def member(wire: Wire, group: str) -> Member:
    """The only one of a group that is stable."""
    only = Member(wire, group)
    only.settle()
    return only


def committed(wire: Wire, group_id: str, target: Target) -> dict[int, tuple[int, str]]:
    """Per partition of a topic (offset, metadata), of what is committed."""
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


class TestCommits:
    def test_partitions_that_are_not_there_do_not_stop_the_others(
        self, wire: Wire, target: Target, group: str
    ) -> None:
        nowhere = Target(f"{target.name}-gone", UUID(int=7))
        commit = messages.commit(group, (target, {-1: 5, 0: 6, 2: 7, 1: 8}), (nowhere, {0: 9}))
        missing = UNKNOWN_TOPIC_OR_PARTITION
        answer = wire.ask(commit, COMMIT)
        found = {
            (topic.name, partition.partition_index): partition.error_code
            for topic in answer.topics
            for partition in topic.partitions
        }
        assert found == {
            (target.name, -1): missing,
            (target.name, 0): NONE,
            (target.name, 2): missing,
            (target.name, 1): NONE,
            (nowhere.name, 0): missing,
        }
        assert committed(wire, group, target) == {0: (6, ""), 1: (8, "")}

    def test_nothing_that_is_there_makes_no_group(
        self, wire: Wire, target: Target, group: str
    ) -> None:
        answer = wire.ask(messages.commit(group, (target, {9: 1})), COMMIT)
        assert codes(answer) == [UNKNOWN_TOPIC_OR_PARTITION]
        assert state(wire, group) == "Dead"

    @pytest.mark.parametrize("unknown", [UUID(int=0), UUID(int=7)], ids=["zero", "unknown"])
    def test_a_topic_id_that_is_not_known_does_not_stop_the_others(
        self, wire: Wire, target: Target, group: str, unknown: UUID
    ) -> None:
        commit = messages.commit(group, (Target("", unknown), {0: 1, 1: 2}), (target, {0: 3, 9: 4}))
        answer = wire.ask(commit, 10)
        assert sorted(
            (str(topic.topic_id), partition.partition_index, partition.error_code)
            for topic in answer.topics
            for partition in topic.partitions
        ) == sorted(
            [
                (str(answer_id(unknown)), 0, UNKNOWN_TOPIC_ID),
                (str(answer_id(unknown)), 1, UNKNOWN_TOPIC_ID),
                (str(target.topic_id), 0, NONE),
                (str(target.topic_id), 9, UNKNOWN_TOPIC_OR_PARTITION),
            ]
        )
        assert committed(wire, group, target) == {0: (3, "")}

    def test_metadata_is_taken_up_to_its_limit(
        self, wire: Wire, target: Target, group: str
    ) -> None:
        largest = "x" * 4096
        for metadata, code in ((largest, NONE), (largest + "x", METADATA_TOO_LARGE)):
            commit = messages.commit(group, (target, {0: 1}), metadata=metadata)
            assert codes(wire.ask(commit, COMMIT)) == [code]
        assert committed(wire, group, target) == {0: (1, largest)}

    def test_metadata_that_is_too_large_does_not_stop_the_others(
        self, wire: Wire, target: Target, group: str
    ) -> None:
        commit = messages.commit(group, (target, {0: 1, 1: 2}))
        commit.topics[0].partitions[0].committed_metadata = "x" * 4097
        assert codes(wire.ask(commit, COMMIT)) == [METADATA_TOO_LARGE, NONE]
        assert committed(wire, group, target) == {1: (2, "")}

    def test_null_metadata_is_empty(self, wire: Wire, target: Target, group: str) -> None:
        commit = messages.commit(group, (target, {0: 1}), metadata=None)
        assert codes(wire.ask(commit, COMMIT)) == [NONE]
        assert committed(wire, group, target) == {0: (1, "")}

    def test_of_a_partition_that_comes_twice_the_last_is_kept(
        self, wire: Wire, target: Target, group: str
    ) -> None:
        commit = messages.commit(group, (target, {0: 1, 1: 5}), (target, {0: 9}))
        assert sorted(codes(wire.ask(commit, COMMIT))) == [NONE, NONE, NONE]
        assert committed(wire, group, target) == {0: (9, ""), 1: (5, "")}

    @pytest.mark.parametrize("offset", [0, -1, -2, -(2**63), 2**63 - 1])
    @pytest.mark.parametrize("epoch", [-1, 0, -7, 2**31 - 1])
    def test_any_offset_and_leader_epoch_is_kept_as_it_is(
        self, wire: Wire, target: Target, group: str, offset: int, epoch: int
    ) -> None:
        commit = messages.commit(group, (target, {0: offset}), leader_epoch=epoch)
        assert codes(wire.ask(commit, COMMIT)) == [NONE]
        answer = wire.ask(messages.offset_fetch(FETCH, {group: [(target, [0])]}), FETCH)
        (partition,) = answer.groups[0].topics[0].partitions
        assert (partition.committed_offset, partition.committed_leader_epoch) == (offset, epoch)

    @pytest.mark.parametrize("version", range(2, 5))
    @pytest.mark.parametrize("retention_ms", [2**63 - 1, 3_600_000])
    def test_a_long_retention_keeps_an_offset(
        self, wire: Wire, target: Target, group: str, version: int, retention_ms: int
    ) -> None:
        commit = messages.commit(group, (target, {0: 3}), retention_ms=retention_ms)
        assert codes(wire.ask(commit, version)) == [NONE]
        assert committed(wire, group, target) == {0: (3, "")}

    @pytest.mark.parametrize("retention_ms", [0, -2, -(2**63)])
    def test_a_retention_that_is_over_already_is_taken(
        self, wire: Wire, target: Target, group: str, retention_ms: int
    ) -> None:
        commit = messages.commit(group, (target, {0: 3}), retention_ms=retention_ms)
        assert codes(wire.ask(commit, 4)) == [NONE]

    @pytest.mark.parametrize("version", range(2, 11))
    def test_a_generation_of_a_group_that_is_not_there(
        self, wire: Wire, target: Target, group: str, version: int
    ) -> None:
        commit = messages.commit(group, (target, {0: 1}), member_id=NOBODY, generation=0)
        code = GROUP_NOT_FOUND if version >= 9 else ILLEGAL_GENERATION
        assert codes(wire.ask(commit, version)) == [code]
        assert state(wire, group) == "Dead"

    def test_a_refusal_by_the_group_goes_to_every_partition_that_is_there(
        self, wire: Wire, target: Target, member: Member
    ) -> None:
        commit = messages.commit(
            member.group_id, (target, {0: 1, 1: 2, 9: 3}), member_id=NOBODY, generation=1
        )
        commit.topics[0].partitions[0].committed_metadata = "x" * 5000
        answer = wire.ask(commit, COMMIT)
        found = {p.partition_index: p.error_code for t in answer.topics for p in t.partitions}
        assert found == {0: UNKNOWN_MEMBER, 1: UNKNOWN_MEMBER, 9: UNKNOWN_TOPIC_OR_PARTITION}

    def test_from_other_generations(self, target: Target, member: Member) -> None:
        assert member.commit(target) == NONE
        for generation in (member.generation + 1, member.generation - 1, 2**31 - 1):
            assert member.commit(target, generation=generation) == ILLEGAL_GENERATION
        assert member.commit(target) == NONE

    def test_while_the_group_has_members_only_they_commit(
        self, connect: Connect, target: Target, member: Member
    ) -> None:
        stranger = Member(connect(), member.group_id)
        assert stranger.commit(target) == UNKNOWN_MEMBER
        assert stranger.commit(target, member_id=NOBODY) == UNKNOWN_MEMBER
        assert stranger.commit(target, generation=member.generation) == UNKNOWN_MEMBER
        assert stranger.commit(target, instance_id=NOBODY) == UNKNOWN_MEMBER
        assert member.leave() == NONE
        assert stranger.commit(target) == NONE

    def test_a_tool_commits_to_a_group_without_members_whatever_it_calls_itself(
        self, wire: Wire, target: Target, group: str
    ) -> None:
        tool = Member(wire, group)
        assert tool.commit(target) == NONE
        assert tool.commit(target, member_id=NOBODY) == NONE
        assert tool.commit(target, instance_id=NOBODY) == NONE
        assert tool.commit(target, generation=-5) == NONE
        assert tool.commit(target, generation=0) == UNKNOWN_MEMBER

    def test_a_member_without_an_assignment_commits_nothing(
        self, wire: Wire, target: Target, group: str
    ) -> None:
        member = Member(wire, group)
        member.join()
        assert member.commit(target) == REBALANCE
        assert member.sync({member.member_id: ASSIGNMENT}).error_code == NONE
        assert member.commit(target) == NONE

    def test_a_member_that_is_to_join_again_still_commits(
        self, connect: Connect, target: Target, member: Member
    ) -> None:
        other = Member(connect(), member.group_id)
        other.begin_join()
        until(lambda: member.heartbeat() == REBALANCE)
        assert member.commit(target, 5) == NONE
        member.send_join()
        assert {member.receive_join().error_code, other.receive_join().error_code} == {NONE}


def answer_id(topic_id: UUID) -> UUID | None:
    """An id as the client's decoder hands it out."""
    return topic_id if topic_id.int else None


class TestFetches:
    def test_what_is_not_committed_is_no_error(
        self, wire: Wire, target: Target, group: str
    ) -> None:
        nowhere = Target(f"{target.name}-gone", UUID(int=7))
        for version in range(1, 10):
            fetch = messages.offset_fetch(version, {group: [(target, [0, 9, -1]), (nowhere, [3])]})
            answer = wire.ask(fetch, version)
            topics = answer.groups[0].topics if version >= 8 else answer.topics
            assert {
                (topic.name, partition.partition_index): (
                    partition.error_code,
                    partition.committed_offset,
                    partition.metadata,
                )
                for topic in topics
                for partition in topic.partitions
            } == {
                (target.name, 0): (NONE, -1, ""),
                (target.name, 9): (NONE, -1, ""),
                (target.name, -1): (NONE, -1, ""),
                (nowhere.name, 3): (NONE, -1, ""),
            }

    def test_a_topic_id_that_is_not_known_is_an_error_of_its_partitions(
        self, wire: Wire, target: Target, group: str
    ) -> None:
        nowhere = Target("", UUID(int=7))
        fetch = messages.offset_fetch(10, {group: [(nowhere, [0, 1]), (target, [0])]})
        (answer,) = wire.ask(fetch, 10).groups
        assert answer.error_code == NONE
        assert {
            topic.topic_id: [(p.error_code, p.committed_offset) for p in topic.partitions]
            for topic in answer.topics
        } == {
            nowhere.topic_id: [(UNKNOWN_TOPIC_ID, -1)] * 2,
            target.topic_id: [(NONE, -1)],
        }

    @pytest.mark.parametrize("version", range(2, 11))
    def test_null_means_all_topics(
        self, wire: Wire, target: Target, group: str, version: int
    ) -> None:
        def fetched() -> list[tuple[object, list[int]]]:
            answer = wire.ask(messages.offset_fetch(version, {group: None}), version)
            topics = answer.groups[0].topics if version >= 8 else answer.topics
            return [
                (
                    topic.topic_id if version >= 10 else topic.name,
                    sorted(partition.committed_offset for partition in topic.partitions),
                )
                for topic in topics
            ]

        assert fetched() == []
        wire.ask(messages.commit(group, (target, {0: 3, 1: 4})), COMMIT)
        assert fetched() == [(target.topic_id if version >= 10 else target.name, [3, 4])]

    @pytest.mark.parametrize("version", [9, 10])
    def test_members_of_classic_groups_are_not_asked_who_they_are(
        self, wire: Wire, target: Target, member: Member, version: int
    ) -> None:
        assert member.commit(target, 5) == NONE
        fetch = messages.offset_fetch(version, {member.group_id: [(target, [0])]})
        fetch.groups[0].member_id = NOBODY
        fetch.groups[0].member_epoch = 77
        (answer,) = wire.ask(fetch, version).groups
        assert answer.error_code == NONE
        assert answer.topics[0].partitions[0].committed_offset == 5

    def test_many_times_the_same_is_answered_once(
        self, wire: Wire, target: Target, group: str
    ) -> None:
        """Otherwise a small request makes an answer of gigabytes."""
        wire.ask(messages.commit(group, (target, {0: 3}), metadata="x" * 4096), COMMIT)
        fetch = messages.offset_fetch(9, {group: None})
        fetch.groups = fetch.groups * 20_000
        answer = wire.ask(fetch, 9)
        assert [one.group_id for one in answer.groups] == [group]
        fetch = messages.offset_fetch(9, {group: [(target, [0] * 50_000)]})
        (answered,) = wire.ask(fetch, 9).groups
        assert [p.committed_offset for t in answered.topics for p in t.partitions] == [3]


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
        """Member ids are made of it."""
        for version in (3, JOIN):
            request = messages.join(f"{group}-{version}")
            request.API_VERSION = version
            request.with_header(correlation_id=1, client_id="c" * 32_767)
            wire.send(frame(bytes(request.encode(header=True))))
            answer = wire.receive_response(request, version, 1)
            assert answer.error_code in (NONE, MEMBER_ID_REQUIRED)
            assert answer.member_id.startswith("c")

    def test_the_name_of_an_instance_has_a_limit(self, wire: Wire, group: str) -> None:
        """Member ids are made of it, too, and it cannot be cut without being another's."""
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
        assert member.sync().assignment == ASSIGNMENT
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

    def test_a_leader_that_assigns_twice_is_heard_once(self, member: Member) -> None:
        answer = member.sync({member.member_id: b"another"})
        assert (answer.error_code, answer.assignment) == (NONE, ASSIGNMENT)

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

    @pytest.mark.parametrize("timeout_ms", [5_999, 1_800_001, 0, -1, 2**31 - 1, -(2**31)])
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
        # Kafka keeps an empty group of it for a while.
        assert state(wire, group) == "Dead"

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


def leave_within(broker: BrokerProcess, request: ApiMessage, version: int, after_s: float) -> None:
    """Ask for something and be gone."""
    with Wire(broker) as leaving:
        leaving.send_request(request, version)
        time.sleep(after_s)
        leaving.reset()


class TestClientsThatLeave:
    """Each at many moments: what they ask for takes a few milliseconds."""

    MOMENTS_S = tuple(number / 5000 for number in range(30))

    def test_while_they_commit(
        self, broker: BrokerProcess, wire: Wire, target: Target, group: str
    ) -> None:
        """What is stored is what is fetched."""
        for number, after_s in enumerate(self.MOMENTS_S):
            commit = messages.commit(f"{group}-{number}", (target, {0: 1}))
            leave_within(broker, commit, COMMIT, after_s)
        for number in range(len(self.MOMENTS_S)):
            group_id = f"{group}-{number}"
            until(partial(self.is_settled, broker, wire, target, group_id))
            assert self.takes_members(wire, group_id)

    def is_settled(self, broker: BrokerProcess, wire: Wire, target: Target, group_id: str) -> bool:
        (rows,) = broker.sql(
            "SELECT count() AS stored FROM consumer_offsets WHERE group_id = {group_id:String}",
            {"group_id": group_id},
        )
        return bool(rows["stored"]) == (committed(wire, group_id, target) == {0: (1, "")})

    def test_while_they_delete_a_group(
        self, broker: BrokerProcess, wire: Wire, target: Target, group: str
    ) -> None:
        """It is there or it is not, and takes members."""
        for number, after_s in enumerate(self.MOMENTS_S):
            group_id = f"{group}-{number}"
            assert codes(wire.ask(messages.commit(group_id, (target, {0: 1})), COMMIT)) == [NONE]
            leave_within(broker, DeleteGroupsRequest(groups_names=[group_id]), DELETE, after_s)
        for number in range(len(self.MOMENTS_S)):
            until(partial(self.takes_members, wire, f"{group}-{number}"))

    def takes_members(self, wire: Wire, group_id: str) -> bool:
        return bool(wire.ask(messages.join(group_id), JOIN).error_code == MEMBER_ID_REQUIRED)

    def test_while_they_delete_offsets(
        self, broker: BrokerProcess, wire: Wire, target: Target, group: str
    ) -> None:
        """What SQL shows is what is fetched."""
        for number, after_s in enumerate(self.MOMENTS_S):
            group_id = f"{group}-{number}"
            assert codes(wire.ask(messages.commit(group_id, (target, {0: 1})), COMMIT)) == [NONE]
            leave_within(broker, messages.offset_delete(group_id, (target.name, [0])), 0, after_s)
        for number in range(len(self.MOMENTS_S)):
            group_id = f"{group}-{number}"
            until(partial(self.is_alike, broker, wire, target, group_id))

    def is_alike(self, broker: BrokerProcess, wire: Wire, target: Target, group_id: str) -> bool:
        (rows,) = broker.sql(
            "SELECT countIf(deleted) AS deleted FROM consumer_offsets"
            " WHERE group_id = {group_id:String}",
            {"group_id": group_id},
        )
        return bool(rows["deleted"]) == (committed(wire, group_id, target) == {})


class TestAdministrators:
    def test_a_group_that_is_not_there(self, wire: Wire, target: Target) -> None:
        for version in range(6):
            (group,) = described(wire, NO_GROUP, version=version)
            assert (group.error_code, group.group_state) == (NONE, "Dead")
        (group,) = described(wire, NO_GROUP, version=6)
        assert (group.error_code, group.group_state) == (GROUP_NOT_FOUND, "Dead")
        assert NO_GROUP in group.error_message
        answer = wire.ask(DeleteGroupsRequest(groups_names=[NO_GROUP, NO_GROUP]), DELETE)
        (deleted,) = answer.results
        assert (deleted.group_id, deleted.error_code) == (NO_GROUP, GROUP_NOT_FOUND)
        answer = wire.ask(messages.offset_delete(NO_GROUP, (target.name, [0])), 0)
        assert (answer.error_code, answer.topics) == (GROUP_NOT_FOUND, [])

    def test_a_group_with_members_is_not_deleted(self, wire: Wire, member: Member) -> None:
        (deleted,) = wire.ask(DeleteGroupsRequest(groups_names=[member.group_id]), DELETE).results
        assert deleted.error_code == NON_EMPTY
        assert member.heartbeat() == NONE

    def test_offsets_of_a_topic_that_is_read_are_not_deleted(
        self, wire: Wire, topic: str, group: str
    ) -> None:
        target = messages.create_topic(wire, topic, partitions=2)
        name = topic.encode()
        subscription = SUBSCRIPTION.replace(b"\0\6events", len(name).to_bytes(2, "big") + name)
        member = Member(wire, group, protocols=(("range", subscription),))
        member.settle()
        assert member.commit(target, 5) == NONE
        answer = wire.ask(messages.offset_delete(group, (topic, [0, 9])), 0)
        found = {p.partition_index: p.error_code for t in answer.topics for p in t.partitions}
        assert answer.error_code == NONE
        assert found == {0: SUBSCRIBED, 9: UNKNOWN_TOPIC_OR_PARTITION}
        assert committed(wire, group, target) == {0: (5, "")}
        assert member.leave() == NONE
        answer = wire.ask(messages.offset_delete(group, (topic, [0, 1])), 0)
        assert codes(answer) == [NONE, NONE]
        assert committed(wire, group, target) == {}

    def test_offsets_of_a_group_whose_topics_are_unknown_are_not_deleted(
        self, wire: Wire, target: Target, group: str
    ) -> None:
        member = Member(wire, group, protocol_type="connect")
        member.settle()
        answer = wire.ask(messages.offset_delete(group, (target.name, [0])), 0)
        assert (answer.error_code, answer.topics) == (NON_EMPTY, [])

    def test_what_a_member_reads_is_shown_while_the_group_is_stable(
        self, connect: Connect, member: Member
    ) -> None:
        wire = connect()

        def shown() -> tuple[str, str, str, list[tuple[str, bytes]]]:
            (group,) = described(wire, member.group_id)
            return (
                group.group_state,
                group.protocol_type,
                group.protocol_data,
                [(m.member_id, m.member_metadata) for m in group.members],
            )

        assert shown() == ("Stable", "consumer", "range", [(member.member_id, SUBSCRIPTION)])
        other = Member(connect(), member.group_id)
        other.begin_join()
        until(lambda: shown()[0] == "PreparingRebalance")
        _, protocol_type, protocol_name, members = shown()
        assert (protocol_type, protocol_name) == ("consumer", "")
        assert {metadata for _, metadata in members} == {b""}
        assert member.leave() == NONE
        assert other.receive_join().error_code == NONE

    def test_a_group_that_is_named_many_times_is_described_once(
        self, wire: Wire, member: Member
    ) -> None:
        """Otherwise a small request makes an answer of gigabytes."""
        groups = described(wire, *[member.group_id] * 50_000)
        assert [group.group_id for group in groups] == [member.group_id]


class TestFloods:
    def test_ten_thousand_knock_and_do_not_come_in(
        self, broker: BrokerProcess, connect: Connect, target: Target, group: str, member: Member
    ) -> None:
        """Kafka gives out ids without end; here they count towards `group_max_size`."""
        wire = connect()
        before_bytes = broker.rss_bytes()
        knock = messages.join(f"{group}-flooded")
        ids = set()
        for number in range(10_000):
            answer = wire.ask(knock, JOIN)
            if number < 1000:
                assert answer.error_code == MEMBER_ID_REQUIRED
                ids.add(answer.member_id)
            else:
                assert (answer.error_code, answer.member_id) == (FULL, "")
            if number % 1000 == 0:
                assert member.heartbeat() == NONE
        assert len(ids) == 1000
        assert member.commit(target) == NONE
        assert broker.rss_bytes() - before_bytes < 64 * MIB
        late = Member(wire, f"{group}-flooded")
        late.member_id = ids.pop()
        late.send_join()
        assert member.heartbeat() == NONE

    def test_knocking_at_many_groups_fills_no_memory(
        self, own_broker: OwnBrokers, topic: str
    ) -> None:
        broker = own_broker(groups_max_bytes=str(4 * MIB), group_initial_rebalance_delay_ms="0")
        with Wire(broker) as wire, Wire(broker) as other:
            member = Member(other, "there-before")
            member.settle()
            told = {wire.ask(messages.join(f"g{n}"), JOIN).error_code for n in range(5000)}
            assert told == {MEMBER_ID_REQUIRED, FULL}
            assert member.heartbeat() == NONE
            assert member.commit(messages.create_topic(wire, topic)) == NONE

    def test_subscriptions_fill_no_memory(self, own_broker: OwnBrokers, topic: str) -> None:
        broker = own_broker(groups_max_bytes=str(16 * MIB), group_initial_rebalance_delay_ms="0")
        with Wire(broker) as wire, Wire(broker) as other:
            target = messages.create_topic(wire, topic)
            member = Member(other, "there-before")
            member.settle()
            told = []
            for number in range(24):
                huge = Member(wire, f"huge-{number}", protocols=(("range", b"x" * MIB),))
                answer = huge.try_join()
                if answer.error_code == MEMBER_ID_REQUIRED:
                    answer = huge.try_join()
                told.append(answer.error_code)
            taken = told.count(NONE)
            assert 12 <= taken <= 16
            assert told == [NONE] * taken + [FULL] * (24 - taken)
            assert member.heartbeat() == NONE
            assert member.commit(target) == NONE
            small = Member(wire, "small")
            assert small.try_join().error_code == MEMBER_ID_REQUIRED

    def test_names_of_protocols_fill_no_memory(self, own_broker: OwnBrokers) -> None:
        broker = own_broker(groups_max_bytes=str(4 * MIB), group_initial_rebalance_delay_ms="0")
        with Wire(broker) as wire, Wire(broker) as other:
            member = Member(other, "there-before")
            member.settle()
            names = [(f"name-{number}", b"") for number in range(20_000)]
            told = [
                Member(wire, f"many-{number}", era=3, protocols=names).try_join().error_code
                for number in range(5)
            ]
            assert FULL in told
            assert told == sorted(told), "one was taken after another had been refused"
            assert member.heartbeat() == NONE

    def test_an_assignment_that_is_too_large_is_refused_and_a_smaller_one_taken(
        self, own_broker: OwnBrokers, topic: str
    ) -> None:
        broker = own_broker(groups_max_bytes=str(4 * MIB), group_initial_rebalance_delay_ms="0")
        with Wire(broker) as wire:
            member = Member(wire, "assigned-much")
            member.join()
            answer = member.sync({member.member_id: b"x" * (5 * MIB)})
            assert (answer.error_code, answer.assignment) == (UNKNOWN_SERVER_ERROR, b"")
            assert member.heartbeat() == NONE
            answer = member.sync({member.member_id: b"x" * MIB})
            assert (answer.error_code, len(answer.assignment)) == (NONE, MIB)

    def test_assignments_for_nobody_are_not_kept(
        self, broker: BrokerProcess, wire: Wire, group: str
    ) -> None:
        member = Member(wire, group)
        member.join()
        crowd = {f"nobody-{number}": b"x" * 300 for number in range(50_000)}
        answer = member.sync(crowd | {member.member_id: ASSIGNMENT})
        assert (answer.error_code, answer.assignment) == (NONE, ASSIGNMENT)
        (shown,) = described(wire, group)
        assert [m.member_id for m in shown.members] == [member.member_id]

    def test_more_members_than_a_group_takes(self, own_broker: OwnBrokers) -> None:
        broker = own_broker(group_max_size="2", group_initial_rebalance_delay_ms="0")
        with Wire(broker) as one, Wire(broker) as two, Wire(broker) as three:
            first, second = Member(one, "small"), Member(two, "small")
            first.settle()
            second.begin_join()
            until(lambda: first.heartbeat() == REBALANCE)
            first.send_join()
            assert [m.receive_join().error_code for m in (first, second)] == [NONE, NONE]
            for version in (3, JOIN):
                assert three_knocks(three, version) == (FULL, "")
            first.sync({first.member_id: ASSIGNMENT})
            assert second.sync().error_code == NONE
            assert second.leave() == NONE
            until(lambda: three_knocks(three, JOIN)[0] == MEMBER_ID_REQUIRED)

    def test_a_member_whose_client_leaves_while_it_waits(
        self, broker: BrokerProcess, connect: Connect, member: Member
    ) -> None:
        with Wire(broker) as left:
            gone = Member(left, member.group_id, session_timeout_ms=6_000)
            gone.begin_join()
            until(lambda: member.heartbeat() == REBALANCE)
        member.send_join()
        assert member.receive_join().error_code == NONE
        assert member.sync({member.member_id: ASSIGNMENT}).error_code == NONE
        # It has a place in the generation, and a session that ends.
        until(lambda: member.heartbeat() == REBALANCE)
        member.settle()
        (shown,) = described(connect(), member.group_id)
        assert [m.member_id for m in shown.members] == [member.member_id]

    def test_a_crowd_whose_clients_leave_while_they_wait(
        self, broker: BrokerProcess, member: Member
    ) -> None:
        for _ in range(100):
            with Wire(broker) as wire:
                gone = Member(wire, member.group_id, session_timeout_ms=6_000)
                gone.begin_join()
        until(lambda: member.heartbeat() == REBALANCE)
        member.send_join()
        assert member.receive_join().error_code == NONE

    def test_requests_behind_a_parked_one_wait_for_it(
        self, connect: Connect, member: Member
    ) -> None:
        """Answers keep the order of the requests, so a heartbeat there comes too late."""
        other = Member(connect(), member.group_id)
        other.begin_join()
        other.wire.send(frame(request_body(ListGroupsRequest(states_filter=[]), 4)))
        assert other.wire.is_silent_for(0.3)
        member.leave()
        assert other.receive_join().error_code == NONE
        assert other.wire.receive()


def three_knocks(wire: Wire, version: int) -> tuple[int, str]:
    answer = wire.ask(messages.join("small"), version)
    return int(answer.error_code), str(answer.member_id)


def test_many_threads_say_everything_at_once(broker: BrokerProcess, group: str) -> None:
    """Ten clients, each with all that a member can say, in no order, about one group."""
    failed: list[BaseException] = []

    def talk(number: int) -> None:
        try:
            with Wire(broker) as wire:
                for turn in range(30):
                    member = Member(wire, group, rebalance_timeout_ms=20, era=turn % 9 + 1)
                    member.take_id()
                    member.try_join()
                    member.sync({member.member_id: ASSIGNMENT})
                    member.heartbeat()
                    if (turn + number) % 3:
                        member.leave()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=talk, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failed
    assert not any(thread.is_alive() for thread in threads)
    with Wire(broker) as wire:
        (shown,) = described(wire, group)
        assert shown.error_code in (NONE, GROUP_NOT_FOUND)
