"""What administrators can ask about groups.

Each gets Kafka's error, the group works on for the others, and memory stays bounded. The error
codes are those of Kafka 4.3, against which these tests were run. Where this broker is stricter, to
bound its memory, the test says so.
"""

from __future__ import annotations

from kafka.protocol.admin import DeleteGroupsRequest

from tests.support import messages
from tests.support.group_answers import (
    DELETE,
    GROUP_NOT_FOUND,
    NON_EMPTY,
    NONE,
    SUBSCRIBED,
    UNKNOWN_TOPIC_OR_PARTITION,
    Connect,
    codes,
    committed,
    described,
)
from tests.support.member import Member
from tests.support.messages import NO_GROUP, SUBSCRIPTION, Target
from tests.support.waiting import until
from tests.support.wire import Wire


class TestAdministrators:
    def test_a_group_that_does_not_exist_is_dead_and_cannot_be_deleted(
        self, wire: Wire, target: Target
    ) -> None:
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

    def test_offsets_of_a_topic_that_a_member_reads_are_not_deleted(
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

    def test_subscriptions_are_described_only_while_the_group_is_stable(
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
