"""The tables `open_transaction_versions` and `aborted_transactions`: transactions of partitions.

The leader of a partition keeps them. That a transaction is open is stored before its first record,
that it has ended behind its marker, and that it was aborted in between. So at each moment the view
`messages_committed` finds what it must not show, and the next leader finds what it has to look at
(transaction_recovery.py).

A row of an aborted transaction is needed for as long as the log has records of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from uuid import UUID

from brokerhouse.broker.log.mutations import MUTATION_SETTINGS, is_changing
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.partition_sql import IS_PARTITION, log_parameters
from brokerhouse.broker.log.partition_transactions import AbortedTransaction, OpenTransaction
from brokerhouse.common.clock import DAY_MS, wall_ms
from brokerhouse.sql.queries import query
from brokerhouse.storage.blocks import BOOL, INT16, INT32, INT64, STRING, UINT64, UUIDS, Table
from brokerhouse.storage.engine import Engine
from brokerhouse.storage.row_lane import TableRows

OPEN_TRANSACTIONS = Table(
    "open_transaction_versions",
    (
        ("topic", STRING),
        ("topic_id", UUIDS),
        ("partition", INT32),
        ("producer_id", INT64),
        ("producer_epoch", INT16),
        ("transaction_start", INT64),
        ("ended", BOOL),
        ("version", UINT64),
    ),
)
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


def begun_rows(begun: Iterable[tuple[PartitionLog, int, OpenTransaction]]) -> TableRows:
    """Of transactions that begin, each with its partition and the id of its producer."""
    rows = [
        _version(log, producer_id, one.epoch, one.first_offset, ended=False)
        for log, producer_id, one in begun
    ]
    return TableRows(OPEN_TRANSACTIONS, rows)


def ended_rows(
    log: PartitionLog, producer_id: int, epoch: int, aborted: Iterable[AbortedTransaction]
) -> tuple[TableRows, TableRows]:
    """The producer has no open transaction in the log any more; these of it were aborted.

    To be stored in this order.
    """
    return (
        TableRows(
            ABORTED_TRANSACTIONS,
            [(log.topic.name, log.topic_id, log.partition, *one) for one in aborted],
        ),
        TableRows(OPEN_TRANSACTIONS, [_version(log, producer_id, epoch, -1, ended=True)]),
    )


def _version(
    log: PartitionLog, producer_id: int, epoch: int, start: int, *, ended: bool
) -> tuple[object, ...]:
    version = log.transactions.next_version(log.leader_epoch, wall_ms())
    place = log.topic.name, log.topic_id, log.partition
    return (*place, producer_id, epoch, start, ended, version)


async def stored_aborted(
    engines: Collection[Engine], log: PartitionLog, first: int, end: int
) -> list[AbortedTransaction]:
    """Those with records in first <= offset < end, as `engines` have them.

    `engines`: all that may have rows of the log. Raises `EngineError`.
    """
    asked = query("aborted_between", is_partition=IS_PARTITION)
    parameters = log_parameters(log) | {"first": first, "end": end}
    return [
        AbortedTransaction(*row)
        for engine in engines
        for row in await engine.rows(asked, parameters)
    ]


_UNUSED_AT_ONCE = 20_000
"""More are removed by later rounds."""
_IN_A_STATEMENT = 2000
"""Of 60 bytes; a statement may have 256 KiB."""


class TransactionSweep:
    """Removes rows that nobody needs, at the start and once a day: of transactions that have ended,
    or whose topic is deleted, and of aborted ones without records.
    """

    def __init__(self, engine: Engine, clock_ms: Callable[[], int]) -> None:
        """`engine` has all tables as they are: what waits in its journal is put there first."""
        self._engine = engine
        self._clock_ms = clock_ms
        self._swept_ms: int | None = None

    async def round(self) -> None:
        """Does nothing if the last one was less than a day ago. Raises `EngineError`."""
        now_ms = self._clock_ms()
        if self._swept_ms is not None and now_ms - self._swept_ms < DAY_MS:
            return
        for table in ("aborted_transactions", "open_transaction_versions"):
            if await is_changing(self._engine, table):
                return  # it waits for space
        if await self._remove_unused() == _UNUSED_AT_ONCE:
            return
        if await self._engine.rows("SELECT 1 FROM open_transaction_versions LIMIT 1"):
            await self._engine.execute(
                query("remove_open_of_deleted_topics", settings=MUTATION_SETTINGS)
            )
            await self._engine.execute("OPTIMIZE TABLE open_transaction_versions FINAL CLEANUP")
        self._swept_ms = now_ms

    async def _remove_unused(self) -> int:
        """The rows are named: on a replica that lacks records, the query would find too many."""
        if not await self._engine.rows("SELECT 1 FROM aborted_transactions LIMIT 1"):
            return 0
        unused = await self._engine.rows(
            query("aborted_without_records", limit=str(_UNUSED_AT_ONCE))
        )
        for begin in range(0, len(unused), _IN_A_STATEMENT):
            named = (
                f"('{UUID(topic_id)}', {int(partition)}, {int(start)})"
                for topic_id, partition, start in unused[begin : begin + _IN_A_STATEMENT]
            )
            await self._engine.execute(query("remove_aborted", named=", ".join(named)))
        return len(unused)
