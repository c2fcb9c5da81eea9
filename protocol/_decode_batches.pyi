"""Types of `_decode_batches.pyx`: those of `decode_batches.py`, which says what they mean."""

from protocol.decode_batches import BlockBuilder as BlockBuilder
from protocol.decode_batches import RecordLengths as RecordLengths
