"""Columns to record batches: `protocol/_encode_batches.pyx` in readable Python.

`protocol/_encode_batches.pyi` says what each function means.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from brokerhouse.protocol.batches import (
    ATTRIBUTES_AT,
    BATCH_HEADER,
    BATCH_OVERHEAD,
    LENGTH_END,
    Attribute,
)
from brokerhouse.protocol.columns import READ_COLUMNS, column_head
from brokerhouse.protocol.varints import zigzag
from tests.reference.batches import INT32_MAX, crc32c
from tests.reference.byte_reader import ByteReader, wrap
from tests.reference.message_row import MessageRow


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    base_offset: int
    last_offset: int
    max_timestamp: int
    data: bytes


def encode_batches(block: bytes | memoryview, max_batch_bytes: int) -> list[EncodedBatch]:
    batches: list[EncodedBatch] = []
    batch: list[MessageRow] = []
    size = 0
    last_offset: int | None = None
    for row in _read_blocks(bytes(block)):
        if last_offset is not None and row.offset <= last_offset:
            raise ValueError("the rows are not in order of offset")
        last_offset = row.offset
        if batch and _continues(batch[0], row):
            record = _encode_record(row, batch[0])
            if size + len(record) <= max_batch_bytes:
                batch.append(row)
                size += len(record)
                continue
        if batch:
            batches.append(_encode_batch(batch))
        batch = [row]
        size = BATCH_OVERHEAD + len(_encode_record(row, row))
        if size > INT32_MAX:
            raise ValueError("a row is too large for a record batch")
    if batch:
        batches.append(_encode_batch(batch))
    return batches


def _continues(first: MessageRow, row: MessageRow) -> bool:
    """Whether `row` may be in the batch that `first` begins. The size is checked elsewhere."""
    if first.control or row.control or row.offset - first.offset > INT32_MAX:
        return False
    if _attributes(first) != _attributes(row) or (
        first.producer_id,
        first.producer_epoch,
        first.leader_epoch,
    ) != (row.producer_id, row.producer_epoch, row.leader_epoch):
        return False
    if first.timestamp_type == 1 and first.timestamp_ms != row.timestamp_ms:
        return False
    if first.producer_id < 0:
        return True
    if first.sequence < 0 or row.sequence < 0:
        return first.sequence < 0 and row.sequence < 0
    return row.sequence - first.sequence == row.offset - first.offset


def _attributes(row: MessageRow) -> int:
    return (
        (Attribute.LOG_APPEND_TIME if row.timestamp_type else 0)
        | (Attribute.TRANSACTIONAL if row.transactional else 0)
        | (Attribute.CONTROL if row.control else 0)
    )


def _encode_batch(rows: Sequence[MessageRow]) -> EncodedBatch:
    first, last = rows[0], rows[-1]
    max_timestamp = max(row.timestamp_ms for row in rows)
    records = b"".join(_encode_record(row, first) for row in rows)

    def head(crc: int) -> bytes:
        return BATCH_HEADER.pack(
            first.offset,
            BATCH_OVERHEAD - LENGTH_END + len(records),
            first.leader_epoch,
            2,
            crc,
            _attributes(first),
            last.offset - first.offset,
            first.timestamp_ms,
            max_timestamp,
            first.producer_id,
            first.producer_epoch,
            first.sequence,
            len(rows),
        )

    crc = crc32c(head(crc=0)[ATTRIBUTES_AT:] + records)
    return EncodedBatch(first.offset, last.offset, max_timestamp, head(crc) + records)


def _encode_record(row: MessageRow, first: MessageRow) -> bytes:
    body = (
        b"\0"
        + zigzag(wrap(row.timestamp_ms - first.timestamp_ms, 64))
        + zigzag(row.offset - first.offset)
        + _length_and_bytes(row.key)
        + _length_and_bytes(row.value)
        + zigzag(len(row.headers))
        + b"".join(_length_and_bytes(key) + _length_and_bytes(value) for key, value in row.headers)
    )
    return zigzag(len(body)) + body


def _length_and_bytes(text: bytes | None) -> bytes:
    return zigzag(-1) if text is None else zigzag(len(text)) + text


class _BlockReader(ByteReader):
    """Reads a Native block, or raises ValueError."""

    def numbers(self, code: str, count: int) -> tuple[int, ...]:
        layout = struct.Struct(f"<{count}{code}")
        return layout.unpack(self.read(layout.size))

    def strings(self, count: int) -> list[bytes]:
        return [self.read(self.varuint()) for _ in range(count)]

    def nullable_strings(self, count: int) -> list[bytes | None]:
        nulls = self.read(count)
        strings = self.strings(count)
        return [None if null else text for null, text in zip(nulls, strings, strict=True)]

    def expect(self, column: int) -> None:
        name, type_ = READ_COLUMNS[column]
        head = column_head(name, type_)
        found = self.read(min(len(head), self.left))
        if found != head:
            raise ValueError(f"column {column} of the block is not `{name}` {type_}: {found!r}")


def _read_blocks(data: bytes) -> Iterator[MessageRow]:
    reader = _BlockReader(data, ValueError)
    while reader.left:
        width, count = reader.varuint(), reader.varuint()
        if width != len(READ_COLUMNS):
            raise ValueError(f"the block has {width} columns, expected {len(READ_COLUMNS)}")
        if count > reader.left:
            raise ValueError("the block is cut")
        yield from _read_block(reader, count)


def _read_block(reader: _BlockReader, count: int) -> list[MessageRow]:
    def numbers(column: int, code: str) -> tuple[int, ...]:
        reader.expect(column)
        return reader.numbers(code, count)

    offsets = numbers(0, "q")
    timestamps = numbers(1, "q")
    timestamp_types = numbers(2, "b")
    if not {0, 1}.issuperset(timestamp_types):
        raise ValueError("a timestamp_type is neither CreateTime nor LogAppendTime")
    reader.expect(3)
    keys = reader.nullable_strings(count)
    reader.expect(4)
    values = reader.nullable_strings(count)
    header_ends = numbers(5, "Q")
    if list(header_ends) != sorted(header_ends):
        raise ValueError("the header offsets do not grow")
    header_count = header_ends[-1] if header_ends else 0
    if header_count > reader.left:
        raise ValueError("the block is cut")
    header_keys = reader.strings(header_count)
    header_values = reader.nullable_strings(header_count)
    headers = list(zip(header_keys, header_values, strict=True))
    producer_ids = numbers(6, "q")
    producer_epochs = numbers(7, "h")
    sequences = numbers(8, "i")
    transactional = numbers(9, "b")
    control = numbers(10, "b")
    leader_epochs = numbers(11, "i")
    return [
        MessageRow(
            offset=offsets[index],
            timestamp_ms=timestamps[index],
            timestamp_type=timestamp_types[index],
            key=keys[index],
            value=values[index],
            headers=tuple(headers[header_ends[index - 1] if index else 0 : header_ends[index]]),
            producer_id=producer_ids[index],
            producer_epoch=producer_epochs[index],
            sequence=sequences[index],
            transactional=bool(transactional[index]),
            control=bool(control[index]),
            leader_epoch=leader_epochs[index],
        )
        for index in range(count)
    ]
