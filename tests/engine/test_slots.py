"""What a broker does with its slots when its session ends meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from brokerhouse.broker.cluster.session import SessionOver
from brokerhouse.broker.cluster.topic_registry import TopicRegistry
from brokerhouse.broker.settings.config import Settings
from brokerhouse.broker.topics.catalog import TopicCatalog
from brokerhouse.protocol.errors import KafkaStorageError, NotLeaderOrFollower
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import EngineError
from tests.support.alone import GivenLogs
from tests.support.log_parts import ScriptedEngine, append, log_of, plain
from tests.support.one_topic import create_topic
from tests.support.slot_broker import SLOT, OneBroker
from tests.support.waiting import LIMIT_S


@pytest.fixture
async def broker(engine: EmbeddedEngine) -> AsyncIterator[OneBroker]:
    made = OneBroker(engine)
    made.host.rows.start()
    made.host.groups.start()
    await made.catalog.refresh()
    yield made
    await made.host.close()
    await made.catalog.close()


async def made_elsewhere(broker: OneBroker) -> None:
    """Another broker makes a topic."""
    store = TopicRegistry(broker.topics, broker.state, Settings(), [])
    other = TopicCatalog(store, Settings(), GivenLogs(), [])
    await other.refresh()
    await create_topic(other, "t", 2, {})
    await other.close()


async def test_logs_of_a_new_topic_are_opened_by_the_next_session_if_the_session_ends_meanwhile(
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


async def test_a_session_that_ends_while_it_takes_slots_takes_none(
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


async def test_giving_up_slots_closes_their_logs(
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


async def test_a_cluster_broker_reports_the_shard_that_refuses_records_until_it_stores_one(
    scripted: ScriptedEngine,
) -> None:
    broker = OneBroker(scripted)
    broker.host.rows.start()
    broker.host.groups.start()
    await broker.catalog.refresh()
    await broker.serve()
    topic = await create_topic(broker.catalog, "t", 1, {})
    served, appender = log_of(broker.catalog, topic, 0), broker.host.appender
    assert appender is not None
    assert broker.hosts.refused_records() is None

    scripted.faults.append("refused")
    with pytest.raises(KafkaStorageError):
        await append(appender, served, plain(b"a").data)
    assert broker.hosts.refused_records() == "records are refused by shard one: refused"
    await append(appender, served, plain(b"b").data)
    assert broker.hosts.refused_records() is None
    await broker.host.close()
    await broker.catalog.close()


async def test_writers_that_begin_at_once_share_one_appender(engine: EmbeddedEngine) -> None:
    broker = OneBroker(engine)
    broker.host.rows.start()
    await asyncio.gather(*(broker.host.write_under(broker.current) for _ in range(3)))
    first = broker.host.appender
    await broker.host.write_under(broker.current)
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


async def test_slots_of_a_lane_that_ended_cannot_be_handed_over_without_a_fence(
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
    with pytest.raises(SessionOver, match="before another broker took over its partitions"):
        await broker.slots.give_up_slots([SLOT])
    broker.slots.abandon_slots()
    await broker.host.close()
