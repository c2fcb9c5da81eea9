"""What a run of the job is told, as it travels to Spark's workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from brokerhouse.feeds.definition import Format
from brokerhouse.feeds.routing import Route
from brokerhouse.spark_jobs.sql_client import SqlServers


class RowOperation(Enum):
    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class RowOperations:
    """How rows change others. `field`: the field that names the operation; empty: every row
    replaces the one with its key. `words`: what the operations are called, in lower case."""

    field: str
    words: Mapping[str, RowOperation]

    def of(self, row: Mapping[str, Any]) -> RowOperation | None:
        """None if the row names no operation."""
        if not self.field:
            return RowOperation.UPDATE
        return self.words.get(str(row.get(self.field)).lower())


DEBEZIUM = {
    "c": RowOperation.INSERT,
    "r": RowOperation.INSERT,
    "i": RowOperation.INSERT,
    "u": RowOperation.UPDATE,
    "d": RowOperation.DELETE,
}
"""What change data capture calls them; the words themselves are known, too."""


@dataclass(frozen=True, slots=True)
class SinkTables:
    """Which tables records go to, and how those are made.

    `names`: each with what a record names that it takes, or nothing: then it takes all. `database`
    of tables that records name themselves, or empty. `id_columns`, `partition_by`, `properties`: of
    tables that are made.
    """

    names: Mapping[str, str]
    database: str
    route: Route | None
    create: bool
    evolve: bool
    id_columns: tuple[str, ...]
    partition_by: tuple[str, ...]
    properties: Mapping[str, str]
    metadata_columns: bool
    operations: RowOperations | None


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """`kafka`: of its clients, with bootstrap.servers. `topics`: in their order, with their ids.
    `catalog`: PyIceberg's name of it, and `catalog_options` its properties. Times are in ms."""

    name: str
    kafka: Mapping[str, str]
    topics: Mapping[str, str]
    control_topic: str
    catalog: str
    catalog_options: Mapping[str, str]
    tables: SinkTables
    format: Format
    schema_registry: str
    servers: SqlServers
    interval_ms: int
    timeout_ms: int
    session_timeout_ms: int
    transaction_timeout_ms: int
    dead_letters_timeout_ms: int = 0
    """How long dead letters wait for a server that is away; 0: without end."""

    @property
    def group(self) -> str:
        """The consumer group whose offsets are those of the data files."""
        return f"iceberg-{self.name}"

    @property
    def coordinator_group(self) -> str:
        """The group with the offsets of the control topic."""
        return f"{self.group}-coordinator"

    @property
    def feed_id(self) -> UUID:
        """Of its dead letters."""
        return uuid5(NAMESPACE_URL, f"iceberg/{self.name}")
