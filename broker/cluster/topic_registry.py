"""Topics as keys of the registry: how they are named, written, changed and deleted there.

`topic/<name>` holds a topic; compare-and-set makes names unique. Deleting one creates
`deleting/<topic id>` first and removes the name after it, so a deletion that was interrupted counts
as done; the key is removed when the rows are deleted (broker/cluster/housekeeping.py). The key
`topics_version` grows with every change, and tells the other brokers to read the topics again.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from broker.config import Settings
from broker.effective_configs import effective
from broker.log.topic import Topic
from common.counted_lines import counted
from protocol.errors import KafkaError
from storage.engine import EngineError
from storage.registry import Registry, Versioned

log = logging.getLogger(__name__)

VERSION_KEY = "topics_version"
_TOPIC = "topic/"
_DELETING = "deleting/"
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """A deleted topic whose rows still exist."""

    topic: Topic
    key: str
    stored: Versioned


@dataclass(frozen=True, slots=True)
class StoredTopics:
    """All topics as they were read. `stored` includes those that cannot be parsed."""

    live: Mapping[str, Topic]
    stored: Mapping[str, Versioned]
    deleted: frozenset[str]
    """Ids of topics."""


class TopicRegistry:
    """Reads and changes topics. Every call raises `EngineError` if there is no answer."""

    def __init__(self, topics: Registry, state: Registry, settings: Settings) -> None:
        """`topics` holds the topics, `state` their version."""
        self._topics = topics
        self._state = state
        self._settings = settings

    async def version(self) -> int:
        return version_number(await self._state.get(VERSION_KEY))

    async def announce(self) -> int:
        """Tell the other brokers to read the topics again; returns the new version."""
        return await announce(self._state, VERSION_KEY)

    async def read(self) -> StoredTopics:
        found = await self._topics.list("")
        deleted = frozenset(
            key.removeprefix(_DELETING) for key in found if key.startswith(_DELETING)
        )
        stored = {
            key.removeprefix(_TOPIC): one for key, one in found.items() if key.startswith(_TOPIC)
        }
        topics = (self.understood(_TOPIC + name, one) for name, one in stored.items())
        live = {
            topic.name: topic
            for topic in topics
            if topic is not None and str(topic.topic_id) not in deleted
        }
        return StoredTopics(live, stored, deleted)

    async def write(self, topic: Topic, expected: Versioned | None) -> bool:
        """False if the stored topic is not `expected`."""
        key = _TOPIC + topic.name
        return await self._topics.compare_and_set(key, expected, _text(topic))

    async def create(self, topics: Iterable[Topic]) -> dict[str, Versioned]:
        """Store new topics in one change. Returns those whose names were free, by name."""
        made = await self._topics.create({_TOPIC + one.name: _text(one) for one in topics})
        return {key.removeprefix(_TOPIC): stored for key, stored in made.items()}

    async def stored(self, name: str) -> Versioned | None:
        return await self._topics.get(_TOPIC + name)

    async def delete(self, topics: Sequence[Topic], stored: Mapping[str, Versioned]) -> None:
        """From then on the topics are deleted, even if their names still exist. One change.

        `stored`: what is stored under their names.
        """
        await self._topics.create({f"{_DELETING}{one.topic_id}": _text(one) for one in topics})
        # A name that stays is written over by the next topic of that name.
        for at in range(0, len(topics), _AT_ONCE):
            await asyncio.gather(
                *(
                    self._free_name(one.name, stored[one.name])
                    for one in topics[at : at + _AT_ONCE]
                    if one.name in stored
                )
            )

    async def _free_name(self, name: str, stored: Versioned) -> None:
        try:
            await self._topics.delete(_TOPIC + name, stored)
        except EngineError as error:
            log.info("the name of deleted topic %s stays for now: %s", name, error, extra=counted())

    async def deleted(self) -> list[DeletedTopic]:
        """Topics whose rows are to be removed."""
        found = []
        for key, stored in (await self._topics.list(_DELETING)).items():
            topic = self.understood(key, stored)
            if topic is not None:
                found.append(DeletedTopic(topic, key, stored))
        return found

    async def forget(self, deleted: DeletedTopic) -> None:
        """Remove the keys of a deleted topic: nothing else is left of it."""
        left = await self.stored(deleted.topic.name)
        topic = None if left is None else self.understood(_TOPIC + deleted.topic.name, left)
        if left is not None and topic is not None and topic.topic_id == deleted.topic.topic_id:
            await self._topics.delete(_TOPIC + topic.name, left)  # the deletion was interrupted
        await self._topics.delete(deleted.key, deleted.stored)

    def understood(self, key: str, stored: Versioned) -> Topic | None:
        """None for what a newer version of this program may have written."""
        try:
            return self._parsed(json.loads(stored.value))
        except (ValueError, KeyError, TypeError, KafkaError) as error:
            log.error(
                "%s in the registry cannot be read and is left as it is: %s",
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


async def announce(state: Registry, key: str) -> int:
    """Add one to the number under `key`, which other brokers watch. Raises `EngineError`."""
    while True:
        version = await state.get(key)
        number = version_number(version) + 1
        if await state.compare_and_set(key, version, str(number)):
            return number


def version_number(version: Versioned | None) -> int:
    """The number under a key that other brokers watch. Raises `EngineError`."""
    try:
        return 0 if version is None else int(version.value)
    except ValueError as error:
        raise EngineError(f"a version in the registry is not a number: {error}") from error


def _text(topic: Topic) -> str:
    value = {
        "name": topic.name,
        "id": str(topic.topic_id),
        "partitions": topic.partitions,
        "configs": dict(topic.configs),
        "version": topic.version,
    }
    return json.dumps(value, separators=(",", ":"))
