"""The coordinator of groups: it stores before it answers, and a restart reads back what is stored.

The engine is a real one; refused inserts and delays are scripted. Tests set the clock, except where
timers have to fire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

import pytest

from brokerhouse.common import clock as clocks
from brokerhouse.coordinator import hosted_groups
from brokerhouse.coordinator.group_coordinator import GroupCoordinator
from brokerhouse.coordinator.messages import (
    Client,
    Committer,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    MemberIdGiven,
    OffsetCommit,
    SyncAnswer,
    SyncRequest,
)
from brokerhouse.coordinator.transaction_states import Producer
from brokerhouse.protocol.errors import (
    CoordinatorNotAvailable,
    GroupIdNotFound,
    GroupMaxSizeReached,
    GroupSubscribedToTopic,
    NonEmptyGroup,
    UnknownMemberId,
    UnknownServerError,
)
from brokerhouse.storage.row_lane import RowLane
from tests.support.clock import Clock
from tests.support.coordinators import HOUR_MS, coordinator_on
from tests.support.log_parts import LANES, ScriptedEngine
from tests.support.waiting import LIMIT_S, until_async

CLIENT = Client("client", "/127.0.0.1")
TOPIC, TOPIC_ID = "topic", UUID(int=1)
SUBSCRIPTION = b"\0\0\0\0\0\1\0\5topic\xff\xff\xff\xff"
ADMIN = Committer("", None, -1, CLIENT)
PRODUCER = Producer(7, 0)


@asynccontextmanager
async def running(
    engine: ScriptedEngine, clock: clocks.Clock, max_bytes: int = 1 << 30
) -> AsyncIterator[GroupCoordinator]:
    rows = RowLane(engine, LANES - 1, uuid4())
    rows.start()
    coordinator = coordinator_on(engine, rows, clock, max_bytes)
    await coordinator.load_groups(lambda _: True)
    coordinator.start()
    try:
        yield coordinator
    finally:
        await coordinator.close()
        await rows.close()


@pytest.fixture
def stored_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted_groups, "_STORE_AGAIN_S", 0.05)


@pytest.fixture
def clock() -> Clock:
    return Clock(clocks.wall_ms())  # rows of long ago are deleted by their TTL


def joining(member_id: str = "", instance: str | None = None, **changes: object) -> JoinRequest:
    fields: dict[str, object] = {
        "member_id": member_id,
        "group_instance_id": instance,
        "client": CLIENT,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": (("range", SUBSCRIPTION),),
        "requires_known_member_id": False,
        "supports_skipping_assignment": False,
    }
    return JoinRequest(**(fields | changes))  # type: ignore[arg-type]  # the fields are as named


def syncing(joined: JoinAnswer, assignments: dict[str, bytes] | None = None) -> SyncRequest:
    return SyncRequest(
        joined.member_id, None, joined.generation, "consumer", "range", assignments or {}
    )


def commit_of(offset: int, partition: int = 0) -> OffsetCommit:
    return OffsetCommit(TOPIC, TOPIC_ID, partition, offset, 0, "", None)


async def one_member(groups: GroupCoordinator, group_id: str = "group") -> JoinAnswer:
    """A group with one member, which has its assignment."""
    joined = await groups.join(group_id, joining())
    await groups.sync(group_id, syncing(joined, {joined.member_id: b"all"}))
    return joined


def member(joined: JoinAnswer) -> Committer:
    return Committer(joined.member_id, None, joined.generation, CLIENT)


def state_of(groups: GroupCoordinator, group_id: str = "group") -> str | None:
    record = groups.cache.get(group_id)
    return None if record is None else record.state


async def commit(
    groups: GroupCoordinator, committer: Committer, offset: int, group_id: str = "group"
) -> None:
    await groups.commit(group_id, committer, [commit_of(offset)])


async def test_a_join_is_answered_only_after_the_generation_is_stored(
    scripted: ScriptedEngine, clock: Clock
) -> None:
    async with running(scripted, clock) as groups:
        scripted.gate.clear()
        asked = asyncio.create_task(groups.join("group", joining()))
        await scripted.next_insert()
        assert not asked.done()
        assert groups.cache.get("group") is None
        scripted.gate.set()
        joined = await asked
        record = groups.cache.get("group")
        assert record is not None
        assert (record.generation, record.leader) == (joined.generation, joined.member_id)


async def test_the_time_to_sync_begins_when_a_member_gets_its_generation(
    scripted: ScriptedEngine, clock: Clock
) -> None:
    async with running(scripted, clock) as groups:
        scripted.gate.clear()
        asked = asyncio.create_task(groups.join("group", joining(rebalance_timeout_ms=1000)))
        await scripted.next_insert()
        clock.now_ms += 3000
        nobody = [LeavingMember("nobody", None)]
        looking = asyncio.create_task(groups.leave("group", nobody))  # it looks at its deadlines
        await asyncio.sleep(0)
        clock.now_ms += 3000
        scripted.gate.set()
        joined = await asked
        await looking
        clock.now_ms += 900
        answer = await groups.sync("group", syncing(joined, {joined.member_id: b"all"}))
        assert answer == SyncAnswer("consumer", "range", b"all")

        joined = await groups.join("late", joining(rebalance_timeout_ms=1000))
        clock.now_ms += 1100
        await groups.leave("late", nobody)
        with pytest.raises(UnknownMemberId):
            await groups.sync("late", syncing(joined, {joined.member_id: b"all"}))


async def test_a_sync_is_answered_only_after_the_assignment_is_stored(
    scripted: ScriptedEngine, clock: Clock
) -> None:
    async with running(scripted, clock) as groups:
        joined = await groups.join("group", joining())
        scripted.gate.clear()
        asked = asyncio.create_task(
            groups.sync("group", syncing(joined, {joined.member_id: b"all"}))
        )
        await scripted.next_insert()
        assert not asked.done()
        scripted.gate.set()
        assert await asked == SyncAnswer("consumer", "range", b"all")
        [stored] = await scripted.rows(
            "SELECT hex(assignment_bytes) FROM group_member_versions FINAL"
        )
        assert stored == [b"all".hex().upper()]


@pytest.mark.usefixtures("stored_again_soon")
async def test_a_join_whose_record_cannot_be_stored_fails_and_succeeds_when_repeated(
    scripted: ScriptedEngine, clock: Clock
) -> None:
    async with running(scripted, clock) as groups:
        scripted.faults.append("refused")
        with pytest.raises(CoordinatorNotAvailable):
            await groups.join("group", joining(instance="one"))
        again = await asyncio.wait_for(groups.join("group", joining(instance="one")), LIMIT_S)
        await groups.sync("group", syncing(again, {again.member_id: b"all"}))
        [row] = await scripted.rows("SELECT state, members FROM consumer_groups")
        assert row == ["Stable", 1]


@pytest.mark.usefixtures("stored_again_soon")
async def test_a_refused_record_is_stored_even_without_another_request(
    scripted: ScriptedEngine, clock: Clock
) -> None:
    async with running(scripted, clock) as groups:
        joined = await groups.join("group", joining())
        scripted.faults.append("refused")
        with pytest.raises(CoordinatorNotAvailable):
            await groups.sync("group", syncing(joined, {joined.member_id: b"all"}))
        assert state_of(groups) == "CompletingRebalance"
        await until_async(lambda: state_of(groups) == "Stable")


@pytest.mark.usefixtures("stored_again_soon")
async def test_an_unexpected_error_in_storing_is_reported_and_the_record_stored_later(
    scripted: ScriptedEngine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(scripted, clock) as groups:
        with monkeypatch.context() as broken:
            broken.setattr(groups.cache, "next_version", lambda _now_ms: 1 / 0)
            with pytest.raises(UnknownServerError):
                await groups.join("group", joining(instance="one"))
        again = await groups.join("group", joining(instance="one"))
        assert state_of(groups) == "CompletingRebalance"
        assert again.leader == again.member_id


async def test_members_that_join_while_a_generation_is_stored_are_in_the_next_generation(
    scripted: ScriptedEngine, clock: Clock
) -> None:
    async with running(scripted, clock) as groups:
        scripted.gate.clear()
        first = asyncio.create_task(groups.join("group", joining()))
        await scripted.next_insert()
        before = len(scripted.inserts)
        others = [asyncio.create_task(groups.join("group", joining())) for _ in range(9)]
        await asyncio.sleep(0)
        scripted.gate.set()
        joined = await first
        rejoined = asyncio.create_task(groups.join("group", joining(joined.member_id)))
        answers = await asyncio.gather(rejoined, *others)
        assert {answer.generation for answer in answers} == {joined.generation + 1}
        assert len(scripted.inserts) - before < 10, "the nine are stored together"


async def test_after_a_restart_a_group_has_its_members_generation_and_offsets(
    scripted: ScriptedEngine, clock: Clock
) -> None:
    async with running(scripted, clock) as groups:
        joined = await one_member(groups)
        await commit(groups, member(joined), 7)
        clock.now_ms += 5 * HOUR_MS
    async with running(scripted, clock) as groups:
        await groups.heartbeat("group", joined.member_id, None, joined.generation)
        assert groups.offsets.get("group")[TOPIC, 0].offset == 7
        answer = await groups.sync("group", syncing(joined))
        assert answer.assignment == b"all"


async def test_after_a_restart_a_silent_member_is_removed_when_its_session_ends(
    scripted: ScriptedEngine, clock: Clock
) -> None:
    """The timer fires by the real time, and goes by the clock: the session ends when it says so."""
    session_ms = 50
    async with running(scripted, clock) as groups:
        joined = await groups.join("group", joining(session_timeout_ms=session_ms))
        await groups.sync("group", syncing(joined, {}))
        clock.now_ms += session_ms - 1
    async with running(scripted, clock) as groups:
        clock.now_ms += session_ms - 1
        await asyncio.sleep(3 * session_ms / 1000)  # timers fire in order: the session's has, too
        assert state_of(groups) == "Stable", "a session begins anew with the restart"
        clock.now_ms += 1
        await until_async(lambda: state_of(groups) == "Empty")
        with pytest.raises(UnknownMemberId):
            await groups.heartbeat("group", joined.member_id, None, joined.generation)


async def test_a_member_that_leaves_is_removed_from_the_tables(
    scripted: ScriptedEngine, clock: Clock
) -> None:
    async with running(scripted, clock) as groups:
        joined = await one_member(groups)
        assert await groups.leave("group", [LeavingMember(joined.member_id, None)]) == [None]
        assert await scripted.rows("SELECT state, members FROM consumer_groups") == [["Empty", 0]]
        assert await scripted.rows("SELECT member_id FROM group_members") == []


@pytest.mark.usefixtures("stored_again_soon")
async def test_a_leave_that_cannot_be_stored_fails_and_is_stored_later(
    scripted: ScriptedEngine, clock: Clock
) -> None:
    async with running(scripted, clock) as groups:
        joined = await one_member(groups)
        scripted.faults.append("refused")
        with pytest.raises(CoordinatorNotAvailable):
            await groups.leave("group", [LeavingMember(joined.member_id, None)])
        await until_async(lambda: state_of(groups) == "Empty")


async def test_a_stop_answers_members_that_joined_while_a_record_was_refused(
    scripted: ScriptedEngine, clock: Clock
) -> None:
    async with running(scripted, clock) as groups:
        scripted.gate.clear()
        scripted.faults.append("refused")
        first = asyncio.create_task(groups.join("group", joining(instance="one")))
        await scripted.next_insert()
        second = asyncio.create_task(groups.join("group", joining(instance="two")))
        third = asyncio.create_task(groups.join("group", joining(instance="one")))
        await asyncio.sleep(0)
        groups.stop_waiting()
        scripted.gate.set()
        answers = await asyncio.wait_for(
            asyncio.gather(first, second, third, return_exceptions=True), LIMIT_S
        )
        assert len(answers) == 3


async def test_stored_groups_and_members_have_the_time_of_the_wall_clock(
    scripted: ScriptedEngine,
) -> None:
    class Day(Clock):
        """A wall clock that the test sets; the monotonic clock is the real one."""

        def monotonic_ms(self) -> int:
            return clocks.monotonic_ms()

    day = Day(clocks.wall_ms())
    rows = RowLane(scripted, LANES - 1, uuid4())
    rows.start()
    groups = coordinator_on(scripted, rows, day)
    await groups.load_groups(lambda _: True)
    groups.start()
    day.now_ms += 5 * HOUR_MS  # a machine that slept, or a clock that was put right
    joined = await one_member(groups)
    await groups.heartbeat("group", joined.member_id, None, joined.generation)
    record = groups.cache.get("group")
    assert record is not None
    assert (record.state_time_ms, record.members[0].join_time_ms) == (day.now_ms, day.now_ms)
    assert groups.cache.heartbeats.last_ms("group", joined.member_id) == day.now_ms
    await groups.close()
    await rows.close()


async def test_a_stop_answers_waiting_joins_and_keeps_the_members(
    scripted: ScriptedEngine, clock: Clock
) -> None:
    async with running(scripted, clock) as groups:
        joined = await one_member(groups)
        waiting = asyncio.create_task(groups.join("group", joining()))
        await asyncio.sleep(0)
        groups.stop_waiting()
        with pytest.raises(CoordinatorNotAvailable):
            await asyncio.wait_for(waiting, LIMIT_S)
        with pytest.raises(CoordinatorNotAvailable):
            await groups.join("group", joining())
    async with running(scripted, clock) as groups:
        record = groups.cache.get("group")
        assert record is not None
        assert record.member(joined.member_id) is not None


async def test_a_client_that_disconnects_while_it_waits_is_left_out_of_the_rebalance(
    scripted: ScriptedEngine, clock: Clock
) -> None:
    async with running(scripted, clock) as groups:
        first = await one_member(groups)
        gone = asyncio.create_task(groups.join("group", joining()))
        await asyncio.sleep(0)
        gone.cancel()
        answer = await asyncio.wait_for(groups.join("group", joining(first.member_id)), LIMIT_S)
        assert answer.generation == first.generation + 1


async def test_a_group_whose_member_never_joined_with_its_id_is_empty_until_the_next_clean_up(
    scripted: ScriptedEngine, clock: Clock
) -> None:
    """As in Kafka: `GroupMetadataManager.classicGroupJoin` stores it at once."""
    async with running(scripted, clock) as groups:
        request = joining(requires_known_member_id=True, session_timeout_ms=50)
        with pytest.raises(MemberIdGiven) as given:
            await groups.join("knocked", request)
        await until_async(lambda: state_of(groups, "knocked") == "Empty")
    async with running(scripted, clock) as groups:
        assert state_of(groups, "knocked") == "Empty", "after a restart, too"
        with pytest.raises(UnknownMemberId):
            await groups.join("knocked", joining(given.value.member_id))
        await groups.expiry.expire()
        await until_async(lambda: "knocked" not in groups.hosted_groups)
        assert state_of(groups, "knocked") is None
        assert groups.hosted_groups.size_bytes == 0


class TestMemory:
    async def test_subscriptions_are_accepted_until_the_budget_is_spent(
        self, scripted: ScriptedEngine, clock: Clock
    ) -> None:
        async with running(scripted, clock, max_bytes=100_000) as groups:
            large = joining(protocols=(("range", bytes(60_000)),))
            joined = await groups.join("one", large)
            with pytest.raises(GroupMaxSizeReached):
                await groups.join("two", large)
            again = joining(joined.member_id, protocols=(("range", bytes(60_000)),))
            assert (await groups.join("one", again)).generation == joined.generation, "its own"
            await groups.leave("one", [LeavingMember(joined.member_id, None)])
            await groups.join("two", large)

    async def test_a_member_refused_for_lack_of_memory_leaves_no_group(
        self, scripted: ScriptedEngine, clock: Clock
    ) -> None:
        async with running(scripted, clock, max_bytes=10_000) as groups:
            await groups.join("one", joining())
            for n in range(100):
                with pytest.raises(GroupMaxSizeReached):
                    await groups.join(f"other-{n}", joining(protocols=(("range", bytes(9_000)),)))
            assert groups.hosted_groups.ids() == ["one"]

    async def test_an_assignment_past_the_budget_is_refused(
        self, scripted: ScriptedEngine, clock: Clock
    ) -> None:
        async with running(scripted, clock, max_bytes=100_000) as groups:
            joined = await groups.join("group", joining())
            with pytest.raises(UnknownServerError, match="groups_max_bytes"):
                await groups.sync("group", syncing(joined, {joined.member_id: bytes(200_000)}))

    async def test_groups_without_members_count_towards_the_budget(
        self, scripted: ScriptedEngine, clock: Clock
    ) -> None:
        async with running(scripted, clock, max_bytes=16_000) as groups:
            for n in range(4):
                await commit(groups, ADMIN, n, f"group-{n}")
            with pytest.raises(GroupMaxSizeReached):
                await commit(groups, ADMIN, 1, "another")
            await groups.delete_group("group-0")
            await commit(groups, ADMIN, 1, "another")


class TestOffsets:
    async def test_a_refused_commit_is_an_error_and_changes_nothing(
        self, scripted: ScriptedEngine, clock: Clock
    ) -> None:
        async with running(scripted, clock) as groups:
            joined = await one_member(groups)
            await commit(groups, member(joined), 7)
            scripted.faults.append("refused")
            with pytest.raises(CoordinatorNotAvailable):
                await commit(groups, member(joined), 8)
            assert groups.offsets.get("group")[TOPIC, 0].offset == 7

    async def test_a_commit_without_a_member_creates_a_group_that_is_listed(
        self, scripted: ScriptedEngine, clock: Clock
    ) -> None:
        async with running(scripted, clock) as groups:
            await commit(groups, ADMIN, 3)
            record = groups.cache.get("group")
            assert record is not None
            assert (record.state, record.protocol_type) == ("Empty", "")

    async def test_offsets_without_a_stored_group_get_one_at_the_next_commit_after_a_restart(
        self, scripted: ScriptedEngine, clock: Clock
    ) -> None:
        async with running(scripted, clock) as groups:
            await groups.offsets.commit("group", ADMIN, [commit_of(3)])
        async with running(scripted, clock) as groups:
            await commit(groups, ADMIN, 4)
            assert groups.cache.get("group") is not None

    async def test_offsets_of_an_empty_group_expire_and_the_group_with_them(
        self, scripted: ScriptedEngine, clock: Clock
    ) -> None:
        async with running(scripted, clock) as groups:
            joined = await one_member(groups)
            await commit(groups, member(joined), 7)
            clock.now_ms += 2 * HOUR_MS
            await groups.expiry.expire()
            assert (TOPIC, 0) in groups.offsets.get("group"), "a member reads it"
            await groups.leave("group", [LeavingMember(joined.member_id, None)])
            clock.now_ms += HOUR_MS - 1
            await groups.expiry.expire()
            assert (TOPIC, 0) in groups.offsets.get("group"), "since it is empty"
            clock.now_ms += 1
            await groups.expiry.expire()
            assert groups.offsets.get("group") == {}
            await until_async(lambda: groups.cache.get("group") is None)
        async with running(scripted, clock) as groups:
            assert list(groups.cache.groups()) == []

    async def test_an_offset_committed_to_an_empty_group_expires_by_the_time_its_members_left(
        self, scripted: ScriptedEngine, clock: Clock
    ) -> None:
        async with running(scripted, clock) as groups:
            joined = await one_member(groups)
            await groups.leave("group", [LeavingMember(joined.member_id, None)])
            clock.now_ms += HOUR_MS - 1
            await commit(groups, ADMIN, 7)
            await groups.expiry.expire()
            assert groups.offsets.get("group")[TOPIC, 0].offset == 7
            clock.now_ms += 1
            await groups.expiry.expire()
            assert groups.offsets.get("group") == {}, "the commit is younger, its group is not"

    async def test_an_offset_of_a_group_that_never_had_members_expires_by_its_last_commit(
        self, scripted: ScriptedEngine, clock: Clock
    ) -> None:
        async with running(scripted, clock) as groups:
            await commit(groups, ADMIN, 7)
            clock.now_ms += HOUR_MS - 1
            await commit(groups, ADMIN, 8)
            clock.now_ms += HOUR_MS - 1
            await groups.expiry.expire()
            assert groups.offsets.get("group")[TOPIC, 0].offset == 8
            assert state_of(groups) == "Empty"
            clock.now_ms += 1
            await groups.expiry.expire()
            assert groups.offsets.get("group") == {}
            await until_async(lambda: state_of(groups) is None)

    async def test_an_empty_group_without_offsets_is_deleted_by_the_next_clean_up(
        self, scripted: ScriptedEngine, clock: Clock
    ) -> None:
        async with running(scripted, clock) as groups:
            joined = await one_member(groups)
            await groups.expiry.expire()
            assert state_of(groups) == "Stable"
            await groups.leave("group", [LeavingMember(joined.member_id, None)])
            assert state_of(groups) == "Empty"
            await groups.expiry.expire()
            await until_async(lambda: state_of(groups) is None)

    @pytest.mark.parametrize("commits", [False, True])
    async def test_offsets_of_an_open_transaction_keep_the_group_and_its_older_offsets(
        self, scripted: ScriptedEngine, clock: Clock, commits: bool
    ) -> None:
        """`OffsetMetadataManager.cleanupExpiredOffsets` of Kafka."""
        async with running(scripted, clock) as groups:
            await groups.commit("group", ADMIN, [commit_of(7), commit_of(8, partition=1)])
            await groups.commit("group", ADMIN, [commit_of(9)], producer=PRODUCER)
            await groups.commit("sent", ADMIN, [commit_of(9)], producer=PRODUCER)
            clock.now_ms += 2 * HOUR_MS
            await groups.expiry.expire()
            assert set(groups.offsets.get("group")) == {(TOPIC, 0)}
            assert (state_of(groups), state_of(groups, "sent")) == ("Empty", "Empty")
            for group_id in ("group", "sent"):
                await groups.pending.end(group_id, PRODUCER, commit=commits, raises_epoch=False)
            await groups.expiry.expire()
            left = "Empty" if commits else None
            await until_async(lambda: (state_of(groups), state_of(groups, "sent")) == (left, left))

    @pytest.mark.parametrize("of_the_group", [False, True])
    async def test_deleting_offsets_deletes_those_of_an_open_transaction_too(
        self, scripted: ScriptedEngine, clock: Clock, of_the_group: bool
    ) -> None:
        """`OffsetMetadataManager.deleteOffsets` and `deleteAllOffsets` of Kafka."""
        async with running(scripted, clock) as groups:
            sent = [commit_of(7), commit_of(8, partition=1)]
            await groups.commit("group", ADMIN, sent, producer=PRODUCER)
            if of_the_group:
                await groups.delete_group("group")
            else:
                assert await groups.delete_offsets("group", [(TOPIC, 0)]) == [None]
        left = set() if of_the_group else {(TOPIC, 1)}
        async with running(scripted, clock) as groups:
            assert set(groups.pending.unstable("group")) == left, "after a restart, too"
            await groups.pending.end("group", PRODUCER, commit=True, raises_epoch=False)
            assert set(groups.offsets.get("group")) == left

    async def test_deleting_a_topic_deletes_its_offsets_and_those_of_open_transactions(
        self, scripted: ScriptedEngine, clock: Clock
    ) -> None:
        async with running(scripted, clock) as groups:
            await commit(groups, ADMIN, 6)
            await groups.commit("group", ADMIN, [commit_of(7)], producer=PRODUCER)
            await groups.forget_topic(TOPIC, UUID(int=9))
            assert set(groups.offsets.get("group")) == {(TOPIC, 0)}, "another of that name"
            assert set(groups.pending.unstable("group")) == {(TOPIC, 0)}
            await groups.forget_topic(TOPIC, TOPIC_ID)
            assert groups.offsets.get("group") == {}
            assert set(groups.pending.unstable("group")) == set()
            await groups.pending.end("group", PRODUCER, commit=True, raises_epoch=False)
            assert groups.offsets.get("group") == {}

    async def test_an_offset_does_not_expire_while_a_new_commit_of_it_is_being_stored(
        self, scripted: ScriptedEngine, clock: Clock
    ) -> None:
        async with running(scripted, clock) as groups:
            await commit(groups, ADMIN, 7)
            clock.now_ms += 2 * HOUR_MS
            scripted.gate.clear()
            committing = asyncio.create_task(commit(groups, ADMIN, 8))
            await scripted.next_insert()
            await groups.expiry.expire()
            scripted.gate.set()
            await committing
            assert groups.offsets.get("group")[TOPIC, 0].offset == 8
            assert state_of(groups) == "Empty"

    async def test_a_group_does_not_expire_while_its_first_commit_is_being_stored(
        self, scripted: ScriptedEngine, clock: Clock
    ) -> None:
        async with running(scripted, clock) as groups:
            scripted.gate.clear()
            committing = asyncio.create_task(commit(groups, ADMIN, 8))
            await scripted.next_insert()
            await groups.expiry.expire()
            scripted.gate.set()
            await committing
            assert state_of(groups) == "Empty"

    async def test_offsets_of_a_topic_that_a_member_reads_are_not_deleted(
        self, scripted: ScriptedEngine, clock: Clock
    ) -> None:
        async with running(scripted, clock) as groups:
            joined = await one_member(groups)
            other = OffsetCommit("other", TOPIC_ID, 0, 1, 0, "", None)
            await groups.commit(
                "group",
                member(joined),
                [commit_of(7), other],
            )
            outcomes = await groups.delete_offsets("group", [(TOPIC, 0), ("other", 0)])
            assert isinstance(outcomes[0], GroupSubscribedToTopic)
            assert outcomes[1] is None
            assert set(groups.offsets.get("group")) == {(TOPIC, 0)}

    async def test_offsets_are_not_deleted_while_the_topics_of_the_members_are_unknown(
        self, scripted: ScriptedEngine, clock: Clock
    ) -> None:
        async with running(scripted, clock) as groups:
            await groups.join("connect", joining(protocol_type="connect"))
            with pytest.raises(NonEmptyGroup):
                await groups.delete_offsets("connect", [(TOPIC, 0)])
            with pytest.raises(GroupIdNotFound):
                await groups.delete_offsets("nothing", [(TOPIC, 0)])


class TestDeletion:
    async def test_a_deleted_group_and_its_offsets_stay_deleted_after_a_restart(
        self, scripted: ScriptedEngine, clock: Clock
    ) -> None:
        async with running(scripted, clock) as groups:
            await commit(groups, ADMIN, 7)
            await groups.delete_group("group")
            assert groups.cache.get("group") is None
            with pytest.raises(GroupIdNotFound):
                await groups.delete_group("group")
        async with running(scripted, clock) as groups:
            assert list(groups.cache.groups()) == []
            assert groups.offsets.get("group") == {}

    async def test_a_group_with_members_is_not_deleted(
        self, scripted: ScriptedEngine, clock: Clock
    ) -> None:
        async with running(scripted, clock) as groups:
            await one_member(groups)
            with pytest.raises(NonEmptyGroup):
                await groups.delete_group("group")

    async def test_requests_during_the_deletion_of_a_group_get_a_retriable_error(
        self, scripted: ScriptedEngine, clock: Clock
    ) -> None:
        async with running(scripted, clock) as groups:
            await commit(groups, ADMIN, 7)
            scripted.gate.clear()
            deleting = asyncio.create_task(groups.delete_group("group"))
            await scripted.next_insert()
            with pytest.raises(CoordinatorNotAvailable):
                await groups.join("group", joining())
            with pytest.raises(CoordinatorNotAvailable):
                await commit(groups, ADMIN, 8)
            with pytest.raises(CoordinatorNotAvailable):
                await groups.delete_group("group")
            scripted.gate.set()
            await deleting
            joined = await groups.join("group", joining())
            assert joined.generation == 1
        async with running(scripted, clock) as groups:
            assert groups.cache.get("group") is not None, "the new one hides the old one's end"

    async def test_a_deletion_that_cannot_be_stored_leaves_the_group_unchanged(
        self, scripted: ScriptedEngine, clock: Clock
    ) -> None:
        async with running(scripted, clock) as groups:
            await commit(groups, ADMIN, 7)
            scripted.faults.append("refused")
            with pytest.raises(CoordinatorNotAvailable):
                await groups.delete_group("group")
            assert groups.offsets.get("group")[TOPIC, 0].offset == 7
            await commit(groups, ADMIN, 8)
