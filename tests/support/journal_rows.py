"""Rows for tests of the journal: of the log, and of a small table."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from brokerhouse.common.clock import wall_ms
from brokerhouse.protocol._decode_batches import BlockBuilder
from brokerhouse.protocol.batches import BATCH_OVERHEAD
from brokerhouse.storage.blocks import DATETIME64_MS, INT32, INT64, STRING, UINT64, UUIDS, Table
from tests.support.record_batches import Batch, Record, batch_of
from tests.support.record_codecs import COMPILED, header_of

TOPIC_ID = UUID(int=7)
LOG_ROWS = Table(
    "messages",
    (
        ("topic", STRING),
        ("topic_id", UUIDS),
        ("partition", INT32),
        ("offset", INT64),
        ("append_time", DATETIME64_MS),
    ),
)
OFFSET_ROWS = Table(
    "consumer_offsets",
    (
        ("group_id", STRING),
        ("topic", STRING),
        ("partition", INT32),
        ("offset", INT64),
        ("version", UINT64),
    ),
)


def log_row(offset: int, partition: int = 0) -> tuple[Any, ...]:
    return ("orders", TOPIC_ID, partition, offset, wall_ms())


def log_builder(
    *batches: Batch, topic: str = "orders", first_offset: int = 0, append_time_ms: int | None = None
) -> BlockBuilder:
    """A block of the log with these batches, as the broker builds it."""
    builder = BlockBuilder(wall_ms() if append_time_ms is None else append_time_ms)
    for batch in batches:
        header = header_of(COMPILED, batch)
        payload = memoryview(batch.data)[BATCH_OVERHEAD:]
        builder.append(topic, TOPIC_ID.bytes, 0, first_offset, 0, header, payload, None)
        first_offset += batch.count
    return builder


def packed_row(offset: int) -> bytes:
    """A packed block with one row, much as `log_row`."""
    return log_builder(batch_of(Record()), first_offset=offset).pack()


def offset_row(offset: int) -> tuple[Any, ...]:
    return ("readers", "orders", 0, offset, offset + 1)
