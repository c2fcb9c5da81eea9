"""What the table of a feed needs: the hidden column, and a memory for tokens."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.feeds.definition import BLOCK_COLUMN
from coordinator.feeds.inference import InferredColumn
from storage.parameters import quoted
from storage.schema_files import REPLICATED_WINDOW_S

BLOCK_DEFINITION = (
    f"{BLOCK_COLUMN} LowCardinality(String) MATERIALIZED getSetting('insert_deduplication_token')"
)
WINDOW = 10_000
"""Blocks that a table remembers at least: a feeder that was paused for longer would be a danger."""

MADE = (
    "SELECT create_table_query FROM system.tables WHERE database = {database:String}"
    " AND name = {table:String} AND engine LIKE '%MergeTree'"
)
"""The statement that makes a table which a feed can fill."""

REPLACES = (
    "SELECT engine LIKE '%ReplacingMergeTree' FROM system.tables"
    " WHERE database = {database:String} AND name = {table:String}"
)
"""Whether rows of the same key replace each other. Then the number of a block's rows says nothing
about whether it is stored, and rows that are stored twice are one."""


def local_name(table: str) -> str:
    """Of the part of a table that a shard of a cluster has."""
    return f"{table}_local"


def window_settings(*, replicated: bool) -> str:
    """Settings of the table."""
    if not replicated:
        return f"non_replicated_deduplication_window = {WINDOW}"
    return (
        f"replicated_deduplication_window = {WINDOW},"
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


def making(
    database: str, table: str, columns: Sequence[InferredColumn], *, replicated: bool
) -> str:
    """A statement that makes a table, without a sorting key."""
    kinds = ", ".join(f"{quoted(one.name)} {one.type}" for one in columns)
    return (
        f"CREATE TABLE IF NOT EXISTS {quoted(database)}.{quoted(table)} ({kinds},"
        f" {BLOCK_DEFINITION}) ENGINE = {table_engine(database, table, replicated=replicated)}"
        f" ORDER BY () SETTINGS {window_settings(replicated=replicated)}"
    )


def adding(target: str, columns: Sequence[InferredColumn]) -> str:
    """A statement that adds what a table does not have. `target`: quoted names."""
    actions = ", ".join(
        f"ADD COLUMN IF NOT EXISTS {quoted(one.name)} {one.type}" for one in columns
    )
    return f"ALTER TABLE {target} {actions}"


def made_like(statement: str, model: tuple[str, str], made: tuple[str, str]) -> str:
    """The statement that makes `model` (database, table), for `made`; its path in Keeper as well.

    `statement`: as system.tables has it.
    """
    _, _, columns = statement.partition("(")
    (database, table), (new_database, new_table) = model, made
    path = f"/{database}/{table}'"
    return (
        f"CREATE TABLE IF NOT EXISTS {quoted(new_database)}.{quoted(new_table)} ("
        + columns.replace(path, f"/{new_database}/{new_table}'", 1)
    )
