"""Feeds one partition: what the protocol says, done with the engine."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Protocol

from brokerhouse.feeds.blocks import BlockCounts, Offsets, Phase, Replay, plan, token
from brokerhouse.feeds.definition import FeedDefinition
from brokerhouse.feeds.progress import FeedProgress
from brokerhouse.feeds.writer import MAX_OFFSET, FeedSource, PartitionWriter
from brokerhouse.storage.engine import TokenUsed

BLOCK_MAX_RECORDS = 500_000
EVERYWHERE = Offsets(0, MAX_OFFSET)


@dataclass(frozen=True, slots=True)
class FeedShard:
    """A shard that has records of a partition: a block's rows go where its records are.

    `end`: from this offset on another shard has them; None: nobody else.
    """

    name: str
    writer: PartitionWriter
    end: int | None = None


class FeedShards(Protocol):
    """The shards of one partition. Everything raises `EngineError`."""

    async def of_offset(self, offset: int) -> FeedShard:
        """The shard of this offset and of those after it."""

    def named(self, name: str) -> FeedShard:
        """The shard of this name; it may have no records of the partition any more."""

    def all(self) -> Collection[FeedShard]:
        """Each shard that may have records of the partition."""


class PartitionFeeder:
    """`step` until it is closed: each forms, stores and completes one block at most."""

    def __init__(
        self, feed: FeedDefinition, source: FeedSource, progress: FeedProgress, shards: FeedShards
    ) -> None:
        self._feed = feed
        self._source = source
        self._progress = progress
        self._shards = shards

    @property
    def next_offset(self) -> int:
        """All records below are in the table, or dead letters."""
        state = self._progress.state
        if state.phase is Phase.BEFORE and state.offsets is not None:
            return state.offsets.first
        return state.next_offset

    async def step(self, end: int) -> int:
        """Feed records below `end`. Returns how many dead letters there were.

        Raises `Fenced` when another feeder has taken over. After an `EngineError` the state has to
        be opened again.
        """
        if self._progress.state.replay is not None:
            await self.replay()
        state = self._progress.state
        if state.phase is Phase.BEFORE:
            return await self._store(again=True)
        if state.next_offset >= end:
            return 0
        shard = await self._shards.of_offset(state.next_offset)
        last = min(end, state.next_offset + BLOCK_MAX_RECORDS, shard.end or end)
        batch = await shard.writer.cut(
            self._source, Offsets(state.next_offset, last), shard.writer.block_max_bytes
        )
        if batch is None:
            return 0
        todo = plan(state, batch).insert
        assert todo is not None, "a batch behind the last block is new"
        await self._progress.begin(todo, shard.name)
        return await self._store(again=False)

    async def replay(self) -> BlockCounts:
        """Parse the dead letters again that were asked for.

        First what a feeder before has begun: a block, whose dead letters may fit by now, and a
        replay, whose rows have tokens by the time when it was asked for. Raises `Fenced` and
        `EngineError`.
        """
        if self._progress.state.phase is Phase.BEFORE:
            await self._store(again=True)
        await self._progress.check()
        counted = BlockCounts()
        if (begun := self._progress.state.replay) is not None:
            counted = await self._replay(begun.asked_ms)
        if await self._has_dead_letters():
            await self._progress.begin_replay(Replay(self._feed.replay_asked_ms, EVERYWHERE))
            counted += await self._replay(self._feed.replay_asked_ms)
        return counted

    async def _replay(self, asked_ms: int) -> BlockCounts:
        feed = replace(self._feed, replay_asked_ms=asked_ms)
        counted = BlockCounts()
        for shard in self._shards.all():
            counted += await shard.writer.replay(feed, self._source)
        await self._progress.complete_replay()
        return counted

    async def _has_dead_letters(self) -> bool:
        for shard in self._shards.all():
            if await shard.writer.has_dead_letters(self._feed, self._source):
                return True
        return False

    async def _store(self, *, again: bool) -> int:
        while True:
            state = self._progress.state
            assert state.offsets is not None, "a block has begun"
            writer = self._shards.named(state.shard).writer
            *earlier, name = (
                token(
                    self._feed.feed_id,
                    str(self._source.topic_id),
                    self._source.partition,
                    state.offsets,
                    attempt,
                )
                for attempt in range(state.attempt + 1)
            )
            try:
                # Behind the change that has given them up: a feeder that is fenced must not remove
                # what its successor has stored.
                for one in earlier:
                    await writer.take_away(self._feed, one)
                counted = await writer.write(
                    self._feed, self._source, state.offsets, name, again=again
                )
            except TokenUsed:
                await self._progress.try_again()
                again = False  # nobody has used the next token, and a table may merge rows at once
            else:
                await self._progress.complete(counted)
                return counted.dead_letters
