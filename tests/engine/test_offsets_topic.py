"""The partitions of `__consumer_offsets`: what they hold, what they forget, when they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from brokerhouse.broker.offsets_topic import offsets_log, offsets_topic
from brokerhouse.broker.offsets_topic.offsets_topic import OffsetsTopic
from brokerhouse.broker.settings.config import Settings
from brokerhouse.common.clock import wall_ms
from brokerhouse.coordinator.group_coordinator import GroupCoordinator
from brokerhouse.coordinator.messages import Client, Committer, OffsetCommit
from brokerhouse.coordinator.slots import kafka_partition
from brokerhouse.protocol.errors import NotLeaderOrFollower, UnknownTopicOrPartition
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.row_lane import RowLane
from tests.support.clock import Clock
from tests.support.coordinators import all_groups, coordinator_on
from tests.support.record_batches import Row, decoded
from tests.support.small_tables import make_lane
from tests.support.waiting import until_async

GROUP = "group"
PARTITION = kafka_partition(GROUP)
NOBODY = Committer("", None, -1, Client("c", "/h"))


@pytest.fixture
async def rows(engine: EmbeddedEngine) -> AsyncIterator[RowLane]:
    lane = make_lane(engine)
    yield lane
    await lane.close()


@pytest.fixture
def groups(engine: EmbeddedEngine, rows: RowLane) -> GroupCoordinator:
    return coordinator_on(engine, rows, Clock(wall_ms()))


@pytest.fixture
async def topic(groups: GroupCoordinator) -> AsyncIterator[OffsetsTopic]:
    made = OffsetsTopic(all_groups(groups), Settings())
    yield made
    made.close()


async def commit(groups: GroupCoordinator, *offsets: int, group: str = GROUP) -> None:
    """An offset of each partition."""
    commits = [OffsetCommit("t", UUID(int=1), n, one, 0, "", None) for n, one in enumerate(offsets)]
    await groups.offsets.commit(group, NOBODY, commits)


def records(topic: OffsetsTopic, offset: int = 0) -> list[Row]:
    log = topic.log_of(PARTITION)
    found = log.tail.read(offset, 1 << 30, at_least_one=True)
    assert found is not None
    return [row for batch in found for row in decoded(batch)]


def values(found: list[Row]) -> list[int]:
    return [int.from_bytes(row.value[2:10], "big") for row in found if row.value is not None]


@pytest.mark.parametrize(
    ("group_id", "java_hash"),
    [("", 0), ("hello", 99162322), ("é", 233), ("group", 98629247), ("😀", 1772899)],
)
def test_a_group_has_the_same_partition_of_the_offsets_topic_as_in_kafka(
    group_id: str, java_hash: int
) -> None:
    assert kafka_partition(group_id) == java_hash % 50


async def test_a_partition_begins_with_the_current_offsets_and_then_gets_each_commit(
    groups: GroupCoordinator, topic: OffsetsTopic
) -> None:
    await commit(groups, 1)
    await commit(groups, 2, 20)
    await topic.open(PARTITION)
    assert values(records(topic)) == [2, 20]
    await commit(groups, 3)
    await groups.offsets.delete(GROUP, [("t", 1)])
    found = records(topic)
    assert values(found) == [2, 20, 3]
    assert found[-1].value is None
    assert found[-1].key == found[1].key
    first = topic.log_of(PARTITION).log_start_offset
    assert [row.offset for row in found] == list(range(first, first + 4))
    assert records(topic, first + 2)[-2:] == found[-2:]


async def test_a_partition_has_no_commits_of_groups_of_other_partitions(
    groups: GroupCoordinator, topic: OffsetsTopic
) -> None:
    await topic.open(PARTITION)
    await commit(groups, 1, group="another")
    assert kafka_partition("another") != PARTITION
    assert records(topic) == []
    with pytest.raises(UnknownTopicOrPartition):
        topic.log_of(50)


async def test_compaction_drops_replaced_offsets_and_keeps_every_key(
    groups: GroupCoordinator, topic: OffsetsTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets_log, "_KEPT", 20)
    monkeypatch.setattr(offsets_log, "_PER_BATCH", 2)
    await commit(groups, *range(5))
    await topic.open(PARTITION)
    first = topic.log_of(PARTITION).log_start_offset
    for offset in range(60):
        await commit(groups, offset)
    await until_async(lambda: len(records(topic)) < 45)
    found = records(topic)
    log = topic.log_of(PARTITION)
    assert first < log.log_start_offset == found[0].offset
    assert {row.key for row in found} >= {row.key for row in found[:5]}
    assert len({row.key for row in found}) == 5
    last = {row.key: row for row in found}
    assert sorted(values(list(last.values()))) == [1, 2, 3, 4, 59]
    assert [row.offset for row in found] == list(range(found[0].offset, log.high_watermark))
    assert records(topic, 0) == found, "a fetch of what was dropped reads from the start"


async def test_commits_while_a_partition_is_filled_are_not_hidden_by_older_ones(
    groups: GroupCoordinator, topic: OffsetsTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets_log, "_PER_BATCH", 1)
    await commit(groups, *range(50))
    opening = asyncio.create_task(topic.open(PARTITION))
    await asyncio.sleep(0)
    with pytest.raises(NotLeaderOrFollower):
        topic.log_of(PARTITION)
    await commit(groups, *range(100, 150))
    await opening
    last = {row.key: row for row in records(topic)}
    assert sorted(values(list(last.values()))) == list(range(100, 150))


async def test_filling_a_partition_yields_while_it_skips_many_groups(
    groups: GroupCoordinator, topic: OffsetsTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets_log, "_GROUPS_PER_TURN", 1)
    for number in range(10):
        await commit(groups, 1, group=f"other-{number}")
    opening = asyncio.create_task(topic.open(PARTITION))
    turns = 0
    while not opening.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 10


async def test_an_unread_partition_is_dropped_and_opened_again_with_higher_offsets(
    groups: GroupCoordinator, topic: OffsetsTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets_topic, "_UNREAD_S", 0.05)
    await commit(groups, 1)
    await topic.open(PARTITION)
    log = topic.log_of(PARTITION)
    await commit(groups, 2)
    await until_async(lambda: PARTITION not in topic._logs)
    await topic.open(PARTITION)
    again = topic.log_of(PARTITION)
    assert again is not log
    assert again.log_start_offset >= log.high_watermark
    assert values(records(topic)) == [2]
