"""The cache of groups on a real engine: write-through, restarts, crashes, other brokers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from brokerhouse.coordinator.group_cache import CacheWorker, GroupCache
from brokerhouse.coordinator.messages import GroupRecord, OffsetCommit
from brokerhouse.coordinator.offsets import CommittedOffsets
from brokerhouse.coordinator.slots import always
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import EngineError
from brokerhouse.storage.row_lane import RowLane
from tests.support.clock import Clock
from tests.support.engine_owner import EngineOwner
from tests.support.group_records import COMMITTER, TOPIC_ID, group, member
from tests.support.log_parts import LANES, ScriptedEngine
from tests.support.small_tables import (
    ENDLESS,
    NODE_ID,
    OTHER_NODE_ID,
    make_lane,
    settled,
)
from tests.support.waiting import LIMIT_S, until_async

ALL_BYTES = bytes(range(256))
STRANGE_IDS = ["'; DROP TABLE x --", 'quo"te', "new\nline", "nul\0", "\\", "é😀", " ", "{a:String}"]


@pytest.fixture
def clock() -> Clock:
    """Begins now: the table of heartbeats takes none that are older than a day."""
    return Clock(time.time_ns() // 1_000_000)


@pytest.fixture
async def lane(scripted: ScriptedEngine) -> AsyncIterator[RowLane]:
    made = make_lane(scripted)
    yield made
    scripted.gate.set()
    await made.close()


@pytest.fixture
async def cache(scripted: ScriptedEngine, lane: RowLane, clock: Clock) -> GroupCache:
    return GroupCache(scripted, lane, NODE_ID, ENDLESS, clock)


@pytest.fixture
async def other(scripted: ScriptedEngine, lane: RowLane, clock: Clock) -> GroupCache:
    """The cache of another broker."""
    return GroupCache(scripted, lane, OTHER_NODE_ID, ENDLESS, clock)


async def reloaded(
    engine: ScriptedEngine, lane: RowLane, clock: Clock, node_id: int = NODE_ID
) -> GroupCache:
    """The cache as after a restart."""
    again = GroupCache(engine, lane, node_id, ENDLESS, clock)
    await again.load()
    return again


def everything(cache: GroupCache) -> dict[str, GroupRecord]:
    return {record.group_id: record for record in cache.groups()}


async def count(engine: ScriptedEngine, table: str) -> int:
    rows = await engine.rows(f"SELECT count() FROM {table}")
    number: int = rows[0][0]
    return number


# --- Groups and members ---


async def test_a_restart_restores_groups_with_their_members(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, cache: GroupCache
) -> None:
    first = replace(member("a", 0, 1), assignment=ALL_BYTES, protocols=(("ü", ALL_BYTES),))
    record = group(cache, clock, first, member("b", 2, static="instance"), member("c"))
    await cache.store(record)
    assert cache.get("g") == record
    assert list(cache.groups()) == [record]
    assert everything(await reloaded(scripted, lane, clock)) == {"g": record}


async def test_any_text_can_be_a_group_id(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, cache: GroupCache
) -> None:
    records = [
        group(cache, clock, member(f"m{group_id}"), group_id=group_id) for group_id in STRANGE_IDS
    ]
    await asyncio.gather(*(cache.store(record) for record in records))
    again = await reloaded(scripted, lane, clock)
    assert everything(again) == {record.group_id: record for record in records}


async def test_members_are_loaded_in_the_order_in_which_they_joined(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, cache: GroupCache
) -> None:
    names = ["z", "a", "m"]
    members = [replace(member(name), join_time_ms=n) for n, name in enumerate(names)]
    await cache.store(group(cache, clock, *members))
    again = (await reloaded(scripted, lane, clock)).get("g")
    assert again is not None
    assert [one.member_id for one in again.members] == names


async def test_a_group_is_seen_when_it_is_stored_and_not_before(
    scripted: ScriptedEngine, clock: Clock, cache: GroupCache
) -> None:
    record = group(cache, clock, member("a"))
    scripted.gate.clear()
    storing = asyncio.create_task(cache.store(record))
    await scripted.next_insert()
    assert cache.get("g") is None
    assert not storing.done()
    scripted.gate.set()
    await storing
    assert cache.get("g") == record


async def test_a_group_whose_caller_left_is_seen_once_it_is_stored(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, cache: GroupCache
) -> None:
    record = group(cache, clock, member("a"))
    scripted.gate.clear()
    storing = asyncio.create_task(cache.store(record))
    await scripted.next_insert()
    storing.cancel()
    await asyncio.gather(storing, return_exceptions=True)
    scripted.gate.set()
    await lane.store()
    assert cache.get("g") == record


async def test_members_are_written_before_their_group_and_only_those_that_changed(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, cache: GroupCache
) -> None:
    members = [member(f"m{n}") for n in range(10)]
    await cache.store(group(cache, clock, *members))
    assert scripted.tables == ["group_member_versions", "consumer_group_versions"]
    assert await count(scripted, "group_member_versions") == 10
    members[3] = member("m3", 1, 2)
    await cache.store(group(cache, clock, *members, generation=2))
    assert await count(scripted, "group_member_versions") == 11
    await cache.store(group(cache, clock, *members, generation=3))
    assert scripted.tables[-1:] == ["consumer_group_versions"]
    assert len(scripted.tables) == 5
    assert everything(await reloaded(scripted, lane, clock)) == everything(cache)


async def test_members_that_left_stay_removed_after_a_restart(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, cache: GroupCache
) -> None:
    await cache.store(group(cache, clock, member("a"), member("b"), member("c")))
    await cache.store(group(cache, clock, member("b", 1), generation=2))
    assert everything(await reloaded(scripted, lane, clock)) == everything(cache)
    await cache.store(group(cache, clock, generation=3, state="Empty"))
    again = (await reloaded(scripted, lane, clock)).get("g")
    assert again is not None
    assert (again.members, again.state, again.generation) == ((), "Empty", 3)
    await cache.store(group(cache, clock, member("a", 4), generation=4))
    assert everything(await reloaded(scripted, lane, clock)) == everything(cache)


async def test_a_dead_group_is_removed_and_can_be_created_again(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, cache: GroupCache
) -> None:
    for generation in range(3):
        record = group(cache, clock, member("a"), generation=generation)
        await cache.store(record)
        assert everything(await reloaded(scripted, lane, clock)) == {"g": record}
        clock.now_ms -= 5000
        # Also with members that nobody took out before.
        await cache.store(replace(record, version=cache.next_version(clock()), state="Dead"))
        assert cache.get("g") is None
        assert everything(await reloaded(scripted, lane, clock)) == {}
        assert await scripted.rows("SELECT * FROM group_members") == []


async def test_versions_of_groups_grow_also_when_the_clock_is_set_back(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, cache: GroupCache
) -> None:
    versions = []
    for _ in range(3):
        versions += [cache.next_version(clock()) for _ in range(3)]
        await cache.store(group(cache, clock, member("a"), generation=len(versions)))
        clock.now_ms -= 60_000
        cache = await reloaded(scripted, lane, clock)
    assert versions == sorted(set(versions))
    record = cache.get("g")
    assert record is not None
    assert record.generation == 9
    assert cache.next_version(clock()) > record.version


async def test_the_views_show_groups_members_and_assignments(
    scripted: ScriptedEngine, clock: Clock, cache: GroupCache
) -> None:
    odd = replace(member("odd"), assignment=b"\xff\xff\xff")
    await cache.store(group(cache, clock, member("a", 0, 2, static="one"), member("b", 1), odd))
    await cache.store(group(cache, clock, group_id="dead", state="Dead"))
    cache.heartbeats.note("g", "b", clock() + 5)
    await cache.heartbeats.write()
    assert await scripted.rows(
        "SELECT group_id, state, generation, protocol_type, protocol_name, leader, members,"
        " coordinator FROM consumer_groups"
    ) == [["g", "Stable", 1, "consumer", "range", "a", 3, NODE_ID]]
    assert await scripted.rows(
        "SELECT member_id, group_instance_id, client_id, client_host, protocol_name, assignment,"
        " heartbeat_time = join_time, toUnixTimestamp64Milli(heartbeat_time) = {b:Int64}"
        " FROM group_members",
        {"b": clock() + 5},
    ) == [
        ["a", "one", "client of a", "10.0.0.1", "range", {"t": {"0": "a", "2": "a"}}, 1, 0],
        ["b", None, "client of b", "10.0.0.1", "range", {"t": {"1": "b"}}, 0, 1],
        ["odd", None, "client of odd", "10.0.0.1", "range", {}, 1, 0],
    ]
    assert await scripted.rows(
        "SELECT group_id, topic, partition, member_id, client_id FROM group_assignments"
    ) == [
        ["g", "t", 0, "a", "client of a"],
        ["g", "t", 1, "b", "client of b"],
        ["g", "t", 2, "a", "client of a"],
    ]


# --- Faults and crashes ---


async def test_a_change_that_is_refused_is_not_seen(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, cache: GroupCache
) -> None:
    record = group(cache, clock, member("a"))
    await cache.store(record)
    for faults in (["refused"], [None, "refused"]):
        scripted.faults.extend(faults)
        with pytest.raises(EngineError):
            await cache.store(group(cache, clock, member("a", 1), member("b"), generation=2))
        assert everything(cache) == {"g": record}


@pytest.mark.parametrize("fault", ["unknown", "unknown though stored"])
async def test_a_change_of_unknown_outcome_is_stored_once(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, cache: GroupCache, fault: str
) -> None:
    scripted.faults.extend([fault, None, fault])
    await cache.store(group(cache, clock, member("a"), member("b")))
    assert await count(scripted, "group_member_versions") == 2
    assert await count(scripted, "consumer_group_versions") == 1


async def test_after_a_partly_stored_change_the_next_one_is_stored_completely(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, cache: GroupCache
) -> None:
    """The rows of its members are in the table; the next record may not agree with them."""
    old = member("old", 0)
    await cache.store(group(cache, clock, old, member("leaves")))
    scripted.faults.extend([None, "refused"])
    with pytest.raises(EngineError):
        await cache.store(group(cache, clock, member("old", 5), member("new", 6), generation=2))
    record = group(cache, clock, old, member("leaves"), generation=3)
    await cache.store(record)
    assert everything(await reloaded(scripted, lane, clock)) == {"g": record}


async def crash_between_members_and_group(
    engine: ScriptedEngine, cache: GroupCache, record: GroupRecord
) -> None:
    """What a `kill -9` leaves: the same as a refusal of the second insert, and nothing after it."""
    engine.faults.extend([None, "refused"])
    with pytest.raises(EngineError):
        await cache.store(record)


async def test_a_group_that_was_being_changed_at_a_crash_has_to_rebalance(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, cache: GroupCache
) -> None:
    a, b, c = member("a", 0), member("b", 1), member("c", 2)
    await cache.store(group(cache, clock, a, b, generation=7))
    lost = group(cache, clock, member("b", 0, 1), c, generation=8)
    await crash_between_members_and_group(scripted, cache, lost)
    clock.now_ms += 50
    for _ in range(2):  # the repair itself survives a restart
        again = (await reloaded(scripted, lane, clock)).get("g")
        assert again is not None
        assert again.version > lost.version
        assert again == GroupRecord(
            "g",
            again.version,
            "PreparingRebalance",
            clock.now_ms,
            8,
            "consumer",
            "range",
            "",  # the leader, a, has left
            (member("b", 0, 1), c),
        )


@pytest.mark.parametrize("cleaned_up", [False, True])
async def test_a_group_whose_member_was_being_removed_at_a_crash_has_to_rebalance(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, cache: GroupCache, cleaned_up: bool
) -> None:
    """Even when the row that says that it has left was cleaned up just then."""
    await cache.store(group(cache, clock, member("a", 0), member("b", 1)))
    lost = group(cache, clock, member("a", 0), generation=2)
    await crash_between_members_and_group(scripted, cache, lost)
    if cleaned_up:
        await scripted.execute("OPTIMIZE TABLE group_member_versions FINAL CLEANUP")
    again = (await reloaded(scripted, lane, clock)).get("g")
    assert again is not None
    assert again.state == "PreparingRebalance"
    assert [one.member_id for one in again.members] == ["a"]
    assert again.leader == "a"


async def test_members_of_a_group_that_a_crash_left_without_its_row_are_removed(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, cache: GroupCache
) -> None:
    await cache.store(group(cache, clock, member("a"), group_id="ended"))
    await cache.store(group(cache, clock, group_id="ended", state="Dead"))
    for group_id in ("new", "ended"):
        lost = group(cache, clock, member("lost"), group_id=group_id)
        await crash_between_members_and_group(scripted, cache, lost)
    again = await reloaded(scripted, lane, clock)
    assert everything(again) == {}
    records = [group(again, clock, member("b"), group_id=g) for g in ("new", "ended")]
    for record in records:
        await again.store(record)
    assert everything(await reloaded(scripted, lane, clock)) == {r.group_id: r for r in records}
    assert await count(scripted, "group_members") == 2


async def test_a_start_removes_rows_of_dead_groups_and_of_members_that_left(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, cache: GroupCache
) -> None:
    for n in range(5):
        await cache.store(group(cache, clock, member("a"), member("b"), group_id=f"dead-{n}"))
        await cache.store(group(cache, clock, group_id=f"dead-{n}", state="Dead"))
        await cache.store(group(cache, clock, member("stays"), member(f"leaves-{n}")))
    await cache.store(group(cache, clock, member("stays")))
    again = await reloaded(scripted, lane, clock)
    assert await scripted.rows("SELECT member_id FROM group_member_versions") == [["stays"]]
    assert await scripted.rows("SELECT group_id FROM consumer_group_versions") == [["g"]]
    assert everything(again) == everything(cache)
    assert everything(await reloaded(scripted, lane, clock)) == everything(cache)


async def test_a_start_succeeds_although_its_clean_up_fails(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, cache: GroupCache
) -> None:
    await cache.store(group(cache, clock, member("a")))
    scripted.failing_rows.extend(["OPTIMIZE"] * 2)
    assert everything(await reloaded(scripted, lane, clock)) == everything(cache)


# --- Heartbeats ---


async def test_heartbeats_are_known_at_once_and_written_later_in_one_insert(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, cache: GroupCache
) -> None:
    await cache.store(group(cache, clock, member("a"), member("b")))
    assert cache.heartbeats.last_ms("g", "a") is None
    for n in range(3):
        cache.heartbeats.note("g", "a", clock() + n)
    cache.heartbeats.note("g", "b", clock())
    assert cache.heartbeats.last_ms("g", "a") == clock() + 2
    inserts = len(scripted.inserts)
    await cache.heartbeats.write()
    await cache.heartbeats.write()
    assert len(scripted.inserts) == inserts + 1
    assert await count(scripted, "group_heartbeats") == 2
    again = await reloaded(scripted, lane, clock)
    assert again.heartbeats.last_ms("g", "a") == clock() + 2
    assert again.heartbeats.last_ms("g", "b") == clock()


async def test_heartbeats_that_could_not_be_written_are_written_later(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, cache: GroupCache
) -> None:
    await cache.store(group(cache, clock, member("a"), member("b")))
    cache.heartbeats.note("g", "a", clock())
    cache.heartbeats.note("g", "b", clock())
    scripted.gate.clear()
    scripted.faults.append("refused")
    writing = asyncio.create_task(cache.heartbeats.write())
    await scripted.next_insert()
    cache.heartbeats.note("g", "b", clock() + 9)
    scripted.gate.set()
    with pytest.raises(EngineError):
        await writing
    await cache.heartbeats.write()
    again = await reloaded(scripted, lane, clock)
    assert again.heartbeats.last_ms("g", "a") == clock()
    assert again.heartbeats.last_ms("g", "b") == clock() + 9


async def test_heartbeats_of_members_that_left_are_forgotten(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, cache: GroupCache
) -> None:
    for group_id in ("g", "h"):
        await cache.store(group(cache, clock, member("a"), member("b"), group_id=group_id))
        cache.heartbeats.note(group_id, "a", clock())
        cache.heartbeats.note(group_id, "b", clock())
    await cache.store(group(cache, clock, member("b")))
    await cache.store(group(cache, clock, group_id="h", state="Dead"))
    await cache.heartbeats.write()
    assert cache.heartbeats.last_ms("g", "a") is None
    assert cache.heartbeats.last_ms("g", "b") == clock()
    assert cache.heartbeats.last_ms("h", "b") is None
    assert await scripted.rows("SELECT group_id, member_id FROM group_heartbeats") == [["g", "b"]]


# --- Other brokers ---


async def test_groups_that_another_broker_stored_are_seen_after_a_refresh(
    scripted: ScriptedEngine, clock: Clock, cache: GroupCache, other: GroupCache
) -> None:
    await cache.store(group(cache, clock, member("mine"), group_id="mine"))
    mine = everything(cache)
    await other.store(group(other, clock, member("a", 0), member("b")))
    other.heartbeats.note("g", "a", clock())
    await other.heartbeats.write()
    await cache.refresh()
    assert everything(cache) == mine | everything(other)
    assert cache.heartbeats.last_ms("g", "a") == clock()
    await other.store(group(other, clock, member("a", 0, 1), generation=2))
    await other.store(group(other, clock, member("x"), group_id="h"))
    await cache.refresh()
    assert everything(cache) == mine | everything(other)
    await other.store(group(other, clock, state="Dead"))
    await cache.refresh()
    assert everything(cache) == mine | everything(other)
    assert everything(cache).keys() == {"mine", "h"}
    assert cache.heartbeats.last_ms("g", "a") is None


async def test_the_higher_version_of_a_group_wins_whichever_broker_wrote_it(
    scripted: ScriptedEngine, clock: Clock, cache: GroupCache, other: GroupCache
) -> None:
    await scripted.execute("SYSTEM STOP MERGES")  # they would hide older rows
    await other.store(group(other, clock, member("a")))
    await other.store(group(other, clock, member("a"), group_id="h"))
    await other.store(group(other, clock, group_id="empty", state="Empty"))
    await cache.refresh()
    clock.now_ms += 1000
    record = group(cache, clock, member("b"), generation=5)
    await cache.store(record)
    for group_id in ("h", "empty"):
        await cache.store(group(cache, clock, group_id=group_id, state="Dead"))
    for _ in range(2):
        await cache.refresh()
        assert everything(cache) == {"g": record}
    await other.refresh()
    assert everything(other) == {"g": record}


async def test_a_group_that_another_broker_is_writing_is_seen_when_it_is_complete(
    scripted: ScriptedEngine,
    lane: RowLane,
    clock: Clock,
    cache: GroupCache,
    other: GroupCache,
) -> None:
    record = group(other, clock, member("a", 0))
    await other.store(record)
    await cache.refresh()
    changed = group(other, clock, member("a", 5), member("b"), generation=2)
    await crash_between_members_and_group(scripted, other, changed)
    late = GroupCache(scripted, lane, NODE_ID, ENDLESS, clock)
    await late.refresh()
    assert everything(late) == {}
    await cache.refresh()
    assert everything(cache) == {"g": record}
    await other.store(replace(changed, version=other.next_version(clock())))
    await cache.refresh()
    assert everything(cache) == everything(other)


async def test_heartbeats_older_than_two_minutes_are_not_read(
    scripted: ScriptedEngine, clock: Clock, cache: GroupCache, other: GroupCache
) -> None:
    await other.store(group(other, clock, member("a"), member("b")))
    other.heartbeats.note("g", "a", clock() - 121_000)
    other.heartbeats.note("g", "b", clock() - 119_000)
    await other.heartbeats.write()
    await cache.refresh()
    assert cache.heartbeats.last_ms("g", "a") is None
    assert cache.heartbeats.last_ms("g", "b") == clock() - 119_000


# --- The worker ---


def never() -> bool:
    return False


async def test_the_worker_reads_groups_writes_heartbeats_and_survives_refusals(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, other: GroupCache
) -> None:
    offsets = CommittedOffsets(scripted, lane, NODE_ID, clock)
    cache = GroupCache(scripted, lane, NODE_ID, ENDLESS, clock)
    worker = CacheWorker(cache, offsets, never, poll_s=0.01, heartbeats_s=0.02)
    worker.start()
    try:
        await cache.store(group(cache, clock, member("mine"), group_id="mine"))
        cache.heartbeats.note("mine", "mine", clock())

        async def written() -> bool:
            return await count(scripted, "group_heartbeats") == 1

        await until_async(written)
        scripted.failing_rows.append("consumer_group_versions")
        await other.store(group(other, clock, member("a")))
        others = CommittedOffsets(scripted, lane, OTHER_NODE_ID, clock)
        commit = OffsetCommit("t", TOPIC_ID, 0, 17, -1, "", None)
        await others.commit("g", COMMITTER, [commit])

        async def seen() -> bool:
            return cache.get("g") == other.get("g") and offsets.get("g") == others.get("g")

        await until_async(seen)
        assert not scripted.failing_rows
    finally:
        await worker.close()
    assert worker.task is not None
    assert worker.task.done()


async def test_the_last_heartbeats_are_written_when_the_worker_stops(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, cache: GroupCache
) -> None:
    await cache.store(group(cache, clock, member("a")))
    worker = CacheWorker(cache, CommittedOffsets(scripted, lane, NODE_ID, clock), never)
    worker.start()
    cache.heartbeats.note("g", "a", clock() + 1)
    await worker.close()
    again = await reloaded(scripted, lane, clock)
    assert again.heartbeats.last_ms("g", "a") == clock() + 1


async def test_an_unexpected_error_ends_the_worker_and_is_the_result_of_its_task(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise AssertionError("a defect")

    cache = GroupCache(scripted, lane, NODE_ID, ENDLESS, clock)
    worker = CacheWorker(
        cache, CommittedOffsets(scripted, lane, NODE_ID, clock), never, poll_s=0.01
    )
    monkeypatch.setattr(scripted, "rows", broken)
    worker.start()
    assert worker.task is not None
    async with asyncio.timeout(LIMIT_S):
        await asyncio.wait([worker.task])
    with pytest.raises(AssertionError, match="a defect"):
        worker.task.result()


async def test_a_single_broker_writes_heartbeats_and_reads_no_groups(
    scripted: ScriptedEngine, lane: RowLane, clock: Clock, cache: GroupCache
) -> None:
    await cache.store(group(cache, clock, member("a")))
    offsets = CommittedOffsets(scripted, lane, NODE_ID, clock)
    worker = CacheWorker(cache, offsets, always, poll_s=0.01, heartbeats_s=0.02)
    scripted.failing_rows.append("consumer_group_versions")
    worker.start()
    try:
        cache.heartbeats.note("g", "a", clock())

        async def written() -> bool:
            return await count(scripted, "group_heartbeats") == 1

        await until_async(written)
        assert list(scripted.failing_rows) == ["consumer_group_versions"], "nobody has read it"
    finally:
        await worker.close()


async def test_a_single_broker_sends_one_query_per_refresh(
    scripted: ScriptedEngine, clock: Clock, cache: GroupCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cache.store(group(cache, clock, member("a")))
    cache.heartbeats.note("g", "a", clock())
    await cache.heartbeats.write()
    asked = []
    rows = scripted.rows

    async def counted(sql: str, *params: dict[str, str | int]) -> list[list[object]]:
        asked.append(sql)
        return await rows(sql, *params)

    monkeypatch.setattr(scripted, "rows", counted)
    await cache.refresh()
    await settled()
    assert len(asked) == 1


# --- A process that dies ---

CHANGE_GROUPS_FOR_EVER = """
import asyncio, sys
from pathlib import Path
from brokerhouse.common.clock import Clock
from brokerhouse.coordinator.group_cache import GroupCache
from brokerhouse.coordinator.messages import OffsetCommit
from brokerhouse.coordinator.offsets import CommittedOffsets
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.schema import migrate
from tests.support.small_tables import ENDLESS, NODE_ID, make_lane
from tests.support.group_records import COMMITTER, TOPIC_ID, group, member

clock = Clock()

async def change(cache, offsets, group_id):
    for generation in range(10**9):
        leader = member(f"m{generation}", generation)
        await cache.store(
            group(cache, clock, leader, member("b"), group_id=group_id, generation=generation)
        )
        commit = OffsetCommit("t", TOPIC_ID, 0, generation, -1, "", None)
        await offsets.commit(group_id, COMMITTER, [commit])
        print(group_id, generation, flush=True)

async def main():
    engine = EmbeddedEngine(Path(sys.argv[1]), 3, fsync=False)
    await migrate(engine)
    lane = make_lane(engine)
    offsets = CommittedOffsets(engine, lane, NODE_ID, clock)
    cache = GroupCache(engine, lane, NODE_ID, ENDLESS, clock)
    await cache.load()
    await offsets.load(lambda _: True)
    print("loaded", -1, flush=True)
    await asyncio.gather(*(change(cache, offsets, f"g{n}") for n in range(4)))

asyncio.run(main())
"""


@pytest.mark.test_all
@pytest.mark.usefixtures("alone")
async def test_acknowledged_group_changes_survive_a_kill(tmp_path: Path) -> None:
    """And every group is one that was, or one that has to rebalance."""
    clock = Clock(time.time_ns() // 1_000_000)
    for changes in (1, 40, 97):
        owner = EngineOwner(tmp_path / "data", CHANGE_GROUPS_FOR_EVER)
        done: dict[str, int] = {}
        for _ in range(changes):
            name, number = owner.line().split()
            done[name] = int(number)
        owner.kill()
        del done["loaded"]
        engine = EmbeddedEngine(tmp_path / "data", LANES, fsync=False)
        lane = make_lane(engine)
        cache = GroupCache(engine, lane, NODE_ID, ENDLESS, clock)
        offsets = CommittedOffsets(engine, lane, NODE_ID, clock)
        await cache.load()
        await offsets.load(lambda _: True)
        for group_id, generation in done.items():
            record, offset = cache.get(group_id), offsets.get(group_id)["t", 0].offset
            assert record is not None
            assert min(record.generation, offset) >= generation
            if record.state != "PreparingRebalance":
                assert {m.member_id for m in record.members} == {f"m{record.generation}", "b"}
                assert record.generation - offset in (0, 1)
        await lane.close()
        await engine.close()
        clock.now_ms += 60_000
