"""Members of a group and administrators of groups, in every version of their requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kafka.protocol.admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest

from brokerhouse.broker.api import APIS
from brokerhouse.protocol import errors
from brokerhouse.protocol.versions import ApiKey
from tests.support import messages
from tests.support.broker_process import BrokerProcess
from tests.support.member import Member
from tests.support.messages import ASSIGNMENT, SUBSCRIPTION, Target
from tests.support.samples import GROUP_OPERATIONS, NOT_ASKED
from tests.support.wire import Wire

pytestmark = pytest.mark.one_broker("asks one connection for every partition and group")

UNKNOWN_MEMBER = errors.UnknownMemberId.code


def version_of(key: ApiKey, era: int) -> int:
    return min(max(era, APIS[key].min_version), APIS[key].max_version)


class TestGroups:
    """`era`: the version of every request, or the nearest that its API has."""

    @pytest.fixture
    def wires(self, broker: BrokerProcess) -> Iterator[tuple[Wire, Wire, Wire]]:
        with Wire(broker) as one, Wire(broker) as two, Wire(broker) as three:
            yield one, two, three

    @pytest.mark.parametrize("era", range(11))
    def test_two_members_join_commit_and_leave_in_every_version(
        self, wires: tuple[Wire, Wire, Wire], topic: str, era: int
    ) -> None:
        tool = wires[2]
        target = messages.create_topic(tool, topic)
        names = ("one", "two") if era >= 5 else (None, None)
        first, second = (
            Member(wire, topic, era=era, instance_id=name)
            for wire, name in zip(wires[:2], names, strict=True)
        )
        first.settle()
        assert (first.generation, first.heartbeat(), first.commit(target, 3)) == (1, 0, 0)
        second.begin_join()
        while first.heartbeat() == 0:
            pass
        assert first.heartbeat() == errors.RebalanceInProgress.code
        first.send_join()
        joined = first.receive_join()
        assert joined.generation_id == second.receive_join().generation_id == 2
        assert (first.leads, second.leads) == (True, False)
        assert {
            (member.member_id, member.group_instance_id if era >= 5 else None, member.metadata)
            for member in joined.members
        } == {
            (first.member_id, names[0], SUBSCRIPTION),
            (second.member_id, names[1], SUBSCRIPTION),
        }
        second.send_sync()
        answer = first.sync({first.member_id: ASSIGNMENT, second.member_id: b"the rest"})
        assert (answer.error_code, answer.assignment) == (0, ASSIGNMENT)
        answer = second.receive_sync()
        assert (answer.error_code, answer.assignment) == (0, b"the rest")
        if era >= 5:
            assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
        self.is_described(tool, era, first, second)
        assert self.listed(tool, era)[topic] == ("consumer", "Stable" if era >= 4 else "")
        assert (second.commit(target, 7), self.fetched(tool, era, topic, target)) == (0, 7)
        assert self.deleted(tool, era, topic) == errors.NonEmptyGroup.code
        assert (first.leave(), first.heartbeat(), second.leave()) == (0, UNKNOWN_MEMBER, 0)
        assert self.listed(tool, era)[topic] == ("consumer", "Empty" if era >= 4 else "")
        assert self.deleted(tool, era, topic) == 0
        assert topic not in self.listed(tool, era)
        assert self.fetched(tool, era, topic, target) == -1

    def is_described(self, wire: Wire, era: int, *members: Member) -> None:
        version = version_of(ApiKey.DescribeGroups, era)
        group_id = members[0].group_id
        for asked, operations in ((True, GROUP_OPERATIONS), (False, NOT_ASKED)):
            request = DescribeGroupsRequest(groups=[group_id], include_authorized_operations=asked)
            (group,) = wire.ask(request, version).groups
            assert (group.error_code, group.group_id, group.group_state) == (0, group_id, "Stable")
            assert (group.protocol_type, group.protocol_data) == ("consumer", "range")
            if version >= 3:
                assert group.authorized_operations == operations
        assert {
            (
                shown.member_id,
                shown.group_instance_id if version >= 4 else None,
                shown.client_id,
                shown.client_host,
                shown.member_metadata,
                shown.member_assignment,
            )
            for shown in group.members
        } == {
            (
                member.member_id,
                member.instance_id if version >= 4 else None,
                "wire",
                "/127.0.0.1",
                SUBSCRIPTION,
                assignment,
            )
            for member, assignment in zip(members, (ASSIGNMENT, b"the rest"), strict=True)
        }

    def listed(self, wire: Wire, era: int) -> dict[str, tuple[str, str]]:
        request = ListGroupsRequest(states_filter=[], types_filter=[])
        answer = wire.ask(request, version_of(ApiKey.ListGroups, era))
        assert answer.error_code == 0
        return {group.group_id: (group.protocol_type, group.group_state) for group in answer.groups}

    def fetched(self, wire: Wire, era: int, group_id: str, target: Target) -> int:
        version = version_of(ApiKey.OffsetFetch, era)
        answer = wire.ask(messages.offset_fetch(version, {group_id: [(target, [0])]}), version)
        (topic,) = answer.groups[0].topics if version >= 8 else answer.topics
        (partition,) = topic.partitions
        assert partition.error_code == 0
        return int(partition.committed_offset)

    def deleted(self, wire: Wire, era: int, group_id: str) -> int:
        request = DeleteGroupsRequest(groups_names=[group_id])
        (result,) = wire.ask(request, version_of(ApiKey.DeleteGroups, era)).results
        assert result.group_id == group_id
        return int(result.error_code)

    @pytest.mark.parametrize("version", range(10))
    def test_a_member_must_join_with_a_given_id_from_version_4_on(
        self, wires: tuple[Wire, Wire, Wire], topic: str, version: int
    ) -> None:
        member = Member(wires[0], topic, era=version)
        answer = member.try_join()
        if version < 4:
            assert (answer.error_code, answer.leader) == (0, answer.member_id)
            return
        assert answer.error_code == errors.MemberIdRequired.code
        assert answer.member_id.startswith("wire-")
        assert (answer.generation_id, answer.leader, answer.members) == (-1, "", [])
        assert answer.protocol_name == ("" if version < 7 else None)
        assert member.try_join().error_code == 0

    @pytest.mark.parametrize("version", range(5, 10))
    def test_a_static_leader_that_comes_back_computes_no_assignment(
        self, wires: tuple[Wire, Wire, Wire], topic: str, version: int
    ) -> None:
        before, after = (Member(wire, topic, era=version, instance_id="only") for wire in wires[:2])
        before.settle()
        answer = after.join()
        assert answer.generation_id == before.generation
        assert answer.member_id.startswith("only-")
        assert answer.member_id != before.member_id
        if version >= 9:
            assert (answer.leader, answer.skip_assignment) == (answer.member_id, True)
            assert [member.member_id for member in answer.members] == [answer.member_id]
        else:
            assert (answer.leader, answer.members) == (before.member_id, [])
        assert after.sync().assignment == ASSIGNMENT
        assert (after.heartbeat(), before.heartbeat()) == (0, errors.FencedInstanceId.code)

    @pytest.mark.parametrize("version", [4, 5])
    def test_groups_are_selected_by_their_state(
        self, wires: tuple[Wire, Wire, Wire], topic: str, version: int
    ) -> None:
        wire = wires[0]
        Member(wire, f"{topic}-stable").settle()
        Member(wire, f"{topic}-completing").join()
        target = messages.create_topic(wire, topic)
        wire.ask(messages.commit(f"{topic}-empty", (target, {0: 1})), 9)

        def found(*states: str) -> set[str]:
            request = ListGroupsRequest(states_filter=list(states), types_filter=[])
            names = {group.group_id for group in wire.ask(request, version).groups}
            return {name.removeprefix(f"{topic}-") for name in names if name.startswith(topic)}

        assert found() == {"stable", "completing", "empty"}
        assert found("Stable") == {"stable"}
        assert found("STABLE", " empty ") == {"stable", "empty"}
        assert found("completingrebalance", "Dead") == {"completing"}
        assert found("Nonsense") == found("") == set()

    def test_groups_are_selected_by_their_type(
        self, wires: tuple[Wire, Wire, Wire], topic: str
    ) -> None:
        wire = wires[0]
        Member(wire, topic).settle()

        def found(*types: str) -> bool:
            request = ListGroupsRequest(states_filter=[], types_filter=list(types))
            return topic in {group.group_id for group in wire.ask(request, 5).groups}

        assert found()
        assert found("classic")
        assert found("Consumer", "CLASSIC")
        assert not found("consumer")
        assert not found("share", "nonsense", "")
