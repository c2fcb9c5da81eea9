"""`python -m bench.views`: how long the views that people look at take on a large log.

By default 10^8 records with values of 14 bytes: nine tenths in 20 topics of 5 partitions, a tenth
in one topic of 1,000 partitions. 60% came during a week, 40% within the last minute. 1,000 groups
have committed 100 partitions each, five times; there are 10^6 dead letters and 10^5 blocks of
feeds. Four situations, in this order:

* counted: the week alone, all of it counted by the roll-up (broker/log/rollup.py);
* burst: the last minute, too, counted in parts as a broker does it while it is written;
* 10^9: as burst, and the counters of a log that is ten times as large and as old;
* behind: as 10^9, but the last minute is not counted at all, as after an outage of the roll-up.

Each statement runs in one thread (`sql_max_threads`), first cold, then five times. `cold` is the
first time, `warm` the best of the others, `CPU` the least processor time, which depends less on
what else the machine does. Prints Markdown; asserts nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.machine import machine
from brokerhouse.broker.log.rollup import Rollup
from brokerhouse.common.clock import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from brokerhouse.storage.definition_guard import Handle
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.schema import migrate
from brokerhouse.storage.schema_files import ROW_BYTES_BY_SIZES

_WEEK_SHARE, _WIDE_SHARE = 0.6, 0.1
_BLOCKS_OF_WEEK, _BLOCKS_OF_BURST = 12, 24
_BURST_MS = 48_000
_TOPICS, _PARTITIONS, _WIDE_PARTITIONS = 20, 5, 1_000
_TOPIC_ID = "reinterpretAsUUID(sipHash128(topic))"
_MANY = "concat('topic-', leftPad(toString({number}), 2, '0'))"

_RECORDS = f"""
INSERT INTO messages
    (topic, topic_id, partition, offset, timestamp_ms, timestamp_type, key, value, producer_id,
     producer_epoch, sequence, append_time)
SELECT
    {{topic}} AS topic, {_TOPIC_ID}, {{partition}}, {{first}} + intDiv(number, {{partitions}}),
    time_ms, 'CreateTime', toString(number % 5000),
    concat('value-', leftPad(toString(sipHash64(number) % 100000000), 8, '0')), -1, -1, -1,
    fromUnixTimestamp64Milli(time_ms)
FROM
(
    SELECT
        number,
        toInt64({{start_ms}} + intDiv(number, 1000) * 1000 / {{rows}} * {{span_ms}}) AS time_ms
    FROM numbers({{rows}})
)
"""

_OTHER_ROWS = (
    f"""
    INSERT INTO topic_versions (topic_id, version, name, partitions, state)
    SELECT {_TOPIC_ID}, 1, {_MANY.format(number="number")} AS topic, {_PARTITIONS}, 'live'
    FROM numbers({_TOPICS})
    UNION ALL SELECT {_TOPIC_ID}, 1, 'wide' AS topic, {_WIDE_PARTITIONS}, 'live'
    """,
    f"""
    INSERT INTO consumer_offsets
        (group_id, topic, topic_id, partition, offset, commit_time, version, coordinator)
    SELECT
        concat('group-', toString(intDiv(number, 100) % 1000)),
        {_MANY.format(number=f"number % {_TOPICS}")} AS topic, {_TOPIC_ID},
        intDiv(number % 100, {_TOPICS}), sipHash64(number) % 500000, now64(3), number + 1, 1
    FROM numbers(500000)
    """,
    """
    INSERT INTO consumer_group_versions
        (group_id, version, state, state_time, generation, protocol_type, protocol_name, leader,
         members, removed, coordinator)
    SELECT concat('group-', toString(number)), 1, 'Stable', now64(3), 7, 'consumer', 'range', 'm-0',
        10, false, 1
    FROM numbers(1000)
    """,
    f"""
    INSERT INTO group_member_versions (group_id, member_id, version, assignment, join_time, removed)
    SELECT
        concat('group-', toString(intDiv(number, 10))),
        concat('m-', toString(number % 10)) AS member, 1,
        mapFromArrays(
            [{_MANY.format(number="number % 10")}, {_MANY.format(number="number % 10 + 10")}],
            arrayWithConstant(2, mapFromArrays(
                arrayMap(i -> toInt32(i), range({_PARTITIONS})),
                arrayWithConstant({_PARTITIONS}, member)))),
        now64(3), false
    FROM numbers(10000)
    """,
    """
    INSERT INTO group_heartbeats
    SELECT concat('group-', toString(intDiv(number, 10))), concat('m-', toString(number % 10)),
        now64(3), 1
    FROM numbers(10000)
    """,
    f"""
    INSERT INTO table_feed_versions
        (name, version, feed_id, database, table, topics, format, status)
    SELECT concat('shop.', topic), 1, {_TOPIC_ID}, 'shop', topic, [topic], 'json', 'running'
    FROM (SELECT {_MANY.format(number="number")} AS topic FROM numbers(10))
    """,
    f"""
    INSERT INTO table_feed_blocks
        (feed, feed_id, topic, topic_id, partition, version, phase, first_offset, end_offset, rows,
         total_rows, time)
    SELECT concat('shop.', topic), {_TOPIC_ID}, topic, {_TOPIC_ID}, intDiv(number, 10) % 5,
        block, if(block % 2, 'after', 'before'), block * 100, block * 100 + 100, 100, block * 100,
        now64(3) - toIntervalSecond(intDiv(100000 - number, 10))
    FROM
    (
        SELECT number, {_MANY.format(number="number % 10")} AS topic, intDiv(number, 50) AS block
        FROM numbers(100000)
    )
    """,
    f"""
    INSERT INTO dead_letter_versions
        (feed, feed_id, topic, topic_id, partition, offset, error, time)
    SELECT concat('shop.', topic), {_TOPIC_ID}, topic, {_TOPIC_ID}, intDiv(number, 10) % 5,
        intDiv(number, 50), concat('column id: not a number: ', toString(number)), now64(3)
    FROM (SELECT number, {_MANY.format(number="number % 10")} AS topic FROM numbers(1000000))
    """,
)

# Ten times the records of the week, in the nine weeks before it: counters of hours, as their TTL
# leaves them.
_NINE_WEEKS_BEFORE = """
INSERT INTO partition_minutes
SELECT
    topic, topic_id, partition, hour - toIntervalWeek(week), sum(records), sum(bytes),
    min(min_offset), max(max_offset), min(first_append_time) - toIntervalWeek(week),
    max(last_append_time) - toIntervalWeek(week)
FROM
(
    SELECT *, toStartOfHour(minute) + INTERVAL 59 MINUTE AS hour
    FROM partition_minutes WHERE topic != ''
)
ARRAY JOIN range(1, 10) AS week
GROUP BY topic, topic_id, partition, hour, week
"""

_STATEMENTS = {
    "`topic_stats`": "SELECT * FROM topic_stats",
    "`partition_stats`": "SELECT * FROM partition_stats",
    "`topic_minutes`, an hour": "SELECT * FROM topic_minutes WHERE minute > now() - 3600",
    "`topic_minutes`, a topic and day": (
        "SELECT minute, sum(records) FROM topic_minutes WHERE topic = 'topic-03'"
        " AND minute > now() - 86400 GROUP BY minute"
    ),
    "`topics`": "SELECT * FROM topics",
    "`latest_offsets`": "SELECT * FROM latest_offsets",
    "`current_offsets`": "SELECT * FROM current_offsets",
    "`current_offsets`, a group": "SELECT * FROM current_offsets WHERE group_id = 'group-7'",
    "`consumer_lag`": "SELECT * FROM consumer_lag",
    "`consumer_lag`, a group": "SELECT * FROM consumer_lag WHERE group_id = 'group-7'",
    "`group_state`": "SELECT * FROM group_state",
    "`consumer_groups`": "SELECT * FROM consumer_groups",
    "`group_members`": "SELECT * FROM group_members",
    "`group_assignments`": "SELECT * FROM group_assignments",
    "`table_feeds`": "SELECT * FROM table_feeds",
    "`table_feed_progress`": "SELECT * FROM table_feed_progress",
    "`dead_letters`, a feed's first 100": (
        "SELECT * FROM dead_letters WHERE feed = 'shop.topic-03' LIMIT 100"
    ),
    "`dead_letters`, how many of each feed": (
        "SELECT feed, count() FROM dead_letters GROUP BY feed"
    ),
    "`failed_views`": "SELECT * FROM failed_views",
    "`messages_committed`, 1,000 offsets": (
        "SELECT * FROM messages_committed WHERE topic = 'topic-03' AND partition = 2"
        " AND offset BETWEEN 100000 AND 100999"
    ),
    "`messages_committed`, the last 10 of a partition": (
        "SELECT * FROM messages_committed WHERE topic = 'topic-03' AND partition = 2"
        " ORDER BY offset DESC LIMIT 10"
    ),
    "`messages_committed`, a topic's minute": (
        "SELECT * FROM messages_committed WHERE topic = 'topic-03'"
        " AND append_time BETWEEN now64(3) - 86400 AND now64(3) - 86340 LIMIT 100"
    ),
    "`messages_committed`, a minute": (
        "SELECT topic, count() FROM messages_committed"
        " WHERE append_time BETWEEN now64(3) - 86400 AND now64(3) - 86340 GROUP BY topic"
    ),
}


@dataclass(frozen=True, slots=True)
class Timing:
    cold_s: float
    warm_s: float
    cpu_s: float
    rows: int


class _SetClock:
    """A roll-up whose clock is set, and that takes any number of new rows for many."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self.now_ms = 0
        self.rollup = Rollup(engine, self, lambda: self.now_ms, self, ROW_BYTES_BY_SIZES)

    async def no_row_before(self, time_ms: int) -> None:
        """Nobody writes."""

    def begin(self, time_ms: int) -> None:
        """Any number is many."""

    async def since(self, time_ms: int) -> int:
        return 1 << 62


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.views", description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_run(Path(folder) / "data", options.rows, options.threads))


async def _run(data_dir: Path, rows: int, threads: int) -> None:
    engine = EmbeddedEngine(data_dir, 1, fsync=False)
    try:
        await migrate(engine)
        writer = engine.handle(
            "SET max_insert_block_size = 1000000000, min_insert_block_size_rows = 0,"
            " min_insert_block_size_bytes = 0, max_partitions_per_insert_block = 0"
        )
        clock = _SetClock(engine)
        now_ms = time.time_ns() // 1_000_000
        minute_ms = now_ms - now_ms % MINUTE_MS - MINUTE_MS
        for statement in _OTHER_ROWS:
            writer.query(statement, "Null")
        found = {}
        await _week(writer, clock, int(rows * _WEEK_SHARE), minute_ms)
        found["counted"] = _timed(engine, threads)
        await _burst(writer, clock, int(rows * (1 - _WEEK_SHARE)), minute_ms)
        found["burst"] = _timed(engine, threads)
        writer.query(_NINE_WEEKS_BEFORE, "Null")
        writer.query("OPTIMIZE TABLE partition_minutes FINAL", "Null")
        found["10^9"] = _timed(engine, threads)
        writer.query("TRUNCATE TABLE partition_seconds", "Null")
        found["behind"] = _timed(engine, threads)
        writer.close()
    finally:
        await engine.close()
        shutil.rmtree(data_dir)
    _print(found)


async def _week(writer: Handle, clock: _SetClock, rows: int, end_ms: int) -> None:
    start_ms, span_ms = end_ms - 7 * DAY_MS, 7 * DAY_MS - 2 * HOUR_MS
    each = rows // _BLOCKS_OF_WEEK
    for block in range(_BLOCKS_OF_WEEK):
        block_ms = start_ms + span_ms * block // _BLOCKS_OF_WEEK
        _write(writer, each, block, block_ms, span_ms // _BLOCKS_OF_WEEK)
    clock.now_ms = end_ms
    took = time.monotonic()
    await clock.rollup.count()
    print(f"\nCounted the week: {time.monotonic() - took:.0f} s", flush=True)


async def _burst(writer: Handle, clock: _SetClock, rows: int, minute_ms: int) -> None:
    """Counted every two seconds of its own time, after the two blocks of that time."""
    each, step_ms = rows // _BLOCKS_OF_BURST, _BURST_MS // _BLOCKS_OF_BURST
    took = 0.0
    for block in range(_BLOCKS_OF_BURST):
        _write(writer, each, _BLOCKS_OF_WEEK + block, minute_ms + block * step_ms, 1)
        clock.now_ms = minute_ms + (block + 1) * step_ms
        before = time.monotonic()
        await clock.rollup.count_new()
        took += time.monotonic() - before
    print(f"Counted the burst in {_BURST_MS // step_ms} parts: {took:.1f} s", flush=True)


def _write(writer: Handle, rows: int, block: int, start_ms: int, span_ms: int) -> None:
    """Blocks may have numbers of rows that differ: offsets of each begin at a round number."""
    wide = int(rows * _WIDE_SHARE)
    many = _TOPICS * _PARTITIONS
    for topic, partition, partitions, count in (
        (
            _MANY.format(number=f"number % {_TOPICS}"),
            f"intDiv(number % {many}, {_TOPICS})",
            many,
            rows - wide,
        ),
        ("'wide'", f"number % {_WIDE_PARTITIONS}", _WIDE_PARTITIONS, wide),
    ):
        writer.query(
            _RECORDS.format(
                topic=topic,
                partition=partition,
                partitions=partitions,
                first=block * (rows // partitions + 1),
                start_ms=start_ms - start_ms % SECOND_MS,
                span_ms=span_ms,
                rows=count,
            ),
            "Null",
        )


def _timed(engine: EmbeddedEngine, threads: int) -> dict[str, Timing]:
    handle = engine.handle(f"SET max_threads = {threads}")
    try:
        return dict(_timings(handle))
    finally:
        handle.close()


def _timings(handle: Handle) -> Iterator[tuple[str, Timing]]:
    for name, statement in _STATEMENTS.items():
        times, cpu, rows = [], [], 0
        for _ in range(6):
            before, cpu_before = time.monotonic(), time.process_time()
            rows = handle.query(statement, "Null").storage_rows_read()
            times.append(time.monotonic() - before)
            cpu.append(time.process_time() - cpu_before)
        yield name, Timing(times[0], min(times[1:]), min(cpu), rows)


def _print(found: dict[str, dict[str, Timing]]) -> None:
    print("\nSeconds: cold, warm, CPU.\n")
    print(f"| view | {' | '.join(found)} | rows read, burst |")
    print("|---" * (len(found) + 1) + "|---:|")
    for name in _STATEMENTS:
        cells = [
            f"{one.cold_s:.2f}, {one.warm_s:.2f}, {one.cpu_s:.2f}"
            for one in (timings[name] for timings in found.values())
        ]
        print(f"| {name} | {' | '.join(cells)} | {found['burst'][name].rows:,} |")
    slowest = [max(one.warm_s for one in timings.values()) for timings in found.values()]
    print(f"\nSlowest, warm: {', '.join(f'{one:.2f} s' for one in slowest)}")


if __name__ == "__main__":
    main()
