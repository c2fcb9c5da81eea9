"""What feeds of typed tables need on a single broker: sessions and files of the embedded engine."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from broker.feeds import COMMITTER, FeedPartition, source_of
from broker.log.open_logs import OpenLogs
from broker.log.partition import PartitionLog
from coordinator.coordinator import GroupCoordinator
from coordinator.feeds.decoding.client import ValueDecoder
from coordinator.feeds.definition import FeedDefinition, paused_statement, read_definitions
from coordinator.feeds.feeder import FeedShards, OneShard
from coordinator.feeds.writer import BlockWriter, first_since
from coordinator.messages import OffsetCommit
from protocol.errors import IllegalGeneration
from storage.journal import JournaledEngine
from storage.registry import Registry
from storage.row_lane import RowLane

_FOLDER = "feeds"


class SingleFeedHost:
    """`FeedHost` where one broker leads everything."""

    def __init__(
        self,
        engine: JournaledEngine,
        registry: Registry,
        rows: RowLane,
        logs: OpenLogs,
        groups: GroupCoordinator,
        data_dir: Path,
        schema_registry: str,
    ) -> None:
        """`schema_registry`: its URL, or empty if there is none."""
        self.registry = registry
        self.engine = engine
        self.folder = data_dir.resolve() / _FOLDER
        self.decoder = ValueDecoder(schema_registry)
        self._rows = rows
        self._logs = logs
        self._groups = groups

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

    async def commit(self, group_id: str, commits: Sequence[OffsetCommit]) -> None:
        await self._groups.commit(
            group_id, COMMITTER, commits, group_must_exist_error=IllegalGeneration
        )

    async def close(self) -> None:
        await self.decoder.close()


class _EmbeddedSessions:
    """One session, and its file."""

    def __init__(self, host: SingleFeedHost, feed: FeedDefinition) -> None:
        self._folder = host.folder
        self._path = host.folder / f"{feed.feed_id}.lines"
        self._session = host.engine.embedded.session(f"feed-{feed.table}")
        self._shards = OneShard(
            BlockWriter(self._session, str(self._path), host.engine.drained, host.decoder)
        )

    async def prepare(self) -> None:
        self._folder.mkdir(exist_ok=True)

    def shards_of(self, partition: FeedPartition) -> FeedShards:
        return self._shards

    async def close(self) -> None:
        await self._session.close()
        for path in (self._path, self._path.with_name(f"{self._path.name}.values")):
            path.unlink(missing_ok=True)
