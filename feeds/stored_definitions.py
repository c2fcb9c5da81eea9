"""The definitions of feeds, as the shards have stored them.

Each change is written where the version before it is. A shard that does not answer is remembered as
it was; the first answer needs all shards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from brokerhouse.feeds.definition import (
    FeedDefinition,
    FeedStatus,
    definitions_of,
    paused_statement,
    storing_statement,
)
from brokerhouse.feeds.tables import filled_table
from brokerhouse.sql.queries import query
from brokerhouse.storage.cluster_sql import ClusterLayout
from brokerhouse.storage.engine import EngineError, Row
from brokerhouse.storage.registry import RegistryServer


class StoredDefinitions:
    """Every method raises `EngineError`."""

    def __init__(self, shards: Mapping[str, RegistryServer], layout: ClusterLayout) -> None:
        self._shards = shards
        self._layout = layout
        self._stored: dict[str, list[Row]] = {}
        self.topics: Collection[str] = ()
        """Those of the feeds that `newest` has found."""

    async def newest(self) -> tuple[list[FeedDefinition], list[str]]:
        """The feeds that are not dropped, and what is wrong with those that cannot work.

        `table` is the one that they fill.
        """
        answers = await asyncio.gather(*map(_stored, self._shards.values()), return_exceptions=True)
        for name, answer in zip(self._shards, answers, strict=True):
            if isinstance(answer, list):
                self._stored[name] = answer
            elif not isinstance(answer, EngineError) or name not in self._stored:
                raise answer
        if failures := _failures_of_all(answers):
            raise failures[0]
        found, wrong = definitions_of(self._stored.values())
        feeds = [one for one in found if one.status is not FeedStatus.DROPPED]
        self.topics = {topic for feed in feeds for topic in feed.topics}
        return [replace(one, table=filled_table(one.table, self._layout)) for one in feeds], wrong

    async def all_by_name(self) -> Mapping[str, FeedDefinition]:
        """Dropped ones, too. Every shard has to answer."""
        found, _ = definitions_of(await asyncio.gather(*map(_stored, self._shards.values())))
        return {one.name: one for one in found}

    async def pause(self, feed: FeedDefinition) -> None:
        """Write a version of the definition that says so."""
        await asyncio.gather(
            *(shard.execute(*paused_statement(feed)) for shard in self._shards.values())
        )

    async def add(self, feed: FeedDefinition) -> None:
        """On every shard that answers, one at least."""
        answers = await asyncio.gather(
            *(shard.execute(*storing_statement(feed)) for shard in self._shards.values()),
            return_exceptions=True,
        )
        for failure in answers:
            if failure is not None and not isinstance(failure, EngineError):
                raise failure
        if failures := _failures_of_all(answers):
            raise failures[0]


async def _stored(shard: RegistryServer) -> list[Row]:
    return await shard.rows(query("feed_definitions"))


def _failures_of_all(answers: Sequence[object]) -> Sequence[EngineError]:
    """What each shard has answered, if none of them has done what was asked."""
    failures = [one for one in answers if isinstance(one, EngineError)]
    return failures if len(failures) == len(answers) else []
