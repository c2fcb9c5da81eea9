"""The catalog of topics: it creates, changes and deletes them.

Every change is stored before it is visible here. Changes are made one at a time; reading needs no
lock. A single broker and a cluster differ in where topics are stored: broker/topics/topic_store.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from uuid import UUID, uuid4

from brokerhouse.broker.log.open_logs import OpenLogs, Partition
from brokerhouse.broker.log.topic import Topic
from brokerhouse.broker.settings.config import Settings
from brokerhouse.broker.settings.effective_configs import effective
from brokerhouse.broker.topics import topic_names
from brokerhouse.broker.topics.known_topics import collision
from brokerhouse.broker.topics.topic_store import (
    ChangedElsewhere,
    Refusals,
    TopicShard,
    TopicState,
    TopicStore,
    after,
)
from brokerhouse.broker.topics.watched_topics import WatchedTopics
from brokerhouse.common.counted_lines import counted
from brokerhouse.common.tasks import in_turns
from brokerhouse.protocol.errors import (
    InvalidPartitions,
    KafkaError,
    KafkaStorageError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from brokerhouse.storage.engine import EngineError

log = logging.getLogger(__name__)

_ATTEMPTS = 10
_PER_TURN = 100
"""New topics that are prepared before other clients have their turn."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. Its name and its configs have been checked."""

    name: str
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)


MAX_NEW_PARTITIONS = 10_000
"""How many partitions one change may create: Kafka's limit."""

Outcome = Topic | KafkaError | EngineError
"""What became of a `NewTopic`."""

P = ParamSpec("P")
T = TypeVar("T")


def _whole(
    change: Callable[Concatenate[TopicCatalog, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[TopicCatalog, P], Coroutine[Any, Any, T]]:
    """A change that has begun is completed, even if its client disconnects meanwhile.

    Otherwise a topic could be deleted in the table and still accept records.
    """

    @wraps(change)
    async def run(self: TopicCatalog, /, *args: P.args, **kwargs: P.kwargs) -> T:
        task = asyncio.create_task(self._decided(lambda: change(self, *args, **kwargs)))
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        task.add_done_callback(_noted)
        return await asyncio.shield(task)

    return run


def _noted(task: asyncio.Task[Any]) -> None:
    """Log the error of a change: its client may have disconnected."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.debug("a topic was not changed: %s", error)


class TopicCatalog(WatchedTopics):
    """Every topic, and the changes that clients make."""

    def __init__(
        self, store: TopicStore, settings: Settings, logs: OpenLogs, shards: Collection[TopicShard]
    ) -> None:
        super().__init__(store, settings, logs, shards)
        self._changes: set[asyncio.Task[Any]] = set()

    @_whole
    async def create_all(self, wanted: Sequence[NewTopic]) -> dict[str, Outcome]:
        """Create topics in one change; each succeeds or fails by itself. Names occur once.

        Errors: those of `check_free`, and `EngineError` where ClickHouse refused it.
        """
        outcomes: dict[str, Outcome] = {}
        async with self._changing():
            new: dict[str, Topic] = {}
            alike: dict[str, str] = {}
            async for one in in_turns(wanted, _PER_TURN):
                key = topic_names.collision_key(one.name) or one.name
                try:
                    self.check_free(one.name)
                    if alike.setdefault(key, one.name) != one.name:
                        raise collision(one.name, alike[key])
                except KafkaError as error:
                    outcomes[one.name] = error
                else:
                    new[one.name] = self._topic(one.name, uuid4(), one.partitions, one.configs, 1)
            refused = await self._store_all(self._store.create, list(new.values()))
            made = [topic for topic in new.values() if topic.topic_id not in refused]
            await self._open_new((one, number) for one in made for number in range(one.partitions))
            async for topic in in_turns(made, _PER_TURN):
                self._publish(topic)
        return outcomes | {topic.name: refused.get(topic.topic_id, topic) for topic in new.values()}

    @_whole
    async def delete_all(self, topics: Sequence[Topic]) -> dict[UUID, KafkaError | EngineError]:
        """Delete topics, in one change; their rows are removed later.

        Returns why some are not deleted, by id: they are unknown, or ClickHouse refused it.
        """
        async with self._changing():
            known, refused = self._all_current(topics)
            refused |= await self._store_all(self._store.delete, after(known), "deleting")
            for topic in known:
                if topic.topic_id not in refused:
                    self.gone.add(str(topic.topic_id))
                    self._drop(topic)
        await self.settling.offsets_forgotten()
        return refused

    @_whole
    async def add_partitions_to_all(
        self, wanted: Sequence[tuple[Topic, int]]
    ) -> dict[UUID, Outcome]:
        """Give topics so many partitions, in one change; each succeeds or fails by itself.

        Errors, by id: `InvalidPartitions` unless that is more than there are now,
        `UnknownTopicOrPartition`, and `EngineError` where ClickHouse refused it.
        """
        totals = {topic.topic_id: total for topic, total in wanted}
        async with self._changing():
            known, unknown = self._all_current([topic for topic, _ in wanted])
            outcomes: dict[UUID, Outcome] = {**unknown}
            grown: list[tuple[Topic, Topic]] = []
            for topic in known:
                total = totals[topic.topic_id]
                if total > topic.partitions:
                    changed = replace(topic, partitions=total, version=topic.version + 1)
                    grown.append((topic, changed))
                else:
                    outcomes[topic.topic_id] = InvalidPartitions(
                        f"The topic {topic.name!r} has {topic.partitions} partitions already; "
                        f"{total} is not more."
                    )
            refused = await self._store_all(
                self._store.add_partitions, [changed for _, changed in grown]
            )
            outcomes |= {one.topic_id: refused.get(one.topic_id, one) for _, one in grown}
            made = [(topic, now) for topic, now in grown if now.topic_id not in refused]
            await self._open_new(
                (now, number)
                for topic, now in made
                for number in range(topic.partitions, now.partitions)
            )
            for _, changed in made:
                self._publish(changed)
        return outcomes

    @_whole
    async def set_configs(self, topic: Topic, configs: Mapping[str, str]) -> Topic:
        """Replace all configs set on the topic. They have been checked."""
        async with self._changing():
            topic = self._current(topic)
            changed = self._topic(
                topic.name, topic.topic_id, topic.partitions, configs, topic.version + 1
            )
            refused = await self._store_all(self._store.set_configs, [changed])
            for error in refused.values():
                raise error
            self._publish(changed)
            return changed

    async def close(self) -> None:
        """Wait for running changes."""
        await asyncio.gather(*self._changes, return_exceptions=True)
        await self.settling.close()

    @asynccontextmanager
    async def _changing(self) -> AsyncIterator[None]:
        """Lock the catalog for a change, of the topics as they are now. Raises `EngineError`."""
        async with self._lock:
            await self._look()
            yield
            self.settling.reach(self.version)

    async def _decided(self, change: Callable[[], Awaitable[T]]) -> T:
        for _ in range(_ATTEMPTS):
            try:
                return await change()
            except ChangedElsewhere as error:
                log.info("a topic is changed by two brokers at once: %s", error, extra=counted())
        raise KafkaStorageError("The topic is being changed by other brokers.")

    async def _store_all(
        self,
        change: Callable[[Sequence[Topic]], Awaitable[Refusals]],
        topics: Sequence[Topic],
        state: TopicState = "live",
    ) -> dict[UUID, KafkaError | EngineError]:
        """Store topics, and tell the others; returns why some are not stored, by id.

        A topic that another broker is changing is among these; if it is the only one, raises
        `ChangedElsewhere`, and the whole change is tried again.
        """
        if not topics:
            return {}
        try:
            refused = await change(topics)
            stored = [topic for topic in topics if topic.topic_id not in refused]
            if stored:
                await self._announce(stored, state)
        except EngineError as error:
            return dict.fromkeys((topic.topic_id for topic in topics), error)
        if any(isinstance(one, ChangedElsewhere | TopicAlreadyExists) for one in refused.values()):
            await self._look_at_others()
        errors: dict[UUID, KafkaError | EngineError] = {}
        for topic_id, why in refused.items():
            if not isinstance(why, ChangedElsewhere):
                errors[topic_id] = why
            elif len(topics) == 1:
                raise why
            else:
                errors[topic_id] = KafkaStorageError("Another broker is changing the topic.")
        return errors

    async def _announce(self, stored: Sequence[Topic], state: TopicState) -> None:
        number = await self._store.announce(stored, state)
        if number == self.version + 1:  # nobody else has changed anything
            self.version = number

    async def _look_at_others(self) -> None:
        """Another broker was faster: read what it has changed, now or with the next change."""
        self._is_stale = True
        with suppress(EngineError):
            await self._look()

    async def _open_new(self, created: Iterable[Partition]) -> None:
        if not await self.logs.open_new(list(created)):
            self._is_stale = True

    def _topic(
        self, name: str, topic_id: UUID, partitions: int, configs: Mapping[str, str], version: int
    ) -> Topic:
        config = effective(configs, self._settings)
        return Topic(name, topic_id, partitions, dict(configs), config, version)

    def _current(self, topic: Topic) -> Topic:
        current = self.by_id(topic.topic_id)
        if current is None:
            raise UnknownTopicOrPartition(f"The topic {topic.name!r} has been deleted.")
        return current

    def _all_current(
        self, topics: Sequence[Topic]
    ) -> tuple[list[Topic], dict[UUID, KafkaError | EngineError]]:
        """These topics as they are now, and those that have been deleted."""
        known: list[Topic] = []
        unknown: dict[UUID, KafkaError | EngineError] = {}
        for topic in topics:
            try:
                known.append(self._current(topic))
            except UnknownTopicOrPartition as error:
                unknown[topic.topic_id] = error
        return known, unknown
