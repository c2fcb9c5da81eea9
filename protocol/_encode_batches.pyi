"""Types of `_encode_batches.pyx`, and what each function means."""

from dataclasses import dataclass

@dataclass(frozen=True)
class EncodedBatch:
    """One uncompressed record batch made from rows."""

    base_offset: int
    last_offset: int
    max_timestamp: int
    data: bytes

def encode_batches(block: bytes | memoryview, max_batch_bytes: int) -> list[EncodedBatch]:
    """Uncompressed batches from rows of one partition, in order of offset.

    `block` is one or more concatenated Native blocks whose columns are READ_COLUMNS
    (protocol/columns.py). The result of a streamed query has several. A batch may span blocks.
    Offsets may have gaps, which compaction leaves. A new batch starts

    * where producer id or epoch, transactional, timestamp type or leader epoch change
    * at and after every control row
    * where the sequences of a producer do not advance in step with the offsets
    * where the timestamp of LogAppendTime changes
    * where an offset delta would not fit into 32 bits
    * where the batch would become longer than `max_batch_bytes` (a batch has at least one record)

    Raises ValueError for a block that is not of that shape.
    """
