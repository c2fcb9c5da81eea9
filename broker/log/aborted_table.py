"""The table `aborted_transactions`: rows that brokers store when they have written an abort.

A row is needed for as long as the log has records of its transaction: without it the view
`messages_committed` would show them.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.log.partition import PartitionLog
from broker.log.transactions import AbortedTransaction
from common.clock import DAY_MS
from storage.blocks import INT32, INT64, STRING, UUIDS, Table
from storage.engine import Engine
from storage.row_lane import TableRows

ABORTED_TRANSACTIONS = Table(
    "aborted_transactions",
    (
        ("topic", STRING),
        ("topic_id", UUIDS),
        ("partition", INT32),
        ("producer_id", INT64),
        ("transaction_start", INT64),
        ("last_offset", INT64),
    ),
)


def aborted_row(log: PartitionLog, aborted: AbortedTransaction) -> TableRows:
    row = (log.topic.name, log.topic_id, log.partition, *aborted)
    return TableRows(ABORTED_TRANSACTIONS, [row])


_REMOVE_UNUSED = """
ALTER TABLE aborted_transactions DELETE
WHERE (topic_id, partition, transaction_start) NOT IN (
    SELECT topic_id, partition, transaction_start FROM messages WHERE transactional AND NOT control
)
"""


class AbortedSweep:
    """Removes rows whose transactions have no record any more, at the start and once a day."""

    def __init__(self, engine: Engine, clock_ms: Callable[[], int]) -> None:
        """`engine` has both tables as they are: what waits in its journal is put there first."""
        self._engine = engine
        self._clock_ms = clock_ms
        self._swept_ms: int | None = None

    async def round(self) -> None:
        """Does nothing if the last one was less than a day ago. Raises `EngineError`."""
        now_ms = self._clock_ms()
        if self._swept_ms is not None and now_ms - self._swept_ms < DAY_MS:
            return
        if await self._engine.rows("SELECT 1 FROM aborted_transactions LIMIT 1"):
            await self._engine.execute(_REMOVE_UNUSED)
        self._swept_ms = now_ms
