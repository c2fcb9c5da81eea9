"""Reads the transactions of partitions back from their rows, when their logs are opened."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from broker.log.partition import PartitionLog
from broker.log.transactions import AbortedTransaction, OpenTransaction
from storage.engine import Engine

_OPEN = """
SELECT topic_id, partition, producer_id, transaction_start, max(producer_epoch), max(offset)
FROM messages
WHERE transactional AND NOT control AND (topic_id, partition, transaction_start) NOT IN (
    SELECT topic_id, partition, transaction_start FROM messages WHERE control
)
GROUP BY topic_id, partition, producer_id, transaction_start
ORDER BY transaction_start
"""
_ABORTED = """
SELECT topic_id, partition, producer_id, transaction_start, offset
FROM messages
WHERE control AND key = '\\0\\0\\0\\0' AND transaction_start >= 0
ORDER BY offset
"""


async def recover_transactions(engine: Engine, logs: Collection[PartitionLog]) -> None:
    """Find what is open and what was aborted in these logs. Raises `EngineError`."""
    by_key = {(one.topic_id, one.partition): one for one in logs}
    for topic_id, number, producer_id, first, epoch, last in await engine.rows(_OPEN):
        log = by_key.get((UUID(topic_id), number))
        if log is not None and last >= log.log_start_offset:
            log.transactions.open[producer_id] = OpenTransaction(first, epoch)
            log.find_stable_offset()
    for topic_id, number, producer_id, first, last in await engine.rows(_ABORTED):
        log = by_key.get((UUID(topic_id), number))
        if log is not None and last >= log.log_start_offset:
            log.transactions.note_aborted(AbortedTransaction(producer_id, first, last))
