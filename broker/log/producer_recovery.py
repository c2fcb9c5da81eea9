"""Reads the state of an idempotent producer back from the rows of a partition.

A new leader knows no producers. When a producer that may have written before sends a batch, its
last batches are read from the rows, so that duplicates are found.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from broker.log.partition import PartitionLog
from broker.log.partition_sql import IS_PARTITION, log_parameters
from broker.log.producers import BATCHES_KEPT, ProducerEntry, recovered_range
from protocol._batches import BatchHeader
from sql.queries import query
from storage.engine import Engine, Row


def may_have_rows(partition: PartitionLog, header: BatchHeader) -> bool:
    """Whether the producer of this batch may have rows that the partition does not know."""
    producer_id = header.producer_id
    return (
        0 <= producer_id < partition.first_fresh_producer_id
        and producer_id not in partition.producers
    )


async def recover_producer(partition: PartitionLog, header: BatchHeader, engine: Engine) -> None:
    """Make sure that the partition knows the producer of this batch. Raises `EngineError`.

    `engine` has the partition's new rows; if its slot was moved, the earlier engines are read, too.
    """
    if not may_have_rows(partition, header):
        return
    engines = (*partition.earlier, engine)
    found = await stored_producer(partition, header.producer_id, engines)
    if found is not None:
        partition.producers[header.producer_id] = found
    elif header.base_sequence and not partition.has_forgotten:
        # An earlier leader may have known this producer; compaction has removed its rows since.
        partition.has_forgotten = await _lacks_rows(partition, engines)


async def stored_producer(
    partition: PartitionLog, producer_id: int, engines: Collection[Engine]
) -> ProducerEntry | None:
    """What the rows say about a producer; None if it has none. Raises `EngineError`.

    `engines`: all that may have rows of the partition.
    """
    parameters = log_parameters(partition) | {"producer_id": producer_id, "kept": BATCHES_KEPT + 1}
    rows: list[Row] = []
    for one in engines:
        rows += await one.rows(query("producer_batches"), parameters)
    return _recovered_entry(rows) if rows else None


async def _lacks_rows(partition: PartitionLog, engines: Sequence[Engine]) -> bool:
    """Whether fewer rows are stored than the log has offsets."""
    count = f"SELECT count() FROM messages WHERE {IS_PARTITION}"
    found = [await engine.rows(count, log_parameters(partition)) for engine in engines]
    offsets = partition.next_offset - partition.log_start_offset
    stored: int = sum(rows[0][0] for rows in found)
    return stored < offsets


def _recovered_entry(rows: Sequence[Row]) -> ProducerEntry:
    newest = sorted(rows, key=lambda row: (row[0], row[2]), reverse=True)
    epoch, last_append_ms = newest[0][0], newest[0][4]
    coordinator_epoch = max(row[6] for row in rows)
    ranges = [
        recovered_range(first_offset, last_offset, last_sequence)
        for row_epoch, first_offset, last_offset, last_sequence, _, control, _ in newest
        if row_epoch == epoch and not control
    ][:BATCHES_KEPT]
    markers = [row[2] for row in rows if row[0] == epoch and row[5]]
    return ProducerEntry(
        epoch,
        tuple(reversed(ranges)),
        last_append_ms,
        recovered=True,
        coordinator_epoch=coordinator_epoch,
        ended_offset=max(markers, default=-1),
    )
