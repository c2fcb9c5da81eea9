"""Metadata changed by compare-and-set: small keys with a version that only grows.

When embedded there is one process, so a lock and a table are enough; in a cluster the same
interface stands on KeeperMap. Keys hold text of a few bytes, never data of clients.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from storage.engine import Engine


@dataclass(frozen=True, slots=True)
class Versioned:
    value: str
    version: int


class Registry(Protocol):
    async def get(self, key: str) -> Versioned | None:
        """The current value of a key, or None if it was never set."""

    async def compare_and_set(self, key: str, expected: Versioned | None, value: str) -> bool:
        """Set `key` if it is still as `expected`; False if somebody else was faster."""


class TableRegistry:
    """The registry of a single process: table `cluster_state` of the embedded engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = asyncio.Lock()

    async def get(self, key: str) -> Versioned | None:
        rows = await self._engine.rows(
            "SELECT value, version FROM cluster_state WHERE key = {key:String}"
            " ORDER BY version DESC LIMIT 1",
            {"key": key},
        )
        if not rows:
            return None
        value, version = rows[0]
        assert isinstance(version, int)
        return Versioned(str(value), version)

    async def compare_and_set(self, key: str, expected: Versioned | None, value: str) -> bool:
        async with self._lock:
            if await self.get(key) != expected:
                return False
            await self._engine.execute(
                "INSERT INTO cluster_state SELECT {key:String}, {version:UInt64}, {value:String}",
                {"key": key, "version": expected.version + 1 if expected else 1, "value": value},
            )
            return True
