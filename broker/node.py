"""`Broker`: what every request handler and every connection reaches, and the parts it is made of.

The parts differ between a broker that is alone (broker/single.py) and one of several
(broker/cluster/node.py); handlers do not know which it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from aiohttp import web

from broker.api.fetch_sessions import FetchSessions
from broker.cluster.groups import ShardedGroups
from broker.config import Settings
from broker.connection import Connection, InFlight
from broker.leadership import Leadership
from broker.log.appender import Appended
from broker.log.log_starts import LogStarts
from broker.log.partition import PartitionLog
from broker.log.places import Places
from broker.log.reader import ColdReader
from broker.log.refused import RefusedBatches
from broker.producer_ids import ProducerIds
from broker.topics import TopicCatalog
from coordinator.coordinator import GroupCoordinator
from protocol._records import BatchHeader


class Appending(Protocol):
    def append(
        self, partition: PartitionLog, records: bytes, header: BatchHeader
    ) -> asyncio.Future[Appended]:
        """Queue one checked batch: see `Appender.append`."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Who keeps what for this broker."""

    cluster_id: str
    leadership: Leadership
    places: Places
    appender: Appending
    log_starts: LogStarts
    topics: TopicCatalog
    groups: GroupCoordinator | ShardedGroups
    producer_ids: ProducerIds
    data_dir: Path | None
    """Where the rows are, if this broker has them itself."""


class Address:
    """Where clients are told to connect; known when the listener is there."""

    def __init__(self) -> None:
        self.host = ""
        self.port = 0

    def __call__(self) -> tuple[str, int]:
        return self.host, self.port


class Broker:
    """What every request handler reaches: topics, log, groups, settings."""

    def __init__(self, settings: Settings, parts: Parts, address: Address) -> None:
        self.settings = settings
        self.node_id = settings.node_id
        self.address = address
        self.cluster_id = parts.cluster_id
        self.leadership = parts.leadership
        self.places = parts.places
        self.appender = parts.appender
        self.log_starts = parts.log_starts
        self.topics = parts.topics
        self.groups = parts.groups
        self.producer_ids = parts.producer_ids
        self.data_dir = parts.data_dir
        self.cold_reader = ColdReader(parts.places, settings.cold_cache_bytes)
        self.fetch_sessions = FetchSessions(settings.fetch_sessions_max)
        self.refused_batches = RefusedBatches()
        self.in_flight = InFlight(settings.in_flight_max_bytes)
        self.stopping = False
        self.long_polls: set[asyncio.Event] = set()
        self._connections: set[Connection] = set()

    @property
    def advertised(self) -> tuple[str, int]:
        return self.address()

    def admit(self, connection: Connection) -> bool:
        """Count a new connection in; False when there is no room for it."""
        if self.stopping or len(self._connections) >= self.settings.max_connections:
            return False
        self._connections.add(connection)
        return True

    def forget(self, connection: Connection) -> None:
        self._connections.discard(connection)

    def close_idle(self) -> None:
        """Close connections that have been silent for `connections_max_idle_ms`."""
        limit = asyncio.get_running_loop().time() - self.settings.connections_max_idle_ms / 1000
        for connection in tuple(self._connections):
            if connection.idle and connection.last_active < limit:
                connection.abort("idle")

    async def drain(self) -> None:
        """Answer what is on its way on every connection, and close them."""
        self.stopping = True
        self.groups.stop_waiting()
        for long_poll in self.long_polls:
            long_poll.set()
        await asyncio.gather(*(connection.drain() for connection in tuple(self._connections)))


class Node(Protocol):
    """A broker with its storage: what broker/server.py starts and stops."""

    broker: Broker

    @property
    def sql(self) -> web.Application | None:
        """The SQL interface, where this broker has an engine of its own."""

    async def begin(self) -> None:
        """The listener is there, and `broker.address` says where. Raises `EngineError`."""

    @property
    def background(self) -> Collection[asyncio.Task[None]]:
        """Tasks that end before `close` only by a defect."""

    async def hand_over(self) -> None:
        """A stop has begun; clients are still connected."""

    async def close(self) -> None:
        """Store what is queued, end everything."""
