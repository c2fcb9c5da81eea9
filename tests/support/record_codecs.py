"""The two implementations of the record batch format: one object each, with equal functions."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

from brokerhouse.protocol import _batches, _decode_batches, _encode_batches
from tests.reference import batches, decode_batches, encode_batches
from tests.support.record_batches import Batch

T = TypeVar("T")
TOPIC_ID = bytes(range(16))

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
"""The reference, in readable Python."""

BOTH: list[Any] = [COMPILED, REFERENCE]
HEADER_FIELDS = [name for name in REFERENCE.BatchHeader.__slots__ if name not in ("start", "end")]


def outcome(call: Callable[[], T]) -> tuple[type[Exception], None] | tuple[None, T]:
    """The result of a call, or the class of its exception, for comparing the two."""
    try:
        return None, call()
    except Exception as error:
        return type(error), None


def fields(value: Any) -> dict[str, Any]:
    """A header or encoded batch of either module, as a dictionary."""
    names = type(value).__slots__ if hasattr(value, "__slots__") else None
    if names is None:
        kind = REFERENCE.BatchHeader if hasattr(value, "crc") else REFERENCE.EncodedBatch
        names = kind.__slots__
    return {name: getattr(value, name) for name in names}


def header_of(module: Any, batch: Batch) -> Any:
    (header,) = module.parse_headers(batch.data)
    return header


def append(
    module: Any,
    builder: Any,
    batch: Batch,
    base_offset: int = 0,
    topic: str = "topic",
    partition: int = 0,
    log_append_time_ms: int | None = None,
    leader_epoch: int = 3,
    keyed: bool = False,
    transaction_start: int = -1,
) -> None:
    header = header_of(module, batch)
    payload = memoryview(batch.data)[header.start + 61 : header.end]
    builder.append(
        topic,
        TOPIC_ID,
        partition,
        base_offset,
        leader_epoch,
        header,
        payload,
        log_append_time_ms,
        keyed,
        transaction_start,
    )


def block_of(module: Any, *batches: Batch, log_append_time_ms: int | None = None) -> bytes:
    builder = module.BlockBuilder(1_700_000_000_000)
    offset = 0
    for batch in batches:
        append(module, builder, batch, offset, log_append_time_ms=log_append_time_ms)
        offset += batch.count
    block: bytes = builder.finish()
    return block
