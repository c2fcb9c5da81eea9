"""Members in such numbers, or of such sizes, that they would fill the memory of the broker.

Each gets Kafka's error, the group works on for the others, and memory stays bounded. The error
codes are those of Kafka 4.3, against which these tests were run. Where this broker is stricter, to
bound its memory, the test says so.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kafka.protocol.admin import ListGroupsRequest

from tests.conftest import OwnBrokers, RunBroker
from tests.support import messages
from tests.support.broker_process import BrokerProcess
from tests.support.group_answers import (
    FULL,
    GROUP_NOT_FOUND,
    JOIN,
    MEMBER_ID_REQUIRED,
    NONE,
    REBALANCE,
    UNKNOWN_SERVER_ERROR,
    Connect,
    described,
)
from tests.support.member import Member
from tests.support.messages import ASSIGNMENT, Target
from tests.support.waiting import until
from tests.support.wire import Wire, frame, request_body

MIB = 1 << 20
PATIENT_MS = 1_800_000
"""The longest that a broker allows: a member is not to leave while a flood takes its time."""


KNOCKS = 2000
TIGHT_BYTES = 4 * MIB


@pytest.fixture(scope="module")
def tight(run_broker: RunBroker) -> Iterator[BrokerProcess]:
    """A broker with little room for groups. Whoever takes much of it gives it back."""
    with run_broker(
        "tight",
        groups_max_bytes=str(TIGHT_BYTES),
        group_max_size="2",
        group_min_session_timeout_ms="1000",
    ) as process:
        yield process


class TestFloods:
    def test_a_group_gives_no_more_member_ids_than_it_takes_members(
        self, broker: BrokerProcess, connect: Connect, target: Target, group: str, member: Member
    ) -> None:
        """Kafka gives any number of ids; here they count towards `group_max_size`."""
        wire = connect()
        before_bytes = broker.rss_bytes()
        knock = messages.join(f"{group}-flooded", session_timeout_ms=PATIENT_MS)
        ids = set()
        for number in range(KNOCKS):
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

    @pytest.mark.test_all
    def test_member_ids_of_many_groups_count_towards_the_size_of_all_groups(
        self, own_broker: OwnBrokers, topic: str
    ) -> None:
        broker = own_broker(groups_max_bytes=str(TIGHT_BYTES), group_initial_rebalance_delay_ms="0")
        with Wire(broker) as wire, Wire(broker) as other:
            member = patient(other, "there-before")
            member.settle()
            knocks = (messages.join(f"g{n}", session_timeout_ms=PATIENT_MS) for n in range(5000))
            told = {wire.ask(knock, JOIN).error_code for knock in knocks}
            assert told == {MEMBER_ID_REQUIRED, FULL}
            assert member.heartbeat() == NONE
            assert member.commit(messages.create_topic(wire, topic)) == NONE

    def test_new_members_are_refused_when_subscriptions_fill_the_room_for_groups(
        self, tight: BrokerProcess, topic: str
    ) -> None:
        with Wire(tight) as wire, Wire(tight) as other:
            target = messages.create_topic(wire, topic)
            member = patient(other, f"{topic}-there-before")
            member.settle()
            told, inside = [], []
            for number in range(24):
                large = (("range", b"x" * (TIGHT_BYTES // 16)),)
                huge = patient(wire, f"{topic}-{number}", protocols=large)
                answer = huge.try_join()
                if answer.error_code == MEMBER_ID_REQUIRED:
                    answer = huge.try_join()
                told.append(answer.error_code)
                if answer.error_code == NONE:
                    inside.append(huge)
            taken = len(inside)
            assert 12 <= taken <= 16
            assert told == [NONE] * taken + [FULL] * (24 - taken)
            assert member.heartbeat() == NONE
            assert member.commit(target) == NONE
            small = Member(wire, f"{topic}-small")
            assert small.try_join().error_code == MEMBER_ID_REQUIRED
            assert [one.leave() for one in inside] == [NONE] * taken

    def test_new_members_are_refused_when_names_of_protocols_fill_the_room_for_groups(
        self, tight: BrokerProcess, topic: str
    ) -> None:
        with Wire(tight) as wire, Wire(tight) as other:
            member = patient(other, f"{topic}-there-before")
            member.settle()
            names = [(f"name-{number}", b"") for number in range(20_000)]
            many = [patient(wire, f"{topic}-{n}", era=3, protocols=names) for n in range(5)]
            told = [one.try_join().error_code for one in many]
            assert FULL in told
            assert told == sorted(told), "one was taken after another had been refused"
            assert member.heartbeat() == NONE
            inside = [one for one, code in zip(many, told, strict=True) if code == NONE]
            assert [one.leave() for one in inside] == [NONE] * len(inside)

    def test_an_assignment_that_is_too_large_is_refused_and_a_smaller_one_taken(
        self, tight: BrokerProcess, group: str
    ) -> None:
        with Wire(tight) as wire:
            member = Member(wire, group)
            member.join()
            answer = member.sync({member.member_id: b"x" * (TIGHT_BYTES + MIB)})
            assert (answer.error_code, answer.assignment) == (UNKNOWN_SERVER_ERROR, b"")
            assert member.heartbeat() == NONE
            answer = member.sync({member.member_id: b"x" * MIB})
            assert (answer.error_code, len(answer.assignment)) == (NONE, MIB)
            assert member.leave() == NONE

    def test_assignments_for_members_that_do_not_exist_are_not_kept(
        self, broker: BrokerProcess, wire: Wire, group: str
    ) -> None:
        member = Member(wire, group)
        member.join()
        crowd = {f"nobody-{number}": b"x" * 300 for number in range(50_000)}
        answer = member.sync(crowd | {member.member_id: ASSIGNMENT})
        assert (answer.error_code, answer.assignment) == (NONE, ASSIGNMENT)
        (shown,) = described(wire, group)
        assert [m.member_id for m in shown.members] == [member.member_id]

    def test_a_full_group_refuses_members_until_one_leaves(
        self, tight: BrokerProcess, group: str
    ) -> None:
        with Wire(tight) as one, Wire(tight) as two, Wire(tight) as three:
            first, second = Member(one, group), Member(two, group)
            first.settle()
            second.begin_join()
            until(lambda: first.heartbeat() == REBALANCE)
            first.send_join()
            assert [m.receive_join().error_code for m in (first, second)] == [NONE, NONE]
            for version in (3, JOIN):
                assert knocked(three, group, version) == (FULL, "")
            first.sync({first.member_id: ASSIGNMENT})
            assert second.sync().error_code == NONE
            assert second.leave() == NONE
            until(lambda: knocked(three, group, JOIN)[0] == MEMBER_ID_REQUIRED)

    def test_a_member_whose_client_leaves_while_it_waits_is_removed_when_its_session_ends(
        self, tight: BrokerProcess, group: str
    ) -> None:
        with Wire(tight) as wire, Wire(tight) as other:
            member = Member(wire, group)
            member.settle()
            with Wire(tight) as left:
                gone = Member(left, group, session_timeout_ms=1000)
                gone.begin_join()
                until(lambda: member.heartbeat() == REBALANCE)
            member.send_join()
            assert member.receive_join().error_code == NONE
            assert member.sync({member.member_id: ASSIGNMENT}).error_code == NONE
            # It has a place in the generation, and a session that ends.
            until(lambda: member.heartbeat() == REBALANCE)
            member.settle()
            (shown,) = described(other, group)
            assert [m.member_id for m in shown.members] == [member.member_id]

    def test_clients_that_leave_while_they_join_do_not_hold_up_the_members(
        self, broker: BrokerProcess, member: Member
    ) -> None:
        for _ in range(100):
            with Wire(broker) as wire:
                gone = Member(wire, member.group_id, session_timeout_ms=6_000)
                gone.begin_join()
        until(lambda: member.heartbeat() == REBALANCE)
        member.send_join()
        assert member.receive_join().error_code == NONE

    def test_a_request_sent_after_a_join_is_answered_after_it(
        self, connect: Connect, member: Member
    ) -> None:
        """Answers come in the order of the requests, so a request behind waits."""
        other = Member(connect(), member.group_id)
        other.begin_join()
        other.wire.send(frame(request_body(ListGroupsRequest(states_filter=[]), 4)))
        assert other.wire.is_silent_for(0.3)
        member.leave()
        assert other.receive_join().error_code == NONE
        assert other.wire.receive()


def patient(wire: Wire, group_id: str, **settings: Any) -> Member:
    return Member(
        wire,
        group_id,
        session_timeout_ms=PATIENT_MS,
        rebalance_timeout_ms=PATIENT_MS,
        **settings,
    )


def knocked(wire: Wire, group: str, version: int) -> tuple[int, str]:
    answer = wire.ask(messages.join(group), version)
    return int(answer.error_code), str(answer.member_id)


def test_members_that_send_every_request_in_any_order_leave_a_sound_group(
    broker: BrokerProcess, group: str
) -> None:
    """Ten clients, each of which sends every request of a member, in no order, about one group."""
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
