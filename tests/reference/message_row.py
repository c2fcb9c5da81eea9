"""One row of `messages`, for the references that read and write record batches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MessageRow:
    """One row of `messages`, without the columns that say which partition it belongs to."""

    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]
    producer_id: int
    producer_epoch: int
    sequence: int
    transactional: bool
    control: bool
    leader_epoch: int
