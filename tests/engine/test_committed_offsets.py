"""Committed offsets on a real engine: order, faults, restarts, ends."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from uuid import UUID

import pytest

from brokerhouse.coordinator.messages import (
    Client,
    CommittedOffset,
    Committer,
    OffsetCommit,
    TopicPartition,
)
from brokerhouse.coordinator.offsets import CommittedOffsets
from brokerhouse.storage.engine import EngineError
from brokerhouse.storage.row_lane import RowLane
from tests.support.clock import Clock
from tests.support.log_parts import ScriptedEngine
from tests.support.small_tables import (
    NODE_ID,
    OTHER_NODE_ID,
    make_lane,
    settled,
)

ID = UUID(int=1)
OTHER_ID = UUID(int=2)
MEMBER = Committer("member", None, 3, Client("client", "10.0.0.1"))
DAY_MS = 86_400_000
RETENTION_MS = 7 * DAY_MS
STRANGE_IDS = ["'; DROP TABLE x --", 'quo"te', "new\nline", "nul\0", "\\", "é😀", " ", "{a:String}"]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def lane(scripted: ScriptedEngine) -> AsyncIterator[RowLane]:
    made = make_lane(scripted)
    yield made
    scripted.gate.set()
    await made.close()


@pytest.fixture
async def offsets(scripted: ScriptedEngine, lane: RowLane, clock: Clock) -> CommittedOffsets:
    return CommittedOffsets(scripted, lane, NODE_ID, clock)


def commit(offset: int, partition: int = 0, topic: str = "t", topic_id: UUID = ID) -> OffsetCommit:
    return OffsetCommit(topic, topic_id, partition, offset, 5, f"at {offset}", None)


def committed(given: OffsetCommit, clock: Clock) -> CommittedOffset:
    return CommittedOffset(
        given.topic_id,
        given.offset,
        given.leader_epoch,
        given.metadata,
        clock.now_ms,
        given.expire_time_ms,
    )


async def reloaded(
    engine: ScriptedEngine,
    lane: RowLane,
    clock: Clock,
    live: Mapping[str, UUID] | None = None,
    node_id: int = NODE_ID,
) -> CommittedOffsets:
    """The offsets as after a restart."""
    again = CommittedOffsets(engine, lane, node_id, clock)
    await again.load(lambda _: True)
    await again.keep_topics({"t": ID, "other": OTHER_ID} if live is None else live)
    return again


def everything(offsets: CommittedOffsets) -> dict[str, dict[TopicPartition, CommittedOffset]]:
    return {group_id: dict(offsets.get(group_id)) for group_id in offsets.groups()}


def numbers(offsets: CommittedOffsets, group_id: str = "g") -> dict[TopicPartition, int]:
    return {partition: found.offset for partition, found in offsets.get(group_id).items()}


async def latest(engine: ScriptedEngine) -> list[list[object]]:
    """The current offsets, by SQL."""
    return await engine.rows(
        "SELECT group_id, topic, partition, offset FROM latest_offsets WHERE NOT deleted"
        " ORDER BY group_id, topic, partition"
    )


async def history(engine: ScriptedEngine) -> list[list[object]]:
    return await engine.rows(
        "SELECT group_id, partition, offset, deleted FROM consumer_offsets ORDER BY version"
    )


# --- Commits ---


async def test_committed_offsets_are_read_back_also_after_a_restart(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, offsets: CommittedOffsets
) -> None:
    plain = commit(17)
    bounded = commit(2**63 - 1, 1)._replace(expire_time_ms=clock.now_ms + 5, metadata="")
    other = commit(0, 7, "other", OTHER_ID)._replace(leader_epoch=-1, metadata="nul\0 é\n'")
    await offsets.commit("g", MEMBER, [plain, bounded, other])
    expected = {
        ("t", 0): committed(plain, clock),
        ("t", 1): committed(bounded, clock),
        ("other", 7): committed(other, clock),
    }
    assert offsets.get("g") == expected
    assert offsets.get("nobody") == {}
    assert list(offsets.groups()) == ["g"]
    again = await reloaded(scripted, lane, clock)
    assert everything(again) == {"g": expected}


async def test_any_text_can_be_a_group_id(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, offsets: CommittedOffsets
) -> None:
    for number, group_id in enumerate(STRANGE_IDS):
        await offsets.commit(group_id, MEMBER, [commit(number)])
    again = await reloaded(scripted, lane, clock)
    expected = {group_id: number for number, group_id in enumerate(STRANGE_IDS)}
    assert {g: numbers(again, g)["t", 0] for g in again.groups()} == expected


async def test_every_commit_stores_a_row_with_its_member_client_and_generation(
    scripted: ScriptedEngine, offsets: CommittedOffsets
) -> None:
    for offset in (1, 2, 2):
        await offsets.commit("g", MEMBER, [commit(offset)])
    assert await scripted.rows(
        "SELECT offset, member_id, client_id, client_host, generation, coordinator, deleted"
        " FROM consumer_offsets ORDER BY version"
    ) == [[n, "member", "client", "10.0.0.1", 3, NODE_ID, False] for n in (1, 2, 2)]


async def test_the_last_offset_counts_when_a_commit_names_a_partition_twice(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, offsets: CommittedOffsets
) -> None:
    await offsets.commit("g", MEMBER, [commit(9), commit(4), commit(5, 1)])
    assert numbers(offsets) == {("t", 0): 4, ("t", 1): 5}
    assert everything(await reloaded(scripted, lane, clock)) == everything(offsets)


async def test_an_expiry_time_beyond_the_range_is_stored_as_the_latest_time(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, offsets: CommittedOffsets
) -> None:
    await offsets.commit("g", MEMBER, [commit(1)._replace(expire_time_ms=2**70)])
    again = await reloaded(scripted, lane, clock)
    assert again.get("g")["t", 0].expire_time_ms == 2**63 - 1


async def test_a_commit_is_not_visible_before_it_is_stored(
    scripted: ScriptedEngine, offsets: CommittedOffsets
) -> None:
    scripted.gate.clear()
    committing = asyncio.create_task(offsets.commit("g", MEMBER, [commit(1)]))
    await scripted.next_insert()
    assert offsets.get("g") == {}
    assert list(offsets.groups()) == []
    assert not committing.done()
    scripted.gate.set()
    await committing
    assert numbers(offsets) == {("t", 0): 1}


async def test_commits_of_a_partition_take_effect_in_the_order_of_the_calls(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, offsets: CommittedOffsets
) -> None:
    rnd = random.Random(1)
    calls = []
    expected: dict[TopicPartition, int] = {}
    for number in range(300):
        partitions = rnd.sample(range(4), rnd.randint(1, 4))
        calls.append(
            asyncio.create_task(
                offsets.commit("g", MEMBER, [commit(number, partition) for partition in partitions])
            )
        )
        expected.update({("t", partition): number for partition in partitions})
        if rnd.random() < 0.1:
            await asyncio.sleep(0)
        clock.now_ms += rnd.choice([0, 0, 1, -5])
    await asyncio.gather(*calls)
    assert numbers(offsets) == expected
    assert numbers(await reloaded(scripted, lane, clock)) == expected


async def test_when_the_clock_is_set_back_the_newest_commit_still_wins(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, offsets: CommittedOffsets
) -> None:
    for offset in range(5):
        await offsets.commit("g", MEMBER, [commit(offset)])
        clock.now_ms -= DAY_MS
    for offset in range(5, 8):
        offsets = await reloaded(scripted, lane, clock)
        assert numbers(offsets) == {("t", 0): offset - 1}
        await offsets.commit("g", MEMBER, [commit(offset)])
        clock.now_ms -= DAY_MS
    assert [row[2] for row in await history(scripted)] == list(range(8))


# --- Faults ---


async def test_a_commit_that_is_refused_changes_nothing(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, offsets: CommittedOffsets
) -> None:
    await offsets.commit("g", MEMBER, [commit(1)])
    scripted.faults.extend(["refused", "refused"])
    with pytest.raises(EngineError):
        await offsets.commit("g", MEMBER, [commit(2), commit(2, 1)])
    with pytest.raises(EngineError):
        await offsets.commit("new", MEMBER, [commit(2)])
    assert numbers(offsets) == {("t", 0): 1}
    assert list(offsets.groups()) == ["g"]
    assert everything(await reloaded(scripted, lane, clock)) == everything(offsets)


@pytest.mark.parametrize("fault", ["unknown", "unknown though stored"])
async def test_a_commit_of_unknown_outcome_is_stored_once(
    scripted: ScriptedEngine, offsets: CommittedOffsets, fault: str
) -> None:
    scripted.faults.append(fault)
    await offsets.commit("g", MEMBER, [commit(1)])
    assert numbers(offsets) == {("t", 0): 1}
    assert await history(scripted) == [["g", 0, 1, False]]


async def test_a_commit_whose_caller_left_is_visible_once_it_is_stored(
    scripted: ScriptedEngine, offsets: CommittedOffsets
) -> None:
    scripted.gate.clear()
    committing = asyncio.create_task(offsets.commit("g", MEMBER, [commit(1)]))
    await scripted.next_insert()
    committing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await committing
    scripted.gate.set()
    await offsets.commit("g", MEMBER, [commit(5, 1)])
    assert numbers(offsets) == {("t", 0): 1, ("t", 1): 5}


# --- Deletions ---


async def test_deleted_offsets_stay_deleted_after_a_restart(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, offsets: CommittedOffsets
) -> None:
    await offsets.commit("g", MEMBER, [commit(1), commit(2, 1), commit(3, 2)])
    await offsets.commit("h", MEMBER, [commit(1)])
    await offsets.delete("g", [("t", 1), ("t", 9), ("nothing", 0)])
    assert numbers(offsets) == {("t", 0): 1, ("t", 2): 3}
    assert everything(await reloaded(scripted, lane, clock)) == everything(offsets)
    await offsets.delete("g", None)
    assert list(offsets.groups()) == ["h"]
    assert everything(await reloaded(scripted, lane, clock)) == everything(offsets)
    assert await latest(scripted) == [["h", "t", 0, 1]]
    await offsets.commit("g", MEMBER, [commit(7, 1)])
    assert numbers(await reloaded(scripted, lane, clock)) == {("t", 1): 7}


async def test_a_deletion_that_is_refused_changes_nothing(
    scripted: ScriptedEngine, offsets: CommittedOffsets
) -> None:
    await offsets.commit("g", MEMBER, [commit(1)])
    scripted.faults.extend(["refused"] * 2)
    with pytest.raises(EngineError):
        await offsets.delete("g", None)
    with pytest.raises(EngineError):
        await offsets.forget_topic("t", ID)
    assert numbers(offsets) == {("t", 0): 1}


async def test_deleting_unknown_offsets_stores_no_row(
    scripted: ScriptedEngine, offsets: CommittedOffsets
) -> None:
    await offsets.delete("g", None)
    await offsets.delete("g", [("t", 0)])
    await offsets.forget_topic("t", ID)
    await offsets.commit("g", MEMBER, [])
    assert await history(scripted) == []


async def test_a_deletion_removes_commits_in_flight_and_keeps_later_ones(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, offsets: CommittedOffsets
) -> None:
    deletions: list[Callable[[], Coroutine[None, None, None]]] = [
        lambda: offsets.delete("g", None),
        lambda: offsets.delete("g", [("t", 0), ("t", 1)]),
        lambda: offsets.forget_topic("t", ID),
    ]
    for delete in deletions:
        await offsets.commit("g", MEMBER, [commit(1)])
        scripted.gate.clear()
        calls = [
            asyncio.create_task(offsets.commit("g", MEMBER, [commit(2)])),
            asyncio.create_task(offsets.commit("g", MEMBER, [commit(3, 1)])),
            asyncio.create_task(delete()),
            asyncio.create_task(offsets.commit("g", MEMBER, [commit(4)])),
        ]
        await settled()
        scripted.gate.set()
        await asyncio.gather(*calls)
        assert numbers(offsets) == {("t", 0): 4}
        assert numbers(await reloaded(scripted, lane, clock)) == {("t", 0): 4}


async def test_offsets_of_a_deleted_topic_are_deleted_in_every_group(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, offsets: CommittedOffsets
) -> None:
    for group_id in ("a", "b", "c"):
        await offsets.commit(group_id, MEMBER, [commit(1), commit(2, 1)])
    await offsets.commit("c", MEMBER, [commit(3, 0, "other", OTHER_ID)])
    await offsets.forget_topic("other", ID)  # another of that name, long ago
    assert len(offsets.get("c")) == 3
    await offsets.forget_topic("t", ID)
    assert {g: numbers(offsets, g) for g in offsets.groups()} == {"c": {("other", 0): 3}}
    assert everything(await reloaded(scripted, lane, clock)) == everything(offsets)


@pytest.mark.parametrize("live", [{"other": OTHER_ID}, {"t": UUID(int=9), "other": OTHER_ID}])
async def test_a_start_deletes_offsets_of_topics_that_were_deleted_or_created_again(
    scripted: ScriptedEngine,
    lane: RowLane,
    clock: Clock,
    offsets: CommittedOffsets,
    live: Mapping[str, UUID],
) -> None:
    await offsets.commit("g", MEMBER, [commit(1), commit(2, 1), commit(3, 0, "other", OTHER_ID)])
    await offsets.commit("h", MEMBER, [commit(4)])
    again = await reloaded(scripted, lane, clock, live)
    assert {g: numbers(again, g) for g in again.groups()} == {"g": {("other", 0): 3}}
    assert await latest(scripted) == [["g", "other", 0, 3]]
    # Once dropped they stay so, even if the old topic seems to be there.
    assert everything(await reloaded(scripted, lane, clock)) == everything(again)


async def test_offsets_of_deleted_topics_are_not_served_though_a_full_disk_keeps_their_rows(
    scripted: ScriptedEngine,
    lane: RowLane,
    clock: Clock,
    offsets: CommittedOffsets,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await offsets.commit("g", MEMBER, [commit(1), commit(3, 0, "other", OTHER_ID)])
    live = {"other": OTHER_ID}
    scripted.faults.append("refused")
    again = await reloaded(scripted, lane, clock, live)
    assert numbers(again, "g") == {("other", 0): 3}
    assert "retrying at the next start" in caplog.text
    assert numbers(await reloaded(scripted, lane, clock, live), "g") == {("other", 0): 3}
    assert await latest(scripted) == [["g", "other", 0, 3]]


# --- Ends ---


def ends(
    offsets: CommittedOffsets,
    now_ms: int,
    emptied_ms: int | None,
    subscribed: Sequence[str] = (),
) -> list[TopicPartition]:
    return sorted(offsets.expired("g", now_ms, emptied_ms, subscribed, RETENTION_MS))


async def test_offsets_of_an_empty_group_expire_the_retention_time_after_the_last_member_left(
    clock: Clock, offsets: CommittedOffsets
) -> None:
    """Whenever they were committed: `ClassicGroup.offsetExpirationCondition` of Kafka."""
    start = clock.now_ms
    await offsets.commit("g", MEMBER, [commit(1)])
    clock.now_ms += DAY_MS
    await offsets.commit("g", MEMBER, [commit(1, 1)])
    for emptied_ms in (start + 100, start + 30 * DAY_MS):
        assert ends(offsets, emptied_ms + RETENTION_MS - 1, emptied_ms) == []
        assert ends(offsets, emptied_ms + RETENTION_MS, emptied_ms) == [("t", 0), ("t", 1)]


async def test_offsets_of_a_group_that_never_had_members_expire_by_the_time_of_their_commit(
    clock: Clock, offsets: CommittedOffsets
) -> None:
    start = clock.now_ms
    await offsets.commit("g", MEMBER, [commit(1), commit(1, 1)])
    clock.now_ms += DAY_MS
    await offsets.commit("g", MEMBER, [commit(2, 1)])
    assert ends(offsets, start + RETENTION_MS - 1, None) == []
    assert ends(offsets, start + RETENTION_MS, None) == [("t", 0)]
    assert ends(offsets, start + DAY_MS + RETENTION_MS, None) == [("t", 0), ("t", 1)]


async def test_offsets_of_a_topic_that_the_group_reads_do_not_expire(
    clock: Clock, offsets: CommittedOffsets
) -> None:
    bounded = commit(1, 1)._replace(expire_time_ms=clock.now_ms + 1)
    await offsets.commit("g", MEMBER, [commit(1), bounded, commit(1, 0, "other", OTHER_ID)])
    now = clock.now_ms + RETENTION_MS
    assert ends(offsets, now - 1, None, ["t"]) == []
    assert ends(offsets, now, None, ["t"]) == [("other", 0)]
    assert ends(offsets, now, None, ["t", "other"]) == []


async def test_offsets_with_an_expiry_time_from_the_client_expire_at_that_time(
    clock: Clock, offsets: CommittedOffsets
) -> None:
    soon = commit(1)._replace(expire_time_ms=clock.now_ms + 5)
    late = commit(1, 1)._replace(expire_time_ms=clock.now_ms + 30 * DAY_MS)
    await offsets.commit("g", MEMBER, [soon, late])
    for emptied_ms in (None, clock.now_ms + DAY_MS):
        assert ends(offsets, clock.now_ms + 4, emptied_ms) == []
        assert ends(offsets, clock.now_ms + 5, emptied_ms) == [("t", 0)]
        assert ends(offsets, clock.now_ms + 30 * DAY_MS - 1, emptied_ms) == [("t", 0)]
    assert ends(offsets, clock.now_ms + 30 * DAY_MS, None) == [("t", 0), ("t", 1)]


async def test_a_group_without_offsets_has_no_expired_offsets(offsets: CommittedOffsets) -> None:
    assert ends(offsets, 2**60, 0) == []


# --- The history and its end ---


async def age(engine: ScriptedEngine, days: int) -> None:
    """Make all rows of the history older, as if time had passed."""
    await engine.execute("CREATE TABLE aged AS consumer_offsets ENGINE = Memory")
    columns = (
        "group_id, topic, topic_id, partition, offset, leader_epoch, metadata, member_id,"
        " client_id, client_host, generation, commit_time, expire_time, deleted, version,"
        " coordinator"
    )
    await engine.execute(
        f"INSERT INTO aged ({columns}, stored_at) SELECT {columns},"
        " stored_at - toIntervalDay({days:UInt32}) FROM consumer_offsets",
        {"days": days},
    )
    await engine.execute("TRUNCATE TABLE consumer_offsets")
    await engine.execute("SYSTEM STOP TTL MERGES consumer_offsets")
    await engine.execute(
        f"INSERT INTO consumer_offsets ({columns}, stored_at) SELECT {columns}, stored_at FROM aged"
    )
    await engine.execute("DROP TABLE aged")


async def expire(engine: ScriptedEngine) -> None:
    await engine.execute("SYSTEM START TTL MERGES consumer_offsets")
    await engine.execute("OPTIMIZE TABLE consumer_offsets FINAL")


async def test_current_offsets_outlive_the_ttl_of_the_history(
    scripted: ScriptedEngine, lane: RowLane
) -> None:
    clock = Clock(await now_ms(scripted))
    offsets = CommittedOffsets(scripted, lane, NODE_ID, clock)
    bounded = commit(2, 1)._replace(expire_time_ms=clock.now_ms + 5, metadata="é\0")
    await offsets.commit("g", MEMBER, [commit(0), bounded])
    await offsets.commit("g", MEMBER, [commit(1)])
    await offsets.commit("g", MEMBER, [commit(7, 2)])
    await offsets.delete("g", [("t", 2)])
    expected = everything(offsets)
    for _ in range(6):  # half a year
        await age(scripted, 30)
        offsets = await reloaded(scripted, lane, clock)
        await offsets.rewrite_old()
        await expire(scripted)
        assert everything(await reloaded(scripted, lane, clock)) == expected
    assert await scripted.rows(
        "SELECT partition, offset, member_id, client_host, generation, deleted"
        " FROM consumer_offsets WHERE stored_at > now64(3) - INTERVAL 1 DAY ORDER BY partition"
    ) == [[0, 1, "member", "10.0.0.1", 3, False], [1, 2, "member", "10.0.0.1", 3, False]]
    assert await scripted.rows(
        "SELECT count() FROM consumer_offsets WHERE stored_at < now64(3) - INTERVAL 71 DAY"
    ) == [[0]]


async def test_offsets_older_than_a_week_are_written_again_once_a_day(
    scripted: ScriptedEngine, lane: RowLane
) -> None:
    clock = Clock(await now_ms(scripted))
    offsets = CommittedOffsets(scripted, lane, NODE_ID, clock)
    await offsets.commit("g", MEMBER, [commit(1)])
    await age(scripted, 8)
    await offsets.commit("g", MEMBER, [commit(2, 1)])
    await offsets.rewrite_old()
    await offsets.rewrite_old()
    rows = [["g", 0, 1, False]] * 2 + [["g", 1, 2, False]]
    assert await history(scripted) == rows
    await age(scripted, 8)
    clock.now_ms += DAY_MS - 1
    await offsets.rewrite_old()
    assert await history(scripted) == rows
    clock.now_ms += 1
    await offsets.rewrite_old()
    assert len(await history(scripted)) == 5


async def test_writing_offsets_again_never_hides_a_commit(
    scripted: ScriptedEngine, lane: RowLane
) -> None:
    clock = Clock(await now_ms(scripted))
    offsets = CommittedOffsets(scripted, lane, NODE_ID, clock)
    await offsets.commit("g", MEMBER, [commit(1)])
    await age(scripted, 8)
    await asyncio.gather(offsets.rewrite_old(), offsets.commit("g", MEMBER, [commit(2)]))
    assert numbers(await reloaded(scripted, lane, clock)) == {("t", 0): 2}


async def test_offsets_whose_deletion_row_may_have_expired_are_not_current(
    scripted: ScriptedEngine, lane: RowLane
) -> None:
    """The row of a deletion may go before the row that it deleted."""
    clock = Clock(await now_ms(scripted))
    offsets = CommittedOffsets(scripted, lane, NODE_ID, clock)
    await offsets.commit("g", MEMBER, [commit(1)])
    await age(scripted, 64)
    assert len(await history(scripted)) == 1
    assert await latest(scripted) == []
    assert everything(await reloaded(scripted, lane, clock)) == {}


async def now_ms(engine: ScriptedEngine) -> int:
    """The engine's clock: it says when a row was stored."""
    rows = await engine.rows("SELECT toUnixTimestamp64Milli(now64(3))")
    now: int = rows[0][0]
    return now


async def test_current_offsets_are_read_from_the_projection(
    scripted: ScriptedEngine, offsets: CommittedOffsets
) -> None:
    for offset in range(20):
        await offsets.commit("g", MEMBER, [commit(offset, n) for n in range(10)])
    for sql in (
        "SELECT * FROM latest_offsets WHERE NOT deleted",
        "SELECT * FROM latest_offsets WHERE group_id = 'g'",
        "SELECT max(version) FROM consumer_offsets",
    ):
        plan = "\n".join(str(line) for (line,) in await scripted.rows(f"EXPLAIN {sql}"))
        assert "ReadFromMergeTree (latest)" in plan
        assert "consumer_offsets)" not in plan


# --- Other brokers ---


async def test_commits_that_another_broker_stored_are_seen_after_a_refresh(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, offsets: CommittedOffsets
) -> None:
    other = CommittedOffsets(scripted, lane, OTHER_NODE_ID, clock)
    await other.commit("g", MEMBER, [commit(1), commit(2, 1)])
    await offsets.refresh()
    assert everything(offsets) == everything(other)
    await other.commit("g", MEMBER, [commit(3)])
    await other.delete("g", [("t", 1)])
    await offsets.refresh()
    assert everything(offsets) == everything(other)
    assert numbers(offsets) == {("t", 0): 3}


async def test_the_higher_version_of_an_offset_wins_whichever_broker_wrote_it(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, offsets: CommittedOffsets
) -> None:
    other = CommittedOffsets(scripted, lane, OTHER_NODE_ID, clock)
    await other.commit("g", MEMBER, [commit(1), commit(2, 1), commit(3, 2)])
    clock.now_ms += 1000
    await offsets.commit("g", MEMBER, [commit(10)])
    await offsets.commit("g", MEMBER, [commit(20, 1)])
    await offsets.delete("g", [("t", 1)])
    for _ in range(2):
        await offsets.refresh()
        assert numbers(offsets) == {("t", 0): 10, ("t", 2): 3}
    assert numbers(await reloaded(scripted, lane, clock)) == {("t", 0): 10, ("t", 2): 3}


async def test_a_broker_does_not_read_its_own_rows_again(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, offsets: CommittedOffsets
) -> None:
    await offsets.commit("g", MEMBER, [commit(1)])
    twin = CommittedOffsets(scripted, lane, NODE_ID, clock)
    await twin.refresh()
    assert everything(twin) == {}


async def test_deletions_are_forgotten_after_a_minute(
    clock: Clock, offsets: CommittedOffsets
) -> None:
    for number in range(5):
        await offsets.commit(f"g-{number}", MEMBER, [commit(1)])
        await offsets.delete(f"g-{number}", None)
        clock.now_ms += 61_000
    assert len(offsets._deleted) == 1
