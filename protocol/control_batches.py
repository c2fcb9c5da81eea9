"""Transaction markers: control batches of one record (KIP-98).

The key is a version and a type (0 abort, 1 commit), the value a version and the epoch of the
coordinator that decided.
"""

from __future__ import annotations

import struct

from brokerhouse.protocol._batches import crc32c
from brokerhouse.protocol.batches import (
    ATTRIBUTES_AT,
    BATCH_HEADER,
    BATCH_OVERHEAD,
    LENGTH_END,
    Attribute,
)
from brokerhouse.protocol.varints import zigzag

ABORT_KEY = b"\0\0\0\0"
COMMIT_KEY = b"\0\0\0\1"
_VALUE = struct.Struct(">hi")  # version, coordinator epoch
_CRC = struct.Struct(">I")
_CRC_AT = ATTRIBUTES_AT - _CRC.size


def control_batch(
    producer_id: int,
    producer_epoch: int,
    *,
    commit: bool,
    coordinator_epoch: int,
    timestamp_ms: int,
) -> bytes:
    """A marker of this producer, at offset 0."""
    key, value = COMMIT_KEY if commit else ABORT_KEY, _VALUE.pack(0, coordinator_epoch)
    body = b"\0\0\0" + zigzag(len(key)) + key + zigzag(len(value)) + value + b"\0"
    record = zigzag(len(body)) + body
    head = 0, BATCH_OVERHEAD - LENGTH_END + len(record), 0, 2, 0
    attributes = Attribute.TRANSACTIONAL | Attribute.CONTROL
    producer = producer_id, producer_epoch, -1
    batch = bytearray(
        BATCH_HEADER.pack(*head, attributes, 0, timestamp_ms, timestamp_ms, *producer, 1)
    )
    batch += record
    _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[ATTRIBUTES_AT:]))
    return bytes(batch)
