"""Acknowledged records that the last run left in the journal, and that have no space in the table.

A start on a full disk may find more in the journal than it can put into `messages`. Until there is
space, these records are in a table in memory, `journal_found`, which has nothing else. The broker
reads them there: a cold read begins in `messages` and goes on here, and a query on the log reads
both. Every other statement on the log is refused, as it would miss records.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from uuid import UUID, uuid4

from brokerhouse.common.tasks import cancel
from brokerhouse.sql.queries import query
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import EngineError, NativeBlock, Parameter, StorageFault
from brokerhouse.storage.journal_drain import DrainLimits, DrainStream, inserts_of
from brokerhouse.storage.journal_files import JournalBlock
from brokerhouse.storage.journal_statements import LOG, LOG_TABLE, streams_of

LOG_KEY = ("topic_id", "partition", "offset", "append_time")
"""What tells whether a row of the log is in its table."""
_TABLE = "journal_found"
_NAMED = re.compile(r"\b(FROM|JOIN)\s+messages\b")
_LITERAL = re.compile(r"'[^']*'")


class UnplacedRecords:
    """Reads these records, alone or together with those of the table."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._engine = engine
        self._table = f"{engine.database}.{_TABLE}"
        self._ranges: dict[tuple[UUID, int], tuple[int, int]] = {}
        self._columns = ""
        self._task: asyncio.Task[None] | None = None

    async def load(self, blocks: Sequence[JournalBlock], limits: DrainLimits) -> None:
        """Fill the table. Raises `EngineError`."""
        engine = self._engine
        await engine.execute(f"DROP TABLE IF EXISTS {self._table} SYNC")
        for some in limits.split(blocks):
            for insert in inserts_of(some):
                if not self._columns:
                    self._columns = insert.columns
                    await engine.execute(
                        query(
                            "make_log_in_memory",
                            table=self._table,
                            columns=insert.columns,
                            log=f"{engine.database}.{LOG_TABLE}",
                        )
                    )
                await engine.insert_blocks(
                    LOG, _TABLE, insert.columns, insert.blocks, str(uuid4()), insert.join
                )
        for topic_id, partition, first, end in await engine.rows(
            query("ranges_in_memory", table=self._table)
        ):
            self._ranges[UUID(topic_id), partition] = first, end

    def range_of(self, topic_id: UUID, partition: int) -> tuple[int, int]:
        """The offsets first <= offset < end of a partition that are read here."""
        return self._ranges.get((topic_id, partition), (0, 0))

    def read_native(
        self, sql: str, params: Mapping[str, Parameter], chunk_bytes: int
    ) -> AsyncGenerator[NativeBlock, None]:
        """A query on the log, of these records alone. Raises `EngineError`."""
        here = _NAMED.sub(rf"\1 {self._table}", sql)
        return self._engine.read_native(here, params, chunk_bytes)

    def with_all(self, sql: str) -> str | None:
        """A query of the broker on the log, of these records as well, each once.

        None if it names the log in another way: it would miss them.
        """
        if LOG in streams_of(_NAMED.sub("", _LITERAL.sub("", sql))):
            return None
        log, key = f"{self._engine.database}.{LOG_TABLE}", ", ".join(LOG_KEY)
        both = query("log_with_found", columns=self._columns, log=log, found=self._table, key=key)
        return _NAMED.sub(rf"\1 {both}", sql)

    def forget_when_drained(self, stream: DrainStream) -> None:
        """Drop the table when its records are in `messages`."""
        self._task = asyncio.create_task(self._forget(stream), name="journal-found")

    async def close(self) -> None:
        await cancel(self._task)

    async def _forget(self, stream: DrainStream) -> None:
        while stream.has_found and not isinstance(stream.refusal, StorageFault):
            with suppress(EngineError):
                await stream.reached(stream.found_until, at_once=False)
        with suppress(EngineError):  # the next start drops it
            await self._engine.execute(f"DROP TABLE IF EXISTS {self._table} SYNC")
