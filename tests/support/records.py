"""Records as tests see them, and the sample that every client must transmit."""

import base64
from dataclasses import dataclass, replace
from typing import Any

from tests.support.broker_process import BrokerProcess

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Record:
    """`timestamp_ms` None leaves the timestamp to the client's clock."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None
    offset: int = -1

    def at(self, offset: int) -> "Record":
        return replace(self, offset=offset)

    def stamped(self, timestamp_ms: int | None) -> "Record":
        return replace(self, timestamp_ms=timestamp_ms)


EVERY_BYTE = bytes(range(256))
TIME_MS = 1_700_000_000_000

SAMPLE = (
    Record(b"key", b"value", (), TIME_MS),
    Record(None, b"no key", (), TIME_MS + 1),
    Record(b"tombstone", None, (), TIME_MS + 2),
    Record(None, None, (), TIME_MS + 3),
    Record(b"", b"empty key", (), TIME_MS + 4),
    Record(b"empty value", b"", (), TIME_MS + 5),
    Record(b"", b"", (), TIME_MS + 6),
    Record(None, b"", (), TIME_MS + 7),
    Record(b"", None, (), TIME_MS + 8),
    Record(EVERY_BYTE, EVERY_BYTE * 3, (("bytes", b"\x00\xff\xfe"),), TIME_MS + 9),
    Record(
        "ключ".encode(), "значение 漢字".encode(), (("имя", "значение".encode()),), TIME_MS + 10
    ),
    Record(b"one header", b"v", (("name", b"value"),), TIME_MS + 11),
    Record(b"order", b"v", (("b", b"1"), ("a", b"2"), ("c", b"3")), TIME_MS + 12),
    Record(b"repeats", b"v", (("a", b"2"), ("a", b"1"), ("a", b"2")), TIME_MS + 13),
    Record(b"mixed", b"v", (("b", b"1"), ("a", b"2"), ("b", b"3"), ("a", b"")), TIME_MS + 14),
    Record(b"empty header", b"v", (("empty", b""),), TIME_MS + 15),
    Record(b"null header", b"v", (("null", None), ("null", b"x"), ("null", None)), TIME_MS + 16),
    Record(b"nameless header", b"v", (("", b"nameless"),), TIME_MS + 17),
    Record(b"header of nothing", None, (("", None),), TIME_MS + 18),
    Record(b"earlier than those before", b"v", (), TIME_MS - 500),
    Record(b"the beginning of time", b"v", (), 0),
    Record(b"the first millisecond", b"v", (), 1),
    Record(b"repetitive", b"abcdefgh" * 25_000, (), TIME_MS + 19),
    *(Record(b"%d" % n, b"value %d" % n, (), TIME_MS + 20 + n // 3) for n in range(200)),
)


def rows(broker: BrokerProcess, topic: str, partition: int = 0) -> list[Record]:
    """The records of a partition, by SQL."""
    found = broker.sql(
        """
        SELECT offset, timestamp_ms, base64Encode(key) AS key, base64Encode(value) AS value,
               arrayMap(h -> (h.1, base64Encode(h.2)), headers) AS headers
        FROM messages
        WHERE topic = {topic:String} AND partition = {partition:Int32}
        ORDER BY offset
        """,
        {"topic": topic, "partition": partition},
    )
    return [record_from_json(row) for row in found]


def record_from_json(row: dict[str, Any]) -> Record:
    """A record whose bytes travelled as base64, from SQL or from a helper process."""
    return Record(
        key=_bytes(row["key"]),
        value=_bytes(row["value"]),
        headers=tuple((name, _bytes(value)) for name, value in row["headers"]),
        timestamp_ms=int(row["timestamp_ms"]),
        offset=int(row["offset"]),
    )


def record_to_json(record: Record) -> dict[str, Any]:
    return {
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [[name, _text(value)] for name, value in record.headers],
        "timestamp_ms": record.timestamp_ms,
    }


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()
