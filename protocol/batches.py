"""Record batches as Kafka frames them: the layout of a header, and the offsets of a batch.

_batches.pyx reads headers, _decode_batches.pyx the records inside, and _encode_batches.pyx writes
batches.

Format: record batch v2 (https://kafka.apache.org/documentation/#recordbatch, KIP-98).
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

# Base offset, length of what follows it, leader epoch, magic, CRC of what follows it, attributes,
# last offset delta, base and max timestamp, producer id and epoch, base sequence, count.
BATCH_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
BATCH_OVERHEAD: Final = BATCH_HEADER.size
LENGTH_END: Final = 12
ATTRIBUTES_AT: Final = 21
_LAST_OFFSET_DELTA_AT: Final = 23
_RECORD_COUNT_AT: Final = 57
_INT64: Final = struct.Struct(">q")
_INT32: Final = struct.Struct(">i")


class Attribute(IntEnum):
    """The bits of a batch's attributes."""

    CODEC = 0x07
    LOG_APPEND_TIME = 0x08
    TRANSACTIONAL = 0x10
    CONTROL = 0x20


def base_offset(batch: bytes) -> int:
    """The first offset of a batch."""
    offset: int = _INT64.unpack_from(batch)[0]
    return offset


def end_offset(batch: bytes) -> int:
    """The offset behind the last record of a batch."""
    delta: int = _INT32.unpack_from(batch, _LAST_OFFSET_DELTA_AT)[0]
    return base_offset(batch) + delta + 1


def record_count(batch: bytes) -> int:
    """How many records a batch has, control records included."""
    count: int = _INT32.unpack_from(batch, _RECORD_COUNT_AT)[0]
    return count
