"""What feeds of typed tables need on a single broker: sessions and files of the embedded engine."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from broker.feeds import FeedPartition, source_of
from broker.log.open_logs import OpenLogs
from broker.log.partition import PartitionLog
from broker.slots.groups import SlotGroups
from coordinator.coordinator import GroupCoordinator
from coordinator.feeds.decoding.client import ValueDecoder
from coordinator.feeds.definition import (
    FeedDefinition,
    paused_statement,
    read_definitions,
    split_name,
    stored_definitions,
    storing_statement,
    with_dropped,
)
from coordinator.feeds.feeder import FeedShards, OneShard
from coordinator.feeds.inference import InferredColumn
from coordinator.feeds.router import RouteWriter
from coordinator.feeds.tables import MADE, adding, made_like, making, preparing
from coordinator.feeds.writer import BlockWriter, first_since
from storage.engine import Engine, EngineError
from storage.journal import JournaledEngine
from storage.parameters import quoted
from storage.registry import Registry
from storage.row_lane import RowLane

log = logging.getLogger(__name__)

_FOLDER = "feeds"


@dataclass(frozen=True, slots=True)
class SingleFeedGroups:
    """`FeedGroups` of a broker that coordinates all of them."""

    instance_id: str
    groups: SlotGroups

    def coordinator_of(self, group_id: str) -> GroupCoordinator:
        return self.groups.coordinator_of(group_id)


class SingleFeedHost:
    """`FeedHost` where one broker leads everything."""

    def __init__(
        self,
        engine: JournaledEngine,
        registry: Registry,
        rows: RowLane,
        logs: OpenLogs,
        groups: SingleFeedGroups,
        data_dir: Path,
        schema_registry: str,
    ) -> None:
        """`schema_registry`: its URL, or empty if there is none."""
        self.registry = registry
        self.engine = engine
        self.folder = data_dir.resolve() / _FOLDER
        self.decoder = ValueDecoder(schema_registry)
        self.tables = EmbeddedFeedTables(engine.embedded)
        self._rows = rows
        self._logs = logs
        self.groups = groups

    async def definitions(self) -> tuple[list[FeedDefinition], list[str]]:
        return await read_definitions(self.engine.embedded)

    async def pause(self, feed: FeedDefinition) -> None:
        await self.engine.embedded.execute(*paused_statement(feed))

    def sessions(self, feed: FeedDefinition) -> _EmbeddedSessions:
        return _EmbeddedSessions(self, feed)

    def partitions(self, topics: Collection[str]) -> Sequence[PartitionLog]:
        return [one for one in self._logs.all() if one.topic.name in topics and one.closed is None]

    def rows(self, partition: FeedPartition) -> RowLane:
        return self._rows

    async def first_since(self, partition: FeedPartition, timestamp_ms: int) -> int | None:
        return await first_since(self.engine, source_of(partition), timestamp_ms)

    async def close(self) -> None:
        await self.decoder.close()


class _EmbeddedSessions:
    """One session, and its file."""

    def __init__(self, host: SingleFeedHost, feed: FeedDefinition) -> None:
        self._folder = host.folder
        self._path = host.folder / f"{feed.feed_id}.lines"
        self._session = host.engine.embedded.session(f"feed-{feed.table}")
        readable = host.engine.drained
        self._shards = OneShard(
            RouteWriter(self._session, readable, host.tables)
            if feed.is_router
            else BlockWriter(self._session, str(self._path), readable, host.decoder, host.tables)
        )

    async def prepare(self) -> None:
        self._folder.mkdir(exist_ok=True)

    def shards_of(self, partition: FeedPartition) -> FeedShards:
        return self._shards

    async def close(self) -> None:
        await self._session.close()
        for path in (self._path, self._path.with_name(f"{self._path.name}.values")):
            path.unlink(missing_ok=True)


class EmbeddedFeedTables:
    """`TableChanges` in the embedded engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def add_columns(self, feed: FeedDefinition, columns: Sequence[InferredColumn]) -> None:
        await self._engine.execute(adding(_target(feed), columns))
        names = ", ".join(f"{one.name} {one.type}" for one in columns)
        log.info("feed %s: added columns %s", feed.name, names)

    async def feeds(self) -> Mapping[str, FeedDefinition]:
        found, _ = with_dropped([await stored_definitions(self._engine)])
        return {one.name: one for one in found}

    async def has_table(self, feed: FeedDefinition) -> bool:
        return bool(await self._made(feed.database, feed.table))

    async def make_table(self, feed: FeedDefinition, columns: Sequence[InferredColumn]) -> None:
        await self._engine.execute(f"CREATE DATABASE IF NOT EXISTS {quoted(feed.database)}")
        await self._engine.execute(making(feed.database, feed.table, columns, replicated=False))
        log.info("feed %s: made its table", feed.name)

    async def make_table_like(self, feed: FeedDefinition, model: str) -> None:
        names = split_name(model)
        statement = await self._made(*names)
        if not statement:
            raise EngineError(f"there is no MergeTree table {model} to make {feed.name} like")
        await self._engine.execute(f"CREATE DATABASE IF NOT EXISTS {quoted(feed.database)}")
        await self._engine.execute(made_like(statement, names, (feed.database, feed.table)))
        await self.prepare_table(feed)
        log.info("feed %s: made its table like %s", feed.name, model)

    async def _made(self, database: str, table: str) -> str:
        """The statement that makes a table, or nothing if there is none."""
        rows = await self._engine.rows(MADE, {"database": database, "table": table})
        return str(rows[0][0]) if rows else ""

    async def prepare_table(self, feed: FeedDefinition) -> None:
        for statement in preparing(_target(feed), replicated=False):
            await self._engine.execute(statement)

    async def add_feed(self, feed: FeedDefinition) -> None:
        await self._engine.execute(*storing_statement(feed))


def _target(feed: FeedDefinition) -> str:
    return f"{quoted(feed.database)}.{quoted(feed.table)}"
