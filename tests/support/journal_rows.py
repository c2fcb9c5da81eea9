"""Rows for tests of the journal: of the log, and of a small table."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from common.clock import wall_ms
from storage.blocks import DATETIME64_MS, INT32, INT64, STRING, UINT64, UUIDS, Table

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


def offset_row(offset: int) -> tuple[Any, ...]:
    return ("readers", "orders", 0, offset, offset + 1)
