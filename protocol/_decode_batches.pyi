"""Types of `_decode_batches.pyx`, and what each function means."""

import builtins
from typing import ClassVar

from brokerhouse.protocol._batches import BatchHeader

class RecordLengths:
    """Checks the lengths of a batch's records while it is being decompressed.

    So a batch that cannot be stored is refused at its first bad record, not at its end. What
    `BlockBuilder.append` checks besides is not checked here.
    """

    def __init__(self, count: int, max_bytes: int) -> None:
        """`count`: records that the batch claims. `max_bytes`: the largest record accepted."""

    def check(self, data: builtins.bytes | memoryview) -> None:
        """`data`: all that is decompressed so far. Raises InvalidRecord and MessageTooLarge."""

class BlockBuilder:
    """Collects batches, of any topics and partitions, into one Native block for `messages`.

    All rows have the same `append_time_ms`. `rows` and `bytes` are the number of rows and the
    length of the block so far. `finish` returns the block, `pack` the packed one
    (protocol/packed_blocks.py); they change nothing.
    """

    COLUMNS: ClassVar[tuple[tuple[str, str], ...]]
    def __init__(self, append_time_ms: int) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def bytes(self) -> int: ...
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
        transaction_start: int = -1,
    ) -> None:
        """Adds the records of one batch, from `base_offset` on; all of them or, on an error, none.

        `payload` is the records section, decompressed. Raises InvalidRecord unless it is exactly
        `header.count` records: their offset deltas count up from 0, no bytes are left over inside
        or after them, numbers have no more bits than their type, and lengths fit. If `keyed`,
        records without a key raise RecordsWithoutKey, which names up to 1,000 of them.

        A record's timestamp is the batch's base timestamp plus its delta, modulo 2^64. All records
        have the same one if `log_append_time_ms` is given, or if the batch is of LogAppendTime: its
        max timestamp. A record's sequence counts up from the base sequence (0 follows 2^31-1), and
        is -1 if the batch has no producer id or no sequence. `transaction_start` is where in this
        partition their transaction began, -1 if they are not part of one.
        """

    def finish(self) -> builtins.bytes:
        """The whole block. Without rows, it has only the names and types of the columns."""

    def pack(self) -> builtins.bytes:
        """The packed block. Raises ValueError without rows."""
