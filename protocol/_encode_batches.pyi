"""Types of `_encode_batches.pyx`: those of `encode_batches.py`, which says what they mean."""

from protocol.encode_batches import EncodedBatch as EncodedBatch
from protocol.encode_batches import encode_batches as encode_batches
