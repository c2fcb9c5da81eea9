"""The log is counted exactly once, whatever the clock does and whenever the broker dies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brokerhouse.broker.log import rollup as rollup_module
from brokerhouse.broker.log.rollup import AppendedRows, Rollup
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import EngineError, Parameter
from brokerhouse.storage.engine import Row as EngineRow
from brokerhouse.storage.schema import migrations
from brokerhouse.storage.schema_files import ROW_BYTES, ROW_BYTES_BY_SIZES
from tests.support.clock import NOON
from tests.support.counted_log import DAY, HOUR, MINUTE, CountedEngine, Log
from tests.support.examples import up_to
from tests.support.log_parts import ScriptedEngine, append, make_appender, make_log, plain
from tests.support.waiting import LIMIT_S


@pytest.fixture
def engine(engine: EmbeddedEngine) -> CountedEngine:
    return CountedEngine(engine)


@pytest.fixture
def log(engine: CountedEngine) -> Log:
    return Log(engine)


@pytest.fixture
def rollup(log: Log) -> Rollup:
    return log.rollup(ROW_BYTES_BY_SIZES)


async def minutes(log: Log) -> list[EngineRow]:
    """The counted minutes: topic, minute of day, records, bytes, first and last offset."""
    return await log.engine.rows(
        "SELECT topic, formatDateTime(minute, '%H:%i'), records, bytes, min_offset, max_offset"
        " FROM partition_minutes WHERE topic != '' ORDER BY minute, topic, partition"
    )


async def stats(log: Log) -> dict[tuple[str, UUID, int], tuple[int, int, int]]:
    """What people see: end offset, records and bytes of each partition."""
    rows = await log.engine.rows(
        "SELECT topic, topic_id, partition, end_offset, records, bytes FROM partition_stats"
    )
    return {
        (str(topic), UUID(str(topic_id)), partition): (end, records, size)
        for topic, topic_id, partition, end, records, size in rows
    }


async def parts(log: Log) -> int:
    """How many parts this test has written to the table, merged or not."""
    rows = await log.engine.rows(
        "SELECT max(max_block_number) - min(min_block_number) + 1 FROM system.parts"
        " WHERE table = 'partition_minutes' AND active AND rows > 0"
    )
    number: int = rows[0][0]
    return number


def truth(log: Log) -> dict[tuple[str, UUID, int], tuple[int, int, int]]:
    return {key: (end, end, log.bytes[key]) for key, end in log.ends.items()}


async def test_a_minute_is_counted_when_it_is_over(log: Log, rollup: Rollup) -> None:
    await log.topic("orders")
    await log.append("orders", 3)
    log.now_ms += MINUTE - 1
    await log.append("orders", 2)
    await rollup.count()
    assert await minutes(log) == []
    log.now_ms += 1
    await log.append("orders", 4)
    await rollup.count()
    assert await minutes(log) == [["orders", "12:00", 5, 25, 0, 4]]
    log.now_ms += MINUTE
    await rollup.count()
    assert await minutes(log) == [
        ["orders", "12:00", 5, 25, 0, 4],
        ["orders", "12:01", 4, 20, 5, 8],
    ]


async def test_stored_records_are_in_the_views_at_once(log: Log, rollup: Rollup) -> None:
    await log.topic("orders", 2)
    for _ in range(3):
        await log.append("orders", 3)
        assert await stats(log) == truth(log)
        log.now_ms += MINUTE
        await rollup.count()
        assert await stats(log) == truth(log)


@pytest.mark.parametrize("row_bytes", [ROW_BYTES, ROW_BYTES_BY_SIZES], ids=["values", "sizes"])
@pytest.mark.parametrize("stored", ["with_size_stream", "single_stream"])
async def test_counted_bytes_are_those_of_keys_and_values(
    log: Log, row_bytes: str, stored: str
) -> None:
    """In parts that have the sizes of strings apart, and in those of older versions."""
    topic_id = await log.topic("orders")
    await log.engine.execute(
        f"ALTER TABLE messages MODIFY SETTING string_serialization_version = '{stored}'"
    )
    await log.engine.execute(
        "INSERT INTO messages (topic, topic_id, partition, offset, key, value, append_time)"
        " SELECT 'orders', {topic_id:UUID}, 0, number,"
        " [NULL, '', NULL, 'é', 'a\\0b'][number + 1],"
        " [NULL, NULL, repeat('a', 300), '', '1234'][number + 1],"
        " fromUnixTimestamp64Milli({now_ms:Int64}) FROM numbers(5)",
        {"topic_id": str(topic_id), "now_ms": log.now_ms},
    )
    log.now_ms += MINUTE
    await log.rollup(row_bytes).count()
    assert await minutes(log) == [["orders", "12:00", 5, 300 + 2 + 3 + 4, 0, 4]]


async def test_counting_a_minute_again_changes_nothing(log: Log, rollup: Rollup) -> None:
    await log.topic("orders")
    await log.append("orders", 3)
    log.now_ms += 5 * MINUTE
    await rollup.count()
    await rollup.count()
    await log.rollup().count()
    assert await minutes(log) == [["orders", "12:00", 3, 15, 0, 2]]


@pytest.mark.parametrize("fault", ["before", "after"])
async def test_a_window_that_failed_is_counted_once(
    log: Log, rollup: Rollup, engine: CountedEngine, fault: str
) -> None:
    await log.topic("orders")
    await log.append("orders", 3)
    log.now_ms += MINUTE
    engine.fault = fault
    with pytest.raises(EngineError):
        await rollup.count()
    assert await stats(log) == truth(log)
    log.now_ms += MINUTE
    await log.append("orders", 2)
    await rollup.count()
    log.now_ms += MINUTE
    await rollup.count()
    assert await stats(log) == truth(log)
    assert [row[2] for row in await minutes(log)] == [3, 2]


async def test_a_window_of_many_rows_becomes_one_part(log: Log, rollup: Rollup) -> None:
    await log.topic("wide", 200)
    (wide,) = {key[1] for key in log.ends}
    await log.engine.execute(
        "INSERT INTO messages (topic, topic_id, partition, offset, append_time)"
        " SELECT 'wide', {id:UUID}, number % 200, intDiv(number, 200),"
        " fromUnixTimestamp64Milli({time:Int64} + intDiv(number, 200) * 60000)"
        " FROM numbers(200 * 1200)",
        {"id": str(wide), "time": NOON},
    )
    log.now_ms += DAY
    await rollup.count()
    assert await log.engine.rows("SELECT count() FROM partition_minutes") == [[200 * 1200 + 1]]
    assert await parts(log) == 1


async def test_counting_a_minute_waits_for_blocks_in_flight(log: Log, rollup: Rollup) -> None:
    await log.topic("orders")
    log.on_the_way.append(("orders", 3, NOON + MINUTE - 1))
    log.now_ms += MINUTE
    await rollup.count()
    assert log.told == [NOON + MINUTE]
    assert await minutes(log) == [["orders", "12:00", 3, 15, 0, 2]]


async def test_after_a_restart_no_row_gets_a_time_in_a_counted_minute(
    log: Log, rollup: Rollup
) -> None:
    await log.topic("orders")
    log.now_ms += MINUTE
    await rollup.count()
    log.now_ms -= 30_000
    await log.restart()
    await log.append("orders", 3)
    assert await stats(log) == truth(log)


async def test_the_first_count_includes_all_existing_records(
    log: Log, rollup: Rollup, engine: CountedEngine
) -> None:
    await log.topic("orders")
    for days in (9, 3, 1):
        await log.store("orders", days, NOON - days * DAY)
    log.now_ms += 2 * MINUTE
    await log.append("orders", 7)
    await rollup.count()
    assert [row[2] for row in await minutes(log)] == [9, 3, 1]
    assert engine.windows == 10
    assert await stats(log) == truth(log)


async def test_a_count_that_is_days_behind_skips_time_without_records(
    log: Log, rollup: Rollup, engine: CountedEngine
) -> None:
    await log.topic("orders")
    log.now_ms += MINUTE
    await rollup.count()
    log.now_ms += 400 * DAY
    await log.append("orders", 3)
    log.now_ms += 2 * DAY
    await rollup.count()
    assert engine.windows == 1 + 2
    assert await stats(log) == truth(log)
    log.now_ms += 400 * DAY
    await rollup.count()
    assert engine.windows == 1 + 2 + 1


async def test_many_partitions_are_counted_in_smaller_windows(
    log: Log, rollup: Rollup, engine: CountedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollup_module, "_WINDOW_ROWS", 60)
    await log.topic("wide", 2)
    await log.append("wide", 3)
    log.now_ms += HOUR
    await rollup.count()
    assert engine.windows == 2
    log.now_ms += HOUR
    await log.append("wide", 3)
    log.now_ms += MINUTE
    await rollup.count()
    assert await stats(log) == truth(log)


@pytest.fixture
def every_row_is_many(monkeypatch: pytest.MonkeyPatch) -> None:
    for bound in ("_MANY_NEW_ROWS", "_MANY_WHEN_QUIET"):
        monkeypatch.setattr(rollup_module, bound, 1)


async def windows(log: Log) -> list[EngineRow]:
    """The counted parts of minutes: topic, minute and end, records, bytes, first, last offset."""
    return await log.engine.rows(
        "SELECT topic, formatDateTime(minute, '%H:%i'), formatDateTime(until, '%H:%i:%s'),"
        " records, bytes, min_offset, max_offset FROM partition_seconds"
        " WHERE topic != '' ORDER BY until, topic, partition"
    )


@pytest.mark.usefixtures("every_row_is_many")
async def test_new_rows_of_the_current_minute_are_counted_in_parts(
    log: Log, rollup: Rollup
) -> None:
    await log.topic("orders")
    log.now_ms += MINUTE
    await rollup.count()
    for count in (3, 2):
        await log.append("orders", count)
        log.now_ms += 10_500
        await rollup.count_new()
        assert await stats(log) == truth(log)
    await log.append("orders", 1)
    assert await windows(log) == [
        ["orders", "12:01", "12:01:10", 3, 15, 0, 2],
        ["orders", "12:01", "12:01:21", 2, 10, 3, 4],
    ]
    assert await minutes(log) == []
    assert await stats(log) == truth(log)
    assert await log.engine.rows(
        "SELECT minute, records, bytes, end_offset FROM topic_minutes"
    ) == [["2096-11-20 12:01:00", 6, 30, 6]]


@pytest.mark.usefixtures("every_row_is_many")
async def test_the_parts_of_a_minute_that_is_over_are_added_up_and_not_read_again(
    log: Log, rollup: Rollup
) -> None:
    await log.topic("orders")
    await log.topic("other")
    log.now_ms += MINUTE
    await rollup.count()
    await log.append("orders", 3)
    log.now_ms += 20_000
    await rollup.count_new()
    # Only a window that was counted before still knows these.
    await log.engine.execute("TRUNCATE TABLE messages")
    await log.append("orders", 2)
    await log.append("other", 4)
    log.now_ms += MINUTE
    await log.append("orders", 1)
    await rollup.count()
    assert await minutes(log) == [
        ["orders", "12:01", 5, 25, 0, 4],
        ["other", "12:01", 4, 20, 0, 3],
    ]
    assert await stats(log) == truth(log)


@pytest.mark.usefixtures("every_row_is_many")
async def test_a_window_of_seconds_is_counted_once_although_an_insert_fails(
    log: Log, rollup: Rollup, engine: CountedEngine
) -> None:
    await log.topic("orders")
    log.now_ms += MINUTE
    await rollup.count()
    for fault in ("before", "after"):
        await log.append("orders", 3)
        log.now_ms += 10_000
        engine.fault = fault
        with pytest.raises(EngineError):
            await rollup.count_new()
        assert await stats(log) == truth(log)
        await log.append("orders", 2)
        log.now_ms += 5_000
        await rollup.count_new()
        assert await stats(log) == truth(log)
    log.now_ms += MINUTE
    await rollup.count()
    assert await stats(log) == truth(log)
    assert [row[2] for row in await minutes(log)] == [10]


@pytest.mark.usefixtures("every_row_is_many")
async def test_a_block_in_flight_is_counted_in_the_window_of_seconds_of_its_time(
    log: Log, rollup: Rollup
) -> None:
    await log.topic("orders")
    log.now_ms += MINUTE
    await rollup.count()
    await log.append("orders", 1)
    log.on_the_way.append(("orders", 3, log.now_ms + 9_999))
    log.now_ms += 10_000
    await rollup.count_new()
    assert [row[2:4] for row in await windows(log)] == [["12:01:10", 4]]


async def test_few_new_rows_are_not_counted_before_their_minute_is_over(
    log: Log, rollup: Rollup, engine: CountedEngine
) -> None:
    await log.topic("orders")
    log.now_ms += MINUTE
    await rollup.count()
    await log.append("orders", 30)
    log.now_ms += 10_000
    await rollup.count_new()
    assert engine.windows_of_seconds == 0


async def test_during_a_burst_rows_are_counted_at_a_higher_threshold(
    log: Log, rollup: Rollup, engine: CountedEngine
) -> None:
    """Counting takes a core: a burst that is over soon is counted after it, not meanwhile."""
    await log.topic("orders")
    log.now_ms += MINUTE
    await rollup.count()
    for appended, counted in (
        (9_000_000, 0),  # many come
        (100_000, 1),  # few come
        (3_900_000, 1),
        (3_900_000, 1),
        (3_900_000, 2),
        (3_900_000, 2),
        (0, 2),  # none comes, but few are new
        (100_001, 3),
    ):
        await log.append("orders", 1)
        log.appended += appended - 1
        log.now_ms += 5_000
        await rollup.count_new()
        assert engine.windows_of_seconds == counted, appended
    assert await stats(log) == truth(log)


async def test_rows_appended_while_a_minute_is_counted_are_counted_as_new(
    log: Log, rollup: Rollup, engine: CountedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counting a minute of a hundred million rows takes seconds, in which as many more may come."""
    monkeypatch.setattr(rollup_module, "_MANY_WHEN_QUIET", 3)
    await log.topic("orders")
    log.now_ms += MINUTE
    execute = engine.execute

    async def append_meanwhile(sql: str, params: Mapping[str, Parameter] | None = None) -> None:
        if "INSERT INTO partition_minutes" in sql:
            await log.append("orders", 3)
        await execute(sql, params)

    monkeypatch.setattr(engine, "execute", append_meanwhile)
    await rollup.count()
    log.now_ms += 10_000
    await rollup.count_new()
    assert [row[2:4] for row in await windows(log)] == [["12:01:10", 3]]
    assert await stats(log) == truth(log)


async def test_rows_stay_new_when_counting_them_failed() -> None:
    appended = 5
    new_rows = AppendedRows(lambda: appended)
    new_rows.begin(60_000)
    appended += 3
    assert await new_rows.since(60_000) == 3
    new_rows.begin(70_000)
    appended += 2
    assert await new_rows.since(60_000) == 5
    assert await new_rows.since(70_000) == 2


@pytest.mark.usefixtures("every_row_is_many")
async def test_a_minute_is_not_counted_in_parts_before_the_earlier_one_is_counted(
    log: Log, rollup: Rollup, engine: CountedEngine
) -> None:
    await log.topic("orders")
    log.now_ms += MINUTE
    await rollup.count()
    log.now_ms += MINUTE
    await log.append("orders", 3)
    log.now_ms += 10_000
    await rollup.count_new()
    assert engine.windows_of_seconds == 0
    await rollup.count()
    await log.append("orders", 3)
    log.now_ms += 10_000
    await rollup.count_new()
    assert engine.windows_of_seconds == 1
    assert await stats(log) == truth(log)


@pytest.mark.usefixtures("every_row_is_many")
async def test_after_a_restart_no_row_gets_a_time_in_a_counted_part_of_a_minute(
    log: Log, rollup: Rollup
) -> None:
    await log.topic("orders")
    log.now_ms += MINUTE
    await rollup.count()
    await log.append("orders", 3)
    log.now_ms += 30_000
    await rollup.count_new()
    log.now_ms -= 10_000
    restarted = await log.restart()
    await log.append("orders", 3)
    assert await stats(log) == truth(log)
    await restarted.count()
    await log.append("orders", 3)
    assert await stats(log) == truth(log)


@pytest.mark.usefixtures("every_row_is_many")
async def test_windows_of_seconds_are_dropped_ten_minutes_after_their_minute(
    log: Log, rollup: Rollup
) -> None:
    await log.topic("orders")
    log.now_ms += MINUTE
    await rollup.count()
    for _ in range(13):
        await log.append("orders", 3)
        log.now_ms += 30_000
        await rollup.count_new()
        log.now_ms += 30_000
        await rollup.count()
    kept = [row[1] for row in await windows(log)]
    assert kept == [f"12:{minute:02}" for minute in range(4, 14)]
    assert await stats(log) == truth(log)


@pytest.mark.usefixtures("every_row_is_many")
async def test_a_minute_whose_parts_are_counted_during_a_query_counts_once(
    log: Log, rollup: Rollup
) -> None:
    """A query may learn up to where the log is counted before windows of seconds, or after."""
    await log.topic("orders")
    log.now_ms += MINUTE
    await rollup.count()
    for _ in range(2):
        for _ in range(2):
            await log.append("orders", 3)
            log.now_ms += 20_000
            await rollup.count_new()
        await log.append("orders", 3)
        log.now_ms += 20_000
        await rollup.count()
    await log.append("orders", 5, value_bytes=15)
    log.now_ms += 20_000
    await rollup.count_new()
    await log.append("orders", 1)
    *_, view = (one.statement for one in migrations() if "VIEW partition_stats AS" in one.statement)
    _, _, query = view.partition("VIEW partition_stats AS\n")
    minute = "SELECT max(minute) + INTERVAL 1 MINUTE FROM partition_minutes"
    second = "SELECT max(until) FROM partition_seconds"
    assert query.count(minute) == query.count(second) == 1
    for minutes_late in range(4):
        for seconds_late in range(minutes_late % 2 * 20, 240, 40):
            asked = query.replace(
                minute,
                f"SELECT max(minute) - INTERVAL {minutes_late - 1} MINUTE FROM partition_minutes",
            ).replace(
                second, f"SELECT max(until) - INTERVAL {seconds_late} SECOND FROM partition_seconds"
            )
            asked = asked.strip().removesuffix(";")
            rows = await log.engine.rows(f"SELECT end_offset, records, bytes FROM ({asked})")
            assert rows == [[24, 24, 18 * 5 + 5 * 15 + 5]]


async def test_minutes_without_records_are_counted_too(log: Log, rollup: Rollup) -> None:
    """So that the views read the last minute of the log, not everything since its last record."""
    await log.topic("orders")
    for _ in range(3):
        log.now_ms += MINUTE
        await rollup.count()
    assert await log.engine.rows("SELECT max(minute) FROM partition_minutes") == [
        ["2096-11-20 12:02:00"]
    ]


async def test_a_minute_that_is_counted_during_a_query_counts_once(
    log: Log, rollup: Rollup
) -> None:
    """A query learns first up to where the log is counted, and reads what is counted after that."""
    await log.topic("orders")
    for _ in range(4):
        await log.append("orders", 3)
        log.now_ms += MINUTE
    await rollup.count()
    await log.append("orders", 5, value_bytes=15)
    *_, view = (one.statement for one in migrations() if "VIEW partition_stats AS" in one.statement)
    _, _, query = view.partition("VIEW partition_stats AS\n")
    now = "SELECT max(minute) + INTERVAL 1 MINUTE FROM partition_minutes"
    assert query.count(now) == 1
    for minutes_late in range(6):
        earlier = f"SELECT max(minute) - INTERVAL {minutes_late} MINUTE FROM partition_minutes"
        asked = query.replace(now, earlier).strip().removesuffix(";")
        rows = await log.engine.rows(f"SELECT end_offset, records, bytes FROM ({asked})")
        assert rows == [[17, 17, 12 * 5 + 5 * 15]]


async def test_a_clock_that_is_set_back_gives_no_row_a_time_in_a_counted_minute(
    log: Log, rollup: Rollup
) -> None:
    await log.topic("orders")
    await log.append("orders", 3)
    log.now_ms += MINUTE
    await rollup.count()
    log.now_ms -= 4 * MINUTE
    await log.append("orders", 2)
    assert await stats(log) == truth(log)
    await rollup.count()
    assert log.floor_ms == NOON + MINUTE
    log.now_ms += 6 * MINUTE
    await rollup.count()
    assert await stats(log) == truth(log)
    assert [row[1:3] for row in await minutes(log)] == [["12:00", 3], ["12:01", 2]]


@pytest.mark.parametrize("restarted", [False, True])
async def test_counting_continues_after_the_clock_was_days_ahead(
    log: Log, rollup: Rollup, caplog: pytest.LogCaptureFixture, restarted: bool
) -> None:
    await log.topic("orders")
    await log.append("orders", 1)
    log.now_ms += 10 * DAY
    await log.append("orders", 20)
    log.now_ms += MINUTE
    await rollup.count()
    log.now_ms = NOON + 2 * MINUTE
    if restarted:
        rollup = await log.restart()
    else:
        await rollup.count()
    assert "the clock was set back by 863940 s" in caplog.text
    assert log.floor_ms <= log.now_ms
    await log.append("orders", 300)
    for _ in range(3):
        assert await stats(log) == truth(log)
        log.now_ms += MINUTE
        await rollup.count()
    assert [row[1:3] for row in await minutes(log)] == [["12:00", 1], ["12:02", 300]]
    log.now_ms += 11 * DAY
    await rollup.count()
    assert [row[2] for row in await minutes(log)] == [1, 300, 20]
    assert await stats(log) == truth(log)


async def test_counts_of_a_topic_created_again_do_not_include_those_of_the_deleted_one(
    log: Log, rollup: Rollup
) -> None:
    await log.topic("orders")
    await log.append("orders", 5)
    log.now_ms += MINUTE
    await rollup.count()
    await log.topic("orders")
    assert await stats(log) == truth(log)
    await log.append("orders", 2)
    assert await stats(log) == truth(log)
    log.now_ms += MINUTE
    await rollup.count()
    assert await stats(log) == truth(log)
    assert [row[2] for row in await minutes(log)] == [2]


async def test_counts_of_a_deleted_topic_are_deleted(log: Log, rollup: Rollup) -> None:
    await log.topic("orders")
    await log.topic("kept")
    await log.append("orders", 5)
    await log.append("kept", 6)
    log.now_ms += MINUTE
    await rollup.count()
    await log.delete_topic("orders")
    assert await stats(log) == truth(log)
    log.now_ms += MINUTE
    await rollup.count()
    assert [row[0] for row in await minutes(log)] == ["kept"]
    log.now_ms += MINUTE
    await log.append("kept", 1)
    log.now_ms += MINUTE
    await rollup.count()
    assert await stats(log) == truth(log)


async def test_a_partition_without_rows_ends_where_its_checkpoint_says(
    log: Log, rollup: Rollup
) -> None:
    topic_id = await log.topic("orders", 3)
    await log.append("orders", 5)
    await log.engine.execute(
        "INSERT INTO partition_checkpoints (* EXCEPT(forgot_producers))"
        " SELECT {id:UUID}, number, [2, 0, 7][number + 1], [3, 0, 7][number + 1] FROM numbers(3)",
        {"id": str(topic_id)},
    )
    for _ in range(2):
        assert await stats(log) == {
            ("orders", topic_id, 0): (5, 3, 15),
            ("orders", topic_id, 1): (0, 0, 0),
            ("orders", topic_id, 2): (7, 0, 0),
        }
        log.now_ms += MINUTE
        await rollup.count()


Step = tuple[str, int]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 50)),
        st.tuples(st.just("clock"), st.integers(-20 * MINUTE, 20 * MINUTE)),
        st.tuples(st.just("clock"), st.integers(0, 2 * MINUTE)),
        st.tuples(st.just("jump"), st.sampled_from([-DAY, -HOUR, HOUR, DAY])),
        st.tuples(st.just("count"), st.just(0)),
        st.tuples(st.just("count new"), st.just(0)),
        st.tuples(st.just("clock"), st.integers(0, 40_000)),
        st.tuples(st.just("before"), st.just(0)),
        st.tuples(st.just("after"), st.just(0)),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("made again"), st.just(0)),
    ),
    max_size=15,
)


@pytest.mark.usefixtures("every_row_is_many")
@settings(
    max_examples=up_to(30),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=STEPS)
async def test_every_row_counts_once_after_any_sequence_of_faults_and_clock_changes(
    engine: CountedEngine, steps: list[Step]
) -> None:
    """Appends, a clock that goes both ways, faults, restarts, topics made again, in any order."""
    assert rollup_module._MANY_NEW_ROWS == 1
    for table in ("messages", "partition_minutes", "partition_seconds", "topic_versions"):
        await engine.execute(f"TRUNCATE TABLE {table}")
    engine.fault = None
    log = Log(engine)
    await log.topic("orders")
    rollup = await log.restart()
    for step, amount in steps:
        if step == "append":
            await log.append("orders", amount)
        elif step in ("clock", "jump"):
            log.now_ms += amount
        elif step == "restart":
            rollup = await log.restart()
        elif step == "made again":
            await log.topic("orders")
        else:
            engine.fault = None if step.startswith("count") else step
            with suppress(EngineError):
                await (rollup.count_new() if step == "count new" else rollup.count())
            engine.fault = None
            assert await stats(log) == truth(log)
    assert await stats(log) == truth(log)
    log.now_ms += 20 * DAY
    await rollup.count()
    assert await stats(log) == truth(log)
    assert sum(row[2] for row in await minutes(log)) == sum(log.ends.values())


async def test_a_count_that_the_engine_failed_is_logged_and_tried_again(
    log: Log,
    engine: CountedEngine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(rollup_module, "_DELAY_MS", 0)
    await log.topic("orders")
    await log.append("orders", 3)
    log.now_ms += 2 * MINUTE - 5
    engine.fault = "before"
    rollup = log.rollup()
    rollup.start()
    async with asyncio.timeout(LIMIT_S):
        await engine.counted.wait()
    await rollup.close()
    assert "cannot count the log" in caplog.text
    assert await minutes(log) == [["orders", "12:00", 3, 15, 0, 2]]


async def test_an_unexpected_error_ends_the_task_of_the_rollup_with_that_error(log: Log) -> None:
    class Defect:
        async def no_row_before(self, time_ms: int) -> None:
            raise AssertionError("a defect")

    rollup = Rollup(log.engine, Defect(), log.clock_ms, AppendedRows(lambda: 0))
    rollup.start()
    assert rollup.task is not None
    async with asyncio.timeout(LIMIT_S):
        await asyncio.wait([rollup.task])
    with pytest.raises(AssertionError, match="a defect"):
        rollup.task.result()
    await rollup.close()


async def test_the_appender_gives_no_row_a_time_before_the_floor(engine: CountedEngine) -> None:
    appender = make_appender(engine, lanes=1)
    log = make_log()
    now_ms = time.time_ns() // 1_000_000
    await appender.no_row_before(now_ms + HOUR)
    batch = plain(b"early").data
    await append(appender, log, batch)
    await appender.no_row_before(0)
    await append(appender, log, batch)
    await appender.close()
    first, second = await engine.rows(
        "SELECT toUnixTimestamp64Milli(append_time) FROM messages ORDER BY offset"
    )
    assert first == [now_ms + HOUR]
    assert now_ms <= second[0] < now_ms + HOUR


async def test_raising_the_floor_of_append_times_waits_for_blocks_in_flight(
    engine: CountedEngine,
) -> None:
    scripted = ScriptedEngine(engine)
    appender = make_appender(scripted, lanes=1)
    log = make_log()
    scripted.gate.clear()
    batch = plain(b"on its way").data
    appended = append(appender, log, batch)
    await scripted.next_insert()
    told = asyncio.create_task(appender.no_row_before(2**40))
    await asyncio.wait([told], timeout=0.05)
    assert not told.done()
    scripted.gate.set()
    async with asyncio.timeout(LIMIT_S):
        await told
    assert await engine.rows("SELECT count() FROM messages") == [[1]]
    await appended
    await appender.close()
