"""Topics in memory, by name and by id: a value without IO. catalog.py changes topics."""

from __future__ import annotations

from uuid import UUID

from brokerhouse.broker.log.topic import Topic
from brokerhouse.broker.topics import topic_names
from brokerhouse.protocol.errors import InvalidTopic, TopicAlreadyExists


class KnownTopics:
    """What a catalog knows. Whatever is asked for with each request does not walk all topics."""

    def __init__(self) -> None:
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._in_order: list[str] | None = None
        self._alike: dict[str, set[str]] = {}  # names by their collision key
        self._compacted: set[UUID] = set()

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def has_compacted(self) -> bool:
        """Whether a topic has `compact` in its `cleanup.policy`."""
        return bool(self._compacted)

    def get(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def by_id(self, topic_id: UUID) -> Topic | None:
        return self._by_id.get(topic_id)

    def all(self) -> list[Topic]:
        """Every topic, by name."""
        if self._in_order is None:
            self._in_order = sorted(self._by_name)
        return [self._by_name[name] for name in self._in_order]

    def check_free(self, name: str) -> None:
        """Raises `TopicAlreadyExists`, or `InvalidTopic` if the name collides with another."""
        if name in self._by_name:
            raise TopicAlreadyExists(f"The topic {name!r} exists already.")
        others = self._alike.get(topic_names.collision_key(name) or "")
        if others:
            raise collision(name, min(others))

    def put(self, topic: Topic) -> None:
        """A topic is new, or has changed."""
        if topic.name not in self._by_name:
            self._in_order = None
        key = topic_names.collision_key(topic.name)
        if key is not None:
            self._alike.setdefault(key, set()).add(topic.name)
        if "compact" in topic.config.cleanup_policy:
            self._compacted.add(topic.topic_id)
        else:
            self._compacted.discard(topic.topic_id)
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic

    def drop(self, topic: Topic) -> None:
        """A topic was deleted."""
        del self._by_name[topic.name]
        del self._by_id[topic.topic_id]
        self._in_order = None
        self._compacted.discard(topic.topic_id)
        key = topic_names.collision_key(topic.name)
        if key is not None:
            self._alike[key].discard(topic.name)
            if not self._alike[key]:
                del self._alike[key]


def collision(name: str, other: str) -> InvalidTopic:
    """The error for the name of a new topic."""
    return InvalidTopic(
        f"The topic name {name!r} collides with {other!r}: metric names have '_' instead of '.'."
    )
