"""Who may commit offsets, in every version of OffsetCommit and TxnOffsetCommit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest
from kafka.protocol.producer import AddOffsetsToTxnRequest

from brokerhouse.broker.api import APIS
from brokerhouse.coordinator.messages import OFFSETS_TOPIC, OFFSETS_TOPIC_ID
from brokerhouse.coordinator.transaction_states import Producer
from brokerhouse.protocol import errors
from brokerhouse.protocol.versions import ApiKey
from tests.support import messages
from tests.support.broker_process import BrokerProcess
from tests.support.commit_cases import ABSENT, CASES, DEAD, STATIC, CommitCase, identities
from tests.support.member import Member
from tests.support.messages import Target
from tests.support.waiting import until
from tests.support.wire import Listening, Wire

pytestmark = pytest.mark.one_broker("asks one connection for every partition and group")

ADDED_BY_BROKER = 5
"""The version of TxnOffsetCommit from which the broker makes the group part of the transaction."""
IN_STATES = [case for case in CASES if case.state != DEAD]
NEVER_MS = 1_800_000


def versions(key: ApiKey) -> range:
    return range(APIS[key].min_version, APIS[key].max_version + 1)


def pair(address: Listening, group_id: str, stack: ExitStack) -> tuple[Member, Member]:
    """A dynamic and a static member, which begin the second generation of their group."""
    dynamic, static = (
        Member(
            stack.enter_context(Wire(address)),
            group_id,
            instance_id=instance,
            session_timeout_ms=NEVER_MS,
            rebalance_timeout_ms=NEVER_MS,
        )
        for instance in (None, STATIC)
    )
    dynamic.settle()
    static.begin_join()
    until(lambda: dynamic.heartbeat() == errors.RebalanceInProgress.code, "the rebalance begins")
    dynamic.send_join()
    dynamic.receive_join()
    static.receive_join()
    return dynamic, static


def synced(members: tuple[Member, Member]) -> tuple[Member, Member]:
    dynamic, static = members
    static.send_sync()
    assert dynamic.leads
    assert dynamic.sync({one.member_id: messages.ASSIGNMENT for one in members}).error_code == 0
    assert static.receive_sync().error_code == 0
    return members


class Groups:
    """A group in each state, and a producer of a transaction that stays open."""

    def __init__(self, address: Listening, name: str, stack: ExitStack) -> None:
        self.wire = stack.enter_context(Wire(address))
        self.target = messages.create_topic(self.wire, name)
        self._name = name
        self._transactional_id = f"{name} transaction"
        request = messages.init_producer(self._transactional_id)
        initialised = self._repeated(request, 4, lambda answer: answer.error_code)
        self.producer = Producer(initialised.producer_id, initialised.producer_epoch)
        self._members = {ABSENT: pair(address, f"{name} other", stack)}
        self._members["CompletingRebalance"] = pair(address, f"{name} CompletingRebalance", stack)
        for state in ("Empty", "PreparingRebalance", "Stable"):
            self._members[state] = synced(pair(address, f"{name} {state}", stack))
        third = Member(
            stack.enter_context(Wire(address)),
            f"{name} PreparingRebalance",
            session_timeout_ms=NEVER_MS,
            rebalance_timeout_ms=NEVER_MS,
        )
        third.begin_join()
        preparing = self._members["PreparingRebalance"][0]
        until(lambda: preparing.heartbeat() == errors.RebalanceInProgress.code, "it begins")
        for member in self._members["Empty"]:
            assert member.leave() == 0
        self._absent = 0

    def commits(self, case: CommitCase) -> Iterator[tuple[str, int]]:
        """What was sent and the error code, for every way to be the sender, in every version."""
        dynamic, static = self._members[case.state]
        current = dynamic.generation
        generation = {"none": -1, "current": current, "other": current - 1}[case.generation]
        for member_id, instance in identities(case.sender, dynamic.member_id, static.member_id):
            for version in versions(ApiKey[case.request]):
                asked = {"member_id": member_id, "generation": generation, "instance_id": instance}
                if case.request == "OffsetCommit":
                    if instance is not None and version < 7:
                        continue
                    code = self.commit(self._group_id(case), version, asked)
                else:
                    if version < 3 and (member_id or instance is not None or generation >= 0):
                        continue
                    code = self._commit_in_transaction(self._group_id(case), version, asked)
                yield f"version {version}, {asked}", code

    def _group_id(self, case: CommitCase) -> str:
        if case.state != ABSENT:
            return f"{self._name} {case.state}"
        self._absent += 1
        return f"{self._name} absent {self._absent}"

    def commit(self, group_id: str, version: int, asked: Mapping[str, Any]) -> int:
        request = messages.commit(group_id, (self.target, {0: 7}), **asked)
        return self._code(self.wire.ask(request, version))

    def _commit_in_transaction(self, group_id: str, version: int, asked: Mapping[str, Any]) -> int:
        if version < ADDED_BY_BROKER:
            adding = AddOffsetsToTxnRequest(
                transactional_id=self._transactional_id,
                producer_id=self.producer.producer_id,
                producer_epoch=self.producer.epoch,
                group_id=group_id,
            )
            self._repeated(adding, 3, lambda answer: answer.error_code)
        request = messages.transactional_commit(
            self._transactional_id, self.producer, group_id, self.target.name, {0: 8}, **asked
        )
        return self._code(self.wire.ask(request, version))

    def _code(self, answer: Any) -> int:
        (topic,) = answer.topics
        (partition,) = topic.partitions
        return int(partition.error_code)

    def _repeated(self, request: Any, version: int, code_of: Any) -> Any:
        answers: list[Any] = []

        def succeeds() -> bool:
            answers.append(self.wire.ask(request, version))
            return int(code_of(answers[-1])) == 0

        until(succeeds, "it is accepted")
        return answers[-1]


@pytest.fixture(scope="module")
def groups(broker: BrokerProcess) -> Iterator[Groups]:
    """On the shared broker, whose groups do not wait for more members."""
    with ExitStack() as stack:
        yield Groups(broker, "commits", stack)


@pytest.mark.parametrize("case", IN_STATES, ids=str)
def test_a_commit_is_answered_as_by_kafka(groups: Groups, case: CommitCase) -> None:
    """Also GROUP_ID_NOT_FOUND by its version: `OffsetMetadataManager.validateOffsetCommit`."""
    answered = dict(groups.commits(case))
    assert answered
    for sent, code in answered.items():
        version = int(sent.split(",")[0].removeprefix("version "))
        expected = 0 if case.error is None else case.error.code
        if case.error is errors.GroupIdNotFound and (
            case.request == "TxnOffsetCommit" or version < 9
        ):
            expected = errors.IllegalGeneration.code
        assert code == expected, sent


@pytest.mark.parametrize("version", [9, 10])
@pytest.mark.parametrize(
    ("member_id", "epoch"), [(None, -1), ("", -1), ("stranger", -1), ("stranger", 99), (None, 99)]
)
def test_offsets_are_fetched_whichever_member_the_request_names(
    groups: Groups, version: int, member_id: str | None, epoch: int
) -> None:
    """`ClassicGroup.validateOffsetFetch` does not look at the member."""
    group_id = f"fetched {version} {member_id} {epoch}"
    assert groups.commit(group_id, 9, {"generation": -1}) == 0
    request = messages.offset_fetch(version, {group_id: [(groups.target, [0])]})
    (asked,) = request.groups
    asked.member_id, asked.member_epoch = member_id, epoch
    (answer,) = groups.wire.ask(request, version).groups
    (topic,) = answer.topics
    (partition,) = topic.partitions
    assert (answer.error_code, partition.error_code, partition.committed_offset) == (0, 0, 7)


def test_offsets_of_the_offsets_topic_are_committed_and_deleted_like_others(
    groups: Groups,
) -> None:
    target = Target(OFFSETS_TOPIC, OFFSETS_TOPIC_ID)
    wire = groups.wire

    def fetched() -> int:
        answer = wire.ask(messages.offset_fetch(9, {"of offsets": [(target, [0])]}), 9)
        (topic,) = answer.groups[0].topics
        (partition,) = topic.partitions
        return int(partition.committed_offset)

    answer = wire.ask(messages.commit("of offsets", (target, {0: 7})), 9)
    assert (answer.topics[0].partitions[0].error_code, fetched()) == (0, 7)
    deleted = wire.ask(messages.offset_delete("of offsets", (OFFSETS_TOPIC, [0])), 0)
    assert deleted.error_code == 0
    assert [p.error_code for t in deleted.topics for p in t.partitions] == [0]
    assert fetched() == -1
