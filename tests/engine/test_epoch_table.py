"""A leader stores where its epochs begin before it serves, and the next one knows all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import pytest

from brokerhouse.broker.log import epoch_table
from brokerhouse.broker.log.epoch_table import begin_epochs
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.topic import Topic
from brokerhouse.broker.slots import slot_logs as slot_logs_module
from brokerhouse.protocol.errors import NotLeaderOrFollower
from brokerhouse.storage.engine import Engine, EngineError, Parameter, Row
from tests.support.log_parts import ScriptedEngine, append, log_of, make_topic, plain
from tests.support.one_topic import add_partitions, create_topic
from tests.support.slot_broker import OneBroker
from tests.support.waiting import until_async

Starts = list[tuple[int, int]]


@pytest.fixture
async def broker(scripted: ScriptedEngine) -> AsyncIterator[OneBroker]:
    made = OneBroker(scripted)
    made.host.rows.start()
    made.host.groups.start()
    await made.catalog.refresh()
    yield made
    await made.host.close()
    await made.catalog.close()


def opened(broker: OneBroker, topic: Topic, partition: int = 0) -> PartitionLog:
    return log_of(broker.catalog, topic, partition)


def known(log: PartitionLog) -> Starts:
    return [(one.epoch, one.offset) for one in log.epochs.starts]


async def stored(engine: Engine, topic: Topic) -> dict[int, Starts]:
    """The rows of `leader_epochs`, by partition."""
    found: dict[int, Starts] = {}
    for partition, epoch, start in await engine.rows(
        "SELECT partition, leader_epoch, start_offset FROM leader_epochs FINAL"
        " WHERE topic_id = {id:UUID} ORDER BY partition, leader_epoch",
        {"id": str(topic.topic_id)},
    ):
        found.setdefault(partition, []).append((epoch, start))
    return found


async def write(broker: OneBroker, log: PartitionLog, count: int) -> None:
    assert broker.host.appender is not None
    await append(broker.host.appender, log, plain(*(b"%d" % n for n in range(count))).data)


async def take_over(broker: OneBroker, epoch: int) -> None:
    broker.lose()
    await broker.serve(epoch)


async def written_in(
    broker: OneBroker, epochs: Mapping[int, int], partitions: int = 1
) -> tuple[Topic, PartitionLog]:
    """A topic with so many records of each epoch in its first partition, and its log."""
    topic: Topic | None = None
    for epoch, count in epochs.items():
        await take_over(broker, epoch)
        if topic is None:
            topic = await create_topic(broker.catalog, "t", partitions, {})
        if count:
            await write(broker, opened(broker, topic), count)
    assert topic is not None
    return topic, opened(broker, topic)


async def test_the_next_leader_knows_where_each_epoch_began(
    broker: OneBroker, scripted: ScriptedEngine
) -> None:
    topic, _ = await written_in(broker, {3: 10, 4: 5, 7: 2}, partitions=2)
    await take_over(broker, 9)
    assert known(opened(broker, topic)) == [(3, 0), (4, 10), (7, 15), (9, 17)]
    assert known(opened(broker, topic, 1)) == [(9, 0)]
    assert await stored(scripted, topic) == {0: [(3, 0), (4, 10), (7, 15), (9, 17)], 1: [(9, 0)]}


@pytest.mark.parametrize(
    ("removed", "left"),
    [
        ("offset < 15", "compaction removed all of two epochs"),
        ("offset >= 10 AND offset < 15", "compaction removed all of an epoch between two"),
        ("1", "nothing is left"),
    ],
)
async def test_the_next_leader_knows_all_epochs_although_their_records_were_removed(
    broker: OneBroker, scripted: ScriptedEngine, removed: str, left: str
) -> None:
    topic, log = await written_in(broker, {3: 10, 4: 5, 7: 2})
    row = f"'{topic.topic_id}', 0, 0, {log.high_watermark}"
    await scripted.execute(f"INSERT INTO partition_checkpoints SELECT {row}, false")
    await scripted.execute(f"DELETE FROM messages WHERE topic = 't' AND {removed}")
    await take_over(broker, 8)
    assert known(opened(broker, topic)) == [(3, 0), (4, 10), (7, 15), (8, 17)], left


async def test_the_first_known_epoch_begins_at_the_stored_log_start(
    broker: OneBroker, scripted: ScriptedEngine
) -> None:
    topic, log = await written_in(broker, {3: 10, 4: 5, 7: 2})
    log.begin_at(12)
    assert known(log) == [(4, 12), (7, 15)]
    await scripted.execute(
        f"INSERT INTO partition_checkpoints SELECT '{topic.topic_id}', 0, 12, 17, false"
    )
    await take_over(broker, 8)
    assert known(opened(broker, topic)) == [(4, 12), (7, 15), (8, 17)]


async def test_an_epoch_without_records_is_replaced_and_leaves_no_row(
    broker: OneBroker, scripted: ScriptedEngine
) -> None:
    topic, _ = await written_in(broker, {1: 10, 2: 0, 3: 0, 4: 1, 5: 0})
    assert known(opened(broker, topic)) == [(1, 0), (4, 10), (5, 11)]
    assert await stored(scripted, topic) == {0: [(1, 0), (4, 10), (5, 11)]}


# --- stored before it is served ---


async def test_a_leader_that_cannot_store_its_epoch_does_not_serve(
    broker: OneBroker, scripted: ScriptedEngine
) -> None:
    topic, _ = await written_in(broker, {1: 3})
    broker.lose()
    scripted.faults.append("refused")
    with pytest.raises(EngineError):
        await broker.serve(2)
    assert scripted.tables[-1] == "leader_epochs"
    with pytest.raises(NotLeaderOrFollower):
        opened(broker, topic)
    await broker.serve(2)
    assert known(opened(broker, topic)) == [(1, 0), (2, 3)]


async def test_a_leader_whose_shard_does_not_store_its_epoch_in_time_fails_and_can_try_again(
    broker: OneBroker, scripted: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog of topics is locked meanwhile: other shards must not wait for this one."""
    topic, _ = await written_in(broker, {1: 3})
    broker.lose()
    monkeypatch.setattr(slot_logs_module, "AWAY_AFTER_MS", 20)
    scripted.gate.clear()
    with pytest.raises(EngineError, match="shard one does not answer"):
        await broker.serve(2)
    with pytest.raises(NotLeaderOrFollower):
        opened(broker, topic)
    scripted.gate.set()
    monkeypatch.undo()
    await broker.serve(2)
    assert await stored(scripted, topic) == {0: [(1, 0), (2, 3)]}


async def test_epochs_of_new_partitions_are_stored_in_one_block_before_they_are_led(
    broker: OneBroker, scripted: ScriptedEngine
) -> None:
    await broker.serve(5)
    topic = await create_topic(broker.catalog, "t", 2, {})
    assert await stored(scripted, topic) == {0: [(5, 0)], 1: [(5, 0)]}
    before = len(scripted.tables)
    topic = await add_partitions(broker.catalog, topic, 4)
    assert scripted.tables[before:] == ["leader_epochs"], "one block for all of them"
    assert await stored(scripted, topic) == {number: [(5, 0)] for number in range(4)}


async def test_new_partitions_whose_epoch_cannot_be_stored_are_opened_later(
    broker: OneBroker, scripted: ScriptedEngine
) -> None:
    await broker.serve(5)
    scripted.faults.append("refused")
    topic = await create_topic(broker.catalog, "t", 1, {})
    with pytest.raises(NotLeaderOrFollower):
        opened(broker, topic)

    async def is_open() -> bool:
        assert broker.catalog.is_behind(broker.catalog.version)
        await broker.catalog.refresh()
        return broker.logs.find(topic.topic_id, 0) is not None

    await until_async(is_open, "the log is opened at the next look")
    assert await stored(scripted, topic) == {0: [(5, 0)]}


# --- logs from before the table existed ---


async def test_epochs_of_records_written_before_the_table_existed_are_stored_once(
    broker: OneBroker, scripted: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, _ = await written_in(broker, {3: 10, 4: 5, 7: 2}, partitions=2)
    await scripted.execute("TRUNCATE TABLE leader_epochs")
    await take_over(broker, 8)
    assert known(opened(broker, topic)) == [(3, 0), (4, 10), (7, 15), (8, 17)]
    assert await stored(scripted, topic) == {0: [(3, 0), (4, 10), (7, 15), (8, 17)], 1: [(8, 0)]}

    async def never(*_: object) -> None:
        raise AssertionError("the log is read again")

    monkeypatch.setattr(epoch_table, "_of_records", never)
    await take_over(broker, 9)
    assert known(opened(broker, topic)) == [(3, 0), (4, 10), (7, 15), (9, 17)]


async def test_a_log_that_is_too_large_to_be_read_has_only_the_current_epoch(
    broker: OneBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, _ = await written_in(broker, {3: 10, 4: 5})
    await broker.host.engine.execute("TRUNCATE TABLE leader_epochs")
    monkeypatch.setattr(epoch_table, "_RECORDS_READ", 14)
    await take_over(broker, 7)
    log = opened(broker, topic)
    assert known(log) == [(7, 15)]
    assert log.epochs.end_of(3, 15) == (3, 15)


# --- slots that were moved ---


class TableOf:
    """An engine that has these rows of `leader_epochs` and no records."""

    def __init__(self, topic: Topic, starts: Starts) -> None:
        columns = zip(*[(0, *start) for start in starts], strict=True)
        self._rows: list[Row] = [[str(topic.topic_id), *map(list, columns)]]

    async def rows(self, sql: str, params: Mapping[str, Parameter] | None = None) -> list[Row]:
        return self._rows if "leader_epochs" in sql else [[0]]


async def test_the_shard_to_which_a_slot_was_moved_gets_the_epochs_of_the_other_shards() -> None:
    topic = make_topic()
    log = PartitionLog(topic, 0, 4, 30, 0, leader_epoch=9)
    shards = [[(1, 0), (2, 10)], [(5, 20)], [(2, 10), (7, 25)]]
    engines = [cast(Any, TableOf(topic, starts)) for starts in shards]
    lacking = await begin_epochs(engines, [log])
    assert known(log) == [(1, 4), (2, 10), (5, 20), (7, 25), (9, 30)]
    assert [row[2:] for row in lacking.rows] == [(1, 0), (5, 20), (9, 30)]
