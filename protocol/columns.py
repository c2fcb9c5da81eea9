"""The columns of the table `messages`: which ones the log writes and reads, and one row of them.

In ClickHouse's Native format (https://clickhouse.com/docs/interfaces/formats/Native) a block is its
number of columns and of rows, then each column: its name, its type, its values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.varints import length_prefixed

COLUMNS: Final[tuple[tuple[str, str], ...]] = (
    ("topic", "LowCardinality(String)"),
    ("topic_id", "UUID"),
    ("partition", "Int32"),
    ("offset", "Int64"),
    ("timestamp_ms", "Int64"),
    ("timestamp_type", "Enum8('CreateTime' = 0, 'LogAppendTime' = 1)"),
    ("key", "Nullable(String)"),
    ("value", "Nullable(String)"),
    ("headers", "Array(Tuple(key String, value Nullable(String)))"),
    ("producer_id", "Int64"),
    ("producer_epoch", "Int16"),
    ("sequence", "Int32"),
    ("transactional", "Bool"),
    ("control", "Bool"),
    ("leader_epoch", "Int32"),
    ("append_time", "DateTime64(3)"),
    ("transaction_start", "Int64"),
)
"""Name and type of each column that `BlockBuilder` writes, in order."""

COLUMN_LIST: Final = ", ".join(name for name, _ in COLUMNS)
"""Their names, for an insert."""

READ_COLUMNS: Final[tuple[tuple[str, str], ...]] = tuple(
    column
    for column in COLUMNS
    if column[0] not in ("topic", "topic_id", "partition", "append_time", "transaction_start")
)
"""Name and type of each column that `encode_batches` reads, in order."""


def column_head(name: str, type_: str) -> bytes:
    """The head of a column in a block: its name and its type, before its values."""
    return length_prefixed(name.encode()) + length_prefixed(type_.encode())


@dataclass(frozen=True, slots=True)
class MessageRow:
    """One row of `messages`, without the columns that say which partition it belongs to."""

    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]
    producer_id: int
    producer_epoch: int
    sequence: int
    transactional: bool
    control: bool
    leader_epoch: int
