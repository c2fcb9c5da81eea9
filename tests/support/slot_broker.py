"""A broker in front of one shard, on an embedded engine, whose slots a test gives and takes."""

from __future__ import annotations

import asyncio

from brokerhouse.broker.cluster.slot_server import SlotServer
from brokerhouse.broker.cluster.topic_registry import TopicRegistry
from brokerhouse.broker.from_settings import decompressions
from brokerhouse.broker.log.tail_cache import TailCache
from brokerhouse.broker.settings.config import Settings
from brokerhouse.broker.slots.shard_host import ShardHost, ShardHosts
from brokerhouse.broker.slots.slot_logs import SlotLogs
from brokerhouse.broker.slots.slot_transactions import SlotTransactions
from brokerhouse.broker.topics.catalog import TopicCatalog
from brokerhouse.broker.transactions.producer_ids import ProducerIds
from brokerhouse.coordinator.slots import OwnSlots
from brokerhouse.storage.engine import Engine
from brokerhouse.storage.registry import Versioned
from brokerhouse.storage.slot_map import Slot, SlotMap
from tests.support.cluster_parts import begin_session, embedded_shard, own_session
from tests.support.log_parts import LANES
from tests.support.shared_catalog import MemoryRegistry

SHARD = "one"
SLOT = 0


class SlowRegistry(MemoryRegistry):
    """A registry whose reads wait while they are told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def get(self, key: str) -> Versioned | None:
        self.asked.set()
        await self.go_on.wait()
        return await super().get(key)


class OneBroker:
    """The slots of a broker in front of one shard; all partitions and groups are in one slot."""

    def __init__(self, engine: Engine) -> None:
        self.topics, self.state, self.ids = MemoryRegistry(), MemoryRegistry(), SlowRegistry()
        settings = Settings(lanes=LANES - 1)  # the last one is for small rows
        self.session = own_session(SlotMap.first([(SHARD, range(1))], 1))
        self.current = begin_session(self.session, 1, SHARD)
        shard = embedded_shard(SHARD, engine)
        own_slots = OwnSlots(1, self.session.may_serve)
        self.host = ShardHost(
            shard,
            settings,
            TailCache(1 << 20),
            own_slots,
            self.session.is_housekeeper,
            decompressions(settings),
        )
        self.hosts = hosts = ShardHosts([self.host])
        self.logs = SlotLogs(own_slots, hosts, ProducerIds(self.ids))
        shards = [self.host.for_topics]
        store = TopicRegistry(self.topics, self.state, settings, shards)
        self.catalog = TopicCatalog(store, settings, self.logs, shards)
        transactions = SlotTransactions(own_slots, {})
        self.slots = SlotServer(own_slots, hosts, self.logs, self.catalog, transactions, 0.2)

    async def serve(self, epoch: int = 1) -> None:
        slot = Slot(self.current.session_id, epoch, (SHARD,))
        await self.slots.serve_slots(self.current, {SLOT: slot})

    def lose(self) -> None:
        self.session.end()
        self.slots.abandon_slots()
        self.current = begin_session(self.session, self.current.session_id + 1, SHARD)
