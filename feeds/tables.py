"""What the table of a feed needs: the hidden column, and a memory for tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence

from brokerhouse.feeds.definition import BLOCK_COLUMN, Format
from brokerhouse.feeds.inference import InferredColumn
from brokerhouse.sql.queries import query
from brokerhouse.storage.cluster_sql import ClusterLayout
from brokerhouse.storage.parameters import quoted
from brokerhouse.storage.schema_files import REPLICATED_WINDOW_S

BLOCK_DEFINITION = (
    f"{BLOCK_COLUMN} LowCardinality(String) MATERIALIZED getSetting('insert_deduplication_token')"
)
WINDOW = 10_000
"""Blocks that a table remembers at least: a feeder that was paused for longer would be a danger."""


def local_name(table: str) -> str:
    """Of the part of a table that a shard of a cluster has."""
    return f"{table}_local"


ALONE = ClusterLayout("", replicated=False, distributed=False)
"""The layout of a single broker: one server, which is in no cluster of ClickHouse."""


def filled_table(table: str, layout: ClusterLayout) -> str:
    """The table that a feed fills. A single broker has one shard, whose rows people look for in the
    table that they have named.
    """
    return table if layout is ALONE else local_name(table)


def window_settings(*, replicated: bool) -> str:
    """Settings of the table."""
    if not replicated:
        return f"non_replicated_deduplication_window = {WINDOW}"
    return (
        f"replicated_deduplication_window = {WINDOW},"
        f" replicated_deduplication_window_seconds = {REPLICATED_WINDOW_S}"
    )


ENGINE = re.compile(r"(MergeTree|ReplacingMergeTree)(?:\((.*)\))?")
"""Of tables that `tables create` makes. Of others nobody can tell which rows are stored, once they
have been merged with those of other blocks."""
PLAIN_ENGINE = "MergeTree"
DELETED_COLUMN = "_deleted"
LATEST_ENGINE = f"ReplacingMergeTree(_offset, {DELETED_COLUMN})"
"""Keeps the latest row of each key. Changes of a row are in one partition, in their order."""
_LATEST_COLUMNS = {"_offset": "Int64", DELETED_COLUMN: "UInt8"}


def table_engine(database: str, table: str, engine: str, *, replicated: bool) -> str:
    """`engine`: as `ENGINE`."""
    if not replicated:
        return engine
    match = ENGINE.fullmatch(engine)
    assert match is not None, "it was checked where it was given"
    name, arguments = match.groups()
    place = f"'/clickhouse/tables/{{shard}}/{database}/{table}', '{{replica}}'"
    return f"Replicated{name}({', '.join([place, arguments] if arguments else [place])})"


def table_to_make(
    kind: Format, columns: str, order_by: str | None, engine: str | None
) -> tuple[str, str]:
    """Columns and engine of a new table, by what a person has given of them.

    Raises ValueError with a sentence.
    """
    if engine is None and kind is Format.DEBEZIUM:
        columns, engine = _with_latest_columns(columns), LATEST_ENGINE
    if engine not in (None, PLAIN_ENGINE) and not order_by:
        raise ValueError(
            f"{engine} keeps one row for each value of the sorting key: give --order-by, with the"
            " columns of the primary key"
        )
    return columns, engine or PLAIN_ENGINE


def _with_latest_columns(columns: str) -> str:
    """The columns of a table, and those that `LATEST_ENGINE` needs."""
    missing = [
        f"{name} {kind}"
        for name, kind in _LATEST_COLUMNS.items()
        if not re.search(rf"(^|,)\s*`?{name}`?\s", columns)
    ]
    return ", ".join([columns, *missing])


def preparing(target: str, *, replicated: bool) -> tuple[str, str]:
    """Statements for a table that exists; they can be repeated. `target`: quoted names."""
    return (
        f"ALTER TABLE {target} ADD COLUMN IF NOT EXISTS {BLOCK_DEFINITION}",
        f"ALTER TABLE {target} MODIFY SETTING {window_settings(replicated=replicated)}",
    )


def sorting(order_by: str | None, partition_by: str | None) -> str:
    """How a table is sorted and partitioned."""
    by = f"ORDER BY ({order_by or 'tuple()'})"
    return f"{by} PARTITION BY {partition_by}" if partition_by else by


def creating(
    name: tuple[str, str],
    columns: str,
    engine: str = PLAIN_ENGINE,
    by: str | None = None,
    *,
    replicated: bool,
    if_absent: bool = False,
) -> str:
    """A statement that makes a table.

    `name`: database and table. `columns`: their definitions. `engine`: as `ENGINE`. `by`: as
    `sorting` has it.
    """
    database, table = name
    return query(
        "make_feed_table",
        if_absent="IF NOT EXISTS" if if_absent else "",
        table=f"{quoted(database)}.{quoted(table)}",
        columns=columns,
        block_definition=BLOCK_DEFINITION,
        engine=table_engine(database, table, engine, replicated=replicated),
        by=by or sorting(None, None),
        settings=window_settings(replicated=replicated),
    )


def making(
    database: str, table: str, columns: Sequence[InferredColumn], *, replicated: bool
) -> str:
    """A statement that makes a table without a sorting key, unless it exists."""
    kinds = ", ".join(f"{quoted(one.name)} {one.type}" for one in columns)
    return creating((database, table), kinds, replicated=replicated, if_absent=True)


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
