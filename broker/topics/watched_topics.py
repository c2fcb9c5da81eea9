"""The topics as this broker has read them: by name, by id, and again when others changed them.

What must hold: while the lock is held, no topic appears or goes, and no log is being opened. The
version that `Settling` has reached says of which deletions the effects are complete here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import UUID

from brokerhouse.broker.log.open_logs import OpenLogs
from brokerhouse.broker.log.topic import Topic
from brokerhouse.broker.settings.config import Settings
from brokerhouse.broker.settings.effective_configs import effective
from brokerhouse.broker.topics.known_topics import KnownTopics
from brokerhouse.broker.topics.topic_store import StoredTopics, TopicShard, TopicStore
from brokerhouse.common.counted_lines import counted
from brokerhouse.common.tasks import Outage, Periodic, cancel, event_within
from brokerhouse.storage.engine import EngineError
from brokerhouse.storage.registry import LOOK_ANYWAY_S

log = logging.getLogger(__name__)

_WATCH_EVERY_S = 0.25
_LOOK_LIMIT_S = 1.0
_LOOK_EVERY_S = 0.02
_FORGET_LIMIT_S = 1.0
_ABSENT_FOR_S = 60.0
"""A topic that disappeared and is not marked as deleted is kept for this long."""


class Settling:
    """Completes deletions, in the background: a shard may not answer.

    Offsets of the topic are forgotten, and blocks that may have rows of it are stored.
    """

    def __init__(self, shards: Collection[TopicShard]) -> None:
        self._shards = shards
        self.seen = 0
        """The version that this broker knows: it writes to no topic that was deleted up to it."""
        self.has_deleted = asyncio.Event()
        """Set when a deletion is complete here."""
        self._version = 0
        self._deleted = deque[Topic]()
        self._has_forgotten = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def delete(self, topic: Topic) -> None:
        """The topic has been deleted, and its logs are closed."""
        self._deleted.append(topic)
        self._has_forgotten.clear()

    def reach(self, version: int) -> None:
        """This broker has read this version of the topics."""
        self._version = version
        is_behind = self.seen != version or self._deleted
        if is_behind and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._settle(), name="topics-settle")

    async def offsets_forgotten(self) -> None:
        """Wait until groups have forgotten the deleted topics; not for a shard that hangs."""
        if self._task is not None:
            await event_within(self._has_forgotten, _FORGET_LIMIT_S)

    async def _settle(self) -> None:
        while self.seen != self._version or self._deleted:
            version, deletes = self._version, bool(self._deleted)
            while self._deleted:
                await self._forget(self._deleted.popleft())
            self._has_forgotten.set()
            await asyncio.gather(*(shard.settled() for shard in self._shards))
            self.seen = version
            if deletes:
                self.has_deleted.set()

    async def _forget(self, topic: Topic) -> None:
        for shard in self._shards:
            try:
                await shard.forget_topic(topic.name, topic.topic_id)
            except EngineError as error:
                log.error(
                    "offsets of deleted topic %s stay until the next start: %s",
                    topic.name,
                    error,
                    extra=counted(),
                )

    async def close(self) -> None:
        await self.offsets_forgotten()
        await cancel(self._task)


class WatchedTopics:
    """Finds topics by name and by id. `logs` gets every change of a topic."""

    def __init__(
        self, store: TopicStore, settings: Settings, logs: OpenLogs, shards: Collection[TopicShard]
    ) -> None:
        self.logs = logs
        self.known = KnownTopics()
        self.gone: set[str] = set()
        """Ids of deleted topics whose rows are not removed yet."""
        self.version = 0
        """The version of the topics that was read last."""
        self.settling = Settling(shards)
        self._store = store
        self._settings = settings
        self._shards = shards
        self._lock = asyncio.Lock()
        self._absent_since_s: dict[UUID, float] = {}
        self._looked_s = 0.0
        self._is_stale = False
        """Logs could not be opened yet, or another broker was faster: read again."""
        self._joined: asyncio.Task[None] | None = None

    @property
    def late_max_ms(self) -> int:
        """As `TopicStore.late_max_ms`."""
        return self._store.late_max_ms

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

    async def size_bytes(self) -> dict[tuple[UUID, int], int]:
        """Bytes of keys and values stored per (topic id, partition), before compression."""
        sizes: dict[tuple[UUID, int], int] = {}
        for shard in self._shards:
            if shard.is_away():
                continue
            for topic_id, partition, size in await shard.engine.rows(
                "SELECT topic_id, partition, bytes FROM partition_stats WHERE bytes > 0"
            ):
                key = UUID(str(topic_id)), partition
                sizes[key] = sizes.get(key, 0) + size
        return sizes

    def use_settings(self, settings: Settings) -> None:
        """The settings have changed: configs that a topic does not set have other defaults."""
        self._settings = settings
        for topic in self.all():
            self._publish(topic)

    # Reading what is stored

    async def refresh(self) -> None:
        """Read what other brokers have changed. Raises `EngineError`."""
        async with self._lock:
            await self._look()

    @asynccontextmanager
    async def latest(self) -> AsyncIterator[list[Topic]]:
        """All topics, read again from the store; the catalog is locked meanwhile.

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
        """A request names an unknown topic: another broker may just have created it.

        One read serves all requests that arrive meanwhile, in order; at most 50 a second.
        """
        if not self.late_max_ms and not self._is_stale:
            return
        if self._joined is None:
            self._joined = asyncio.create_task(self.refresh(), name="topics-again")
            self._joined.add_done_callback(self._looked_again)
        try:
            async with asyncio.timeout(_LOOK_LIMIT_S):
                await asyncio.shield(self._joined)
        except (TimeoutError, EngineError) as error:
            log.debug("topics cannot be read again: %s", error)

    def _looked_again(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()  # raised in the requests that wait
        asyncio.get_running_loop().call_later(_LOOK_EVERY_S, self._forget_look)

    def _forget_look(self) -> None:
        self._joined = None

    def is_behind(self, version: int) -> bool:
        """Whether there is something to read if the topics have this version now."""
        # With a lower version, the server that answered is behind.
        waited_s = time.monotonic() - self._looked_s
        due = self.late_max_ms > 0 and waited_s > LOOK_ANYWAY_S
        return version > self.version or due or self._is_stale

    async def _look(self) -> None:
        version = await self._store.version()
        if not self.is_behind(version):
            return
        await self._apply(await self._store.read())
        self._looked_s = time.monotonic()
        self.version = max(self.version, version)
        self.settling.reach(self.version)

    async def _apply(self, found: StoredTopics) -> None:
        self.gone = set(found.deleted)
        for known in self.all():
            if self._is_deleted(known, found):
                self._drop(known)
        for topic in found.live.values():
            known_as = self.by_id(topic.topic_id)
            if known_as is None or known_as.version < topic.version:
                self._publish(topic)
        self._is_stale = not await self.logs.open_missing(self.all())

    def _is_deleted(self, known: Topic, found: StoredTopics) -> bool:
        """A topic may be absent only because the server that answered is behind."""
        now = found.live.get(known.name)
        if now is not None or str(known.topic_id) in self.gone:
            self._absent_since_s.pop(known.topic_id, None)
            return now is None or now.topic_id != known.topic_id
        if known.name in found.names:
            return False  # it is there, but cannot be read
        since_s = self._absent_since_s.setdefault(known.topic_id, time.monotonic())
        if time.monotonic() - since_s < _ABSENT_FOR_S:
            return False
        del self._absent_since_s[known.topic_id]
        return True

    def _publish(self, topic: Topic) -> None:
        config = effective(topic.configs, self._settings)
        if config != topic.config:  # the settings have changed since the topic was read
            topic = replace(topic, config=config)
        self.logs.adopt(topic)
        self.known.put(topic)

    def _drop(self, topic: Topic) -> None:
        """Forget a deleted topic."""
        self.known.drop(topic)
        self.logs.close_topic(topic)
        self.settling.delete(topic)


def topic_watch(topics: WatchedTopics, latest: Callable[[], int]) -> Periodic:
    """The task that reads what other brokers have changed.

    `latest`: the version of the topics, as far as this broker knows without asking.
    """
    outage = Outage(
        log, "topics cannot be read from the registry, retrying", "topics can be read again"
    )

    async def look() -> None:
        try:
            if topics.is_behind(latest()):
                await topics.refresh()
        except EngineError as error:
            outage.failed(error)
        else:
            outage.worked()

    return Periodic("topics-of-others", _WATCH_EVERY_S, look)
