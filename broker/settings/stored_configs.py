"""Configs of brokers, groups and client metrics, as administrators set them: texts by name.

Every broker of a cluster has a copy and reads it again when another broker has changed something.
broker/settings/dynamic_settings.py applies the configs of a broker. Configs of topics belong to the
topics (broker/topics/catalog.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

from brokerhouse.broker.settings.admin_store import AdminStore
from brokerhouse.common.tasks import Outage, Periodic
from brokerhouse.storage.engine import EngineError
from brokerhouse.storage.registry import LOOK_ANYWAY_S, Registry, announce

log = logging.getLogger(__name__)

_PREFIX = "config/"
VERSION_KEY = "configs_version"
"""In the registry: it grows with every change, which other brokers watch."""
_WATCH_EVERY_S = 0.25

BROKER, CLIENT_METRICS, GROUP = "BROKER", "CLIENT_METRICS", "GROUP"
"""Kinds of resources, by Kafka's names."""

ALL_BROKERS = ""
"""The name under which configs of all brokers are stored."""

Configs = Mapping[str, str]


class StoredConfigs:
    """The configs of each resource that has any."""

    def __init__(self, store: AdminStore, state: Registry) -> None:
        """`state`: where the other brokers see that something has changed."""
        self._store = store
        self._state = state
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
        await announce(self._state, VERSION_KEY)


class ConfigWatch:
    """The task of one broker. Start and close `periodic`."""

    def __init__(self, load: Callable[[], Awaitable[None]], latest: Callable[[], int]) -> None:
        """`latest`: the version of the configs, as far as this broker knows without asking."""
        self._load = load
        self._latest = latest
        self._seen = -1
        self._looked_s = time.monotonic()
        self._outage = Outage(
            log, "configs cannot be read from the registry, retrying", "configs can be read again"
        )
        self.periodic = Periodic("configs-of-others", _WATCH_EVERY_S, self._look)

    async def _look(self) -> None:
        latest, now_s = self._latest(), time.monotonic()
        if latest == self._seen and now_s - self._looked_s < LOOK_ANYWAY_S:
            return
        try:
            await self._load()
        except EngineError as error:
            self._outage.failed(error)
        else:
            self._outage.worked()
            self._seen, self._looked_s = latest, now_s
