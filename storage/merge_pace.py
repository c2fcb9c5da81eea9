"""Makes merges of the log wait while it is written at full speed.

ClickHouse merges as soon as there are five parts of about the same size. At full speed there are
two or three new parts a second, so merges run all the time, on the cores that the load needs
(measured: a third to a half of this process's CPU), and write each row again for every factor of
five. While large rounds of the journal follow each other, a higher `merge_selector_base` makes
ClickHouse wait for about 36 parts: a row is merged about half as often, and the merges of a load
of some seconds come after it.

ClickHouse lowers the base as parts become more, down to 2 at 50 of them in one day, so the parts
that wait are bounded. Deletions and other mutations are not affected. The setting is in the table
only meanwhile. A crash leaves it there; the next start removes it.

On a disk that is low the setting stays as it is: the engine could not write the definition of the
table (definition_guard.py), and merges stop there anyway.
"""

from __future__ import annotations

import asyncio
import logging

from brokerhouse.common.tasks import cancel, event_within
from brokerhouse.sql.queries import query
from brokerhouse.storage.disk_reserve import LOW_BYTES
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import EngineError
from brokerhouse.storage.journal_statements import LOG_TABLE

log = logging.getLogger(__name__)

SETTING = "merge_selector_base"
_AT_FULL_SPEED = 100
"""With n parts the base is 100 - 98 * (n - 10) / 40, which n parts of one size reach at n = 36."""
_PAUSE_S = 3.0
"""After the last large round. Longer than a round takes, also on a busy machine."""


class MergePace:
    """`merge_selector_base` of the log's table: higher while large rounds follow each other."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._engine = engine
        self._table = f"{engine.database}.{LOG_TABLE}"
        self._large_round = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def recover(self) -> None:
        """Remove what a crash left behind. Raises `EngineError`."""
        rows = await self._engine.rows(
            query("table_has_setting"),
            {"database": self._engine.database, "table": LOG_TABLE, "setting": SETTING},
        )
        if rows[0][0]:
            await self._merge_soon()

    def large_round(self) -> None:
        """A round of the log is in the table, and it was a large one."""
        self._large_round.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="merge-pace")

    async def close(self) -> None:
        """Merges do not wait any more."""
        task, self._task = self._task, None
        await cancel(task)

    async def _run(self) -> None:
        while True:
            await self._large_round.wait()
            try:
                await self._change(f"MODIFY SETTING {SETTING} = {_AT_FULL_SPEED}")
                while await event_within(self._large_round, _PAUSE_S) or self._is_low():
                    self._large_round.clear()
            finally:
                await self._merge_soon()

    async def _merge_soon(self) -> None:
        await self._change(f"RESET SETTING {SETTING}")

    def _is_low(self) -> bool:
        return self._engine.reserve.free_bytes() < LOW_BYTES

    async def _change(self, what: str) -> None:
        if self._is_low():
            return
        try:
            await self._engine.execute(f"ALTER TABLE {self._table} {what}")
        except EngineError as error:
            # Merges come sooner or later than they should, which is not worth more than a warning.
            log.warning("cannot change how many parts are merged: %s", error)
