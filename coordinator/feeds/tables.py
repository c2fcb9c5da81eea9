"""What the table of a feed needs: the hidden column, and a memory for tokens."""

from __future__ import annotations

from coordinator.feeds.definition import BLOCK_COLUMN
from storage.schema_files import REPLICATED_WINDOW_S

BLOCK_DEFINITION = (
    f"{BLOCK_COLUMN} LowCardinality(String) MATERIALIZED getSetting('insert_deduplication_token')"
)
_WINDOW = 10_000
"""Blocks that a table remembers at least: a feeder that was paused for longer would be a danger."""


def local_name(table: str) -> str:
    """Of the part of a table that a shard of a cluster has."""
    return f"{table}_local"


def window_settings(*, replicated: bool) -> str:
    """Settings of the table."""
    if not replicated:
        return f"non_replicated_deduplication_window = {_WINDOW}"
    return (
        f"replicated_deduplication_window = {_WINDOW},"
        f" replicated_deduplication_window_seconds = {REPLICATED_WINDOW_S}"
    )


def table_engine(database: str, table: str, *, replicated: bool) -> str:
    if not replicated:
        return "MergeTree"
    return f"ReplicatedMergeTree('/clickhouse/tables/{{shard}}/{database}/{table}', '{{replica}}')"


def preparing(target: str, *, replicated: bool) -> tuple[str, str]:
    """Statements for a table that exists; they can be repeated. `target`: quoted names."""
    return (
        f"ALTER TABLE {target} ADD COLUMN IF NOT EXISTS {BLOCK_DEFINITION}",
        f"ALTER TABLE {target} MODIFY SETTING {window_settings(replicated=replicated)}",
    )
