"""Types of `_decode_batches.pyx`. `decode_batches.py` says what each function means."""

import builtins
from typing import ClassVar, final

from protocol._batches import BatchHeader

@final
class BlockBuilder:
    COLUMNS: ClassVar[tuple[tuple[str, str], ...]]
    def __init__(self, append_time_ms: int) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def append(
        self,
        topic: str,
        topic_id: builtins.bytes,
        partition: int,
        base_offset: int,
        leader_epoch: int,
        header: BatchHeader,
        payload: builtins.bytes | memoryview,
        log_append_time_ms: int | None,
        keyed: bool = False,
    ) -> None: ...
    def finish(self) -> builtins.bytes: ...
