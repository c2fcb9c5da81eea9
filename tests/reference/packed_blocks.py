"""Packed blocks: `protocol/_packed_blocks.pyx` in readable Python.

`protocol/_packed_blocks.pyi` says what each function means, `protocol/packed_blocks.py` has the
format.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from brokerhouse.protocol.batches import Attribute
from brokerhouse.protocol.columns import COLUMNS, column_head
from brokerhouse.protocol.packed_blocks import FORMAT, HEAD, RUN, BadPackedBlock
from brokerhouse.protocol.varints import varuint
from tests.reference.batches import INT32_MAX
from tests.reference.byte_reader import ByteReader
from tests.reference.native_values import low_cardinality, numbers, strings, uuid


class Run(NamedTuple):
    """What the rows of a batch share: `RUN`, without the 0."""

    base_offset: int
    rows: int
    producer_id: int
    transaction_start: int
    topic: int
    partition: int
    leader_epoch: int
    base_sequence: int
    producer_epoch: int
    attributes: int
    topic_id: bytes
    """16 bytes, in network order."""


@dataclass(frozen=True, slots=True)
class PackedRows:
    """The rows of a packed block. Values of columns are as in the Native block."""

    count: int
    append_time_ms: int
    runs: Sequence[Run]
    topics: Sequence[bytes]
    timestamp: bytes
    key_null: bytes
    key: bytes
    value_null: bytes
    value: bytes
    header_ends: Sequence[int]
    header_key: bytes
    header_value_null: bytes
    header_value: bytes

    def to_bytes(self, native_size: int) -> bytes:
        """The packed block; `native_size`: of the Native block with these rows."""
        runs = b"".join(RUN.pack(*run[:-1], 0, run.topic_id) for run in self.runs)
        topics = strings(self.topics)
        ends = numbers("Q", self.header_ends) if self.header_value_null else b""
        headers = (self.header_key, self.header_value_null, self.header_value)
        sizes = map(len, (runs, topics, self.key, self.value, *headers))
        return b"".join(
            (
                b"\0",
                varuint(self.count),
                bytes((FORMAT,)),
                HEAD.pack(self.append_time_ms, native_size, *sizes),
                runs,
                topics,
                self.timestamp,
                self.key_null,
                self.key,
                self.value_null,
                self.value,
                ends,
                *headers,
            )
        )


def read_packed(block: bytes) -> PackedRows:
    """Raises `BadPackedBlock`."""
    reader = _reader(block)
    count = _read_count(reader)
    append_time_ms, _, *sizes = _read_head(reader)
    runs_size, topics_size, key_size, value_size, *header_sizes = sizes
    if count == 0 or runs_size % RUN.size:
        raise BadPackedBlock("its counts are wrong")
    runs = [Run._make((*run[:-2], run[-1])) for run in RUN.iter_unpack(reader.read(runs_size))]
    topics = _strings(reader.read(topics_size))
    timestamp, key_null, key = (reader.read(size) for size in (8 * count, count, key_size))
    value_null, value = reader.read(count), reader.read(value_size)
    ends: Sequence[int] = [0] * count
    if header_sizes[1]:
        ends = struct.unpack(f"<{count}Q", reader.read(8 * count))
    headers = [reader.read(size) for size in header_sizes]
    if reader.left:
        raise BadPackedBlock(f"{reader.left} bytes are left over")
    if any(run.rows <= 0 for run in runs) or sum(run.rows for run in runs) != count:
        raise BadPackedBlock("its runs have another number of rows")
    if any(run.topic >= len(topics) for run in runs):
        raise BadPackedBlock("it names a topic that it has not")
    return PackedRows(
        count,
        append_time_ms,
        runs,
        topics,
        timestamp,
        key_null,
        key,
        value_null,
        value,
        ends,
        *headers,
    )


def join_packed(blocks: Sequence[bytes]) -> bytes:
    if not blocks:
        raise ValueError("there are no blocks to join")
    parts = [read_packed(block) for block in blocks]
    runs = [run for part in parts for run in part.runs]
    rows = sum(part.count for part in parts)
    block = varuint(len(COLUMNS)) + varuint(rows)
    columns = (
        _topics(parts),
        b"".join(uuid(run.topic_id) * run.rows for run in runs),
        _repeated("i", runs, lambda run: run.partition),
        numbers("q", [run.base_offset + row for run in runs for row in range(run.rows)]),
        b"".join(part.timestamp for part in parts),
        _repeated("?", runs, lambda run: bool(run.attributes & Attribute.LOG_APPEND_TIME)),
        b"".join([part.key_null for part in parts] + [part.key for part in parts]),
        b"".join([part.value_null for part in parts] + [part.value for part in parts]),
        _headers(parts),
        _repeated("q", runs, lambda run: run.producer_id),
        _repeated("h", runs, lambda run: run.producer_epoch),
        numbers("i", [_sequence(run, row) for run in runs for row in range(run.rows)]),
        _repeated("?", runs, lambda run: bool(run.attributes & Attribute.TRANSACTIONAL)),
        _repeated("?", runs, lambda run: bool(run.attributes & Attribute.CONTROL)),
        _repeated("i", runs, lambda run: run.leader_epoch),
        b"".join(numbers("q", [part.append_time_ms]) * part.count for part in parts),
        _repeated("q", runs, lambda run: run.transaction_start),
    )
    for (name, type_), column in zip(COLUMNS, columns, strict=True):
        block += column_head(name, type_) + column
    return block


def _reader(block: bytes) -> ByteReader:
    return ByteReader(block, BadPackedBlock)


def _read_count(reader: ByteReader) -> int:
    """The number of rows."""
    if reader.read(1) != b"\0":
        raise BadPackedBlock("it is a Native block")
    return reader.varuint()


def _read_head(reader: ByteReader) -> tuple[int, ...]:
    (number,) = reader.read(1)
    if number != FORMAT:
        raise BadPackedBlock(f"its format {number} is not known")
    return HEAD.unpack(reader.read(HEAD.size))


def _strings(data: bytes) -> list[bytes]:
    reader = _reader(data)
    found = []
    while reader.left:
        found.append(reader.read(reader.varuint()))
    return found


def _sequence(run: Run, row: int) -> int:
    if run.producer_id < 0 or run.base_sequence < 0:
        return -1
    return (run.base_sequence + row) & INT32_MAX


def _topics(parts: Sequence[PackedRows]) -> bytes:
    names = {b"": 0}  # the default comes first
    for part in parts:
        for name in part.topics:
            names.setdefault(name, len(names))
    indexes = [
        names[part.topics[run.topic]]
        for part in parts
        for run in part.runs
        for _ in range(run.rows)
    ]
    return low_cardinality(list(names), indexes)


def _headers(parts: Sequence[PackedRows]) -> bytes:
    before = 0
    ends: list[int] = []
    for part in parts:
        ends += (before + end for end in part.header_ends)
        before += len(part.header_value_null)
    return b"".join(
        [
            numbers("Q", ends),
            *(part.header_key for part in parts),
            *(part.header_value_null for part in parts),
            *(part.header_value for part in parts),
        ]
    )


def _repeated(code: str, runs: Sequence[Run], value: Callable[[Run], int]) -> bytes:
    return b"".join(numbers(code, [value(run)]) * run.rows for run in runs)
