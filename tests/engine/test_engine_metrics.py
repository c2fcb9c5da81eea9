"""The metrics of an engine that is busy: a scrape does not wait for it."""

import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from brokerhouse.broker.monitoring.engine import EngineMetrics
from brokerhouse.storage.embedded import EmbeddedEngine
from tests.support.waiting import until_async

LONG_S = 20.0
"""Far more than a scrape waits."""


async def collected(metrics: EngineMetrics) -> dict[str, float]:
    """The sum of each metric's series."""
    return {
        family.name: sum(sample.value for sample in family.samples)
        for family in await metrics.collect()
    }


async def until_collected(
    metrics: EngineMetrics, as_wanted: Callable[[dict[str, float]], bool]
) -> dict[str, float]:
    """A scrape that had the answer in time: on a busy machine not each of them has."""
    found: dict[str, float] = {}

    async def is_there() -> bool:
        found.update(await collected(metrics))
        return as_wanted(found)

    await until_async(is_there)
    return found


async def test_a_scrape_of_a_busy_engine_returns_the_last_numbers_and_their_age(
    own_engine: EmbeddedEngine, data_dir: Path
) -> None:
    metrics = EngineMetrics(own_engine, data_dir)
    before = await until_collected(
        metrics,
        lambda found: (
            found["brokerhouse_engine_parts"] > 0
            and found["brokerhouse_engine_sample_age_seconds"] < 1.0
        ),
    )
    assert before["brokerhouse_engine_parts"] > 0
    assert before["brokerhouse_engine_memory_bytes"] > 0
    assert before["brokerhouse_engine_sample_age_seconds"] < LONG_S

    async with AsyncExitStack() as reads:
        for _ in range(len(own_engine._all_readers)):  # every thread that reads has a query open
            rows = own_engine.read_native("SELECT number FROM system.numbers", {}, 1 << 10)
            reads.push_async_callback(rows.aclose)
            assert await anext(rows)
        began_s = time.monotonic()
        first, second = await collected(metrics), await collected(metrics)
        assert time.monotonic() - began_s < LONG_S
        assert second["brokerhouse_engine_parts"] == before["brokerhouse_engine_parts"]
        assert (
            second["brokerhouse_engine_sample_age_seconds"]
            > first["brokerhouse_engine_sample_age_seconds"]
            >= 1.0
        )
        assert second["brokerhouse_disk_free_bytes"] > 0

    await until_collected(
        metrics,
        lambda after: (
            after["brokerhouse_engine_sample_age_seconds"]
            < second["brokerhouse_engine_sample_age_seconds"]
        ),
    )
    await metrics.close()
