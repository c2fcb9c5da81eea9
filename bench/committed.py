"""`python -m bench.committed`: what the view `messages_committed` costs over the table `messages`.

Ten million rows of about 100 bytes in 1,000 partitions of ten topics, in an embedded engine: once
without transactions; once in transactions of 100 records of which 1% are aborted, and the last one
of every partition is open. Prints the best of several times, in seconds, and how many times as long
the view takes, by the clock and by processor time, which varies less. The two are asked in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import tempfile
import time
from pathlib import Path

from bench.machine import machine
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.schema import migrate

_TOPICS, _PARTITIONS = 10, 100
_TOPIC_ID = "reinterpretAsUUID(sipHash128(topic))"
_ROWS = """
INSERT INTO messages
    (topic, topic_id, partition, offset, timestamp_ms, timestamp_type, value, producer_id,
     transactional, control, key, transaction_start, append_time)
SELECT
    concat('topic', toString(topic)), {topic_id}, partition, offset, 1790000000000 + offset,
    'CreateTime',
    if(is_marker, '', concat(hex(sipHash128(number)), hex(sipHash128(number, 1)),
        hex(sipHash128(number, 2)))),
    {transactional} * partition, {transactional}, is_marker,
    if(is_marker, if(aborted, '\\0\\0\\0\\0', '\\0\\0\\0\\x01'), NULL),
    if({transactional}, start, -1), now64(3) - INTERVAL 2 HOUR + INTERVAL offset MILLISECOND
FROM
(
    SELECT
        number, intDiv(number, {each}) AS log, {topic_expression} AS topic,
        log % {partitions} AS partition, number % {each} AS offset,
        intDiv(offset, 101) * 101 AS start,
        intDiv(offset, 101) % 100 = 7 AS aborted,
        {transactional} AND offset - start = 100 AS is_marker
    FROM numbers({rows})
)
"""
_ABORTED = """
INSERT INTO aborted_transactions
SELECT topic, topic_id, partition, producer_id, transaction_start, offset FROM messages
WHERE control AND key = '\\0\\0\\0\\0'
"""
_OPEN = """
INSERT INTO open_transaction_versions
    (topic, topic_id, partition, producer_id, transaction_start, version)
SELECT topic, topic_id, partition, any(producer_id), max(transaction_start) AS start, 1
FROM messages GROUP BY topic, topic_id, partition
"""
_QUERIES = {
    "`SELECT * ... FORMAT Null`": "SELECT * FROM {table} FORMAT Null",
    "`SELECT sum(length(value))`": "SELECT sum(length(value)) FROM {table}",
    "`SELECT count(), max(timestamp_ms)` of one of ten topics": (
        "SELECT count(), max(timestamp_ms) FROM {table} WHERE topic = 'topic3'"
    ),
    "10 records of one partition": (
        "SELECT * FROM {table} WHERE topic = 'topic3' AND partition = 5 AND offset >= 5000"
        " ORDER BY offset LIMIT 10"
    ),
}


async def _filled(directory: Path, rows: int, *, transactional: bool) -> EmbeddedEngine:
    engine = EmbeddedEngine(directory, 1, fsync=False)
    await migrate(engine)
    each = rows // (_TOPICS * _PARTITIONS)
    values = {
        "topic_id": _TOPIC_ID,
        "topic_expression": f"intDiv(log, {_PARTITIONS})",
        "transactional": "true" if transactional else "false",
        "each": each,
        "partitions": _PARTITIONS,
        "rows": rows,
    }
    await engine.execute(_ROWS.format(**values))
    if transactional:
        await engine.execute(_ABORTED)
        await engine.execute(_OPEN)
    await engine.execute("OPTIMIZE TABLE messages FINAL")
    return engine


def _times(engine: EmbeddedEngine, query: str, repeats: int) -> dict[str, tuple[float, float]]:
    """Of the table and of the view, the best of `repeats`: seconds, and seconds of CPU."""
    best = {"messages": (math.inf, math.inf), "messages_committed": (math.inf, math.inf)}
    handle = engine.handle("SET max_threads = 2")
    for _ in range(repeats):
        for table, (seconds, cpu_s) in best.items():
            began, cpu_began = time.perf_counter(), time.process_time()
            handle.query(query.format(table=table), "TabSeparated")
            best[table] = (
                min(seconds, time.perf_counter() - began),
                min(cpu_s, time.process_time() - cpu_began),
            )
    return best


async def _measured(rows: int, repeats: int, *, transactional: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        engine = await _filled(Path(directory), rows, transactional=transactional)
        try:
            for name, query in _QUERIES.items():
                (table, table_cpu), (view, view_cpu) = _times(engine, query, repeats).values()
                times = f"{view / table:.2f} | {view_cpu / table_cpu:.2f}"
                print(f"| {name} | {table:.3f} | {view:.3f} | {times} |", flush=True)
        finally:
            await engine.close()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    print(machine())
    for transactional in (False, True):
        said = "1% aborted, 1,000 open" if transactional else "without transactions"
        print(
            f"\n| {options.rows:,} rows, {said} | `messages` | `messages_committed` | times | CPU |"
        )
        print("|---|---:|---:|---:|---:|")
        await _measured(options.rows, options.repeats, transactional=transactional)


if __name__ == "__main__":
    asyncio.run(main())
