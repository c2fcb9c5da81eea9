"""The topics of this broker, and the log of each of their partitions.

Every change is a row in `topic_versions` before it is visible here. Changes are made one at a time;
reading needs no lock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from uuid import UUID, uuid4

from broker.config import Settings
from broker.log.ends import log_ends
from broker.log.partition import PartitionLog
from broker.topic_configs import EffectiveTopicConfig, effective
from protocol.errors import (
    InvalidPartitions,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from storage.engine import Engine, EngineError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Topic:
    """One topic. `configs` holds only what was set on the topic; `config` is what applies."""

    name: str
    topic_id: UUID
    partitions: int
    configs: Mapping[str, str]
    config: EffectiveTopicConfig = field(compare=False, repr=False)
    version: int = 1


P = ParamSpec("P")
T = TypeVar("T")


def _whole(
    change: Callable[Concatenate[TopicCatalog, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[TopicCatalog, P], Coroutine[Any, Any, T]]:
    """A change that has begun is made, even if the client that asked for it leaves meanwhile.

    Otherwise the table could call a topic deleted that still takes records.
    """

    @wraps(change)
    async def run(self: TopicCatalog, /, *args: P.args, **kwargs: P.kwargs) -> T:
        task = asyncio.create_task(change(self, *args, **kwargs))
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return await asyncio.shield(task)

    return run


async def _nothing_is_stored() -> None:
    """For a catalog without an appender."""


async def _nobody_has_offsets(_topic: str, _topic_id: UUID) -> None:
    """For a catalog without consumer groups."""


class TopicCatalog:
    """Names and ids to topics, and topics to partition logs."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        settled: Callable[[], Awaitable[None]] = _nothing_is_stored,
        forget_offsets: Callable[[str, UUID], Awaitable[None]] = _nobody_has_offsets,
    ) -> None:
        """`settled` ends when all that was being stored when it was called is stored.

        `forget_offsets` is told of each topic that is deleted, by name and id.
        """
        self._engine = engine
        self._settings = settings
        self._settled = settled
        self._forget_offsets = forget_offsets
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._logs: dict[UUID, list[PartitionLog]] = {}
        self._lock = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()
        self._cleanups: set[asyncio.Task[None]] = set()
        self.first_fresh_producer_id = 0

    async def load(self) -> None:
        """Read topics, and where each of their partitions starts and ends."""
        checkpoints = {
            (UUID(str(topic_id)), int(str(partition))): (int(str(start)), int(str(floor)))
            for topic_id, partition, start, floor in await self._engine.rows(
                "SELECT topic_id, partition, max(log_start_offset), max(next_offset_floor)"
                " FROM partition_checkpoints GROUP BY topic_id, partition"
            )
        }
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
        ends = await log_ends(
            self._engine,
            (
                (topic.name, topic.topic_id, partition)
                for topic in topics
                for partition in range(topic.partitions)
            ),
        )
        for topic in topics:
            logs = []
            for partition in range(topic.partitions):
                start, floor = checkpoints.get((topic.topic_id, partition), (0, 0))
                end = max(ends.get((topic.topic_id, partition), 0), floor)
                logs.append(self._new_log(topic, partition, start, end))
            self._publish(topic, logs)

    def get(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def by_id(self, topic_id: UUID) -> Topic | None:
        return self._by_id.get(topic_id)

    def all(self) -> list[Topic]:
        """Every topic, by name."""
        return [self._by_name[name] for name in sorted(self._by_name)]

    def log(self, topic: Topic, partition: int) -> PartitionLog:
        """Raises `UnknownTopicOrPartition`."""
        logs = self._logs.get(topic.topic_id, [])
        if not 0 <= partition < len(logs):
            raise UnknownTopicOrPartition(f"{topic.name} has no partition {partition}")
        return logs[partition]

    @_whole
    async def create(self, name: str, partitions: int, configs: Mapping[str, str]) -> Topic:
        """Raises `TopicAlreadyExists`. The name and the configs have been checked."""
        async with self._lock:
            if name in self._by_name:
                raise TopicAlreadyExists(f"topic {name} already exists")
            topic = self._topic(name, uuid4(), partitions, configs, 1)
            await self._store(topic, "live")
            self._publish(topic, [self._new_log(topic, n, 0, 0) for n in range(partitions)])
            return topic

    @_whole
    async def delete(self, topic: Topic) -> None:
        """Forget the topic now; its rows go in the background. Raises `UnknownTopicOrPartition`."""
        async with self._lock:
            topic = self._current(topic)
            gone = replace(topic, version=topic.version + 1)
            await self._store(gone, "deleting")
            del self._by_name[topic.name]
            del self._by_id[topic.topic_id]
            for partition in self._logs.pop(topic.topic_id):
                partition.closed = UnknownTopicOrPartition(f"topic {topic.name} has been deleted")
                partition.wake()
            self._clean_up(gone)
            await self._forget_offsets(topic.name, topic.topic_id)

    @_whole
    async def add_partitions(self, topic: Topic, total: int) -> Topic:
        """Raises `InvalidPartitions` unless `total` is more than there are now."""
        async with self._lock:
            topic = self._current(topic)
            if total <= topic.partitions:
                raise InvalidPartitions(
                    f"topic {topic.name} has {topic.partitions} partitions; {total} is not more"
                )
            changed = replace(topic, partitions=total, version=topic.version + 1)
            await self._store(changed, "live")
            added = [self._new_log(changed, n, 0, 0) for n in range(topic.partitions, total)]
            self._publish(changed, [*self._logs[topic.topic_id], *added])
            return changed

    @_whole
    async def set_configs(self, topic: Topic, configs: Mapping[str, str]) -> Topic:
        """Replace all configs set on the topic. They have been checked."""
        async with self._lock:
            topic = self._current(topic)
            changed = self._topic(
                topic.name, topic.topic_id, topic.partitions, configs, topic.version + 1
            )
            await self._store(changed, "live")
            self._publish(changed, self._logs[topic.topic_id])
            return changed

    async def size_bytes(self) -> dict[tuple[UUID, int], int]:
        """Bytes of keys and values stored per (topic id, partition), before compression."""
        rows = await self._engine.rows("SELECT topic_id, partition, bytes FROM partition_stats")
        return {(UUID(str(i)), int(str(p))): int(str(size)) for i, p, size in rows}

    async def close(self) -> None:
        """End what is being changed; stop clean-ups: they begin again at the next start."""
        await asyncio.gather(*self._changes, return_exceptions=True)
        for task in self._cleanups:
            task.cancel()
        await asyncio.gather(*self._cleanups, return_exceptions=True)

    def _topic(
        self, name: str, topic_id: UUID, partitions: int, configs: Mapping[str, str], version: int
    ) -> Topic:
        config = effective(configs, self._settings)
        return Topic(name, topic_id, partitions, dict(configs), config, version)

    def _new_log(self, topic: Topic, partition: int, start: int, end: int) -> PartitionLog:
        return PartitionLog(topic, partition, start, end, self.first_fresh_producer_id)

    def _current(self, topic: Topic) -> Topic:
        current = self._by_id.get(topic.topic_id)
        if current is None:
            raise UnknownTopicOrPartition(f"topic {topic.name} has been deleted")
        return current

    def _publish(self, topic: Topic, logs: list[PartitionLog]) -> None:
        for partition in logs:
            partition.topic = topic
        self._logs[topic.topic_id] = logs
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic

    async def _store(self, topic: Topic, state: str) -> None:
        await self._engine.execute(
            "INSERT INTO topic_versions (topic_id, version, name, partitions, configs, state)"
            " SELECT {topic_id:UUID}, {version:UInt64}, {name:String}, {partitions:Int32},"
            " {configs:Map(String, String)}, {state:String}",
            {
                "topic_id": str(topic.topic_id),
                "version": topic.version,
                "name": topic.name,
                "partitions": topic.partitions,
                "configs": topic.configs,
                "state": state,
            },
        )

    def _clean_up(self, topic: Topic) -> None:
        task = asyncio.create_task(self._remove_rows(topic), name=f"delete-{topic.name}")
        self._cleanups.add(task)
        task.add_done_callback(self._cleanups.discard)

    async def _remove_rows(self, topic: Topic) -> None:
        try:
            await self._settled()  # a block with rows of the topic may still be on its way
            # The engine keeps the deletion over restarts. Waiting for it would take a reader from
            # others, for as long as the disk is low.
            await self._engine.execute(
                "DELETE FROM messages WHERE topic = {topic:String} AND topic_id = {topic_id:UUID}"
                " SETTINGS lightweight_deletes_sync = 0",
                {"topic": topic.name, "topic_id": str(topic.topic_id)},
            )
            await self._store(replace(topic, version=topic.version + 1), "deleted")
        except EngineError as error:
            log.error("rows of deleted topic %s stay until the next start: %s", topic.name, error)
