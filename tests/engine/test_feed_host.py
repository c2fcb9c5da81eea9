"""What feeds find on a single broker: one shard, whose slots it serves forever."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from brokerhouse.broker.endpoints import BrokerEndpoint
from brokerhouse.broker.feeds.groups import FeedGroups
from brokerhouse.broker.feeds.host import FeedHost, FeedPartition, FeedSessions, embedded_store
from brokerhouse.broker.slots.groups import SlotGroups
from brokerhouse.broker.slots.leadership import SlotLeadership
from brokerhouse.coordinator.slots import OwnSlots
from brokerhouse.feeds.blocks import Phase
from brokerhouse.feeds.feeder import PartitionFeeder
from brokerhouse.feeds.progress import FeedProgress
from brokerhouse.feeds.tables import ALONE
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import EngineError
from brokerhouse.storage.registry import TableRegistry
from brokerhouse.storage.row_lane import RowLane
from brokerhouse.storage.slot_map import EMBEDDED, Slot
from tests.support.feed_tables import FEED, SOURCE, TOPIC_ID, FeedTables
from tests.support.journal_engine import journal_of


@dataclass(frozen=True, slots=True)
class Named:
    name: str


@dataclass(frozen=True, slots=True)
class Orders:
    """The only partition of the topic."""

    last_stable_offset: int
    topic: Named = Named("orders")
    topic_id: UUID = TOPIC_ID
    partition: int = 0
    log_start_offset: int = 0


class AllPartitions:
    """`FedPartitions` in the slots of a single broker."""

    def __init__(self) -> None:
        self._slots = OwnSlots.alone()

    def of_topics(self, topics: Collection[str]) -> Sequence[FeedPartition]:
        return [Orders(0)]

    def slot_of(self, partition: FeedPartition) -> Slot:
        return self._slots.owned[self._slots.of_partition(partition.topic_id, partition.partition)]


class SingleHost:
    """A host in front of a real engine, and what it feeds."""

    def __init__(self, host: FeedHost, rows: RowLane, tables: FeedTables) -> None:
        self.host = host
        self.tables = tables
        self.sessions = FeedSessions(host, FEED)
        self.progress = FeedProgress(host.registry, rows, FEED, SOURCE, "this broker")

    async def step(self, end: int) -> int:
        """As a feed does: open the state, prepare, and store what is below `end`."""
        await self.progress.open(0)
        await self.sessions.prepare()
        shards = self.sessions.shards_of(Orders(end))
        return await PartitionFeeder(FEED, SOURCE, self.progress, shards).step(end)


@pytest.fixture
async def single(engine: EmbeddedEngine, tmp_path: Path) -> AsyncIterator[SingleHost]:
    tables = FeedTables(engine, tmp_path)
    await tables.make("id UInt64")
    async with journal_of(engine) as journaled:
        rows = RowLane(journaled, 0, uuid4())
        rows.start()
        leadership = SlotLeadership.alone(BrokerEndpoint(1, "localhost", 9092))
        groups = FeedGroups("this broker", SlotGroups(OwnSlots.alone(), {}), leadership)
        host = FeedHost(
            TableRegistry(journaled),
            [embedded_store(journaled, rows)],
            ALONE,
            AllPartitions(),
            groups,
            "",
            tmp_path,
        )
        made = SingleHost(host, rows, tables)
        yield made
        await made.sessions.close()
        await host.close()
        await rows.close()
    await tables.close()


async def test_a_block_is_stored_under_the_name_of_the_only_shard(single: SingleHost) -> None:
    offsets = await single.tables.produce('{"id": 1}', '{"id": 2}')

    assert await single.step(offsets.end) == 0
    assert single.progress.state.shard == EMBEDDED
    assert await single.tables.rows() == [[1], [2]]


async def test_a_block_that_an_earlier_version_began_is_completed(single: SingleHost) -> None:
    """It has stored no name of a shard: there was only one."""
    offsets = await single.tables.produce('{"id": 1}', '{"id": 2}')
    await single.progress.open(0)
    await single.progress.begin(offsets)
    assert single.progress.state.shard == ""
    await single.step(offsets.end)

    assert single.progress.state.phase is Phase.AFTER
    assert await single.tables.rows() == [[1], [2]]


async def test_a_table_that_was_made_again_gets_what_a_feed_needs(single: SingleHost) -> None:
    first = await single.tables.produce('{"id": 1}')
    await single.step(first.end)
    await single.tables.engine.execute("DROP TABLE shop.orders SYNC")
    await single.tables.engine.execute(
        "CREATE TABLE shop.orders (id UInt64) ENGINE = MergeTree ORDER BY id"
    )
    second = await single.tables.produce('{"id": 2}')
    await single.step(second.end)

    assert await single.tables.rows("id, _block != ''") == [[2, True]]


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("DROP TABLE shop.orders SYNC", r"there is no table shop\.orders$"),
        (
            "CREATE OR REPLACE TABLE shop.orders (id UInt64) ENGINE = Memory",
            r"shop\.orders is of engine Memory: a feed needs a MergeTree table",
        ),
    ],
)
async def test_a_table_that_cannot_be_filled_is_an_error(
    single: SingleHost, statement: str, error: str
) -> None:
    await single.tables.engine.execute(statement)
    with pytest.raises(EngineError, match=error):
        await single.sessions.prepare()


async def test_files_of_blocks_are_in_the_data_directory_and_go_with_the_feed(
    single: SingleHost, tmp_path: Path
) -> None:
    offsets = await single.tables.produce('{"id": 1}')
    await single.step(offsets.end)
    names = {path.name for path in (tmp_path / "feeds").iterdir()}
    assert names == {f"{FEED.feed_id}.lines", f"{FEED.feed_id}.lines.values"}
    await single.sessions.close()

    assert list((tmp_path / "feeds").iterdir()) == []
