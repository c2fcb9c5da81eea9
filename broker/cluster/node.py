"""A broker of a cluster, in front of ClickHouse shards: it stores nothing itself.

What it has beside a single broker: the view of the registry, a session that it renews, and a
`SlotOwner`, which takes slots and gives them up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import chain
from typing import TypeVar

from brokerhouse.broker.cluster.adoption import adopt_single_broker, check_layout
from brokerhouse.broker.cluster.config import ClusterConfig
from brokerhouse.broker.cluster.feeds import shard_store
from brokerhouse.broker.cluster.housekeeping import (
    Housekeeping,
    all_have_read,
    is_topic_housekeeper,
)
from brokerhouse.broker.cluster.registry_view import RegistryView
from brokerhouse.broker.cluster.servers import (
    hear_together,
    layout,
    migrate,
    registry_of,
    single_servers,
)
from brokerhouse.broker.cluster.session import OwnSession
from brokerhouse.broker.cluster.slot_owner import SlotOwner
from brokerhouse.broker.cluster.slot_server import SlotServer
from brokerhouse.broker.cluster.topic_registry import VERSION_KEY, TopicRegistry
from brokerhouse.broker.endpoints import BrokerEndpoint
from brokerhouse.broker.from_settings import decompressions
from brokerhouse.broker.log.tail_cache import TailCache
from brokerhouse.broker.monitoring.cluster import ClusterMetrics
from brokerhouse.broker.monitoring.logs import LaneSource
from brokerhouse.broker.monitoring.pages import bare_application
from brokerhouse.broker.node import FeedPlaces, Foundation, Node, Registries, cluster_id
from brokerhouse.broker.settings import stored_configs
from brokerhouse.broker.settings.config import Settings
from brokerhouse.broker.settings.stored_configs import ConfigWatch
from brokerhouse.broker.slots.leadership import SlotLeadership
from brokerhouse.broker.slots.sessions import BrokerSession
from brokerhouse.broker.slots.shard_host import ShardHost, ShardHosts
from brokerhouse.broker.topics.topic_cleanup import TopicCleanup
from brokerhouse.broker.topics.watched_topics import topic_watch
from brokerhouse.common.clock import wall_ms
from brokerhouse.common.tasks import Periodic
from brokerhouse.coordinator.slots import OwnSlots
from brokerhouse.storage.clickhouse import ClickHouseServer
from brokerhouse.storage.cluster_sql import SHARD_DATABASE
from brokerhouse.storage.engine import EngineError
from brokerhouse.storage.registry import version_number
from brokerhouse.storage.registry_values import MalformedState
from brokerhouse.storage.shards import Shard

log = logging.getLogger(__name__)

_LANES_EVERY_S = 1.0
_START_PATIENCE_S = 60.0
_START_AGAIN_S = 1.0
_NO_ANSWER = frozenset((0, 225, 999))  # no answer; NO_ZOOKEEPER, KEEPER_EXCEPTION

T = TypeVar("T")


class ClusterNode(Node):
    """On the shards of a cluster."""

    def __init__(
        self,
        settings: Settings,
        cluster: ClusterConfig,
        servers: dict[str, list[ClickHouseServer]],
        registry_servers: dict[str, list[ClickHouseServer]],
        endpoint: BrokerEndpoint,
        cluster_id: str,
    ) -> None:
        """`servers` by shard, the preferred one first; they are closed here.

        `registry_servers` are the same, with connections of their own: a renewal must not queue
        behind what consumers read.
        """
        self._registry_servers = [one for some in registry_servers.values() for one in some]
        self._shards = [
            Shard(
                shard.name,
                servers[shard.name],
                replicated=cluster.replicated,
                quorum=cluster.quorum,
                quorum_min=cluster.quorum_min,
            )
            for shard in cluster.shards
        ]
        state = registry_of(registry_servers)
        ttl_ms = settings.broker_session_timeout_ms
        self._view = view = RegistryView(state, cluster.first_map(), ttl_ms)
        session = OwnSession(view, _identity(endpoint, ttl_ms), first_session_id=wall_ms())
        cache, decompressing = TailCache(settings.tail_cache_bytes), decompressions(settings)
        own_slots = OwnSlots(cluster.slots, session.may_serve)
        hosts = ShardHosts(
            ShardHost(shard, settings, cache, own_slots, session.is_housekeeper, decompressing)
            for shard in self._shards
        )
        changed_by_clients = registry_of(registry_servers, "topic_registry")
        leadership = SlotLeadership(view, endpoint)
        topic_store = TopicRegistry(changed_by_clients, state, settings, hosts.for_topics)
        self._hosts = hosts
        super().__init__(
            settings,
            Foundation(
                endpoint=endpoint,
                cluster_id=cluster_id,
                leadership=leadership,
                slots=own_slots,
                hosts=hosts,
                registries=Registries(
                    state, changed_by_clients, registry_of(registry_servers, "feed_registry")
                ),
                topic_store=topic_store,
                feed_places=FeedPlaces(
                    [
                        shard_store(shard, servers[shard.name], host.rows)
                        for shard, host in zip(self._shards, hosts, strict=True)
                    ],
                    layout(cluster),
                ),
                tail_cache=cache,
                decompressions=decompressing,
            ),
        )
        slots = SlotServer(
            own_slots, hosts, self._logs, self.topics, self.transactions, ttl_ms / 1000
        )
        self._owner = SlotOwner(view, session, slots)
        housekeeping = Housekeeping(
            self._owner,
            self.topics,
            hosts,
            settings.retention_check_interval_ms,
            settings.producer_id_expiration_ms,
        )
        self._periodics += [
            housekeeping.periodic,
            TopicCleanup(
                topic_store,
                self.topics,
                hosts.for_topics,
                partial(is_topic_housekeeper, self._owner),
                partial(all_have_read, self._owner),
            ),
            topic_watch(self.topics, lambda: version_number(view.value(VERSION_KEY))),
            ConfigWatch(
                self.broker.load_stored_configs,
                lambda: version_number(view.value(stored_configs.VERSION_KEY)),
            ).periodic,
            Periodic("lanes", _LANES_EVERY_S, self._replace_broken_session),
        ]
        self.metrics.append(
            ClusterMetrics(session, own_slots, self._shards, leadership, view.now_ms)
        )
        self.http = bare_application()

    def _lanes(self) -> Sequence[LaneSource]:
        return [_lanes_of(host) for host in self._hosts]

    async def open(self, progress: Callable[[str], None]) -> None:
        """Read the topics and start what needs no session. Raises `EngineError`."""
        for shard in self._shards:
            await shard.start()
        progress("reading topics")
        await _patiently(self.topics.refresh)
        await _patiently(self.broker.load_stored_configs)
        # Clients can connect before `begin`: they must not hear that nobody leads anything.
        await _patiently(self._read_registry)
        for host in self._hosts:
            host.rows.start()
            host.groups.start()
        self.transactions.start()

    async def _read_registry(self) -> None:
        try:
            await self._view.refresh()
        except MalformedState as error:
            log.error("cannot read the slot map or a session: %s", error)

    async def begin(self) -> None:
        await self._owner.join()
        await super().begin()

    @property
    def background(self) -> Collection[asyncio.Task[None]]:
        tasks = [*super().background, *self._owner.background]
        for shard in self._shards:
            tasks += shard.background
        return tasks

    def unready(self) -> str | None:
        if not self._owner.may_serve():
            return "this broker has no session"
        return self._hosts.refused_records()

    async def _replace_broken_session(self) -> None:
        """A lane that ended because of a bug accepts no more records: a new session is needed."""
        for session_id in self._hosts.broken_sessions():
            self._owner.end_session(session_id, "one of its lanes has ended")

    async def hand_over(self) -> None:
        """Hand the slots over while clients are still connected and can be told."""
        if not self._owner.background:
            return  # it has not joined
        for host in self._hosts:
            try:
                await host.groups.cache.heartbeats.write()
            except EngineError as error:
                log.info("cannot store the last heartbeats of members: %s", error)
        await self._owner.leave()

    async def close(self) -> None:
        async with AsyncExitStack() as parts:  # closed in reverse order; a failure stops none
            for server in self._registry_servers:
                parts.push_async_callback(server.close)
            for shard in self._shards:
                parts.push_async_callback(shard.close)
            parts.push_async_callback(super().close)
            parts.push_async_callback(self.hand_over)


def _lanes_of(host: ShardHost) -> LaneSource:
    return LaneSource(host.name, lambda: host.appender)


def _identity(endpoint: BrokerEndpoint, ttl_ms: int) -> BrokerSession:
    """What the sessions of this broker have in common."""
    return BrokerSession(
        0,
        endpoint.node_id,
        endpoint.host,
        endpoint.port,
        endpoint.rack,
        ttl_ms,
        listeners=endpoint.listeners,
    )


async def open_cluster(
    settings: Settings,
    cluster: ClusterConfig,
    endpoint: BrokerEndpoint,
    progress: Callable[[str], None],
) -> ClusterNode:
    """Connect, and bring the tables up to this version. Raises `SchemaError` and `EngineError`."""
    progress("checking tables")
    lanes = settings.lanes + 1  # one for small rows: groups, offsets
    timeout_ms = cluster.request_timeout_ms
    servers = single_servers(cluster, timeout_ms, lanes, SHARD_DATABASE)
    registry_servers = single_servers(cluster, timeout_ms, 1, SHARD_DATABASE)
    hear_together(servers, registry_servers)
    try:
        cluster_id = await _prepare(settings, cluster, registry_servers)
    except BaseException:
        for server in chain.from_iterable(registry_servers.values()):
            await server.close()  # a connection that is open keeps the process from ending
        raise
    return ClusterNode(settings, cluster, servers, registry_servers, endpoint, cluster_id)


async def _prepare(
    settings: Settings, cluster: ClusterConfig, servers: dict[str, list[ClickHouseServer]]
) -> str:
    """The tables and the registry, of which the id of the cluster is returned."""
    try:
        await _patiently(lambda: migrate(cluster))
    except EngineError:
        await check_layout(cluster, servers)
        raise
    await _patiently(lambda: adopt_single_broker(settings, cluster, servers))
    return await _patiently(lambda: cluster_id(registry_of(servers)))


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Retry for a while if nobody answers: servers and Keeper may be starting, too."""
    give_up_s = time.monotonic() + _START_PATIENCE_S
    while True:
        try:
            return await ask()
        except EngineError as error:
            if error.code not in _NO_ANSWER or time.monotonic() > give_up_s:
                raise
            log.warning("the cluster does not answer yet; retrying: %s", error)
        await asyncio.sleep(_START_AGAIN_S)
