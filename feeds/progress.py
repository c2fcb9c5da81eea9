"""The state of a feed in one partition: in the registry, with its history in table_feed_blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import Any, Generic, TypeVar
from uuid import UUID

from brokerhouse.common.clock import wall_ms
from brokerhouse.feeds.blocks import (
    BlockCounts,
    FeedState,
    Offsets,
    Replay,
    begun,
    completed,
    first_state,
    replay_begun,
    replay_completed,
    replay_tried_again,
    state_from_text,
    taken_over,
    tried_again,
)
from brokerhouse.feeds.definition import FeedDefinition
from brokerhouse.feeds.writer import FeedSource
from brokerhouse.storage.blocks import (
    DATETIME64_MS,
    INT32,
    INT64,
    STRING,
    UINT32,
    UINT64,
    UUIDS,
    Table,
)
from brokerhouse.storage.registry import Registry, Versioned
from brokerhouse.storage.row_lane import RowLane, TableRows

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
Done = TypeVar("Done")


class Fenced(Exception):
    """Another feeder has taken over this partition."""


def state_key(feed_id: str, topic_id: UUID | str, partition: int) -> str:
    """The key of a state in the registry."""
    return f"feed/{feed_id}/{topic_id}/{partition}"


async def first_offset(registry: Registry, feed_id: str, source: FeedSource) -> int | None:
    """Where a feed has begun in a partition; None if it has not. Raises `EngineError`."""
    stored = await registry.get(state_key(feed_id, source.topic_id, source.partition))
    return None if stored is None else state_from_text(stored.value).reference


class FeedChanges(ABC, Generic[Done]):
    """One state, and its changes. Each raises `Fenced`, and what the registry raises.

    After the latter it is unknown whether the state has changed. `Done`: what a change returns,
    which is nothing where the registry blocks (spark_jobs/feed_state.py), or is awaited.
    """

    def __init__(self, feed: str, feed_id: str, source: FeedSource, feeder: str) -> None:
        """`feed`: its name. `feeder`: who changes the state."""
        self._feed = feed
        self._feed_id = feed_id
        self._source = source
        self._feeder = feeder
        self.key = state_key(feed_id, source.topic_id, source.partition)
        self._stored: Versioned | None = None

    @property
    def state(self) -> FeedState:
        assert self._stored is not None, "not open"
        return state_from_text(self._stored.value)

    def begin(self, offsets: Offsets, shard: str = "") -> Done:
        """BEFORE: a block is to be inserted on this shard."""
        return self._change(begun(self.state, offsets, shard))

    def try_again(self) -> Done:
        """The block gets another token."""
        return self._change(tried_again(self.state))

    def complete(self, counted: BlockCounts) -> Done:
        """AFTER: all rows of the block are stored."""
        return self._change(completed(self.state, counted))

    def begin_replay(self, replay: Replay) -> Done:
        """What fits of these dead letters is to be inserted."""
        return self._change(replay_begun(self.state, replay))

    def try_replay_again(self) -> Done:
        """The replay gets another token."""
        return self._change(replay_tried_again(self.state))

    def complete_replay(self) -> Done:
        """All rows of the replay are stored, and its dead letters say so."""
        return self._change(replay_completed(self.state))

    @abstractmethod
    def _change(self, state: FeedState) -> Done: ...

    def _changed(self, text: str) -> None:
        """This is stored now."""
        self._stored = Versioned(text, self._stored.version + 1 if self._stored else 1)

    def _fenced(self) -> Fenced:
        where = f"partition {self._source.partition} of topic {self._source.topic}"
        return Fenced(f"another run of the feed {self._feed} has taken over {where}")

    def _history_row(self) -> dict[str, Any]:
        """The row of `table_feed_blocks` that tells the stored state; a version that is there
        already is replaced.
        """
        state, stored = self.state, self._stored
        assert stored is not None, "not open"
        block = state.offsets
        return {
            "feed": self._feed,
            "feed_id": UUID(self._feed_id),
            "topic": self._source.topic,
            "topic_id": self._source.topic_id,
            "partition": self._source.partition,
            "version": state.versions_before + stored.version,
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


class FeedProgress(FeedChanges[Awaitable[None]]):
    """In a process that feeds. Everything raises `EngineError`; after that, `open` again."""

    def __init__(
        self,
        registry: Registry,
        rows: RowLane,
        feed: FeedDefinition,
        source: FeedSource,
        feeder: str,
    ) -> None:
        super().__init__(feed.name, feed.feed_id, source, feeder)
        self._registry = registry
        self._rows = rows

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

    async def check(self) -> None:
        """Raises `Fenced` if the state is another one by now."""
        if await self._registry.get(self.key) != self._stored:
            raise self._fenced()

    async def _change(self, state: FeedState) -> None:
        text = state.as_text()
        if not await self._registry.compare_and_set(self.key, self._stored, text):
            raise self._fenced()
        self._changed(text)
        await self._note()

    async def _note(self) -> None:
        """Write the state into the history."""
        row = self._history_row()
        values = tuple(row[name] for name, _ in FEED_BLOCKS.columns)
        await self._rows.store(TableRows(FEED_BLOCKS, [values]))
