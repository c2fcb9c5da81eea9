"""How feeds of a cluster change tables and make feeds: `TableChanges` on every server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from broker.cluster.feed_tables import FeedTables
from coordinator.feeds.definition import (
    FeedDefinition,
    split_name,
    stored_definitions,
    storing_statement,
    with_dropped,
)
from coordinator.feeds.inference import InferredColumn
from coordinator.feeds.tables import local_name, made_like, making
from storage.engine import EngineError
from storage.shards import Shard


class ShardTableChanges:
    def __init__(self, shards: Mapping[str, Shard], tables: FeedTables) -> None:
        self._shards = shards
        self._tables = tables

    async def add_columns(self, feed: FeedDefinition, columns: Sequence[InferredColumn]) -> None:
        await self._tables.add_columns(_on_shards(feed), columns)

    async def feeds(self) -> Mapping[str, FeedDefinition]:
        stored = await asyncio.gather(*map(stored_definitions, self._shards.values()))
        found, _ = with_dropped(stored)
        return {one.name: one for one in found}

    async def has_table(self, feed: FeedDefinition) -> bool:
        return bool(await self._tables.statement_of(_on_shards(feed)))

    async def make_table(self, feed: FeedDefinition, columns: Sequence[InferredColumn]) -> None:
        local = _on_shards(feed)
        replicated = self._tables.is_replicated
        statement = making(local.database, local.table, columns, replicated=replicated)
        await self._tables.make_first(local, statement)

    async def make_table_like(self, feed: FeedDefinition, model: str) -> None:
        """The model is the part of a shard, where there is such a table."""
        local = _on_shards(feed)
        database, table = split_name(model)
        for name in (local_name(table), table):
            one = replace(feed, database=database, table=name)
            if statement := await self._tables.statement_of(one):
                made = made_like(statement, (database, name), (local.database, local.table))
                await self._tables.make_first(local, made)
                return
        raise EngineError(f"there is no table {model} to make {feed.name} like")

    async def prepare_table(self, feed: FeedDefinition) -> None:
        """A feed does so when it begins, on every server."""

    async def add_feed(self, feed: FeedDefinition) -> None:
        """On every shard that answers, one at least."""
        answers = await asyncio.gather(
            *(shard.execute(*storing_statement(feed)) for shard in self._shards.values()),
            return_exceptions=True,
        )
        failures = [one for one in answers if isinstance(one, BaseException)]
        for failure in failures:
            if not isinstance(failure, EngineError) or len(failures) == len(answers):
                raise failure


def _on_shards(feed: FeedDefinition) -> FeedDefinition:
    """With the name that its table has there."""
    return replace(feed, table=local_name(split_name(feed.name)[1]))
