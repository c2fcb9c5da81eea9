"""Runs the feeds of typed tables on a single broker: each in a task of its own.

Definitions are read every second (`brokerhouse tables` writes them). A feed takes the partitions of
its topics in turn; a block begins when records wait for `interval_ms`, and it ends at the last
stable offset. How far a feed is, is committed as the offsets of a group, so that consumer_lag and
Kafka's tools show it. docs/tables.md is for users, coordinator/feeds/ has the protocol.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from uuid import uuid4

from broker.log.open_logs import OpenLogs
from broker.log.partition import PartitionLog
from common.tasks import Backoff, Periodic, cancel
from coordinator.coordinator import GroupCoordinator
from coordinator.feeds.blocks import Counted
from coordinator.feeds.decoding.client import ValueDecoder
from coordinator.feeds.definition import FeedDefinition, FeedStatus, read_definitions
from coordinator.feeds.feeder import PartitionFeeder
from coordinator.feeds.progress import FeedProgress, Fenced
from coordinator.feeds.writer import BlockWriter, FeedSource
from coordinator.messages import Client, Committer, OffsetCommit
from protocol.errors import IllegalGeneration, KafkaError
from storage.embedded import EngineSession
from storage.engine import EngineError
from storage.journal import JournaledEngine
from storage.registry import Registry
from storage.row_lane import RowLane

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0
_COMMIT_EVERY_S = 1.0
_RETRY_FIRST_S, _RETRY_MAX_S = 0.2, 10.0
_COMMITTER = Committer("", None, -1, Client("brokerhouse-feed", "127.0.0.1"))
_FOLDER = "feeds"


class _RunningFeed:
    """One feed, until it is closed."""

    def __init__(self, feeds: TableFeeds, feed: FeedDefinition) -> None:
        self.feed = feed
        self._feeds = feeds
        self._session: EngineSession | None = None
        self._path = feeds.folder / f"{feed.feed_id}.lines"
        self._feeders: dict[PartitionLog, PartitionFeeder] = {}
        self._replayed: set[PartitionLog] = set()
        self._committed: dict[PartitionLog, int] = {}
        self._committed_s = 0.0
        self.task = asyncio.create_task(self._run(), name=f"feed-{feed.name}")

    async def close(self) -> None:
        await cancel(self.task)
        if self._session is not None:
            await self._session.close()
        for path in (self._path, self._path.with_name(f"{self._path.name}.values")):
            path.unlink(missing_ok=True)

    async def _run(self) -> None:
        self._session = self._feeds.engine.embedded.session(f"feed-{self.feed.table}")
        writer = BlockWriter(
            self._session, str(self._path), self._feeds.engine.drained, self._feeds.decoder
        )
        backoff = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S)
        while True:
            try:
                begun_s = time.monotonic()
                for partition in self._partitions():
                    await self._feed_partition(partition, writer)
                await self._commit()
                backoff.reset()
                await asyncio.sleep(
                    max(0.0, begun_s + self.feed.interval_ms / 1000 - time.monotonic())
                )
            except EngineError as error:
                self._feeders.clear()
                await asyncio.sleep(backoff.after(error, log, f"feed {self.feed.name} failed"))

    def _partitions(self) -> list[PartitionLog]:
        found = [
            one
            for one in self._feeds.logs.all()
            if one.topic.name in self.feed.topics and one.closed is None
        ]
        for gone in self._feeders.keys() - set(found):
            del self._feeders[gone]
        return sorted(found, key=lambda one: (one.topic.name, one.partition))

    async def _feed_partition(self, partition: PartitionLog, writer: BlockWriter) -> None:
        try:
            feeder = self._feeders.get(partition)
            if feeder is None:
                feeder = await self._open(partition, writer)
                self._feeders[partition] = feeder
            if self.feed.replay_asked_ms and partition not in self._replayed:
                await self._replay(partition, feeder)
            dead_letters = await feeder.step(partition.last_stable_offset)
        except Fenced as error:
            log.info("%s", error)
            self._feeders.pop(partition, None)
            return
        if dead_letters:
            log.warning(
                "feed %s: %d records of %s are dead letters",
                self.feed.name, dead_letters, partition,
            )  # fmt: skip
            if self.feed.stop_on_error:
                await self._feeds.pause(self.feed)

    async def _replay(self, partition: PartitionLog, feeder: PartitionFeeder) -> None:
        counted = await feeder.replay()
        self._replayed.add(partition)
        if counted != Counted():
            log.info(
                "feed %s: dead letters of %s were parsed again: %d rows, %d are still dead",
                self.feed.name, partition, counted.rows, counted.dead_letters,
            )  # fmt: skip

    async def _open(self, partition: PartitionLog, writer: BlockWriter) -> PartitionFeeder:
        source = FeedSource(partition.topic.name, partition.topic_id, partition.partition)
        progress = FeedProgress(
            self._feeds.registry, self._feeds.rows, self.feed, source, self._feeds.feeder
        )
        first = 0 if await progress.exists() else await self._first_offset(partition, source)
        await progress.open(first)
        return PartitionFeeder(self.feed, source, progress, writer)

    async def _first_offset(self, partition: PartitionLog, source: FeedSource) -> int:
        if self.feed.start == "earliest":
            return partition.log_start_offset
        if self.feed.start == "latest":
            return partition.last_stable_offset
        rows = await self._feeds.engine.rows(
            "SELECT min(offset) FROM messages WHERE topic = {topic:String}"
            " AND topic_id = {topic_id:UUID} AND partition = {partition:Int32}"
            " AND timestamp_ms >= {timestamp:Int64} HAVING count() > 0",
            {
                "topic": source.topic,
                "topic_id": str(source.topic_id),
                "partition": source.partition,
                "timestamp": int(self.feed.start),
            },
        )
        return int(rows[0][0]) if rows else partition.last_stable_offset

    async def _commit(self) -> None:
        """Commit how far the feed is, once a second."""
        now_s = time.monotonic()
        if now_s - self._committed_s < _COMMIT_EVERY_S:
            return
        self._committed_s = now_s
        moved = {
            partition: feeder.next_offset
            for partition, feeder in self._feeders.items()
            if self._committed.get(partition) != feeder.next_offset
        }
        if not moved:
            return
        commits = [
            OffsetCommit(one.topic.name, one.topic_id, one.partition, offset, -1, "", None)
            for one, offset in moved.items()
        ]
        try:
            await self._feeds.groups.commit(
                self.feed.group_id, _COMMITTER, commits, group_must_exist_error=IllegalGeneration
            )
        except KafkaError as error:
            log.warning("group %s cannot show how far its feed is: %s", self.feed.group_id, error)
        self._committed.update(moved)


class TableFeeds(Periodic):
    """Starts and stops feeds as their definitions say."""

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
        super().__init__("feeds", _LOOK_EVERY_S, self._look, at_once=True)
        self.engine = engine
        self.registry = registry
        self.rows = rows
        self.logs = logs
        self.groups = groups
        self.folder = data_dir.resolve() / _FOLDER
        self.feeder = str(uuid4())
        self.decoder = ValueDecoder(schema_registry)
        self._running: dict[str, _RunningFeed] = {}
        self._told: set[str] = set()

    @property
    def background(self) -> list[asyncio.Task[None]]:
        return [*super().background, *(one.task for one in self._running.values())]

    async def close(self) -> None:
        await super().close()
        for one in self._running.values():
            await one.close()
        self._running.clear()
        await self.decoder.close()

    async def pause(self, feed: FeedDefinition) -> None:
        """Write a version of the definition that says so. Raises `EngineError`."""
        await self.engine.embedded.execute(
            "INSERT INTO table_feed_versions SELECT * REPLACE (version + 1 AS version,"
            " 'paused' AS status, now64(3) AS changed_at) FROM (SELECT * FROM table_feed_versions"
            " FINAL WHERE feed_id = {feed_id:UUID} AND version = {version:UInt64})",
            {"feed_id": feed.feed_id, "version": feed.version},
        )

    async def _look(self) -> None:
        try:
            found, wrong = await read_definitions(self.engine.embedded)
        except EngineError as error:
            log.warning("feeds cannot be read: %s", error)
            return
        for sentence in set(wrong) - self._told:
            log.warning("%s", sentence)
        self._told = set(wrong)
        wanted = {feed.feed_id: feed for feed in found if feed.status is FeedStatus.RUNNING}
        for feed_id, running in list(self._running.items()):
            if running.task.done():
                running.task.result()  # a bug: it is to be seen
            if wanted.get(feed_id) != running.feed:
                await self._running.pop(feed_id).close()
        for feed_id, feed in wanted.items():
            if feed_id not in self._running:
                self.folder.mkdir(exist_ok=True)
                self._running[feed_id] = _RunningFeed(self, feed)
