"""A new cluster takes over a single broker beside others, and beside tables of other people."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from brokerhouse.broker.cluster.adoption import _Adoption, _Single
from brokerhouse.broker.start_error import StartError
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.registry import Versioned
from tests.support.shared_catalog import MemoryRegistry

ONE_SHARD: Any = SimpleNamespace(
    name="prod",
    slots=4,
    shards=[SimpleNamespace(name="one", slots=[range(4)])],
    replicated=False,
    distributed=False,
    request_timeout_ms=1000,
)
STATE = {"cluster_id": Versioned("id", 1), "next_producer_id": Versioned("1000", 3)}


class Lock:
    def __init__(self) -> None:
        self.renewed = 0

    async def renew(self) -> None:
        self.renewed += 1


class StalledLock(Lock):
    """Its broker stalls after it has renewed the lock; meanwhile `others` do their work."""

    def __init__(self, others: Any) -> None:
        super().__init__()
        self._others = others

    async def renew(self) -> None:
        await super().renew()
        if self.renewed == 1:
            await self._others()


class Adoption(_Adoption):
    """With registries in memory."""

    def __init__(
        self, engine: EmbeddedEngine, registries: dict[str, MemoryRegistry], lock: Any
    ) -> None:
        settings: Any = SimpleNamespace()
        super().__init__(settings, ONE_SHARD, {}, _Single("one", engine, STATE), lock)
        self._registries = registries

    def _registry(self, table: str) -> Any:
        return self._registries.setdefault(table, MemoryRegistry())


async def test_a_broker_that_stalled_does_not_set_a_cluster_back_that_works_already(
    engine: EmbeddedEngine,
) -> None:
    registries: dict[str, MemoryRegistry] = {}

    async def another_broker_takes_over_and_serves() -> None:
        await Adoption(engine, registries, Lock()).copy()
        registry = registries["registry"]
        now = await registry.get("next_producer_id")
        assert await registry.compare_and_set("next_producer_id", now, "5000")

    await Adoption(engine, registries, StalledLock(another_broker_takes_over_and_serves)).copy()
    assert registries["registry"].values["next_producer_id"].value == "5000"


async def test_a_table_with_the_name_that_the_rows_of_a_feed_would_get_is_not_taken_for_it(
    own_engine: EmbeddedEngine,
) -> None:
    await own_engine.execute("CREATE DATABASE shop")
    for table in ("orders", "orders_local"):
        await own_engine.execute(
            f"CREATE TABLE shop.{table} (x Int8) ENGINE = MergeTree ORDER BY x"
        )
    adoption = Adoption(own_engine, {}, Lock())
    with pytest.raises(
        StartError, match=r"^shop\.orders_local exists, .* rename shop\.orders_local"
    ):
        await adoption._rename("shop.orders")
    await own_engine.execute("RENAME TABLE shop.orders_local TO shop.other")
    await adoption._rename("shop.orders")
    await adoption._rename("shop.orders")  # as after a kill
    names = "SELECT name FROM system.tables WHERE database = 'shop' ORDER BY name"
    assert await own_engine.rows(names) == [["orders_local"], ["other"]]
