"""A broker of a cluster, in front of ClickHouse shards: it stores nothing itself.

Its parts are built in one direction, each from those above it: the view of the registry, the
session, the hosts of the shards, the open logs, the catalog of topics, the slots, and the ownership
that drives them.
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
from brokerhouse.broker.cluster.ownership import Ownership
from brokerhouse.broker.cluster.registry_view import RegistryView
from brokerhouse.broker.cluster.servers import (
    hear_together,
    layout,
    migrate,
    registry_of,
    single_servers,
)
from brokerhouse.broker.cluster.session import OwnSession
from brokerhouse.broker.cluster.slots import Slots
from brokerhouse.broker.cluster.topic_registry import VERSION_KEY, TopicRegistry
from brokerhouse.broker.feeds.groups import FeedGroups, feeding_instance
from brokerhouse.broker.feeds.host import FedLogs, FeedHost
from brokerhouse.broker.feeds.running import TableFeeds
from brokerhouse.broker.from_settings import decompressions, transaction_coordinator
from brokerhouse.broker.leadership import BrokerEndpoint
from brokerhouse.broker.log.log_starts import LogStarts
from brokerhouse.broker.log.producer_states import ProducerStates
from brokerhouse.broker.log.removals import Removals
from brokerhouse.broker.log.retention import Retention, upkeep
from brokerhouse.broker.log.tail_cache import TailCache
from brokerhouse.broker.monitoring.cluster import ClusterMetrics
from brokerhouse.broker.monitoring.families import MetricSource
from brokerhouse.broker.monitoring.groups import GroupMetrics
from brokerhouse.broker.monitoring.logs import LaneSource, LogMetrics
from brokerhouse.broker.monitoring.pages import bare_application
from brokerhouse.broker.monitoring.transactions import TransactionMetrics
from brokerhouse.broker.node import Broker, Parts, Transactions
from brokerhouse.broker.settings import stored_configs
from brokerhouse.broker.settings.admin_store import AdminStore
from brokerhouse.broker.settings.config import Settings, schema_registry_url
from brokerhouse.broker.settings.stored_configs import ConfigWatch, StoredConfigs
from brokerhouse.broker.single import cluster_id
from brokerhouse.broker.slots.groups import SlotGroups
from brokerhouse.broker.slots.leadership import SlotLeadership
from brokerhouse.broker.slots.peers import Peers
from brokerhouse.broker.slots.sessions import BrokerSession
from brokerhouse.broker.slots.shard_host import ShardHost, ShardHosts
from brokerhouse.broker.slots.slot_logs import SlotLogs
from brokerhouse.broker.slots.transactions import (
    CoordinatorCalls,
    MarkersEverywhere,
    MarkersHere,
    SlotTransactions,
)
from brokerhouse.broker.topics.catalog import TopicCatalog
from brokerhouse.broker.topics.topic_cleanup import TopicCleanup
from brokerhouse.broker.topics.watched_topics import topic_watch
from brokerhouse.broker.transactions.producer_ids import ProducerIds
from brokerhouse.broker.transactions.transaction_markers import MarkerWriter
from brokerhouse.common.clock import wall_ms
from brokerhouse.common.tasks import Periodic
from brokerhouse.coordinator.slots import ServedSlots
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


class ClusterNode:
    """`BrokerRuntime` on the shards of a cluster."""

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
        cache = TailCache(settings.tail_cache_bytes)
        self._decompressions = decompressions(settings)
        served = ServedSlots(cluster.slots, session.may_serve)
        self._hosts = ShardHosts(
            ShardHost(shard, settings, cache, served, session.is_housekeeper, self._decompressions)
            for shard in self._shards
        )
        producer_ids = ProducerIds(state)
        logs = SlotLogs(served, self._hosts, producer_ids)
        changed_by_clients = registry_of(registry_servers, "topic_registry")
        topic_shards = [host.for_topics for host in self._hosts]
        topic_store = TopicRegistry(changed_by_clients, state, settings, topic_shards)
        self._topics = TopicCatalog(topic_store, settings, logs, topic_shards)
        leadership = SlotLeadership(view, endpoint)
        groups = SlotGroups(served, {host.name: host.groups for host in self._hosts})
        self._peers = peers = Peers(endpoint.node_id)
        marker_writer = MarkerWriter(logs, logs)
        here = MarkersHere(marker_writer, groups, self._topics)
        markers = MarkersEverywhere(endpoint.node_id, here, served, leadership, peers)
        coordinators = {
            host.name: transaction_coordinator(
                settings, host.engine, host.rows, served, markers, producer_ids
            )
            for host in self._hosts
        }
        self._transactions = transactions = SlotTransactions(served, coordinators)
        slots = Slots(served, self._hosts, logs, self._topics, transactions, ttl_ms / 1000)
        self._ownership = Ownership(view, session, slots)
        expiration_ms = settings.producer_id_expiration_ms
        producer_states = ProducerStates(logs, logs, expiration_ms, wall_ms)
        log_starts = LogStarts(logs, producer_states)
        admin_store = AdminStore(changed_by_clients)
        self.broker = Broker(
            settings,
            Parts(
                known_as,
                endpoint,
                leadership,
                logs,
                logs,
                log_starts,
                self._topics,
                groups,
                producer_ids,
                Transactions(
                    transactions,
                    marker_writer,
                    CoordinatorCalls(served, transactions, leadership, peers),
                ),
                admin_store,
                StoredConfigs(admin_store, state),
                data_dir=None,
            ),
        )
        self._feeds_here = settings.feeds
        self._feeds = TableFeeds(
            FeedHost(
                registry_of(registry_servers, "feed_registry"),
                [
                    shard_store(shard, servers[shard.name], host.rows)
                    for shard, host in zip(self._shards, self._hosts, strict=True)
                ],
                layout(cluster),
                FedLogs(logs, served),
                FeedGroups(feeding_instance(settings.node_id), groups, leadership),
                schema_registry_url(settings),
            )
        )
        retention = Retention(logs, logs, log_starts, wall_ms)
        self._upkeep = upkeep(settings.retention_check_interval_ms, retention.round)
        self._removals = Removals(
            self._hosts, self._topics, logs, self.broker.cold_reader, producer_states
        )
        self._housekeeping = Housekeeping(
            self._ownership,
            self._topics,
            self._hosts,
            settings.retention_check_interval_ms,
            expiration_ms,
        ).periodic
        self._topic_cleanup = TopicCleanup(
            topic_store,
            self._topics,
            topic_shards,
            partial(is_topic_housekeeper, self._ownership),
            partial(all_have_read, self._ownership),
        )
        self._lanes = Periodic("lanes", _LANES_EVERY_S, self._replace_broken_session)
        shown = settings.metrics_partitions_max
        lanes = [_lanes_of(host) for host in self._hosts]
        self.metrics: Sequence[MetricSource] = (
            LogMetrics(lanes, cache, self.broker.cold_reader, self._topics, shown),
            GroupMetrics([host.groups for host in self._hosts], logs, shown),
            TransactionMetrics(list(coordinators.values())),
            ClusterMetrics(session, served, self._shards, leadership, view.now_ms),
        )
        self.http = bare_application()
        self._watching = topic_watch(self._topics, lambda: version_number(view.value(VERSION_KEY)))
        self._configs = ConfigWatch(
            self.broker.load_stored_configs,
            lambda: version_number(view.value(stored_configs.VERSION_KEY)),
        ).periodic

    async def open(self, progress: Callable[[str], None]) -> None:
        """Read the topics and start what needs no session. Raises `EngineError`."""
        for shard in self._shards:
            await shard.start()
        progress("reading topics")
        await _patiently(self._topics.refresh)
        await _patiently(self.broker.load_stored_configs)
        # Clients can connect before `begin`: they must not hear that nobody leads anything.
        await _patiently(self._read_registry)
        for host in self._hosts:
            host.rows.start()
            host.groups.start()
        self._transactions.start()

    async def _read_registry(self) -> None:
        try:
            await self._view.refresh()
        except MalformedState as error:
            log.error("cannot read the slot map or a session: %s", error)

    async def begin(self) -> None:
        await self._ownership.join()
        self._upkeep.start()
        self._watching.start()
        self._configs.start()
        self._lanes.start()
        self._housekeeping.start()
        self._topic_cleanup.start()
        self._removals.start()
        if self._feeds_here:
            self._feeds.start()

    @property
    def background(self) -> Collection[asyncio.Task[None]]:
        begun = (
            self._upkeep,
            self._watching,
            self._configs,
            self._lanes,
            self._housekeeping,
            self._topic_cleanup,
            self._removals,
        )
        tasks = [*self._ownership.background]
        tasks += [one.task for one in begun if one.task is not None]
        for shard in self._shards:
            tasks += shard.background
        for host in self._hosts:
            tasks += [*host.groups.background, *host.rows.background]
        tasks += self._transactions.background
        tasks += self._feeds.background
        return tasks

    def unready(self) -> str | None:
        if not self._ownership.may_serve():
            return "this broker has no session"
        return self._hosts.refused_records()

    async def _replace_broken_session(self) -> None:
        """A lane that ended because of a bug accepts no more records: a new session is needed."""
        for session_id in self._hosts.broken_sessions():
            self._ownership.end_session(session_id, "one of its lanes has ended")

    async def hand_over(self) -> None:
        """Hand the slots over while clients are still connected and can be told."""
        if not self._ownership.background:
            return  # it has not joined
        for host in self._hosts:
            try:
                await host.groups.cache.heartbeats.write()
            except EngineError as error:
                log.info("cannot store the last heartbeats of members: %s", error)
        await self._ownership.leave()

    async def close(self) -> None:
        async with AsyncExitStack() as parts:  # closed in reverse order; a failure stops none
            for server in self._registry_servers:
                parts.push_async_callback(server.close)
            for shard in self._shards:
                parts.push_async_callback(shard.close)
            parts.push_async_callback(self._topics.close)
            parts.push_async_callback(self.broker.auto_creation.close)
            parts.callback(self.broker.offsets_topic.close)
            parts.push_async_callback(self.broker.cold_reader.close)
            parts.callback(self._decompressions.close)
            for host in self._hosts:
                parts.push_async_callback(host.close)
            parts.callback(self._peers.close)
            parts.push_async_callback(self._transactions.close)
            parts.push_async_callback(self._upkeep.close)
            parts.push_async_callback(self._watching.close)
            parts.push_async_callback(self._configs.close)
            parts.push_async_callback(self._lanes.close)
            parts.push_async_callback(self._removals.close)
            parts.push_async_callback(self._housekeeping.close)
            parts.push_async_callback(self._topic_cleanup.close)
            parts.push_async_callback(self._feeds.close)
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
        known_as = await _prepare(settings, cluster, registry_servers)
    except BaseException:
        for server in chain.from_iterable(registry_servers.values()):
            await server.close()  # a connection that is open keeps the process from ending
        raise
    return ClusterNode(settings, cluster, servers, registry_servers, endpoint, known_as)


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
