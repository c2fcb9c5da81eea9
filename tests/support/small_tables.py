"""What the tests of groups and offsets share: a clock, a lane, an engine that keeps a record."""

from __future__ import annotations

import asyncio
from uuid import uuid4

from storage.engine import Engine
from storage.row_lane import RowLane
from tests.support.log_parts import LANES, ScriptedEngine

NODE_ID = 1
OTHER_NODE_ID = 2


class Clock:
    """Wall-clock milliseconds that go only where a test sends them."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


class RecordingEngine(ScriptedEngine):
    """Knows the table of every insert, in order."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.tables: list[str] = []

    async def insert_block(
        self, lane: int, table: str, columns: str, block: bytes, token: str
    ) -> None:
        self.tables.append(table)
        await super().insert_block(lane, table, columns, block, token)


def make_lane(engine: Engine) -> RowLane:
    lane = RowLane(engine, LANES - 1, uuid4())
    lane.start()
    return lane


async def settled() -> None:
    """Let everything run that can run without the engine."""
    for _ in range(10):
        await asyncio.sleep(0)
