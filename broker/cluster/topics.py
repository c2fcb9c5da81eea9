"""The topics of a cluster, which every broker reads and changes: `SharedCatalog`.

broker/cluster/topic_registry.py says how they are stored.

Every shard has the topics as rows of `topic_versions` too, for SQL. The broker that makes a change
writes them, and the shard's housekeeping broker repairs them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Protocol
from uuid import UUID

from broker.cluster.topic_registry import StoredTopics, TopicRegistry
from broker.config import Settings
from broker.log.open_logs import OpenLogs
from broker.log.topic import Topic
from broker.topics import ChangedElsewhere, TopicCatalog, TopicData, store_versions
from common.counted_lines import counted
from common.tasks import Outage, Periodic
from protocol.errors import KafkaError, KafkaStorageError, TopicAlreadyExists
from storage.engine import Engine, EngineError
from storage.registry import LOOK_ANYWAY_S, Versioned

log = logging.getLogger(__name__)

_WATCH_EVERY_S = 0.25
_LOOK_LIMIT_S = 1.0
_LOOK_EVERY_S = 0.02
_CHANGE_TOPICS = 250
_CHANGE_CONFIG_CHARS = 50_000
_ABSENT_FOR_S = 60.0
"""A topic that disappeared and is not marked as deleted is kept for this long."""


class TopicShard(Protocol):
    @property
    def engine(self) -> Engine: ...


class TopicShards(TopicData, Protocol):
    """The shards on which topics have rows: broker/slots/shard_host.py."""

    def reachable(self) -> Sequence[TopicShard]:
        """The shards that answer."""


class SharedCatalog(TopicCatalog):
    """`TopicCatalog` of a broker among several."""

    late_max_ms = 60_000

    def __init__(
        self, registry: TopicRegistry, settings: Settings, logs: OpenLogs, shards: TopicShards
    ) -> None:
        super().__init__(settings, logs)
        self._registry = registry
        self._shards = shards
        self._stored: dict[str, Versioned] = {}
        self._absent_since_s: dict[UUID, float] = {}
        self._looked_s = 0.0
        self._looked_at = 0
        self._forgotten: list[tuple[str, UUID]] = []
        self._settling: asyncio.Task[None] | None = None
        self._joined: asyncio.Task[None] | None = None
        self.seen = 0
        """The version that this broker knows: it writes to no topic that was deleted up to it."""

    async def load(self) -> None:
        await self.refresh()

    async def refresh(self) -> None:
        """Read what other brokers have changed. Raises `EngineError`."""
        async with self._lock:
            await self._look()

    @asynccontextmanager
    async def latest(self) -> AsyncIterator[list[Topic]]:
        """All topics, read again from the registry; the catalog is locked meanwhile.

        Raises `EngineError`.
        """
        async with self._lock:
            await self._look()
            yield self.all()

    @asynccontextmanager
    async def held_still(self) -> AsyncIterator[None]:
        """Lock the catalog: meanwhile no topic appears or goes, and no log is being opened."""
        async with self._lock:
            yield

    async def look_again(self) -> None:
        # One read serves all requests that arrive meanwhile, in order; at most 50 a second.
        if self._joined is None:
            self._joined = asyncio.create_task(self.refresh(), name="topics-again")
            self._joined.add_done_callback(self._looked_again)
        try:
            async with asyncio.timeout(_LOOK_LIMIT_S):
                await asyncio.shield(self._joined)
        except (TimeoutError, EngineError) as error:
            log.debug("topics cannot be read from the registry: %s", error)

    def _looked_again(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()  # raised in the requests that wait
        asyncio.get_running_loop().call_later(_LOOK_EVERY_S, self._forget_look)

    def _forget_look(self) -> None:
        self._joined = None

    async def size_bytes(self) -> dict[tuple[UUID, int], int]:
        sizes: dict[tuple[UUID, int], int] = {}
        for shard in self._shards.reachable():
            for topic_id, partition, size in await shard.engine.rows(
                "SELECT topic_id, partition, bytes FROM partition_stats WHERE bytes > 0"
            ):
                key = UUID(str(topic_id)), partition
                sizes[key] = sizes.get(key, 0) + size
        return sizes

    # What others have changed

    @property
    def version(self) -> int:
        """The version of the topics that was read last."""
        return self._looked_at

    def has_deleted(self) -> bool:
        """Whether rows of deleted topics may still be there, as far as this broker has read."""
        return bool(self.gone)

    def is_behind(self, version: int) -> bool:
        """Whether there is something to read if the topics have this version now."""
        # With a lower version, the server that answered is behind.
        due = time.monotonic() - self._looked_s > LOOK_ANYWAY_S
        return version > self._looked_at or due or self._unopened

    async def _look(self) -> None:
        version = await self._registry.version()
        if not self.is_behind(version):
            return
        await self._apply(await self._registry.read())
        self._looked_s = time.monotonic()
        self._looked_at = max(self._looked_at, version)
        self._settle()

    async def _apply(self, found: StoredTopics) -> None:
        self.gone = set(found.deleted)
        self._stored = dict(found.stored)
        for known in self.all():
            if self._is_deleted(known, found.live.get(known.name)):
                self._drop(known)
                self._forgotten.append((known.name, known.topic_id))
        for topic in found.live.values():
            known_as = self.by_id(topic.topic_id)
            if known_as is None or known_as.version < topic.version:
                self._publish(topic)
        self._unopened = not await self.logs.open_missing(self.all())

    def _is_deleted(self, known: Topic, now: Topic | None) -> bool:
        """A topic may be absent only because the server that answered is behind."""
        if now is not None or str(known.topic_id) in self.gone:
            self._absent_since_s.pop(known.topic_id, None)
            return now is None or now.topic_id != known.topic_id
        if known.name in self._stored:
            return False  # it is there, but cannot be read
        since_s = self._absent_since_s.setdefault(known.topic_id, time.monotonic())
        if time.monotonic() - since_s < _ABSENT_FOR_S:
            return False
        del self._absent_since_s[known.topic_id]
        return True

    async def _forget_offsets(self, topic: Topic) -> None:
        self._forgotten.append((topic.name, topic.topic_id))
        self._settle()

    def _settle(self) -> None:
        """In the background, without the lock: a shard may hang."""
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

    # What this broker changes

    async def _store_all(
        self, topics: Sequence[Topic], state: str
    ) -> dict[UUID, KafkaError | EngineError]:
        refused: dict[UUID, KafkaError | EngineError] = {}
        is_deleted = state == "deleting"
        changes = portions(topics) if is_deleted else [[topic] for topic in topics]
        for some in changes:
            try:
                if is_deleted:
                    await self._registry.delete(some, self._stored)
                    self.gone.update(str(topic.topic_id) for topic in some)
                    for topic in some:
                        self._stored.pop(topic.name, None)
                else:
                    await self._set(some[0])
            except EngineError as error:
                refused |= dict.fromkeys((topic.topic_id for topic in some), error)
            except ChangedElsewhere:
                if len(topics) == 1:
                    raise
                refused[some[0].topic_id] = KafkaStorageError("another broker changes the topic")
        stored = [topic for topic in topics if topic.topic_id not in refused]
        if stored:
            await self._announce()
            for some in portions(stored):
                await _mirror(self._shards.reachable(), some, state)
        return refused

    async def _store_new(self, topics: Sequence[Topic]) -> Mapping[str, KafkaError | EngineError]:
        refused: dict[str, KafkaError | EngineError] = {}
        stored: list[Topic] = []
        lost: EngineError | None = None
        for some in portions(topics):
            if lost is None:
                try:
                    taken = await self._create(some)
                except EngineError as error:
                    lost = error
                else:
                    refused |= taken
                    stored += [topic for topic in some if topic.name not in taken]
                    continue
            refused |= dict.fromkeys((topic.name for topic in some), lost)
        if stored:
            await self._announce()
            for some in portions(stored):
                await _mirror(self._shards.reachable(), some, "live")
        return refused

    async def _create(self, topics: Sequence[Topic]) -> dict[str, KafkaError | EngineError]:
        """Write new topics to the registry; returns those that were not, by name."""
        # A name whose deletion was interrupted is written over.
        left_over = [topic for topic in topics if self._is_left_over(topic.name)]
        fresh = [topic for topic in topics if topic not in left_over]
        made = await self._registry.create(fresh) if fresh else {}
        self._stored |= made
        taken: set[str] = {topic.name for topic in fresh} - made.keys()
        for topic in left_over:
            try:
                await self._set(topic)
            except ChangedElsewhere:
                taken.add(topic.name)
        if taken:  # another broker was faster
            await self._apply(await self._registry.read())
        return {name: TopicAlreadyExists(f"The topic {name!r} exists already.") for name in taken}

    async def _announce(self) -> None:
        number = await self._registry.announce()
        if number == self._looked_at + 1:  # nobody else has changed anything
            self._looked_at = number
            self._settle()

    async def _set(self, topic: Topic) -> None:
        expected = self._stored.get(topic.name)
        if self.by_id(topic.topic_id) is None and not self._is_left_over(topic.name):
            expected = None  # a new topic, whatever the outcome of an earlier attempt
        if not await self._registry.write(topic, expected):
            await self._apply(await self._registry.read())
            raise ChangedElsewhere(topic.name)
        now = await self._registry.stored(topic.name)
        if now is not None:
            self._stored[topic.name] = now

    def _is_left_over(self, name: str) -> bool:
        """Whether the name still belongs to a topic whose deletion was interrupted."""
        stored = self._stored.get(name)
        topic = None if stored is None else self._registry.understood(name, stored)
        return topic is not None and str(topic.topic_id) in self.gone

    def _clean_up(self, topic: Topic) -> None:
        """The housekeeping broker does it, when all brokers have seen the deletion."""


async def _mirror(shards: Sequence[TopicShard], topics: Sequence[Topic], state: str) -> None:
    """Write what topics are now to shards, for SQL."""
    for shard in shards:
        try:
            await store_versions(shard.engine, topics, state)
        except EngineError as error:
            names = ", ".join(topic.name for topic in topics[:3])
            log.warning(
                "%d topics (%s) are not on every shard yet: %s",
                len(topics),
                names,
                error,
                extra=counted(),
            )


def portions(topics: Sequence[Topic]) -> Iterator[Sequence[Topic]]:
    """The topics in portions that fit into one change of the registry: Keeper takes 1 MB."""
    portion: list[Topic] = []
    size = 0
    for topic in topics:
        taken = sum(len(name) + len(value) for name, value in topic.configs.items())
        if portion and (len(portion) == _CHANGE_TOPICS or size + taken > _CHANGE_CONFIG_CHARS):
            yield portion
            portion, size = [], 0
        portion.append(topic)
        size += taken
    if portion:
        yield portion


def topic_watch(catalog: SharedCatalog, latest: Callable[[], int]) -> Periodic:
    """The task that reads what other brokers have changed.

    `latest`: the version of the topics, as far as this broker knows without asking.
    """
    outage = Outage(
        log, "topics cannot be read from the registry, retrying", "topics can be read again"
    )

    async def look() -> None:
        try:
            if catalog.is_behind(latest()):
                await catalog.refresh()
        except EngineError as error:
            outage.failed(error)
        else:
            outage.worked()

    return Periodic("topics-of-others", _WATCH_EVERY_S, look)
