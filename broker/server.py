"""Starts and stops a broker, in order.

Start: bind the port, open the storage, read topics, start the lanes, then let clients connect. So
the broker never accepts records that it cannot store.
Stop: hand slots over, close the listeners, answer long polls and requests that have started, store
the queued records, close the engine. So the broker drops nothing that it has accepted."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import uvloop
from aiohttp import web

from brokerhouse.broker.endpoints import BrokerEndpoint
from brokerhouse.broker.monitoring.families import MetricSource
from brokerhouse.broker.monitoring.health import Health
from brokerhouse.broker.monitoring.pages import MonitoringPages
from brokerhouse.broker.monitoring.process import LoopDelay, ProcessMetrics
from brokerhouse.broker.monitoring.requests import RequestMetrics
from brokerhouse.broker.monitoring.scrape import Scraper
from brokerhouse.broker.net.connection import Connections
from brokerhouse.broker.net.listener import KafkaListener, ListenError, reason
from brokerhouse.broker.node import Node
from brokerhouse.broker.settings.config import Settings, limits_of_this_machine
from brokerhouse.broker.single import open_engine, open_single
from brokerhouse.broker.start_error import StartError
from brokerhouse.common.address import parse_address
from brokerhouse.common.logging import log_to_stderr
from brokerhouse.common.process import collect_garbage_less
from brokerhouse.common.tasks import Periodic
from brokerhouse.sql.http.listener import HttpListener
from brokerhouse.storage.data_directory import DataDirectoryError
from brokerhouse.storage.engine import EngineError
from brokerhouse.storage.schema_files import SchemaError

if TYPE_CHECKING:
    from brokerhouse.broker.cluster.config import ClusterConfig

log = logging.getLogger(__name__)

_START_ERRORS = (DataDirectoryError, EngineError, SchemaError)
"""Of the storage, besides `StartError`."""
_YOUNG_OBJECTS_MAX = 20_000
"""With Python's default, 10,000 committed offsets a second made the garbage collector stop the
broker for 0.13 s every 1.4 s (measured). Most new objects only wait to be stored."""


async def serve(
    settings: Settings, cluster: ClusterConfig | None, progress: Callable[[str], None]
) -> None:
    """Run until SIGINT or SIGTERM. Prints the ready line. Raises `StartError`."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        kafka = await KafkaListener.bind(settings)
        try:
            async with _opened(settings, cluster, kafka.endpoint(), progress) as node:
                await _serve_until(stop, settings, node, kafka, progress)
        finally:
            kafka.close()
    except _START_ERRORS as error:
        raise StartError(str(error)) from error


@asynccontextmanager
async def _opened(
    settings: Settings,
    cluster: ClusterConfig | None,
    endpoint: BrokerEndpoint,
    progress: Callable[[str], None],
) -> AsyncIterator[Node]:
    """The broker with its storage, open; closed on exit."""
    node: Node
    async with AsyncExitStack() as parts:
        if cluster is None:
            progress(f"opening {settings.data_dir}")
            engine = await open_engine(settings)
            parts.push_async_callback(engine.close)
            node = await open_single(settings, engine, endpoint, progress)
        else:
            # Half of what a broker imports is for clusters only.
            from brokerhouse.broker.cluster.node import open_cluster

            node = await open_cluster(settings, cluster, endpoint, progress)
        parts.push_async_callback(node.close)
        await node.open(progress)
        yield node


async def _serve_until(
    stop: asyncio.Event,
    settings: Settings,
    node: Node,
    kafka: KafkaListener,
    progress: Callable[[str], None],
) -> None:
    loop = asyncio.get_running_loop()
    connections = Connections(node.broker)
    idle = Periodic(
        "idle-connections", settings.connections_max_idle_ms / 4000, connections.close_idle
    )
    delay, health = LoopDelay(), Health(node)
    http_listener = HttpListener(settings.http_max_connections)
    http = http_listener.runner(_http_pages(settings, node, connections, delay, health))
    stopped = loop.create_task(stop.wait())
    try:
        await kafka.accept(connections)
        idle.start()
        ready = f"ready kafka={','.join(str(one.address) for one in kafka.addresses)}"
        await http.setup()
        http_port = await _listen_for_http(http_listener, http, settings)
        ready += f" http={parse_address(settings.http)._replace(port=http_port)}"
        delay.start()
        if await _begun(node, stopped):
            collect_garbage_less(_YOUNG_OBJECTS_MAX)
            health.begun = True
            # Not before: what prevents a start is all that a start prints then.
            limits = limits_of_this_machine(settings).items()
            log.info("limits: %s", ", ".join(f"{name}={value}" for name, value in limits))
            print(ready, flush=True)
            own = [*idle.background, *delay.periodic.background, *http_listener.background]
            await _until_stopped(stopped, [*own, *node.background])
        progress("stopping")
        health.stopping = True
        await node.hand_over()
    finally:
        stopped.cancel()
        await idle.close()
        await delay.periodic.close()
        kafka.close()
        try:
            async with asyncio.timeout(settings.shutdown_timeout_ms / 1000):
                await connections.drain()
        except TimeoutError:
            log.warning("some requests were not answered within shutdown_timeout_ms")
        await http_listener.close()
        await http.cleanup()


def _http_pages(
    settings: Settings,
    node: Node,
    connections: Connections,
    delay: LoopDelay,
    health: Health,
) -> web.Application:
    """What the HTTP listener serves: monitoring, and SQL if the broker has an engine."""
    broker = node.broker
    sources: list[MetricSource] = [
        ProcessMetrics(broker, delay),
        RequestMetrics(broker, connections),
        *node.metrics,
    ]
    pages = MonitoringPages(Scraper(sources), health, settings.names_for_http)
    pages.add_to(node.http)
    return node.http


async def _begun(node: Node, stopped: asyncio.Task[bool]) -> bool:
    """Begin; False if the broker is told to stop first."""
    beginning = asyncio.ensure_future(node.begin())
    await asyncio.wait([stopped, beginning], return_when=asyncio.FIRST_COMPLETED)
    if not beginning.done():
        beginning.cancel()
        await asyncio.wait([beginning])
        return False
    beginning.result()
    return True


async def _until_stopped(
    stopped: asyncio.Task[bool], background: Collection[asyncio.Task[None]]
) -> None:
    """Raises the error that ended a background task: only a bug ends one before it is closed."""
    await asyncio.wait([stopped, *background], return_when=asyncio.FIRST_COMPLETED)
    for task in background:
        if task.done():
            task.result()


async def _listen_for_http(
    listener: HttpListener, runner: web.AppRunner, settings: Settings
) -> int:
    """Returns the port. Raises `ListenError`."""
    address = parse_address(settings.http)
    try:
        return await listener.listen(runner, address)
    except OSError as error:
        raise ListenError(f"cannot listen for HTTP on {address}: {reason(error)}") from error


def run(settings: Settings, cluster: ClusterConfig | None = None) -> int:
    """Serve until a signal. Returns the exit code; an error is one sentence on stderr."""
    log_to_stderr(settings.log_level, settings.log_format)

    def progress(text: str) -> None:
        print(f"brokerhouse: {text}", file=sys.stderr, flush=True)

    try:
        uvloop.run(serve(settings, cluster, progress))
    except StartError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0
