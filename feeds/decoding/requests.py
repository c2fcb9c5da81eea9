"""What a broker and its process that decodes (worker.py) tell each other.

A file of its own, because the process needs the libraries of every format, and a broker needs none.

The file of values is ClickHouse's RowBinary of (mark FixedString(16), offset Int64, value String),
where a value of Debezium has the key before it (debezium.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

MARK_BYTES = 16
_OFFSET_BYTES = 8


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """`values` and `rows` are paths; values with another `mark` are left out. `columns`: of the
    table, each as `Column.as_list`. `registry`: its URL, or empty. `collects_unknown`: the answer
    has columns for fields that have none."""

    values: str
    rows: str
    mark: str
    kind: str
    columns: list[list[Any]]
    registry: str
    collects_unknown: bool = False

    def as_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class DecodeAnswer:
    """`failed`: empty, or why nothing could be decoded now. `unknown`: name and type of columns for
    the fields that have none."""

    failed: str = ""
    unknown: list[list[str]] = field(default_factory=list)


def records(data: bytes, mark: bytes) -> Iterator[tuple[int, bytes]]:
    """Offsets and values of the rows with this mark."""
    place = 0
    while place < len(data):
        row_mark = data[place : place + MARK_BYTES]
        place += MARK_BYTES
        offset = int.from_bytes(data[place : place + _OFFSET_BYTES], "little", signed=True)
        place += _OFFSET_BYTES
        length = shift = 0
        while True:
            byte = data[place]
            place += 1
            length |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        if row_mark == mark:
            yield offset, data[place : place + length]
        place += length
