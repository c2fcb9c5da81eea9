"""What the tests of groups and offsets share: node ids and a lane of rows."""

from __future__ import annotations

import asyncio
from uuid import uuid4

from storage.engine import Engine
from storage.row_lane import GATHER_MAX_S, RowLane
from tests.support.log_parts import LANES

NODE_ID = 1
OTHER_NODE_ID = 2


def make_lane(engine: Engine, gather_max_s: float = GATHER_MAX_S) -> RowLane:
    lane = RowLane(engine, LANES - 1, uuid4(), gather_max_s=gather_max_s)
    lane.start()
    return lane


async def settled() -> None:
    """Let all tasks run that do not wait for the engine."""
    for _ in range(10):
        await asyncio.sleep(0)
