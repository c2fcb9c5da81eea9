"""Offsets that broken members and clumsy tools commit and fetch.

Each gets Kafka's error, the group works on for the others, and memory stays bounded. The error
codes are those of Kafka 4.3, against which these tests were run. Where this broker is stricter, to
bound its memory, the test says so.
"""

from __future__ import annotations

import time
from functools import partial
from uuid import UUID

import pytest
from kafka.protocol.admin import DeleteGroupsRequest
from kafka.protocol.api_message import ApiMessage

from tests.support import messages
from tests.support.broker_process import BrokerProcess
from tests.support.group_answers import (
    COMMIT,
    DELETE,
    FETCH,
    GROUP_NOT_FOUND,
    ILLEGAL_GENERATION,
    JOIN,
    MEMBER_ID_REQUIRED,
    METADATA_TOO_LARGE,
    NONE,
    REBALANCE,
    UNKNOWN_MEMBER,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    Connect,
    codes,
    committed,
    state,
)
from tests.support.member import Member
from tests.support.messages import ASSIGNMENT, NOBODY, Target
from tests.support.waiting import until
from tests.support.wire import Wire


class TestCommits:
    def test_partitions_that_do_not_exist_do_not_stop_the_commit_of_others(
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

    def test_a_commit_for_a_partition_that_does_not_exist_does_not_create_a_group(
        self, wire: Wire, target: Target, group: str
    ) -> None:
        answer = wire.ask(messages.commit(group, (target, {9: 1})), COMMIT)
        assert codes(answer) == [UNKNOWN_TOPIC_OR_PARTITION]
        assert state(wire, group) == "Dead"

    @pytest.mark.parametrize("unknown", [UUID(int=0), UUID(int=7)], ids=["zero", "unknown"])
    def test_an_unknown_topic_id_does_not_stop_the_commit_of_others(
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

    def test_metadata_that_is_too_large_does_not_stop_the_commit_of_others(
        self, wire: Wire, target: Target, group: str
    ) -> None:
        commit = messages.commit(group, (target, {0: 1, 1: 2}))
        commit.topics[0].partitions[0].committed_metadata = "x" * 4097
        assert codes(wire.ask(commit, COMMIT)) == [METADATA_TOO_LARGE, NONE]
        assert committed(wire, group, target) == {1: (2, "")}

    def test_null_metadata_is_stored_as_empty(self, wire: Wire, target: Target, group: str) -> None:
        commit = messages.commit(group, (target, {0: 1}), metadata=None)
        assert codes(wire.ask(commit, COMMIT)) == [NONE]
        assert committed(wire, group, target) == {0: (1, "")}

    def test_the_last_of_two_offsets_for_a_partition_in_one_commit_is_kept(
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
    def test_a_commit_with_a_retention_that_has_ended_is_accepted(
        self, wire: Wire, target: Target, group: str, retention_ms: int
    ) -> None:
        commit = messages.commit(group, (target, {0: 3}), retention_ms=retention_ms)
        assert codes(wire.ask(commit, 4)) == [NONE]

    @pytest.mark.parametrize("version", range(2, 11))
    def test_a_commit_with_a_generation_of_a_group_that_does_not_exist_is_refused(
        self, wire: Wire, target: Target, group: str, version: int
    ) -> None:
        commit = messages.commit(group, (target, {0: 1}), member_id=NOBODY, generation=0)
        code = GROUP_NOT_FOUND if version >= 9 else ILLEGAL_GENERATION
        assert codes(wire.ask(commit, version)) == [code]
        assert state(wire, group) == "Dead"

    def test_an_error_of_the_group_is_the_error_of_every_partition_that_exists(
        self, wire: Wire, target: Target, member: Member
    ) -> None:
        commit = messages.commit(
            member.group_id, (target, {0: 1, 1: 2, 9: 3}), member_id=NOBODY, generation=1
        )
        commit.topics[0].partitions[0].committed_metadata = "x" * 5000
        answer = wire.ask(commit, COMMIT)
        found = {p.partition_index: p.error_code for t in answer.topics for p in t.partitions}
        assert found == {0: UNKNOWN_MEMBER, 1: UNKNOWN_MEMBER, 9: UNKNOWN_TOPIC_OR_PARTITION}

    def test_commits_with_other_generations_are_refused(
        self, target: Target, member: Member
    ) -> None:
        assert member.commit(target) == NONE
        for generation in (member.generation + 1, member.generation - 1, 2**31 - 1):
            assert member.commit(target, generation=generation) == ILLEGAL_GENERATION
        assert member.commit(target) == NONE

    def test_only_members_commit_while_the_group_has_some(
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

    def test_a_member_commits_nothing_before_it_has_an_assignment(
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
    """An id as the client's decoder returns it."""
    return topic_id if topic_id.int else None


class TestFetches:
    def test_fetching_offsets_that_were_not_committed_is_no_error(
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

    def test_fetching_offsets_of_an_unknown_topic_id_is_an_error_of_its_partitions(
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
    def test_fetching_offsets_without_topics_returns_all(
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
    def test_fetching_offsets_of_a_classic_group_does_not_check_the_member(
        self, wire: Wire, target: Target, member: Member, version: int
    ) -> None:
        assert member.commit(target, 5) == NONE
        fetch = messages.offset_fetch(version, {member.group_id: [(target, [0])]})
        fetch.groups[0].member_id = NOBODY
        fetch.groups[0].member_epoch = 77
        (answer,) = wire.ask(fetch, version).groups
        assert answer.error_code == NONE
        assert answer.topics[0].partitions[0].committed_offset == 5

    def test_a_group_or_partition_that_a_fetch_names_many_times_is_answered_once(
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


def leave_within(broker: BrokerProcess, request: ApiMessage, version: int, after_s: float) -> None:
    """Send a request, and disconnect before its answer."""
    with Wire(broker) as leaving:
        leaving.send_request(request, version)
        time.sleep(after_s)
        leaving.reset()


class TestClientsThatLeave:
    """Each disconnects at many moments: a request takes a few milliseconds."""

    MOMENTS_S = tuple(number / 5000 for number in range(30))

    def test_clients_that_leave_while_they_commit_leave_the_same_offsets_in_sql_and_kafka(
        self, broker: BrokerProcess, wire: Wire, target: Target, group: str
    ) -> None:
        """An offset that is stored is also the one that is fetched."""
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

    def test_clients_that_leave_while_they_delete_a_group_leave_one_that_takes_members(
        self, broker: BrokerProcess, wire: Wire, target: Target, group: str
    ) -> None:
        """The group exists or not, and accepts members."""
        for number, after_s in enumerate(self.MOMENTS_S):
            group_id = f"{group}-{number}"
            assert codes(wire.ask(messages.commit(group_id, (target, {0: 1})), COMMIT)) == [NONE]
            leave_within(broker, DeleteGroupsRequest(groups_names=[group_id]), DELETE, after_s)
        for number in range(len(self.MOMENTS_S)):
            until(partial(self.takes_members, wire, f"{group}-{number}"))

    def takes_members(self, wire: Wire, group_id: str) -> bool:
        return bool(wire.ask(messages.join(group_id), JOIN).error_code == MEMBER_ID_REQUIRED)

    def test_clients_that_leave_while_they_delete_offsets_leave_the_same_in_sql_and_kafka(
        self, broker: BrokerProcess, wire: Wire, target: Target, group: str
    ) -> None:
        """SQL shows the offsets that are fetched."""
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
