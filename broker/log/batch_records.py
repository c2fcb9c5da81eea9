"""The records section of one compressed batch, decompressed step by step within its limits.

A producer's batch is small, but what comes out of it may not be: `max.message.bytes` bounds the
batch as it arrives, as in Kafka, and `decompressed_max_bytes` bounds what comes out. A batch is
refused as soon as its output is larger, or a record has a length that no record has.
"""

from __future__ import annotations

from typing import Final

from brokerhouse.protocol._batches import BatchHeader
from brokerhouse.protocol._decode_batches import RecordLengths
from brokerhouse.protocol.batches import BATCH_OVERHEAD
from brokerhouse.protocol.columns import ROW_BYTES
from brokerhouse.protocol.compression import Decompression
from brokerhouse.protocol.errors import MessageTooLarge

_INLINE_RATIO: Final = 32
_INLINE_MIN_BYTES: Final = 128 << 10
_INLINE_MAX_BYTES: Final = 1 << 20


class BatchRecords:
    """Of a batch that is compressed."""

    def __init__(self, data: bytes, header: BatchHeader, max_bytes: int) -> None:
        """`max_bytes`: of all records, with the fixed columns of their rows. Raises `KafkaError`
        if the start of the batch alone shows that it breaks a limit."""
        payload = memoryview(data)[header.start + BATCH_OVERHEAD : header.end]
        rows_bytes = max(header.count, 0) * ROW_BYTES
        self._count = header.count
        most = max_bytes - rows_bytes
        if most < 0:
            raise _too_large(self._count, max_bytes)
        self.most_bytes = max_bytes
        """Memory for the largest output that is accepted, and for its rows."""
        self.inline_bytes = min(
            max(len(payload) * _INLINE_RATIO, _INLINE_MIN_BYTES), _INLINE_MAX_BYTES
        )
        """Up to this size a lane decompresses the batch itself: about 1 ms at most."""
        self._rows_bytes = rows_bytes
        try:
            self._decompression = Decompression(header.codec, payload, most)
        except MessageTooLarge:
            raise _too_large(self._count, max_bytes) from None
        self._lengths = RecordLengths(header.count, most)

    @property
    def size(self) -> int:
        """Memory of what has come out so far, and of its rows."""
        return self._decompression.size + self._rows_bytes

    @property
    def is_finished(self) -> bool:
        return self._decompression.is_finished

    def advance_inline(self) -> bool:
        """Decompress as much as a lane should. True: that was all."""
        if self._decompression.claimed_bytes <= self.inline_bytes:
            self.advance(self.inline_bytes)
        return self.is_finished

    def advance(self, piece_bytes: int) -> None:
        """Decompress about `piece_bytes` more. Raises `KafkaError`."""
        decompression = self._decompression
        if decompression.is_finished:
            return
        try:
            decompression.advance(piece_bytes)
            if decompression.is_finished:
                return  # what else may be wrong with its records is found when they are read
            with decompression.so_far() as found:
                self._lengths.check(found)
        except MessageTooLarge:
            raise _too_large(self._count, self.most_bytes) from None

    def result(self) -> bytes:
        return self._decompression.result()


def _too_large(count: int, max_bytes: int) -> MessageTooLarge:
    return MessageTooLarge(
        f"The record batch is larger than {max_bytes} bytes when it is decompressed, with "
        f"{ROW_BYTES} bytes more for each of its {count} records. The broker's setting "
        "decompressed_max_bytes allows no more."
    )
