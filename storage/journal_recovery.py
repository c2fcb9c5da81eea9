"""Puts into the engine what the journal held at the end of the last run, and nothing twice.

A crash may have come after rows were inserted and before the journal knew. So rows of the log are
compared with those of the table. A row of a small table may be there twice then: its readers take
the newest version. Materialized views may lack rows that the table has (storage/view_doubts.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

from storage.embedded import EmbeddedEngine
from storage.journal_drain import DrainLimits, RoundLog, TableInsert, inserts_of
from storage.journal_files import JournalBlock
from storage.journal_statements import LOG, LOG_TABLE
from storage.log_views import PARTITION_KEY, LogRange

LOG_KEY = ("topic_id", "partition", "offset", "append_time")
"""What tells whether a row of the log is in its table."""


async def put_back(
    engine: EmbeddedEngine, rounds: RoundLog, limits: DrainLimits, blocks: Sequence[JournalBlock]
) -> None:
    """Insert what is missing of the blocks of one stream. One round: a crash repeats all of it."""
    stream = blocks[0].stream
    await rounds.begin_round(stream, blocks[0].sequence, blocks[-1].sequence)
    for some in limits.split(blocks):
        for insert in inserts_of(some):
            if stream == LOG:
                await _insert_missing(engine, insert)
            else:
                await engine.insert_blocks(
                    stream, insert.table, insert.columns, insert.blocks, str(uuid4()), insert.join
                )
    await rounds.end_round(stream)


async def _insert_missing(engine: EmbeddedEngine, insert: TableInsert) -> None:
    """Insert the rows of blocks of the log that the table does not have.

    Views may lack those that it has.
    """
    columns = insert.columns
    table, some = f"{engine.database}.{LOG_TABLE}", f"{engine.database}.journal_round"
    await engine.execute(f"DROP TABLE IF EXISTS {some} SYNC")
    await engine.execute(
        f"CREATE TABLE {some} ENGINE = Memory AS SELECT {columns} FROM {table} LIMIT 0"
    )
    await engine.insert_blocks(
        LOG, "journal_round", columns, insert.blocks, str(uuid4()), insert.join
    )
    key = ", ".join(LOG_KEY)
    same_time = (
        f"append_time >= (SELECT min(append_time) FROM {some})"
        f" AND append_time <= (SELECT max(append_time) FROM {some})"
    )
    there = await engine.rows(
        f"SELECT any(topic), toString(topic_id), partition, {PARTITION_KEY}, min(offset),"
        " max(offset) + 1 FROM (SELECT topic, topic_id, partition, offset, offset - row_number()"
        " OVER (PARTITION BY topic_id, partition ORDER BY offset) AS gaps"
        f" FROM {table} WHERE {same_time} AND ({key}) IN (SELECT {key} FROM {some}))"
        " GROUP BY topic_id, partition, gaps ORDER BY ALL"
    )
    if there:
        await engine.failed_views.found_after_kill([LogRange(*row) for row in there])
    missing = engine.read_native(
        f"SELECT {columns} FROM {some}"
        f" WHERE ({key}) NOT IN (SELECT {key} FROM {table} WHERE {same_time})",
        {},
        1 << 30,
    )
    found = [bytes(block) async for block in missing]
    if found:
        await engine.insert_blocks(LOG, LOG_TABLE, columns, found, str(uuid4()))
    await engine.execute(f"DROP TABLE {some} SYNC")
