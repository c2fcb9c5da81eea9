"""Where topics are stored: `TopicStore`, and `TopicTable`, the store of a single broker.

A single broker has its topics in `topic_versions`, where SQL reads them. A cluster has them in
Keeper (broker/cluster/topic_registry.py), and a copy in `topic_versions` of every shard. What it
means to create, change and delete a topic is the same with both: broker/topics/catalog.py.

What must hold: a change is stored as a whole or not at all. A deleted topic stays in the store,
marked as deleted, until its rows are removed (broker/topics/topic_cleanup.py).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol
from uuid import UUID

from brokerhouse.broker.log.topic import Topic
from brokerhouse.broker.settings.config import Settings
from brokerhouse.broker.settings.effective_configs import effective
from brokerhouse.protocol.errors import KafkaError
from brokerhouse.sql.queries import query
from brokerhouse.storage.disk_reserve import NOT_ENOUGH_SPACE, DiskReserve
from brokerhouse.storage.engine import Engine, EngineError

TopicState = Literal["live", "deleting", "deleted"]
"""Of a row in `topic_versions`: `deleting` until the rows of the topic are removed."""


class ChangedElsewhere(Exception):
    """Another broker changed the topic meanwhile: read it again, and decide again."""


Refusal = KafkaError | EngineError | ChangedElsewhere
Refusals = dict[UUID, Refusal]
"""Why topics are not stored, by id."""


@dataclass(frozen=True, slots=True)
class TopicShard:
    """A shard that may have rows of topics, and what this broker runs there."""

    engine: Engine
    settled: Callable[[], Awaitable[None]]
    """Waits for the blocks that are being stored now."""
    forget_topic: Callable[[str, UUID], Awaitable[None]]
    """Forgets the offsets that groups committed to a deleted topic. Raises `EngineError`."""
    is_away: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True)
class StoredTopics:
    """All topics as they were read."""

    live: Mapping[str, Topic]
    names: Collection[str]
    """Of the topics that exist, also of those that cannot be parsed."""
    deleted: Collection[str]
    """Ids of topics whose rows are to be removed."""


class TopicStore(Protocol):
    """Every call raises `EngineError` if there is no answer."""

    late_max_ms: int
    """For how long a topic that another broker has created may be unknown here; 0 if no other
    broker changes topics."""

    async def version(self) -> int:
        """A number that grows when topics have changed."""

    async def read(self) -> StoredTopics: ...

    async def create(self, topics: Sequence[Topic]) -> Refusals:
        """Store new topics in as few changes as possible.

        Refuses those whose names another broker has taken meanwhile with `TopicAlreadyExists`.
        """

    async def add_partitions(self, topics: Sequence[Topic]) -> Refusals:
        """Store topics that have more partitions now."""

    async def set_configs(self, topics: Sequence[Topic]) -> Refusals:
        """Store topics that have other configs now."""

    async def delete(self, topics: Sequence[Topic]) -> Refusals:
        """Mark topics as deleted. From then on their names are free."""

    async def announce(self, topics: Sequence[Topic], state: TopicState) -> int:
        """These topics were stored: tell the other brokers, and SQL. Returns the new version."""

    async def deleted(self) -> Sequence[Topic]:
        """The topics whose rows are to be removed."""

    async def announce_deleted(self) -> int:
        """Returns a version: a broker that has read it knows every topic deleted until now."""

    async def forget(self, topics: Sequence[Topic]) -> None:
        """The rows of these deleted topics are removed: the store needs them no more."""


def after(topics: Sequence[Topic]) -> list[Topic]:
    """The next versions of these topics."""
    return [replace(topic, version=topic.version + 1) for topic in topics]


async def store_versions(engine: Engine, topics: Sequence[Topic], state: TopicState) -> None:
    """Write what topics are now into `topic_versions`, atomically. Raises `EngineError`."""
    await engine.execute(
        query("store_topics"),
        {
            "topic_ids": [str(topic.topic_id) for topic in topics],
            "versions": [str(topic.version) for topic in topics],
            "names": [topic.name for topic in topics],
            "partitions": [str(topic.partitions) for topic in topics],
            "configs": [json.dumps(dict(topic.configs)) for topic in topics],
            "state": state,
        },
    )


class TopicTable:
    """`TopicStore` of a broker that nobody shares it with: the rows of `topic_versions`."""

    late_max_ms = 0

    def __init__(
        self, engine: Engine, settings: Settings, reserve: DiskReserve | None = None
    ) -> None:
        """`reserve`: of the engine's disk; it is used to delete topics."""
        self._engine = engine
        self._settings = settings
        self._reserve = reserve
        self._version = 1
        self._deleted: dict[UUID, Topic] = {}

    async def version(self) -> int:
        return self._version

    async def read(self) -> StoredTopics:
        live: dict[str, Topic] = {}
        deleted: dict[UUID, Topic] = {}
        for name, topic_text, partitions, configs, version, state in await self._engine.rows(
            "SELECT name, topic_id, partitions, configs, version, state FROM topic_versions FINAL"
            " WHERE state != 'deleted'"
        ):
            topic_id, config = UUID(topic_text), effective(configs, self._settings)
            topic = Topic(name, topic_id, partitions, configs, config, version)
            if state == "live":
                live[name] = topic
            else:
                deleted[topic_id] = topic
        self._deleted = deleted
        return StoredTopics(live, live.keys(), {str(topic_id) for topic_id in deleted})

    async def create(self, topics: Sequence[Topic]) -> Refusals:
        if self._reserve is not None:
            self._reserve.check()
        return await self._store(topics, "live")

    async def add_partitions(self, topics: Sequence[Topic]) -> Refusals:
        return await self._store(topics, "live")

    async def set_configs(self, topics: Sequence[Topic]) -> Refusals:
        self._use_reserve()  # a shorter retention deletes records
        return await self._store(topics, "live")

    async def delete(self, topics: Sequence[Topic]) -> Refusals:
        refused = await self._store(topics, "deleting")
        self._deleted |= {one.topic_id: one for one in topics if one.topic_id not in refused}
        return refused

    async def announce(self, topics: Sequence[Topic], state: TopicState) -> int:
        self._version += 1
        return self._version

    async def deleted(self) -> Sequence[Topic]:
        return list(self._deleted.values())

    async def announce_deleted(self) -> int:
        return self._version

    async def forget(self, topics: Sequence[Topic]) -> None:
        await self._store_together(after(topics), "deleted")
        for topic in topics:
            self._deleted.pop(topic.topic_id, None)

    def _use_reserve(self) -> None:
        if self._reserve is not None:
            self._reserve.release()

    async def _store(self, topics: Sequence[Topic], state: TopicState) -> Refusals:
        try:
            await self._store_together(topics, state)
        except EngineError as error:
            if len(topics) == 1:
                return {topics[0].topic_id: error}
        else:
            return {}
        # One of them may be the reason. After two refusals in a row it is not.
        refused: Refusals = {}
        left = list(topics)
        in_a_row = 0
        while left:
            topic = left.pop(0)
            try:
                await self._store_together([topic], state)
            except EngineError as error:
                refused[topic.topic_id] = error
                in_a_row += 1
                if in_a_row == 2:
                    refused |= {one.topic_id: error for one in left}
                    break
            else:
                in_a_row = 0
        return refused

    async def _store_together(self, topics: Sequence[Topic], state: TopicState) -> None:
        if state != "live":
            self._use_reserve()
        try:
            await store_versions(self._engine, topics, state)
        except EngineError as error:
            if self._reserve is not None and error.code == NOT_ENOUGH_SPACE:
                raise self._reserve.is_full() from error
            raise
