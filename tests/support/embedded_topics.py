"""The catalog of a single broker on an embedded engine, and the removal of rows of its topics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast
from uuid import UUID

from brokerhouse.broker.log.open_logs import OpenLogs
from brokerhouse.broker.settings.config import Settings
from brokerhouse.broker.topics.catalog import TopicCatalog
from brokerhouse.broker.topics.topic_cleanup import TopicCleanup
from brokerhouse.broker.topics.topic_store import TopicShard, TopicTable
from brokerhouse.storage.engine import Engine
from tests.support.alone import all_logs
from tests.support.cluster_parts import at_once
from tests.support.waiting import LIMIT_S


async def no_offsets(topic: str, topic_id: UUID) -> None:
    """No group has committed offsets."""


def catalog_on(
    engine: object,
    settled: Callable[[], Awaitable[None]] = at_once,
    forget_topic: Callable[[str, UUID], Awaitable[None]] = no_offsets,
    logs: OpenLogs | None = None,
) -> TopicCatalog:
    """`settled`: waits for the blocks in flight. `logs`: those of the engine."""
    typed = cast(Engine, engine)
    shards = [TopicShard(typed, settled, forget_topic)]
    return TopicCatalog(TopicTable(typed, Settings()), Settings(), logs or all_logs(typed), shards)


def cleanup_of(catalog: TopicCatalog) -> TopicCleanup:
    return TopicCleanup(catalog._store, catalog, catalog._shards)


async def cleaned_up(catalog: TopicCatalog) -> None:
    """Remove the rows of deleted topics; wait for the engine, which deletes them afterwards."""
    if catalog.settling._task is not None:
        await asyncio.wait([catalog.settling._task])
    await cleanup_of(catalog).round()
    async with asyncio.timeout(LIMIT_S):
        unfinished = "SELECT 1 FROM system.mutations WHERE NOT is_done"
        for shard in catalog._shards:
            while await shard.engine.rows(unfinished):  # noqa: ASYNC110  # the engine has no event
                await asyncio.sleep(0.01)
