"""`brokerhouse feed`: feeds of typed tables beside the brokers of a cluster, as own processes.

The process reads the registry and the shards as brokers do, and asks the leader of each partition
for its last stable offset, so that it feeds only what is acknowledged. Processes share partitions
by their names in `feed_registry`: each partition belongs to one of those that are alive. Where two
believe that it is theirs, the state of the feed fences one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID, uuid4
from zlib import crc32

from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse

from broker.cluster.config import ClusterConfig
from broker.cluster.feed_tables import FeedTables
from broker.cluster.feeds import ShardDefinitions, ShardSessions
from broker.cluster.registry_view import RegistryView
from broker.cluster.remote_groups import RemoteGroups
from broker.cluster.servers import layout, registry_of, single_servers
from broker.feed_groups import CLIENT
from broker.feeds import FeedPartition, source_of
from broker.leadership import BrokerEndpoint
from broker.log.row_sources import source_of_offset
from broker.slots.leadership import SlotLeadership
from broker.slots.peers import Peers
from common.counted_lines import counted
from common.tasks import Outage, Periodic
from coordinator.feeds.decoding.client import ValueDecoder
from coordinator.feeds.definition import FeedDefinition
from coordinator.feeds.feeder import FeedShard
from coordinator.feeds.writer import first_since
from protocol.errors import KafkaError
from storage.cluster_sql import SHARD_DATABASE
from storage.engine import EngineError
from storage.registry import Registry
from storage.registry_values import MalformedState
from storage.row_lane import RowLane
from storage.shards import Shard
from storage.slot_map import Slot, slot_of_partition

log = logging.getLogger(__name__)

_ENDS_EVERY_S = 0.1
_LOOK_EVERY_S = 1.0
_DEAD_AFTER_S = 6.0
"""A process that has not renewed its name for so long has no partitions."""
_FORGOTTEN_AFTER_S = 60.0
_TTL_MS = 10_000
_OFFSETS_VERSION = 6
_COMMITTED_ONLY = 1
_LATEST, _EARLIEST = -1, -2
_NAMES = "feeder/"
_NO_BROKER = BrokerEndpoint(-2, "", 0)


class FeederNames:
    """The processes that share the partitions, by their names in the registry."""

    def __init__(self, registry: Registry) -> None:
        self.own = str(uuid4())
        self._registry = registry
        self._seen: dict[str, tuple[int, float]] = {}
        self._turn = 0
        self._alive: list[str] = [self.own]

    async def renew(self) -> None:
        """Show that this process is alive, and see who else is. Raises `EngineError`."""
        key = f"{_NAMES}{self.own}"
        self._turn += 1
        await self._registry.compare_and_set(key, await self._registry.get(key), str(self._turn))
        now_s = time.monotonic()
        found = await self._registry.list(_NAMES)
        self._seen = {
            key: self._seen[key]
            if key in self._seen and self._seen[key][0] == one.version
            else (one.version, now_s)
            for key, one in found.items()
        }
        for key, (_, since_s) in self._seen.items():
            if now_s - since_s > _FORGOTTEN_AFTER_S:
                await self._registry.delete(key, found[key])
        self._alive = [
            key.removeprefix(_NAMES)
            for key, (_, since_s) in self._seen.items()
            if now_s - since_s < _DEAD_AFTER_S
        ]

    def is_own(self, topic_id: UUID, partition: int) -> bool:
        """Whether a partition belongs to this process: to one of those that are alive."""
        chosen = max(
            self._alive, default="", key=lambda one: crc32(f"{one}/{topic_id}/{partition}".encode())
        )
        return chosen == self.own

    async def leave(self) -> None:
        """Raises `EngineError`."""
        key = f"{_NAMES}{self.own}"
        if (found := await self._registry.get(key)) is not None:
            await self._registry.delete(key, found)


@dataclass(frozen=True, slots=True)
class _FedTopic:
    name: str


@dataclass(eq=False, slots=True)
class _LedPartition:
    """`FeedPartition`, as the leader of this epoch has told about it."""

    topic: _FedTopic
    topic_id: UUID
    partition: int
    slot: Slot
    log_start_offset: int = 0
    last_stable_offset: int = 0
    has_end: bool = False

    def __str__(self) -> str:
        return f"{self.topic.name}-{self.partition}"


_Key = tuple[UUID, int]


@dataclass(frozen=True, slots=True)
class _BesideGroups:
    """`FeedGroups` of a process that coordinates none."""

    instance_id: str
    coordinator: RemoteGroups

    def coordinator_of(self, _group_id: str) -> RemoteGroups:
        return self.coordinator


class BesideFeedHost:
    """`FeedHost` of a process beside the brokers."""

    def __init__(self, config: ClusterConfig, schema_registry: str) -> None:
        """`schema_registry`: its URL, or empty if there is none."""
        timeout_ms = config.request_timeout_ms
        servers = single_servers(config, timeout_ms, 1, SHARD_DATABASE)
        self._registry_servers = single_servers(config, timeout_ms, 1, SHARD_DATABASE)
        self._shards = {
            shard.name: Shard(
                shard.name,
                servers[shard.name],
                replicated=config.replicated,
                quorum=config.quorum,
                quorum_min=config.quorum_min,
            )
            for shard in config.shards
        }
        self.registry: Registry = registry_of(self._registry_servers, "feed_registry")
        state = registry_of(self._registry_servers)
        self._view = RegistryView(state, config.first_map(), _TTL_MS)
        self._slots = config.slots
        self._leadership = SlotLeadership(self._view, _NO_BROKER)
        self._peers = Peers(_NO_BROKER.node_id)
        self._group_peers = Peers(_NO_BROKER.node_id, CLIENT.client_id)
        self._definitions = ShardDefinitions(self._shards)
        self._tables = FeedTables(servers, layout(config))
        self._decoder = ValueDecoder(schema_registry)
        self._names = FeederNames(self.registry)
        self.groups = _BesideGroups(
            self._names.own, RemoteGroups(self._leadership, self._group_peers)
        )
        self._rows = {name: RowLane(shard, 0, uuid4()) for name, shard in self._shards.items()}
        self._partitions: dict[_Key, _LedPartition] = {}
        self._wanted: set[str] = set()
        self._asking: dict[BrokerEndpoint, asyncio.Task[None]] = {}
        self._outage = Outage(log, "cannot read the cluster", "the cluster can be read again")
        self._looks = Periodic("look", _LOOK_EVERY_S, self._look, at_once=True)
        self._ends = Periodic("ends", _ENDS_EVERY_S, self._ask_leaders)

    async def start(self) -> None:
        for shard in self._shards.values():
            await shard.start()
        for lane in self._rows.values():
            lane.start()
        self._looks.start()
        self._ends.start()

    @property
    def background(self) -> Collection[asyncio.Task[None]]:
        tasks = [*self._looks.background, *self._ends.background]
        for shard in self._shards.values():
            tasks += shard.background
        for lane in self._rows.values():
            tasks += lane.background
        return tasks

    # FeedHost

    async def definitions(self) -> tuple[list[FeedDefinition], list[str]]:
        found, wrong = await self._definitions.newest()
        self._wanted = {topic for feed in found for topic in feed.topics}
        return found, wrong

    async def pause(self, feed: FeedDefinition) -> None:
        await self._definitions.pause(feed)

    def sessions(self, feed: FeedDefinition) -> _BesideSessions:
        return _BesideSessions(feed, self._shards, self._tables, self._decoder)

    def partitions(self, topics: Collection[str]) -> Sequence[_LedPartition]:
        return [
            one for one in self._partitions.values() if one.has_end and one.topic.name in topics
        ]

    def rows(self, partition: FeedPartition) -> RowLane:
        assert isinstance(partition, _LedPartition)
        return self._rows[_known(self._shards, partition.slot.writes_to).name]

    async def first_since(self, partition: FeedPartition, timestamp_ms: int) -> int | None:
        assert isinstance(partition, _LedPartition)
        source = source_of(partition)
        found = [
            await first_since(shard, source, timestamp_ms)
            for shard in _shards_of(self._shards, partition)
        ]
        return min((one for one in found if one is not None), default=None)

    async def close(self) -> None:
        await self._looks.close()
        await self._ends.close()
        for task in self._asking.values():
            task.cancel()
        try:
            await self._names.leave()
        except EngineError as error:
            log.info("others notice in some seconds that this process has ended: %s", error)
        self._peers.close()
        self._group_peers.close()
        await self._decoder.close()
        for lane in self._rows.values():
            await lane.close()
        for shard in self._shards.values():
            await shard.close()
        for replicas in self._registry_servers.values():
            for server in replicas:
                await server.close()

    # What is led by whom

    async def _look(self) -> None:
        """Who feeds, which topics there are, and who leads them."""
        try:
            await self._names.renew()
            await self._view.refresh()
            topics = await self._topics()
        except (EngineError, MalformedState) as error:
            self._outage.failed(error)
            return
        self._outage.worked()
        slot_map = self._view.slot_map
        assert slot_map is not None, "read a moment ago"
        led: dict[_Key, _LedPartition] = {}
        for name, topic_id, partitions in topics:
            for number in range(partitions):
                key = topic_id, number
                if not self._names.is_own(*key):
                    continue
                slot = slot_map.slots[slot_of_partition(topic_id, number, self._slots)]
                known = self._partitions.get(key)
                if known is None or known.slot != slot:
                    known = _LedPartition(_FedTopic(name), topic_id, number, slot)
                led[key] = known
        self._partitions = led

    async def _topics(self) -> list[tuple[str, UUID, int]]:
        """Those that have a feed. Every shard has all topics. Raises `EngineError`."""
        failure: EngineError | None = None
        for shard in self._shards.values():
            try:
                rows = await shard.rows(
                    "SELECT name, topic_id, partitions FROM topics"
                    " WHERE has({names:Array(String)}, name)",
                    {"names": sorted(self._wanted)},
                )
            except EngineError as error:
                failure = error
            else:
                return [(name, UUID(topic_id), count) for name, topic_id, count in rows]
        assert failure is not None, "there is a shard"
        raise failure

    def _ask_leaders(self) -> None:
        """Ask for the ends of the logs, each broker by itself: one may not answer."""
        by_leader: defaultdict[BrokerEndpoint, list[_LedPartition]] = defaultdict(list)
        for one in self._partitions.values():
            leader = self._leadership.leading(one.topic_id, one.partition)
            if leader is not None and leader.node_id != _NO_BROKER.node_id:
                by_leader[leader].append(one)
        for broker, partitions in by_leader.items():
            running = self._asking.get(broker)
            if running is None or running.done():
                self._asking[broker] = asyncio.create_task(self._ask(broker, partitions))

    async def _ask(self, broker: BrokerEndpoint, partitions: Sequence[_LedPartition]) -> None:
        try:
            starts = await self._offsets(broker, [one for one in partitions if not one.has_end])
            ends = await self._offsets(broker, partitions, _LATEST)
        except KafkaError as error:
            log.info("%s", error, extra=counted())
            return
        for one in partitions:
            if not one.has_end and (start := starts.get(one)) is not None:
                one.log_start_offset = start
            if (end := ends.get(one)) is not None and (one.has_end or one in starts):
                one.last_stable_offset = max(one.last_stable_offset, end)
                one.has_end = True

    async def _offsets(
        self, broker: BrokerEndpoint, partitions: Sequence[_LedPartition], which: int = _EARLIEST
    ) -> Mapping[_LedPartition, int]:
        """What the leader tells of those that it leads under the known epoch. Under another one it
        refuses: that may have the rows on another shard. Raises `RequestTimedOut`.
        """
        if not partitions:
            return {}
        by_name: defaultdict[str, dict[int, _LedPartition]] = defaultdict(dict)
        for one in partitions:
            by_name[one.topic.name][one.partition] = one
        topic = ListOffsetsRequest.ListOffsetsTopic
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=_COMMITTED_ONLY,
            topics=[
                topic(
                    name=name,
                    partitions=[
                        topic.ListOffsetsPartition(
                            partition_index=one.partition,
                            current_leader_epoch=one.slot.epoch,
                            timestamp=which,
                        )
                        for one in some.values()
                    ],
                )
                for name, some in by_name.items()
            ],
        )
        response = await self._peers.ask(broker, request, ListOffsetsResponse, _OFFSETS_VERSION)
        found = {}
        for answered in response.topics:
            for told in answered.partitions:
                one = by_name[answered.name][told.partition_index]
                if told.error_code == 0:
                    found[one] = told.offset
        return found


def _known(shards: Mapping[str, Shard], name: str) -> Shard:
    """Raises `EngineError`."""
    if name not in shards:
        raise EngineError(f"shard {name} is not in this configuration: add it")
    return shards[name]


def _shards_of(shards: Mapping[str, Shard], partition: _LedPartition) -> list[Shard]:
    """Each shard that may have rows of it. Raises `EngineError`."""
    return [_known(shards, name) for name in dict.fromkeys(partition.slot.shards)]


class _BesideSessions(ShardSessions):
    """Shards that others write to: each replica catches up before it is read."""

    def __init__(
        self,
        feed: FeedDefinition,
        shards: Mapping[str, Shard],
        tables: FeedTables,
        decoder: ValueDecoder,
    ) -> None:
        super().__init__(feed, shards, tables, decoder)
        self._shards = shards

    def shards_of(self, partition: FeedPartition) -> _ShardsOfLed:
        assert isinstance(partition, _LedPartition)
        return _ShardsOfLed(self, self._shards, partition)


class _ShardsOfLed:
    """`FeedShards` of a partition whose leader is another process."""

    def __init__(
        self, sessions: ShardSessions, shards: Mapping[str, Shard], partition: _LedPartition
    ) -> None:
        self._sessions = sessions
        self._shards = shards
        self._partition = partition

    async def of_offset(self, offset: int) -> FeedShard:
        shards = _shards_of(self._shards, self._partition)
        for shard in shards:
            shard.expect_foreign_writes()
        source = await source_of_offset(
            shards, self._partition, offset, self._partition.last_stable_offset
        )
        (found,) = (one for one in shards if one is source.engine)
        return self._sessions.shard(found.name, source.end)

    def named(self, name: str) -> FeedShard:
        _known(self._shards, name).expect_foreign_writes()
        return self._sessions.shard(name)

    def all(self) -> Collection[FeedShard]:
        shards = _shards_of(self._shards, self._partition)
        for shard in shards:
            shard.expect_foreign_writes()
        return [self._sessions.shard(one.name) for one in shards]
