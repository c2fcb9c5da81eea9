"""`partition_checkpoints`: where a log starts and ends, when rows at its start or end are deleted.

A checkpoint is a log start offset, a floor of the next offset, and whether producers were forgotten
(their rows were deleted, and they have no row in `producer_states`). If a partition has several,
the largest of each counts, so storing one twice, or an older one late, changes nothing.

A checkpoint that a version without `producer_states` stored says that producers were forgotten.

Checkpoints are written by log_starts.py (a log start moved), removals.py (before compaction removes
rows) and broker/slots/slot_logs.py (a slot was moved to another shard); read with
`read_checkpoints`, which slot_logs.py, retention.py and sweep.py call. sweep.py deletes those of
deleted topics. producer_states.py writes some that say only that producers were forgotten, and
producer_recovery.py asks for that.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from brokerhouse.sql.queries import query
from brokerhouse.storage.blocks import BOOL, INT32, INT64, UUIDS, Table
from brokerhouse.storage.engine import Engine

Key = tuple[UUID, int]
"""Topic id and partition."""

CHECKPOINTS = Table(
    "partition_checkpoints",
    (
        ("topic_id", UUIDS),
        ("partition", INT32),
        ("log_start_offset", INT64),
        ("next_offset_floor", INT64),
        ("forgot_producers", BOOL),
    ),
)


async def read_checkpoints(
    engine: Engine, topic_ids: Iterable[UUID] | None = None
) -> dict[Key, tuple[int, int]]:
    """(log start offset, floor of the next offset) of each partition, of these topics or of all.

    Raises `EngineError`.
    """
    if topic_ids is None:
        rows = await engine.rows(query("stored_checkpoints", where=""))
    else:
        rows = await engine.rows(
            query("stored_checkpoints", where="WHERE has({topics:Array(UUID)}, topic_id)"),
            {"topics": sorted(str(topic_id) for topic_id in topic_ids)},
        )
    return {
        (UUID(topic_id), partition): (start, floor) for topic_id, partition, start, floor in rows
    }
