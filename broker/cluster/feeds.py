"""What feeds of typed tables need on a broker of a cluster: it feeds the partitions that it leads.

A block's rows go into the table's part on the shard that has its records, so that no row leaves its
shard. The state of a feed in a partition is in Keeper: a broker that has lost a partition and does
not know it fails at its next change.

Definitions are stored on the shards. A shard that does not answer is remembered as it was; feeds
start once each shard has answered.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from broker.cluster.feed_tables import FeedTables
from broker.cluster.remote_groups import RemoteGroups
from broker.cluster.table_changes import ShardTableChanges
from broker.feed_groups import FeedCoordinator
from broker.feeds import FeedPartition, source_of
from broker.log.partition import PartitionLog
from broker.slots.groups import SlotGroups
from broker.slots.peers import Peers
from broker.slots.slot_logs import SlotLogs
from coordinator.feeds.decoding.client import ValueDecoder
from coordinator.feeds.definition import (
    FeedDefinition,
    newest_definitions,
    paused_statement,
    stored_definitions,
)
from coordinator.feeds.feeder import FeedShard
from coordinator.feeds.router import RouteWriter
from coordinator.feeds.tables import local_name
from coordinator.feeds.writer import BlockWriter, PartitionWriter, first_since
from protocol.errors import NotCoordinator
from storage.engine import EngineError, Row
from storage.registry import Registry
from storage.row_lane import RowLane
from storage.shard_session import ShardSession
from storage.shards import Shard

log = logging.getLogger(__name__)

BLOCK_MAX_BYTES = 8 << 20
"""The values of a block come here from their server, and its rows go back. So much is in memory
twice for each partition that is fed."""


class ShardDefinitions:
    """The definitions that are stored on the shards."""

    def __init__(self, shards: Mapping[str, Shard]) -> None:
        self._shards = shards
        self._stored: dict[str, list[Row]] = {}

    async def newest(self) -> tuple[list[FeedDefinition], list[str]]:
        """As `read_definitions`, for the tables of the shards."""
        answers = await asyncio.gather(
            *(stored_definitions(shard) for shard in self._shards.values()),
            return_exceptions=True,
        )
        for name, answer in zip(self._shards, answers, strict=True):
            if isinstance(answer, list):
                self._stored[name] = answer
            elif not isinstance(answer, EngineError) or name not in self._stored:
                raise answer
        found, wrong = newest_definitions(self._stored.values())
        return [replace(one, table=local_name(one.table)) for one in found], wrong

    async def pause(self, feed: FeedDefinition) -> None:
        await asyncio.gather(
            *(shard.execute(*paused_statement(feed)) for shard in self._shards.values())
        )


class ShardSessions:
    """Of one feed, on each shard; opened when they are needed."""

    def __init__(
        self,
        feed: FeedDefinition,
        shards: Mapping[str, Shard],
        tables: FeedTables,
        decoder: ValueDecoder,
    ) -> None:
        self._feed = feed
        self._tables = tables
        self._folder = tempfile.TemporaryDirectory(prefix="brokerhouse-feed-")
        path = Path(self._folder.name)
        self._sessions = {name: ShardSession(shard) for name, shard in shards.items()}
        changes = ShardTableChanges(shards, tables)
        self._writers: dict[str, PartitionWriter] = {
            name: RouteWriter(session, session.readable, changes)
            if feed.is_router
            else BlockWriter(
                session, str(path / f"{name}.lines"), session.readable, decoder, changes
            )
            for name, session in self._sessions.items()
        }

    async def prepare(self) -> None:
        if not self._feed.is_router:
            await self._tables.make(self._feed)

    def shard(self, name: str, end: int | None = None) -> FeedShard:
        """Raises `EngineError` for a shard that only a newer configuration has."""
        writer = self._writers.get(name)
        if writer is None:
            raise EngineError(f"shard {name} is not in this broker's configuration: add it")
        return FeedShard(name, writer, end, BLOCK_MAX_BYTES)

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()
        self._folder.cleanup()


class _BrokerSessions(ShardSessions):
    """`FeedSessions` of a broker."""

    def __init__(
        self,
        feed: FeedDefinition,
        shards: Mapping[str, Shard],
        tables: FeedTables,
        decoder: ValueDecoder,
        logs: SlotLogs,
    ) -> None:
        super().__init__(feed, shards, tables, decoder)
        self._logs = logs

    def shards_of(self, partition: FeedPartition) -> _ShardsOfPartition:
        assert isinstance(partition, PartitionLog)
        return _ShardsOfPartition(self, self._logs, partition)


class _ShardsOfPartition:
    """`FeedShards` of a partition that this broker leads."""

    def __init__(self, sessions: ShardSessions, logs: SlotLogs, partition: PartitionLog) -> None:
        self._sessions = sessions
        self._logs = logs
        self._partition = partition

    async def of_offset(self, offset: int) -> FeedShard:
        source = await self._logs.of_offset(self._partition, offset)
        (host,) = (one for one in self._logs.hosts(self._partition) if one.engine is source.engine)
        return self._sessions.shard(host.name, source.end)

    def named(self, name: str) -> FeedShard:
        return self._sessions.shard(name)

    def all(self) -> Collection[FeedShard]:
        return [self._sessions.shard(host.name) for host in self._logs.hosts(self._partition)]


class ClusterFeedGroups:
    """`FeedGroups` of a broker: it coordinates some of them itself."""

    def __init__(self, instance_id: str, groups: SlotGroups, others: RemoteGroups) -> None:
        self.instance_id = instance_id
        self._groups = groups
        self._others = others

    def coordinator_of(self, group_id: str) -> FeedCoordinator:
        try:
            return self._groups.coordinator_of(group_id)
        except NotCoordinator:
            return self._others


class ClusterFeedHost:
    """`FeedHost` of a broker of a cluster."""

    def __init__(
        self,
        shards: Mapping[str, Shard],
        registry: Registry,
        tables: FeedTables,
        logs: SlotLogs,
        groups: ClusterFeedGroups,
        peers: Peers,
        schema_registry: str,
    ) -> None:
        """`peers`: of the groups; closed here. `schema_registry`: its URL, or empty."""
        self.registry = registry
        self.groups = groups
        self._peers = peers
        self._shards = shards
        self._definitions = ShardDefinitions(shards)
        self._tables = tables
        self._logs = logs
        self._decoder = ValueDecoder(schema_registry)

    async def definitions(self) -> tuple[list[FeedDefinition], list[str]]:
        return await self._definitions.newest()

    async def pause(self, feed: FeedDefinition) -> None:
        await self._definitions.pause(feed)

    def sessions(self, feed: FeedDefinition) -> _BrokerSessions:
        return _BrokerSessions(feed, self._shards, self._tables, self._decoder, self._logs)

    def partitions(self, topics: Collection[str]) -> Sequence[PartitionLog]:
        if not self._logs.may_serve():
            return ()
        return [one for one in self._logs.all() if one.topic.name in topics and one.closed is None]

    def rows(self, partition: FeedPartition) -> RowLane:
        assert isinstance(partition, PartitionLog)
        return self._logs.host_of(partition).rows

    async def first_since(self, partition: FeedPartition, timestamp_ms: int) -> int | None:
        assert isinstance(partition, PartitionLog)
        ask = partial(first_since, source=source_of(partition), timestamp_ms=timestamp_ms)
        found = [await ask(engine) for engine in self._logs.engines(partition)]
        return min((one for one in found if one is not None), default=None)

    async def close(self) -> None:
        self._peers.close()
        await self._decoder.close()
