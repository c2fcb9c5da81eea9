"""What the feeds of a process find there: definitions, tables, sessions, partitions to feed.

A feed takes partitions in the slots that this process serves. A block's rows go to the shard that
has its records, so that no row leaves its shard. A single broker has one shard (`embedded_store`),
and serves all slots forever; brokers of a cluster have several (cluster/feeds.py). The state of a
feed in a partition is in the registry: a process that has lost a partition and does not know it
fails at its next change.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from brokerhouse.broker.feeds.groups import FeedGroups
from brokerhouse.broker.log.open_logs import OpenLogs
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.partition_sql import LogName
from brokerhouse.broker.log.row_sources import source_of_offset
from brokerhouse.coordinator.slots import OwnSlots
from brokerhouse.feeds.decoding.client import ValueDecoder
from brokerhouse.feeds.definition import FeedDefinition
from brokerhouse.feeds.feeder import FeedShard
from brokerhouse.feeds.router import RouteWriter
from brokerhouse.feeds.server_tables import FeedTables
from brokerhouse.feeds.stored_definitions import StoredDefinitions
from brokerhouse.feeds.writer import (
    BlockWriter,
    FeedSession,
    FeedSource,
    PartitionWriter,
    first_since,
)
from brokerhouse.storage.cluster_sql import ClusterLayout
from brokerhouse.storage.engine import Engine, EngineError
from brokerhouse.storage.journal import JournaledEngine
from brokerhouse.storage.registry import Registry, RegistryServer
from brokerhouse.storage.row_lane import RowLane
from brokerhouse.storage.slot_map import EMBEDDED, Slot

_FOLDER = "feeds"


class FeedPartition(LogName, Protocol):
    """A partition that is fed here: `PartitionLog` is one."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def last_stable_offset(self) -> int: ...


def source_of(partition: FeedPartition) -> FeedSource:
    return FeedSource(partition.topic.name, partition.topic_id, partition.partition)


class FedPartitions(Protocol):
    """Which partitions are fed by this process."""

    def of_topics(self, topics: Collection[str]) -> Sequence[FeedPartition]:
        """What of these topics is fed here now. A partition that was away is another object."""

    def slot_of(self, partition: FeedPartition) -> Slot:
        """Its slot, whose shards have its rows. Raises `EngineError`."""


class FedLogs:
    """`FedPartitions` of a broker: those that it leads."""

    def __init__(self, logs: OpenLogs, slots: OwnSlots) -> None:
        self._logs = logs
        self._slots = slots

    def of_topics(self, topics: Collection[str]) -> Sequence[PartitionLog]:
        if not self._logs.may_serve():
            return ()
        return [one for one in self._logs.all() if one.topic.name in topics and one.closed is None]

    def slot_of(self, partition: FeedPartition) -> Slot:
        number = self._slots.of_partition(partition.topic_id, partition.partition)
        slot = self._slots.owned.get(number)
        if slot is None:
            raise EngineError(f"this broker does not lead {partition}")
        return slot


@dataclass(frozen=True, slots=True)
class FeedStore:
    """A shard, as feeds use it.

    `engine` has definitions, and `servers` are its replicas, each with the tables of feeds. `log`
    reads acknowledged records. `rows`: for the history of feeds.
    """

    name: str
    engine: RegistryServer
    servers: Sequence[RegistryServer]
    log: Engine
    rows: RowLane
    session: Callable[[str], FeedSession]
    """Opens one of this name."""
    expect_others: Callable[[], None] = lambda: None
    """Called before the log is read, where others write to it."""


def embedded_store(engine: JournaledEngine, rows: RowLane) -> FeedStore:
    """The only shard of a single broker.

    Records may still be in the journal: what reads them waits until the engine has them.
    Definitions and tables of feeds are never in the journal: a look at them waits for nothing.
    """
    embedded = engine.embedded
    return FeedStore(
        EMBEDDED,
        embedded,
        [embedded],
        engine,
        rows,
        lambda name: embedded.session(name, engine.drained),
    )


class FeedFolder:
    """Where the values and the rows of blocks are while they are converted."""

    def __init__(self, data_dir: Path | None) -> None:
        """`data_dir`: of a single broker, whose blocks are large: /tmp may be small, or memory.

        Brokers of a cluster have none.
        """
        if data_dir is not None:
            self._temporary = None
            self._path = data_dir.resolve() / _FOLDER
        else:
            self._temporary = tempfile.TemporaryDirectory(prefix="brokerhouse-feeds-")
            self._path = Path(self._temporary.name)

    def file(self, feed: FeedDefinition, shard: str) -> Path:
        """On a single broker named as ever, so that it replaces what a killed broker has left."""
        folder = self._path if shard == EMBEDDED else self._path / shard
        return folder / f"{feed.feed_id}.lines"

    def close(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()


class FeedHost:
    """Where the feeds of this process find what they need."""

    def __init__(
        self,
        registry: Registry,
        stores: Iterable[FeedStore],
        layout: ClusterLayout,
        partitions: FedPartitions,
        groups: FeedGroups,
        schema_registry: str,
        data_dir: Path | None = None,
    ) -> None:
        """`registry`: of the feeds' states. `schema_registry`: its URL, or empty. `groups` are
        closed here.
        """
        self.registry = registry
        self.groups = groups
        self.stores = {one.name: one for one in stores}
        self.partitions = partitions
        self.definitions = StoredDefinitions(
            {one.name: one.engine for one in self.stores.values()}, layout
        )
        self.tables = FeedTables(
            (server for one in self.stores.values() for server in one.servers), layout
        )
        self.decoder = ValueDecoder(schema_registry)
        self.folder = FeedFolder(data_dir)

    def store(self, name: str) -> FeedStore:
        """Raises `EngineError` for a shard that only a newer configuration has."""
        found = self.stores.get(name)
        if found is None:
            raise EngineError(f"shard {name} is not in this configuration: add it")
        return found

    def stores_of(self, partition: FeedPartition) -> Sequence[FeedStore]:
        """Each shard that may have rows of it, once. Raises `EngineError`."""
        shards = self.partitions.slot_of(partition).shards
        return [self.store(name) for name in dict.fromkeys(shards)]

    def rows(self, partition: FeedPartition) -> RowLane:
        """Where the history of the partition goes. Raises `EngineError`."""
        return self.store(self.partitions.slot_of(partition).writes_to).rows

    async def first_since(self, partition: FeedPartition, timestamp_ms: int) -> int | None:
        """The first offset with this timestamp or a later one. Raises `EngineError`."""
        source = source_of(partition)
        found = [
            await first_since(store.log, source, timestamp_ms)
            for store in self.stores_of(partition)
        ]
        return min((one for one in found if one is not None), default=None)

    async def close(self) -> None:
        self.groups.close()
        await self.decoder.close()
        self.folder.close()


class FeedSessions:
    """What one feed writes with: a session on each shard, and its files."""

    def __init__(self, host: FeedHost, feed: FeedDefinition) -> None:
        self._host = host
        self._feed = feed
        self._files = [host.folder.file(feed, name) for name in host.stores]
        self._sessions = [one.session(f"feed-{feed.table}") for one in host.stores.values()]
        self._writers: Mapping[str, PartitionWriter] = {
            name: RouteWriter(session, host.tables, host.definitions)
            if feed.is_router
            else BlockWriter(session, str(file), host.decoder, host.tables)
            for name, session, file in zip(host.stores, self._sessions, self._files, strict=True)
        }

    async def prepare(self) -> None:
        """Make what the feed needs: at its start and after each failure. Raises `EngineError`."""
        if self._feed.is_router:
            return
        for file in self._files:
            file.parent.mkdir(parents=True, exist_ok=True)
        await self._host.tables.prepare(self._feed)

    def shards_of(self, partition: FeedPartition) -> PartitionShards:
        return PartitionShards(self._host, self._writers, partition)

    async def close(self) -> None:
        for session in self._sessions:
            await session.close()
        for file in self._files:
            for path in (file, file.with_name(f"{file.name}.values")):
                path.unlink(missing_ok=True)


class PartitionShards:
    """`FeedShards` of one partition."""

    def __init__(
        self, host: FeedHost, writers: Mapping[str, PartitionWriter], partition: FeedPartition
    ) -> None:
        self._host = host
        self._writers = writers
        self._partition = partition

    async def of_offset(self, offset: int) -> FeedShard:
        stores = self._stores()
        end = self._partition.last_stable_offset
        source = await source_of_offset([one.log for one in stores], self._partition, offset, end)
        (found,) = (one for one in stores if one.log is source.engine)
        return FeedShard(found.name, self._writers[found.name], source.end)

    def named(self, name: str) -> FeedShard:
        """A single broker of earlier versions has stored no name."""
        store = self._host.store(name or EMBEDDED)
        store.expect_others()
        return FeedShard(store.name, self._writers[store.name])

    def all(self) -> Collection[FeedShard]:
        return [FeedShard(one.name, self._writers[one.name]) for one in self._stores()]

    def _stores(self) -> Sequence[FeedStore]:
        stores = self._host.stores_of(self._partition)
        for one in stores:
            one.expect_others()
        return stores
