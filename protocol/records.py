"""Record batches <-> columns: the readable reference of what `_records.pyx` does at speed.

Three things are said here, once: how a batch is framed (`parse_headers`, `check_crc`,
`stamp_batch`), how batches become one ClickHouse Native block of rows of `messages`
(`BlockBuilder`), and how rows become batches again (`encode_batches`). The broker runs `_records`;
the tests hold the two against each other.

What must hold: the bytes are a stranger's, so nothing is believed that was not counted, and a
builder that refused a batch is as it was before; what went into a row comes out of it, bit for bit.

Formats: record batch v2 (https://kafka.apache.org/documentation/#recordbatch, KIP-98) and
ClickHouse's Native (https://clickhouse.com/docs/interfaces/formats/Native).
"""

from __future__ import annotations

import builtins
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from protocol.errors import (
    CorruptMessage,
    InvalidRecord,
    RecordsWithoutKey,
    UnsupportedForMessageFormat,
)

COLUMNS: Final[tuple[tuple[str, str], ...]] = (
    ("topic", "LowCardinality(String)"),
    ("topic_id", "UUID"),
    ("partition", "Int32"),
    ("offset", "Int64"),
    ("timestamp_ms", "Int64"),
    ("timestamp_type", "Enum8('CreateTime' = 0, 'LogAppendTime' = 1)"),
    ("key", "Nullable(String)"),
    ("value", "Nullable(String)"),
    ("headers", "Array(Tuple(key String, value Nullable(String)))"),
    ("producer_id", "Int64"),
    ("producer_epoch", "Int16"),
    ("sequence", "Int32"),
    ("transactional", "Bool"),
    ("control", "Bool"),
    ("leader_epoch", "Int32"),
    ("append_time", "DateTime64(3)"),
)
"""Name and type of each column that `BlockBuilder` writes, in order."""

READ_COLUMNS: Final[tuple[tuple[str, str], ...]] = tuple(
    column
    for column in COLUMNS
    if column[0] not in ("topic", "topic_id", "partition", "append_time")
)
"""Name and type of each column that `encode_batches` reads, in order."""

# A batch: base offset, length of what follows it, leader epoch, magic, CRC of what follows it,
# attributes, last offset delta, base and max timestamp, producer id and epoch, base sequence,
# count.
_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_BATCH_OVERHEAD: Final = _HEADER.size
_LENGTH_END: Final = 12
_MAGIC_AT: Final = 16
_CRC_AT: Final = 17
_ATTRIBUTES_AT: Final = 21

_CODEC_MASK: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20

_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
INDEXES_TOLD: Final = 1000
"""Records of a batch that an error names at most: a small request may hold millions of them."""

# Length, attributes, timestamp and offset delta, key and value length, header count: a byte each.
_SMALLEST_RECORD: Final = 7


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The fixed part of one record batch, and where the whole batch lies in what was parsed."""

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
        return self.attributes & _CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        """0 CreateTime, 1 LogAppendTime: then `max_timestamp` is that of every record (KIP-32)."""
        return 1 if self.attributes & _LOG_APPEND_TIME else 0

    @property
    def transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def control(self) -> bool:
        return bool(self.attributes & _CONTROL)

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record: 0 follows 2^31-1, and -1 stands for none."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & _INT32_MAX


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """One uncompressed record batch made from rows."""

    base_offset: int
    last_offset: int
    max_timestamp: int
    data: bytes


def parse_headers(records: bytes | memoryview) -> list[BatchHeader]:
    """The headers of the concatenated batches in a produce request's `records`, in order.

    Raises UnsupportedForMessageFormat for formats v0 and v1, which have their magic at the same
    byte, and CorruptMessage for any other magic, a batch that is cut or shorter than its header,
    and bytes after the last batch. Nothing inside the batches is looked at, and their CRCs are not.
    """
    data = memoryview(records)
    headers: list[BatchHeader] = []
    start = 0
    while start < len(data):
        left = len(data) - start
        if left <= _MAGIC_AT:
            raise CorruptMessage(f"record batch at byte {start} is cut: {left} bytes are left")
        magic = struct.unpack_from(">b", data, start + _MAGIC_AT)[0]
        if magic in (0, 1):
            raise UnsupportedForMessageFormat(
                f"record batch at byte {start} has message format v{magic}; only v2 is supported"
            )
        if magic != 2:
            raise CorruptMessage(f"record batch at byte {start} has unknown magic {magic}")
        size = _LENGTH_END + struct.unpack_from(">i", data, start + 8)[0]
        if size < _BATCH_OVERHEAD:
            raise CorruptMessage(f"record batch at byte {start} is shorter than its header: {size}")
        if size > left:
            raise CorruptMessage(
                f"record batch at byte {start} is cut: it says {size} bytes, {left} are left"
            )
        base_offset, _length, *rest = _HEADER.unpack_from(data, start)
        headers.append(BatchHeader(start, start + size, base_offset, *rest))
        start += size
    return headers


def check_crc(records: bytes | memoryview, header: BatchHeader) -> None:
    """Raises CorruptMessage unless the CRC32C from the attributes to the batch's end is its CRC."""
    _check_place(records, header)
    crc = crc32c(memoryview(records)[header.start + _ATTRIBUTES_AT : header.end])
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

    Both lie outside the CRC. With `log_append_time_ms` (`message.timestamp.type=LogAppendTime`)
    that becomes its max timestamp, its timestamp type says so, and the CRC is made anew.
    """
    _check_place(records, header)
    batch = bytearray(memoryview(records)[header.start : header.end])
    struct.pack_into(">q", batch, 0, base_offset)
    struct.pack_into(">i", batch, _LENGTH_END, leader_epoch)
    if log_append_time_ms is not None:
        struct.pack_into(">h", batch, _ATTRIBUTES_AT, header.attributes | _LOG_APPEND_TIME)
        struct.pack_into(">q", batch, 35, log_append_time_ms)
        struct.pack_into(">I", batch, _CRC_AT, crc32c(memoryview(batch)[_ATTRIBUTES_AT:]))
    return bytes(batch)


def _check_place(records: bytes | memoryview, header: BatchHeader) -> None:
    if not 0 <= header.start <= header.end - _BATCH_OVERHEAD <= len(records) - _BATCH_OVERHEAD:
        raise ValueError("the header is not one of these records")


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


# --- batches to columns ---


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of `messages`, as far as a batch is made of it."""

    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]
    producer_id: int
    producer_epoch: int
    sequence: int
    transactional: bool
    control: bool
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class _Place:
    """The rest of a row: which log it belongs to."""

    topic: bytes
    topic_id: bytes
    partition: int


class BlockBuilder:
    """Gathers batches, of any topics and partitions, into one Native block for `messages`.

    All rows share `append_time_ms`. `rows` and `bytes` say how many rows are in and how long the
    block would be now; `finish` gives the block, and changes nothing.
    """

    COLUMNS: ClassVar[tuple[tuple[str, str], ...]] = COLUMNS

    def __init__(self, append_time_ms: int) -> None:
        self._append_time_ms = _fit(append_time_ms, 64)
        self._rows: list[tuple[_Place, _Row]] = []

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
    ) -> None:
        """Adds the records of one batch, from `base_offset` on; all of them or, on an error, none.

        `payload` is the records section, decompressed. Raises InvalidRecord unless it is exactly
        `header.count` records whose offset deltas count up from 0, with nothing left over inside or
        after them, every number in as many bits as its type has, and lengths that fit. `keyed`:
        then records without a key raise RecordsWithoutKey, which names up to INDEXES_TOLD of them.

        A record's timestamp is the batch's base timestamp plus its delta, modulo 2^64; or one for
        all: `log_append_time_ms`, or the max timestamp of a batch that already is of LogAppendTime.
        Its sequence counts up from the base sequence, 0 following 2^31-1, and is -1 where the batch
        has no producer id or no sequence.
        """
        _fit(partition, 32)
        _fit(base_offset, 64)
        _fit(leader_epoch, 32)
        attributes = header.attributes
        one_timestamp = log_append_time_ms
        if one_timestamp is not None:
            _fit(one_timestamp, 64)
            attributes |= _LOG_APPEND_TIME
        elif attributes & _LOG_APPEND_TIME:
            one_timestamp = header.max_timestamp
        if len(topic_id) != 16:
            raise ValueError("a topic id has 16 bytes")
        if header.count <= 0:
            raise InvalidRecord(f"record batch has {header.count} records")
        if header.last_offset_delta != header.count - 1:
            raise InvalidRecord(
                f"record batch has {header.count} records and last offset delta "
                f"{header.last_offset_delta}"
            )
        if not 0 <= base_offset <= _INT64_MAX - (header.count - 1):
            raise ValueError(f"offset {base_offset} of {header.count} records is out of range")
        place = _Place(topic.encode(), topic_id, partition)
        if header.count > len(payload) // _SMALLEST_RECORD:
            raise InvalidRecord(
                f"record batch claims {header.count} records in {len(payload)} bytes"
            )
        reader = _Reader(builtins.bytes(payload))
        sequenced = header.producer_id >= 0 and header.base_sequence >= 0
        added: list[tuple[_Place, _Row]] = []
        for index in range(header.count):
            record = _read_record(reader, index)
            timestamp = header.base_timestamp + record.timestamp_delta
            row = _Row(
                offset=base_offset + index,
                timestamp_ms=_wrap(timestamp, 64) if one_timestamp is None else one_timestamp,
                timestamp_type=1 if attributes & _LOG_APPEND_TIME else 0,
                key=record.key,
                value=record.value,
                headers=record.headers,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                sequence=(header.base_sequence + index) & _INT32_MAX if sequenced else -1,
                transactional=bool(attributes & _TRANSACTIONAL),
                control=bool(attributes & _CONTROL),
                leader_epoch=leader_epoch,
            )
            added.append((place, row))
        if reader.left:
            raise InvalidRecord(f"{reader.left} bytes are left over after the last record")
        if keyed:
            keyless = [index for index, (_, row) in enumerate(added) if row.key is None]
            if keyless:
                raise RecordsWithoutKey(tuple(keyless[:INDEXES_TOLD]), len(keyless))
        self._rows += added

    def finish(self) -> builtins.bytes:
        """The whole block. One without rows has the columns' names and types alone."""
        places = [place for place, _ in self._rows]
        rows = [row for _, row in self._rows]
        headers = [header for row in rows for header in row.headers]
        times = struct.pack("<q", self._append_time_ms) * len(rows)
        columns: tuple[Callable[[], bytes], ...] = (
            lambda: _low_cardinality([place.topic for place in places]),
            lambda: b"".join(_uuid(place.topic_id) for place in places),
            lambda: _numbers("i", [place.partition for place in places]),
            lambda: _numbers("q", [row.offset for row in rows]),
            lambda: _numbers("q", [row.timestamp_ms for row in rows]),
            lambda: _numbers("b", [row.timestamp_type for row in rows]),
            lambda: _nullable_strings([row.key for row in rows]),
            lambda: _nullable_strings([row.value for row in rows]),
            lambda: (
                _numbers("Q", _running_total([len(row.headers) for row in rows]))
                + b"".join(_string(key) for key, _ in headers)
                + _nullable_strings([value for _, value in headers])
            ),
            lambda: _numbers("q", [row.producer_id for row in rows]),
            lambda: _numbers("h", [row.producer_epoch for row in rows]),
            lambda: _numbers("i", [row.sequence for row in rows]),
            lambda: _numbers("?", [row.transactional for row in rows]),
            lambda: _numbers("?", [row.control for row in rows]),
            lambda: _numbers("i", [row.leader_epoch for row in rows]),
            lambda: times,
        )
        block = _varuint(len(COLUMNS)) + _varuint(len(rows))
        for (name, type_), column in zip(COLUMNS, columns, strict=True):
            block += _string(name.encode()) + _string(type_.encode())
            block += column() if rows else b""
        return block


def _fit(value: int, bits: int) -> int:
    if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise OverflowError(f"{value} does not fit into {bits} bits")
    return value


def _wrap(value: int, bits: int) -> int:
    """`value` modulo 2^bits, as a signed number."""
    half: int = 2 ** (bits - 1)
    return (value + half) % (2 * half) - half


@dataclass(frozen=True, slots=True)
class _Record:
    timestamp_delta: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]


class _Reader:
    """Reads numbers and byte strings from the front of some bytes, or raises InvalidRecord."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._position

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise InvalidRecord(f"{size} bytes are claimed where {self.left} are left")
        self._position += size
        return self._data[self._position - size : self._position]

    def number(self, bits: int) -> int:
        """A zigzag varint of at most `bits`; each client would read a longer one differently."""
        value = 0
        for shift in range(0, bits, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if value >= 2**bits:
                break
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
        raise InvalidRecord(f"a number is longer than {bits} bits")

    def string(self) -> bytes | None:
        """A length and that many bytes; length -1 is null."""
        size = self.number(32)
        if size < -1:
            raise InvalidRecord(f"a key or value has length {size}")
        return None if size == -1 else self.take(size)


def _read_record(reader: _Reader, index: int) -> _Record:
    size = reader.number(32)
    if size < 1:
        raise InvalidRecord(f"record {index} has length {size}")
    body = _Reader(reader.take(size))
    body.take(1)  # a record's attributes mean nothing in v2
    timestamp_delta = body.number(64)
    offset_delta = body.number(32)
    if offset_delta != index:
        raise InvalidRecord(f"record {index} has offset delta {offset_delta}")
    key = body.string()
    value = body.string()
    header_count = body.number(32)
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


def _varuint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _string(text: bytes) -> bytes:
    return _varuint(len(text)) + text


def _nullable_strings(texts: Sequence[bytes | None]) -> bytes:
    """Nullable(String): a byte per row that is 1 for null, then the strings, "" for a null."""
    nulls = bytes(text is None for text in texts)
    return nulls + b"".join(_string(text or b"") for text in texts)


def _numbers(code: str, values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}{code}", *values)


def _running_total(counts: Sequence[int]) -> list[int]:
    total = 0
    return [total := total + count for count in counts]


def _uuid(value: bytes) -> bytes:
    """A ClickHouse UUID: two 64-bit halves, each little-endian."""
    return value[7::-1] + value[:7:-1]


def _low_cardinality(texts: Sequence[bytes]) -> bytes:
    """LowCardinality(String): version 1; index width and bit 9 for "keys follow"; keys; indexes.

    A dictionary opens with the default value, the empty string, used or not.
    """
    indexes: dict[bytes, int] = {b"": 0}
    for text in texts:
        indexes.setdefault(text, len(indexes))
    width = 0 if len(indexes) <= 2**8 else 1 if len(indexes) <= 2**16 else 2
    return (
        struct.pack("<QQQ", 1, 1 << 9 | width, len(indexes))
        + b"".join(_string(text) for text in indexes)
        + struct.pack("<Q", len(texts))
        + _numbers("BHI"[width], [indexes[text] for text in texts])
    )


# --- columns to batches ---


def encode_batches(block: bytes, max_batch_bytes: int) -> list[EncodedBatch]:
    """Uncompressed batches from rows of one partition, in order of offset.

    `block` is one or more concatenated Native blocks whose columns are READ_COLUMNS: several,
    because that is what a streamed result is; a batch may span them. Offsets may have gaps, as
    compaction leaves them. A new batch starts where producer id or epoch, transactional, timestamp
    type or leader epoch change, at and after every control row, where the sequences of a producer
    do not go on in step with the offsets, where the timestamp of LogAppendTime changes, where an
    offset delta would not fit into 32 bits, and where the batch would become longer than
    `max_batch_bytes` (a batch has one record at least). Raises ValueError for a block that is not
    of that shape.
    """
    batches: list[EncodedBatch] = []
    batch: list[_Row] = []
    size = 0
    last_offset: int | None = None
    for row in _read_blocks(block):
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
        size = _BATCH_OVERHEAD + len(_encode_record(row, row))
        if size > _INT32_MAX:
            raise ValueError("a row is too large for a record batch")
    if batch:
        batches.append(_encode_batch(batch))
    return batches


def _continues(first: _Row, row: _Row) -> bool:
    """Whether `row` may stand in the batch that `first` opens, its size aside."""
    if first.control or row.control or row.offset - first.offset > _INT32_MAX:
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


def _attributes(row: _Row) -> int:
    return (
        (_LOG_APPEND_TIME if row.timestamp_type else 0)
        | (_TRANSACTIONAL if row.transactional else 0)
        | (_CONTROL if row.control else 0)
    )


def _encode_batch(rows: Sequence[_Row]) -> EncodedBatch:
    first, last = rows[0], rows[-1]
    max_timestamp = max(row.timestamp_ms for row in rows)
    records = b"".join(_encode_record(row, first) for row in rows)

    def head(crc: int) -> bytes:
        return _HEADER.pack(
            first.offset,
            _BATCH_OVERHEAD - _LENGTH_END + len(records),
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

    crc = crc32c(head(crc=0)[_ATTRIBUTES_AT:] + records)
    return EncodedBatch(first.offset, last.offset, max_timestamp, head(crc) + records)


def _encode_record(row: _Row, first: _Row) -> bytes:
    body = (
        b"\0"
        + _zigzag(_wrap(row.timestamp_ms - first.timestamp_ms, 64))
        + _zigzag(row.offset - first.offset)
        + _length_and_bytes(row.key)
        + _length_and_bytes(row.value)
        + _zigzag(len(row.headers))
        + b"".join(_length_and_bytes(key) + _length_and_bytes(value) for key, value in row.headers)
    )
    return _zigzag(len(body)) + body


def _zigzag(value: int) -> bytes:
    return _varuint(value << 1 if value >= 0 else (-value << 1) - 1)


def _length_and_bytes(text: bytes | None) -> bytes:
    return _zigzag(-1) if text is None else _zigzag(len(text)) + text


class _BlockReader:
    """Reads a Native block from the front of some bytes, or raises ValueError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._position

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise ValueError("the block is cut")
        self._position += size
        return self._data[self._position - size : self._position]

    def varuint(self) -> int:
        value = 0
        for shift in range(0, 64, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80 and value < 2**64:
                return value
        raise ValueError("a length in the block is too long")

    def numbers(self, code: str, count: int) -> tuple[int, ...]:
        layout = struct.Struct(f"<{count}{code}")
        return layout.unpack(self.take(layout.size))

    def strings(self, count: int) -> list[bytes]:
        return [self.take(self.varuint()) for _ in range(count)]

    def nullable_strings(self, count: int) -> list[bytes | None]:
        nulls = self.take(count)
        strings = self.strings(count)
        return [None if null else text for null, text in zip(nulls, strings, strict=True)]

    def expect(self, column: int) -> None:
        name, type_ = READ_COLUMNS[column]
        head = _string(name.encode()) + _string(type_.encode())
        found = self.take(min(len(head), self.left))
        if found != head:
            raise ValueError(f"column {column} of the block is not `{name}` {type_}: {found!r}")


def _read_blocks(data: bytes) -> Iterator[_Row]:
    reader = _BlockReader(data)
    while reader.left:
        width, count = reader.varuint(), reader.varuint()
        if width != len(READ_COLUMNS):
            raise ValueError(f"the block has {width} columns, expected {len(READ_COLUMNS)}")
        if count > reader.left:
            raise ValueError("the block is cut")
        yield from _read_block(reader, count)


def _read_block(reader: _BlockReader, count: int) -> list[_Row]:
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
        _Row(
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
