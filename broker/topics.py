"""The topics of a broker or a cluster, by name and by id.

Every change is stored before it is visible here. Changes are made one at a time; reading needs no
lock. `LocalCatalog` is the catalog of a single broker, which leads every partition; the catalog
of a cluster is in broker/cluster/topics.py.
"""

from __future__ import annotations

import asyncio
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar
from uuid import UUID, uuid4

from broker import topic_names
from broker.config import Settings
from broker.effective_configs import effective
from broker.known_topics import KnownTopics, collision
from broker.log.open_logs import OpenLogs
from broker.log.topic import Topic
from common.counted_lines import counted
from common.tasks import in_turns
from protocol.errors import (
    InvalidPartitions,
    KafkaError,
    KafkaStorageError,
    UnknownTopicOrPartition,
)
from storage.disk_reserve import NOT_ENOUGH_SPACE, DiskReserve
from storage.engine import Engine, EngineError

log = logging.getLogger(__name__)


class ChangedElsewhere(Exception):
    """Another broker changed the topic meanwhile: read it again, and decide again."""


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


class TopicData(Protocol):
    """What others store for topics: records that are in flight, committed offsets."""

    async def settled(self) -> None:
        """Wait for the blocks that are being stored now."""

    async def forget_topic(self, topic: str, topic_id: UUID) -> None:
        """Forget the offsets that groups committed to a deleted topic."""


class NoTopicData:
    """`TopicData` of a catalog without an appender and without consumer groups."""

    async def settled(self) -> None:
        """No block is in flight."""

    async def forget_topic(self, topic: str, topic_id: UUID) -> None:
        """No group has committed offsets."""


class TopicCatalog(ABC):
    """Finds topics by name and by id. `logs` gets every change of a topic."""

    late_max_ms = 0
    """For how long a topic that another broker has created may be unknown here."""

    def __init__(self, settings: Settings, logs: OpenLogs) -> None:
        self.logs = logs
        self._settings = settings
        self.known = KnownTopics()
        self._lock = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()
        self._cleanups: set[asyncio.Task[None]] = set()
        self._unopened = False  # some logs could not be opened yet
        self.gone: set[str] = set()
        """Ids of topics that are deleted, and whose rows are going, where several brokers read."""

    @abstractmethod
    async def load(self) -> None:
        """Read the topics. Raises `EngineError`."""

    @abstractmethod
    async def look_again(self) -> None:
        """A request names an unknown topic: another broker may just have created it."""

    @abstractmethod
    async def size_bytes(self) -> dict[tuple[UUID, int], int]:
        """Bytes of keys and values stored per (topic id, partition), before compression."""

    @abstractmethod
    async def _look(self) -> None:
        """Read what others have changed, before a change. Raises `EngineError`."""

    @abstractmethod
    async def _store_all(
        self, topics: Sequence[Topic], state: str
    ) -> dict[UUID, KafkaError | EngineError]:
        """Store topics that exist in as few changes as possible; returns why some are not, by id.

        A topic that another broker is changing is among these; if it is the only one, raises
        `ChangedElsewhere`, and the whole change is tried again.
        """

    @abstractmethod
    async def _store_new(self, topics: Sequence[Topic]) -> Mapping[str, KafkaError | EngineError]:
        """Store new topics in as few changes as possible; returns why some are not stored, by name.

        Raises `EngineError` if none is, or if that is unknown.
        """

    @abstractmethod
    async def _forget_offsets(self, topic: Topic) -> None:
        """The topic has been deleted: forget, now or soon, what groups committed to it.

        Raises `EngineError`.
        """

    @abstractmethod
    def _clean_up(self, topic: Topic) -> None:
        """Start removing the rows of a deleted topic."""

    def get(self, name: str) -> Topic | None:
        return self.known.get(name)

    def by_id(self, topic_id: UUID) -> Topic | None:
        return self.known.by_id(topic_id)

    def all(self) -> list[Topic]:
        """Every topic, by name."""
        return self.known.all()

    def check_free(self, name: str) -> None:
        """Raises `TopicAlreadyExists`, or `InvalidTopic` if the name collides with another."""
        self.known.check_free(name)

    @_whole
    async def create_all(self, wanted: Sequence[NewTopic]) -> dict[str, Outcome]:
        """Create topics in one change; each succeeds or fails by itself. Names occur once.

        Errors: those of `check_free`, and `EngineError` where ClickHouse refused it.
        """
        outcomes: dict[str, Outcome] = {}
        async with self._lock:
            await self._look()
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
            refused: Mapping[str, KafkaError | EngineError] = {}
            if new:
                try:
                    refused = await self._store_new(list(new.values()))
                except EngineError as error:
                    refused = dict.fromkeys(new, error)
            made = [topic for topic in new.values() if topic.name not in refused]
            created = [(one, number) for one in made for number in range(one.partitions)]
            if not await self.logs.open_new(created):
                self._unopened = True
            async for topic in in_turns(made, _PER_TURN):
                self._publish(topic)
        outcomes.update(new)
        outcomes.update(refused)
        return outcomes

    @_whole
    async def delete_all(self, topics: Sequence[Topic]) -> dict[UUID, KafkaError | EngineError]:
        """Forget topics now, in one change; their rows are deleted later.

        Returns why some are not deleted, or their offsets are not forgotten, by id: they are
        unknown, or ClickHouse refused it.
        """
        async with self._lock:
            await self._look()
            known, refused = self._all_current(topics)
            gone = [replace(topic, version=topic.version + 1) for topic in known]
            refused |= await self._store_all(gone, "deleting")
            dropped = [
                (before, after)
                for before, after in zip(known, gone, strict=True)
                if before.topic_id not in refused
            ]
            for before, after in dropped:
                self._drop(before)
                self._clean_up(after)
            for topic, _ in dropped:
                try:
                    await self._forget_offsets(topic)
                except EngineError as error:
                    refused[topic.topic_id] = error
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
        async with self._lock:
            await self._look()
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
                        f"topic {topic.name} has {topic.partitions} partitions; {total} is not more"
                    )
            refused = await self._store_all([changed for _, changed in grown], "live")
            outcomes |= {one.topic_id: refused.get(one.topic_id, one) for _, one in grown}
            made = [(topic, now) for topic, now in grown if now.topic_id not in refused]
            created = [
                (now, number)
                for topic, now in made
                for number in range(topic.partitions, now.partitions)
            ]
            if not await self.logs.open_new(created):
                self._unopened = True
            for _, changed in made:
                self._publish(changed)
        return outcomes

    @_whole
    async def set_configs(self, topic: Topic, configs: Mapping[str, str]) -> Topic:
        """Replace all configs set on the topic. They have been checked."""
        async with self._lock:
            await self._look()
            topic = self._current(topic)
            changed = self._topic(
                topic.name, topic.topic_id, topic.partitions, configs, topic.version + 1
            )
            refused = await self._store_all([changed], "live")
            for error in refused.values():
                raise error
            self._publish(changed)
            return changed

    def use_settings(self, settings: Settings) -> None:
        """The settings have changed: configs that a topic does not set have other defaults."""
        self._settings = settings
        for topic in self.all():
            self._publish(topic)

    async def close(self) -> None:
        """Wait for running changes; stop clean-ups, which begin again at the next start."""
        await asyncio.gather(*self._changes, return_exceptions=True)
        for task in self._cleanups:
            task.cancel()
        await asyncio.gather(*self._cleanups, return_exceptions=True)

    def _topic(
        self, name: str, topic_id: UUID, partitions: int, configs: Mapping[str, str], version: int
    ) -> Topic:
        config = effective(configs, self._settings)
        return Topic(name, topic_id, partitions, dict(configs), config, version)

    async def _decided(self, change: Callable[[], Awaitable[T]]) -> T:
        for _ in range(_ATTEMPTS):
            try:
                return await change()
            except ChangedElsewhere as error:
                log.info("a topic is changed by two brokers at once: %s", error, extra=counted())
        raise KafkaStorageError("the topic is being changed by other brokers")

    def _drop(self, topic: Topic) -> None:
        """Forget a deleted topic."""
        self.known.drop(topic)
        self.logs.close_topic(topic)

    def _current(self, topic: Topic) -> Topic:
        current = self.known.by_id(topic.topic_id)
        if current is None:
            raise UnknownTopicOrPartition(f"topic {topic.name} has been deleted")
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

    def _publish(self, topic: Topic) -> None:
        config = effective(topic.configs, self._settings)
        if config != topic.config:  # the settings have changed since the topic was read
            topic = replace(topic, config=config)
        self.logs.adopt(topic)
        self.known.put(topic)


async def store_version(engine: Engine, topic: Topic, state: str) -> None:
    """Write what a topic is now into `topic_versions`. Raises `EngineError`."""
    await store_versions(engine, [topic], state)


async def store_versions(engine: Engine, topics: Sequence[Topic], state: str) -> None:
    """Write what topics are now into `topic_versions`, atomically. Raises `EngineError`."""
    await engine.execute(
        "INSERT INTO topic_versions (topic_id, version, name, partitions, configs, state)"
        " SELECT toUUID(one.1), toUInt64(one.2), one.3, toInt32(one.4),"
        " JSONExtract(one.5, 'Map(String, String)'), {state:String}"
        " FROM (SELECT arrayJoin(arrayZip({topic_ids:Array(String)}, {versions:Array(String)},"
        " {names:Array(String)}, {partitions:Array(String)}, {configs:Array(String)})) AS one)",
        {
            "topic_ids": [str(topic.topic_id) for topic in topics],
            "versions": [str(topic.version) for topic in topics],
            "names": [topic.name for topic in topics],
            "partitions": [str(topic.partitions) for topic in topics],
            "configs": [json.dumps(dict(topic.configs)) for topic in topics],
            "state": state,
        },
    )


async def remove_rows(engine: Engine, topic: Topic) -> None:
    """Start deleting the records of a topic. Raises `EngineError`.

    The engine keeps the deletion over restarts. Waiting for it would keep a reader from others, for
    as long as disk space is low.
    """
    await engine.execute(
        "DELETE FROM messages WHERE topic = {topic:String} AND topic_id = {topic_id:UUID}"
        " SETTINGS lightweight_deletes_sync = 0",
        {"topic": topic.name, "topic_id": str(topic.topic_id)},
    )


class LocalCatalog(TopicCatalog):
    """The catalog of a broker that leads every partition: topics are rows of `topic_versions`."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        logs: OpenLogs,
        data: TopicData | None = None,
        reserve: DiskReserve | None = None,
    ) -> None:
        """`reserve`: of the engine's disk; it is used to delete topics."""
        super().__init__(settings, logs)
        self._engine = engine
        self._reserve = reserve
        self._data = data or NoTopicData()
        self._left_over: dict[UUID, Topic] = {}  # deleted, and their rows could not be removed yet

    async def load(self) -> None:
        """Read the topics, and open all logs. Raises `EngineError`."""
        topics = []
        for name, topic_id, partitions, configs, version, state in await self._engine.rows(
            "SELECT name, topic_id, partitions, configs, version, state FROM topic_versions FINAL"
            " WHERE state != 'deleted'"
        ):
            assert isinstance(configs, dict)
            assert isinstance(partitions, int)
            assert isinstance(version, int)
            topic = self._topic(str(name), UUID(str(topic_id)), partitions, configs, version)
            if state == "deleting":
                self._clean_up(topic)
            else:
                topics.append(topic)
        if not await self.logs.open_missing(topics):
            raise EngineError("some logs cannot be opened; the log says why")
        for topic in topics:
            self.known.put(topic)

    async def size_bytes(self) -> dict[tuple[UUID, int], int]:
        """Bytes of keys and values stored per (topic id, partition), before compression."""
        rows = await self._engine.rows("SELECT topic_id, partition, bytes FROM partition_stats")
        return {(UUID(str(i)), p): size for i, p, size in rows}

    async def look_again(self) -> None:
        """Nobody else creates topics here."""

    async def _look(self) -> None:
        """Nobody else changes topics here."""

    async def set_configs(self, topic: Topic, configs: Mapping[str, str]) -> Topic:
        if self._reserve is not None:
            self._reserve.release()  # a shorter retention deletes records
        return await super().set_configs(topic, configs)

    async def _store_together(self, topics: Sequence[Topic], state: str) -> None:
        if self._reserve is not None and state != "live":
            self._reserve.release()
        try:
            await store_versions(self._engine, topics, state)
        except EngineError as error:
            if self._reserve is not None and error.code == NOT_ENOUGH_SPACE:
                raise self._reserve.is_full() from error
            raise

    async def _store_new(self, topics: Sequence[Topic]) -> Mapping[str, KafkaError | EngineError]:
        if self._reserve is not None:
            self._reserve.check()
        refused = await self._store_all(topics, "live")
        return {
            topic.name: refused[topic.topic_id] for topic in topics if topic.topic_id in refused
        }

    async def _store_all(
        self, topics: Sequence[Topic], state: str
    ) -> dict[UUID, KafkaError | EngineError]:
        if not topics:
            return {}
        try:
            await self._store_together(topics, state)
        except (KafkaError, EngineError) as error:
            if len(topics) == 1:
                return {topics[0].topic_id: error}
        else:
            return {}
        # One of them may be the reason. After two refusals in a row it is not.
        refused: dict[UUID, KafkaError | EngineError] = {}
        left = list(topics)
        in_a_row = 0
        while left:
            topic = left.pop(0)
            try:
                await self._store_together([topic], state)
            except (KafkaError, EngineError) as error:
                refused[topic.topic_id] = error
                in_a_row += 1
                if in_a_row == 2:
                    refused |= {one.topic_id: error for one in left}
                    break
            else:
                in_a_row = 0
        return refused

    async def _forget_offsets(self, topic: Topic) -> None:
        try:
            await self._data.forget_topic(topic.name, topic.topic_id)
        except EngineError as error:
            if error.code != NOT_ENOUGH_SPACE:
                raise
            # The next start deletes them: nobody has a topic with this id.
            log.warning(
                "offsets of deleted topic %s stay in the table: %s",
                topic.name,
                error,
                extra=counted(),
            )

    def _clean_up(self, topic: Topic) -> None:
        task = asyncio.create_task(self._remove_rows(topic), name=f"delete-{topic.name}")
        self._cleanups.add(task)
        task.add_done_callback(self._cleanups.discard)

    async def _remove_rows(self, topic: Topic) -> None:
        try:
            await self._data.settled()  # a block with rows of the topic may still be in flight
            await remove_rows(self._engine, topic)
            deleted = replace(topic, version=topic.version + 1)
            await self._store_together([deleted], "deleted")
            log.info("the rows of deleted topic %s are being deleted", topic.name, extra=counted())
        except EngineError as error:
            log.error(
                "deleting the rows of deleted topic %s failed; retrying later: %s",
                topic.name,
                error,
                extra=counted(),
            )
            self._left_over[topic.topic_id] = topic

    async def remove_left_over(self) -> None:
        """Retry the deletions that failed."""
        while self._left_over:
            self._clean_up(self._left_over.popitem()[1])
