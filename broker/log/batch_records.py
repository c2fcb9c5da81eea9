"""The records section of one compressed batch, decompressed step by step within its limits.

A producer's batch is small, but what comes out of it may not be. It is refused as soon as the
output is larger than `decompressed_max_bytes` or `decompression_ratio_max` allows, a record is
larger than its topic accepts, or a record has a length that no record has.
"""

from __future__ import annotations

from typing import Final

from protocol._batches import BatchHeader
from protocol._decode_batches import RecordLengths
from protocol.batches import BATCH_OVERHEAD
from protocol.compression import Decompression
from protocol.decode_batches import ROW_BYTES
from protocol.errors import MessageTooLarge

_ANY_RATIO_BYTES: Final = 8 << 20
"""Output up to this size may have any ratio: short repetitive data compresses best."""

_INLINE_RATIO: Final = 32
_INLINE_MIN_BYTES: Final = 128 << 10
_INLINE_MAX_BYTES: Final = 1 << 20


class BatchRecords:
    """Of a batch that is compressed."""

    def __init__(
        self,
        data: bytes,
        header: BatchHeader,
        max_bytes: int,
        ratio_max: int,
        record_max_bytes: int,
    ) -> None:
        """`max_bytes`: of all records, with the fixed columns of their rows. `ratio_max`: output
        for each byte of the batch. Raises `KafkaError` if the header alone breaks a limit."""
        payload = memoryview(data)[header.start + BATCH_OVERHEAD : header.end]
        rows_bytes = max(header.count, 0) * ROW_BYTES
        by_ratio = max(len(payload) * ratio_max, _ANY_RATIO_BYTES)
        most = min(max_bytes - rows_bytes, by_ratio)
        if most < 0:
            raise MessageTooLarge(
                f"a compressed record batch of {header.count} records would be larger than"
                f" {max_bytes} bytes when decompressed"
            )
        self.most_bytes = most + rows_bytes
        """Memory for the largest output that is accepted, and for its rows."""
        self.inline_bytes = min(
            max(len(payload) * _INLINE_RATIO, _INLINE_MIN_BYTES), _INLINE_MAX_BYTES
        )
        """Up to this size a lane decompresses the batch itself: about 1 ms at most."""
        self._rows_bytes = rows_bytes
        self._record_max_bytes = record_max_bytes
        self._count = header.count
        self._decompression = Decompression(header.codec, payload, most)
        self._lengths: RecordLengths | None = None

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
        if not decompression.is_finished:
            decompression.advance(piece_bytes)
        if decompression.is_finished and decompression.size <= self._record_max_bytes:
            return  # no record can be too large; what else may be wrong is found when it is read
        if self._lengths is None:
            self._lengths = RecordLengths(self._count, self._record_max_bytes)
        with decompression.so_far() as found:
            self._lengths.check(found)

    def result(self) -> bytes:
        return self._decompression.result()
