"""The columns of the table `messages`: which ones the log writes and reads.

In ClickHouse's Native format (https://clickhouse.com/docs/interfaces/formats/Native) a block is its
number of columns and of rows, then each column: its name, its type, its values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from brokerhouse.protocol.varints import length_prefixed, varuint

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

ROW_BYTES: Final = 71
"""A row of a block has about so many bytes besides its key, value and headers."""


def column_head(name: str, type_: str) -> bytes:
    """The head of a column in a block: its name and its type, before its values."""
    return length_prefixed(name.encode()) + length_prefixed(type_.encode())


def block_without_rows(columns: Sequence[tuple[str, str]]) -> bytes:
    """A block that has columns with these names and types, and no rows."""
    heads = (column_head(name, type_) for name, type_ in columns)
    return b"".join((varuint(len(columns)), varuint(0), *heads))
