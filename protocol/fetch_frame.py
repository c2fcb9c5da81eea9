"""Fetch responses to frames, without copying large record batches.

kafka-python copies the records of a response three times. Here a frame is a list of pieces: the
batches as they are, and what stands between them. Kafka's FetchResponse.json describes the format.
The tests compare every version with kafka-python's.

Of the tagged fields only DivergingEpoch is written. The broker never sets the others:
CurrentLeader, SnapshotId, NodeEndpoints.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from kafka.protocol.consumer import FetchResponse

from protocol.varints import varuint

_FLEXIBLE, _BY_TOPIC_ID, _PREFERRED_REPLICA, _SESSIONS, _LOG_START = 12, 13, 11, 7, 5
_NO_TAGS = b"\0"
_PIECE_BYTES = 16 << 10
"""Smaller batches are copied: many pieces cost more."""
_COPIED_MAX_BYTES = 256 << 10
"""But not more than this: a copy is memory that no other response shares."""
_DIVERGING = struct.Struct(">BBBiqB")  # one tag, its number and size; epoch, end offset, no tags
_PARTITION = struct.Struct(">ihqq")  # index, error code, high watermark, last stable offset


def fetch_frame(response: FetchResponse, version: int, correlation_id: int) -> list[bytes]:
    """The whole frame in pieces, length first. `records` is a sequence of batches, or None."""
    flexible = version >= _FLEXIBLE
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
    head = _PARTITION.pack(
        partition.partition_index,
        partition.error_code,
        partition.high_watermark,
        partition.last_stable_offset,
    )
    if version >= _LOG_START:
        head += struct.pack(">q", partition.log_start_offset)
    flexible = version >= _FLEXIBLE
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
