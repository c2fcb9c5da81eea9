"""Which records are too old or too many, on a real engine, and how a log start moves: the
checkpoint is stored first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import pytest

from brokerhouse.broker.log.checkpoints import read_checkpoints
from brokerhouse.broker.log.log_starts import LogStarts
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.producer_states import ProducerStates
from brokerhouse.broker.log.retention import AlwaysSettled, Retention
from brokerhouse.broker.log.row_sources import RowLanes
from brokerhouse.common.clock import DAY_MS, wall_ms
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import Engine, EngineError
from brokerhouse.storage.row_lane import RowLane
from tests.support.alone import OneLane, OneShard
from tests.support.clock import NOON, Clock
from tests.support.log_parts import ScriptedEngine, make_log, make_topic
from tests.support.small_tables import make_lane
from tests.support.stored_rows import store_minute, store_records

HOUR = 3_600_000
MINUTE = 60_000
LONG_AGO = NOON - 10_000 * HOUR


def log_starts(engine: Engine, lanes: RowLanes) -> LogStarts:
    return LogStarts(lanes, ProducerStates(lanes, OneShard(engine), DAY_MS, wall_ms))


class RetainedLogs:
    """Partitions that this broker leads, their rows, and a clock that the test sets."""

    def __init__(self, engine: EmbeddedEngine, lane: RowLane, many: int) -> None:
        self.engine = engine
        self.clock = Clock(NOON)
        self.logs: list[PartitionLog] = []
        self.starts = log_starts(engine, OneLane(lane))
        self.retention = Retention(self, OneShard(engine), self.starts, self.clock, many=many)

    def all(self) -> list[PartitionLog]:
        return self.logs

    def log(self, **configs: str) -> PartitionLog:
        """A partition; `retention_ms="1000"` is the config retention.ms."""
        given = {name.replace("_", "."): value for name, value in configs.items()}
        made = make_log(make_topic(f"t{len(self.logs)}", configs=given))
        self.logs.append(made)
        return made

    async def append(self, log: PartitionLog, *times: tuple[int, int]) -> None:
        """A record for each (timestamp, append time)."""
        for timestamp_ms, append_ms in times:
            await store_records(
                self.engine,
                log.topic.name,
                log.topic_id,
                append_time_ms=append_ms,
                timestamp_ms=timestamp_ms,
                partition=log.partition,
                first=log.next_offset,
            )
            log.next_offset += 1
            log.advance(log.next_offset)

    async def count_minutes(self, log: PartitionLog, *sizes: int, records: int = 10) -> None:
        """Minutes of ten records each, with these bytes, the oldest first."""
        for size in sizes:
            first, last = log.next_offset, log.next_offset + records - 1
            await store_minute(
                self.engine,
                log.topic.name,
                log.topic_id,
                NOON + first * 60_000,
                partition=log.partition,
                records=records,
                size_bytes=size,
                first=first,
                last=last,
            )
            log.next_offset += records
            log.advance(log.next_offset)

    async def checkpoint(self, log: PartitionLog) -> tuple[int, int]:
        return (await read_checkpoints(self.engine)).get((log.topic_id, log.partition), (0, 0))


FEW, MANY = 1000, 0
"""From how many partitions on one query finds those with old records."""


@pytest.fixture(params=[FEW, MANY], ids=["few", "many"])
async def house(
    engine: EmbeddedEngine, request: pytest.FixtureRequest
) -> AsyncIterator[RetainedLogs]:
    lane = make_lane(engine)
    yield RetainedLogs(engine, lane, request.param)
    await lane.close()


def aged(*hours: float) -> list[tuple[int, int]]:
    """Records that were appended at the time of their timestamp, so long before noon."""
    return [(NOON - int(age * HOUR), NOON - int(age * HOUR)) for age in hours]


# --- by time ---


async def test_retention_moves_the_log_start_to_the_first_record_that_is_young_enough(
    house: RetainedLogs,
) -> None:
    log = house.log(retention_ms=str(2 * HOUR))
    await house.append(log, *aged(4, 3, 2.001, 2, 1, 0))
    await house.retention.round()
    assert log.log_start_offset == 3
    assert await house.checkpoint(log) == (3, 6)


async def test_an_old_record_after_a_young_one_stays(house: RetainedLogs) -> None:
    log = house.log(retention_ms=str(2 * HOUR))
    await house.append(log, *aged(4, 1, 5, 0))
    await house.retention.round()
    assert log.log_start_offset == 1


async def test_the_age_of_a_record_is_that_of_its_timestamp_and_not_of_its_append(
    house: RetainedLogs,
) -> None:
    log = house.log(retention_ms=str(2 * HOUR))
    await house.append(log, (LONG_AGO, NOON), (NOON + HOUR, LONG_AGO), (LONG_AGO, NOON))
    await house.retention.round()
    assert log.log_start_offset == 1


@pytest.mark.parametrize("no_time", [-1, -(2**63)])
async def test_the_age_of_a_record_without_a_timestamp_is_that_of_its_append(
    house: RetainedLogs, no_time: int
) -> None:
    log = house.log(retention_ms=str(2 * HOUR))
    await house.append(log, (no_time, NOON - 3 * HOUR), (no_time, NOON - HOUR), *aged(0))
    await house.retention.round()
    assert log.log_start_offset == 1


async def test_a_log_of_old_records_is_emptied_and_keeps_its_end(house: RetainedLogs) -> None:
    log = house.log(retention_ms=str(HOUR))
    await house.append(log, *aged(4, 3, 2))
    await house.retention.round()
    assert (log.log_start_offset, log.high_watermark) == (3, 3)
    assert await house.checkpoint(log) == (3, 3)


@pytest.mark.parametrize(
    "configs",
    [
        {"retention_ms": "-1"},
        {"cleanup_policy": "compact", "retention_ms": "1", "retention_bytes": "0"},
        {"retention_ms": str(2**63 - 1)},
    ],
    ids=["no limit", "compacted only", "longer than time itself"],
)
async def test_retention_without_a_limit_does_not_move_the_log_start(
    house: RetainedLogs, configs: Mapping[str, str]
) -> None:
    log = house.log(**configs)
    await house.append(log, *aged(10_000, 1))
    await house.count_minutes(log, 100)
    await house.retention.round()
    assert log.log_start_offset == 0
    assert await house.checkpoint(log) == (0, 0)


async def test_retention_by_age_applies_to_a_topic_that_is_compacted_and_deleted(
    house: RetainedLogs,
) -> None:
    log = house.log(cleanup_policy="compact,delete", retention_ms=str(HOUR))
    await house.append(log, *aged(4, 0))
    await house.retention.round()
    assert log.log_start_offset == 1


async def test_a_partition_is_read_again_only_when_its_first_record_is_due(
    house: RetainedLogs,
) -> None:
    house.retention._many = FEW
    log = house.log(retention_ms=str(100 * HOUR))
    await house.append(log, *aged(50, 0))
    await house.retention.round()
    asked = ScriptedEngine(house.engine)
    house.retention._row_sources = OneShard(asked)
    house.clock.now_ms = NOON + 51 * HOUR - MINUTE
    asked.failing_rows.append("FROM messages")
    await house.retention.round()
    assert asked.failing_rows, "it was asked although nothing is due"
    house.clock.now_ms = NOON + 51 * HOUR
    asked.failing_rows.clear()
    await house.retention.round()
    assert log.log_start_offset == 1


async def test_old_records_added_to_an_emptied_log_are_removed_after_a_hundredth_of_the_time(
    house: RetainedLogs,
) -> None:
    log = house.log(retention_ms=str(100 * HOUR))
    await house.append(log, *aged(101))
    await house.retention.round()
    assert log.log_start_offset == 1
    await house.append(log, *aged(200))
    house.clock.now_ms = NOON + HOUR - 1
    await house.retention.round()
    assert log.log_start_offset == 1
    house.clock.now_ms = NOON + HOUR
    await house.retention.round()
    assert log.log_start_offset == 2


async def test_old_records_added_during_a_round_are_removed_after_a_hundredth_of_the_time(
    house: RetainedLogs,
) -> None:
    log = house.log(retention_ms=str(100 * HOUR))

    class Filling:
        """A record is acknowledged while the tables are waited for."""

        async def settled(self) -> None:
            await house.append(log, *aged(101))

    house.retention._tables = Filling()
    await house.retention.round()
    assert (log.log_start_offset, log.high_watermark) == (0, 1)
    house.retention._tables = AlwaysSettled()
    house.clock.now_ms = NOON + HOUR
    await house.retention.round()
    assert log.log_start_offset == 1


async def test_retention_of_many_partitions_reads_only_those_with_old_records(
    house: RetainedLogs,
) -> None:
    house.retention._many = MANY
    asked = ScriptedEngine(house.engine)
    house.retention._row_sources = OneShard(asked)
    young = [house.log(retention_ms=str(2 * HOUR)) for _ in range(5)]
    for log in young:
        await house.append(log, *aged(1, 0))
    old = house.log(retention_ms=str(2 * HOUR))
    await house.append(old, *aged(3, 1))
    asked.asked.clear()
    await house.retention.round()
    assert [log.log_start_offset for log in (*young, old)] == [0, 0, 0, 0, 0, 1]
    looked = [sql for sql in asked.asked if "timestamp_ms >=" in sql]
    assert len(looked) == 1
    house.clock.now_ms += 90 * MINUTE
    await house.retention.round()
    assert [log.log_start_offset for log in (*young, old)] == [1, 1, 1, 1, 1, 2]


async def test_a_changed_retention_time_applies_at_once(house: RetainedLogs) -> None:
    log = house.log(retention_ms=str(100 * HOUR))
    await house.append(log, *aged(50, 0))
    await house.retention.round()
    assert log.log_start_offset == 0
    shorter = make_topic(configs={"retention.ms": str(HOUR)}).config
    log.topic = replace(log.topic, config=shorter)
    await house.retention.round()
    assert log.log_start_offset == 1


# --- by size ---


async def test_retention_by_bytes_keeps_at_least_the_configured_bytes(house: RetainedLogs) -> None:
    exact, more, less = (
        house.log(retention_bytes=str(limit), retention_ms="-1") for limit in (300, 299, 301)
    )
    for log in (exact, more, less):
        await house.count_minutes(log, 100, 100, 100, 100, 100)
    await house.retention.round()
    assert [log.log_start_offset for log in (exact, more, less)] == [20, 20, 10]
    assert await house.checkpoint(exact) == (20, 50)


async def test_retention_by_bytes_includes_records_that_are_not_counted_yet(
    house: RetainedLogs,
) -> None:
    log = house.log(retention_bytes="100", retention_ms="-1")
    await house.count_minutes(log, 100, 100)
    await house.append(log, *aged(0, 0))
    await house.retention.round()
    assert log.log_start_offset == 10


async def test_retention_by_bytes_does_not_count_deleted_records_again(house: RetainedLogs) -> None:
    log = house.log(retention_bytes="200", retention_ms="-1")
    await house.count_minutes(log, 100, 100, 100, 100)
    for _ in range(3):
        await house.retention.round()
        assert log.log_start_offset == 20


async def test_retention_by_bytes_keeps_overlapping_minutes_together(house: RetainedLogs) -> None:
    log = house.log(retention_bytes="250", retention_ms="-1")
    await house.count_minutes(log, 100, 100, 100)
    # The clock was set back: rows that lie between those of another minute.
    await house.engine.execute(
        "INSERT INTO partition_minutes SELECT topic, topic_id, partition, minute + 7, 1, 100, 5,"
        " 25, now64(3), now64(3) FROM partition_minutes LIMIT 1"
    )
    await house.retention.round()
    assert log.log_start_offset == 5


async def test_retention_by_bytes_applies_to_each_partition_of_a_topic(house: RetainedLogs) -> None:
    first = house.log(retention_bytes="100", retention_ms="-1")
    second = PartitionLog(first.topic, 1, 0, 0, 0)
    house.logs.append(second)
    await house.count_minutes(first, 100, 100, 100)
    await house.count_minutes(second, 100)
    await house.retention.round()
    assert (first.log_start_offset, second.log_start_offset) == (20, 0)


# --- the order of it ---


async def test_the_log_start_moves_only_when_its_checkpoint_is_stored(
    engine: EmbeddedEngine,
) -> None:
    scripted = ScriptedEngine(engine)
    lane = make_lane(scripted)
    starts = log_starts(engine, OneLane(lane))
    log = make_log(end=10)
    scripted.gate.clear()
    moving = asyncio.create_task(starts.raise_to(log, 7))
    await scripted.insert_came.wait()
    assert log.log_start_offset == 0
    scripted.gate.set()
    await moving
    assert log.log_start_offset == 7
    assert await read_checkpoints(engine) == {(log.topic_id, 0): (7, 10)}

    scripted.faults.append("refused")
    with pytest.raises(EngineError):
        await starts.raise_to(log, 9)
    assert log.log_start_offset == 7
    await lane.close()


async def test_a_log_start_is_stored_on_every_shard_that_may_have_rows(house: RetainedLogs) -> None:
    stored: list[str] = []

    class Lane:
        def __init__(self, name: str) -> None:
            self.name = name

        async def store(self, *_: object) -> None:
            assert log.log_start_offset == 0
            stored.append(self.name)

    log = make_log(end=10)

    class Lanes:
        def lanes(self, _: PartitionLog) -> tuple[Lane, Lane]:
            return Lane("old"), Lane("new")

    starts = log_starts(house.engine, Lanes())  # type: ignore[arg-type]
    await starts.raise_to(log, 4)
    assert sorted(stored) == ["new", "old"]
    await starts.raise_to(log, 4)
    await starts.raise_to(log, 3)
    assert (log.log_start_offset, len(stored)) == (4, 2)


async def test_a_stored_log_start_is_taken_over_unless_it_is_beyond_the_end(
    house: RetainedLogs,
) -> None:
    behind, beyond = house.log(retention_ms="-1"), house.log(retention_ms="-1")
    for log, start in ((behind, 3), (beyond, 9)):
        await house.append(log, *aged(1, 1, 1, 1))
        await house.engine.execute(
            "INSERT INTO partition_checkpoints (* EXCEPT(forgot_producers))"
            " SELECT {id:UUID}, 0, {start:Int64}, 9",
            {"id": str(log.topic_id), "start": start},
        )
    await house.retention.round()
    assert (behind.log_start_offset, beyond.log_start_offset) == (3, 0)


async def test_a_partition_that_cannot_be_read_does_not_stop_retention_of_others(
    house: RetainedLogs,
) -> None:
    asked = ScriptedEngine(house.engine)
    house.retention._row_sources = OneShard(asked)
    first, second = (house.log(retention_ms=str(HOUR)) for _ in range(2))
    for log in (first, second):
        await house.append(log, *aged(3, 0))
    asked.failing_rows.append("timestamp_ms >=")
    await house.retention.round()
    assert sorted((first.log_start_offset, second.log_start_offset)) == [0, 1]
    await house.retention.round()
    assert (first.log_start_offset, second.log_start_offset) == (1, 1)
