"""Numbered records of every format of feeds, each so many of them bad."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable

import fastavro
import msgpack

from tests.support.schemas import Schemas

BAD_EVERY = 50
COLUMNS = "id UInt64, name String, _partition Int32, _offset Int64"
"""Of a table for them: number N is the row (N, 'nN')."""
_AVRO = {
    "type": "record",
    "name": "Event",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}],
}
_PROTOBUF = 'syntax = "proto3"; message Event { uint64 id = 1; string name = 2; }'


def add_schemas(schemas: Schemas) -> None:
    """What the records of Avro and Protobuf refer to."""
    schemas.add(1, _AVRO)
    schemas.add_text(2, _PROTOBUF, schemaType="PROTOBUF")


def numbered(kind: str) -> tuple[Callable[[], tuple[str, bytes]], Callable[[], int]]:
    """What makes the next record of the format, with its number as the key, and how many it made.

    Bad records are in turn not of the format and without a number.
    """
    value = _VALUES[kind]
    numbers = itertools.count()
    made = 0

    def record() -> tuple[str, bytes]:
        nonlocal made
        number = next(numbers)
        made = number + 1
        if number % BAD_EVERY:
            return str(number), value(number)
        garbage, misfit = _BAD[kind]
        return str(number), garbage if number % (2 * BAD_EVERY) else misfit

    return record, lambda: made


def _avro(number: int) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, _AVRO, {"id": number, "name": f"n{number}"})
    return b"\0\0\0\0\1" + stream.getvalue()


def _protobuf(number: int) -> bytes:
    varint, rest = b"", number
    while rest > 0x7F:
        varint += bytes([rest & 0x7F | 0x80])
        rest >>= 7
    varint += bytes([rest])
    name = f"n{number}".encode()
    return b"\0\0\0\0\2\0" + b"\x08" + varint + b"\x12" + bytes([len(name)]) + name


def _debezium(number: int) -> bytes:
    after = {"id": number, "name": f"n{number}"}
    return json.dumps({"before": None, "after": after, "source": {}, "op": "c"}).encode()


_VALUES: dict[str, Callable[[int], bytes]] = {
    "json": lambda number: json.dumps({"id": number, "name": f"n{number}"}).encode(),
    "csv": lambda number: f"{number},n{number}".encode(),
    "avro": _avro,
    "protobuf": _protobuf,
    "msgpack": lambda number: msgpack.packb({"id": number, "name": f"n{number}"}),
    "debezium": _debezium,
}
_DELETED = b'{"before":null,"after":null,"source":{},"op":"d"}'
_BAD = {
    "json": (b'{"id": 1', b'{"id": "none"}'),
    "csv": (b'1,"n', b"none,n"),
    "avro": (_avro(1)[:-1], b"\0\0\0\0\x09" + _avro(1)[5:]),
    "protobuf": (_protobuf(1)[:-1], b"\0\0\0\0\x09" + _protobuf(1)[5:]),
    "msgpack": (b"\xc1", msgpack.packb({"id": "none"})),
    "debezium": (_debezium(1)[:-1], _DELETED),
}
