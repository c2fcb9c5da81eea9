"""Where each partition's log ends, read from its rows when its leader begins.

There are two ways. One query over all rows costs by the row (measured: 0.4 s for 10 M rows, 2
cores); a look at the last row of each partition costs by the partition (3 ms, whatever its size).
The cheaper one is taken, so that neither many rows nor many partitions make the start slow."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from uuid import UUID

from storage.engine import Engine

_ROWS_WORTH_A_LOOK = 75_000  # 3 ms of the scan

Partition = tuple[str, UUID, int]  # topic name, topic id, partition


async def log_ends(engine: Engine, partitions: Iterable[Partition]) -> dict[tuple[UUID, int], int]:
    """The offset after the last row, for each (topic id, partition) that has rows."""
    wanted = list(partitions)
    rows = await engine.rows(
        "SELECT sum(rows) FROM system.parts"
        " WHERE database = currentDatabase() AND table = 'messages' AND active"
    )
    if rows[0][0] < len(wanted) * _ROWS_WORTH_A_LOOK:
        return await _scan(engine)
    ends = await asyncio.gather(*(_look(engine, partition) for partition in wanted))
    return {
        (topic_id, partition): end
        for (_, topic_id, partition), end in zip(wanted, ends, strict=True)
        if end is not None
    }


async def _scan(engine: Engine) -> dict[tuple[UUID, int], int]:
    return {
        (UUID(str(topic_id)), partition): last + 1
        for topic_id, partition, last in await engine.rows(
            "SELECT topic_id, partition, max(offset) FROM messages GROUP BY topic_id, partition"
        )
    }


async def _look(engine: Engine, partition: Partition) -> int | None:
    name, topic_id, number = partition
    rows = await engine.rows(
        "SELECT offset FROM messages WHERE topic = {topic:String} AND topic_id = {topic_id:UUID}"
        " AND partition = {partition:Int32}"
        " ORDER BY topic DESC, partition DESC, offset DESC LIMIT 1",
        {"topic": name, "topic_id": str(topic_id), "partition": number},
    )
    return rows[0][0] + 1 if rows else None
