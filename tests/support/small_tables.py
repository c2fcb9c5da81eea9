"""What the tests of groups and offsets share: node ids and a lane of rows."""

from __future__ import annotations

import asyncio
from uuid import uuid4

from brokerhouse.coordinator.slots import Duties, always
from brokerhouse.storage.engine import Engine
from brokerhouse.storage.row_lane import RowLane
from tests.support.log_parts import LANES

NODE_ID = 1
OTHER_NODE_ID = 2

ENDLESS = Duties(always, always, always)
"""Those of a broker that serves every slot, for ever."""


def make_lane(engine: Engine, gather_max_s: float | None = None) -> RowLane:
    lane = RowLane(engine, LANES - 1, uuid4(), gather_max_s=gather_max_s)
    lane.start()
    return lane


async def settled() -> None:
    """Let all tasks run that do not wait for the engine."""
    for _ in range(10):
        await asyncio.sleep(0)
