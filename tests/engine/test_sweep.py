"""Rows below a log start are deleted, and no others. Days without rows from a log start on are
dropped, but no day that may still be written to."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from brokerhouse.broker.log import sweep as sweep_module
from brokerhouse.broker.log.fence import burn, fence
from brokerhouse.broker.log.sweep import Sweep, is_over, is_worth_it
from brokerhouse.broker.topics.topic_cleanup import remove_rows
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.schema import migrate
from tests.support.clock import NOON, Clock
from tests.support.log_parts import LANES, make_topic
from tests.support.stored_rows import store_minute, store_records, store_topic
from tests.support.waiting import until_async

DAY = 86_400_000


class SweptLog:
    """Rows of any day, checkpoints, and how far the log is counted."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self.engine = engine
        self.clock = Clock(NOON)
        self.sweep = Sweep(engine, self.clock)

    async def topic(self, name: str, state: str = "live", topic_id: UUID | None = None) -> UUID:
        topic_id = topic_id or uuid4()
        version = 1 if state == "live" else 2
        await store_topic(self.engine, name, topic_id, 3, version=version, state=state)
        return topic_id

    async def rows(
        self,
        name: str,
        topic_id: UUID,
        first: int,
        count: int,
        days_ago: int = 0,
        partition: int = 0,
    ) -> None:
        await store_records(
            self.engine,
            name,
            topic_id,
            append_time_ms=NOON - days_ago * DAY,
            partition=partition,
            first=first,
            count=count,
            value_bytes=100,
        )

    async def start_at(self, topic_id: UUID, offset: int, partition: int = 0) -> None:
        await self.engine.execute(
            "INSERT INTO partition_checkpoints (* EXCEPT(forgot_producers))"
            " SELECT {id:UUID}, {partition:Int32},"
            " {offset:Int64}, {offset:Int64}",
            {"id": str(topic_id), "partition": partition, "offset": offset},
        )

    async def epochs(self, topic_id: UUID, partition: int, *starts: tuple[int, int]) -> None:
        """Leader epochs, and the offsets at which they began."""
        values = ", ".join(f"('{topic_id}', {partition}, {one[0]}, {one[1]})" for one in starts)
        await self.engine.execute(f"INSERT INTO leader_epochs VALUES {values}")

    async def epochs_left(self, topic_id: UUID) -> dict[int, list[tuple[int, int]]]:
        """By partition."""
        left: dict[int, list[tuple[int, int]]] = {}
        for partition, epoch, start in await self.engine.rows(
            "SELECT partition, leader_epoch, start_offset FROM leader_epochs"
            " WHERE topic_id = {id:UUID} ORDER BY partition, leader_epoch",
            {"id": str(topic_id)},
        ):
            left.setdefault(partition, []).append((epoch, start))
        return left

    async def counted(self, until_ms: int = NOON) -> None:
        """The log is counted up to there: no row of an earlier time can come."""
        await store_minute(self.engine, "", UUID(int=0), until_ms - 60_000, partition=-1)

    async def swept(self, rounds: int = 2) -> None:
        """Sweep until the engine has nothing left to do in the background."""
        for _ in range(rounds):
            await self.sweep.round()
            await until_async(self.is_idle)

    async def is_idle(self) -> bool:
        return await self.engine.rows("SELECT count() FROM system.mutations WHERE NOT is_done") == [
            [0]
        ]

    async def left(self) -> list[list[object]]:
        """Visible rows: topic, partition, first and last offset, number of rows."""
        return await self.engine.rows(
            "SELECT topic, partition, min(offset), max(offset), count() FROM messages"
            " GROUP BY topic, topic_id, partition ORDER BY topic, topic_id, partition"
        )

    async def days(self) -> dict[str, int]:
        """Rows on disk by day, masked ones included."""
        rows = await self.engine.rows(
            "SELECT partition, sum(rows) FROM system.parts WHERE database = currentDatabase()"
            " AND table = 'messages' AND active GROUP BY partition HAVING sum(rows) > 0"
        )
        return {str(day): count for day, count in rows}


@pytest.fixture
async def house(engine: EmbeddedEngine) -> SweptLog:
    return SweptLog(engine)


# --- rows ---


async def test_rows_below_the_log_start_are_deleted_and_no_others(house: SweptLog) -> None:
    first, second = await house.topic("first"), await house.topic("second")
    for partition in range(2):
        await house.rows("first", first, 0, 10, partition=partition)
    await house.rows("first", first, 10, 10, days_ago=1)
    await house.rows("second", second, 0, 10)
    await house.start_at(first, 4)
    await house.swept()
    assert await house.left() == [
        ["first", 0, 4, 19, 16],
        ["first", 1, 0, 9, 10],
        ["second", 0, 0, 9, 10],
    ]


async def test_a_topic_created_again_keeps_its_rows(house: SweptLog) -> None:
    old = await house.topic("events", "deleted")
    new = await house.topic("events")
    await house.rows("events", new, 0, 5)
    await house.start_at(old, 5)
    await house.swept()
    assert await house.left() == [["events", 0, 0, 4, 5]]


async def test_the_sweep_follows_a_log_start_that_moves_while_rows_are_deleted(
    house: SweptLog,
) -> None:
    events = await house.topic("events")
    await house.rows("events", events, 0, 30)
    for start in (10, 20, 25):
        await house.start_at(events, start)
        await house.sweep.round()  # the deletion of the round before may still run
    await house.swept(rounds=3)  # one may only wait for it, one deletes, one sees that it is done
    assert await house.left() == [["events", 0, 25, 29, 5]]
    assert house.sweep._dead[events, 0].by_day == {"20961120": 0}


async def test_rounds_without_new_dead_rows_start_no_deletion(house: SweptLog) -> None:
    events = await house.topic("events")
    await house.rows("events", events, 0, 10)
    await house.start_at(events, 4)
    await house.swept()
    count = "SELECT count() FROM system.mutations WHERE table = 'messages'"
    begun = await house.engine.rows(count)
    assert begun != [[0]]
    await house.swept(3)
    assert await house.engine.rows(count) == begun


async def test_rows_of_many_partitions_are_deleted_by_one_statement(house: SweptLog) -> None:
    for number in range(6):
        topic_id = await house.topic(f"t{number}")
        for partition in range(2):
            await house.rows(f"t{number}", topic_id, 0, 3, partition=partition)
            await house.start_at(topic_id, 2, partition)
    await house.swept()
    assert len(await house.left()) == 12
    assert all(row[2:] == [2, 2, 1] for row in await house.left())
    assert await house.engine.rows(
        "SELECT count() FROM system.mutations WHERE table = 'messages'"
    ) == [[1]]


async def test_a_new_process_deletes_rows_that_the_last_one_left(house: SweptLog) -> None:
    events = await house.topic("events")
    await house.rows("events", events, 0, 10)
    await house.start_at(events, 7)
    house.sweep = Sweep(house.engine, house.clock)  # nothing of the first one is known
    await house.swept()
    assert await house.left() == [["events", 0, 7, 9, 3]]


@pytest.mark.parametrize("waits", [False, True], ids=["until it is more", "for six hours"])
async def test_few_dead_rows_of_a_large_day_are_deleted_later(
    house: SweptLog, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    monkeypatch.setattr(sweep_module, "_SMALL_ROWS", 0)
    events = await house.topic("events")
    await house.rows("events", events, 0, 100)
    await house.start_at(events, 10)
    await house.swept(3)
    assert await house.left() == [["events", 0, 0, 99, 100]]
    assert house.sweep._dead[events, 0].by_day == {"20961120": 10}
    if waits:
        house.clock.now_ms += DAY // 4
    else:
        await house.start_at(events, 13)
    await house.swept(1)
    assert await house.left() == [["events", 0, 10 if waits else 13, 99, 90 if waits else 87]]


def test_a_large_day_is_swept_when_an_eighth_is_dead_or_after_six_hours() -> None:
    large = 80_000_000
    assert is_worth_it(1, 1_000_000, 0)
    assert not is_worth_it(0, 10, DAY)
    assert is_worth_it(large // 8, large, 0)
    assert not is_worth_it(large // 8 - 1, large, 0)
    assert is_worth_it(1, large, DAY // 4)


# --- days ---


async def test_a_day_without_live_rows_is_dropped_without_a_deletion(
    house: SweptLog,
) -> None:
    events, others = await house.topic("events"), await house.topic("others")
    await house.rows("events", events, 0, 10, days_ago=3)
    await house.rows("others", others, 0, 10, days_ago=3)
    await house.rows("events", events, 10, 5)
    await house.start_at(events, 10)
    await house.start_at(others, 10)
    await house.counted()
    await house.swept(1)
    assert await house.days() == {"2096-11-20": 5}
    assert await house.left() == [["events", 0, 10, 14, 5]]
    assert await house.engine.rows("SELECT count() FROM system.mutations") == [[0]]


@pytest.mark.parametrize("miscounted", [False, True], ids=["by number", "by offset"])
async def test_a_day_with_one_live_row_is_not_dropped(
    house: SweptLog, monkeypatch: pytest.MonkeyPatch, miscounted: bool
) -> None:
    if miscounted:  # rows that go while they are counted: what is left is looked at then

        async def none(_: object) -> int:
            return 0

        monkeypatch.setattr(house.sweep, "_rows_to_see", none)
    events, others = await house.topic("events"), await house.topic("others")
    await house.rows("events", events, 0, 10, days_ago=3)
    await house.rows("others", others, 0, 11, days_ago=3)
    await house.start_at(events, 10)
    await house.start_at(others, 10)
    await house.counted()
    await house.swept()
    assert await house.left() == [["others", 0, 10, 10, 1]]


async def test_a_day_with_rows_of_an_unknown_topic_is_not_dropped(house: SweptLog) -> None:
    await house.rows("new", uuid4(), 0, 1, days_ago=3)
    await house.counted()
    await house.swept()
    assert await house.left() == [["new", 0, 0, 0, 1]]


@pytest.mark.parametrize("days_ago", [0, 1], ids=["today", "yesterday"])
async def test_the_days_today_and_yesterday_are_not_dropped(house: SweptLog, days_ago: int) -> None:
    events = await house.topic("events")
    await house.rows("events", events, 0, 10, days_ago=days_ago)
    await house.start_at(events, 10)
    await house.counted(NOON + DAY)
    await house.swept(1)
    assert await house.left() == []
    assert list((await house.days()).values()) == [10]


async def test_a_day_that_is_not_counted_to_its_end_is_not_dropped(house: SweptLog) -> None:
    events = await house.topic("events")
    await house.rows("events", events, 0, 10, days_ago=3)
    await house.start_at(events, 10)
    end_of_day = NOON - NOON % DAY - 2 * DAY
    await house.counted(end_of_day - 60_000)
    await house.swept(1)
    assert await house.left() == []
    assert await house.days() == {"2096-11-17": 10}
    await house.counted(end_of_day)
    await house.swept(1)
    assert await house.days() == {}


def test_a_day_is_over_when_it_is_counted_and_two_days_ago() -> None:
    midnight = NOON - NOON % DAY
    assert is_over("20961118", midnight - DAY, midnight)
    assert not is_over("20961118", midnight - DAY - 60_000, midnight)
    assert not is_over("20961118", midnight, midnight - 1)
    assert not is_over("20961119", midnight + DAY, midnight)


async def test_days_of_deleted_topics_are_dropped(house: SweptLog) -> None:
    gone = await house.topic("gone")
    await house.rows("gone", gone, 0, 10, days_ago=3)
    await house.rows("gone", gone, 10, 10)
    await house.start_at(gone, 3)
    await house.counted()
    await remove_rows(house.engine, [replace(make_topic("gone"), topic_id=gone)])
    await house.topic("gone", "deleted", gone)
    await until_async(house.is_idle)
    await house.swept()
    assert await house.left() == []
    assert list(await house.days()) == ["2096-11-20"]
    assert await house.engine.rows("SELECT count() FROM partition_checkpoints") == [[0]]


# --- leader epochs ---


async def test_epochs_before_the_log_start_are_deleted_except_the_last_one(
    house: SweptLog,
) -> None:
    events, others = await house.topic("events"), await house.topic("others")
    for topic_id in (events, others):
        for partition in range(2):
            await house.epochs(topic_id, partition, (1, 0), (2, 10), (3, 20), (4, 30))
    await house.start_at(events, 20)
    await house.start_at(others, 19, partition=1)
    await house.swept()
    assert await house.epochs_left(events) == {
        0: [(3, 20), (4, 30)],
        1: [(1, 0), (2, 10), (3, 20), (4, 30)],
    }
    assert await house.epochs_left(others) == {
        0: [(1, 0), (2, 10), (3, 20), (4, 30)],
        1: [(2, 10), (3, 20), (4, 30)],
    }


async def test_the_last_epoch_of_a_log_without_records_is_kept(house: SweptLog) -> None:
    events = await house.topic("events")
    await house.epochs(events, 0, (1, 0), (2, 10))
    await house.start_at(events, 15)
    await house.swept()
    assert await house.epochs_left(events) == {0: [(2, 10)]}


async def test_epochs_of_deleted_topics_are_deleted_and_those_of_a_topic_created_again_kept(
    house: SweptLog,
) -> None:
    gone, made_again = await house.topic("events", "deleted"), await house.topic("events")
    for topic_id in (gone, made_again):
        await house.epochs(topic_id, 0, (1, 0), (2, 10))
    await house.swept()
    assert await house.epochs_left(gone) == {}
    assert await house.epochs_left(made_again) == {0: [(1, 0), (2, 10)]}


async def test_an_epoch_without_records_is_merged_away(house: SweptLog) -> None:
    events = await house.topic("events")
    for start in ((1, 0), (2, 10), (3, 10), (5, 10)):
        await house.epochs(events, 0, start)
    await house.engine.execute("OPTIMIZE TABLE leader_epochs FINAL")
    assert await house.epochs_left(events) == {0: [(1, 0), (5, 10)]}


# --- disk ---


async def test_a_day_of_which_half_is_deleted_is_rewritten(house: SweptLog) -> None:
    brief, lasting = await house.topic("brief"), await house.topic("lasting")
    await house.rows("brief", brief, 0, 60_000, days_ago=3)
    await house.rows("lasting", lasting, 0, 40_000, days_ago=3)
    await house.counted()
    before = await bytes_of_parts(house)
    await house.start_at(brief, 60_000)
    await house.swept(4)
    assert await house.days() == {"2096-11-17": 40_000}
    assert await bytes_of_parts(house) < before / 2
    assert await house.left() == [["lasting", 0, 0, 39_999, 40_000]]


async def test_a_large_day_is_rewritten_before_it_is_over(
    house: SweptLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_module, "_SMALL_ROWS", 0)
    events = await house.topic("events")
    await house.rows("events", events, 0, 100)
    await house.start_at(events, 49)
    await house.swept(3)
    assert await house.days() == {"2096-11-20": 100}
    await house.start_at(events, 62)
    await house.swept(3)
    assert await house.days() == {"2096-11-20": 38}
    assert await house.left() == [["events", 0, 62, 99, 38]]


@pytest.mark.usefixtures("alone")
async def test_dropped_days_free_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = EmbeddedEngine(tmp_path / "data", LANES, fsync=False)
    try:
        await migrate(engine)
        await engine.execute(
            "ALTER TABLE messages MODIFY SETTING old_parts_lifetime = 0,"
            " merge_tree_clear_old_parts_interval_seconds = 1"
        )
        house = SweptLog(engine)
        events = await house.topic("events")
        await house.rows("events", events, 0, 200_000, days_ago=3)
        await house.rows("events", events, 200_000, 10)
        full = size_of(tmp_path)
        assert full > 20_000_000
        await house.start_at(events, 200_000)
        await house.counted()
        await house.swept(1)

        async def is_free() -> bool:
            return size_of(tmp_path) < full - 15_000_000

        await until_async(is_free)
    finally:
        await engine.close()


async def bytes_of_parts(house: SweptLog) -> int:
    rows = await house.engine.rows(
        "SELECT sum(bytes_on_disk) FROM system.parts WHERE table = 'messages' AND active"
    )
    size: int = rows[0][0]
    return size


def size_of(directory: Path) -> int:
    """Of the files that are still there when it comes to them."""
    size = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                size += Path(folder, name).stat().st_size
    return size


# --- fences ---


async def test_a_fenced_block_stays_refused_after_all_rows_of_its_day_were_deleted(
    house: SweptLog,
) -> None:
    """The token outlives its rows, merges and the engine's clearing up of empty parts."""
    day = NOON // DAY
    await fence(house.engine, 7, [0], day)
    events = await house.topic("events")
    await house.rows("events", events, 0, 10)
    await house.start_at(events, 10)
    await house.swept()
    await house.engine.execute("OPTIMIZE TABLE messages FINAL")
    assert await house.left() == []
    setting = await house.engine.rows(
        "SELECT value FROM system.merge_tree_settings WHERE name = 'remove_empty_parts'"
    )
    assert setting, "the engine knows the setting that this rests on"
    parts = await house.engine.rows(
        "SELECT create_table_query LIKE '%remove_empty_parts = 0%' FROM system.tables"
        " WHERE name = 'messages' AND database = currentDatabase()"
    )
    assert parts == [[1]]
    assert not await burn(house.engine, 7, 0, 1, day * DAY)


# --- what is counted ---


async def test_minutes_below_the_log_start_are_deleted_and_the_end_of_the_count_is_kept(
    house: SweptLog,
) -> None:
    events = await house.topic("events")
    for number in range(5):
        await house.engine.execute(
            "INSERT INTO partition_minutes SELECT 'events', {id:UUID}, 0,"
            " toDateTime({minute:Int64}, 'UTC'), 10, 100, {first:Int64}, {first:Int64} + 9,"
            " fromUnixTimestamp64Milli({time:Int64}), fromUnixTimestamp64Milli({time:Int64})",
            {
                "id": str(events),
                "minute": NOON // 1000 - 600 + number * 60,
                "first": number * 10,
                "time": NOON - 600_000 + number * 60_000,
            },
        )
    await house.rows("events", events, 0, 50)
    await house.counted(NOON + DAY)
    stats = (
        "SELECT log_start_offset, end_offset, records, bytes, toUnixTimestamp64Milli(first_time)"
        " FROM partition_stats WHERE partition = 0"
    )
    assert await house.engine.rows(stats) == [[0, 50, 50, 500, NOON - 600_000]]
    await house.start_at(events, 25)
    await house.swept()
    assert await house.engine.rows(stats) == [[25, 50, 25, 250, NOON - 480_000]]
    await house.start_at(events, 50)
    await house.swept()
    ((start, end, records, size, _),) = await house.engine.rows(stats)
    assert (start, end, records, size) == (50, 50, 0, 0)
    assert await house.engine.rows(
        "SELECT toUnixTimestamp(max(minute)) FROM partition_minutes"
    ) == [[(NOON + DAY) // 1000 - 60]]
