"""Topics as keys of the registry, and how they are named, written, changed and deleted there.

`topic/<name>` holds a topic; compare-and-set makes names unique. Deleting one creates
`deleting/<topic id>` first and removes the name after it, so a deletion that was interrupted counts
as done; the key is removed when the rows are removed (broker/topics/topic_cleanup.py). The key
`topics_version` grows with every change, and tells the other brokers to read the topics again.

Every shard has the topics as rows of `topic_versions` too, for SQL. The broker that makes a change
writes them, and the shard's housekeeping broker repairs them.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from brokerhouse.broker.log.topic import Topic
from brokerhouse.broker.settings.config import Settings
from brokerhouse.broker.settings.effective_configs import effective
from brokerhouse.broker.topics.topic_store import (
    ChangedElsewhere,
    Refusals,
    StoredTopics,
    TopicShard,
    TopicState,
    after,
    store_versions,
)
from brokerhouse.common.counted_lines import counted
from brokerhouse.protocol.errors import KafkaError, TopicAlreadyExists
from brokerhouse.storage.engine import EngineError
from brokerhouse.storage.registry import Registry, Versioned, announce, version_number

log = logging.getLogger(__name__)

VERSION_KEY = "topics_version"
_TOPIC = "topic/"
_DELETING = "deleting/"
_AT_ONCE = 8
_CHANGE_TOPICS = 250
_CHANGE_CONFIG_CHARS = 50_000


class TopicRegistry:
    """`TopicStore` of a broker among several. One broker's: it knows what that has read."""

    late_max_ms = 60_000

    def __init__(
        self,
        topics: Registry,
        state: Registry,
        settings: Settings,
        shards: Collection[TopicShard],
    ) -> None:
        """`topics` holds the topics, `state` their version."""
        self._topics = topics
        self._state = state
        self._settings = settings
        self._shards = shards
        self._stored: dict[str, Versioned] = {}
        self._deleted: set[str] = set()

    async def version(self) -> int:
        return version_number(await self._state.get(VERSION_KEY))

    async def read(self) -> StoredTopics:
        found = await self._topics.list("")
        self._deleted = {key.removeprefix(_DELETING) for key in found if key.startswith(_DELETING)}
        self._stored = {
            key.removeprefix(_TOPIC): one for key, one in found.items() if key.startswith(_TOPIC)
        }
        topics = (self._understood(_TOPIC + name, one) for name, one in self._stored.items())
        live = {
            topic.name: topic
            for topic in topics
            if topic is not None and str(topic.topic_id) not in self._deleted
        }
        return StoredTopics(live, frozenset(self._stored), frozenset(self._deleted))

    async def create(self, topics: Sequence[Topic]) -> Refusals:
        refused: Refusals = {}
        lost: EngineError | None = None
        for some in portions(topics):
            if lost is None:
                try:
                    refused |= await self._create(some)
                except EngineError as error:
                    lost = error
            if lost is not None:
                refused |= {one.topic_id: lost for one in some}
        return refused

    async def add_partitions(self, topics: Sequence[Topic]) -> Refusals:
        return await self._change(topics)

    async def set_configs(self, topics: Sequence[Topic]) -> Refusals:
        return await self._change(topics)

    async def delete(self, topics: Sequence[Topic]) -> Refusals:
        refused: Refusals = {}
        for some in portions(topics):
            try:
                await self._delete(some)
            except EngineError as error:
                refused |= {one.topic_id: error for one in some}
        return refused

    async def announce(self, topics: Sequence[Topic], state: TopicState) -> int:
        number = await announce(self._state, VERSION_KEY)
        for some in portions(topics):
            await self._mirror(some, state)
        return number

    async def deleted(self) -> Sequence[Topic]:
        found = (await self._topics.list(_DELETING)).items()
        topics = (self._understood(key, stored) for key, stored in found)
        return [topic for topic in topics if topic is not None]

    async def announce_deleted(self) -> int:
        return await announce(self._state, VERSION_KEY)

    async def forget(self, topics: Sequence[Topic]) -> None:
        for shard in self._shards:
            await store_versions(shard.engine, after(topics), "deleted")
        for topic in topics:
            await self._remove_keys(topic)

    async def _remove_keys(self, topic: Topic) -> None:
        left = await self._topics.get(_TOPIC + topic.name)
        found = None if left is None else self._understood(_TOPIC + topic.name, left)
        if left is not None and found is not None and found.topic_id == topic.topic_id:
            await self._topics.delete(_TOPIC + topic.name, left)  # the deletion was interrupted
        key = f"{_DELETING}{topic.topic_id}"
        mark = await self._topics.get(key)
        if mark is not None:
            await self._topics.delete(key, mark)

    async def _create(self, topics: Sequence[Topic]) -> Refusals:
        """In one change. A name whose deletion was interrupted is written over."""
        left_over = [topic for topic in topics if self._is_left_over(topic.name)]
        written_over = {topic.name for topic in left_over}
        fresh = [topic for topic in topics if topic.name not in written_over]
        made = await self._put_new(fresh) if fresh else {}
        self._stored |= made
        taken: Refusals = {
            one.topic_id: TopicAlreadyExists(f"The topic {one.name!r} exists already.")
            for one in fresh
            if one.name not in made
        }
        return taken | await self._change(left_over)

    async def _put_new(self, topics: Iterable[Topic]) -> dict[str, Versioned]:
        """Store new topics in one change. Returns those whose names were free, by name."""
        made = await self._topics.create({_TOPIC + one.name: _text(one) for one in topics})
        return {key.removeprefix(_TOPIC): stored for key, stored in made.items()}

    def _is_left_over(self, name: str) -> bool:
        """Whether the name still belongs to a topic whose deletion was interrupted."""
        stored = self._stored.get(name)
        topic = None if stored is None else self._understood(_TOPIC + name, stored)
        return topic is not None and str(topic.topic_id) in self._deleted

    async def _change(self, topics: Sequence[Topic]) -> Refusals:
        refused: Refusals = {}
        for topic in topics:
            try:
                if not await self._write(topic):
                    refused[topic.topic_id] = ChangedElsewhere(topic.name)
            except EngineError as error:
                refused[topic.topic_id] = error
        return refused

    async def _write(self, topic: Topic) -> bool:
        """False if what is stored under the name is not what this broker has read."""
        key = _TOPIC + topic.name
        expected = self._stored.get(topic.name)
        if not await self._topics.compare_and_set(key, expected, _text(topic)):
            return False
        now = await self._topics.get(key)
        if now is not None:
            self._stored[topic.name] = now
        return True

    async def _delete(self, topics: Sequence[Topic]) -> None:
        """From then on the topics are deleted, even if their names still exist. One change."""
        await self._topics.create({f"{_DELETING}{one.topic_id}": _text(one) for one in topics})
        self._deleted.update(str(one.topic_id) for one in topics)
        # A name that stays is written over by the next topic of that name.
        names = [one.name for one in topics if one.name in self._stored]
        for at in range(0, len(names), _AT_ONCE):
            await asyncio.gather(*map(self._free_name, names[at : at + _AT_ONCE]))

    async def _free_name(self, name: str) -> None:
        try:
            await self._topics.delete(_TOPIC + name, self._stored.pop(name))
        except EngineError as error:
            log.info(
                "cannot free the name of deleted topic %s yet: %s", name, error, extra=counted()
            )

    async def _mirror(self, topics: Sequence[Topic], state: TopicState) -> None:
        """Write what topics are now to the shards that answer, for SQL."""
        for shard in self._shards:
            if shard.is_away():
                continue
            try:
                await store_versions(shard.engine, topics, state)
            except EngineError as error:
                log.warning(
                    "%d topics (%s) are not on every shard yet: %s",
                    len(topics),
                    ", ".join(topic.name for topic in topics[:3]),
                    error,
                    extra=counted(),
                )

    def _understood(self, key: str, stored: Versioned) -> Topic | None:
        """None for what a newer version of this program may have written."""
        try:
            return self._parsed(json.loads(stored.value))
        except (ValueError, KeyError, TypeError, KafkaError) as error:
            log.error(
                "cannot read %s in the registry, so it stays as it is: %s",
                key,
                error,
                extra=counted(),
            )
            return None

    def _parsed(self, value: Mapping[str, Any]) -> Topic:
        return Topic(
            value["name"],
            UUID(value["id"]),
            int(value["partitions"]),
            dict(value["configs"]),
            effective(value["configs"], self._settings),
            int(value["version"]),
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


def stored_rows(live: Iterable[Topic], deleted: Iterable[Topic]) -> dict[str, str]:
    """What the registry has of these topics."""
    return {
        **{_TOPIC + topic.name: _text(topic) for topic in live},
        **{f"{_DELETING}{topic.topic_id}": _text(topic) for topic in deleted},
    }


def _text(topic: Topic) -> str:
    value = {
        "name": topic.name,
        "id": str(topic.topic_id),
        "partitions": topic.partitions,
        "configs": dict(topic.configs),
        "version": topic.version,
    }
    return json.dumps(value, separators=(",", ":"))
