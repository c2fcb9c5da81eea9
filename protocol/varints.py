"""Varints, and strings and arrays with a length, written and read, in readable Python.

A varint has 7 bits of a number in each byte, the lowest first; the top bit says that another byte
follows. Zigzag maps signed numbers to unsigned ones (0, -1, 1, -2 to 0, 1, 2, 3), so that small
negative numbers stay short. Record batches have zigzag lengths, ClickHouse has unsigned ones.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence


def varuint(value: int) -> bytes:
    if 0 <= value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def zigzag(value: int) -> bytes:
    return varuint(value << 1 if value >= 0 else (-value << 1) - 1)


def length_prefixed(text: bytes) -> bytes:
    """A ClickHouse String: an unsigned varint length, then the bytes."""
    return varuint(len(text)) + text


def array_length(items: Sequence[object], compact: bool) -> bytes:
    """The length of an array in a Kafka message; `compact` in flexible versions (KIP-482)."""
    return varuint(len(items) + 1) if compact else struct.pack(">i", len(items))


def string(text: str, compact: bool) -> bytes:
    """A string in a Kafka message; `compact` in flexible versions (KIP-482)."""
    data = text.encode()
    return (varuint(len(data) + 1) if compact else struct.pack(">h", len(data))) + data
