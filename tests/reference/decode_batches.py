"""Record batches to columns: `protocol/_decode_batches.pyx` in readable Python.

`protocol/_decode_batches.pyi` says what each function means.
"""

from __future__ import annotations

import builtins
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, Final

from brokerhouse.protocol.batches import Attribute
from brokerhouse.protocol.columns import COLUMNS, column_head
from brokerhouse.protocol.errors import InvalidRecord, MessageTooLarge, RecordsWithoutKey
from brokerhouse.protocol.varints import varuint
from tests.reference.batches import INT32_MAX, INT64_MAX, BatchHeader
from tests.reference.byte_reader import ByteReader, wrap
from tests.reference.message_row import MessageRow
from tests.reference.native_values import low_cardinality, nulls, numbers, strings, uuid
from tests.reference.packed_blocks import PackedRows, Run

INDEXES_TOLD: Final = 1000
"""How many records of a batch an error names at most: a small request may hold millions."""

# Length, attributes, timestamp and offset delta, key and value length, header count: a byte each.
_SMALLEST_RECORD: Final = 7

_LENGTH_MAX_BYTES: Final = 5


class RecordLengths:
    def __init__(self, count: int, max_bytes: int) -> None:
        self._count = count
        self._max_bytes = max_bytes
        self._index = 0
        self._at = 0

    def check(self, data: builtins.bytes | memoryview) -> None:
        while self._at < len(data):
            if self._index == self._count:
                raise InvalidRecord(f"The record batch has more than its {self._count} records.")
            start = builtins.bytes(data[self._at : self._at + _LENGTH_MAX_BYTES])
            if len(start) < _LENGTH_MAX_BYTES and all(byte & 0x80 for byte in start):
                return  # the length is not complete yet
            reader = ByteReader(start, InvalidRecord)
            size = reader.zigzag(32)
            if size < 1:
                raise InvalidRecord(
                    f"Record {self._index} of {self._count} has a length of {size} bytes."
                )
            if size > self._max_bytes:
                raise MessageTooLarge(
                    f"Record {self._index} has {size} bytes when it is decompressed. At most "
                    f"{self._max_bytes} are accepted."
                )
            self._at += len(start) - reader.left + size
            self._index += 1


@dataclass(frozen=True, slots=True)
class _PartitionKey:
    """The columns of a row that say which partition it belongs to."""

    topic: bytes
    topic_id: bytes
    partition: int


class BlockBuilder:
    COLUMNS: ClassVar[tuple[tuple[str, str], ...]] = COLUMNS

    def __init__(self, append_time_ms: int) -> None:
        self._append_time_ms = _fit(append_time_ms, 64)
        self._rows: list[tuple[_PartitionKey, MessageRow]] = []
        self._transaction_starts: list[int] = []
        self._topics = {b"": 0}
        self._runs: list[Run] = []

    @property
    def rows(self) -> int:
        return len(self._rows)

    @property
    def bytes(self) -> int:
        return len(self.finish())

    def append(
        self,
        topic: str,
        topic_id: builtins.bytes,
        partition: int,
        base_offset: int,
        leader_epoch: int,
        header: BatchHeader,
        payload: builtins.bytes | memoryview,
        log_append_time_ms: int | None,
        keyed: bool = False,
        transaction_start: int = -1,
    ) -> None:
        _fit(partition, 32)
        _fit(base_offset, 64)
        _fit(leader_epoch, 32)
        _fit(transaction_start, 64)
        attributes = header.attributes
        one_timestamp = log_append_time_ms
        if one_timestamp is not None:
            _fit(one_timestamp, 64)
            attributes |= Attribute.LOG_APPEND_TIME
        elif attributes & Attribute.LOG_APPEND_TIME:
            one_timestamp = header.max_timestamp
        if len(topic_id) != 16:
            raise ValueError("a topic id has 16 bytes")
        if header.count <= 0:
            raise InvalidRecord(
                f"The record batch has {header.count} records. It must have at least one."
            )
        if header.last_offset_delta != header.count - 1:
            raise InvalidRecord(
                f"The record batch has {header.count} records, but its last offset delta is"
                f" {header.last_offset_delta}."
            )
        if not 0 <= base_offset <= INT64_MAX - (header.count - 1):
            raise ValueError(f"offset {base_offset} of {header.count} records is out of range")
        partition_key = _PartitionKey(topic.encode(), topic_id, partition)
        if header.count > len(payload) // _SMALLEST_RECORD:
            raise InvalidRecord(
                f"The record batch has {len(payload)} bytes, too few for its {header.count}"
                " records."
            )
        reader = _RecordReader(builtins.bytes(payload), InvalidRecord)
        sequenced = header.producer_id >= 0 and header.base_sequence >= 0
        added: list[tuple[_PartitionKey, MessageRow]] = []
        for index in range(header.count):
            record = _read_record(reader, index)
            timestamp = header.base_timestamp + record.timestamp_delta
            row = MessageRow(
                offset=base_offset + index,
                timestamp_ms=wrap(timestamp, 64) if one_timestamp is None else one_timestamp,
                timestamp_type=1 if attributes & Attribute.LOG_APPEND_TIME else 0,
                key=record.key,
                value=record.value,
                headers=record.headers,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                sequence=(header.base_sequence + index) & INT32_MAX if sequenced else -1,
                transactional=bool(attributes & Attribute.TRANSACTIONAL),
                control=bool(attributes & Attribute.CONTROL),
                leader_epoch=leader_epoch,
            )
            added.append((partition_key, row))
        if reader.left:
            raise InvalidRecord(f"{reader.left} bytes are left over after the last record")
        if keyed:
            keyless = [index for index, (_, row) in enumerate(added) if row.key is None]
            if keyless:
                raise RecordsWithoutKey(tuple(keyless[:INDEXES_TOLD]), len(keyless))
        self._rows += added
        self._transaction_starts += [transaction_start] * len(added)
        number = self._topics.setdefault(partition_key.topic, len(self._topics))
        self._runs.append(
            Run(
                base_offset,
                header.count,
                header.producer_id,
                transaction_start,
                number,
                partition,
                leader_epoch,
                header.base_sequence,
                header.producer_epoch,
                attributes,
                topic_id,
            )
        )

    def finish(self) -> builtins.bytes:
        keys = [key for key, _ in self._rows]
        rows = [row for _, row in self._rows]
        headers = [header for row in rows for header in row.headers]
        times = struct.pack("<q", self._append_time_ms) * len(rows)
        columns: tuple[Callable[[], bytes], ...] = (
            lambda: _topic_column([key.topic for key in keys]),
            lambda: b"".join(uuid(key.topic_id) for key in keys),
            lambda: numbers("i", [key.partition for key in keys]),
            lambda: numbers("q", [row.offset for row in rows]),
            lambda: numbers("q", [row.timestamp_ms for row in rows]),
            lambda: numbers("b", [row.timestamp_type for row in rows]),
            lambda: _nullable_strings([row.key for row in rows]),
            lambda: _nullable_strings([row.value for row in rows]),
            lambda: (
                numbers("Q", list(accumulate(len(row.headers) for row in rows)))
                + strings([key for key, _ in headers])
                + _nullable_strings([value for _, value in headers])
            ),
            lambda: numbers("q", [row.producer_id for row in rows]),
            lambda: numbers("h", [row.producer_epoch for row in rows]),
            lambda: numbers("i", [row.sequence for row in rows]),
            lambda: numbers("?", [row.transactional for row in rows]),
            lambda: numbers("?", [row.control for row in rows]),
            lambda: numbers("i", [row.leader_epoch for row in rows]),
            lambda: times,
            lambda: numbers("q", self._transaction_starts),
        )
        block = varuint(len(COLUMNS)) + varuint(len(rows))
        for (name, type_), column in zip(COLUMNS, columns, strict=True):
            block += column_head(name, type_)
            block += column() if rows else b""
        return block

    def pack(self) -> builtins.bytes:
        if not self._rows:
            raise ValueError("there are no rows to pack")
        rows = [row for _, row in self._rows]
        headers = [header for row in rows for header in row.headers]
        keys, values = [row.key for row in rows], [row.value for row in rows]
        header_values = [value for _, value in headers]
        return PackedRows(
            count=len(rows),
            append_time_ms=self._append_time_ms,
            runs=self._runs,
            topics=list(self._topics),
            timestamp=numbers("q", [row.timestamp_ms for row in rows]),
            key_null=nulls(keys),
            key=strings(keys),
            value_null=nulls(values),
            value=strings(values),
            header_ends=list(accumulate(len(row.headers) for row in rows)),
            header_key=strings([key for key, _ in headers]),
            header_value_null=nulls(header_values),
            header_value=strings(header_values),
        ).to_bytes(len(self.finish()))


def _fit(value: int, bits: int) -> int:
    if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise OverflowError(f"{value} does not fit into {bits} bits")
    return value


@dataclass(frozen=True, slots=True)
class _Record:
    timestamp_delta: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]


class _RecordReader(ByteReader):
    def string(self) -> bytes | None:
        """A length and that many bytes; length -1 is null."""
        size = self.zigzag(32)
        if size < -1:
            raise InvalidRecord(f"a key or value has length {size}")
        return None if size == -1 else self.read(size)


def _read_record(reader: _RecordReader, index: int) -> _Record:
    size = reader.zigzag(32)
    if size < 1:
        raise InvalidRecord(f"record {index} has length {size}")
    body = _RecordReader(reader.read(size), InvalidRecord)
    body.read(1)  # a record's attributes mean nothing in v2
    timestamp_delta = body.zigzag(64)
    offset_delta = body.zigzag(32)
    if offset_delta != index:
        raise InvalidRecord(f"record {index} has offset delta {offset_delta}")
    key = body.string()
    value = body.string()
    header_count = body.zigzag(32)
    if not 0 <= header_count <= body.left:
        raise InvalidRecord(f"record {index} has {header_count} headers in {body.left} bytes")
    headers: list[tuple[bytes, bytes | None]] = []
    for _ in range(header_count):
        header_key = body.string()
        if header_key is None:
            raise InvalidRecord(f"record {index} has a header without a key")
        headers.append((header_key, body.string()))
    if body.left:
        raise InvalidRecord(f"record {index} has {body.left} bytes left over")
    return _Record(timestamp_delta, key, value, tuple(headers))


def _nullable_strings(texts: Sequence[bytes | None]) -> bytes:
    """Nullable(String)."""
    return nulls(texts) + strings(texts)


def _topic_column(topics: Sequence[bytes]) -> bytes:
    indexes: dict[bytes, int] = {b"": 0}
    for topic in topics:
        indexes.setdefault(topic, len(indexes))
    return low_cardinality(list(indexes), [indexes[topic] for topic in topics])
