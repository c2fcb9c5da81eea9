"""Encoded topics of Metadata responses, kept until the topic or one of its leaders changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

from brokerhouse.broker.endpoints import Leader
from brokerhouse.broker.log.topic import Topic

_MAX_BYTES = 16 << 20


class Kind(NamedTuple):
    """What an encoding depends on besides the topic and its leaders."""

    version: int
    with_operations: bool


class _Encoded(NamedTuple):
    topic: Topic
    leaders: Sequence[Leader]
    data: bytes


class EncodedTopics:
    """What was encoded lately, 16 MiB at most."""

    def __init__(self) -> None:
        self._known: dict[tuple[UUID, Kind], _Encoded] = {}
        self._size = 0

    def get(
        self, topic: Topic, leaders: Sequence[Leader], kind: Kind, encode: Callable[[], bytes]
    ) -> bytes:
        """The topic with these leaders, from `encode` if it is not known."""
        key = topic.topic_id, kind
        known = self._known.get(key)
        if known is not None:
            if known.topic is topic and known.leaders == leaders:
                return known.data
            self._size -= len(known.data)
        data = encode()
        self._size += len(data)
        if self._size > _MAX_BYTES:
            self._known.clear()
            self._size = len(data)
        self._known[key] = _Encoded(topic, leaders, data)
        return data
