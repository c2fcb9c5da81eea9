"""Configs and quotas that administrators set, other than those of topics: JSON in the registry.

The keys are `config/...` (broker/settings/stored_configs.py) and `quota/...`
(broker/settings/client_quotas.py). A single broker stores them in `cluster_state`, a cluster in
`topic_registry`. Every broker reads them there and changes them by compare-and-set. This module
caches nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from brokerhouse.protocol.errors import InvalidRequest, KafkaStorageError
from brokerhouse.storage.registry import Registry
from brokerhouse.storage.registry_values import object_of, text_of

KEY_MAX_BYTES = 4096
_ATTEMPTS = 10

Object = Mapping[str, Any]


class AdminStore:
    """Objects by key. An empty object is no object: its key does not exist."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def all(self, prefix: str) -> dict[str, Object]:
        """Every object whose key begins with `prefix`, by the rest of its key.

        Raises `EngineError`, and `MalformedState` for text that this version would not write.
        """
        found = await self._registry.list(prefix)
        return {key.removeprefix(prefix): _parsed(key, one.value) for key, one in found.items()}

    async def change(self, key: str, change: Callable[[Object], Object]) -> None:
        """Replace the object of `key` by what `change` makes of it.

        `change` may be called again if another broker was faster. Raises what it raises,
        `InvalidRequest` for a key that is too long, `KafkaStorageError` and `EngineError`.
        """
        if len(key.encode()) > KEY_MAX_BYTES:
            raise InvalidRequest(f"The name is longer than {KEY_MAX_BYTES} bytes.")
        for _ in range(_ATTEMPTS):
            stored = await self._registry.get(key)
            before = {} if stored is None else _parsed(key, stored.value)
            after = change(before)
            if after == before:
                return
            if after:
                done = await self._registry.compare_and_set(key, stored, text_of(after))
            else:
                done = stored is None or await self._registry.delete(key, stored)
            if done:
                return
        raise KafkaStorageError(f"{key} is being changed by other brokers.")


def _parsed(key: str, text: str) -> Object:
    return object_of(text, set(), key)
