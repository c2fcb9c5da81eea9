"""Puts into the engine what the journal held at the end of the last run, and nothing twice.

A crash may have come after rows were inserted and before the journal knew. So rows of the log are
compared with those of the table. A row of a small table may be there twice then: its readers take
the newest version. Materialized views may lack rows that the table has (storage/view_doubts.py).

On a full disk recovery uses the reserve (storage/disk_reserve.py). What has no space all the same
stays in the journal, and goes into the tables when there is space.
"""

from __future__ import annotations

from uuid import uuid4

from storage.disk_reserve import KEEP_FREE_BYTES, NOT_ENOUGH_SPACE
from storage.embedded import EmbeddedEngine
from storage.engine import EngineError
from storage.journal_drain import DrainStream, TableInsert, insert_bytes
from storage.journal_statements import LOG, LOG_TABLE
from storage.log_views import PARTITION_KEY, LogRange

_FOR_DELETING_BYTES = 16 << 20
"""Recovery leaves so much of the reserve for what deletes topics and records."""
_ATTEMPTS = 8
"""Rounds become smaller each time that there is no space (storage/journal_drain.py)."""
LOG_KEY = ("topic_id", "partition", "offset", "append_time")
"""What tells whether a row of the log is in its table."""


class Recovery:
    """Inserts what was found in the journal, as long as deleting keeps enough of the disk."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._engine = engine

    async def insert(self, stream: int, insert: TableInsert) -> None:
        """Insert what is missing of these blocks. It may be repeated. Raises `EngineError`."""
        engine = self._engine
        if stream == LOG:
            self._check_space(insert)
            await _insert_missing(engine, insert)
            return
        await engine.insert_blocks(
            stream, insert.table, insert.columns, insert.blocks, str(uuid4()), insert.join
        )

    async def drain(self, stream: DrainStream) -> None:
        """Put all of a stream into the engine, or as much as there is space for.

        Raises `EngineError` if the engine refuses it for another reason.
        """
        refused = 0
        while stream.waits and refused < _ATTEMPTS:
            before = stream.drained
            try:
                await stream.reached(stream.appended, at_once=True)
            except EngineError as error:
                if error.code != NOT_ENOUGH_SPACE:
                    raise
                self._engine.reserve.release("recovery")
                refused = 1 if stream.drained > before else refused + 1

    def _check_space(self, insert: TableInsert) -> None:
        size = sum(map(insert_bytes, insert.blocks))
        reserve = self._engine.reserve
        if reserve.size and reserve.free_bytes() < KEEP_FREE_BYTES + _FOR_DELETING_BYTES + size:
            raise reserve.is_full()


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
