"""Types of `_produce_response.pyx`, which says what each means."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

class StoredBatch:
    partition: int
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int

    def __init__(
        self, partition: int, base_offset: int, log_append_time_ms: int, log_start_offset: int
    ) -> None: ...

def produce_response(
    version: int, correlation_id: int, topics: Sequence[tuple[str | UUID, list[Any]]]
) -> bytes | None: ...
