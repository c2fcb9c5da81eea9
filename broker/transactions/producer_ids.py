"""Producer ids. Each id is assigned once, even across restarts of the broker.

The broker reserves a block of ids at a time in the registry, by compare-and-set, so it assigns most
ids without IO. A restart skips the rest of the last block.
"""

from __future__ import annotations

import asyncio

from brokerhouse.storage.registry import Registry

_KEY = "next_producer_id"
_BLOCK = 1000  # as Kafka's AllocateProducerIds


class ProducerIds:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._next = 0
        self._end = 0
        self._lock = asyncio.Lock()

    async def load(self) -> int:
        """The lowest id that no broker has reserved yet."""
        current = await self._registry.get(_KEY)
        return int(current.value) if current else 0

    async def next(self) -> int:
        async with self._lock:
            if self._next == self._end:
                await self._reserve_block()
            self._next += 1
            return self._next - 1

    async def _reserve_block(self) -> None:
        while True:
            current = await self._registry.get(_KEY)
            first = int(current.value) if current else 0
            if await self._registry.compare_and_set(_KEY, current, str(first + _BLOCK)):
                self._next, self._end = first, first + _BLOCK
                return
