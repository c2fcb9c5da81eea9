"""A single broker: one process with the embedded engine, which leads every partition.

broker/server.py calls `open_engine`, then `open_single` (tables, the cluster's id), `open` (what is
stored is read, the lanes start) and, once clients may connect, `begin` (work in the background).
A single broker is a cluster of one: its engine is the only shard, its session never ends and owns
every slot (broker/slots/). `SingleNode` builds its parts in one direction: registry, the host of
the shard, roll-up, open logs, topics, transactions, log starts, retention and sweep, the `Broker`
that handlers reach, removals, SQL.

`cluster_id` makes the id of the cluster at the first start, also for broker/cluster/node.py.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import uuid4

from brokerhouse.broker.backup_socket import ControlSocket
from brokerhouse.broker.endpoints import BrokerEndpoint
from brokerhouse.broker.feeds.groups import FeedGroups, feeding_instance
from brokerhouse.broker.feeds.host import FedLogs, FeedHost, embedded_store
from brokerhouse.broker.feeds.running import TableFeeds
from brokerhouse.broker.from_settings import (
    decompressions,
    journal_limits,
    transaction_coordinator,
)
from brokerhouse.broker.log.log_starts import LogStarts
from brokerhouse.broker.log.producer_states import ProducerStates, ProducerStateSweep
from brokerhouse.broker.log.reclaim import Reclaim
from brokerhouse.broker.log.removals import Removals
from brokerhouse.broker.log.retention import Retention, upkeep
from brokerhouse.broker.log.rollup import AppendedRows, Rollup
from brokerhouse.broker.log.row_sources import JournaledRows
from brokerhouse.broker.log.sweep import Sweep
from brokerhouse.broker.log.tail_cache import TailCache
from brokerhouse.broker.log.transaction_tables import TransactionSweep
from brokerhouse.broker.log.write_lease import EndlessSession
from brokerhouse.broker.monitoring.engine import EngineMetrics, JournalMetrics
from brokerhouse.broker.monitoring.families import MetricSource
from brokerhouse.broker.monitoring.groups import GroupMetrics
from brokerhouse.broker.monitoring.logs import LaneSource, LogMetrics
from brokerhouse.broker.monitoring.transactions import TransactionMetrics
from brokerhouse.broker.node import Broker, Parts, Transactions
from brokerhouse.broker.settings.admin_store import AdminStore
from brokerhouse.broker.settings.config import Settings, schema_registry_url
from brokerhouse.broker.settings.stored_configs import StoredConfigs
from brokerhouse.broker.slots.groups import SlotGroups
from brokerhouse.broker.slots.leadership import SlotLeadership
from brokerhouse.broker.slots.peers import Peers
from brokerhouse.broker.slots.shard_host import ShardHost, ShardHosts, Writing
from brokerhouse.broker.slots.slot_logs import SlotLogs
from brokerhouse.broker.slots.transactions import (
    CoordinatorCalls,
    MarkersEverywhere,
    MarkersHere,
    SlotTransactions,
)
from brokerhouse.broker.topics.catalog import TopicCatalog
from brokerhouse.broker.topics.topic_cleanup import TopicCleanup
from brokerhouse.broker.topics.topic_store import TopicTable
from brokerhouse.broker.transactions.producer_ids import ProducerIds
from brokerhouse.broker.transactions.transaction_markers import MarkerWriter
from brokerhouse.common.clock import wall_ms
from brokerhouse.coordinator.messages import OFFSETS_TOPIC, OFFSETS_TOPIC_ID
from brokerhouse.coordinator.slots import OwnSlots
from brokerhouse.feeds.tables import ALONE
from brokerhouse.sql.http.interface import make_app
from brokerhouse.storage.backup import Backups
from brokerhouse.storage.data_directory import refuse_unfinished
from brokerhouse.storage.disk_reserve import default_reserve_bytes
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import DATABASE, EngineError
from brokerhouse.storage.journal import JournaledEngine, open_journal
from brokerhouse.storage.journal_files import STREAMS
from brokerhouse.storage.new_directory import begin_directory
from brokerhouse.storage.part_codecs import set_part_codecs
from brokerhouse.storage.registry import Registry, TableRegistry
from brokerhouse.storage.schema import migrate, migrations, record_applied
from brokerhouse.storage.schema_files import ROW_BYTES_BY_SIZES
from brokerhouse.storage.shard_directory import refuse_shard
from brokerhouse.storage.slot_map import EMBEDDED

log = logging.getLogger(__name__)

CLUSTER_ID_KEY = "cluster_id"
"""In the registry."""


class SingleNode:
    """`BrokerRuntime` on the embedded engine."""

    def __init__(
        self,
        settings: Settings,
        engine: JournaledEngine,
        endpoint: BrokerEndpoint,
        cluster_id: str,
    ) -> None:
        registry = TableRegistry(engine)
        self._engine = engine
        self._decompressions = decompressions(settings)
        self._slots = slots = OwnSlots.alone()
        tail_cache, session = TailCache(settings.tail_cache_bytes, engine), EndlessSession()
        self._host = ShardHost(
            engine,
            settings,
            tail_cache,
            slots,
            session.is_housekeeper,
            self._decompressions,
            JournaledRows(engine),
        )
        hosts, rows, self.groups = ShardHosts([self._host]), self._host.rows, self._host.groups
        self._writing = Writing(session, self._host.appender_of(session))
        appender = self._writing.appender
        self.rollup = Rollup(
            engine.patient,
            appender,
            wall_ms,
            AppendedRows(lambda: sum(lane.counts.records for lane in appender.lanes)),
            ROW_BYTES_BY_SIZES,
            counted=self._host.counted,
        )
        groups = SlotGroups(slots, {EMBEDDED: self.groups})
        producer_ids = ProducerIds(registry)
        logs = SlotLogs(slots, hosts, producer_ids)
        topic_store = TopicTable(engine, settings, engine.embedded.reserve)
        topic_shards = [self._host.for_topics]
        self.topics = TopicCatalog(topic_store, settings, logs, topic_shards)
        self._topic_cleanup = TopicCleanup(topic_store, self.topics, topic_shards)
        markers = MarkerWriter(appender, logs)
        here = MarkersHere(markers, groups, self.topics)
        leadership, peers = SlotLeadership.alone(endpoint), Peers(endpoint.node_id)
        transactions = transaction_coordinator(
            settings,
            engine,
            rows,
            slots,
            MarkersEverywhere(endpoint.node_id, here, slots, leadership, peers),
            producer_ids,
        )
        self.transactions = SlotTransactions(slots, {EMBEDDED: transactions})
        expiration_ms = settings.producer_id_expiration_ms
        producer_states = ProducerStates(logs, logs, expiration_ms, wall_ms)
        log_starts = LogStarts(logs, producer_states)
        retention = Retention(logs, logs, log_starts, wall_ms, engine.patient)
        self._upkeep = upkeep(
            settings.retention_check_interval_ms,
            retention.round,
            Sweep(engine.patient, wall_ms).round,
            TransactionSweep(engine.patient, wall_ms).round,
            ProducerStateSweep(engine.patient, expiration_ms, wall_ms).round,
        )
        self._reclaim = Reclaim(
            engine.embedded,
            logs,
            lambda topic_id: self.topics.by_id(topic_id) is not None,
            engine.embedded.reserve,
        ).periodic
        admin_store = AdminStore(registry)
        self.broker = Broker(
            settings,
            Parts(
                cluster_id,
                endpoint,
                leadership,
                logs,
                appender,  # `SlotLogs.append` would look for the shard of every batch
                log_starts,
                self.topics,
                groups,
                producer_ids,
                Transactions(
                    self.transactions,
                    markers,
                    CoordinatorCalls(slots, self.transactions, leadership, peers),
                ),
                admin_store,
                StoredConfigs(admin_store, registry),
                Path(settings.data_dir).resolve(),
            ),
        )
        self.removals = Removals(hosts, self.topics, logs, self.broker.cold_reader, producer_states)
        self._feeds_here = settings.feeds
        self._feeds = TableFeeds(
            FeedHost(
                registry,
                [embedded_store(engine, rows)],
                ALONE,
                FedLogs(logs, slots),
                FeedGroups(feeding_instance(settings.node_id), groups, leadership),
                schema_registry_url(settings),
                Path(settings.data_dir),
            )
        )
        self.http = make_app(engine, settings.sql)
        self._control = ControlSocket(
            Path(settings.data_dir), Backups(engine, durable=settings.fsync)
        )
        self._engine_metrics = EngineMetrics(engine.embedded, Path(settings.data_dir))
        shown = settings.metrics_partitions_max
        lanes = [LaneSource("", lambda: appender)]
        self.metrics: Sequence[MetricSource] = (
            LogMetrics(lanes, tail_cache, self.broker.cold_reader, self.topics, shown),
            GroupMetrics([self.groups], logs, shown),
            TransactionMetrics([transactions]),
            JournalMetrics(engine, settings.journal_max_bytes),
            self._engine_metrics,
        )

    async def open(self, progress: Callable[[str], None]) -> None:
        """Read what is stored, and start the lanes. Raises `EngineError`."""
        await self._host.begin(self._writing)
        self._host.rows.start()
        progress("reading topics")
        await self.topics.refresh()
        if closed := self.topics.logs.missing(self.topics.all()):
            # No other broker leads them meanwhile.
            why = self.topics.logs.why_not_open
            raise EngineError(f"{len(closed)} logs cannot be opened: {why}")
        await self.broker.load_stored_configs()
        progress("reading consumer groups")
        live = {topic.name: topic.topic_id for topic in self.topics.all()}
        await self.groups.load({**live, OFFSETS_TOPIC: OFFSETS_TOPIC_ID})
        progress("reading transactions")
        await self.transactions.load(self._slots.owned)
        self.transactions.start()

    async def begin(self) -> None:
        self.rollup.start()
        self.removals.start()
        self._upkeep.start()
        self._topic_cleanup.start()
        self._reclaim.start()
        if self._feeds_here:
            self._feeds.start()
        await self._control.start()

    @property
    def background(self) -> Collection[asyncio.Task[None]]:
        begun = (
            self.rollup,
            self.removals,
            self._upkeep,
            self._topic_cleanup,
            self._reclaim,
        )
        return [
            *(one.task for one in begun if one.task is not None),
            *self._feeds.background,
            *self.groups.background,
            *self.transactions.background,
            *self._host.rows.background,
        ]

    def unready(self) -> str | None:
        refused = self._engine.refused_records()
        return None if refused is None else f"records are refused: {refused}"

    async def hand_over(self) -> None:
        """A single broker has no other broker to hand over to."""

    async def close(self) -> None:
        async with AsyncExitStack() as parts:  # closed in reverse order; a failure stops none
            parts.push_async_callback(self.topics.close)
            parts.push_async_callback(self.broker.auto_creation.close)
            parts.callback(self.broker.offsets_topic.close)
            parts.push_async_callback(self.broker.cold_reader.close)
            parts.callback(self._decompressions.close)
            parts.push_async_callback(self._host.close)
            parts.push_async_callback(self.rollup.close)
            parts.push_async_callback(self.removals.close)
            parts.push_async_callback(self.transactions.close)
            parts.push_async_callback(self._upkeep.close)
            parts.push_async_callback(self._topic_cleanup.close)
            parts.push_async_callback(self._reclaim.close)
            parts.push_async_callback(self._engine_metrics.close)
            parts.push_async_callback(self._control.close)
            parts.push_async_callback(self._feeds.close)


async def open_engine(settings: Settings) -> JournaledEngine:
    """The embedded engine behind its journal. Raises `DataDirectoryError` and `EngineError`."""
    data_dir = Path(settings.data_dir)
    refuse_unfinished(data_dir)
    refuse_shard(data_dir)
    has_begun = await asyncio.to_thread(begin_directory, data_dir)
    embedded = await asyncio.to_thread(
        EmbeddedEngine,
        data_dir,
        STREAMS,
        settings.fsync,
        settings.sql_limits.bounds,
        reserve_bytes=settings.disk_reserve_bytes or default_reserve_bytes(data_dir),
    )
    try:
        if has_begun:
            await record_applied(embedded, DATABASE, migrations())
        return await open_journal(
            embedded,
            journal_limits(settings),
            fsync=settings.fsync,
            skip_damage=settings.journal_skip_damage,
        )
    except BaseException:
        await embedded.close()
        raise


async def open_single(
    settings: Settings,
    engine: JournaledEngine,
    endpoint: BrokerEndpoint,
    progress: Callable[[str], None],
) -> SingleNode:
    """Raises `SchemaError` and `EngineError`."""
    progress("checking tables")
    await migrate(engine)
    await set_part_codecs(engine.embedded)
    for path in await engine.embedded.damaged_parts():
        log.error("part %s is damaged and was detached: its rows are missing", path)
    return SingleNode(settings, engine, endpoint, await cluster_id(TableRegistry(engine)))


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
