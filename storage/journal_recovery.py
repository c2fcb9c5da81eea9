"""Puts into the engine what the journal held at the end of the last run, and nothing twice.

A crash may have come after rows were inserted and before the journal knew. So rows of the log are
compared with those of the table. A row of a small table may be there twice then: its readers take
the newest version. Materialized views may lack rows that the table has (storage/view_doubts.py).

On a full disk recovery uses the reserve (storage/disk_reserve.py). What has no space all the same
stays in the journal, and goes into the tables when there is space.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from uuid import uuid4

from brokerhouse.sql.queries import query
from brokerhouse.storage.disk_reserve import KEEP_FREE_BYTES, NOT_ENOUGH_SPACE
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import EngineError
from brokerhouse.storage.journal_drain import DrainLimits, DrainStream, TableInsert, insert_bytes
from brokerhouse.storage.journal_files import JournalBlock
from brokerhouse.storage.journal_statements import LOG, LOG_TABLE, ROWS
from brokerhouse.storage.journal_unplaced import LOG_KEY, UnplacedRecords
from brokerhouse.storage.log_views import PARTITION_KEY, LogRange

log = logging.getLogger(__name__)

_FOR_DELETING_BYTES = 16 << 20
"""Recovery leaves so much of the reserve for what deletes topics and records."""
_ATTEMPTS = 8
"""Rounds become smaller each time that there is no space (storage/journal_drain.py)."""


class Recovery:
    """Inserts what was found in the journal, as long as deleting keeps enough of the disk."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._engine = engine
        self._unplaced: UnplacedRecords | None = None
        self._log_stream: DrainStream | None = None

    @property
    def unplaced(self) -> UnplacedRecords | None:
        """Records that the last run has left, while they have no space in the table."""
        is_needed = self._log_stream is not None and self._log_stream.has_found
        return self._unplaced if is_needed else None

    async def check_space(self, stream: int, blocks: Collection[JournalBlock]) -> None:
        """As `FoundInserts.check_space`."""
        size = sum(insert_bytes(block.data) for block in blocks)
        reserve = self._engine.reserve
        kept = KEEP_FREE_BYTES + (_FOR_DELETING_BYTES if stream == LOG else 0)
        if reserve.size and reserve.free_bytes() < kept + size:
            raise reserve.is_full()

    async def insert(self, stream: int, insert: TableInsert) -> None:
        """As `FoundInserts.insert`."""
        engine = self._engine
        if stream == LOG:
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

    async def keep_readable(
        self, streams: Sequence[DrainStream], blocks: Sequence[JournalBlock], limits: DrainLimits
    ) -> None:
        """After `drain`: let the records that still wait be read. `blocks`: those of the log.

        Raises `EngineError` if rows of small tables wait: nothing works without them.
        """
        log_stream, small_tables = streams[LOG], streams[ROWS]
        if small_tables.has_found:
            raise small_tables.refusal or self._engine.reserve.is_full()
        if not log_stream.has_found:
            return
        waiting = [one for one in blocks if one.sequence > log_stream.drained]
        self._unplaced, self._log_stream = UnplacedRecords(self._engine), log_stream
        await self._unplaced.load(waiting, limits)
        self._unplaced.forget_when_drained(log_stream)
        log.error(
            "%d blocks of acknowledged records stay in the journal, because the disk of %s is full:"
            " Kafka clients can read them, SQL cannot; delete topics or records, or add space",
            len(waiting),
            self._engine.data_dir,
        )

    async def close(self) -> None:
        if self._unplaced is not None:
            await self._unplaced.close()


async def _insert_missing(engine: EmbeddedEngine, insert: TableInsert) -> None:
    """Insert the rows of blocks of the log that the table does not have.

    Views may lack those that it has.
    """
    columns = insert.columns
    table, some = f"{engine.database}.{LOG_TABLE}", f"{engine.database}.journal_round"
    await engine.execute(f"DROP TABLE IF EXISTS {some} SYNC")
    await engine.execute(query("make_log_in_memory", table=some, columns=columns, log=table))
    await engine.insert_blocks(
        LOG, "journal_round", columns, insert.blocks, str(uuid4()), insert.join
    )
    key = ", ".join(LOG_KEY)
    same_time = (
        f"append_time >= (SELECT min(append_time) FROM {some})"
        f" AND append_time <= (SELECT max(append_time) FROM {some})"
    )
    there = await engine.rows(
        query(
            "ranges_of_round",
            partition_key=PARTITION_KEY,
            log=table,
            some=some,
            same_time=same_time,
            key=key,
        )
    )
    if there:
        await engine.failed_views.found_after_kill([LogRange(*row) for row in there])
    missing = engine.read_native(
        query(
            "rows_not_in_log", columns=columns, log=table, some=some, same_time=same_time, key=key
        ),
        {},
        1 << 30,
    )
    found = [bytes(block) async for block in missing]
    if found:
        await engine.insert_blocks(LOG, LOG_TABLE, columns, found, str(uuid4()))
    await engine.execute(f"DROP TABLE {some} SYNC")
