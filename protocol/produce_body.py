"""The body of a Produce response in which every partition succeeded.

A busy broker writes thousands of them a second. Packing one takes a sixth of the time of
kafka-python's objects and encoder (measured: 4 us for one partition, with its frame).
tests/unit/test_produce_body.py compares the two in every version. Responses that tell of an error
are left to kafka-python.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from protocol.varints import array_length, string

_LOG_START_SINCE, _RECORD_ERRORS_SINCE, _FLEXIBLE = 5, 8, 9  # versions
_NOT_THROTTLED = bytes(4)
_NOT_THROTTLED_NO_TAGS = bytes(5)
_NO_TAGS = b"\0"
# Index, error code 0, base offset, append time, log start offset, no record errors, no message.
_PARTITION = struct.Struct(">ihqq")
_PARTITION_LOG_START = struct.Struct(">ihqqq")
_PARTITION_RECORD_ERRORS = struct.Struct(">ihqqqih")
_PARTITION_FLEXIBLE = struct.Struct(">ihqqqBBx")
_NO_MESSAGE = -1
_EMPTY_ARRAY = 1  # a compact array has its length and one


class StoredBatch(NamedTuple):
    """Where the batch of one partition is stored."""

    partition: int
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int


class StoredTopic(NamedTuple):
    """A topic as the request names it."""

    key: str | UUID
    """Its name; from version 13 on its id."""
    batches: Sequence[StoredBatch]


def produce_body(version: int, topics: Sequence[StoredTopic]) -> bytes:
    """Everything after the header of the response, from version 3 on."""
    flexible = version >= _FLEXIBLE
    parts = [array_length(topics, flexible)]
    for topic in topics:
        key = topic.key
        parts.append(key.bytes if isinstance(key, UUID) else string(key, flexible))
        parts.append(array_length(topic.batches, flexible))
        parts += [_packed(version, batch) for batch in topic.batches]
        if flexible:
            parts.append(_NO_TAGS)
    parts.append(_NOT_THROTTLED_NO_TAGS if flexible else _NOT_THROTTLED)
    return b"".join(parts)


def _packed(version: int, batch: StoredBatch) -> bytes:
    partition, base_offset, append_time_ms, log_start = batch
    if version >= _FLEXIBLE:
        return _PARTITION_FLEXIBLE.pack(
            partition, 0, base_offset, append_time_ms, log_start, _EMPTY_ARRAY, 0
        )
    if version >= _RECORD_ERRORS_SINCE:
        return _PARTITION_RECORD_ERRORS.pack(
            partition, 0, base_offset, append_time_ms, log_start, 0, _NO_MESSAGE
        )
    if version >= _LOG_START_SINCE:
        return _PARTITION_LOG_START.pack(partition, 0, base_offset, append_time_ms, log_start)
    return _PARTITION.pack(partition, 0, base_offset, append_time_ms)
