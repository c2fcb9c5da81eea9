"""Packed blocks: rows of `messages` in fewer bytes than as a Native block, which they become later.

Most of a Native block of small records is what all rows of a batch have in common, such as the
topic's id, repeated in every row. A packed block has it once for each batch: 112 bytes instead of
186 for a record of 100 B. The journal holds these blocks (storage/journal.py), so their format
outlives the process.

`BlockBuilder.pack` (_decode_batches.pyx) makes packed blocks, and _packed_blocks.pyx makes one
Native block of many.

A packed block, all numbers little-endian:

    a zero byte (a Native block begins with its number of columns), the number of rows (varint),
    the format (a byte),
    nine numbers of 8 bytes: append_time; the size of the Native block with these rows alone; the
    sizes of runs, topics, key, value, and of the headers' keys, null map and values,
    runs: 72 bytes for each batch (`RUN`),
    topics: strings, the first one empty, each with its length as a varint; a run has the position
    of its own,
    then the values of the columns as in the Native block: timestamp_ms, key, value, headers.
    Without any header, the ends of headers are left out.
"""

from __future__ import annotations

import struct
from typing import Final

FORMAT: Final = 1
RUN: Final = struct.Struct("<qqqqIiiihhI16s")
"""Base offset, number of rows, producer id, start of the transaction, position in the topics,
partition, leader epoch, base sequence, producer epoch, attributes, 0, and the topic's id."""
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
