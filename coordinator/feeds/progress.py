"""The state of a feed in one partition: in the registry, with its history in table_feed_blocks."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from common.clock import wall_ms
from coordinator.feeds.blocks import (
    Counted,
    FeedState,
    Offsets,
    Replay,
    begun,
    completed,
    first_state,
    replay_begun,
    replay_completed,
    state_from_text,
    taken_over,
    tried_again,
)
from coordinator.feeds.definition import FeedDefinition
from coordinator.feeds.writer import FeedSource
from storage.blocks import DATETIME64_MS, INT32, INT64, STRING, UINT32, UINT64, UUIDS, Table
from storage.registry import Registry, Versioned
from storage.row_lane import RowLane, TableRows

FEED_BLOCKS = Table(
    "table_feed_blocks",
    (
        ("feed", STRING),
        ("feed_id", UUIDS),
        ("topic", STRING),
        ("topic_id", UUIDS),
        ("partition", INT32),
        ("version", UINT64),
        ("epoch", UINT64),
        ("feeder", STRING),
        ("phase", STRING),
        ("first_offset", INT64),
        ("end_offset", INT64),
        ("attempt", UINT32),
        ("rows", UINT64),
        ("dead_letters", UINT64),
        ("reference_offset", INT64),
        ("total_rows", UINT64),
        ("total_dead_letters", UINT64),
        ("time", DATETIME64_MS),
    ),
)
_NO_BLOCK = -1


class Fenced(Exception):
    """Another feeder has taken over this partition."""


def state_key(feed_id: str, topic_id: UUID | str, partition: int) -> str:
    """The key of a state in the registry."""
    return f"feed/{feed_id}/{topic_id}/{partition}"


def history_row(name: str, feed_id: UUID, source: FeedSource, stored: Versioned) -> dict[str, Any]:
    """The row of `table_feed_blocks` that tells this state of the registry."""
    state = state_from_text(stored.value)
    block = state.offsets
    return {
        "feed": name,
        "feed_id": feed_id,
        "topic": source.topic,
        "topic_id": source.topic_id,
        "partition": source.partition,
        "version": stored.version,
        "epoch": state.epoch,
        "feeder": state.feeder,
        "phase": state.phase.value,
        "first_offset": block.first if block else _NO_BLOCK,
        "end_offset": block.end if block else state.next_offset,
        "attempt": state.attempt,
        "rows": state.counted.rows,
        "dead_letters": state.counted.dead_letters,
        "reference_offset": state.reference,
        "total_rows": state.total.rows,
        "total_dead_letters": state.total.dead_letters,
        "time": wall_ms(),
    }


async def first_offset(registry: Registry, feed_id: str, source: FeedSource) -> int | None:
    """Where a feed has begun in a partition; None if it has not. Raises `EngineError`."""
    stored = await registry.get(state_key(feed_id, source.topic_id, source.partition))
    return None if stored is None else state_from_text(stored.value).reference


class FeedProgress:
    """Reads and changes one state. Every change raises `Fenced`, and `EngineError`.

    After an `EngineError` it is unknown whether the state has changed: `open` again.
    """

    def __init__(
        self,
        registry: Registry,
        rows: RowLane,
        feed: FeedDefinition,
        source: FeedSource,
        feeder: str,
    ) -> None:
        self._registry = registry
        self._rows = rows
        self._feed = feed
        self._source = source
        self._feeder = feeder
        self.key = state_key(feed.feed_id, source.topic_id, source.partition)
        self._stored: Versioned | None = None

    @property
    def state(self) -> FeedState:
        assert self._stored is not None, "not open"
        return state_from_text(self._stored.value)

    async def exists(self) -> bool:
        """Whether the feed has begun in this partition."""
        self._stored = await self._registry.get(self.key)
        return self._stored is not None

    async def open(self, first_offset: int) -> None:
        """Take over, or begin at this offset: from now on other feeders are fenced."""
        if await self.exists():
            await self._note()  # in case the one before could not
            await self._change(taken_over(self.state, self._feeder))
        else:
            await self._change(first_state(self._feeder, first_offset))

    async def begin(self, offsets: Offsets, shard: str = "") -> None:
        """BEFORE: a block is to be inserted on this shard."""
        await self._change(begun(self.state, offsets, shard))

    async def check(self) -> None:
        """Raises `Fenced` if the state is another one by now."""
        if await self._registry.get(self.key) != self._stored:
            raise self._fenced()

    async def try_again(self) -> None:
        """The block gets another token."""
        await self._change(tried_again(self.state))

    async def complete(self, counted: Counted) -> None:
        """AFTER: all rows of the block are stored."""
        await self._change(completed(self.state, counted))

    async def begin_replay(self, replay: Replay) -> None:
        """Dead letters are to be parsed again."""
        await self._change(replay_begun(self.state, replay))

    async def complete_replay(self) -> None:
        """What fits of them is stored, and they say so."""
        await self._change(replay_completed(self.state))

    async def _change(self, state: FeedState) -> None:
        text, expected = state.as_text(), self._stored
        if not await self._registry.compare_and_set(self.key, expected, text):
            raise self._fenced()
        self._stored = Versioned(text, expected.version + 1 if expected else 1)
        await self._note()

    def _fenced(self) -> Fenced:
        return Fenced(f"feed {self._feed.name}, {self._source}: another feeder has taken over")

    async def _note(self) -> None:
        """Write the state into the history; a version that is there already is replaced."""
        assert self._stored is not None, "not open"
        feed_id = UUID(self._feed.feed_id)
        row = history_row(self._feed.name, feed_id, self._source, self._stored)
        values = tuple(row[name] for name, _ in FEED_BLOCKS.columns)
        await self._rows.store(TableRows(FEED_BLOCKS, [values]))
