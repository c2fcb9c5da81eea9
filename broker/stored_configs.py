"""Configs of brokers, groups and client metrics, as administrators set them: texts by name.

Every broker of a cluster has a copy and reads it again when another broker has changed something.
broker/dynamic_settings.py applies the configs of a broker. Configs of topics belong to the topics
(broker/topics.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from broker.admin_store import AdminStore

_PREFIX = "config/"
VERSION_KEY = "configs_version"
"""In the registry of a cluster: it grows with every change."""

BROKER, CLIENT_METRICS, GROUP = "BROKER", "CLIENT_METRICS", "GROUP"
"""Kinds of resources, by Kafka's names."""

ALL_BROKERS = ""
"""The name under which configs of all brokers are stored."""

Configs = Mapping[str, str]


class StoredConfigs:
    """The configs of each resource that has any."""

    def __init__(self, store: AdminStore, announce: Callable[[], Awaitable[object]]) -> None:
        """`announce` tells the other brokers that something has changed."""
        self._store = store
        self._announce = announce
        self._found: Mapping[str, Configs] = {}
        self._reading = asyncio.Lock()

    def of(self, kind: str, name: str) -> Configs:
        """The configs that are set, as last read."""
        return self._found.get(f"{kind}/{name}", {})

    def names(self, kind: str) -> list[str]:
        """The resources of a kind that have configs, as last read."""
        prefix = f"{kind}/"
        return sorted(key.removeprefix(prefix) for key in self._found if key.startswith(prefix))

    async def load(self) -> None:
        """Read what is stored. Raises `EngineError`."""
        async with self._reading:  # or an older answer could replace a newer one
            self._found = await self._store.all(_PREFIX)

    async def change(self, kind: str, name: str, change: Callable[[Configs], Configs]) -> None:
        """Replace the configs of a resource by what `change` makes of them.

        Raises what `change` raises, `KafkaError` and `EngineError`.
        """
        await self._store.change(f"{_PREFIX}{kind}/{name}", change)
        await self.load()
        await self._announce()
