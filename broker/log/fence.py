"""Fences: block numbers of a lane that nobody can use any more, enforced by the engine itself.

Block `number` of a lane has the token `<session>-<lane>-<number>`. Numbers go up from 1 without a
hole, and a number is sent when the one before it is resolved. The first insert of a token wins: the
engine drops a later block with the same token, however late it arrives. So a successor that inserts
at the first free number of every lane has seen the last block that will ever be stored, and a block
that is still in flight has no effect.

What must hold for that:
* After an insert has returned, the fence looks for its row. If the row is not visible, the number
  had been used. A replica may lack a row that another broker's fence stored on another replica, so
  it catches up before its answer is trusted.
* The engine remembers tokens from the last known count of the lane on (the deduplication window).
* Tokens are remembered per ClickHouse partition, which is a day here. A fence has a row for every
  day that the session may have used, and a number is free only if all of these rows are stored.
* A burnt number counts as used: the row of a burn differs from the row of a fence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import starmap
from uuid import UUID

from brokerhouse.common.clock import DAY_MS
from brokerhouse.sql.queries import query
from brokerhouse.storage.blocks import (
    BOOL,
    DATETIME64_MS,
    INT32,
    INT64,
    STRING,
    UUIDS,
    Table,
    block,
)
from brokerhouse.storage.engine import Engine, EngineError, TokenUsed

log = logging.getLogger(__name__)

SESSION_DAYS = 2
"""A session may write rows of the day in its row in the registry, and of the next one."""

_FENCE_PARTITION = -1
_BURN_PARTITION = -2
_NUMBER_BITS = 48
_ROWS = Table(
    "messages",
    (
        ("topic", STRING),
        ("topic_id", UUIDS),
        ("partition", INT32),
        ("offset", INT64),
        ("control", BOOL),
        ("append_time", DATETIME64_MS),
    ),
)


def _nothing_is_written_elsewhere() -> None:
    """The `catch_up` of an engine that consists of one server."""


def block_token(identity: object, lane: int, number: int) -> str:
    """The deduplication token of a block of the log."""
    return f"{identity}-{lane}-{number}"


async def fence(
    engine: Engine,
    session_id: int,
    lane_counts: Sequence[int],
    day: int,
    catch_up: Callable[[], None] = _nothing_is_written_elsewhere,
) -> None:
    """Make sure that no further block of an ended session is stored on this shard.

    `lane_counts`: for each lane, how many block numbers it has resolved at least. `day` (days
    since 1970): the first of the two days to which its blocks may belong. `catch_up`: makes the
    engine's next read see what others wrote (`Shard.expect_foreign_writes`). Raises `EngineError`.
    Any broker may repeat it at any time, also while another broker does the same.
    """

    async def fenced(lane: int, number: int) -> bool:
        key = _NumberKey(session_id, lane, number, _FENCE_PARTITION)
        if await _is_stored_first(engine, 0, key, times_ms):
            return True
        catch_up()
        return await _is_visible(engine, key, times_ms)

    async def fence_lane(lane: int, resolved: int) -> None:
        first = await _fence_first_free(partial(fenced, lane), resolved)
        log.info("session %d, lane %d: fenced from block %d on", session_id, lane, first)

    times_ms = [(day + n) * DAY_MS for n in range(SESSION_DAYS)]
    # All at once: the slots of the session have no owner meanwhile.
    ends = await asyncio.gather(
        *starmap(fence_lane, enumerate(lane_counts)), return_exceptions=True
    )
    for end in ends:
        if end is not None:
            raise end
    # Only now: until a fence is complete, its rows tell others which block numbers are unused.
    await _remove(engine, session_id, _FENCE_PARTITION, times_ms)


async def burn(
    engine: Engine, session_id: int, lane: int, number: int, append_time_ms: int
) -> bool:
    """Use up the number of a block that was refused. False: the block is stored after all.

    Called by the lane itself; `append_time_ms` is the block's. Raises `EngineError`; then the
    caller must repeat the call.
    """
    key = _NumberKey(session_id, lane, number, _BURN_PARTITION)
    burnt = await _is_stored_first(engine, lane, key, [append_time_ms])
    if burnt:
        await _remove(engine, session_id, _BURN_PARTITION, [append_time_ms])
    return burnt


@dataclass(frozen=True, slots=True)
class _NumberKey:
    """A block number of a lane, and the key of the rows in `messages` that use it up."""

    session_id: int
    lane: int
    number: int
    partition: int

    @property
    def topic_id(self) -> UUID:
        return UUID(int=self.session_id)

    @property
    def offset(self) -> int:
        return self.lane << _NUMBER_BITS | self.number


async def _fence_first_free(fenced: Callable[[int], Awaitable[bool]], used: int) -> int:
    """Fence the first free number after `used`: double the step until one is free, then bisect."""
    step = 1
    while not await fenced(used + step):
        used += step
        step *= 2
    free = used + step
    while free - used > 1:
        middle = (used + free) // 2
        if await fenced(middle):
            free = middle
        else:
            used = middle
    return free


async def _is_stored_first(
    engine: Engine, connection: int, key: _NumberKey, times_ms: Sequence[int]
) -> bool:
    """Insert a row per time with the token of a block. Whether all rows are then in the table.

    `connection` is the lane of the engine that is used.
    """
    rows = [("", key.topic_id, key.partition, key.offset, True, time) for time in times_ms]
    token = block_token(key.session_id, key.lane, key.number)
    data = block(_ROWS, rows)
    with suppress(TokenUsed):  # so it is, with these rows or without
        await engine.insert_block(connection, _ROWS.name, _ROWS.column_list, data, token)
    return await _is_visible(engine, key, times_ms)


async def _is_visible(engine: Engine, key: _NumberKey, times_ms: Sequence[int]) -> bool:
    found = await engine.rows(
        query("count_fence_rows"),
        {
            "topic_id": str(key.topic_id),
            "partition": key.partition,
            "offset": key.offset,
            "first_ms": times_ms[0],
            "last_ms": times_ms[-1],
        },
    )
    return found == [[len(times_ms)]]


async def _remove(engine: Engine, session_id: int, partition: int, times_ms: Sequence[int]) -> None:
    """Hide the rows from queries; their tokens stay known."""
    for time_ms in times_ms:
        day = datetime.fromtimestamp(time_ms / 1000, UTC).date().isoformat()
        try:
            await engine.execute(
                query("remove_fence_rows", day=day),
                {"topic_id": str(UUID(int=session_id)), "partition": partition},
            )
        except EngineError as error:
            log.warning("cannot delete the fence rows of session %d: %s", session_id, error)
