"""Handlers of the group APIs over a coordinator that records its calls.

How each version of a request is passed on, and cases that no client can cause.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock
from uuid import UUID

import pytest
from kafka.protocol.admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest

from brokerhouse.broker.api import APIS
from brokerhouse.broker.api.context import RequestContext
from brokerhouse.broker.broker import Broker
from brokerhouse.broker.memory import ResponseMemory
from brokerhouse.broker.settings.config import Settings
from brokerhouse.coordinator.group_states import GroupState
from brokerhouse.coordinator.messages import (
    Client,
    CommittedOffset,
    Committer,
    GroupRecord,
    JoinAnswer,
    JoinedMember,
    JoinRequest,
    LeavingMember,
    MemberIdGiven,
    MemberRecord,
    OffsetCommit,
    SyncAnswer,
    SyncRequest,
    TopicPartition,
)
from brokerhouse.coordinator.transaction_states import Producer
from brokerhouse.protocol import errors
from brokerhouse.protocol._request_head import RequestHeader
from brokerhouse.protocol.codec import decode_request, encode_response
from brokerhouse.protocol.errors import KafkaError
from brokerhouse.protocol.versions import ApiKey
from tests.support import messages
from tests.support.messages import Target
from tests.support.wire import decode, request_body

TOPIC_ID, OLD_ID = UUID(int=5), UUID(int=4)
TARGET = Target("events", TOPIC_ID)
LOAD_IN_PROGRESS = errors.CoordinatorLoadInProgress.code


@dataclass
class Coordinator:
    """Answers as a test tells it beforehand, and records what it was asked."""

    records_of: dict[str, GroupRecord] = field(default_factory=dict)
    committed: dict[str, dict[TopicPartition, CommittedOffset]] = field(default_factory=dict)
    refusal: KafkaError | None = None
    answer: Any = None
    asked: list[tuple[Any, ...]] = field(default_factory=list)

    def coordinator_of(self, _group_id: str) -> Coordinator:
        return self

    async def read_anew(self, _group_ids: Collection[str]) -> None:
        """All groups are here."""

    def record(self, group_id: str) -> GroupRecord | None:
        return self.records_of.get(group_id)

    def records(self) -> list[GroupRecord]:
        return [*self.records_of.values()]

    @property
    def offsets(self) -> Any:
        return SimpleNamespace(get=lambda group_id: self.committed.get(group_id, {}))

    @property
    def pending(self) -> Any:
        return SimpleNamespace(unstable=lambda group_id: ())

    def _asked(self, *what: Any) -> Any:
        self.asked.append(what)
        if self.refusal is not None:
            raise self.refusal
        return self.answer

    async def join(self, group_id: str, request: JoinRequest) -> JoinAnswer:
        return cast(JoinAnswer, self._asked(group_id, request))

    async def sync(self, group_id: str, request: SyncRequest) -> SyncAnswer:
        return cast(SyncAnswer, self._asked(group_id, request))

    async def heartbeat(
        self, group_id: str, member_id: str, group_instance_id: str | None, generation: int
    ) -> None:
        self._asked(group_id, member_id, group_instance_id, generation)

    async def leave(
        self, group_id: str, members: Sequence[LeavingMember]
    ) -> list[KafkaError | None]:
        return cast(list[KafkaError | None], self._asked(group_id, list(members)))

    async def delete_group(self, group_id: str) -> None:
        self._asked(group_id)

    async def commit(
        self,
        group_id: str,
        committer: Committer,
        commits: Sequence[OffsetCommit],
        *,
        producer: Producer | None = None,
    ) -> None:
        self._asked(group_id, committer, list(commits), *([] if producer is None else [producer]))

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> list[KafkaError | None]:
        self._asked(group_id, list(partitions))
        return [None] * len(partitions)


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


class Asking:
    """Sends requests through codec and handler, as a connection does."""

    def __init__(self, coordinator: Coordinator, room_bytes: int = 1 << 20) -> None:
        topic = SimpleNamespace(name=TARGET.name, topic_id=TARGET.topic_id, partitions=4)
        known = SimpleNamespace(
            settings=Settings(),
            groups=coordinator,
            offsets_topic=SimpleNamespace(named=lambda _key: None),
            topics=SimpleNamespace(
                get={topic.name: topic}.get,
                by_id={topic.topic_id: topic}.get,
                look_again=AsyncMock(),
            ),
            response_memory=SimpleNamespace(room=room_bytes),
            transaction_checks=SimpleNamespace(may_send_offsets=AsyncMock()),
        )
        self._broker = cast(Broker, known)

    async def __call__(
        self, request: Any, version: int, *, peer: str = "192.0.2.7:50000", client_id: Any = "wire"
    ) -> Any:
        decoded = decode_request(request_body(request, version), APIS)
        header = RequestHeader(decoded.header.api_key, version, 1, client_id)
        context = RequestContext(self._broker, header, peer, APIS, ResponseMemory(1 << 30).charge())
        response = await decoded.api.handler(context, decoded.message)
        _, answer = decode(
            decoded.api.response, version, b"".join(encode_response(decoded, response))[4:]
        )
        return answer


@pytest.fixture
def ask(coordinator: Coordinator) -> Asking:
    return Asking(coordinator)


def versions(key: ApiKey) -> range:
    return range(APIS[key].min_version, APIS[key].max_version + 1)


# --- members ---


@pytest.mark.parametrize("version", versions(ApiKey.JoinGroup))
async def test_a_join_request_reaches_the_coordinator_in_each_version(
    ask: Asking, coordinator: Coordinator, version: int
) -> None:
    coordinator.answer = JoinAnswer("m-1", 3, "consumer", "range", "m-1", (), True)
    for instance in (None, "static") if version >= 5 else (None,):
        request = messages.join(
            "g",
            member_id="m",
            instance_id=instance,
            protocols=(("sticky", b"s"), ("range", b"r")),
            session_timeout_ms=7_000,
            rebalance_timeout_ms=9_000,
        )
        answer = await ask(request, version)
        assert coordinator.asked.pop() == (
            "g",
            JoinRequest(
                member_id="m",
                group_instance_id=instance,
                client=Client("wire", "/192.0.2.7"),
                session_timeout_ms=7_000,
                rebalance_timeout_ms=9_000 if version >= 1 else 7_000,
                protocol_type="consumer",
                protocols=(("sticky", b"s"), ("range", b"r")),
                requires_known_member_id=version >= 4 and instance is None,
                supports_skipping_assignment=version >= 9,
            ),
        )
        assert (answer.error_code, answer.generation_id, answer.member_id) == (0, 3, "m-1")
        assert (answer.leader, answer.protocol_name) == ("m-1", "range")
        if version >= 9:
            assert answer.skip_assignment is True


async def test_a_leader_is_told_its_members(ask: Asking, coordinator: Coordinator) -> None:
    members = (JoinedMember("a", None, b"x"), JoinedMember("b", "static", b""))
    coordinator.answer = JoinAnswer("a", 1, "consumer", "range", "a", members)
    answer = await ask(messages.join("g"), 9)
    assert [(m.member_id, m.group_instance_id, m.metadata) for m in answer.members] == [
        ("a", None, b"x"),
        ("b", "static", b""),
    ]


@pytest.mark.parametrize("version", versions(ApiKey.JoinGroup))
async def test_a_refused_member_is_told_the_id_it_came_with_or_the_one_it_is_given(
    ask: Asking, coordinator: Coordinator, version: int
) -> None:
    for refusal, told in (
        (errors.InvalidSessionTimeout(), "mine"),
        (MemberIdGiven("yours"), "yours"),
    ):
        coordinator.refusal = refusal
        answer = await ask(messages.join("g", member_id="mine"), version)
        assert (answer.error_code, answer.member_id) == (refusal.code, told)
        assert (answer.generation_id, answer.leader, answer.members) == (-1, "", [])
        assert answer.protocol_name == ("" if version < 7 else None)
        if version >= 7:
            assert answer.protocol_type is None


@pytest.mark.parametrize(
    ("peer", "client_id", "client"),
    [
        ("192.0.2.7:50000", None, Client("", "/192.0.2.7")),
        ("2001:db8::7:50000", "", Client("", "/2001:db8::7")),
        ("?", "c", Client("c", "/")),
        ("192.0.2.7:1", "c" * 32_767, Client("c" * 16_384, "/192.0.2.7")),
        ("192.0.2.7:1", "c" + "é" * 16_000, Client("c" + "é" * 8_191, "/192.0.2.7")),
    ],
)
async def test_a_client_is_known_by_its_id_and_its_address(
    ask: Asking, coordinator: Coordinator, peer: str, client_id: str | None, client: Client
) -> None:
    await ask(messages.commit("g", (TARGET, {0: 1})), 9, peer=peer, client_id=client_id)
    ((_, committer, *_),) = coordinator.asked
    assert committer == Committer("", None, -1, client)


@pytest.mark.parametrize("version", versions(ApiKey.SyncGroup))
async def test_a_sync_request_reaches_the_coordinator_in_each_version(
    ask: Asking, coordinator: Coordinator, version: int
) -> None:
    coordinator.answer = SyncAnswer("consumer", "range", b"mine")
    instance = "static" if version >= 3 else None
    request = messages.sync("g", "m", 3, {"m": b"mine", "n": b"theirs"}, instance_id=instance)
    answer = await ask(request, version)
    kind, name = ("consumer", "range") if version >= 5 else (None, None)
    expected = SyncRequest("m", instance, 3, kind, name, {"m": b"mine", "n": b"theirs"})
    assert coordinator.asked == [("g", expected)]
    assert (answer.error_code, answer.assignment) == (0, b"mine")
    if version >= 5:
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")


@pytest.mark.parametrize("version", versions(ApiKey.Heartbeat))
async def test_a_heartbeat_reaches_the_coordinator_in_each_version(
    ask: Asking, coordinator: Coordinator, version: int
) -> None:
    instance = "static" if version >= 3 else None
    assert (await ask(messages.heartbeat("g", "m", 3, instance), version)).error_code == 0
    assert coordinator.asked == [("g", "m", instance, 3)]


@pytest.mark.parametrize("version", versions(ApiKey.Heartbeat))
async def test_a_heartbeat_succeeds_while_the_group_is_being_read(
    ask: Asking, coordinator: Coordinator, version: int
) -> None:
    coordinator.refusal = errors.CoordinatorLoadInProgress("the group is being read")

    assert (await ask(messages.heartbeat("g", "m", 3), version)).error_code == 0


@pytest.mark.parametrize("version", versions(ApiKey.SyncGroup))
async def test_a_member_that_syncs_while_the_group_is_being_read_is_told_to_join_again(
    ask: Asking, coordinator: Coordinator, version: int
) -> None:
    coordinator.refusal = errors.CoordinatorLoadInProgress("the group is being read")

    with pytest.raises(errors.RebalanceInProgress):
        await ask(messages.sync("g", "m", 3), version)


@pytest.mark.parametrize("version", versions(ApiKey.LeaveGroup))
async def test_a_leave_request_names_one_member_before_version_3_and_several_after(
    ask: Asking, coordinator: Coordinator, version: int
) -> None:
    leaving = [("m", None), ("", "static")] if version >= 3 else [("m", None)]
    coordinator.answer = [None] * len(leaving)
    answer = await ask(messages.leave("g", *leaving), version)
    assert coordinator.asked == [("g", [LeavingMember(*member) for member in leaving])]
    assert answer.error_code == 0
    if version >= 3:
        assert [member.error_code for member in answer.members] == [0, 0]


# --- offsets ---


@pytest.mark.parametrize("version", versions(ApiKey.OffsetCommit))
async def test_a_commit_reaches_the_coordinator_in_each_version(
    ask: Asking, coordinator: Coordinator, version: int
) -> None:
    instance = "static" if version >= 7 else None
    request = messages.commit(
        "g",
        (TARGET, {0: 10, 3: 11}),
        member_id="m",
        generation=4,
        instance_id=instance,
        metadata="note",
        leader_epoch=2,
    )
    answer = await ask(request, version)
    assert [p.error_code for t in answer.topics for p in t.partitions] == [0, 0]
    epoch = 2 if version >= 6 else -1
    assert coordinator.asked == [
        (
            "g",
            Committer("m", instance, 4, Client("wire", "/192.0.2.7")),
            [OffsetCommit("events", TOPIC_ID, p, p // 3 + 10, epoch, "note", None) for p in (0, 3)],
        )
    ]


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize(
    ("retention_ms", "expires_ms"),
    [
        (-1, None),
        (60_000, 60_000),
        (0, 0),
        (-60_000, -60_000),
        (2**63 - 1, 4_102_444_800_000),
        (-(2**63), 0),
    ],
)
async def test_the_retention_of_a_commit_becomes_its_time_of_expiry(
    ask: Asking, coordinator: Coordinator, version: int, retention_ms: int, expires_ms: int | None
) -> None:
    before_ms = time.time_ns() // 1_000_000
    await ask(messages.commit("g", (TARGET, {0: 1}), retention_ms=retention_ms), version)
    took_ms = time.time_ns() // 1_000_000 - before_ms
    ((_, _, (commit,)),) = coordinator.asked
    if expires_ms is None or abs(retention_ms) > 10**6:
        assert commit.expire_time_ms == expires_ms
    else:
        assert 0 <= commit.expire_time_ms - before_ms - expires_ms <= took_ms


async def test_a_commit_whose_metadata_is_too_large_still_asks_its_group(
    ask: Asking, coordinator: Coordinator
) -> None:
    request = messages.commit("g", (TARGET, {0: 1, 9: 1}), metadata="x" * 4097)
    answer = await ask(request, 9)
    assert [p.error_code for t in answer.topics for p in t.partitions] == [
        errors.OffsetMetadataTooLarge.code,
        errors.UnknownTopicOrPartition.code,
    ]
    ((_, _, commits),) = coordinator.asked
    assert commits == []
    coordinator.refusal = errors.UnknownMemberId()
    answer = await ask(request, 9)
    assert [p.error_code for t in answer.topics for p in t.partitions] == [
        errors.UnknownMemberId.code,
        errors.UnknownTopicOrPartition.code,
    ]


async def test_the_limit_of_metadata_counts_characters(
    ask: Asking, coordinator: Coordinator
) -> None:
    answer = await ask(messages.commit("g", (TARGET, {0: 1}), metadata="é" * 4096), 9)
    assert [p.error_code for t in answer.topics for p in t.partitions] == [0]


def offset(value: int, metadata: str = "", topic_id: UUID = TOPIC_ID) -> CommittedOffset:
    return CommittedOffset(topic_id, value, 7, metadata, 1_700_000_000_000, None)


@pytest.mark.parametrize("version", versions(ApiKey.OffsetFetch))
async def test_offsets_of_a_deleted_topic_are_not_fetched(
    ask: Asking, coordinator: Coordinator, version: int
) -> None:
    """A topic of that name may have been created again."""
    coordinator.committed["g"] = {
        ("events", 0): offset(5),
        ("events", 1): offset(6, topic_id=OLD_ID),
        ("gone", 0): offset(7, topic_id=OLD_ID),
    }

    async def fetched(groups: Mapping[str, Any]) -> list[tuple[int, int]]:
        answer = await ask(messages.offset_fetch(version, groups), version)
        topics = answer.groups[0].topics if version >= 8 else answer.topics
        assert {t.topic_id if version >= 10 else t.name for t in topics} == {
            TOPIC_ID if version >= 10 else "events"
        }
        return [(p.partition_index, p.committed_offset) for t in topics for p in t.partitions]

    assert await fetched({"g": [(TARGET, [0, 1, 2])]}) == [(0, 5), (1, -1), (2, -1)]
    if version >= 2:
        assert await fetched({"g": None}) == [(0, 5)]


async def test_groups_that_do_not_fit_into_an_answer_get_a_retriable_error(
    coordinator: Coordinator,
) -> None:
    for number in range(4):
        coordinator.committed[f"g{number}"] = {("events", 0): offset(number, "x" * 1000)}
    ask = Asking(coordinator, room_bytes=2500)
    groups = dict.fromkeys(coordinator.committed)
    answer = await ask(messages.offset_fetch(9, groups), 9)
    assert [(group.group_id, group.error_code, len(group.topics)) for group in answer.groups] == [
        ("g0", 0, 1),
        ("g1", 0, 1),
        ("g2", LOAD_IN_PROGRESS, 0),
        ("g3", LOAD_IN_PROGRESS, 0),
    ]
    answer = await Asking(coordinator, room_bytes=10)(messages.offset_fetch(9, groups), 9)
    assert [group.error_code for group in answer.groups] == [0] + [LOAD_IN_PROGRESS] * 3


# --- offsets of transactions ---


TRANSACTIONAL = versions(ApiKey.TxnOffsetCommit)


def sent_to_transaction(group_id: str = "g", topic: str = "events", **changed: Any) -> Any:
    return messages.transactional_commit("id", (7, 2), group_id, topic, {0: 10, 3: 11}, **changed)


def partition_codes(answer: Any) -> list[int]:
    return [partition.error_code for topic in answer.topics for partition in topic.partitions]


@pytest.mark.parametrize("version", TRANSACTIONAL)
async def test_a_transactional_commit_reaches_the_coordinator_in_each_version(
    ask: Asking, coordinator: Coordinator, version: int
) -> None:
    member: dict[str, Any] = {"member_id": "m", "generation": 4, "instance_id": "static"}
    answer = await ask(sent_to_transaction(**member if version >= 3 else {}), version)
    assert partition_codes(answer) == [0, 0]
    client = Client("wire", "/192.0.2.7")
    nobody, somebody = Committer("", None, -1, client), Committer("m", "static", 4, client)
    assert coordinator.asked == [
        (
            "g",
            somebody if version >= 3 else nobody,
            [OffsetCommit("events", TOPIC_ID, p, p // 3 + 10, -1, "", None) for p in (0, 3)],
            Producer(7, 2),
        )
    ]


@pytest.mark.parametrize("version", TRANSACTIONAL)
@pytest.mark.parametrize(
    ("refusal", "before", "older"),
    [
        (errors.CoordinatorLoadInProgress, 2, errors.CoordinatorNotAvailable),
        (errors.TransactionAbortable, 4, errors.InvalidTxnState),
        (errors.GroupIdNotFound, 99, errors.IllegalGeneration),
        (errors.ProducerFenced, 99, errors.InvalidProducerEpoch),
        (errors.UnknownMemberId, 0, errors.UnknownMemberId),
        (errors.FencedInstanceId, 0, errors.FencedInstanceId),
    ],
)
async def test_a_transactional_commit_gets_an_error_that_its_version_knows(
    ask: Asking,
    coordinator: Coordinator,
    version: int,
    refusal: type[KafkaError],
    before: int,
    older: type[KafkaError],
) -> None:
    """`KafkaApis.handleTxnOffsetCommitRequest`, `validateTransactionalOffsetCommit` of Kafka."""
    coordinator.refusal = refusal()
    answer = await ask(sent_to_transaction(), version)
    assert partition_codes(answer) == [older.code if version < before else refusal.code] * 2


async def test_a_transactional_commit_of_metadata_that_is_too_large_has_the_error_of_its_group(
    ask: Asking, coordinator: Coordinator
) -> None:
    too_large = sent_to_transaction(metadata="x" * 5000)
    assert partition_codes(await ask(too_large, 5)) == [errors.OffsetMetadataTooLarge.code] * 2
    assert len(coordinator.asked) == 1
    coordinator.refusal = errors.UnknownMemberId()
    assert partition_codes(await ask(too_large, 5)) == [errors.UnknownMemberId.code] * 2


async def test_a_transactional_commit_for_an_unknown_topic_does_not_ask_its_group(
    ask: Asking, coordinator: Coordinator
) -> None:
    answer = await ask(sent_to_transaction(topic="gone"), 5)
    assert partition_codes(answer) == [errors.UnknownTopicOrPartition.code] * 2
    assert coordinator.asked == []


@pytest.mark.parametrize("version", TRANSACTIONAL)
async def test_a_transactional_commit_needs_a_group_id(
    ask: Asking, coordinator: Coordinator, version: int
) -> None:
    answer = await ask(sent_to_transaction(""), version)
    assert partition_codes(answer) == [errors.InvalidGroupId.code] * 2
    assert coordinator.asked == []


async def test_an_offset_deletion_of_unknown_topics_still_asks_its_group(
    ask: Asking, coordinator: Coordinator
) -> None:
    answer = await ask(messages.offset_delete("g", ("events", [0, 9, 0]), ("gone", [0])), 0)
    assert coordinator.asked.pop() == ("g", [("events", 0)])
    missing = errors.UnknownTopicOrPartition.code
    assert {
        (t.name, p.partition_index): p.error_code for t in answer.topics for p in t.partitions
    } == {("events", 0): 0, ("events", 9): missing, ("gone", 0): missing}
    await ask(messages.offset_delete("g", ("gone", [0])), 0)
    assert coordinator.asked.pop() == ("g", [])


# --- administrators ---


def record(
    group_id: str, state: GroupState, metadata: bytes = b"", members: int = 1
) -> GroupRecord:
    return GroupRecord(
        group_id,
        1,
        state.value,
        1_700_000_000_000,
        3,
        "consumer",
        "range",
        "m0",
        tuple(
            MemberRecord(
                f"m{number}",
                None,
                Client("c", "/192.0.2.7"),
                10_000,
                20_000,
                (("sticky", b"other"), ("range", metadata)),
                b"assigned",
                1_700_000_000_000,
            )
            for number in range(members)
        ),
    )


def describe(*group_ids: str) -> DescribeGroupsRequest:
    return DescribeGroupsRequest(groups=list(group_ids), include_authorized_operations=False)


@pytest.mark.parametrize("version", versions(ApiKey.DescribeGroups))
@pytest.mark.parametrize("state", list(GroupState)[:4])
async def test_descriptions_show_subscriptions_only_of_stable_groups(
    ask: Asking, coordinator: Coordinator, version: int, state: GroupState
) -> None:
    coordinator.records_of["g"] = record("g", state, b"subscribed")
    (group,) = (await ask(describe("g"), version)).groups
    stable = state is GroupState.STABLE
    assert (group.group_state, group.protocol_type) == (state.value, "consumer")
    assert group.protocol_data == ("range" if stable else "")
    (member,) = group.members
    assert member.member_metadata == (b"subscribed" if stable else b"")
    assert member.member_assignment == b"assigned"


async def test_descriptions_that_do_not_fit_into_an_answer_get_a_retriable_error(
    coordinator: Coordinator,
) -> None:
    for number in range(3):
        name = f"g{number}"
        coordinator.records_of[name] = record(name, GroupState.STABLE, b"x" * 100, members=10)
    ask = Asking(coordinator, room_bytes=3000)
    answer = await ask(describe("g0", "g1", "none", "g2"), 5)
    assert [(g.group_id, g.error_code, g.group_state) for g in answer.groups] == [
        ("g0", 0, "Stable"),
        ("g1", LOAD_IN_PROGRESS, ""),
        ("none", 0, "Dead"),
        ("g2", LOAD_IN_PROGRESS, ""),
    ]


async def test_each_group_is_deleted_once_or_gets_an_error(
    ask: Asking, coordinator: Coordinator
) -> None:
    answer = await ask(DeleteGroupsRequest(groups_names=["a", "b", "a"]), 2)
    assert [(one.group_id, one.error_code) for one in answer.results] == [("a", 0), ("b", 0)]
    assert coordinator.asked == [("a",), ("b",)]
    coordinator.refusal = errors.KafkaStorageError()
    (one,) = (await ask(DeleteGroupsRequest(groups_names=["a"]), 2)).results
    assert one.error_code == errors.KafkaStorageError.code


@pytest.mark.parametrize("version", versions(ApiKey.ListGroups))
async def test_group_lists_have_the_fields_of_their_version(
    ask: Asking, coordinator: Coordinator, version: int
) -> None:
    coordinator.records_of["g"] = record("g", GroupState.STABLE)
    (group,) = (await ask(ListGroupsRequest(states_filter=[], types_filter=[]), version)).groups
    assert (group.group_id, group.protocol_type) == ("g", "consumer")
    assert group.group_state == ("Stable" if version >= 4 else "")
    assert group.group_type == ("classic" if version >= 5 else "")
