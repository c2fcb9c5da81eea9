"""What the housekeeping broker does, and when it has to wait for other brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from brokerhouse.broker.cluster.housekeeping import (
    Housekeeping,
    all_have_read,
    is_topic_housekeeper,
)
from brokerhouse.broker.cluster.session import housekeeper_of
from brokerhouse.broker.cluster.topic_registry import TopicRegistry
from brokerhouse.broker.from_settings import decompressions
from brokerhouse.broker.log.rollup import CountedMinutes
from brokerhouse.broker.log.tail_cache import TailCache
from brokerhouse.broker.log.topic import Topic
from brokerhouse.broker.settings.config import Settings
from brokerhouse.broker.slots.sessions import BrokerSession, SessionState
from brokerhouse.broker.slots.shard_host import ShardHost, ShardHosts
from brokerhouse.broker.topics.catalog import TopicCatalog
from brokerhouse.broker.topics.topic_cleanup import TopicCleanup
from brokerhouse.common.clock import DAY_MS
from brokerhouse.coordinator.slots import OwnSlots
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import EngineError
from brokerhouse.storage.slot_map import SlotMap
from tests.support.clock import NOON
from tests.support.cluster_parts import begin_session, embedded_shard, own_session
from tests.support.one_topic import add_partitions, create_topic, delete_topic
from tests.support.shared_catalog import HalfLeader, MemoryRegistry
from tests.support.stored_rows import store_records
from tests.support.waiting import LIMIT_S

SLOTS = 4
MINUTE_MS = 60_000
NOW_MS = NOON


def session(
    session_id: int, **more: int | Mapping[str, int | tuple[int, ...]] | SessionState
) -> BrokerSession:
    made = BrokerSession(session_id, session_id, "host", 9092, None, 9000)
    return replace(made, **more)  # type: ignore[arg-type]  # by name


@dataclass
class Known:
    """This broker is session 1 and owns the first two slots; session 2 has the others."""

    session_id: int = 1
    slot_map: SlotMap | None = field(
        default_factory=lambda: (
            SlotMap.first([("a", range(SLOTS))], SLOTS).claim([0, 1], 1).claim([2, 3], 2)
        )
    )
    sessions: dict[int, BrokerSession] = field(
        default_factory=lambda: {1: session(1), 2: session(2, append_floors={"a": NOW_MS})}
    )


class HousekeptCluster:
    """Housekeeping of a cluster with one shard, as one of its two brokers does it."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self.engine = engine
        self.known = Known()
        self.shard = embedded_shard("a", engine)
        self.now_ms = NOW_MS + 5_000
        self.topics = MemoryRegistry()
        state = MemoryRegistry()
        unmirrored = TopicRegistry(self.topics, state, Settings(), [])
        self.catalog = TopicCatalog(unmirrored, Settings(), HalfLeader(0), [])
        assert self.known.slot_map is not None
        own = own_session(self.known.slot_map)
        begin_session(own, self.known.session_id)
        settings = Settings()
        slots = OwnSlots(1, own.may_serve)
        host = ShardHost(
            self.shard,
            settings,
            TailCache(0),
            slots,
            own.is_housekeeper,
            decompressions(settings),
        )
        host.counted = self.minutes = CountedMinutes(self.shard, lambda: self.now_ms)
        hosts = ShardHosts([host])
        self.keeping = Housekeeping(self.known, self.catalog, hosts, 0, DAY_MS, lambda: self.now_ms)
        shards = [host.for_topics]
        self.store = TopicRegistry(self.topics, state, Settings(), shards)
        self.cleanup = TopicCleanup(
            self.store,
            self.catalog,
            shards,
            partial(is_topic_housekeeper, self.known),
            partial(all_have_read, self.known),
        )

    async def record(self, topic: Topic, offset: int, at_ms: int) -> None:
        await store_records(
            self.engine, topic.name, topic.topic_id, append_time_ms=at_ms, first=offset
        )

    async def counted(self) -> int:
        rows = await self.engine.rows("SELECT sum(records) FROM partition_minutes")
        number: int = rows[0][0]
        return number


@pytest.fixture
def house(engine: EmbeddedEngine) -> HousekeptCluster:
    return HousekeptCluster(engine)


async def test_topics_of_the_registry_are_written_to_the_shard_and_long_absent_ones_are_deleted(
    house: HousekeptCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await create_topic(house.catalog, "orders", 2, {})
    gone = await create_topic(house.catalog, "gone", 1, {})
    await house.keeping.round()
    live = "SELECT name, partitions FROM topics ORDER BY name"
    assert await house.engine.rows(live) == [["gone", 1], ["orders", 2]]
    await delete_topic(house.catalog, gone)
    await add_partitions(house.catalog, topic, 5)
    await house.keeping.round()
    assert await house.engine.rows(live) == [["gone", 1], ["orders", 5]]
    monkeypatch.setattr("brokerhouse.broker.cluster.housekeeping._ABSENT_FOR_S", 0.0)
    await house.keeping.round()
    assert await house.engine.rows(live) == [["orders", 5]]


async def test_topics_of_a_single_broker_that_no_cluster_has_taken_over_are_not_deleted(
    house: HousekeptCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = await create_topic(house.catalog, "gone", 1, {})
    await house.keeping.round()
    await house.engine.execute("INSERT INTO cluster_state VALUES ('cluster_id', 1, 'of another')")
    await delete_topic(house.catalog, gone)
    monkeypatch.setattr("brokerhouse.broker.cluster.housekeeping._ABSENT_FOR_S", 0.0)
    await house.keeping.round()
    await house.keeping.round()
    assert await house.engine.rows("SELECT name FROM topics") == [["gone"]]


async def test_a_minute_is_counted_when_every_broker_has_left_it(
    house: HousekeptCluster,
) -> None:
    topic = await create_topic(house.catalog, "orders", 1, {})
    await house.record(topic, 0, NOW_MS - 30_000)
    house.known.sessions[2] = session(2, append_floors={"a": NOW_MS - 1})
    await house.keeping.round()
    assert await house.counted() == 0, "session 2 may still write into that minute"
    house.known.sessions[2] = session(2, append_floors={"a": NOW_MS})
    await house.keeping.round()
    assert await house.counted() == 1
    house.now_ms += 1_000
    await house.keeping.round()
    assert await house.counted() == 1


async def test_counting_continues_if_a_session_begins_after_the_clock_was_ahead(
    house: HousekeptCluster,
) -> None:
    async def count_at(now_ms: int) -> int:
        house.now_ms = now_ms
        house.known.sessions[2] = session(2, append_floors={"a": now_ms})
        await house.keeping.round()
        return await house.counted()

    topic = await create_topic(house.catalog, "orders", 1, {})
    ahead_ms = NOW_MS + 10 * DAY_MS
    await house.record(topic, 0, NOW_MS - 30_000)
    await house.record(topic, 1, ahead_ms - 30_000)
    assert await count_at(ahead_ms) == 2
    house.now_ms = NOW_MS
    await house.minutes.ends()  # as at the beginning of a session
    assert await house.counted() == 1, "what is in the future is forgotten"
    for minute in range(1, 4):
        await house.record(topic, 1 + minute, NOW_MS + minute * MINUTE_MS - 30_000)
        assert await count_at(NOW_MS + minute * MINUTE_MS) == 1 + minute
    assert await count_at(ahead_ms + MINUTE_MS) == 5


async def test_a_minute_is_counted_in_parts_up_to_the_append_floor_of_every_broker(
    house: HousekeptCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brokerhouse.broker.log.rollup._MANY_WHEN_QUIET", 3)
    topic = await create_topic(house.catalog, "orders", 1, {})
    await house.keeping.round()
    windows = (
        "SELECT toUnixTimestamp64Milli(until), records FROM partition_seconds WHERE topic != ''"
    )
    for offset in range(3):
        await house.record(topic, offset, NOW_MS + 5_000)
    house.now_ms = NOW_MS + 20_000
    promised = {"a": NOW_MS + 14_999}
    house.known.sessions[2] = session(2, append_floors=promised, lanes={"a": (1,)})
    await house.keeping.round()
    assert await house.engine.rows(windows) == [], "session 2 may still write rows of that time"
    promised["a"] += 1
    await house.keeping.round()
    assert await house.engine.rows(windows) == [[NOW_MS + 15_000, 3]]
    house.now_ms += 20_000
    promised["a"] += 20_000
    await house.keeping.round()
    assert len(await house.engine.rows(windows)) == 1, "no broker has stored another block"
    house.now_ms = NOW_MS + MINUTE_MS
    promised["a"] = NOW_MS + MINUTE_MS
    await house.keeping.round()
    assert await house.counted() == 3


async def test_rows_below_the_start_of_their_log_are_removed(house: HousekeptCluster) -> None:
    topic = await create_topic(house.catalog, "orders", 1, {})
    for offset in range(5):
        await house.record(topic, offset, NOW_MS - 30_000)
    await house.keeping.round()  # the topic is written to the shard
    await house.engine.execute(
        "INSERT INTO partition_checkpoints (* EXCEPT(forgot_producers)) SELECT {id:UUID}, 0, 3, 5",
        {"id": str(topic.topic_id)},
    )
    await house.keeping.round()
    async with asyncio.timeout(LIMIT_S):
        while await house.engine.rows("SELECT count() FROM messages") != [[2]]:  # noqa: ASYNC110  # the engine has no event
            await asyncio.sleep(0.02)


async def test_a_table_that_cannot_be_swept_does_not_stop_the_sweep_of_others(
    house: HousekeptCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    send = house.shard.rows

    async def refused(sql: str, *args: object) -> object:
        asked.append(sql)
        if "aborted_transactions" in sql:
            raise EngineError("this table refuses it")
        return await send(sql, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(house.shard, "rows", refused)
    await house.keeping.round()
    assert [sql for sql in asked if "aborted_transactions" in sql]
    assert [sql for sql in asked if "FROM producer_states" in sql]


async def test_a_dead_broker_holds_up_the_count_until_its_slots_are_taken_over(
    house: HousekeptCluster,
) -> None:
    topic = await create_topic(house.catalog, "orders", 1, {})
    await house.record(topic, 0, NOW_MS - 30_000)
    house.known.sessions[2] = session(2, state=SessionState.DEAD)
    await house.keeping.round()
    assert await house.counted() == 0, "its last block may still land"
    assert house.known.slot_map is not None
    house.known.slot_map = house.known.slot_map.claim([2, 3], 1)
    await house.keeping.round()
    assert await house.counted() == 1


async def test_a_minute_is_counted_once_by_two_brokers_that_do_the_housekeeping(
    house: HousekeptCluster,
) -> None:
    topic = await create_topic(house.catalog, "orders", 1, {})
    await house.record(topic, 0, NOW_MS - 30_000)
    other = HousekeptCluster(house.engine)
    other.catalog = house.catalog
    await house.keeping.round()
    other_rollup = other.keeping._rollups["a"]
    await other_rollup._count_window(
        NOW_MS - MINUTE_MS, NOW_MS, NOW_MS - MINUTE_MS
    )  # it had begun before
    assert await house.counted() == 1


async def test_rows_of_a_deleted_topic_are_deleted_when_every_broker_knows_of_the_deletion(
    house: HousekeptCluster,
) -> None:
    topic = await create_topic(house.catalog, "orders", 1, {})
    await house.record(topic, 0, NOW_MS)
    await delete_topic(house.catalog, topic)
    await house.cleanup.round()  # tells the others
    await house.catalog.refresh()
    assert house.catalog.settling._task is not None
    await house.catalog.settling._task
    await house.cleanup.round()
    assert await house.engine.rows("SELECT count() FROM messages") == [[1]]
    read_by_all = {
        number: replace(one, topics_seen=house.catalog.settling.seen)
        for number, one in house.known.sessions.items()
    }
    house.known.session_id = 2
    house.known.sessions = read_by_all
    await house.cleanup.round()
    assert await house.engine.rows("SELECT count() FROM messages") == [[1]], "another one does it"
    house.known.session_id = 1
    await house.cleanup.round()
    async with asyncio.timeout(LIMIT_S):  # the engine deletes behind
        while await house.engine.rows("SELECT count() FROM messages") != [[0]]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert await house.store.deleted() == []
    assert house.catalog.gone == set()
    rows = await house.engine.rows("SELECT argMax(state, version) FROM topic_versions")
    assert rows == [["deleted"]]


async def test_housekeeping_skips_a_shard_that_is_away(house: HousekeptCluster) -> None:
    await create_topic(house.catalog, "orders", 1, {})
    house.shard.away = True
    await house.keeping.round()
    assert await house.engine.rows("SELECT count() FROM topics") == [[0]]


async def test_housekeeping_sends_no_statement_to_a_shard_without_changes(
    house: HousekeptCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    for name in ("rows", "execute"):
        send = getattr(house.shard, name)

        async def noted(
            sql: str, *args: object, send: Callable[..., Awaitable[object]] = send
        ) -> object:
            asked.append(sql)
            return await send(sql, *args)

        monkeypatch.setattr(house.shard, name, noted)
    house.keeping._sweep_every_s = 3600.0
    await create_topic(house.catalog, "orders", 1, {})
    await house.keeping.round()
    asked.clear()
    await house.keeping.round()
    assert asked == []
    await create_topic(house.catalog, "more", 1, {})
    await house.keeping.round()
    assert [sql for sql in asked if "topic_versions" in sql]
    asked.clear()
    house.now_ms += MINUTE_MS
    house.known.sessions[2] = session(2, append_floors={"a": house.now_ms})
    await house.keeping.round()
    assert [sql for sql in asked if "INSERT INTO partition_minutes" in sql]


def test_the_owner_of_the_first_slot_of_a_shard_does_its_housekeeping() -> None:
    slots = SlotMap.first([("a", range(2)), ("b", range(2, 4))], 4).claim([0, 1], 7).claim([2], 8)
    assert housekeeper_of(slots, "a") == 7
    assert housekeeper_of(slots, "b") == 8
    assert housekeeper_of(slots.move([0, 1], "b"), "b") == 7
    assert housekeeper_of(slots.move([0, 1], "b"), "a") == 7, "it has old rows all the same"
    assert housekeeper_of(slots, "c") is None
