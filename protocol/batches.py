"""Record batches as Kafka frames them: headers, CRC, and the offset that the log gives a batch.

This is the readable reference of `_batches.pyx`, which the broker runs; the tests compare the two
byte for byte. `decode_batches.py` reads the records inside, `encode_batches.py` writes them.

What must hold: the input is untrusted, so every length and count in it is checked.

Format: record batch v2 (https://kafka.apache.org/documentation/#recordbatch, KIP-98).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from protocol.errors import CorruptMessage, UnsupportedForMessageFormat

# Base offset, length of what follows it, leader epoch, magic, CRC of what follows it, attributes,
# last offset delta, base and max timestamp, producer id and epoch, base sequence, count.
BATCH_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
BATCH_OVERHEAD: Final = BATCH_HEADER.size
LENGTH_END: Final = 12
_MAGIC_AT: Final = 16
_CRC_AT: Final = 17
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


INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The fixed part of one record batch, and where the batch starts and ends in the input."""

    start: int
    end: int
    base_offset: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    @property
    def codec(self) -> int:
        """Compression codec of the records: see `protocol/compression.py`."""
        return self.attributes & Attribute.CODEC

    @property
    def timestamp_type(self) -> int:
        """0 CreateTime, 1 LogAppendTime: every record then has `max_timestamp` (KIP-32)."""
        return 1 if self.attributes & Attribute.LOG_APPEND_TIME else 0

    @property
    def transactional(self) -> bool:
        return bool(self.attributes & Attribute.TRANSACTIONAL)

    @property
    def control(self) -> bool:
        return bool(self.attributes & Attribute.CONTROL)

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record. 0 follows 2^31-1; -1 if the batch has no sequences."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & INT32_MAX


def parse_headers(
    records: bytes | memoryview, start: int = 0, end: int | None = None
) -> list[BatchHeader]:
    """The headers of the concatenated batches in `records[start:end]`, in order.

    Raises UnsupportedForMessageFormat for formats v0 and v1, which have their magic at the same
    byte, and CorruptMessage for any other magic, a batch that is cut or shorter than its header,
    and bytes after the last batch. The records inside and the CRCs are not checked.
    """
    data = memoryview(records)[start:end]
    headers: list[BatchHeader] = []
    at = 0
    while at < len(data):
        left = len(data) - at
        if left <= _MAGIC_AT:
            raise CorruptMessage(f"record batch at byte {at} is cut: {left} bytes are left")
        magic = struct.unpack_from(">b", data, at + _MAGIC_AT)[0]
        if magic in (0, 1):
            raise UnsupportedForMessageFormat(
                f"record batch at byte {at} has message format v{magic}; only v2 is supported"
            )
        if magic != 2:
            raise CorruptMessage(f"record batch at byte {at} has unknown magic {magic}")
        size = LENGTH_END + struct.unpack_from(">i", data, at + 8)[0]
        if size < BATCH_OVERHEAD:
            raise CorruptMessage(f"record batch at byte {at} is shorter than its header: {size}")
        if size > left:
            raise CorruptMessage(
                f"record batch at byte {at} is cut: it says {size} bytes, {left} are left"
            )
        base_offset, _length, *rest = BATCH_HEADER.unpack_from(data, at)
        headers.append(BatchHeader(start + at, start + at + size, base_offset, *rest))
        at += size
    return headers


def check_crc(records: bytes | memoryview, header: BatchHeader) -> None:
    """Raises CorruptMessage unless the CRC32C from the attributes to the batch's end is its CRC."""
    _check_bounds(records, header)
    crc = crc32c(memoryview(records)[header.start + ATTRIBUTES_AT : header.end])
    if crc != header.crc:
        raise CorruptMessage(f"record batch has CRC {header.crc:#010x}, its bytes have {crc:#010x}")


def stamp_batch(
    records: bytes | memoryview,
    header: BatchHeader,
    base_offset: int,
    leader_epoch: int,
    log_append_time_ms: int | None,
) -> bytes:
    """A copy of the batch as the log keeps it: with its base offset and partition leader epoch.

    The CRC does not cover these two. With `log_append_time_ms`
    (`message.timestamp.type=LogAppendTime`) the copy has that as its max timestamp, LogAppendTime
    as its timestamp type, and a new CRC.
    """
    _check_bounds(records, header)
    batch = bytearray(memoryview(records)[header.start : header.end])
    struct.pack_into(">q", batch, 0, base_offset)
    struct.pack_into(">i", batch, LENGTH_END, leader_epoch)
    if log_append_time_ms is not None:
        struct.pack_into(">h", batch, ATTRIBUTES_AT, header.attributes | Attribute.LOG_APPEND_TIME)
        struct.pack_into(">q", batch, 35, log_append_time_ms)
        struct.pack_into(">I", batch, _CRC_AT, crc32c(memoryview(batch)[ATTRIBUTES_AT:]))
    return bytes(batch)


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


def _check_bounds(records: bytes | memoryview, header: BatchHeader) -> None:
    if not 0 <= header.start <= header.end - BATCH_OVERHEAD <= len(records) - BATCH_OVERHEAD:
        raise ValueError("the header does not belong to these records")


def _crc_table() -> tuple[int, ...]:
    def entry(value: int) -> int:
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        return value

    return tuple(entry(value) for value in range(256))


_CRC_TABLE: Final = _crc_table()


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """CRC32C (Castagnoli) of `data`."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF
