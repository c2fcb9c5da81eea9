"""Writes to, reads and lists offsets of one partition through a `Wire`."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

from brokerhouse.protocol._batches import check_crc, parse_headers
from tests.support import messages
from tests.support.messages import Target
from tests.support.record_batches import Batch, stored
from tests.support.wire import Wire

NO_ID = UUID(int=0)
INT64_MAX = 2**63 - 1
PRODUCE, FETCH, LIST, EPOCHS = 13, 17, 11, 4
"""Versions for tests of behaviour that is the same in every version."""
NAMED_PRODUCE, NAMED_FETCH = 12, 12
"""The last versions that name topics by name and not by id."""


def write(wire: Wire, target: Target, records: bytes, version: int = PRODUCE) -> int:
    """Produces one batch; returns its base offset."""
    partition = produced(wire, target, records, version)
    assert partition.error_code == 0, partition.error_message
    return int(partition.base_offset)


def produced(wire: Wire, target: Target, records: bytes, version: int = PRODUCE) -> Any:
    """Produces one batch; returns the answer of the partition."""
    answer = wire.ask(messages.produce(target, records), version)
    return answer.responses[0].partition_responses[0]


def read(wire: Wire, target: Target, offset: int, version: int = FETCH, **limits: int) -> Any:
    """Fetches; returns the answer of the partition."""
    answer = wire.ask(messages.fetch(target, offset, **limits), version)
    assert answer.error_code == 0
    return answer.responses[0].partitions[0]


def batches(records: bytes) -> list[Any]:
    """The headers of fetched batches. Asserts that each CRC is right."""
    headers = parse_headers(bytes(records))
    for batch in headers:
        check_crc(bytes(records), batch)
    return headers


def offsets_of(partition: Any) -> list[int]:
    return [batch.base_offset for batch in batches(partition.records)]


def listed(wire: Wire, target: Target, timestamp: int, version: int = LIST) -> tuple[int, int, int]:
    """ListOffsets: (error, timestamp, offset)."""
    found = wire.ask(messages.list_offsets(target, timestamp), version).topics[0].partitions[0]
    return found.error_code, found.timestamp, found.offset


def rows_of(records: bytes) -> list[Any]:
    """The rows that ClickHouse stores of these batches."""
    data = bytes(records)
    rows = []
    for batch in batches(data):
        part = data[batch.start : batch.end]
        (epoch,) = struct.unpack_from(">i", part, 12)
        rows += stored(
            Batch(
                part[61:],
                batch.count,
                attributes=batch.attributes,
                base_timestamp=batch.base_timestamp,
                max_timestamp=batch.max_timestamp,
                producer_id=batch.producer_id,
                producer_epoch=batch.producer_epoch,
                base_sequence=batch.base_sequence,
            ),
            batch.base_offset,
            epoch,
        )
    return rows


def end_of(wire: Wire, target: Target, partition: int) -> int:
    """The end offset of a partition."""
    answer = wire.ask(messages.list_offsets(target, -1, partition), LIST)
    return int(answer.topics[0].partitions[0].offset)
