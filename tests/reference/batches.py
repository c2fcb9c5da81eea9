"""The headers of record batches and their CRC: `protocol/_batches.pyx` in readable Python.

`protocol/_batches.pyi` says what each function means.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from brokerhouse.protocol.batches import (
    ATTRIBUTES_AT,
    BATCH_HEADER,
    BATCH_OVERHEAD,
    LENGTH_END,
    Attribute,
)
from brokerhouse.protocol.errors import CorruptMessage, UnsupportedForMessageFormat

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
_MAGIC_AT: Final = 16
_CRC_AT: Final = 17


@dataclass(frozen=True, slots=True)
class BatchHeader:
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
        return self.attributes & Attribute.CODEC

    @property
    def timestamp_type(self) -> int:
        return 1 if self.attributes & Attribute.LOG_APPEND_TIME else 0

    @property
    def transactional(self) -> bool:
        return bool(self.attributes & Attribute.TRANSACTIONAL)

    @property
    def control(self) -> bool:
        return bool(self.attributes & Attribute.CONTROL)

    @property
    def last_sequence(self) -> int:
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & INT32_MAX


def parse_headers(
    records: bytes | memoryview, start: int = 0, end: int | None = None
) -> list[BatchHeader]:
    data = memoryview(records)[start:end]
    headers: list[BatchHeader] = []
    at = 0
    while at < len(data):
        left = len(data) - at
        if left <= _MAGIC_AT:
            raise CorruptMessage(f"The record batch at byte {at} is cut: {left} bytes are left.")
        magic = struct.unpack_from(">b", data, at + _MAGIC_AT)[0]
        if magic in (0, 1):
            raise UnsupportedForMessageFormat(
                f"The record batch at byte {at} has message format v{magic}. Only v2 is supported."
            )
        if magic != 2:
            raise CorruptMessage(
                f"The record batch at byte {at} has message format v{magic}, which does not exist."
            )
        size = LENGTH_END + struct.unpack_from(">i", data, at + 8)[0]
        if size < BATCH_OVERHEAD:
            raise CorruptMessage(
                f"The record batch at byte {at} claims {size} bytes. Its header alone has"
                f" {BATCH_OVERHEAD}."
            )
        if size > left:
            raise CorruptMessage(
                f"The record batch at byte {at} is cut: it has {size} bytes, {left} are left."
            )
        base_offset, _length, *rest = BATCH_HEADER.unpack_from(data, at)
        headers.append(BatchHeader(start + at, start + at + size, base_offset, *rest))
        at += size
    return headers


def check_crc(records: bytes | memoryview, header: BatchHeader) -> None:
    _check_bounds(records, header)
    crc = crc32c(memoryview(records)[header.start + ATTRIBUTES_AT : header.end])
    if crc != header.crc:
        raise CorruptMessage(
            f"The record batch is damaged: its CRC is {header.crc:#010x}, but its bytes have"
            f" {crc:#010x}."
        )


def stamp_batch(
    records: bytes | memoryview,
    header: BatchHeader,
    base_offset: int,
    leader_epoch: int,
    log_append_time_ms: int | None,
) -> bytes:
    _check_bounds(records, header)
    batch = bytearray(memoryview(records)[header.start : header.end])
    struct.pack_into(">q", batch, 0, base_offset)
    struct.pack_into(">i", batch, LENGTH_END, leader_epoch)
    if log_append_time_ms is not None:
        struct.pack_into(">h", batch, ATTRIBUTES_AT, header.attributes | Attribute.LOG_APPEND_TIME)
        struct.pack_into(">q", batch, 35, log_append_time_ms)
        struct.pack_into(">I", batch, _CRC_AT, crc32c(memoryview(batch)[ATTRIBUTES_AT:]))
    return bytes(batch)


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
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF
