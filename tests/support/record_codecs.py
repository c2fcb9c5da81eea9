"""The two implementations of the record batch format: one object each, with equal functions."""

from types import SimpleNamespace

from protocol import (
    _batches,
    _decode_batches,
    _encode_batches,
    batches,
    decode_batches,
    encode_batches,
)

COMPILED = SimpleNamespace(
    BatchHeader=_batches.BatchHeader,
    crc32c=_batches.crc32c,
    parse_headers=_batches.parse_headers,
    check_crc=_batches.check_crc,
    stamp_batch=_batches.stamp_batch,
    BlockBuilder=_decode_batches.BlockBuilder,
    EncodedBatch=_encode_batches.EncodedBatch,
    encode_batches=_encode_batches.encode_batches,
)
"""What the broker runs."""

REFERENCE = SimpleNamespace(
    BatchHeader=batches.BatchHeader,
    crc32c=batches.crc32c,
    parse_headers=batches.parse_headers,
    check_crc=batches.check_crc,
    stamp_batch=batches.stamp_batch,
    BlockBuilder=decode_batches.BlockBuilder,
    EncodedBatch=encode_batches.EncodedBatch,
    encode_batches=encode_batches.encode_batches,
)
"""What says, in readable Python, what each function means."""
