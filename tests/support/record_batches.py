"""A second implementation of record batches and Native blocks, for tests only.

It does not use `tests/reference/encode_batches.py` on purpose: an encoder that shares code with the
code under test also shares its mistakes. The CRC is the crc32c package's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import crc32c
from hypothesis import settings
from hypothesis import strategies as st

# No deadline: it would depend on how busy the machine is.
settings.register_profile("without deadline", deadline=None)
settings.load_profile("without deadline")

Headers = tuple[tuple[bytes, bytes | None], ...]

INT16 = (-(2**15), 2**15 - 1)
INT32 = (-(2**31), 2**31 - 1)
INT64 = (-(2**63), 2**63 - 1)


def varint(value: int) -> bytes:
    """Zigzag, then seven bits at a time."""
    number = 2 * value if value >= 0 else -2 * value - 1
    out = b""
    while number > 127:
        out += bytes([number % 128 + 128])
        number //= 128
    return out + bytes([number])


def sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


@dataclass(frozen=True)
class Record:
    timestamp_delta: int = 0
    key: bytes | None = None
    value: bytes | None = b"value"
    headers: Headers = ()


def encode_record(record: Record, offset_delta: int) -> bytes:
    body = b"\0" + varint(record.timestamp_delta) + varint(offset_delta)
    body += sized(record.key) + sized(record.value) + varint(len(record.headers))
    for key, value in record.headers:
        body += sized(key) + sized(value)
    return sized(body)


def encode_records(records: Iterable[Record]) -> bytes:
    return b"".join(encode_record(record, index) for index, record in enumerate(records))


@dataclass(frozen=True)
class Batch:
    """A batch as a producer sends it; `count` and `last_offset_delta` may be wrong on purpose."""

    payload: bytes
    count: int
    last_offset_delta: int | None = None
    base_offset: int = 0
    leader_epoch: int = -1
    magic: int = 2
    attributes: int = 0
    base_timestamp: int = 1_700_000_000_000
    max_timestamp: int = 1_700_000_000_999
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1

    @property
    def data(self) -> bytes:
        last = self.count - 1 if self.last_offset_delta is None else self.last_offset_delta
        checked = struct.pack(">hi", self.attributes, last)
        checked += struct.pack(">qqq", self.base_timestamp, self.max_timestamp, self.producer_id)
        checked += struct.pack(">hii", self.producer_epoch, self.base_sequence, self.count)
        checked += self.payload
        crc = struct.pack(">I", crc32c.crc32c(checked))
        head = struct.pack(">i", self.leader_epoch) + struct.pack(">b", self.magic) + crc
        return struct.pack(">qi", self.base_offset, len(head) + len(checked)) + head + checked


def batch_of(*records: Record, **fields: int) -> Batch:
    return Batch(encode_records(records), len(records), **fields)


@dataclass(frozen=True)
class Row:
    """A row of `messages` in the order of READ_COLUMNS."""

    offset: int
    timestamp_ms: int = 0
    timestamp_type: int = 0
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    producer_id: int = -1
    producer_epoch: int = -1
    sequence: int = -1
    transactional: bool = False
    control: bool = False
    leader_epoch: int = 0


def _length(size: int) -> bytes:
    out = b""
    while size > 127:
        out += bytes([size % 128 + 128])
        size //= 128
    return out + bytes([size])


def _text(data: bytes | None) -> bytes:
    return _length(len(data or b"")) + (data or b"")


def _nullable(texts: Sequence[bytes | None]) -> bytes:
    return b"".join(b"\1" if text is None else b"\0" for text in texts) + b"".join(
        _text(text) for text in texts
    )


def read_block(rows: Sequence[Row]) -> bytes:
    """The Native block that a cold read of these rows returns."""

    def each(code: str, name: str) -> bytes:
        return b"".join(struct.pack("<" + code, getattr(row, name)) for row in rows)

    headers = [header for row in rows for header in row.headers]
    ends = [sum(len(row.headers) for row in rows[: index + 1]) for index in range(len(rows))]
    header_column = b"".join(struct.pack("<Q", end) for end in ends)
    header_column += b"".join(_text(key) for key, _ in headers)
    header_column += _nullable([value for _, value in headers])
    type_ = b"Enum8('CreateTime' = 0, 'LogAppendTime' = 1)"
    columns = (
        (b"offset", b"Int64", each("q", "offset")),
        (b"timestamp_ms", b"Int64", each("q", "timestamp_ms")),
        (b"timestamp_type", type_, each("b", "timestamp_type")),
        (b"key", b"Nullable(String)", _nullable([row.key for row in rows])),
        (b"value", b"Nullable(String)", _nullable([row.value for row in rows])),
        (b"headers", b"Array(Tuple(key String, value Nullable(String)))", header_column),
        (b"producer_id", b"Int64", each("q", "producer_id")),
        (b"producer_epoch", b"Int16", each("h", "producer_epoch")),
        (b"sequence", b"Int32", each("i", "sequence")),
        (b"transactional", b"Bool", each("?", "transactional")),
        (b"control", b"Bool", each("?", "control")),
        (b"leader_epoch", b"Int32", each("i", "leader_epoch")),
    )
    return (
        _length(len(columns))
        + _length(len(rows))
        + b"".join(_text(name) + _text(kind) + data for name, kind, data in columns)
    )


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.rest = data

    def take(self, size: int) -> bytes:
        assert size <= len(self.rest)
        taken, self.rest = self.rest[:size], self.rest[size:]
        return taken

    def number(self) -> int:
        number, place = 0, 1
        while True:
            byte = self.take(1)[0]
            number += byte % 128 * place
            place *= 128
            if byte < 128:
                return number // 2 if number % 2 == 0 else -(number + 1) // 2

    def sized(self) -> bytes | None:
        size = self.number()
        return None if size == -1 else self.take(size)


def decoded(data: bytes) -> list[Row]:
    """The rows in one batch that this project encoded, as a consumer reads them."""
    length, leader_epoch, magic, crc = struct.unpack_from(">iibI", data, 8)
    attributes, last_delta, _, max_time = struct.unpack_from(">hiqq", data, 21)
    assert (length, magic, crc) == (len(data) - 12, 2, crc32c.crc32c(data[21:]))
    assert attributes & ~0x38 == 0
    rows = _rows(data, leader_epoch)
    assert rows[-1].offset == rows[0].offset + last_delta
    assert max_time == max(row.timestamp_ms for row in rows)
    return rows


def stored(batch: Batch, offset: int, leader_epoch: int) -> list[Row]:
    """The rows that a batch of a producer becomes from `offset` on."""
    return _rows(replace(batch, base_offset=offset).data, leader_epoch)


def _rows(data: bytes, leader_epoch: int) -> list[Row]:
    (base_offset,) = struct.unpack_from(">q", data)
    attributes, _, base_time, max_time = struct.unpack_from(">hiqq", data, 21)
    producer_id, producer_epoch, base_sequence, count = struct.unpack_from(">qhii", data, 43)
    sequenced = producer_id >= 0 and base_sequence >= 0
    cursor = _Cursor(data[61:])
    rows = []
    for _ in range(count):
        body = _Cursor(cursor.sized() or b"")
        assert body.take(1) == b"\0"
        timestamp = (base_time + body.number() + 2**63) % 2**64 - 2**63
        delta = body.number()
        rows.append(
            Row(
                offset=base_offset + delta,
                timestamp_ms=max_time if attributes & 8 else timestamp,
                timestamp_type=1 if attributes & 8 else 0,
                key=body.sized(),
                value=body.sized(),
                headers=tuple((body.sized() or b"", body.sized()) for _ in range(body.number())),
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                sequence=(base_sequence + delta) % 2**31 if sequenced else -1,
                transactional=bool(attributes & 0x10),
                control=bool(attributes & 0x20),
                leader_epoch=leader_epoch,
            )
        )
        assert not body.rest
    assert not cursor.rest
    return rows


# --- what hypothesis draws from ---


def _edges(bounds: tuple[int, int], *more: int) -> st.SearchStrategy[int]:
    low, high = bounds
    edges = (low, low + 1, -2, -1, 0, 1, high - 1, high, *more)
    return st.one_of(st.sampled_from(edges), st.integers(low, high))


def texts() -> st.SearchStrategy[bytes]:
    long = st.integers(100, 20_000).map(lambda size: b"long " * (size // 5))
    return st.one_of(st.binary(max_size=12), st.binary(max_size=12), st.binary(max_size=200), long)


def headers() -> st.SearchStrategy[Headers]:
    one = st.tuples(st.binary(max_size=6), st.none() | st.binary(max_size=6))
    return st.lists(one, max_size=4).map(tuple)


def records() -> st.SearchStrategy[Record]:
    delta = _edges(INT64) | st.integers(-1000, 1000)
    return st.builds(Record, delta, st.none() | texts(), st.none() | texts(), headers())


def batches() -> st.SearchStrategy[Batch]:
    """Valid batches, with every header field anywhere in its range."""

    def build(records_: list[Record], *fields: dict[str, int]) -> Batch:
        given = {name: value for part in fields for name, value in part.items()}
        return Batch(encode_records(records_), len(records_), **given)

    some_fields = {
        "base_offset": _edges(INT64),
        "leader_epoch": _edges(INT32),
        "attributes": _edges(INT16, 0x08, 0x10, 0x20, 0x38),
        "base_timestamp": _edges(INT64),
        "max_timestamp": _edges(INT64),
    }
    producer = {
        "producer_id": _edges(INT64, 5, 6, 7),
        "producer_epoch": _edges(INT16),
        "base_sequence": _edges(INT32, 7, 2**31 - 2, 2**31 - 3, 2**31 - 4),
    }
    return st.builds(
        build,
        st.lists(records(), min_size=1, max_size=6),
        st.fixed_dictionaries({}, optional=some_fields),
        st.just({}) | st.fixed_dictionaries(producer),
    )


@st.composite
def partition_rows(draw: st.DrawFn) -> list[Row]:
    """Rows of one partition in order of offset, with gaps and everything that ends a batch."""
    rows: list[Row] = []
    offset = draw(st.sampled_from([0, 1000, 2**40, 2**62]))
    sequence = draw(st.sampled_from([-1, 0, 5, 2**31 - 3]))
    producer_id = draw(st.sampled_from([-1, 7]))
    epoch = draw(st.sampled_from([-1, 0]))
    timestamp = draw(_edges(INT64))
    timestamp_type, transactional, leader_epoch = 0, False, 0
    for _ in range(draw(st.integers(0, 12))):
        change = draw(st.integers(0, 14))
        step = draw(st.sampled_from([1, 1, 1, 2, 300, 2**31 - 1, 2**31, 2**33]))
        offset += step
        if sequence >= 0:
            sequence = (sequence + (step if draw(st.booleans()) else 1)) % 2**31
        if change == 0:
            producer_id = draw(st.sampled_from([-1, 7, 8, 2**63 - 1]))
        if change == 1:
            epoch = draw(st.sampled_from([-1, 0, 1, 2**15 - 1]))
        if change == 2:
            sequence = draw(st.sampled_from([-1, 0, 2**31 - 1]))
        if change == 3:
            transactional = not transactional
        if change == 4:
            timestamp_type = 1 - timestamp_type
        if change == 5:
            leader_epoch = draw(_edges(INT32))
        if change in (6, 7, 8) or timestamp_type == 0:
            timestamp = draw(_edges(INT64) | st.just(timestamp))
        rows.append(
            Row(
                offset=offset,
                timestamp_ms=timestamp,
                timestamp_type=timestamp_type,
                key=draw(st.none() | texts()),
                value=draw(st.none() | texts()),
                headers=draw(headers()),
                producer_id=producer_id,
                producer_epoch=epoch,
                sequence=sequence if producer_id >= 0 else -1,
                transactional=transactional,
                control=change == 9,
                leader_epoch=leader_epoch,
            )
        )
    return rows


@dataclass
class Mutation:
    """One way to corrupt bytes of any length; `place` (0 to 1) says where."""

    kind: str
    place: float
    data: bytes = field(default=b"")

    def apply(self, data: bytes) -> bytes:
        at = int(self.place * len(data))
        if self.kind == "cut":
            return data[:at]
        if self.kind == "insert":
            return data[:at] + self.data + data[at:]
        if self.kind == "drop":
            return data[:at] + data[at + len(self.data) :]
        return data[:at] + self.data + data[at + len(self.data) :]


def mutations() -> st.SearchStrategy[list[Mutation]]:
    telling = st.sampled_from([b"\xff", b"\x80", b"\0", b"\1", b"\xff" * 5, b"\xff" * 10, b"\x7f"])
    one = st.builds(
        Mutation,
        st.sampled_from(["cut", "insert", "drop", "overwrite", "overwrite"]),
        st.floats(0, 1, exclude_max=True),
        telling | st.binary(min_size=1, max_size=3),
    )
    return st.lists(one, min_size=1, max_size=3)


def spoil(data: bytes, mutations_: Iterable[Mutation]) -> bytes:
    for mutation in mutations_:
        data = mutation.apply(data)
    return data
