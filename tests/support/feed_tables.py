"""A topic and a typed table in one engine, and the writer of a feed between them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any
from uuid import UUID

from brokerhouse.feeds.blocks import BlockCounts, Offsets
from brokerhouse.feeds.decoding.client import ValueDecoder
from brokerhouse.feeds.definition import FeedDefinition, FeedStatus, Format
from brokerhouse.feeds.feeder import FeedShard
from brokerhouse.feeds.router import RouteWriter
from brokerhouse.feeds.server_tables import FeedTables as ServerTables
from brokerhouse.feeds.stored_definitions import StoredDefinitions
from brokerhouse.feeds.tables import ALONE
from brokerhouse.feeds.writer import BlockWriter, FeedSource, PartitionWriter
from brokerhouse.storage.embedded import EmbeddedEngine

TOPIC_ID = UUID(int=7)
SOURCE = FeedSource("orders", TOPIC_ID, 0)
FEED = FeedDefinition(
    name="shop.orders",
    feed_id=str(UUID(int=9)),
    version=1,
    database="shop",
    table="orders",
    topics=["orders"],
    format=Format.JSON,
    paths={},
    start="earliest",
    interval_ms=250,
    stop_on_error=False,
    status=FeedStatus.RUNNING,
    replay_asked_ms=0,
)
BLOCK = "_block LowCardinality(String) MATERIALIZED getSetting('insert_deduplication_token')"


class OneShard:
    """`FeedShards` where there is one ClickHouse."""

    def __init__(self, writer: PartitionWriter) -> None:
        self._shard = FeedShard("", writer)

    async def of_offset(self, offset: int) -> FeedShard:
        return self._shard

    def named(self, name: str) -> FeedShard:
        return self._shard

    def all(self) -> Collection[FeedShard]:
        return (self._shard,)


class FeedTables:
    """An engine with a topic and a typed table, and the writer under test."""

    def __init__(self, engine: EmbeddedEngine, tmp_path: Path, registry: str = "") -> None:
        self.engine = engine
        self.session = engine.session("test-feed")
        self.decoder = ValueDecoder(registry)
        self.tables = ServerTables([engine], ALONE)
        self.writer = BlockWriter(
            self.session, str(tmp_path / "block.lines"), self.decoder, self.tables
        )
        definitions = StoredDefinitions({"": engine}, ALONE)
        self.router = RouteWriter(self.session, self.tables, definitions)
        self._next = 0

    async def close(self) -> None:
        await self.session.close()
        await self.decoder.close()

    async def make(
        self, columns: str, *, order_by: str = "tuple()", by: str = "", engine: str = "MergeTree"
    ) -> None:
        await self.engine.execute("CREATE DATABASE IF NOT EXISTS shop")
        await self.engine.execute("DROP TABLE IF EXISTS shop.orders SYNC")
        await self.engine.execute(
            f"CREATE TABLE shop.orders ({columns}, {BLOCK}) ENGINE = {engine}"
            f" ORDER BY {order_by} {by} SETTINGS non_replicated_deduplication_window = 1000"
        )

    async def produce(self, *values: str | bytes | None) -> Offsets:
        texts = [value.encode() if isinstance(value, str) else value for value in values]
        keys = [f"k{self._next + place}".encode() for place in range(len(texts))]
        return await self.produce_with_keys(*zip(keys, texts, strict=True))

    async def produce_with_keys(self, *records: tuple[bytes | None, bytes | None]) -> Offsets:
        """`records`: keys and values."""
        first = self._next
        for key, value in records:
            await self.engine.execute(
                "INSERT INTO messages (topic, topic_id, partition, offset, timestamp_ms, key,"
                f" value, headers, append_time) SELECT 'orders', '{TOPIC_ID}', 0, {self._next},"
                f" 1700000000000 + {self._next}, {_text(key)}, {_text(value)}, [('h', 'v')],"
                " now64(3)"
            )
            self._next += 1
        return Offsets(first, self._next)

    async def write(
        self, offsets: Offsets, token: str = "t", feed: FeedDefinition = FEED, again: bool = False
    ) -> BlockCounts:
        return await self.writer.write(feed, SOURCE, offsets, token, again=again)

    async def rows(self, what: str = "*") -> list[list[Any]]:
        return await self.engine.rows(f"SELECT {what} FROM shop.orders ORDER BY ALL")

    async def errors(self) -> list[list[Any]]:
        return await self.engine.rows("SELECT offset, error FROM dead_letters ORDER BY offset")


def _text(value: bytes | None) -> str:
    """Parameters are text, and this is any bytes."""
    return "NULL" if value is None else f"unhex('{value.hex()}')"
