"""Starts and stops everything, in order.

Start: engine, tables, topics, lanes, then the listeners: nothing is accepted before it can be
kept. Stop: listeners, long polls, requests on their way, lanes, engine: nothing is dropped that
was accepted."""

from __future__ import annotations

import asyncio
import base64
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import uuid4

import uvloop
from aiohttp import web

from broker.api.fetch_sessions import FetchSessions
from broker.config import Settings, parse_address
from broker.connection import Connection, InFlight
from broker.log.appender import Appender, AppendLimits
from broker.log.reader import ColdReader
from broker.log.rollup import Rollup
from broker.log.tail_cache import TailCache
from broker.logging import log_to_stderr
from broker.producer_ids import ProducerIds
from broker.sql_http import make_app
from broker.topics import TopicCatalog
from coordinator.coordinator import GroupCoordinator
from coordinator.groups import GroupLimits
from coordinator.membership import SharedCache
from coordinator.offsets import CommittedOffsets
from storage.embedded import DataDirectoryError, EmbeddedEngine
from storage.engine import EngineError
from storage.registry import Registry, TableRegistry
from storage.row_lane import RowLane
from storage.schema import SchemaError, migrate

log = logging.getLogger(__name__)

_WILDCARD_HOSTS = frozenset({"0.0.0.0", "::"})
_LISTEN_BACKLOG = 1024


class StartError(Exception):
    """The broker cannot start; says in one sentence what to change."""


class Broker:
    """What every request handler reaches: topics, log, engine, settings."""

    def __init__(self, settings: Settings, engine: EmbeddedEngine, cluster_id: str) -> None:
        self.settings = settings
        self.engine = engine
        self.cluster_id = cluster_id
        self.node_id = settings.node_id
        self.controller_id = settings.node_id
        self.advertised: tuple[str, int] = ("", 0)
        self.registry: Registry = TableRegistry(engine)
        self.producer_ids = ProducerIds(self.registry)
        self.cold_reader = ColdReader(engine, settings.cold_cache_bytes)
        self.fetch_sessions = FetchSessions(settings.fetch_sessions_max)
        self.appender = Appender(
            engine,
            TailCache(settings.tail_cache_bytes),
            settings.lanes,
            AppendLimits(
                settings.block_max_bytes,
                settings.block_max_rows,
                settings.decompressed_max_bytes,
                settings.linger_ms,
                settings.producer_id_expiration_ms,
            ),
            uuid4(),
        )
        self.rollup = Rollup(engine, self.appender.no_row_before, _wall_ms)
        self.rows = RowLane(engine, settings.lanes, uuid4())
        self.groups = _coordinator(settings, engine, self.rows)
        self.topics = TopicCatalog(
            engine, settings, self.appender.settled, self.groups.forget_topic
        )
        self.in_flight = InFlight(settings.in_flight_max_bytes)
        self.stopping = False
        self.long_polls: set[asyncio.Event] = set()
        self._connections: set[Connection] = set()

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


async def serve(settings: Settings, progress: Callable[[str], None]) -> None:
    """Run until SIGINT or SIGTERM. Prints the ready line. Raises `StartError`."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    progress(f"opening {settings.data_dir}")
    try:
        engine = await asyncio.to_thread(
            EmbeddedEngine,
            Path(settings.data_dir),
            settings.lanes + 1,  # one for small rows: groups, offsets
            settings.fsync,
            settings.sql_max_memory_bytes,
        )
    except DataDirectoryError as error:
        raise StartError(str(error)) from error
    try:
        broker = await _open_broker(settings, engine, progress)
        async with AsyncExitStack() as parts:  # the last one is closed first, and all of them are
            parts.push_async_callback(broker.topics.close)
            parts.push_async_callback(broker.cold_reader.close)
            parts.push_async_callback(broker.appender.close)
            parts.push_async_callback(broker.rollup.close)
            parts.push_async_callback(broker.rows.close)
            parts.push_async_callback(broker.groups.close)
            await _listen_until(stop, broker, progress)
    except (SchemaError, EngineError) as error:
        raise StartError(str(error)) from error
    finally:
        await engine.close()


async def _open_broker(
    settings: Settings, engine: EmbeddedEngine, progress: Callable[[str], None]
) -> Broker:
    progress("checking tables")
    await migrate(engine)
    for path in await engine.damaged_parts():
        log.error("the engine found %s damaged and left it out: its rows are missing", path)
    broker = Broker(settings, engine, await _cluster_id(TableRegistry(engine)))
    progress("reading topics")
    broker.topics.first_fresh_producer_id = await broker.producer_ids.load()
    await broker.topics.load()
    await broker.rollup.open()
    broker.appender.start()
    progress("reading consumer groups")
    broker.rows.start()
    await broker.groups.load({topic.name: topic.topic_id for topic in broker.topics.all()})
    return broker


def _coordinator(settings: Settings, engine: EmbeddedEngine, rows: RowLane) -> GroupCoordinator:
    offsets = CommittedOffsets(engine, rows, settings.node_id, _wall_ms)
    return GroupCoordinator(
        SharedCache(engine, rows, settings.node_id, offsets, _wall_ms),
        offsets,
        GroupLimits(
            settings.group_min_session_timeout_ms,
            settings.group_max_session_timeout_ms,
            settings.group_initial_rebalance_delay_ms,
            settings.group_max_size,
        ),
        settings.groups_max_bytes,
        settings.offsets_retention_minutes * 60_000,
        _wall_ms,
    )


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


async def _listen_until(
    stop: asyncio.Event, broker: Broker, progress: Callable[[str], None]
) -> None:
    settings = broker.settings
    loop = asyncio.get_running_loop()
    kafka = await _kafka_listener(broker)
    broker.advertised = _advertised(settings, kafka)
    runner = web.AppRunner(make_app(broker.engine, settings), access_log=None)
    await runner.setup()
    try:
        http_port = await _http_listener(runner, settings)
        sweeper = loop.create_task(_sweep(broker), name="idle-connections")
        http = parse_address(settings.http)._replace(port=http_port)
        kafka_at = parse_address(settings.kafka)._replace(port=_port(kafka))
        print(f"ready kafka={kafka_at} http={http}", flush=True)
        waiting = loop.create_task(stop.wait())
        # What runs in the background ends only by a defect, and a defect is loud.
        broker.rollup.start()
        assert broker.rollup.task is not None
        background = [
            sweeper,
            broker.rollup.task,
            *broker.groups.background,
            *broker.rows.background,
        ]
        await asyncio.wait([waiting, *background], return_when=asyncio.FIRST_COMPLETED)
        for task in background:
            if task.done():
                task.result()
        sweeper.cancel()
        progress("stopping")
    finally:
        kafka.close()
        try:
            async with asyncio.timeout(settings.shutdown_timeout_ms / 1000):
                await broker.drain()
        except TimeoutError:
            log.warning("some requests were not answered within shutdown_timeout_ms")
        await runner.cleanup()


async def _kafka_listener(broker: Broker) -> asyncio.Server:
    address = parse_address(broker.settings.kafka)
    try:
        return await asyncio.get_running_loop().create_server(
            lambda: Connection(broker),
            address.host,
            address.port,
            backlog=_LISTEN_BACKLOG,
        )
    except OSError as error:
        raise StartError(f"cannot listen for Kafka on {address}: {_reason(error)}") from error


async def _http_listener(runner: web.AppRunner, settings: Settings) -> int:
    address = parse_address(settings.http)
    site = web.TCPSite(runner, address.host, address.port)
    try:
        await site.start()
    except OSError as error:
        raise StartError(f"cannot listen for HTTP on {address}: {_reason(error)}") from error
    return int(runner.addresses[0][1])


def _advertised(settings: Settings, server: asyncio.Server) -> tuple[str, int]:
    if settings.advertised is not None:
        given = parse_address(settings.advertised)
        return given.host, given.port
    host = parse_address(settings.kafka).host
    if host in _WILDCARD_HOSTS:
        raise StartError(
            f"listening on {host} tells clients no address to connect to: "
            "give --advertised HOST:PORT"
        )
    return host, _port(server)


def _port(server: asyncio.Server) -> int:
    return int(server.sockets[0].getsockname()[1])


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "no such host"
    return error.strerror or str(error)


async def _sweep(broker: Broker) -> None:
    interval = broker.settings.connections_max_idle_ms / 4000
    while True:
        await asyncio.sleep(interval)
        broker.close_idle()


async def _cluster_id(registry: Registry) -> str:
    """Made once, at the first start: 22 characters, as Kafka's."""
    while True:
        current = await registry.get("cluster_id")
        if current is not None:
            return current.value
        fresh = base64.urlsafe_b64encode(uuid4().bytes).rstrip(b"=").decode()
        await registry.compare_and_set("cluster_id", None, fresh)


def run(settings: Settings) -> int:
    """Serve until a signal; the exit code. What is wrong is one sentence on stderr."""
    log_to_stderr(settings.log_level, settings.log_format)

    def progress(text: str) -> None:
        print(f"brokerhouse: {text}", file=sys.stderr, flush=True)

    try:
        uvloop.run(serve(settings, progress))
    except StartError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0
