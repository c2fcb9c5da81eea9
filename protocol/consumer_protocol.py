"""What consumers tell each other through their group's coordinator: subscriptions and assignments.

The coordinator passes these bytes on and does not need to understand them; clients may send any
bytes. They are read here to show them to people, and for questions like "is this topic subscribed".
Feeds write some of their own (broker/feeds/groups.py).
Bytes that are not of the consumer protocol give None, and reading them takes time in proportion to
their length.

Versions 0 to 3 differ only in what follows the part that is read here; later versions are read in
the same way. Kafka's own coordinator also reads a subscription of any version as version 0.
Formats: ConsumerProtocolSubscription.json and ConsumerProtocolAssignment.json in Kafka's clients.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Partitions: TypeAlias = Mapping[str, Sequence[int]]
"""The numbers of partitions by topic."""

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


class _Malformed(Exception):
    """The bytes are not a subscription or an assignment."""


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics of a member's subscription."""
    return _read(metadata, _subscription)


def assigned_partitions(assignment: bytes) -> dict[str, list[int]] | None:
    """The partitions that a member was given, by topic."""
    return _read(assignment, _assignment)


def user_data(metadata: bytes) -> bytes | None:
    """What a member's subscription has beside topics."""
    return _read(metadata, _user_data)


def subscription(topics: Sequence[str], user_data: bytes) -> bytes:
    """A subscription of version 0."""
    return b"".join(
        (_INT16.pack(0), _INT32.pack(len(topics)), *map(_text, topics), _bytes(user_data))
    )


def assignment(partitions: Partitions, user_data: bytes = b"") -> bytes:
    """An assignment of version 0."""
    topics = (
        _text(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
        for topic, numbers in partitions.items()
    )
    return b"".join((_INT16.pack(0), _INT32.pack(len(partitions)), *topics, _bytes(user_data)))


def _text(text: str) -> bytes:
    data = text.encode()
    return _INT16.pack(len(data)) + data


def _bytes(data: bytes) -> bytes:
    return _INT32.pack(len(data)) + data


def _read(data: bytes, parse: Callable[[_MetadataReader], T]) -> T | None:
    try:
        reader = _MetadataReader(data)
        if reader.number(_INT16) < 0:
            return None
        return parse(reader)
    except (_Malformed, struct.error, UnicodeDecodeError):
        return None


def _subscription(reader: _MetadataReader) -> frozenset[str]:
    topics = frozenset(reader.text() for _ in range(reader.count(smallest=2)))
    reader.skip_nullable_bytes()
    return topics


def _user_data(reader: _MetadataReader) -> bytes:
    for _ in range(reader.count(smallest=2)):
        reader.text()
    return reader.nullable_bytes()


def _assignment(reader: _MetadataReader) -> dict[str, list[int]]:
    assigned: dict[str, list[int]] = {}
    for _ in range(reader.count(smallest=6)):
        assigned.setdefault(reader.text(), []).extend(reader.numbers())
    reader.skip_nullable_bytes()
    return assigned


class _MetadataReader:
    """Reads values from the front of `data`, each checked against the bytes that are left."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def number(self, layout: struct.Struct) -> int:
        (value,) = layout.unpack_from(self._data, self._position)
        self._position += layout.size
        return int(value)

    def count(self, smallest: int) -> int:
        """How many elements follow, of at least `smallest` bytes each."""
        count = self.number(_INT32)
        if count < 0 or count * smallest > len(self._data) - self._position:
            raise _Malformed
        return count

    def text(self) -> str:
        return self._read_bytes(self.number(_INT16)).decode()

    def numbers(self) -> tuple[int, ...]:
        count = self.count(smallest=4)
        return struct.unpack(f">{count}i", self._read_bytes(4 * count))

    def skip_nullable_bytes(self) -> None:
        self.nullable_bytes()

    def nullable_bytes(self) -> bytes:
        size = self.number(_INT32)
        return b"" if size == -1 else self._read_bytes(size)

    def _read_bytes(self, size: int) -> bytes:
        end = self._position + size
        if size < 0 or end > len(self._data):
            raise _Malformed
        found = self._data[self._position : end]
        self._position = end
        return found
