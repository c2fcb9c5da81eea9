"""Reads the state of an idempotent producer back from the tables.

A new leader knows no producers. When a producer that may have written before sends a batch, its
last batches are read, so that duplicates are found: from the rows of the log, and from
`producer_states` for rows that were deleted (producer_states.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.partition_sql import IS_PARTITION, log_parameters
from brokerhouse.broker.log.producer_states import ProducerRange
from brokerhouse.broker.log.producers import BATCHES_KEPT, SEQUENCES, ProducerEntry, recovered_range
from brokerhouse.protocol._batches import BatchHeader
from brokerhouse.sql.queries import query
from brokerhouse.storage.engine import Engine

_OF_PRODUCER = f"{IS_PARTITION} AND producer_id = {{producer_id:Int64}}"


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
    if partition.has_deleted is None or partition.has_forgotten is None:
        await _read_checkpoint(partition, engines)
    found = await _stored_producer(partition, header.producer_id, engines)
    if header.base_sequence and _lacks_rows(partition, header, found):
        # Perhaps an earlier leader deleted rows meanwhile.
        was_deleted = partition.has_deleted
        await _read_checkpoint(partition, engines)
        if partition.has_deleted and not was_deleted:
            found = await _stored_producer(partition, header.producer_id, engines)
    if found is not None:
        partition.producers[header.producer_id] = found


def _lacks_rows(partition: PartitionLog, header: BatchHeader, found: ProducerEntry | None) -> bool:
    """Whether the batch goes on with what was not found, although nothing says that it is gone."""
    if found is None:
        return not partition.has_forgotten
    return not partition.has_deleted and found.next_sequence != header.base_sequence


async def stored_producer(
    partition: PartitionLog, producer_id: int, engines: Collection[Engine]
) -> ProducerEntry | None:
    """What the tables say about a producer; None if nothing. Raises `EngineError`.

    `engines`: all that may have rows of the partition.
    """
    if partition.has_deleted is None:
        await _read_checkpoint(partition, engines)
    return await _stored_producer(partition, producer_id, engines)


async def _stored_producer(
    partition: PartitionLog, producer_id: int, engines: Collection[Engine]
) -> ProducerEntry | None:
    parameters = log_parameters(partition) | {
        "producer_id": producer_id,
        "kept": BATCHES_KEPT,
        "rows": 2 * BATCHES_KEPT,  # so many of batches, and of markers
    }
    texts = [query("producer_ranges", condition=_OF_PRODUCER)]
    if partition.has_deleted:
        texts.append(query("stored_producer_state"))
    found: list[ProducerRange] = []
    for engine in engines:
        for text in texts:
            found += (ProducerRange(*row) for row in await engine.rows(text, parameters))
    return _recovered_entry(_merged(found)) if found else None


async def _read_checkpoint(partition: PartitionLog, engines: Iterable[Engine]) -> None:
    """Whether rows of the partition were deleted, and whether of producers without a state."""
    has_deleted = has_forgotten = False
    for engine in engines:
        rows = await engine.rows(query("deleted_of_partition"), log_parameters(partition))
        ((checkpoints, forgot),) = rows
        has_deleted = has_deleted or checkpoints > 0
        has_forgotten = has_forgotten or bool(forgot)
    partition.has_deleted = partition.has_deleted or has_deleted
    partition.has_forgotten = partition.has_forgotten or has_forgotten


def _merged(found: Iterable[ProducerRange]) -> list[ProducerRange]:
    """The newest first. Part of a range may be in the log and part of it deleted."""
    merged: dict[tuple[int, bool, int], ProducerRange] = {}
    for one in found:
        key = one.producer_epoch, one.control, one.shift
        other = merged.get(key, one)
        merged[key] = one._replace(
            first_offset=min(one.first_offset, other.first_offset),
            last_offset=max(one.last_offset, other.last_offset),
            coordinator_epoch=max(one.coordinator_epoch, other.coordinator_epoch),
            append_ms=max(one.append_ms, other.append_ms),
        )
    return sorted(
        merged.values(), key=lambda one: (one.producer_epoch, one.last_offset), reverse=True
    )


def _recovered_entry(newest: list[ProducerRange]) -> ProducerEntry:
    epoch = newest[0].producer_epoch
    of_epoch = [one for one in newest if one.producer_epoch == epoch]
    ranges = [
        recovered_range(
            one.first_offset, one.last_offset, (one.last_offset - one.shift) % SEQUENCES
        )
        for one in of_epoch
        if not one.control
    ][:BATCHES_KEPT]
    return ProducerEntry(
        epoch,
        tuple(reversed(ranges)),
        max(one.append_ms for one in newest),
        recovered=True,
        coordinator_epoch=max(one.coordinator_epoch for one in newest),
        ended_offset=max((one.last_offset for one in of_epoch if one.control), default=-1),
    )
