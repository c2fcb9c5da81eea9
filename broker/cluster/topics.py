"""The topics of a cluster: keys of the registry that every broker reads and changes.

`topic/<name>` holds a topic; compare-and-set makes names unique. Deleting one makes
`deleting/<topic id>` first and takes the name away after it, so a deletion that was cut short is
seen as done; the key goes when the rows are gone (broker/cluster/housekeeping.py). The key
`topics_version` grows with every change, and tells the others to look.

Every shard has the topics as rows of `topic_versions` too, for SQL: written by the broker that
makes a change, put right by the one that keeps house.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from broker.config import Settings
from broker.log.partition import PartitionLog
from broker.log.topic import Topic
from broker.topics import ChangedElsewhere, TopicCatalog, store_version
from common.tasks import Outage, Periodic
from protocol.errors import KafkaError, NotLeaderOrFollower
from storage.engine import Engine, EngineError
from storage.registry import Registry, Versioned

log = logging.getLogger(__name__)

VERSION_KEY = "topics_version"
_TOPIC = "topic/"
_DELETING = "deleting/"
_LOOK_ANYWAY_S = 30.0
"""A broker that dies between a change and the new version is noticed after this long."""
_WATCH_EVERY_S = 0.25
_LOOK_LIMIT_S = 1.0
_LOOK_EVERY_S = 0.02
_ABSENT_FOR_S = 60.0
"""A topic that is not there any more, and not marked as deleted, is kept for so long."""

Partition = tuple[Topic, int]


@dataclass(frozen=True, slots=True)
class Deleted:
    """A topic whose rows are still there."""

    topic: Topic
    key: str
    stored: Versioned


class Logs(Protocol):
    """Opens the logs of partitions that this broker leads."""

    def may_serve(self) -> bool:
        """Whether this broker may lead anything, by the clock: it may have slept."""

    def leads(self, topic: Topic, partition: int) -> bool:
        """Whether the partition is led by this broker now."""

    def fresh(self, topic: Topic, partition: int) -> PartitionLog:
        """The log of a partition that has just been made, by this broker."""

    def by_shard(self, partitions: Sequence[Partition]) -> Collection[Sequence[Partition]]:
        """The same partitions, those together that lie on the same shards."""

    async def open(self, partitions: Sequence[Partition]) -> list[PartitionLog]:
        """Read where logs start and end. Raises `EngineError`."""

    def closed(self, partitions: Collection[PartitionLog]) -> None:
        """These are gone: their topic was deleted."""


class EngineOfShard(Protocol):
    @property
    def engine(self) -> Engine: ...


class TopicShards(Protocol):
    """The shards on which topics have rows: broker/cluster/shard_host.py."""

    def reachable(self) -> Sequence[EngineOfShard]:
        """Those that answer."""

    async def settled(self) -> None:
        """Wait for what is being stored now."""

    async def forget_topic(self, topic: str, topic_id: UUID) -> None:
        """Forget the offsets that groups committed to a deleted topic."""


class SharedCatalog(TopicCatalog):
    """`TopicCatalog` of a broker among several."""

    def __init__(
        self,
        topics: Registry,
        state: Registry,
        settings: Settings,
        logs: Logs,
        shards: TopicShards,
    ) -> None:
        """`topics` holds the topics, `state` their version."""
        super().__init__(settings, self._forget_later)
        self._topics = topics
        self._state = state
        self._opener = logs
        self._shards = shards
        self._stored: dict[str, Versioned] = {}
        self._gone: set[str] = set()
        self._absent_since_s: dict[UUID, float] = {}
        self._unopened = False
        self._looked_s = 0.0
        self._looked_at = 0
        self._forgotten: list[tuple[str, UUID]] = []
        self._settling: asyncio.Task[None] | None = None
        self._joined: asyncio.Task[None] | None = None
        self.seen = 0
        """The version that this broker knows; of topics deleted up to it, it writes no more."""

    async def load(self) -> None:
        await self.refresh()

    def log(self, topic: Topic, partition: int) -> PartitionLog:
        found = super().log(topic, partition)
        if not self._opener.may_serve():
            raise NotLeaderOrFollower("this broker leads nothing at the moment")
        return found

    async def refresh(self) -> None:
        """See what other brokers have changed. Raises `EngineError`."""
        async with self._lock:
            await self._look()

    async def look_again(self) -> None:
        # Joined by all who ask meanwhile, in the order in which they came; at most a few a second.
        if self._joined is None:
            self._joined = asyncio.create_task(self.refresh(), name="topics-again")
            self._joined.add_done_callback(self._looked_again)
        try:
            async with asyncio.timeout(_LOOK_LIMIT_S):
                await asyncio.shield(self._joined)
        except (TimeoutError, EngineError) as error:
            log.debug("topics could not be looked up: %s", error)

    def _looked_again(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()  # told to those who wait
        asyncio.get_running_loop().call_later(_LOOK_EVERY_S, self._forget_look)

    def _forget_look(self) -> None:
        self._joined = None

    async def take(
        self, leads: Callable[[Topic, int], bool], begin: Callable[[list[PartitionLog]], None]
    ) -> None:
        """Open the logs of the partitions that `leads` picks. Raises `EngineError`.

        `begin` makes this broker their leader, before any other topic appears.
        """
        async with self._lock:
            await self._look()
            wanted = [
                (topic, number)
                for topic in self.all()
                for number in range(topic.partitions)
                if leads(topic, number)
            ]
            opened = await self._opener.open(wanted)
            begin(opened)
            for log_ in opened:
                self._logs.setdefault(log_.topic_id, {})[log_.partition] = log_

    async def stop_leading(self, stop: Callable[[], None]) -> None:
        """Run `stop` while no log is being opened."""
        async with self._lock:
            stop()

    def give_up(self, logs: Iterable[PartitionLog]) -> None:
        """Another broker may lead these."""
        for log_ in logs:
            self._logs.get(log_.topic_id, {}).pop(log_.partition, None)

    async def deleted(self) -> list[Deleted]:
        """Topics whose rows are to be removed. Raises `EngineError`."""
        found = []
        for key, stored in (await self._topics.list(_DELETING)).items():
            topic = self._readable(key, stored)
            if topic is not None:
                found.append(Deleted(topic, key, stored))
        return found

    async def announce(self) -> int:
        """Tell the others to look; the version of those that have. Raises `EngineError`."""
        while True:
            version = await self._state.get(VERSION_KEY)
            number = _number(version) + 1
            if await self._state.compare_and_set(VERSION_KEY, version, str(number)):
                return number

    async def forget(self, deleted: Deleted) -> None:
        """Nothing is left of it. Raises `EngineError`."""
        name = _TOPIC + deleted.topic.name
        left = await self._topics.get(name)
        topic = None if left is None else self._readable(name, left)
        if left is not None and topic is not None and topic.topic_id == deleted.topic.topic_id:
            await self._topics.delete(name, left)  # the deletion was cut short
        await self._topics.delete(deleted.key, deleted.stored)

    async def size_bytes(self) -> dict[tuple[UUID, int], int]:
        sizes: dict[tuple[UUID, int], int] = {}
        for shard in self._shards.reachable():
            for topic_id, partition, size in await shard.engine.rows(
                "SELECT topic_id, partition, bytes FROM partition_stats WHERE bytes > 0"
            ):
                key = UUID(str(topic_id)), partition
                sizes[key] = sizes.get(key, 0) + size
        return sizes

    # Changes

    async def _look(self) -> None:
        version = await self._state.get(VERSION_KEY)
        number = _number(version)
        due = time.monotonic() - self._looked_s > _LOOK_ANYWAY_S
        if number <= self._looked_at and not due and not self._unopened:
            return  # a lower one: the server that answered is behind
        stored = await self._topics.list("")
        await self._apply(stored)
        self._looked_s = time.monotonic()
        self._looked_at = max(self._looked_at, number)
        self._settle()

    async def _apply(self, stored: Mapping[str, Versioned]) -> None:
        self._gone = {key.removeprefix(_DELETING) for key in stored if key.startswith(_DELETING)}
        there: dict[str, Topic] = {}
        for key, one in stored.items():
            if not key.startswith(_TOPIC):
                continue
            topic = self._readable(key, one)
            if topic is not None and str(topic.topic_id) not in self._gone:
                there[topic.name] = topic
        self._stored = {
            key.removeprefix(_TOPIC): one for key, one in stored.items() if key.startswith(_TOPIC)
        }
        for known in self.all():
            if self._is_deleted(known, there.get(known.name)):
                self._drop(known)
                self._forgotten.append((known.name, known.topic_id))
        for topic in there.values():
            if self._is_news(topic):
                self._publish(topic, self._logs.get(topic.topic_id, {}))
        await self._open_logs()

    def _is_deleted(self, known: Topic, now: Topic | None) -> bool:
        """A topic that is merely absent may be so because the server that was asked is behind."""
        if now is not None or str(known.topic_id) in self._gone:
            self._absent_since_s.pop(known.topic_id, None)
            return now is None or now.topic_id != known.topic_id
        if known.name in self._stored:
            return False  # there, and not readable
        since_s = self._absent_since_s.setdefault(known.topic_id, time.monotonic())
        if time.monotonic() - since_s < _ABSENT_FOR_S:
            return False
        del self._absent_since_s[known.topic_id]
        return True

    async def _open_logs(self) -> None:
        """Of what this broker leads; a shard that does not answer holds up its own logs alone."""
        wanted = [
            (topic, number)
            for topic in self.all()
            for number in range(topic.partitions)
            if number not in self._logs.get(topic.topic_id, {})
            and self._opener.leads(topic, number)
        ]
        self._unopened = False
        for some in self._opener.by_shard(wanted):
            try:
                opened = await self._opener.open(some)
            except EngineError as error:
                log.warning("%d logs cannot be opened yet: %s", len(some), error)
                self._unopened = True
                continue
            for log_ in opened:
                if self._opener.leads(log_.topic, log_.partition):
                    self._logs.setdefault(log_.topic_id, {})[log_.partition] = log_
                else:  # given up meanwhile
                    self._opener.closed([log_])

    async def _forget_later(self, topic: str, topic_id: UUID) -> None:
        self._forgotten.append((topic, topic_id))
        self._settle()

    def _settle(self) -> None:
        """Beside the lock: a shard that hangs may take its time."""
        behind = self.seen != self._looked_at or self._forgotten
        if behind and (self._settling is None or self._settling.done()):
            self._settling = asyncio.create_task(self._settled(), name="topics-settle")
            self._changes.add(self._settling)
            self._settling.add_done_callback(self._changes.discard)

    async def _settled(self) -> None:
        while self.seen != self._looked_at or self._forgotten:
            number, forgotten = self._looked_at, self._forgotten
            self._forgotten = []
            for topic, topic_id in forgotten:
                await self._shards.forget_topic(topic, topic_id)
            await self._shards.settled()
            self.seen = number

    def _readable(self, key: str, stored: Versioned) -> Topic | None:
        """None for what a newer version of this program may have written."""
        try:
            return self._parsed(json.loads(stored.value))
        except (ValueError, KeyError, TypeError, KafkaError) as error:
            log.error("%s in the registry cannot be read and is left as it is: %s", key, error)
            return None

    def _is_news(self, topic: Topic) -> bool:
        known = self._by_id.get(topic.topic_id)
        return known is None or known.version < topic.version

    def _drop(self, topic: Topic) -> None:
        logs = self._logs.get(topic.topic_id, {}).values()
        super()._drop(topic)
        self._opener.closed(list(logs))

    async def _store(self, topic: Topic, state: str) -> None:
        if state == "deleting":
            await self._delete(topic)
        else:
            await self._set(topic)
        number = await self.announce()
        if number == self._looked_at + 1:  # nobody else has changed anything
            self._looked_at = number
            self._settle()
        for shard in self._shards.reachable():
            try:
                await store_version(shard.engine, topic, state)
            except EngineError as error:
                log.warning("topic %s is not yet on every shard: %s", topic.name, error)

    async def _set(self, topic: Topic) -> None:
        key = _TOPIC + topic.name
        expected = self._stored.get(topic.name)
        if topic.topic_id not in self._by_id and not self._is_left_over(expected):
            expected = None  # a new topic, whatever became of an earlier try
        if not await self._topics.compare_and_set(key, expected, _text(topic)):
            await self._apply(await self._topics.list(""))
            raise ChangedElsewhere(topic.name)
        now = await self._topics.get(key)
        if now is not None:
            self._stored[topic.name] = now

    def _is_left_over(self, stored: Versioned | None) -> bool:
        """Whether a name is still there of a topic whose deletion was cut short."""
        if stored is None:
            return False
        topic = self._readable(_TOPIC, stored)
        return topic is not None and str(topic.topic_id) in self._gone

    async def _delete(self, topic: Topic) -> None:
        await self._topics.compare_and_set(f"{_DELETING}{topic.topic_id}", None, _text(topic))
        self._gone.add(str(topic.topic_id))
        stored = self._stored.pop(topic.name, None)
        if stored is not None:
            await self._topics.delete(_TOPIC + topic.name, stored)

    def _new_logs(self, topic: Topic, partitions: Iterable[int]) -> dict[int, PartitionLog]:
        return {
            number: self._opener.fresh(topic, number)
            for number in partitions
            if self._opener.leads(topic, number)
        }

    def _clean_up(self, topic: Topic) -> None:
        """The broker that keeps house does it, when all have seen that the topic is gone."""

    def _parsed(self, value: Mapping[str, Any]) -> Topic:
        return self._topic(
            value["name"],
            UUID(value["id"]),
            int(value["partitions"]),
            value["configs"],
            int(value["version"]),
        )


def _number(version: Versioned | None) -> int:
    try:
        return 0 if version is None else int(version.value)
    except ValueError as error:
        raise EngineError(f"{VERSION_KEY} in the registry is no number: {error}") from error


def _text(topic: Topic) -> str:
    value = {
        "name": topic.name,
        "id": str(topic.topic_id),
        "partitions": topic.partitions,
        "configs": dict(topic.configs),
        "version": topic.version,
    }
    return json.dumps(value, separators=(",", ":"))


class TopicWatch:
    """Looks for the changes of other brokers, again and again."""

    def __init__(self, catalog: SharedCatalog) -> None:
        self._catalog = catalog
        self._outage = Outage(
            log, "topics cannot be read from the registry; retrying", "topics can be read again"
        )
        self._looks = Periodic("topics-of-others", _WATCH_EVERY_S, self._look)

    def start(self) -> None:
        """Begin. `task` ends only by a bug."""
        self._looks.start()

    @property
    def task(self) -> asyncio.Task[None] | None:
        return self._looks.task

    async def close(self) -> None:
        await self._looks.close()

    async def _look(self) -> None:
        try:
            await self._catalog.refresh()
        except EngineError as error:
            self._outage.failed(error)
        else:
            self._outage.worked()
