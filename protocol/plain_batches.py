"""Record batches of format v2 that a broker makes itself: uncompressed, without a producer.

Format: https://kafka.apache.org/documentation/#recordbatch (KIP-98).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from brokerhouse.protocol._batches import crc32c
from brokerhouse.protocol.batches import ATTRIBUTES_AT, BATCH_HEADER, BATCH_OVERHEAD, LENGTH_END
from brokerhouse.protocol.varints import zigzag

_CRC = struct.Struct(">I")
_CRC_AT = ATTRIBUTES_AT - _CRC.size
_NULL = zigzag(-1)


class PlainRecord(NamedTuple):
    """`value` None is a tombstone."""

    key: bytes
    value: bytes | None
    timestamp_ms: int


def plain_batch(base_offset: int, leader_epoch: int, records: Sequence[PlainRecord]) -> bytes:
    """At least one record; their offsets follow each other from `base_offset` on."""
    first_ms = records[0].timestamp_ms
    largest_ms = max(record.timestamp_ms for record in records)
    body = bytearray()
    for delta, (key, value, timestamp_ms) in enumerate(records):
        head = b"\0" + zigzag(timestamp_ms - first_ms) + zigzag(delta)
        value_field = _NULL if value is None else zigzag(len(value)) + value
        record = head + zigzag(len(key)) + key + value_field + b"\0"  # no headers
        body += zigzag(len(record)) + record
    size = BATCH_OVERHEAD - LENGTH_END + len(body)
    begin = base_offset, size, leader_epoch, 2, 0, 0, len(records) - 1, first_ms, largest_ms
    batch = bytearray(BATCH_HEADER.pack(*begin, -1, -1, -1, len(records)))
    batch += body
    _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[ATTRIBUTES_AT:]))
    return bytes(batch)
