"""`Node`: a broker with its storage and what runs in the background, as broker/server.py starts it.

A single broker (broker/single.py) is a cluster of one: its embedded engine is the only shard, its
session never ends and owns every slot. It and a broker in front of ClickHouse shards
(broker/cluster/node.py) say where they store and what they may serve (`Foundation`). All that
stands on it is built here, in one direction: open logs, topics, transactions, log starts,
retention, the `Broker` that handlers reach, removals, feeds.
"""

from __future__ import annotations

import asyncio
import base64
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from aiohttp import web

from brokerhouse.broker.broker import Broker, Parts, Transactions
from brokerhouse.broker.endpoints import BrokerEndpoint
from brokerhouse.broker.feeds.groups import FeedGroups, feeding_instance
from brokerhouse.broker.feeds.host import FedLogs, FeedHost, FeedStore
from brokerhouse.broker.feeds.running import TableFeeds
from brokerhouse.broker.from_settings import transaction_coordinator
from brokerhouse.broker.log.block import Appending
from brokerhouse.broker.log.decompression import Decompressions
from brokerhouse.broker.log.log_starts import LogStarts
from brokerhouse.broker.log.producer_states import ProducerStates
from brokerhouse.broker.log.removals import Removals
from brokerhouse.broker.log.retention import Retention, Tables, upkeep
from brokerhouse.broker.log.tail_cache import TailCache
from brokerhouse.broker.monitoring.families import MetricSource
from brokerhouse.broker.monitoring.groups import GroupMetrics
from brokerhouse.broker.monitoring.logs import LaneSource, LogMetrics
from brokerhouse.broker.monitoring.transactions import TransactionMetrics
from brokerhouse.broker.settings.admin_store import AdminStore
from brokerhouse.broker.settings.config import Settings, schema_registry_url
from brokerhouse.broker.settings.stored_configs import StoredConfigs
from brokerhouse.broker.slots.groups import SlotGroups
from brokerhouse.broker.slots.leadership import SlotLeadership
from brokerhouse.broker.slots.peers import Peers
from brokerhouse.broker.slots.shard_host import ShardHosts
from brokerhouse.broker.slots.slot_logs import SlotLogs
from brokerhouse.broker.slots.slot_transactions import (
    CoordinatorCalls,
    MarkersEverywhere,
    MarkersHere,
    SlotTransactions,
)
from brokerhouse.broker.topics.catalog import TopicCatalog
from brokerhouse.broker.topics.topic_store import TopicStore
from brokerhouse.broker.transactions.producer_ids import ProducerIds
from brokerhouse.broker.transactions.transaction_markers import MarkerWriter
from brokerhouse.common.clock import wall_ms
from brokerhouse.common.tasks import Periodic
from brokerhouse.coordinator.slots import OwnSlots
from brokerhouse.storage.cluster_sql import ClusterLayout
from brokerhouse.storage.registry import Registry

CLUSTER_ID_KEY = "cluster_id"
"""In the registry."""


@dataclass(frozen=True, slots=True)
class Registries:
    """The registry, by connections of its own for each purpose: none waits for another."""

    state: Registry
    changed_by_clients: Registry
    feeds: Registry


@dataclass(frozen=True, slots=True)
class FeedPlaces:
    """Where feeds read records and fill tables."""

    stores: Sequence[FeedStore]
    layout: ClusterLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedParts:
    """What only a broker whose engine is embedded, behind a journal, has."""

    appender: Appending
    """Reached without looking for the shard of every batch."""
    tables: Tables
    """Rows are acknowledged before they are in a table: retention waits for that."""
    sweeps: Sequence[Callable[[], Awaitable[None]]]
    """Old rows that the housekeeping broker of a shard deletes in a cluster."""
    data_dir: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Foundation:
    """Where a broker stores, and what it may serve."""

    endpoint: BrokerEndpoint
    cluster_id: str
    leadership: SlotLeadership
    slots: OwnSlots
    hosts: ShardHosts
    registries: Registries
    topic_store: TopicStore
    feed_places: FeedPlaces
    tail_cache: TailCache
    decompressions: Decompressions
    embedded: EmbeddedParts | None = None

    @property
    def data_dir(self) -> Path | None:
        """The data directory, if the broker has an embedded engine."""
        return None if self.embedded is None else self.embedded.data_dir


class Node(ABC):
    """A broker from its start to its end: `open`, `begin`, `hand_over`, `close`, in this order."""

    http: web.Application
    """What the HTTP listener serves besides monitoring: SQL, if this broker has an engine."""

    def __init__(self, settings: Settings, base: Foundation) -> None:
        self._base = base
        self._feeds_here = settings.feeds
        slots, hosts, node_id = base.slots, base.hosts, base.endpoint.node_id
        producer_ids = ProducerIds(base.registries.state)
        logs = SlotLogs(slots, hosts, producer_ids)
        self._logs = logs
        self.topics = TopicCatalog(base.topic_store, settings, logs, hosts.for_topics)
        appender = logs if base.embedded is None else base.embedded.appender
        markers = MarkerWriter(appender, logs)
        groups = SlotGroups(slots, {host.name: host.groups for host in hosts})
        self._peers = peers = Peers(node_id)
        markers_everywhere = MarkersEverywhere(
            node_id, MarkersHere(markers, groups, self.topics), slots, base.leadership, peers
        )
        coordinators = {
            host.name: transaction_coordinator(
                settings, host.engine, host.rows, slots, markers_everywhere, producer_ids
            )
            for host in hosts
        }
        self.transactions = SlotTransactions(slots, coordinators)
        producer_states = ProducerStates(logs, logs, settings.producer_id_expiration_ms, wall_ms)
        log_starts = LogStarts(logs, producer_states)
        admin_store = AdminStore(base.registries.changed_by_clients)
        self.broker = Broker(
            settings,
            Parts(
                base.cluster_id,
                base.endpoint,
                base.leadership,
                logs,
                appender,
                log_starts,
                self.topics,
                groups,
                producer_ids,
                Transactions(
                    self.transactions,
                    markers,
                    CoordinatorCalls(slots, self.transactions, base.leadership, peers),
                ),
                admin_store,
                StoredConfigs(admin_store, base.registries.state),
                base.data_dir,
            ),
        )
        removals = Removals(hosts, self.topics, logs, self.broker.cold_reader, producer_states)
        self._periodics = [self._upkeep(settings, log_starts), removals]
        """What runs from `begin` to `close`; what is built later adds to it."""
        self._feeds = TableFeeds(
            FeedHost(
                base.registries.feeds,
                base.feed_places.stores,
                base.feed_places.layout,
                FedLogs(logs, slots),
                FeedGroups(feeding_instance(settings.node_id), groups, base.leadership),
                schema_registry_url(settings),
                base.data_dir,
            )
        )
        shown = settings.metrics_partitions_max
        cold_reader = self.broker.cold_reader
        self.metrics: list[MetricSource] = [
            LogMetrics(self._lanes(), base.tail_cache, cold_reader, self.topics, shown),
            GroupMetrics([host.groups for host in hosts], logs, shown),
            TransactionMetrics(list(coordinators.values())),
        ]

    def _upkeep(self, settings: Settings, log_starts: LogStarts) -> Periodic:
        logs, embedded = self._logs, self._base.embedded
        tables = None if embedded is None else embedded.tables
        retention = Retention(logs, logs, log_starts, wall_ms, tables)
        sweeps = () if embedded is None else embedded.sweeps
        return upkeep(settings.retention_check_interval_ms, retention.round, *sweeps)

    @abstractmethod
    def _lanes(self) -> Sequence[LaneSource]:
        """The lanes of each shard, as metrics name them."""

    @abstractmethod
    def unready(self) -> str | None:
        """Why clients cannot be served at the moment; None if they are."""

    @abstractmethod
    async def open(self, progress: Callable[[str], None]) -> None:
        """Read what is stored, and start the lanes. Raises `EngineError` and `StartError`."""

    async def begin(self) -> None:
        """Clients can connect from now on. Raises `EngineError`."""
        for one in self._periodics:
            one.start()
        if self._feeds_here:
            self._feeds.start()

    @property
    def background(self) -> Collection[asyncio.Task[None]]:
        """Tasks that run until `close`; one that ends earlier has a bug."""
        tasks = [one.task for one in self._periodics if one.task is not None]
        for host in self._base.hosts:
            tasks += [*host.groups.background, *host.rows.background]
        return [*tasks, *self.transactions.background, *self._feeds.background]

    @abstractmethod
    async def hand_over(self) -> None:
        """The broker is stopping, and clients are still connected: let others take over."""

    async def close(self) -> None:
        """Store what is queued, then stop everything."""
        async with AsyncExitStack() as parts:  # closed in reverse order; a failure stops none
            parts.push_async_callback(self.topics.close)
            parts.push_async_callback(self.broker.auto_creation.close)
            parts.callback(self.broker.offsets_topic.close)
            parts.push_async_callback(self.broker.cold_reader.close)
            parts.callback(self._base.decompressions.close)
            for host in self._base.hosts:
                parts.push_async_callback(host.close)
            parts.callback(self._peers.close)
            parts.push_async_callback(self.transactions.close)
            for one in self._periodics:
                parts.push_async_callback(one.close)
            parts.push_async_callback(self._feeds.close)


async def cluster_id(registry: Registry) -> str:
    """The id of the cluster, generated at the first start: 22 characters, as in Kafka.

    Raises `EngineError`.
    """
    while True:
        current = await registry.get(CLUSTER_ID_KEY)
        if current is not None:
            return current.value
        fresh = base64.urlsafe_b64encode(uuid4().bytes).rstrip(b"=").decode()
        await registry.compare_and_set(CLUSTER_ID_KEY, None, fresh)
