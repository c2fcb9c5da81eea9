"""Packed blocks: rows of `messages` in fewer bytes than as a Native block, which they become later.

Most of a Native block of small records is what all rows of a batch have in common, such as the
topic's id, repeated in every row. A packed block has it once for each batch: 112 bytes instead of
186 for a record of 100 B. The journal holds these blocks (storage/journal.py), so their format
outlives the process.

`BlockBuilder.pack` (_decode_batches.pyx) makes packed blocks, and _packed_blocks.pyx makes one
Native block of many.

Numbers are little-endian, n is the number of rows. A Native block begins with its number of
columns, which is not 0.

    +------+--------+----------+-------------+-------------+---------------------------------------+
    | 0    | n      | format 1 | append_time | size of the | sizes of: runs, topics, key, value,   |
    | u8   | varint | u8       | i64, ms     | Native      | headers: keys, null map, values;      |
    |      |        |          |             | block, u64  | u64 each                              |
    +------+--------+----------+-------------+-------------+---------------------------------------+
    | runs: 72 bytes for each batch             | topics: strings, the first one empty             |
    +-------------------------------------------+------------------------+-------------------------+
    | as in the Native block: timestamp_ms      | key: null map, strings | value: null map, strings|
    +-------------------------------------------+------------+-----------+-------------------------+
    | headers: ends, u64 each, left out without any header   | keys      | values: null map, them  |
    +--------------------------------------------------------+-----------+-------------------------+

    run  0        8         16          24            32       36          40       44         48
         +--------+---------+-----------+-------------+--------+-----------+--------+----------+
         | base   | number  | producer  | start of    | topic: | partition | leader | base     |
         | offset | of rows | id        | the trans-  | place  |           | epoch  | sequence |
         | i64    | i64     | i64       | action, i64 | u32    | i32       | i32    | i32      |
         +--------+---------+-----------+-------------+--------+-----------+--------+----------+
         48               50           52     56                                               72
         +----------------+------------+------+------------------------------------------------+
         | producer epoch | attributes | 0    | the topic's id                                 |
         | i16            | i16        | u32  | 16 bytes                                       |
         +----------------+------------+------+------------------------------------------------+

A string is its length, as a varint, and its bytes. A run names its topic by its place in the list.
"""

from __future__ import annotations

import struct
from typing import Final

FORMAT: Final = 1
RUN: Final = struct.Struct("<qqqqIiiihhI16s")
"""What the rows of a batch have in common."""
HEAD: Final = struct.Struct("<qQQQQQQQQ")
_NATIVE_SIZE_AT: Final = 1 + 1 + 8  # behind the number of rows, the format and append_time


class BadPackedBlock(ValueError):
    """Bytes that are not one whole packed block."""


def is_packed(block: bytes) -> bool:
    """Whether a block that the broker made is a packed one, not a Native one."""
    return block[:1] == b"\0"


def native_bytes(block: bytes) -> int:
    """The size of the Native block with the rows of a packed one, which is not checked."""
    at = 1
    while block[at] & 0x80:  # the number of rows
        at += 1
    at += _NATIVE_SIZE_AT
    return int.from_bytes(block[at : at + 8], "little")
