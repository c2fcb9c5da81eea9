"""A broker that is alone: one process with the embedded engine, leading every partition."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import uuid4

from broker.config import Settings
from broker.leadership import SingleBroker
from broker.log.appender import Appender
from broker.log.places import OnePlace
from broker.log.rollup import Rollup
from broker.log.tail_cache import TailCache
from broker.node import Address, Broker, Parts
from broker.producer_ids import ProducerIds
from broker.sql_http import make_app
from broker.store import append_limits, group_coordinator, wall_ms
from broker.topics import LocalCatalog
from storage.embedded import EmbeddedEngine
from storage.registry import Registry, TableRegistry
from storage.row_lane import RowLane
from storage.schema import migrate

log = logging.getLogger(__name__)


class SingleNode:
    """`Node` on the embedded engine."""

    def __init__(self, settings: Settings, engine: EmbeddedEngine, cluster_id: str) -> None:
        registry = TableRegistry(engine)
        address = Address()
        self.appender = Appender(
            engine,
            TailCache(settings.tail_cache_bytes),
            settings.lanes,
            append_limits(settings),
            uuid4(),
        )
        self.rollup = Rollup(engine, self.appender.no_row_before, wall_ms)
        self.rows = RowLane(engine, settings.lanes, uuid4())
        self.groups = group_coordinator(settings, engine, self.rows)
        self.topics = LocalCatalog(
            engine, settings, self.appender.settled, self.groups.forget_topic
        )
        self.broker = Broker(
            settings,
            Parts(
                cluster_id,
                SingleBroker(settings.node_id, address),
                OnePlace(engine),
                self.appender,
                self.topics,
                self.groups,
                ProducerIds(registry),
                Path(settings.data_dir).resolve(),
            ),
            address,
        )
        self.sql = make_app(engine, settings)

    async def open(self, progress: Callable[[str], None]) -> None:
        """Read what is stored, and start the lanes. Raises `EngineError`."""
        progress("reading topics")
        self.topics.first_fresh_producer_id = await self.broker.producer_ids.load()
        await self.topics.load()
        await self.rollup.open()
        self.appender.start()
        progress("reading consumer groups")
        self.rows.start()
        await self.groups.load({topic.name: topic.topic_id for topic in self.topics.all()})

    async def begin(self) -> None:
        self.rollup.start()

    @property
    def background(self) -> Collection[asyncio.Task[None]]:
        tasks = [*self.groups.background, *self.rows.background]
        return tasks if self.rollup.task is None else [self.rollup.task, *tasks]

    async def hand_over(self) -> None:
        """There is nobody to hand over to."""

    async def close(self) -> None:
        async with AsyncExitStack() as parts:  # the last one is closed first, and all of them are
            parts.push_async_callback(self.topics.close)
            parts.push_async_callback(self.broker.cold_reader.close)
            parts.push_async_callback(self.appender.close)
            parts.push_async_callback(self.rollup.close)
            parts.push_async_callback(self.rows.close)
            parts.push_async_callback(self.groups.close)


async def open_engine(settings: Settings) -> EmbeddedEngine:
    """Raises `DataDirectoryError`."""
    return await asyncio.to_thread(
        EmbeddedEngine,
        Path(settings.data_dir),
        settings.lanes + 1,  # one for small rows: groups, offsets
        settings.fsync,
        settings.sql_max_memory_bytes,
    )


async def open_single(
    settings: Settings, engine: EmbeddedEngine, progress: Callable[[str], None]
) -> SingleNode:
    """Raises `SchemaError` and `EngineError`."""
    progress("checking tables")
    await migrate(engine)
    for path in await engine.damaged_parts():
        log.error("the engine found %s damaged and left it out: its rows are missing", path)
    return SingleNode(settings, engine, await cluster_id(TableRegistry(engine)))


async def cluster_id(registry: Registry) -> str:
    """Made once, at the first start: 22 characters, as Kafka's. Raises `EngineError`."""
    while True:
        current = await registry.get("cluster_id")
        if current is not None:
            return current.value
        fresh = base64.urlsafe_b64encode(uuid4().bytes).rstrip(b"=").decode()
        await registry.compare_and_set("cluster_id", None, fresh)
