"""`brokerhouse feed`: feeds of typed tables beside the brokers of a cluster, as own processes.

The process reads the registry and the shards as brokers do, and asks the leader of each partition
for its last stable offset, so that it feeds only what is acknowledged. Processes share partitions
by their names in `feed_registry`: each partition belongs to one of those that are alive. Where two
believe that it is theirs, the state of the feed fences one.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID, uuid4
from zlib import crc32

from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse

from brokerhouse.broker.cluster.config import ClusterConfig
from brokerhouse.broker.cluster.feeds import shard_store
from brokerhouse.broker.cluster.registry_view import RegistryView
from brokerhouse.broker.cluster.servers import layout, registry_of, single_servers
from brokerhouse.broker.endpoints import BrokerEndpoint
from brokerhouse.broker.feeds.groups import FeedGroups
from brokerhouse.broker.feeds.host import FeedHost, FeedPartition
from brokerhouse.broker.feeds.running import TableFeeds
from brokerhouse.broker.settings.config import Settings, schema_registry_url
from brokerhouse.broker.slots.groups import SlotGroups
from brokerhouse.broker.slots.leadership import SlotLeadership
from brokerhouse.broker.slots.peers import Peers
from brokerhouse.common.counted_lines import counted
from brokerhouse.common.tasks import Outage, Periodic
from brokerhouse.coordinator.slots import OwnSlots
from brokerhouse.protocol.errors import KafkaError
from brokerhouse.storage.cluster_sql import SHARD_DATABASE
from brokerhouse.storage.engine import EngineError
from brokerhouse.storage.registry import Registry
from brokerhouse.storage.registry_values import MalformedState
from brokerhouse.storage.row_lane import RowLane
from brokerhouse.storage.shards import Shard
from brokerhouse.storage.slot_map import Slot, slot_of_partition

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


class FeedProcess:
    """A process beside the brokers: `FedPartitions` are those that its name gets."""

    def __init__(self, config: ClusterConfig, schema_registry: str) -> None:
        """`schema_registry`: its URL, or empty if there is none."""
        timeout_ms = config.request_timeout_ms
        servers = single_servers(config, timeout_ms, 1, SHARD_DATABASE)
        self._registry_servers = single_servers(config, timeout_ms, 1, SHARD_DATABASE)
        self._shards = [
            Shard(
                shard.name,
                servers[shard.name],
                replicated=config.replicated,
                quorum=config.quorum,
                quorum_min=config.quorum_min,
            )
            for shard in config.shards
        ]
        self._rows = [RowLane(shard, 0, uuid4()) for shard in self._shards]
        registry = registry_of(self._registry_servers, "feed_registry")
        state = registry_of(self._registry_servers)
        self._view = RegistryView(state, config.first_map(), _TTL_MS)
        self._slots = config.slots
        self._leadership = SlotLeadership(self._view, _NO_BROKER)
        self._peers = Peers(_NO_BROKER.node_id)
        self._names = FeederNames(registry)
        no_groups = SlotGroups(OwnSlots(config.slots, lambda: False), {})
        self.host = FeedHost(
            registry,
            [
                shard_store(shard, servers[shard.name], rows, shard.expect_foreign_writes)
                for shard, rows in zip(self._shards, self._rows, strict=True)
            ],
            layout(config),
            self,
            FeedGroups(self._names.own, no_groups, self._leadership),
            schema_registry,
        )
        self._partitions: dict[_Key, _LedPartition] = {}
        self._asking: dict[BrokerEndpoint, asyncio.Task[None]] = {}
        self._outage = Outage(log, "cannot read the cluster", "the cluster can be read again")
        self._looks = Periodic("look", _LOOK_EVERY_S, self._look, at_once=True)
        self._ends = Periodic("ends", _ENDS_EVERY_S, self._ask_leaders)

    async def start(self) -> None:
        for shard in self._shards:
            await shard.start()
        for lane in self._rows:
            lane.start()
        self._looks.start()
        self._ends.start()

    @property
    def background(self) -> Collection[asyncio.Task[None]]:
        tasks = [*self._looks.background, *self._ends.background]
        for shard in self._shards:
            tasks += shard.background
        for lane in self._rows:
            tasks += lane.background
        return tasks

    async def close(self) -> None:
        """After the feeds, which close `host`."""
        await self._looks.close()
        await self._ends.close()
        for task in self._asking.values():
            task.cancel()
        try:
            await self._names.leave()
        except EngineError as error:
            log.info("cannot tell the other processes that this one ends: %s", error)
        self._peers.close()
        for lane in self._rows:
            await lane.close()
        for shard in self._shards:
            await shard.close()
        for replicas in self._registry_servers.values():
            for server in replicas:
                await server.close()

    # FedPartitions

    def of_topics(self, topics: Collection[str]) -> Sequence[_LedPartition]:
        return [
            one for one in self._partitions.values() if one.has_end and one.topic.name in topics
        ]

    def slot_of(self, partition: FeedPartition) -> Slot:
        assert isinstance(partition, _LedPartition)
        return partition.slot

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
        for shard in self._shards:
            try:
                rows = await shard.rows(
                    "SELECT name, topic_id, partitions FROM topics"
                    " WHERE has({names:Array(String)}, name)",
                    {"names": sorted(self.host.definitions.topics)},
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
            log.info("cannot read the ends of partitions: %s", error, extra=counted())
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


async def serve(settings: Settings, cluster: ClusterConfig, say: Callable[[str], None]) -> None:
    """Feeds until a signal. Says `ready` once it feeds."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    process = FeedProcess(cluster, schema_registry_url(settings))
    feeds = TableFeeds(process.host)
    stopped = loop.create_task(stop.wait())
    try:
        await process.start()
        feeds.start()
        say("ready feeds")
        background = [*process.background, *feeds.background]
        await asyncio.wait([stopped, *background], return_when=asyncio.FIRST_COMPLETED)
        for task in background:
            if task.done():
                task.result()
    finally:
        stopped.cancel()
        await feeds.close()
        await process.close()
