"""Types of `_batches.pyx`, and what each function means."""

from dataclasses import dataclass

@dataclass(frozen=True)
class BatchHeader:
    """The fixed part of one record batch, and where the batch starts and ends in the input."""

    start: int
    end: int
    base_offset: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    @property
    def codec(self) -> int:
        """Compression codec of the records: see `protocol/compression.py`."""
    @property
    def timestamp_type(self) -> int:
        """0 CreateTime, 1 LogAppendTime: every record then has `max_timestamp` (KIP-32)."""
    @property
    def transactional(self) -> bool: ...
    @property
    def control(self) -> bool: ...
    @property
    def last_sequence(self) -> int:
        """Sequence of the last record. 0 follows 2^31-1; -1 if the batch has no sequences."""

def parse_headers(
    records: bytes | memoryview, start: int = 0, end: int | None = None
) -> list[BatchHeader]:
    """The headers of the concatenated batches in `records[start:end]`, in order.

    Raises UnsupportedForMessageFormat for formats v0 and v1, which have their magic at the same
    byte, and CorruptMessage for any other magic, a batch that is cut or shorter than its header,
    and bytes after the last batch. The records inside and the CRCs are not checked.
    """

def check_crc(records: bytes | memoryview, header: BatchHeader) -> None:
    """Raises CorruptMessage unless the CRC32C from the attributes to the batch's end is its CRC."""

def stamp_batch(
    records: bytes | memoryview,
    header: BatchHeader,
    base_offset: int,
    leader_epoch: int,
    log_append_time_ms: int | None,
) -> bytes:
    """A copy of the batch as the log keeps it: with its base offset and partition leader epoch.

    The CRC does not cover these two. With `log_append_time_ms`
    (`message.timestamp.type=LogAppendTime`) the copy has that as its max timestamp, LogAppendTime
    as its timestamp type, and a new CRC.
    """

def crc32c(data: bytes | bytearray | memoryview, *, hardware: bool = True) -> int:
    """CRC32C (Castagnoli) of `data`."""
