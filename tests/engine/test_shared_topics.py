"""Topics of several brokers: one registry, a catalog in each broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, cast

import pytest

from brokerhouse.broker.cluster.topic_registry import VERSION_KEY, TopicRegistry
from brokerhouse.broker.led_partitions import LedPartitions
from brokerhouse.broker.log.topic import Topic
from brokerhouse.broker.settings.config import Settings
from brokerhouse.broker.topics.catalog import NewTopic, TopicCatalog
from brokerhouse.broker.topics.topic_cleanup import TopicCleanup
from brokerhouse.protocol.errors import (
    InvalidPartitions,
    NotLeaderOrFollower,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import EngineError
from brokerhouse.storage.registry import Registry, Versioned
from tests.support.clock import NOON
from tests.support.cluster_parts import DeletedTopics
from tests.support.log_parts import log_of
from tests.support.one_topic import add_partitions, create_topic, delete_topic
from tests.support.shared_catalog import HalfLeader, MemoryRegistry
from tests.support.stored_rows import store_records
from tests.support.waiting import LIMIT_S


class Two:
    """Two brokers and their registry."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self.topics, self.state = MemoryRegistry(), MemoryRegistry()
        self.halves = HalfLeader(0), HalfLeader(1)
        self.deleted = DeletedTopics([engine])
        self.even, self.odd = (
            TopicCatalog(self.store(), Settings(), half, self.deleted.shards)
            for half in self.halves
        )

    def store(self) -> TopicRegistry:
        return TopicRegistry(self.topics, self.state, Settings(), self.deleted.shards)


async def settled(catalog: TopicCatalog) -> None:
    """What was seen has been made true, beside everything else."""
    task = catalog.settling._task
    if task is not None:
        await asyncio.wait([task])


@pytest.fixture
async def two(engine: EmbeddedEngine) -> AsyncIterator[Two]:
    brokers = Two(engine)
    await brokers.even.refresh()
    await brokers.odd.refresh()
    yield brokers
    await brokers.even.close()
    await brokers.odd.close()


async def test_a_topic_is_seen_by_every_broker_and_each_leads_its_own_partitions(two: Two) -> None:
    made = await create_topic(two.even, "orders", 3, {"retention.ms": "5"})
    assert two.odd.get("orders") is None
    await two.odd.refresh()
    seen = two.odd.get("orders")
    assert seen == made
    assert (seen.partitions, seen.configs) == (3, {"retention.ms": "5"})
    assert log_of(two.even, made, 0).next_offset == 0
    assert log_of(two.odd, seen, 1).next_offset == 5, "another may have written: the end is read"
    for catalog, not_mine in ((two.even, 1), (two.odd, 2)):
        with pytest.raises(NotLeaderOrFollower):
            log_of(catalog, made, not_mine)
        with pytest.raises(UnknownTopicOrPartition):
            log_of(catalog, made, 3)


async def test_a_topic_is_created_once_when_two_brokers_create_it_at_the_same_time(
    two: Two,
) -> None:
    two.topics.before_write = asyncio.get_running_loop().create_future()
    released = two.topics.before_write
    slow = asyncio.create_task(create_topic(two.even, "orders", 1, {}))
    await two.topics.writing.wait()
    made = await create_topic(two.odd, "orders", 2, {})
    released.set_result(None)
    with pytest.raises(TopicAlreadyExists):
        await slow
    assert two.even.get("orders") == made


async def test_creating_many_topics_takes_few_changes_of_the_registry(
    two: Two, engine: EmbeddedEngine
) -> None:
    await create_topic(two.odd, "t7", 5, {})
    wanted = [NewTopic(f"t{n}", 1, {"retention.ms": "5"}) for n in range(600)]
    two.topics.creations.clear()

    outcomes = await two.even.create_all(wanted)

    assert [len(keys) for keys in two.topics.creations] == [250, 250, 99]
    assert two.state.values[VERSION_KEY].value == "2", "others are told once"
    assert isinstance(outcomes.pop("t7"), TopicAlreadyExists)
    assert all(isinstance(one, Topic) for one in outcomes.values())
    await two.odd.refresh()
    assert len(two.odd.all()) == 600
    assert {name: two.odd.get(name) for name in outcomes} == outcomes
    assert await engine.rows("SELECT count() FROM topic_versions FINAL") == [[600]]
    changed = await add_partitions(two.even, two.even.all()[0], 3)
    await two.odd.refresh()
    assert two.odd.get(changed.name) == changed


async def test_many_topics_that_two_brokers_create_at_once_are_created_once_each(two: Two) -> None:
    wanted = [NewTopic(f"t{n}", 1) for n in range(300)]
    two.topics.before_write = asyncio.get_running_loop().create_future()
    released = two.topics.before_write
    slow = asyncio.create_task(two.even.create_all(wanted))
    await two.topics.writing.wait()
    taken = [await create_topic(two.odd, f"t{n}", 2, {}) for n in (3, 270)]
    released.set_result(None)
    outcomes = await slow
    refused = {name for name, one in outcomes.items() if isinstance(one, TopicAlreadyExists)}
    assert refused == {"t3", "t270"}
    assert [two.even.get(one.name) for one in taken] == taken
    await two.odd.refresh()
    assert two.odd.all() == two.even.all()
    assert len(two.odd.all()) == 300


async def test_creating_topics_fails_while_the_registry_is_away_and_succeeds_afterwards(
    two: Two,
) -> None:
    two.topics.away = True
    outcomes = await two.even.create_all([NewTopic(f"t{n}", 1) for n in range(3)])
    assert all(isinstance(one, EngineError) for one in outcomes.values())
    two.topics.away = False
    assert all(
        isinstance(one, Topic)
        for one in (await two.even.create_all([NewTopic("t0", 1), NewTopic("t1", 1)])).values()
    )


async def test_two_changes_at_the_same_time_are_both_made(two: Two) -> None:
    topic = await create_topic(two.even, "orders", 1, {})
    await two.odd.refresh()
    two.topics.before_write = asyncio.get_running_loop().create_future()
    released = two.topics.before_write
    slow = asyncio.create_task(two.even.set_configs(topic, {"retention.ms": "9"}))
    await two.topics.writing.wait()
    await add_partitions(two.odd, topic, 4)
    released.set_result(None)
    changed = await slow
    assert (changed.partitions, changed.configs) == (4, {"retention.ms": "9"})
    await two.odd.refresh()
    assert two.odd.get("orders") == changed


async def test_partitions_that_another_broker_added_are_led(two: Two) -> None:
    topic = await create_topic(two.even, "orders", 1, {})
    await two.odd.refresh()
    await add_partitions(two.even, topic, 4)
    await two.odd.refresh()
    assert [log_of(two.odd, topic, number).partition for number in (1, 3)] == [1, 3]
    with pytest.raises(InvalidPartitions):
        await add_partitions(two.odd, topic, 4)


async def test_a_deleted_topic_is_removed_from_every_broker_before_its_rows_are_deleted(
    two: Two, engine: EmbeddedEngine
) -> None:
    topic = await create_topic(two.even, "orders", 2, {})
    await two.odd.refresh()
    of_odd = log_of(two.odd, topic, 1)
    await delete_topic(two.even, topic)
    assert two.odd.get("orders") is not None
    await settled(two.odd)
    before = two.odd.settling.seen
    await two.odd.refresh()
    assert two.odd.get("orders") is None
    await settled(two.odd)
    await settled(two.even)
    assert two.odd.settling.seen > before
    assert isinstance(of_odd.closed, UnknownTopicOrPartition)
    assert two.halves[1].were_closed == [of_odd]
    assert two.deleted.forgotten == [("orders", topic.topic_id)] * 2
    (deleted,) = await two.store().deleted()
    assert deleted.topic_id == topic.topic_id
    states = await engine.rows("SELECT state FROM topic_versions ORDER BY version")
    assert states == [["live"], ["deleting"]]

    again = await create_topic(two.odd, "orders", 1, {})
    await two.store().forget([deleted])
    await two.even.refresh()
    assert two.even.get("orders") == again
    assert again.topic_id != topic.topic_id
    assert await two.store().deleted() == []


async def test_an_interrupted_deletion_is_completed_by_another_broker(two: Two) -> None:
    topic = await create_topic(two.even, "orders", 1, {})
    left = dict(two.topics.values)
    await delete_topic(two.even, topic)
    two.topics.values.update(left)  # as if the broker had died before it took the name away
    await two.odd.refresh()
    assert two.odd.get("orders") is None
    (deleted,) = await two.store().deleted()
    await two.store().forget([deleted])
    assert two.topics.values == {}


class KilledRegistry:
    """The registry of a broker that is killed after its n-th change of it."""

    def __init__(self, registry: MemoryRegistry, left: list[int], killed: asyncio.Event) -> None:
        self._registry = registry
        self._left = left
        self._killed = killed

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._registry, name)
        return call if name in ("get", "list") else partial(self._change, call)

    async def _change(self, call: Callable[..., Awaitable[object]], *args: object) -> object:
        if self._left[0] == 0:
            self._killed.set()
            await asyncio.Event().wait()
        self._left[0] -= 1
        return await call(*args)


@pytest.mark.parametrize("changes", range(6))
async def test_a_deletion_that_a_kill_interrupts_is_completed_by_another_broker(
    two: Two, engine: EmbeddedEngine, changes: int
) -> None:
    topic = await create_topic(two.odd, "orders", 2, {})
    await store_records(engine, "orders", topic.topic_id, append_time_ms=NOON)
    left, killed = [changes], asyncio.Event()
    topics, state = (
        cast(Registry, KilledRegistry(one, left, killed)) for one in (two.topics, two.state)
    )
    store = TopicRegistry(topics, state, Settings(), two.deleted.shards)
    dying = TopicCatalog(store, Settings(), HalfLeader(0), two.deleted.shards)
    await dying.refresh()

    async def life() -> None:
        await delete_topic(dying, topic)
        await clean_up(dying, store, two.odd)
        killed.set()

    before = asyncio.all_tasks()
    living = asyncio.create_task(life())
    await killed.wait()
    for task in asyncio.all_tasks() - before:
        task.cancel()
    await asyncio.wait([living])

    two.odd._looked_s = float("-inf")  # the other broker may not have told
    await two.odd.refresh()
    assert two.odd.all() == ([] if changes else [topic])
    if changes:
        await clean_up(two.odd, two.store(), two.even)
        async with asyncio.timeout(LIMIT_S):  # the engine deletes afterwards
            while await engine.rows("SELECT count() FROM messages") != [[0]]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        again = await create_topic(two.odd, "orders", 1, {})
        assert again.topic_id != topic.topic_id
    assert two.topics.values.keys() == {"topic/orders"}


async def clean_up(catalog: TopicCatalog, store: TopicRegistry, other: TopicCatalog) -> None:
    """What the broker with the first slot does when another one has read of the deletion."""
    cleanup = TopicCleanup(
        store,
        catalog,
        catalog._shards,
        lambda: True,
        lambda version: other.settling.seen >= version,
    )
    for _ in range(2):
        await cleanup.round()
        for one in (catalog, other):
            await one.refresh()
            await settled(one)


async def test_the_registry_is_not_read_while_it_is_unchanged(two: Two) -> None:
    await create_topic(two.even, "orders", 1, {})
    await two.odd.refresh()
    two.topics.away = True
    await two.odd.refresh()
    await settled(two.odd)
    assert two.state.values[VERSION_KEY].value == str(two.odd.settling.seen)


async def test_changes_fail_and_topics_stay_while_the_registry_is_away(two: Two) -> None:
    topic = await create_topic(two.even, "orders", 1, {})
    two.state.away = True
    for change in (
        two.even.refresh(),
        create_topic(two.even, "b", 1, {}),
        delete_topic(two.even, topic),
    ):
        with pytest.raises(EngineError):
            await change
    assert two.even.get("orders") == topic
    assert two.even.get("b") is None


async def test_a_broker_that_slept_past_its_lease_leads_no_partition(two: Two) -> None:
    topic = await create_topic(two.even, "orders", 1, {})
    assert log_of(two.even, topic, 0).partition == 0
    two.halves[0].awake = False
    with pytest.raises(NotLeaderOrFollower):
        log_of(two.even, topic, 0)


async def test_a_catalog_that_is_held_still_shows_no_new_topic(two: Two) -> None:
    await create_topic(two.odd, "orders", 4, {})
    async with two.even.latest() as topics:
        assert [topic.name for topic in topics] == ["orders"], "what others made is seen first"
        creating = asyncio.create_task(create_topic(two.even, "b", 1, {}))
        for _ in range(10):
            await asyncio.sleep(0)
        assert two.even.get("b") is None
    assert (await creating).name == "b"


async def test_a_broker_that_gave_up_a_log_answers_not_leader(two: Two) -> None:
    topic = await create_topic(two.even, "orders", 4, {})
    two.even.logs.remove([log_of(two.even, topic, 2)])
    with pytest.raises(NotLeaderOrFollower):
        log_of(two.even, topic, 2)


async def test_an_old_answer_of_the_registry_does_not_remove_a_topic(two: Two) -> None:
    before = dict(two.topics.values), dict(two.state.values)
    topic = await create_topic(two.even, "orders", 1, {})
    log = log_of(two.even, topic, 0)
    now = dict(two.topics.values), dict(two.state.values)
    two.topics.values, two.state.values = before
    await two.even.refresh()
    assert log_of(two.even, topic, 0) is log
    # The list alone is old, and has to be read.
    two.topics.values = {}
    two.state.values = {VERSION_KEY: Versioned("9", 9)}
    await two.even.refresh()
    assert log_of(two.even, topic, 0) is log
    assert two.deleted.forgotten == []
    two.topics.values, two.state.values = now


async def test_a_topic_whose_creation_failed_after_it_was_stored_exists_at_the_next_try(
    two: Two,
) -> None:
    two.state.away = True
    with pytest.raises(EngineError):
        await create_topic(two.even, "orders", 1, {})
    two.state.away = False
    # As it is when the registry fails between the topic and its announcement.
    topic = await create_topic(two.odd, "orders", 1, {})
    two.even.version = 99
    with pytest.raises(TopicAlreadyExists):
        await create_topic(two.even, "orders", 1, {})
    assert two.even.get("orders") == topic


async def test_a_shard_that_is_away_holds_up_only_its_own_logs(two: Two) -> None:
    half = two.halves[0]
    half.away = True
    topic = await create_topic(two.odd, "orders", 1, {})
    await two.even.refresh()
    with pytest.raises(NotLeaderOrFollower):
        log_of(two.even, topic, 0)
    async with two.even.latest():
        half.away = False
    await two.even.refresh()
    assert log_of(two.even, topic, 0).partition == 0


async def test_a_topic_of_a_newer_format_is_ignored_and_kept(two: Two) -> None:
    await create_topic(two.odd, "sound", 1, {})
    two.topics.values["topic/new"] = Versioned('{"of": "a newer version"}', 0)
    await two.even.refresh()
    assert [topic.name for topic in two.even.all()] == ["sound"]
    assert "topic/new" in two.topics.values


async def test_requests_for_a_log_continue_in_the_order_in_which_they_came(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    half, hanging, goes_on = two.halves[1], asyncio.Event(), asyncio.Event()
    order: list[int] = []
    open_at_once = half.open_one

    async def open_one(topic: Topic, partition: int) -> None:
        if partition == 3:
            hanging.set()
            await goes_on.wait()
        await open_at_once(topic, partition)

    monkeypatch.setattr(half, "open_one", open_one)
    partitions = LedPartitions(two.odd)
    topic = await create_topic(two.even, "orders", 4, {})

    async def ask(number: int) -> None:
        await partitions.await_open([("orders", 1)])
        partitions.log_of(topic, 1)
        order.append(number)

    asked = [asyncio.create_task(ask(1))]
    await hanging.wait()  # the log is open; the look goes on
    assert ("orders", 1) in [(one.name, number) for one, number in half.were_opened]
    asked += [asyncio.create_task(ask(number)) for number in range(2, 5)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert order == []
    goes_on.set()
    await asyncio.gather(*asked)
    assert order == [1, 2, 3, 4]


async def test_a_request_for_a_log_that_is_open_does_not_wait_for_others(two: Two) -> None:
    await create_topic(two.odd, "orders", 4, {})
    two.state.away = True
    partitions = LedPartitions(two.odd)
    waiting = asyncio.create_task(partitions.await_open([("unknown", 0)]))
    await asyncio.sleep(0)
    await partitions.await_open([("orders", 1)])
    assert not waiting.done()
    await waiting


async def test_waiting_requests_share_one_read_of_the_registry(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    async def look() -> None:
        nonlocal looks
        looks += 1
        await asyncio.sleep(0.01)

    monkeypatch.setattr(two.odd, "look_again", look)
    partitions = LedPartitions(two.odd)
    await asyncio.gather(*(partitions.await_open([(f"unknown-{n}", 0)]) for n in range(50)))
    assert looks == 1
    assert not partitions._awaited
