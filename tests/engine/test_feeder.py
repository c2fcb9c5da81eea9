"""Feeders of one partition in a real engine: fenced, paused, dead at any step."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from brokerhouse.feeds.blocks import Offsets, Phase
from brokerhouse.feeds.decoding.client import ValueDecoder
from brokerhouse.feeds.definition import FeedDefinition
from brokerhouse.feeds.feeder import PartitionFeeder
from brokerhouse.feeds.progress import FeedProgress, Fenced
from brokerhouse.feeds.writer import BlockWriter
from brokerhouse.storage.embedded import EmbeddedEngine, EngineSession
from brokerhouse.storage.engine import EngineError
from brokerhouse.storage.registry import TableRegistry
from brokerhouse.storage.row_lane import RowLane
from tests.support.feed_tables import BLOCK, FEED, SOURCE, FeedTables, OneShard
from tests.support.seeds import seeds


class Feeders:
    """Any number of feeders that believe that they own the partition."""

    def __init__(self, engine: EmbeddedEngine, tables: FeedTables, tmp_path: Path) -> None:
        self.engine = engine
        self.tables = tables
        self.registry = TableRegistry(engine)
        self.rows = RowLane(engine, 0, uuid4())
        self.rows.start()
        self._tmp_path = tmp_path
        self._sessions: list[EngineSession] = []

    async def open(
        self, name: str, feed: FeedDefinition = FEED
    ) -> tuple[PartitionFeeder, FeedProgress]:
        session = self.engine.session(name)
        self._sessions.append(session)
        path = str(self._tmp_path / f"{name}.lines")
        progress = FeedProgress(self.registry, self.rows, feed, SOURCE, name)
        await progress.open(0)
        writer = BlockWriter(session, path, ValueDecoder(), self.tables.tables)
        return PartitionFeeder(feed, SOURCE, progress, OneShard(writer)), progress

    async def close(self) -> None:
        await self.rows.close()
        for session in self._sessions:
            await session.close()


@pytest.fixture
async def feeders(engine: EmbeddedEngine, tmp_path: Path) -> AsyncIterator[Feeders]:
    tables = FeedTables(engine, tmp_path)
    await tables.make("id UInt64")
    made = Feeders(engine, tables, tmp_path)
    yield made
    await made.close()
    await tables.session.close()


async def produce(feeders: Feeders, count: int) -> int:
    offsets = await feeders.tables.produce(*[f'{{"id": {n}}}' for n in range(count)])
    return offsets.end


async def test_an_earlier_feeder_is_fenced_at_its_next_change(feeders: Feeders) -> None:
    end = await produce(feeders, 4)
    one, _ = await feeders.open("one")
    await one.step(2)
    two, _ = await feeders.open("two")
    with pytest.raises(Fenced):
        await one.step(end)
    await two.step(end)

    assert await feeders.tables.rows() == [[n] for n in range(end)]


async def test_a_feeder_that_slept_during_a_block_stores_no_record_twice(feeders: Feeders) -> None:
    """It had written its intention; another one has taken over and gone on since."""
    end = await produce(feeders, 6)
    one, progress = await feeders.open("one")
    await progress.begin(Offsets(0, 3))
    two, _ = await feeders.open("two")
    for _ in range(3):
        await two.step(end)
    with pytest.raises(Fenced):
        await one.step(end)  # wakes up, inserts its block, and cannot complete it

    assert await feeders.tables.rows() == [[n] for n in range(end)]


async def test_a_feeder_that_slept_removes_no_rows_of_its_successor_after_a_change_of_the_table(
    feeders: Feeders,
) -> None:
    """The table has changed since, so that its block would have fewer rows now."""
    await feeders.tables.make("id UInt64")
    offsets = await feeders.tables.produce('{"id": 1}', '{"id": 300}')
    one, progress = await feeders.open("one")
    await progress.begin(offsets)
    two, _ = await feeders.open("two")
    await two.step(offsets.end)
    await feeders.engine.execute(
        "ALTER TABLE shop.orders ADD COLUMN n UInt8 DEFAULT 0 SETTINGS mutations_sync = 2"
    )
    await feeders.engine.execute("ALTER TABLE shop.orders RENAME COLUMN id TO old")
    await feeders.engine.execute("ALTER TABLE shop.orders ADD COLUMN id UInt8 DEFAULT old")
    with pytest.raises(Fenced):
        await one.step(offsets.end)

    assert await feeders.tables.rows("old") == [[1], [300]]


async def test_rows_of_a_token_that_was_given_up_are_removed_by_the_next_feeder(
    feeders: Feeders,
) -> None:
    """The one before was killed between giving the token up and removing what it had stored."""
    offsets = await feeders.tables.produce('{"id": 1}', '{"id": 2}')
    one, progress = await feeders.open("one")
    await one.step(offsets.end)
    state = progress.state
    text = replace(state, phase=Phase.BEFORE, attempt=1).as_text()
    held = await feeders.registry.get(progress.key)
    assert await feeders.registry.compare_and_set(progress.key, held, text)
    two, progress = await feeders.open("two")
    await two.step(offsets.end)

    assert await feeders.tables.rows() == [[1], [2]]
    assert await feeders.tables.rows("DISTINCT endsWith(_block, '/1')") == [[True]]


@pytest.mark.test_all
async def test_feeders_that_feed_at_the_same_time_store_each_record_once(
    feeders: Feeders,
) -> None:
    """Two tasks, each of which takes the partition over whenever it finds itself fenced."""
    chance = random.Random(5)
    end = await produce(feeders, 24)
    names = itertools.count()
    fenced = 0

    async def feed() -> None:
        nonlocal fenced
        while True:
            try:
                feeder, progress = await feeders.open(f"at-once-{next(names)}")
                while progress.state.next_offset < end or progress.state.phase is Phase.BEFORE:
                    await feeder.step(min(end, progress.state.next_offset + chance.randint(1, 9)))
            except Fenced:
                fenced += 1
            else:
                return

    await asyncio.gather(feed(), feed())
    last, progress = await feeders.open("last")
    await last.step(end)

    assert await feeders.tables.rows() == [[n] for n in range(end)]
    assert progress.state.total.rows == end
    assert fenced > 0


async def test_a_block_whose_token_was_used_without_its_rows_gets_another_token(
    feeders: Feeders,
) -> None:
    end = await produce(feeders, 3)
    one, progress = await feeders.open("one")
    await one.step(end)
    # As if the server had been killed after it had noted the token, and before the rows were there.
    await feeders.engine.execute("ALTER TABLE shop.orders DELETE WHERE 1 SETTINGS mutations_sync=2")
    state = progress.state
    text = state.as_text().replace('"after"', '"before"')
    held = await feeders.registry.get(progress.key)
    assert await feeders.registry.compare_and_set(progress.key, held, text)
    two, progress = await feeders.open("two")
    await two.step(end)

    assert await feeders.tables.rows() == [[n] for n in range(end)]
    assert (progress.state.attempt, progress.state.phase) == (1, Phase.AFTER)


async def test_a_table_that_merges_rows_at_once_is_filled(feeders: Feeders) -> None:
    """It never has all rows of a block, so their number says nothing."""
    await feeders.engine.execute("DROP TABLE shop.orders SYNC")
    await feeders.engine.execute(
        f"CREATE TABLE shop.orders (id UInt64, {BLOCK}) ENGINE = ReplacingMergeTree ORDER BY id"
        " SETTINGS non_replicated_deduplication_window = 100"
    )
    offsets = await feeders.tables.produce('{"id": 1}', '{"id": 1}', '{"id": 2}')
    _, progress = await feeders.open("one")
    await progress.begin(offsets)
    two, progress = await feeders.open("two")
    await two.step(offsets.end)

    assert await feeders.tables.rows("DISTINCT id") == [[1], [2]]
    assert progress.state.phase is Phase.AFTER


async def test_a_block_that_failed_is_repeated_by_the_next_feeder(feeders: Feeders) -> None:
    end = await produce(feeders, 3)
    one, _ = await feeders.open("one")
    await feeders.engine.execute("RENAME TABLE shop.orders TO shop.away")
    with pytest.raises(EngineError, match="there is no table"):
        await one.step(end)
    await feeders.engine.execute("RENAME TABLE shop.away TO shop.orders")
    two, _ = await feeders.open("two")
    await two.step(end)

    assert await feeders.tables.rows() == [[n] for n in range(end)]


async def dead_letters(feeders: Feeders) -> list[int]:
    rows = await feeders.engine.rows(
        "SELECT offset FROM dead_letter_versions FINAL WHERE NOT replayed ORDER BY offset"
    )
    return [offset for (offset,) in rows]


async def killed_at(feeders: Feeders, step: str, doing: Awaitable[object]) -> None:
    """As if a feeder had been killed before this step."""
    with pytest.MonkeyPatch.context() as patch:

        async def dies(*_: object) -> None:
            raise EngineError("killed")

        owner, _, name = step.partition(".")
        patch.setattr({"progress": FeedProgress, "writer": BlockWriter}[owner], name, dies)
        with pytest.raises(EngineError, match="killed"):
            await doing


ASKED = [replace(FEED, replay_asked_ms=2_000_000_000_000 + number) for number in range(3)]


async def test_an_interrupted_block_is_completed_before_dead_letters_are_replayed(
    feeders: Feeders,
) -> None:
    """The fix lets its dead letter fit, and comes before the block is complete."""
    await feeders.engine.execute("ALTER TABLE shop.orders ADD COLUMN items UInt8")
    offsets = await feeders.tables.produce('{"id": 1}', '{"id": 2, "items": 300}', "bad")
    one, _ = await feeders.open("one")
    await killed_at(feeders, "progress.complete", one.step(offsets.end))
    assert await dead_letters(feeders) == [1, 2]
    await feeders.engine.execute("ALTER TABLE shop.orders MODIFY COLUMN items UInt16")

    two, _ = await feeders.open("two", ASKED[0])
    await two.replay()
    await two.step(offsets.end)
    three, _ = await feeders.open("three", ASKED[1])
    await three.replay()

    assert await feeders.tables.rows() == [[1, 0], [2, 300]]
    assert await dead_letters(feeders) == [2]


@pytest.mark.parametrize("step", ["writer._dead_letters", "writer._not_dead_any_more"])
async def test_a_replay_that_was_killed_is_completed_before_another_replay(
    feeders: Feeders, step: str
) -> None:
    await feeders.engine.execute("ALTER TABLE shop.orders ADD COLUMN items UInt8")
    offsets = await feeders.tables.produce('{"id": 1, "items": 300}', "bad", '{"id": 2}')
    one, _ = await feeders.open("one")
    await one.step(offsets.end)
    await feeders.engine.execute("ALTER TABLE shop.orders MODIFY COLUMN items UInt16")
    two, _ = await feeders.open("two", ASKED[0])
    await killed_at(feeders, step, two.replay())

    three, _ = await feeders.open("three", ASKED[1])
    await three.replay()
    assert await feeders.tables.rows() == [[1, 300], [2, 0]]
    assert await dead_letters(feeders) == [1]


async def test_a_replay_that_was_killed_is_completed_before_the_next_block(
    feeders: Feeders,
) -> None:
    await feeders.engine.execute("ALTER TABLE shop.orders ADD COLUMN items UInt8")
    await feeders.tables.produce('{"id": 1, "items": 300}')
    one, _ = await feeders.open("one")
    await one.step(1)
    await feeders.engine.execute("ALTER TABLE shop.orders MODIFY COLUMN items UInt16")
    two, _ = await feeders.open("two", ASKED[0])
    await killed_at(feeders, "progress.complete_replay", two.replay())
    offsets = await feeders.tables.produce('{"id": 2}')

    three, progress = await feeders.open("three")
    await three.step(offsets.end)
    assert progress.state.replay is None
    assert await feeders.tables.rows() == [[1, 300], [2, 0]]


@pytest.mark.parametrize("seed", seeds(3))
async def test_feeders_in_a_random_order_store_each_record_once(
    feeders: Feeders, seed: int
) -> None:
    chance = random.Random(seed)
    end = await produce(feeders, 60)
    open_ones = [await feeders.open("0")]
    for number in range(1, 25):
        feeder, progress = chance.choice(open_ones)
        try:
            if chance.random() < 0.3 and progress.state.phase is Phase.AFTER:
                first = progress.state.next_offset
                if first < end:
                    await progress.begin(Offsets(first, min(end, first + chance.randint(1, 9))))
            else:
                await feeder.step(min(end, progress.state.next_offset + chance.randint(0, 9)))
        except Fenced:
            open_ones.remove((feeder, progress))
        if not open_ones or chance.random() < 0.25:
            open_ones.append(await feeders.open(str(number)))
    last, progress = await feeders.open("last")
    while progress.state.next_offset < end or progress.state.phase is Phase.BEFORE:
        await last.step(end)

    assert await feeders.tables.rows() == [[n] for n in range(end)]
    assert progress.state.total.rows == end


@pytest.mark.parametrize("seed", seeds(3))
async def test_a_table_of_latest_rows_is_right_after_any_repetitions_and_merges(
    feeders: Feeders, seed: int
) -> None:
    chance = random.Random(seed)
    await feeders.tables.make(
        "id UInt64, _offset Int64, _deleted UInt8",
        order_by="id",
        engine="ReplacingMergeTree(_offset, _deleted)",
    )
    changes = [(chance.randrange(8), int(chance.random() < 0.3)) for _ in range(40)]
    end = (
        await feeders.tables.produce(
            *(f'{{"id": {number}, "_deleted": {deleted}}}' for number, deleted in changes)
        )
    ).end
    last, progress = await feeders.open("0")
    number = 0
    while progress.state.next_offset < end or progress.state.phase is Phase.BEFORE:
        first = progress.state.next_offset
        stop = min(end, first + chance.randint(1, 9))
        dies = chance.choice(["", "progress.complete", "writer.take_away", "progress.try_again"])
        if dies:
            with suppress(pytest.fail.Exception):  # it may not come to this step
                await killed_at(feeders, dies, last.step(stop))
            number += 1
            last, progress = await feeders.open(str(number))
        else:
            await last.step(stop)
        if chance.random() < 0.5:
            await feeders.engine.execute("OPTIMIZE TABLE shop.orders FINAL")

    newest = {one: (offset, deleted) for offset, (one, deleted) in enumerate(changes)}
    rows = await feeders.engine.rows("SELECT id, _offset FROM shop.orders FINAL ORDER BY id")
    assert rows == [
        [one, offset] for one, (offset, deleted) in sorted(newest.items()) if not deleted
    ]


async def test_a_feeder_that_slept_before_removing_rows_removes_none_of_its_successor(
    feeders: Feeders,
) -> None:
    """It had found a used token without rows; another one has stored the block meanwhile."""
    end = await produce(feeders, 3)
    _, progress = await feeders.open("one")
    await progress.begin(Offsets(0, end))
    two, progress_of_two = await feeders.open("two")
    await progress_of_two.try_again()
    await two.step(end)
    token = await feeders.engine.rows("SELECT DISTINCT _block FROM shop.orders")
    assert token[0][0].endswith("/1")

    await feeders.tables.writer.take_away(FEED, token[0][0].removesuffix("/1"))

    assert await feeders.tables.rows() == [[n] for n in range(end)]
