"""Feeds one partition: what the protocol says, done with the engine."""

from __future__ import annotations

from coordinator.feeds.blocks import Counted, Offsets, Phase, plan, token
from coordinator.feeds.definition import FeedDefinition
from coordinator.feeds.progress import FeedProgress
from coordinator.feeds.writer import BlockWriter, FeedSource
from storage.engine import TokenUsed

BLOCK_MAX_RECORDS = 500_000
BLOCK_MAX_BYTES = 64 << 20


class PartitionFeeder:
    """`step` until it is closed: each forms, stores and completes one block at most."""

    def __init__(
        self, feed: FeedDefinition, source: FeedSource, progress: FeedProgress, writer: BlockWriter
    ) -> None:
        self._feed = feed
        self._source = source
        self._progress = progress
        self._writer = writer

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
        state = self._progress.state
        if state.phase is Phase.BEFORE:
            return await self._store(again=True)
        if state.next_offset >= end:
            return 0
        last = min(end, state.next_offset + BLOCK_MAX_RECORDS)
        batch = await self._writer.cut(
            self._source, Offsets(state.next_offset, last), BLOCK_MAX_BYTES
        )
        todo = plan(state, batch).insert
        assert todo is not None, "a batch behind the last block is new"
        await self._progress.begin(todo)
        return await self._store(again=False)

    async def replay(self) -> Counted:
        """Parse the dead letters again that were asked for. Raises `EngineError`."""
        return await self._writer.replay(self._feed, self._source)

    async def _store(self, *, again: bool) -> int:
        while True:
            state = self._progress.state
            assert state.offsets is not None, "a block has begun"
            name = token(
                self._feed.feed_id, str(self._source.topic_id), self._source.partition,
                state.offsets, state.attempt,
            )  # fmt: skip
            try:
                counted = await self._writer.write(
                    self._feed, self._source, state.offsets, name, again=again
                )
            except TokenUsed:
                await self._writer.take_away(self._feed, name)
                await self._progress.try_again()
                again = False  # nobody has used the next token, and a table may merge rows at once
            else:
                await self._progress.complete(counted)
                return counted.dead_letters
