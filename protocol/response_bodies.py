"""Responses that are encoded here, because kafka-python's objects and encoder would cost too much.

Kafka's FetchResponse.json and so on describe the formats. The tests compare every version with
kafka-python's.

* Fetch: a frame is a list of pieces, the record batches as they are, and what stands between them.
  kafka-python copies the records of a response three times. Of the tagged fields only
  DivergingEpoch is written. The broker never sets the others: CurrentLeader, SnapshotId,
  NodeEndpoints.
* Metadata: the body, out of topics that were encoded before. A topic's description changes seldom
  and is asked for by every client: encoding one of 50 partitions takes 0.5 ms with kafka-python's
  objects. Both sides of the list of topics are encoded by kafka-python; here the list is put
  between them.
* OffsetCommit: the body. A busy broker writes thousands of them a second, with an element for each
  partition. Packing them takes a tenth of the time (measured: 4 us for 10 partitions).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import starmap
from typing import NamedTuple
from uuid import UUID

from kafka.protocol.consumer import FetchResponse
from kafka.protocol.metadata import MetadataResponse

from brokerhouse.protocol.varints import array_length, string, varuint

_FETCH_FLEXIBLE, _BY_TOPIC_ID, _PREFERRED_REPLICA, _SESSIONS, _LOG_START = 12, 13, 11, 7, 5
_NO_TAGS = b"\0"
_PIECE_BYTES = 16 << 10
"""Smaller batches are copied: many pieces cost more."""
_COPIED_MAX_BYTES = 256 << 10
"""But not more than this: a copy is memory that no other response shares."""
_DIVERGING = struct.Struct(">BBBiqB")  # one tag, its number and size; epoch, end offset, no tags
_FETCHED_PARTITION = struct.Struct(">ihqq")  # index, error code, high watermark, last stable offset


def fetch_frame(response: FetchResponse, version: int, correlation_id: int) -> list[bytes]:
    """The whole frame in pieces, length first. `records` is a sequence of batches, or None."""
    flexible = version >= _FETCH_FLEXIBLE
    tags = _NO_TAGS if flexible else b""
    pieces: list[bytes] = []
    out = bytearray(4)
    out += struct.pack(">i", correlation_id) + tags
    out += struct.pack(">i", response.throttle_time_ms)
    if version >= _SESSIONS:
        out += struct.pack(">hi", response.error_code, response.session_id)
    out += _length(len(response.responses), flexible)
    for topic in response.responses:
        if version >= _BY_TOPIC_ID:
            out += topic.topic_id.bytes
        else:
            name = topic.topic.encode()
            out += varuint(len(name) + 1) if flexible else struct.pack(">h", len(name))
            out += name
        out += _length(len(topic.partitions), flexible)
        for partition in topic.partitions:
            out += _partition_head(partition, version)
            batches: Sequence[bytes] | None = partition.records
            if batches is None:
                out += _length(-1, flexible)
            else:
                size = sum(map(len, batches))
                out += _length(size, flexible)
                if size < _PIECE_BYTES * len(batches) and size <= _COPIED_MAX_BYTES:
                    out += b"".join(batches)
                elif size:
                    pieces += (bytes(out), *batches)
                    out.clear()
            out += _partition_tags(partition) if flexible else b""
        out += tags
    out += tags
    pieces.append(bytes(out))
    length = sum(map(len, pieces)) - 4
    pieces[0] = struct.pack(">i", length) + pieces[0][4:]
    return pieces


def _length(length: int, flexible: bool) -> bytes:
    """Of an array or of bytes; -1 is null."""
    return varuint(length + 1) if flexible else struct.pack(">i", length)


def _partition_head(
    partition: FetchResponse.FetchableTopicResponse.PartitionData, version: int
) -> bytes:
    """Everything before the records."""
    head = _FETCHED_PARTITION.pack(
        partition.partition_index,
        partition.error_code,
        partition.high_watermark,
        partition.last_stable_offset,
    )
    if version >= _LOG_START:
        head += struct.pack(">q", partition.log_start_offset)
    flexible = version >= _FETCH_FLEXIBLE
    aborted = partition.aborted_transactions
    head += _length(-1 if aborted is None else len(aborted), flexible)
    for transaction in aborted or ():
        head += struct.pack(">qq", transaction.producer_id, transaction.first_offset)
        head += _NO_TAGS if flexible else b""
    if version >= _PREFERRED_REPLICA:
        head += struct.pack(">i", partition.preferred_read_replica)
    return head


def _partition_tags(partition: FetchResponse.FetchableTopicResponse.PartitionData) -> bytes:
    diverging = partition.diverging_epoch
    if diverging is None:
        return _NO_TAGS
    return _DIVERGING.pack(1, 0, 13, diverging.epoch, diverging.end_offset, 0)


_OPERATIONS_SINCE, _METADATA_FLEXIBLE, _OPERATIONS_UNTIL, _ERROR_SINCE = 8, 9, 10, 13  # versions


def encoded_topic(topic: MetadataResponse.MetadataResponseTopic, version: int) -> bytes:
    """One element of the list of topics."""
    body = _encoded(_response([topic]), version)
    head = len(_encoded(_response([]), version)) - _size_behind(version)
    return body[head : len(body) - _size_behind(version)]


def metadata_body(response: MetadataResponse, topics: Sequence[bytes], version: int) -> bytes:
    """The body of `response`, whose list of topics is empty, with these topics."""
    body = _encoded(response, version)
    behind = len(body) - _size_behind(version)
    compact = version >= _METADATA_FLEXIBLE
    before = behind - len(array_length((), compact))
    return b"".join((body[:before], array_length(topics, compact), *topics, body[behind:]))


def _size_behind(version: int) -> int:
    """The size of the fields that follow the list of topics."""
    operations = 4 if _OPERATIONS_SINCE <= version <= _OPERATIONS_UNTIL else 0
    return operations + (2 if version >= _ERROR_SINCE else 0) + (version >= _METADATA_FLEXIBLE)


def _response(topics: Sequence[MetadataResponse.MetadataResponseTopic]) -> MetadataResponse:
    return MetadataResponse(
        throttle_time_ms=0,
        brokers=[],
        cluster_id="",
        controller_id=0,
        topics=list(topics),
        authorized_operations=set(),
        error_code=0,
    )


def _encoded(response: MetadataResponse, version: int) -> bytes:
    response.API_VERSION = version
    return bytes(response.encode(header=False, framed=False))


_THROTTLED, _COMMIT_FLEXIBLE, _BY_ID = 3, 8, 10  # versions
_NOT_THROTTLED = bytes(4)
_COMMITTED_PARTITION = struct.Struct(">ih")
_FLEXIBLE_PARTITION = struct.Struct(">ihx")  # without tagged fields, which is a zero


class AnsweredTopic(NamedTuple):
    """A topic as the request names it, and (partition index, error code) of its partitions."""

    name: str
    topic_id: UUID
    partitions: Sequence[tuple[int, int]]


def offset_commit_body(version: int, topics: Sequence[AnsweredTopic]) -> bytes:
    """Everything after the header of the response."""
    flexible = version >= _COMMIT_FLEXIBLE
    partition = (_FLEXIBLE_PARTITION if flexible else _COMMITTED_PARTITION).pack
    parts = [_NOT_THROTTLED] if version >= _THROTTLED else []
    parts.append(array_length(topics, flexible))
    for topic in topics:
        parts.append(topic.topic_id.bytes if version >= _BY_ID else string(topic.name, flexible))
        parts.append(array_length(topic.partitions, flexible))
        parts += starmap(partition, topic.partitions)
        if flexible:
            parts.append(_NO_TAGS)
    if flexible:
        parts.append(_NO_TAGS)
    return b"".join(parts)
