"""Types of `_produce_request.pyx`, which says what each means."""

from uuid import UUID

class ProducePartition:
    index: int
    frame: bytes
    start: int
    end: int

    @property
    def records(self) -> bytes: ...

class ProduceTopic:
    key: str | UUID
    partition_data: list[ProducePartition]

class ProduceMessage:
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topic_data: list[ProduceTopic]

def decode_produce_request(
    frame: bytes, position: int, version: int
) -> tuple[ProduceMessage, int]: ...
