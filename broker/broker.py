"""`Broker`: the state that every request handler uses, and the parts that it consists of.

Handlers do not know whether it is a single broker or one of a cluster: broker/node.py builds the
parts. A connection knows the broker, the broker knows no connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from brokerhouse.broker.endpoints import BrokerEndpoint
from brokerhouse.broker.fetch_sessions import FetchSessions
from brokerhouse.broker.led_partitions import LedPartitions
from brokerhouse.broker.log.block import Appending
from brokerhouse.broker.log.log_starts import LogStarts
from brokerhouse.broker.log.reader import ColdReader
from brokerhouse.broker.log.refused_batches import RefusedBatches
from brokerhouse.broker.log.row_sources import RowSources
from brokerhouse.broker.memory import RequestMemory, ResponseMemory
from brokerhouse.broker.monitoring.request_counts import FetchedCounts, RequestCounts
from brokerhouse.broker.offsets_topic.offsets_topic import OffsetsTopic
from brokerhouse.broker.settings.admin_store import AdminStore
from brokerhouse.broker.settings.client_quotas import ClientQuotas
from brokerhouse.broker.settings.config import Settings
from brokerhouse.broker.settings.dynamic_settings import DynamicSettings
from brokerhouse.broker.settings.stored_configs import Configs, StoredConfigs
from brokerhouse.broker.slots.groups import SlotGroups
from brokerhouse.broker.slots.leadership import SlotLeadership
from brokerhouse.broker.slots.slot_transactions import CoordinatorCalls, SlotTransactions
from brokerhouse.broker.topics.auto_creation import AutoCreation
from brokerhouse.broker.topics.catalog import TopicCatalog
from brokerhouse.broker.topics.encoded_topics import EncodedTopics
from brokerhouse.broker.transactions.producer_ids import ProducerIds
from brokerhouse.broker.transactions.transaction_checks import TransactionChecks
from brokerhouse.broker.transactions.transaction_markers import MarkerWriter
from brokerhouse.common.logging import set_level


@dataclass(frozen=True, slots=True)
class Transactions:
    """What serves transactions."""

    coordinator: SlotTransactions
    markers: MarkerWriter
    coordinators: CoordinatorCalls
    """Those of any transactional id."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a broker consists of."""

    cluster_id: str
    endpoint: BrokerEndpoint
    leadership: SlotLeadership
    row_sources: RowSources
    appender: Appending
    log_starts: LogStarts
    topics: TopicCatalog
    groups: SlotGroups
    producer_ids: ProducerIds
    transactions: Transactions
    admin_store: AdminStore
    stored_configs: StoredConfigs
    data_dir: Path | None
    """The data directory, if the broker has an embedded engine."""


class Broker:
    """The state that every request handler uses: topics, log, groups, settings."""

    def __init__(self, settings: Settings, parts: Parts) -> None:
        self.stored_configs = parts.stored_configs
        self.dynamic_settings = DynamicSettings(
            settings, parts.stored_configs, [parts.topics.use_settings, use_log_level]
        )
        self.node_id = settings.node_id
        self.endpoint = parts.endpoint
        self.cluster_id = parts.cluster_id
        self.leadership = parts.leadership
        self.row_sources = parts.row_sources
        self.appender = parts.appender
        self.log_starts = parts.log_starts
        self.topics = parts.topics
        self.offsets_topic = OffsetsTopic(parts.groups, settings)
        self.partitions = LedPartitions(parts.topics, self.offsets_topic)
        self.groups = parts.groups
        self.producer_ids = parts.producer_ids
        self.transactions = parts.transactions.coordinator
        self.marker_writer = parts.transactions.markers
        self.transaction_checks = TransactionChecks(parts.transactions.coordinators)
        self.client_quotas = ClientQuotas(parts.admin_store)
        self.data_dir = parts.data_dir
        self.auto_creation = AutoCreation(parts.topics, settings.num_partitions)
        self.encoded_topics = EncodedTopics()
        self.cold_reader = ColdReader(parts.row_sources, settings.cold_cache_bytes)
        self.fetched = FetchedCounts()
        self.requests = RequestCounts()
        self.fetch_sessions = FetchSessions(settings.fetch_sessions_max)
        self.refused_batches = RefusedBatches()
        self.in_flight = RequestMemory(settings.in_flight_max_bytes)
        self.response_memory = ResponseMemory(settings.response_budget_bytes)
        self._changes: set[asyncio.Task[None]] = set()
        self.stopping = False
        self.long_polls: set[asyncio.Event] = set()

    @property
    def settings(self) -> Settings:
        """As they are now: some change while the broker runs (settings/dynamic_settings.py)."""
        return self.dynamic_settings.current

    async def load_stored_configs(self) -> None:
        """Read what administrators have set, and use it. Raises `EngineError`."""
        await self.stored_configs.load()
        self.dynamic_settings.apply()

    async def change_stored_configs(
        self, kind: str, name: str, change: Callable[[Configs], Configs]
    ) -> None:
        """As `StoredConfigs.change`, and use what has changed, even if the client has left."""
        task = asyncio.create_task(self._change_configs(kind, name, change))
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        await asyncio.shield(task)

    async def _change_configs(
        self, kind: str, name: str, change: Callable[[Configs], Configs]
    ) -> None:
        await self.stored_configs.change(kind, name, change)
        self.dynamic_settings.apply()

    def stop_waiting(self) -> None:
        """The broker is stopping: answer long polls and waiting members of groups now."""
        self.stopping = True
        self.groups.stop_waiting()
        for long_poll in self.long_polls:
            long_poll.set()


def use_log_level(settings: Settings) -> None:
    set_level(settings.log_level)
