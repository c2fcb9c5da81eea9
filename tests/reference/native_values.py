"""Values of a column as a Native block has them, for the other references.

Format: https://clickhouse.com/docs/interfaces/formats/Native.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from brokerhouse.protocol.varints import length_prefixed


def numbers(code: str, values: Sequence[int]) -> bytes:
    """`code`: of the module `struct`."""
    return struct.pack(f"<{len(values)}{code}", *values)


def uuid(value: bytes) -> bytes:
    """A UUID, given in network order: two 64-bit halves, each little-endian."""
    return value[7::-1] + value[:7:-1]


def nulls(texts: Sequence[bytes | None]) -> bytes:
    """The first part of Nullable(String): a byte per row that is 1 for null."""
    return bytes(text is None for text in texts)


def strings(texts: Sequence[bytes | None]) -> bytes:
    """A null is written as an empty string."""
    return b"".join(length_prefixed(text or b"") for text in texts)


def low_cardinality(keys: Sequence[bytes], indexes: Sequence[int]) -> bytes:
    """LowCardinality(String): version 1; index width and bit 9 for "keys follow"; keys; indexes.

    `keys` open with the default value, the empty string, used or not. `indexes`: of each row.
    """
    width = 0 if len(keys) <= 2**8 else 1 if len(keys) <= 2**16 else 2
    return (
        numbers("Q", [1, 1 << 9 | width, len(keys)])
        + strings(keys)
        + numbers("Q", [len(indexes)])
        + numbers("BHI"[width], indexes)
    )
