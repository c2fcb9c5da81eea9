"""The topics of a broker: a change is in the table before it is seen, and survives a restart."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from brokerhouse.broker.log.appender import Appender
from brokerhouse.broker.log.topic import Topic
from brokerhouse.broker.topics.catalog import NewTopic, TopicCatalog
from brokerhouse.protocol.errors import (
    InvalidPartitions,
    InvalidTopic,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import EngineError, Parameter
from tests.support import log_parts
from tests.support.alone import all_logs
from tests.support.embedded_topics import catalog_on, cleaned_up, cleanup_of
from tests.support.log_parts import (
    ScriptedEngine,
    log_of,
    make_appender,
    plain,
    stored_values,
)
from tests.support.one_topic import add_partitions, create_topic, delete_topic
from tests.support.seeds import seeds
from tests.support.shared_catalog import MemoryRegistry
from tests.support.waiting import LIMIT_S

LOG_APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}


async def restarted(engine: EmbeddedEngine | ScriptedEngine) -> TopicCatalog:
    """A catalog as the next start of the broker sees it."""
    catalog = catalog_on(engine)
    await catalog.refresh()
    return catalog


async def states(engine: EmbeddedEngine) -> list[str]:
    rows = await engine.rows("SELECT state FROM topic_versions FINAL ORDER BY changed_at")
    return [str(row[0]) for row in rows]


async def append(appender: Appender, catalog: TopicCatalog, topic: Topic, *values: bytes) -> int:
    data = plain(*values).data
    appended = await log_parts.append(appender, log_of(catalog, topic, 0), data)
    return appended.base_offset


@pytest.fixture
def catalog(engine: EmbeddedEngine) -> TopicCatalog:
    return catalog_on(engine)


# --- Creating ---


async def test_a_topic_is_found_by_name_and_by_id_also_after_a_restart(
    engine: EmbeddedEngine, catalog: TopicCatalog
) -> None:
    made = await create_topic(catalog, "b", 3, LOG_APPEND_TIME)
    other = await create_topic(catalog, "a", 1, {})
    for known in (catalog, await restarted(engine)):
        assert known.get("b") == known.by_id(made.topic_id) == made
        assert known.all() == [other, made]
        assert [log_of(known, made, n).partition for n in range(3)] == [0, 1, 2]
        found = known.get("b")
        assert found is not None
        assert found.config.message_timestamp_type == "LogAppendTime"
        assert found.configs == LOG_APPEND_TIME
        assert known.get("c") is None


async def test_a_partition_beyond_those_of_its_topic_is_unknown(catalog: TopicCatalog) -> None:
    topic = await create_topic(catalog, "t", 2, {})
    for partition in (-1, 2, 2**31 - 1):
        with pytest.raises(
            UnknownTopicOrPartition, match=f"The topic 't' has no partition {partition}"
        ):
            log_of(catalog, topic, partition)


async def test_of_many_requests_that_create_a_topic_one_succeeds(
    engine: EmbeddedEngine, catalog: TopicCatalog
) -> None:
    results = await asyncio.gather(
        *(create_topic(catalog, "t", n, {}) for n in range(1, 9)), return_exceptions=True
    )
    (made,) = [result for result in results if isinstance(result, Topic)]
    assert sum(isinstance(result, TopicAlreadyExists) for result in results) == 7
    assert catalog.all() == (await restarted(engine)).all() == [made]


async def test_many_topics_are_created_by_one_statement_and_fail_one_by_one(
    engine: EmbeddedEngine,
) -> None:
    old = await create_topic(catalog_on(engine), "old.1", 1, {})
    scripted = ScriptedEngine(engine)
    catalog = await restarted(scripted)
    wanted = {name: NewTopic(name, 2, {"retention.ms": "5"}) for name in ("a.b", "a_b", "c")}
    wanted |= {name: NewTopic(name, 1) for name in ("old.1", "old_1")}
    scripted.executed.clear()

    outcomes = await catalog.create_all(list(wanted.values()))

    assert len(scripted.executed) == 1
    assert outcomes.keys() == wanted.keys()
    kinds = {name: type(outcome) for name, outcome in outcomes.items()}
    assert kinds.pop("old.1") is TopicAlreadyExists
    assert kinds.pop("old_1") is kinds.pop("a_b") is InvalidTopic, "their metrics have one name"
    made = [outcomes[name] for name in kinds]
    assert catalog.all() == (await restarted(engine)).all() == [*made, old]
    assert {(one.partitions, one.configs["retention.ms"]) for one in catalog.all()[:2]} == {
        (2, "5")
    }

    await delete_topic(catalog, old)
    assert isinstance((await catalog.create_all([wanted["old_1"]]))["old_1"], Topic)


@pytest.mark.parametrize(
    ("refusals", "refused"), [(1, []), (2, ["t0"]), (3, ["t0", "t1", "t2", "t3", "t4"])]
)
async def test_topics_of_a_refused_statement_are_tried_one_by_one_unless_the_first_two_fail(
    engine: EmbeddedEngine, refusals: int, refused: list[str]
) -> None:
    """Of thousands of topics on a full disk each would be refused."""
    scripted = ScriptedEngine(engine)
    catalog = await restarted(scripted)
    wanted = [NewTopic(f"t{n}", 1) for n in range(5)]
    scripted.failing_rows.extend(["INSERT INTO topic_versions"] * refusals)
    outcomes = await catalog.create_all(wanted)
    assert [name for name, one in outcomes.items() if isinstance(one, EngineError)] == refused
    created = [name for name in outcomes if name not in refused]
    for known in (catalog, await restarted(engine)):
        assert [topic.name for topic in known.all()] == created
    assert len(scripted.executed) == len(created)
    again = await catalog.create_all(wanted)
    assert [name for name, one in again.items() if isinstance(one, Topic)] == refused


async def test_configs_come_back_unchanged_after_a_restart(
    engine: EmbeddedEngine, catalog: TopicCatalog
) -> None:
    text = "*, 'a':\"b\"\\\t\n{}[]é,"
    topic = await create_topic(catalog, "t", 1, {"leader.replication.throttled.replicas": text})
    found = (await restarted(engine)).get("t")
    assert found == topic


# --- Changing ---


async def test_added_partitions_are_empty_and_the_others_stay_as_they_are(
    engine: EmbeddedEngine, catalog: TopicCatalog
) -> None:
    topic = await create_topic(catalog, "t", 2, {})
    before = [log_of(catalog, topic, n) for n in range(2)]
    changed = await add_partitions(catalog, topic, 4)
    assert changed.partitions == 4
    assert [log_of(catalog, changed, n) for n in range(2)] == before
    assert all(log.topic is changed for log in before)
    assert log_of(catalog, changed, 3).high_watermark == 0
    assert (await restarted(engine)).get("t") == changed


@pytest.mark.parametrize("total", [0, 1, 2])
async def test_adding_partitions_fails_unless_their_number_grows(
    catalog: TopicCatalog, total: int
) -> None:
    topic = await create_topic(catalog, "t", 2, {})
    with pytest.raises(InvalidPartitions, match=f"has 2 partitions already; {total} is not more"):
        await add_partitions(catalog, topic, total)
    assert catalog.get("t") == topic


async def test_configs_are_replaced_and_act_on_the_logs_at_once(
    engine: EmbeddedEngine, catalog: TopicCatalog
) -> None:
    topic = await create_topic(catalog, "t", 1, {"retention.ms": "5"})
    log = log_of(catalog, topic, 0)
    changed = await catalog.set_configs(topic, LOG_APPEND_TIME)
    assert changed.configs == LOG_APPEND_TIME
    assert log.topic.config.message_timestamp_type == "LogAppendTime"
    assert log_of(catalog, changed, 0) is log
    found = (await restarted(engine)).get("t")
    assert found is not None
    assert found.configs == LOG_APPEND_TIME


async def test_changes_at_the_same_time_are_all_made(
    engine: EmbeddedEngine, catalog: TopicCatalog
) -> None:
    topic = await create_topic(catalog, "t", 1, {})
    await asyncio.gather(
        add_partitions(catalog, topic, 5), catalog.set_configs(topic, LOG_APPEND_TIME)
    )
    for known in (catalog, await restarted(engine)):
        found = known.get("t")
        assert found is not None
        assert (found.partitions, found.configs) == (5, LOG_APPEND_TIME)


async def test_a_change_that_the_engine_refuses_changes_nothing(engine: EmbeddedEngine) -> None:
    scripted = ScriptedEngine(engine)
    catalog = catalog_on(scripted)
    topic = await create_topic(catalog, "t", 1, {})

    async def refused(change: Coroutine[Any, Any, object]) -> None:
        scripted.failing_rows.append("INSERT INTO topic_versions")
        with pytest.raises(EngineError):
            await change

    await refused(create_topic(catalog, "other", 1, {}))
    await refused(add_partitions(catalog, topic, 2))
    await refused(catalog.set_configs(topic, LOG_APPEND_TIME))
    await refused(delete_topic(catalog, topic))
    assert catalog.all() == (await restarted(engine)).all() == [topic]
    assert log_of(catalog, topic, 0).closed is None
    await create_topic(catalog, "other", 1, {})


@pytest.mark.parametrize("change", ["create", "add_partitions", "set_configs", "delete"])
@pytest.mark.parametrize("ticks", [0, 1, 5])
async def test_a_client_that_disconnects_leaves_its_change_made_completely_or_not_at_all(
    engine: EmbeddedEngine, catalog: TopicCatalog, change: str, ticks: int
) -> None:
    """Otherwise records are acknowledged in a topic that the table calls deleted."""
    topic = await create_topic(catalog, "t", 1, {})
    changes: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
        "create": lambda: create_topic(catalog, "other", 1, {}),
        "add_partitions": lambda: add_partitions(catalog, topic, 2),
        "set_configs": lambda: catalog.set_configs(topic, LOG_APPEND_TIME),
        "delete": lambda: delete_topic(catalog, topic),
    }
    request = asyncio.create_task(changes[change]())
    for _ in range(ticks):
        await asyncio.sleep(0)
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    await catalog.close()
    table = (await restarted(engine)).all()
    assert catalog.all() == table
    made = {"create": len(table) == 2, "delete": not table}.get(change, table != [topic])
    assert made == (ticks > 0), "a change that began is made"


async def test_closing_waits_for_a_change_whose_client_disconnected(
    engine: EmbeddedEngine,
) -> None:
    scripted = ScriptedEngine(engine)
    catalog = catalog_on(scripted)
    scripted.execute_gate.clear()
    request = asyncio.create_task(create_topic(catalog, "t", 1, {}))
    await asyncio.sleep(0)
    request.cancel()
    closing = asyncio.create_task(catalog.close())
    await asyncio.wait([closing], timeout=0.1)
    assert not closing.done()
    scripted.execute_gate.set()
    await closing
    assert catalog.all() == (await restarted(engine)).all() != []


# --- Deleting ---


async def test_a_deleted_topic_is_unknown_at_once_and_its_rows_are_deleted_afterwards(
    engine: EmbeddedEngine, catalog: TopicCatalog
) -> None:
    appender = make_appender(engine)
    topic, other = await create_topic(catalog, "t", 1, {}), await create_topic(catalog, "o", 1, {})
    await append(appender, catalog, topic, b"x")
    await append(appender, catalog, other, b"y")
    log = log_of(catalog, topic, 0)
    woken: list[object] = []
    log.waiters.add(woken.append)

    await delete_topic(catalog, topic)
    assert (catalog.get("t"), catalog.by_id(topic.topic_id)) == (None, None)
    assert isinstance(log.closed, UnknownTopicOrPartition)
    assert woken == [log]
    with pytest.raises(UnknownTopicOrPartition):
        log_of(catalog, topic, 0)

    await cleaned_up(catalog)
    assert await engine.rows("SELECT DISTINCT topic FROM messages") == [["o"]]
    assert await states(engine) == ["live", "deleted"]
    assert (await restarted(engine)).all() == [other]
    await appender.close()


async def test_topics_are_deleted_even_if_the_offsets_of_one_cannot_be_deleted(
    engine: EmbeddedEngine,
) -> None:
    forgotten: list[str] = []

    async def refusing(topic: str, topic_id: UUID) -> None:
        if topic == "t0":
            raise EngineError("no offset can be forgotten")
        forgotten.append(topic)

    catalog = catalog_on(engine, forget_topic=refusing)
    topics = [await create_topic(catalog, f"t{n}", 1, {}) for n in range(3)]
    assert await catalog.delete_all(topics) == {}
    assert catalog.all() == []
    assert forgotten == ["t1", "t2"], "when the deletion is answered"
    await cleaned_up(catalog)
    assert await states(engine) == ["deleted"] * 3


async def test_a_topic_created_again_has_a_new_id_and_starts_empty(
    engine: EmbeddedEngine, catalog: TopicCatalog
) -> None:
    appender = make_appender(engine)
    first = await create_topic(catalog, "t", 2, {})
    await append(appender, catalog, first, b"old", b"old")
    await delete_topic(catalog, first)
    second = await create_topic(catalog, "t", 1, {})
    assert second.topic_id != first.topic_id
    assert await append(appender, catalog, second, b"new") == 0
    await cleaned_up(catalog)
    for known in (catalog, await restarted(engine)):
        assert known.all() == [second]
        assert log_of(known, second, 0).high_watermark == 1
    assert await engine.rows("SELECT value FROM messages") == [["new"]]
    await appender.close()


async def test_a_late_clean_up_keeps_the_rows_of_the_topic_created_again(
    engine: EmbeddedEngine,
) -> None:
    settled = asyncio.Event()

    async def wait() -> None:
        await settled.wait()

    appender = make_appender(engine)
    catalog = catalog_on(engine, wait)
    first = await create_topic(catalog, "t", 1, {})
    await append(appender, catalog, first, b"old")
    await delete_topic(catalog, first)
    second = await create_topic(catalog, "t", 1, {})
    await append(appender, catalog, second, b"new")
    await cleanup_of(catalog).round()
    assert await states(engine) == ["deleting", "live"], "a block with rows may be in flight"
    settled.set()
    await cleaned_up(catalog)
    assert await engine.rows("SELECT value FROM messages") == [["new"]]
    await appender.close()


async def test_a_deleted_topic_cannot_be_changed(catalog: TopicCatalog) -> None:
    topic = await create_topic(catalog, "t", 1, {})
    await delete_topic(catalog, topic)
    await create_topic(catalog, "t", 1, {})  # of the same name, but not the same
    for change in (
        delete_topic(catalog, topic),
        add_partitions(catalog, topic, 2),
        catalog.set_configs(topic, {}),
    ):
        with pytest.raises(UnknownTopicOrPartition, match="topic 't' has been deleted"):
            await change
    await catalog.close()


async def test_rows_in_flight_when_their_topic_was_deleted_are_deleted_too(
    engine: EmbeddedEngine,
) -> None:
    scripted = ScriptedEngine(engine)
    appender = make_appender(scripted)
    catalog = catalog_on(scripted, appender.settled)
    topic = await create_topic(catalog, "t", 1, {})
    log = log_of(catalog, topic, 0)
    scripted.gate.clear()
    stored = asyncio.create_task(append(appender, catalog, topic, b"x"))
    await scripted.next_insert()
    await delete_topic(catalog, topic)
    clean_up = asyncio.create_task(cleaned_up(catalog))
    await asyncio.wait([clean_up], timeout=0.2)
    scripted.gate.set()
    assert await stored == 0
    await clean_up
    assert await stored_values(engine, log) == []
    assert await states(engine) == ["deleted"]
    await appender.close()


async def test_rows_that_could_not_be_removed_are_removed_after_the_next_start(
    engine: EmbeddedEngine,
) -> None:
    scripted = ScriptedEngine(engine)
    appender = make_appender(scripted)
    catalog = catalog_on(scripted)
    topic = await create_topic(catalog, "t", 1, {})
    log = log_of(catalog, topic, 0)
    await append(appender, catalog, topic, b"x")
    scripted.failing_rows += ["DELETE FROM messages"] * 2
    await delete_topic(catalog, topic)
    for _ in range(2):
        await cleaned_up(catalog)
        assert await states(engine) == ["deleting"]
        assert len(await stored_values(engine, log)) == 1
        catalog = await restarted(scripted)
        assert catalog.all() == []
    await cleaned_up(catalog)
    assert await states(engine) == ["deleted"]
    assert await stored_values(engine, log) == []
    await appender.close()


async def test_a_clean_up_that_failed_is_tried_again_while_the_broker_runs(
    engine: EmbeddedEngine,
) -> None:
    scripted = ScriptedEngine(engine)
    appender = make_appender(engine)
    catalog = catalog_on(scripted)
    topic = await create_topic(catalog, "t", 1, {})
    log = log_of(catalog, topic, 0)
    await append(appender, catalog, topic, b"x")
    scripted.failing_rows.append("DELETE FROM messages")
    await delete_topic(catalog, topic)
    await cleaned_up(catalog)
    assert await states(engine) == ["deleting"]
    await cleaned_up(catalog)
    assert await states(engine) == ["deleted"]
    assert await stored_values(engine, log) == []
    await appender.close()


async def test_rows_are_removed_after_each_deletion_and_again_after_a_failure(
    engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brokerhouse.broker.topics.topic_cleanup._EVERY_S", 0.05)
    scripted = ScriptedEngine(engine)
    catalog = await restarted(scripted)
    cleanup = cleanup_of(catalog)
    cleanup.start()
    for number in range(3):
        topic = await create_topic(catalog, "t", 1, {})
        if number == 2:
            scripted.failing_rows.append("DELETE FROM messages")
        await delete_topic(catalog, topic)
        async with asyncio.timeout(LIMIT_S):
            # The task notes after the row is stored that nothing is left to remove.
            while await states(engine) != ["deleted"] * (number + 1) or catalog.gone:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert not scripted.failing_rows
    await cleanup.close()
    await catalog.close()


async def test_a_clean_up_interrupted_by_a_shutdown_starts_again_at_the_next_start(
    engine: EmbeddedEngine,
) -> None:
    never = asyncio.Event()

    async def never_settled() -> None:
        await never.wait()

    appender = make_appender(engine)
    catalog = catalog_on(engine, never_settled)
    topic = await create_topic(catalog, "t", 1, {})
    log = log_of(catalog, topic, 0)
    await append(appender, catalog, topic, b"x")
    await delete_topic(catalog, topic)
    await catalog.close()
    assert await states(engine) == ["deleting"]
    await cleaned_up(await restarted(engine))
    assert await states(engine) == ["deleted"]
    assert await stored_values(engine, log) == []
    await appender.close()


class KilledEngine:
    """The engine of a broker that is killed at its n-th change: before it is stored, or after."""

    def __init__(self, engine: EmbeddedEngine, changes: int, *, is_stored: bool) -> None:
        self.killed = asyncio.Event()
        self._engine = engine
        self._left = changes
        self._is_stored = is_stored

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def execute(self, sql: str, params: Mapping[str, Parameter] | None = None) -> None:
        self._left -= 1
        if self._left > 0 or self._is_stored:
            await self._engine.execute(sql, params)
        if self._left <= 0:
            self.killed.set()
            await asyncio.Event().wait()


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize("changes", range(1, 7))
async def test_a_kill_between_any_two_changes_leaves_the_topic_as_before_or_after(
    engine: EmbeddedEngine, changes: int, is_stored: bool
) -> None:
    killed = KilledEngine(engine, changes, is_stored=is_stored)
    appender = make_appender(engine)

    async def life() -> None:
        catalog = catalog_on(killed)
        topic = await create_topic(catalog, "t", 1, {})
        await append(appender, catalog, topic, b"x")
        topic = await add_partitions(catalog, topic, 3)
        topic = await catalog.set_configs(topic, LOG_APPEND_TIME)
        await delete_topic(catalog, topic)
        await cleaned_up(catalog)

    before = asyncio.all_tasks()
    living = asyncio.create_task(life())
    await killed.killed.wait()
    for task in asyncio.all_tasks() - before:
        task.cancel()
    await asyncio.wait([living])

    again = await restarted(engine)
    stored = changes if is_stored else changes - 1
    found = [(one.partitions, one.configs) for one in again.all()]
    assert found == {1: [(1, {})], 2: [(3, {})], 3: [(3, LOG_APPEND_TIME)]}.get(stored, [])
    await cleaned_up(again)
    assert await states(engine) == ["live" if found else "deleted"] * min(stored, 1)
    has_record = bool(found) and changes > 1
    assert await engine.rows("SELECT count() FROM messages") == [[int(has_record)]]
    await create_topic(again, "other" if found else "t", 1, {})
    await appender.close()


# --- Starting ---


async def test_after_a_restart_a_log_continues_where_its_rows_end(
    engine: EmbeddedEngine, catalog: TopicCatalog
) -> None:
    appender = make_appender(engine)
    topic = await create_topic(catalog, "t", 3, {})
    await append(appender, catalog, topic, b"a", b"b", b"c")
    again = await restarted(engine)
    log, empty = log_of(again, topic, 0), log_of(again, topic, 1)
    assert (log.log_start_offset, log.high_watermark, log.next_offset) == (0, 3, 3)
    assert (empty.high_watermark, empty.next_offset) == (0, 0)
    assert await append(appender, again, topic, b"d") == 3
    await appender.close()


@pytest.mark.parametrize(("rows", "floor", "end"), [(0, 7, 7), (3, 7, 7), (9, 7, 9)])
async def test_after_a_restart_the_next_offset_is_not_below_its_checkpoint(
    engine: EmbeddedEngine, catalog: TopicCatalog, rows: int, floor: int, end: int
) -> None:
    appender = make_appender(engine)
    topic = await create_topic(catalog, "t", 1, {})
    if rows:
        await append(appender, catalog, topic, *[b"x"] * rows)
    for start, next_offset in ((2, floor), (1, floor - 1)):
        await engine.execute(
            "INSERT INTO partition_checkpoints (* EXCEPT(forgot_producers))"
            " SELECT {id:UUID}, 0, {start:Int64}, {next:Int64}",
            {"id": str(topic.topic_id), "start": start, "next": next_offset},
        )
    log = log_of(await restarted(engine), topic, 0)
    assert (log.log_start_offset, log.next_offset, log.high_watermark) == (2, end, end)
    await appender.close()


async def test_logs_know_the_first_producer_id_given_after_the_start(
    engine: EmbeddedEngine, catalog: TopicCatalog
) -> None:
    await create_topic(catalog, "t", 1, {})
    ids = MemoryRegistry()
    await ids.compare_and_set("next_producer_id", None, "2000")
    again = catalog_on(engine, logs=all_logs(engine, ids))
    await again.refresh()
    topic = again.get("t")
    assert topic is not None
    assert log_of(again, topic, 0).first_fresh_producer_id == 2000


async def test_the_size_of_a_partition_is_that_of_its_keys_and_values(
    engine: EmbeddedEngine, catalog: TopicCatalog
) -> None:
    appender = make_appender(engine)
    topic = await create_topic(catalog, "t", 2, {})
    await append(appender, catalog, topic, b"12345", b"678")
    assert await catalog.size_bytes() == {(topic.topic_id, 0): 8}
    await appender.close()


# --- Everything ---


@pytest.mark.parametrize("seed", seeds(4))
async def test_after_random_changes_a_restart_finds_the_same_topics(
    engine: EmbeddedEngine, seed: int
) -> None:
    rnd = random.Random(seed)
    catalog = catalog_on(engine)
    for _ in range(40):
        known = catalog.all()
        topic = rnd.choice(known) if known else None
        stale = replace(topic, partitions=99, version=77) if topic else None
        kind = rnd.choice(["create", "create", "delete", "partitions", "configs", "restart"])
        if kind == "create":
            name = f"t{rnd.randrange(6)}"
            if catalog.get(name) is None:
                await create_topic(catalog, name, rnd.randrange(1, 5), {})
        elif kind == "restart":
            catalog = await restarted(engine)
            assert catalog.all() == known
        elif stale and kind == "delete":
            await delete_topic(catalog, stale)
        elif stale and topic and kind == "partitions":
            await add_partitions(catalog, stale, topic.partitions + 1)
        elif stale:
            await catalog.set_configs(stale, {"retention.ms": str(rnd.randrange(1000))})
    await cleaned_up(catalog)
    assert (await restarted(engine)).all() == catalog.all()
