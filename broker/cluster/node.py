"""A broker among several, in front of a ClickHouse cluster: it keeps nothing itself.

Topics and who leads what are in the registry; each shard has a `ShardHost` here. The broker serves
the slots that its session owns: broker/cluster/ownership.py decides, broker/cluster/slots.py does
it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack
from typing import TypeVar

from broker.cluster.config import ClusterConfig
from broker.cluster.groups import ShardedGroups
from broker.cluster.housekeeping import Housekeeping, keeper_of
from broker.cluster.leadership import SlotLeadership
from broker.cluster.leases import BrokerSession
from broker.cluster.ownership import Ownership
from broker.cluster.servers import migrate, registry_of, single_servers
from broker.cluster.shard_host import ShardHost
from broker.cluster.slots import Slots
from broker.cluster.topics import SharedCatalog, watch
from broker.config import Settings
from broker.leadership import BrokerEndpoint
from broker.log.log_starts import LogStarts
from broker.log.removals import Removals
from broker.log.retention import Retention
from broker.log.retention import watch as watch_retention
from broker.log.tail_cache import TailCache
from broker.node import Broker, Parts
from broker.producer_ids import ProducerIds
from broker.single import cluster_id
from common.clock import wall_ms
from storage.clickhouse import ClickHouseServer
from storage.cluster_sql import SHARD_DATABASE
from storage.engine import EngineError
from storage.shards import Shard
from storage.slot_map import SlotMap

log = logging.getLogger(__name__)

_TOPICS_EVERY_S = 0.25
_LANES_EVERY_S = 1.0
_START_PATIENCE_S = 60.0
_START_AGAIN_S = 1.0
_NO_ANSWER = frozenset((0, 225, 999))  # none at all; NO_ZOOKEEPER, KEEPER_EXCEPTION

T = TypeVar("T")


class ClusterNode:
    """`BrokerRuntime` on the shards of a cluster."""

    sql = None

    def __init__(
        self,
        settings: Settings,
        cluster: ClusterConfig,
        servers: dict[str, list[ClickHouseServer]],
        registry_servers: dict[str, list[ClickHouseServer]],
        endpoint: BrokerEndpoint,
        known_as: str,
    ) -> None:
        """`servers` by shard, the preferred one first; they are closed here.

        `registry_servers` are the same, with connections of their own: a renewal must not queue
        behind what consumers read.
        """
        self._settings = settings
        self._cluster = cluster
        self._endpoint = endpoint
        self._shards = {
            shard.name: Shard(
                shard.name,
                servers[shard.name],
                replicated=cluster.replicated,
                quorum=cluster.quorum,
                quorum_min=cluster.quorum_min,
            )
            for shard in cluster.shards
        }
        self._registry_servers = [one for some in registry_servers.values() for one in some]
        self._state = registry_of(registry_servers)
        self._ownership: Ownership | None = None
        cache = TailCache(settings.tail_cache_bytes)
        self._stores = {
            name: ShardHost(name, shard, settings, cache, self._keeps_house(name))
            for name, shard in self._shards.items()
        }
        producer_ids = ProducerIds(self._state)
        self._slots = Slots(
            self._stores,
            self._shards,
            cluster.slots,
            producer_ids,
            self._session_id,
            self._lease,
            self._lasts,
            lambda: self.sessions,
            self._end_session,
            settings.broker_session_timeout_ms / 1000,
        )
        self._topics = SharedCatalog(
            registry_of(registry_servers, "topic_registry"),
            self._state,
            settings,
            self._slots,
            lambda: [shard for shard in self._shards.values() if not shard.away],
            self._slots.forget_topic,
        )
        self._slots.catalog = self._topics
        log_starts = LogStarts(self._slots.lanes)
        self._retention = Retention(self._topics.led, self._slots, log_starts, wall_ms)
        self.broker = Broker(
            settings,
            Parts(
                known_as,
                endpoint,
                SlotLeadership(self, endpoint),
                self._slots,
                self._slots,
                log_starts,
                self._topics,
                ShardedGroups(self._slots.coordinator_of, self._slots.coordinators),
                producer_ids,
                None,
            ),
        )
        self._removals = Removals(
            lambda: {name: one for name, one in self._shards.items() if not one.away},
            self._topics,
            self._slots,
            self.broker.cold_reader,
            lambda shard: self._stores[shard].keeps_house(),
        )
        self._housekeeping: Housekeeping | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, progress: Callable[[str], None]) -> None:
        """Read the topics and start what needs no session. Raises `EngineError`."""
        for shard in self._shards.values():
            await shard.start()
        progress("reading topics")
        await _patiently(self._topics.load)
        for store in self._stores.values():
            store.rows.start()
            store.groups.start()

    async def begin(self) -> None:
        settings, cluster = self._settings, self._cluster
        self._ownership = Ownership(
            self._state,
            self._slots,
            settings.node_id,
            self._endpoint.host,
            self._endpoint.port,
            settings.rack,
            settings.broker_session_timeout_ms,
            first_map=SlotMap.first(
                ((shard.name, part) for shard in cluster.shards for part in shard.slots),
                cluster.slots,
            ),
            reachable=lambda: [name for name, shard in self._shards.items() if not shard.away],
            first_session_id=wall_ms(),
        )
        self._housekeeping = Housekeeping(
            self._ownership,
            self._topics,
            self._stores,
            self._shards,
            settings.retention_check_interval_ms,
        )
        await self._ownership.start()
        self._tasks = [
            asyncio.create_task(watch(self._topics, _TOPICS_EVERY_S), name="topics-of-others"),
            asyncio.create_task(self._watch_lanes(self._ownership), name="lanes"),
            asyncio.create_task(
                watch_retention(settings.retention_check_interval_ms, self._retention.round),
                name="retention",
            ),
        ]
        self._housekeeping.start()
        self._removals.start()

    @property
    def background(self) -> Collection[asyncio.Task[None]]:
        tasks = [*self._tasks]
        if self._ownership is not None:
            tasks += self._ownership.background
        if self._housekeeping is not None and self._housekeeping.task is not None:
            tasks.append(self._housekeeping.task)
        if self._removals.task is not None:
            tasks.append(self._removals.task)
        for shard in self._shards.values():
            tasks += shard.background
        for store in self._stores.values():
            tasks += [*store.groups.background, *store.rows.background]
        return tasks

    async def _watch_lanes(self, ownership: Ownership) -> None:
        """A lane that ended by a defect takes no records any more: begin anew."""
        while True:
            await asyncio.sleep(_LANES_EVERY_S)
            for session_id in self._slots.broken_sessions():
                ownership.end_session(session_id, "one of its lanes has ended")

    async def hand_over(self) -> None:
        """Others take the slots while clients are still connected, and are told so."""
        if self._ownership is None:
            return
        for store in self._stores.values():
            try:
                await store.groups.cache.write_heartbeats()
            except EngineError as error:
                log.info("the last heartbeats are not written: %s", error)
        await self._ownership.leave()

    async def close(self) -> None:
        async with AsyncExitStack() as parts:  # the last one is closed first, and all of them are
            for server in self._registry_servers:
                parts.push_async_callback(server.close)
            for shard in self._shards.values():
                parts.push_async_callback(shard.close)
            parts.push_async_callback(self._topics.close)
            parts.push_async_callback(self.broker.cold_reader.close)
            for store in self._stores.values():
                parts.push_async_callback(store.close)
            parts.push_async_callback(self._stop_tasks)
            parts.push_async_callback(self._removals.close)
            if self._housekeeping is not None:
                parts.push_async_callback(self._housekeeping.close)
            parts.push_async_callback(self.hand_over)

    async def _stop_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # What the parts ask of the ownership, which begins after them

    @property
    def slot_map(self) -> SlotMap | None:
        return None if self._ownership is None else self._ownership.slot_map

    @property
    def sessions(self) -> Mapping[int, BrokerSession]:
        return {} if self._ownership is None else self._ownership.sessions

    def _session_id(self) -> int:
        return 0 if self._ownership is None else self._ownership.session_id

    def _lease(self) -> Callable[[], bool]:
        assert self._ownership is not None, "asked for a lease before the session"
        return self._ownership.lease()

    def _lasts(self) -> bool:
        return self._ownership is not None and self._ownership.is_valid()

    def _end_session(self, session_id: int, why: str) -> None:
        if self._ownership is not None:
            self._ownership.end_session(session_id, why)

    def _keeps_house(self, shard: str) -> Callable[[], bool]:
        def keeps_house() -> bool:
            slot_map, me = self.slot_map, self._session_id()
            return slot_map is not None and me != 0 and keeper_of(slot_map, shard) == me

        return keeps_house


async def open_cluster(
    settings: Settings,
    cluster: ClusterConfig,
    endpoint: BrokerEndpoint,
    progress: Callable[[str], None],
) -> ClusterNode:
    """Connect, and bring the tables up to this version. Raises `SchemaError` and `EngineError`."""
    progress("checking tables")
    await _patiently(lambda: migrate(cluster))
    lanes = settings.lanes + 1  # one for small rows: groups, offsets
    timeout_ms = cluster.request_timeout_ms
    servers = single_servers(cluster, timeout_ms, lanes, SHARD_DATABASE)
    registry_servers = single_servers(cluster, timeout_ms, 1, SHARD_DATABASE)
    known_as = await _patiently(lambda: cluster_id(registry_of(registry_servers)))
    return ClusterNode(settings, cluster, servers, registry_servers, endpoint, known_as)


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask again for a while where nobody answers: servers and Keeper may be starting, too."""
    give_up_s = time.monotonic() + _START_PATIENCE_S
    while True:
        try:
            return await ask()
        except EngineError as error:
            if error.code not in _NO_ANSWER or time.monotonic() > give_up_s:
                raise
            log.warning("the cluster does not answer yet: %s", error)
        await asyncio.sleep(_START_AGAIN_S)
