"""The views for people, over rows written by hand: their results, and the rows they read."""

from __future__ import annotations

import time
from uuid import UUID

import pytest

from brokerhouse.broker.log.rollup import Rollup
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import Row
from tests.support.counted_log import HOUR, MINUTE, CountedEngine, Log

HOUR_S = 3600
LAG = (
    "SELECT group_id, topic, partition, committed_offset, end_offset, lag"
    " FROM consumer_lag ORDER BY group_id, topic, partition"
)


@pytest.fixture
def engine(engine: EmbeddedEngine) -> CountedEngine:
    return CountedEngine(engine)


@pytest.fixture
def log(engine: CountedEngine) -> Log:
    """A log that begins an hour ago: the views go by the time it is."""
    log = Log(engine)
    log.now_ms = time.time_ns() // 1_000_000 - HOUR
    return log


@pytest.fixture
def rollup(log: Log) -> Rollup:
    return log.rollup()


async def commit(
    log: Log, group: str, topic: str, topic_id: UUID, offset: int, *, partition: int = 0
) -> None:
    await log.engine.execute(
        "INSERT INTO consumer_offsets"
        " (group_id, topic, topic_id, partition, offset, member_id, client_id, client_host,"
        " commit_time, version) SELECT {group:String}, {topic:String}, {id:UUID},"
        " {partition:Int32}, {offset:Int64}, 'who-committed', 'c', '/10.0.0.1', now64(3),"
        " toUnixTimestamp64Micro(now64(6))",
        {
            "group": group,
            "topic": topic,
            "id": str(topic_id),
            "partition": partition,
            "offset": offset,
        },
    )


async def lag_seconds(log: Log) -> float:
    """What the view says; there is one row in it."""
    ((seconds,),) = await log.engine.rows("SELECT lag_seconds FROM consumer_lag")
    assert isinstance(seconds, int | float)
    return seconds


async def age_of_record(log: Log, offset: int) -> float:
    ((seconds,),) = await log.engine.rows(
        "SELECT date_diff('millisecond', append_time, now64(3)) / 1000 FROM messages"
        " WHERE offset = {offset:Int64}",
        {"offset": offset},
    )
    assert isinstance(seconds, int | float)
    return seconds


async def assert_as_late_as(log: Log, offset: int, within_s: float) -> None:
    """The view and a record, both by the clock: so the record's age is looked at twice."""
    before = await age_of_record(log, offset)
    seconds = await lag_seconds(log)
    assert before - within_s <= seconds <= await age_of_record(log, offset) + within_s


def read_rows(log: Log, sql: str) -> int:
    """Rows that a query takes out of tables when it is asked for the first time."""
    handle = log.engine.handle("SET use_query_condition_cache = 0")
    try:
        read: int = handle.query(sql, "Null").storage_rows_read()
        return read
    finally:
        handle.close()


async def test_lag_is_the_number_of_records_that_a_group_has_not_committed(
    log: Log, rollup: Rollup
) -> None:
    orders = await log.topic("orders")
    await log.append("orders", 10)
    await commit(log, "billing", "orders", orders, 4)
    await commit(log, "shipping", "orders", orders, 10)
    for _ in range(2):
        assert await log.engine.rows(LAG) == [
            ["billing", "orders", 0, 4, 10, 6],
            ["shipping", "orders", 0, 10, 10, 0],
        ]
        log.now_ms += MINUTE
        await rollup.count()
    await log.append("orders", 5)
    await commit(log, "billing", "orders", orders, 12)
    assert await log.engine.rows(LAG) == [
        ["billing", "orders", 0, 12, 15, 3],
        ["shipping", "orders", 0, 10, 15, 5],
    ]


async def test_a_partition_without_records_has_lag_0(log: Log) -> None:
    orders = await log.topic("orders", 2)
    await commit(log, "billing", "orders", orders, 0, partition=1)
    assert await log.engine.rows(LAG) == [["billing", "orders", 1, 0, 0, 0]]
    assert await lag_seconds(log) == 0


async def test_lag_is_0_for_an_offset_beyond_the_end(log: Log) -> None:
    orders = await log.topic("orders")
    await log.append("orders", 3)
    await commit(log, "billing", "orders", orders, 7)
    assert await log.engine.rows(LAG) == [["billing", "orders", 0, 7, 3, 0]]


async def test_lag_of_an_offset_below_0_is_that_of_offset_0(log: Log) -> None:
    orders = await log.topic("orders")
    log.now_ms = time.time_ns() // 1_000_000
    await log.append("orders", 3)
    await commit(log, "billing", "orders", orders, -5)
    assert await log.engine.rows(LAG) == [["billing", "orders", 0, -5, 3, 3]]
    assert await lag_seconds(log) < HOUR_S


async def test_offsets_of_a_topic_that_was_created_again_are_not_shown(log: Log) -> None:
    before = await log.topic("orders")
    await log.append("orders", 3)
    await commit(log, "billing", "orders", before, 1)
    await log.topic("orders")
    await log.append("orders", 5)
    assert await log.engine.rows(LAG) == []
    assert await log.engine.rows("SELECT * FROM current_offsets") == []


async def test_lag_in_seconds_is_the_age_of_the_oldest_uncommitted_record(
    log: Log, rollup: Rollup
) -> None:
    orders = await log.topic("orders")
    for _ in range(4):
        await log.append("orders", 1)
        log.now_ms += 20_000
    await rollup.count()
    log.now_ms = time.time_ns() // 1_000_000 - 10_000
    await log.append("orders", 2)
    for offset in range(6):
        await commit(log, "billing", "orders", orders, offset)
        await assert_as_late_as(log, offset, within_s=5)
    await commit(log, "billing", "orders", orders, 6)
    assert await lag_seconds(log) == 0


async def test_lag_in_seconds_is_estimated_by_the_place_of_the_record_in_its_minute(
    log: Log, rollup: Rollup
) -> None:
    log.now_ms -= log.now_ms % MINUTE
    orders = await log.topic("orders")
    for _ in range(12):
        await log.append("orders", 10)
        log.now_ms += 5_000
    log.now_ms += HOUR // 2
    await rollup.count()
    for offset in (0, 35, 64, 119):
        await commit(log, "billing", "orders", orders, offset)
        await assert_as_late_as(log, offset, within_s=10)


async def test_lag_in_seconds_uses_the_next_record_if_the_committed_one_is_deleted(
    log: Log, rollup: Rollup
) -> None:
    log.now_ms -= log.now_ms % MINUTE
    orders = await log.topic("orders")
    await log.append("orders", 10)
    log.now_ms += 20 * MINUTE
    await log.append("orders", 10)
    await log.engine.execute("DELETE FROM messages WHERE offset BETWEEN 3 AND 12")
    log.now_ms += MINUTE
    await rollup.count()
    await commit(log, "billing", "orders", orders, 9)
    assert await age_of_record(log, 13) - 5 <= await lag_seconds(log)
    await log.engine.execute(
        "INSERT INTO partition_checkpoints (* EXCEPT(forgot_producers))"
        " SELECT {id:UUID}, 0, 13, 13",
        {"id": str(orders)},
    )
    await assert_as_late_as(log, 13, within_s=5)
    assert await log.engine.rows(LAG) == [["billing", "orders", 0, 9, 20, 11]]


async def test_lag_in_seconds_is_0_if_no_record_is_left(log: Log, rollup: Rollup) -> None:
    log.now_ms -= log.now_ms % MINUTE
    orders = await log.topic("orders")
    await log.append("orders", 10)
    log.now_ms += MINUTE
    await rollup.count()
    await commit(log, "billing", "orders", orders, 4)
    await log.engine.execute(
        "INSERT INTO partition_checkpoints (* EXCEPT(forgot_producers))"
        " SELECT {id:UUID}, 0, 10, 10",
        {"id": str(orders)},
    )
    for statement in (
        "TRUNCATE TABLE messages",
        "ALTER TABLE partition_minutes DELETE WHERE topic != '' SETTINGS mutations_sync = 1",
    ):
        await log.engine.execute(statement)
        assert await lag_seconds(log) == 0
        assert await log.engine.rows(LAG) == [["billing", "orders", 0, 4, 10, 6]]
    await log.append("orders", 1)
    log.now_ms += MINUTE
    await rollup.count()
    await assert_as_late_as(log, 10, within_s=5)
    assert await log.engine.rows(LAG) == [["billing", "orders", 0, 4, 11, 7]]


async def test_consumer_lag_names_the_member_that_reads_or_committed(log: Log) -> None:
    orders = await log.topic("orders", 2)
    for partition in range(2):
        await commit(log, "billing", "orders", orders, 0, partition=partition)
    await log.engine.execute(
        "INSERT INTO group_member_versions (group_id, member_id, version, client_id, client_host,"
        " assignment, join_time, removed) SELECT 'billing', 'reader', 1, 'app', '/10.0.0.2',"
        " map('orders', map(toInt32(1), 'reader')), now64(3), false"
    )
    rows = await log.engine.rows(
        "SELECT partition, member_id, client_id, client_host, assigned FROM consumer_lag"
    )
    assert rows == [
        [0, "who-committed", "c", "/10.0.0.1", False],
        [1, "reader", "app", "/10.0.0.2", True],
    ]


async def test_group_state_has_a_row_per_group(log: Log) -> None:
    await log.engine.execute(
        "INSERT INTO consumer_group_versions (group_id, version, state, state_time, generation,"
        " protocol_type, protocol_name, leader, members, removed, coordinator)"
        " VALUES ('billing', 2, 'Stable', now64(3), 7, 'consumer', 'range', 'm1', 2, false, 1),"
        " ('idle', 2, 'Empty', now64(3), 3, 'consumer', '', '', 0, false, 1),"
        " ('gone', 2, 'Dead', now64(3), 3, '', '', '', 0, true, 1)"
    )
    await log.engine.execute(
        "INSERT INTO group_member_versions (group_id, member_id, version, assignment, join_time,"
        " removed) SELECT 'billing', arrayJoin(['m1', 'm2']) AS member, 2,"
        " if(member = 'm1', map('a', map(0, 'm1', 1, 'm1'), 'b', map(0, 'm1')),"
        " map('a', map(2, 'm2'))), toDateTime64('2096-11-20 12:00:00', 3, 'UTC'), false"
    )
    await log.engine.execute(
        "INSERT INTO group_heartbeats VALUES ('billing', 'm2', '2096-11-20 12:00:09', 1)"
    )
    rows = await log.engine.rows(
        "SELECT group_id, state, generation, protocol, members, partitions, last_heartbeat"
        " FROM group_state"
    )
    assert rows == [
        ["billing", "Stable", 7, "range", 2, 4, "2096-11-20 12:00:09.000"],
        ["idle", "Empty", 3, "", 0, 0, None],
    ]


async def test_topic_stats_has_a_row_per_topic(log: Log, rollup: Rollup) -> None:
    await log.topic("empty", 2)
    await log.topic("old")
    await log.append("old", 5)
    await log.topic("live")
    log.now_ms = time.time_ns() // 1_000_000
    log.now_ms -= log.now_ms % MINUTE + 3 * MINUTE
    for _ in range(3):
        await log.append("live", 100)
        log.now_ms += MINUTE
        await rollup.count()
    rows = await log.engine.rows(
        "SELECT topic, partitions, records, bytes, first_time IS NULL, records_per_second"
        " FROM topic_stats"
    )
    *_, (_, _, _, _, _, rate) = sorted(rows)[:2]
    assert [row[:5] for row in rows] == [
        ["empty", 2, 0, 0, 1],
        ["live", 1, 300, 1500, 0],
        ["old", 1, 5, 25, 0],
    ]
    assert isinstance(rate, int | float)
    assert 300 / 420 <= rate <= 300 / 300
    assert [row[5] for row in rows if row[0] != "live"] == [0, 0]


@pytest.mark.parametrize(
    "setting", ["join_use_nulls = 1", "enable_analyzer = 1", "max_threads = 1"]
)
async def test_views_give_the_same_rows_under_other_settings_of_the_caller(
    log: Log, rollup: Rollup, setting: str
) -> None:
    orders = await log.topic("orders", 2)
    await log.append("orders", 3)
    await commit(log, "billing", "orders", orders, 1)
    answers = {
        view: await log.engine.rows(f"SELECT * EXCEPT lag_seconds FROM {view}")
        if view == "consumer_lag"
        else await log.engine.rows(f"SELECT * FROM {view}")
        for view in ("partition_stats", "consumer_lag", "current_offsets", "group_state")
    }
    for view, answer in answers.items():
        what = "* EXCEPT lag_seconds" if view == "consumer_lag" else "*"
        rows: list[Row] = await log.engine.rows(f"SELECT {what} FROM {view} SETTINGS {setting}")
        assert rows == answer


async def test_views_read_only_the_last_minutes_of_the_log(log: Log, rollup: Rollup) -> None:
    """A million records over an hour in merged parts, and groups behind in many places."""
    topic_id = await log.topic("big", 4)
    await log.engine.execute(
        "INSERT INTO messages (topic, topic_id, partition, offset, value, append_time)"
        " SELECT 'big', {id:UUID}, number % 4, intDiv(number, 4), 'five!',"
        " fromUnixTimestamp64Milli({start:Int64} + intDiv(number, 1000) * 3600)"
        " FROM numbers(1000000)",
        {"id": str(topic_id), "start": log.now_ms},
    )
    await log.engine.execute("OPTIMIZE TABLE messages FINAL")
    log.now_ms += HOUR
    await rollup.count()
    await log.engine.execute(
        "INSERT INTO consumer_offsets (group_id, topic, topic_id, partition, offset, commit_time,"
        " version) SELECT concat('group-', toString(intDiv(number, 4) % 100)), 'big', {id:UUID},"
        " number % 4, intDiv(number, 4) * 250, now64(3), number FROM numbers(4000)",
        {"id": str(topic_id)},
    )
    await log.engine.execute("OPTIMIZE TABLE consumer_offsets FINAL")
    assert await log.engine.rows("SELECT count(), min(end_offset) FROM consumer_lag") == [
        [400, 250_000]
    ]
    # At least a granule of the log for each partition that has records since then: 8192 rows.
    assert read_rows(log, "SELECT * FROM partition_stats") < 8 * 8192
    assert read_rows(log, "SELECT * FROM topic_stats") < 16 * 8192
    assert read_rows(log, "SELECT * FROM consumer_lag") < 16 * 8192
    # The history of offsets is not read, only what is current.
    assert read_rows(log, "SELECT * FROM current_offsets") < 1000


async def test_after_a_burst_views_read_only_the_rows_since_the_last_count(
    log: Log, rollup: Rollup
) -> None:
    """A million records within the minute that is not over, to all partitions of two topics."""
    log.now_ms = time.time_ns() // 1_000_000
    log.now_ms -= log.now_ms % MINUTE
    topics = [await log.topic(name, 50) for name in ("wide", "read")]
    await rollup.count()
    for second in range(4):
        for name, topic_id in zip(("wide", "read"), topics, strict=True):
            await log.engine.execute(
                "INSERT INTO messages (topic, topic_id, partition, offset, value, append_time)"
                " SELECT {name:String}, {id:UUID}, number % 50,"
                " {second:Int64} * 2500 + intDiv(number, 50),"
                " 'five!', fromUnixTimestamp64Milli({now:Int64}) FROM numbers(125000)",
                {"name": name, "id": str(topic_id), "second": second, "now": log.now_ms},
            )
        log.appended += 10_000_000  # as if so many had come
        log.now_ms += 1_000
        await rollup.count_new()
    for partition in range(50):
        await commit(log, "billing", "read", topics[1], 7_000, partition=partition)
    assert await log.engine.rows(
        "SELECT count(), sum(records), sum(bytes), min(end_offset) FROM partition_stats"
    ) == [[100, 1_000_000, 5_000_000, 10_000]]
    assert await log.engine.rows(
        "SELECT sum(lag), uniqExact(lag_seconds) < 3 FROM consumer_lag"
    ) == [[50 * 3_000, 1]]
    # Of the seven windows of 100 partitions each, and of the log only what is not in one: nothing.
    for view in ("partition_stats", "topic_stats", "topic_minutes", "consumer_lag"):
        assert read_rows(log, f"SELECT * FROM {view}") < 10_000, view
