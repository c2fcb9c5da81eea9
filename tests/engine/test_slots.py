"""What a broker does with its slots when its session ends meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from broker.cluster.coordinator_hosts import CoordinatorHosts
from broker.cluster.served_slots import ServedSlots
from broker.cluster.session import SessionOver
from broker.cluster.shard_host import ShardHost, ShardHosts
from broker.cluster.slot_logs import SlotLogs
from broker.cluster.slots import Slots
from broker.cluster.topic_registry import TopicRegistry
from broker.cluster.topics import SharedCatalog
from broker.cluster.transactions import ShardedTransactions
from broker.config import Settings
from broker.log.open_logs import OpenLogs
from broker.log.tail_cache import TailCache
from broker.producer_ids import ProducerIds
from broker.wiring import decompressions
from protocol.errors import NotLeaderOrFollower
from storage.embedded import EmbeddedEngine
from storage.engine import EngineError
from storage.registry import Versioned
from storage.slot_map import Slot, SlotMap
from tests.support.cluster_parts import DeletedTopics, begin_session, embedded_shard, own_session
from tests.support.log_parts import LANES, log_of
from tests.support.one_topic import create_topic
from tests.support.shared_catalog import MemoryRegistry
from tests.support.waiting import LIMIT_S

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

    def __init__(self, engine: EmbeddedEngine) -> None:
        self.topics, self.state, self.ids = MemoryRegistry(), MemoryRegistry(), SlowRegistry()
        settings = Settings(lanes=LANES)
        self.session = own_session(SlotMap.first([(SHARD, range(1))], 1))
        self.tenure = begin_session(self.session, 1)
        shard = embedded_shard(SHARD, engine)
        self.host = ShardHost(
            shard, settings, TailCache(1 << 20), self.session, decompressions(settings)
        )
        hosts = ShardHosts([self.host])
        served = ServedSlots(1)
        self.logs = SlotLogs(served, hosts, self.session, ProducerIds(self.ids))
        registry = TopicRegistry(self.topics, self.state, settings)
        self.catalog = SharedCatalog(registry, settings, self.logs, hosts)
        owners = CoordinatorHosts(served, self.session, hosts)
        transactions = ShardedTransactions(served, owners, {})
        self.slots = Slots(served, hosts, self.logs, self.catalog, transactions, 0.2)

    async def serve(self) -> None:
        slot = Slot(self.tenure.session_id, 1, (SHARD,))
        await self.slots.serve_slots(self.tenure, {SLOT: slot})

    def lose(self) -> None:
        self.session.end()
        self.slots.abandon_slots()
        self.tenure = begin_session(self.session, self.tenure.session_id + 1)


@pytest.fixture
async def broker(engine: EmbeddedEngine) -> AsyncIterator[OneBroker]:
    made = OneBroker(engine)
    made.host.rows.start()
    made.host.groups.start()
    await made.catalog.load()
    yield made
    await made.host.close()
    await made.catalog.close()


async def made_elsewhere(broker: OneBroker) -> None:
    """Another broker makes a topic."""
    registry = TopicRegistry(broker.topics, broker.state, Settings())
    other = SharedCatalog(registry, Settings(), Nothing(), DeletedTopics())
    await other.load()
    await create_topic(other, "t", 2, {})
    await other.close()


class Nothing(OpenLogs):
    """Leads nothing."""

    def may_serve(self) -> bool:
        return True

    def open_new(self, *_: object) -> None:
        """Nothing is led here."""

    async def open_missing(self, *_: object) -> bool:
        return True


async def test_logs_of_new_topics_are_opened_by_the_next_session_when_one_ends_meanwhile(
    broker: OneBroker,
) -> None:
    await broker.serve()
    await made_elsewhere(broker)
    broker.ids.go_on.clear()
    broker.ids.asked.clear()
    looking = asyncio.create_task(broker.catalog.refresh())
    await broker.ids.asked.wait()

    broker.lose()
    broker.ids.go_on.set()

    await looking
    topic = broker.catalog.get("t")
    assert topic is not None
    with pytest.raises(NotLeaderOrFollower):
        log_of(broker.catalog, topic, 1)
    await broker.serve()
    assert log_of(broker.catalog, topic, 1).high_watermark == 0


async def test_a_session_that_ends_while_its_slots_are_taken_takes_none(
    broker: OneBroker,
) -> None:
    await made_elsewhere(broker)
    broker.ids.go_on.clear()
    broker.ids.asked.clear()
    taking = asyncio.create_task(broker.serve())
    await broker.ids.asked.wait()

    broker.lose()
    broker.ids.go_on.set()

    with pytest.raises(EngineError, match="lost t-0"):
        await taking
    topic = broker.catalog.get("t")
    assert topic is not None
    assert not broker.logs.leads(topic, 0)


async def test_slots_that_are_given_up_are_led_elsewhere_and_their_logs_are_closed(
    broker: OneBroker,
) -> None:
    topic = await create_topic(broker.catalog, "t", 2, {})
    with pytest.raises(NotLeaderOrFollower):
        log_of(broker.catalog, topic, 0)
    await broker.serve()
    served = log_of(broker.catalog, topic, 0)

    await broker.slots.give_up_slots([SLOT])

    assert isinstance(served.closed, NotLeaderOrFollower)
    assert broker.logs.all() == []
    with pytest.raises(NotLeaderOrFollower):
        log_of(broker.catalog, topic, 0)


async def test_two_takes_at_once_write_through_one_appender(engine: EmbeddedEngine) -> None:
    broker = OneBroker(engine)
    broker.host.rows.start()
    await asyncio.gather(*(broker.host.write_under(broker.tenure) for _ in range(3)))
    first = broker.host.appender
    await broker.host.write_under(broker.tenure)
    assert broker.host.appender is first is not None
    await broker.host.close()


async def test_slots_that_cannot_be_given_up_in_time_end_the_session(
    engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = OneBroker(engine)
    broker.host.rows.start()
    broker.ids.go_on.set()
    await create_topic(broker.catalog, "orders", 1, {})
    await broker.serve()
    appender = broker.host.appender
    assert appender is not None
    never = asyncio.Event()

    async def release(partitions: object) -> None:
        await never.wait()

    monkeypatch.setattr(appender, "release", release)  # a shard that does not answer
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(SessionOver, match="a shard does not answer"):
            await broker.slots.give_up_slots([SLOT])
    broker.slots.abandon_slots()
    await broker.host.close()


async def test_a_lane_that_ended_leaves_its_slots_to_a_fence_though_the_session_goes_on(
    engine: EmbeddedEngine,
) -> None:
    """Its last block may still be stored: an owner that does not fence would double its offsets."""
    broker = OneBroker(engine)
    broker.host.rows.start()
    await create_topic(broker.catalog, "orders", 1, {})
    await broker.serve()
    appender = broker.host.appender
    assert appender is not None
    appender.abandon()
    with pytest.raises(SessionOver, match="before its partitions were handed over"):
        await broker.slots.give_up_slots([SLOT])
    broker.slots.abandon_slots()
    await broker.host.close()
