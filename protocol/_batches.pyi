"""Types of `_batches.pyx`: those of `batches.py`, which says what each function means."""

from protocol.batches import BatchHeader as BatchHeader
from protocol.batches import check_crc as check_crc
from protocol.batches import parse_headers as parse_headers
from protocol.batches import stamp_batch as stamp_batch

def crc32c(data: bytes | bytearray | memoryview, *, hardware: bool = True) -> int: ...
