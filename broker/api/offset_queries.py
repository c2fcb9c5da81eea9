"""Reads an offset of a partition from ClickHouse, for ListOffsets and OffsetForLeaderEpoch.

The queries are in sql/queries/: offset_of_timestamp.sql and largest_timestamp.sql for ListOffsets,
leader_epoch_end.sql for OffsetForLeaderEpoch. Every engine that may have rows of the partition is
asked (broker/log/row_sources.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from broker.api.context import RequestContext
from broker.log.partition import PartitionLog
from broker.log.partition_sql import IS_IN_RANGE, readable_range
from protocol.errors import KafkaStorageError
from sql.queries import query
from storage.engine import EngineError

UNKNOWN = (-1, -1)
"""The answer if no record matches."""

Best: TypeAlias = Callable[[list[tuple[int, int]]], tuple[int, int]]
"""Chooses among the rows of several engines: a partition whose slot was moved has rows in each."""


async def ask(
    ctx: RequestContext, partition: PartitionLog, name: str, *, best: Best, **more: int
) -> tuple[int, int]:
    """The row of the query sql/queries/`name`.sql, or `UNKNOWN`.

    `more` are parameters of the query. Raises `KafkaStorageError`.
    """
    text = query(name, is_in_range=IS_IN_RANGE)
    params = readable_range(partition) | more
    found: list[tuple[int, int]] = []
    try:
        for engine in ctx.broker.row_sources.engines(partition):
            found += [(first, second) for first, second in await engine.rows(text, params)]
    except EngineError as error:
        raise KafkaStorageError(f"{partition} cannot be read: {error}") from error
    return best(found) if found else UNKNOWN
