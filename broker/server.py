"""Starts and stops everything, in order.

Start: what stores, topics, lanes, then the listeners: nothing is accepted before it can be kept.
Stop: slots are handed over, listeners, long polls, requests on their way, lanes, engine: nothing is
dropped that was accepted."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import uvloop
from aiohttp import web

from broker.cluster.config import ClusterConfig
from broker.cluster.node import open_cluster
from broker.cluster.ownership import NodeIdTaken, WrongSlots
from broker.config import Settings
from broker.connection import Connection
from broker.node import Broker, Node
from broker.single import open_engine, open_single
from common.address import parse_address
from common.logging import log_to_stderr
from storage.embedded import DataDirectoryError
from storage.engine import EngineError
from storage.schema import SchemaError

log = logging.getLogger(__name__)

_WILDCARD_HOSTS = frozenset({"0.0.0.0", "::"})
_LISTEN_BACKLOG = 1024


class StartError(Exception):
    """The broker cannot start; says in one sentence what to change."""


async def serve(
    settings: Settings, cluster: ClusterConfig | None, progress: Callable[[str], None]
) -> None:
    """Run until SIGINT or SIGTERM. Prints the ready line. Raises `StartError`."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    opened = (
        _single(settings, progress) if cluster is None else _of_cluster(settings, cluster, progress)
    )
    try:
        async with opened as node:
            await _listen_until(stop, settings, node, progress)
    except (DataDirectoryError, SchemaError, EngineError, NodeIdTaken, WrongSlots) as error:
        raise StartError(str(error)) from error


@asynccontextmanager
async def _single(settings: Settings, progress: Callable[[str], None]) -> AsyncIterator[Node]:
    progress(f"opening {settings.data_dir}")
    engine = await open_engine(settings)
    try:
        node = await open_single(settings, engine, progress)
        await node.open(progress)
        try:
            yield node
        finally:
            await node.close()
    finally:
        await engine.close()


@asynccontextmanager
async def _of_cluster(
    settings: Settings, cluster: ClusterConfig, progress: Callable[[str], None]
) -> AsyncIterator[Node]:
    node = await open_cluster(settings, cluster, progress)
    try:
        await node.open(progress)
        yield node
    finally:
        await node.close()


async def _listen_until(
    stop: asyncio.Event, settings: Settings, node: Node, progress: Callable[[str], None]
) -> None:
    broker = node.broker
    loop = asyncio.get_running_loop()
    kafka = await _kafka_listener(broker)
    broker.address.host, broker.address.port = _advertised(settings, kafka)
    runner = None if node.sql is None else web.AppRunner(node.sql, access_log=None)
    waiting = loop.create_task(stop.wait())
    sweeper = loop.create_task(_sweep(broker), name="idle-connections")
    try:
        ready = f"ready kafka={parse_address(settings.kafka)._replace(port=_port(kafka))}"
        if runner is not None:
            await runner.setup()
            http_port = await _http_listener(runner, settings)
            ready += f" http={parse_address(settings.http)._replace(port=http_port)}"
        if await _begun(node, waiting):
            print(ready, flush=True)
            await _until_stopped(waiting, node, sweeper)
        progress("stopping")
        await node.hand_over()
    finally:
        waiting.cancel()
        sweeper.cancel()
        kafka.close()
        try:
            async with asyncio.timeout(settings.shutdown_timeout_ms / 1000):
                await broker.drain()
        except TimeoutError:
            log.warning("some requests were not answered within shutdown_timeout_ms")
        if runner is not None:
            await runner.cleanup()


async def _begun(node: Node, waiting: asyncio.Task[bool]) -> bool:
    """Whether the node has begun before it was told to stop."""
    beginning = asyncio.ensure_future(node.begin())
    await asyncio.wait([waiting, beginning], return_when=asyncio.FIRST_COMPLETED)
    if not beginning.done():
        beginning.cancel()
        await asyncio.wait([beginning])
        return False
    beginning.result()
    return True


async def _until_stopped(
    waiting: asyncio.Task[bool], node: Node, sweeper: asyncio.Task[None]
) -> None:
    # What runs in the background ends only by a defect, and a defect is loud.
    background = [sweeper, *node.background]
    await asyncio.wait([waiting, *background], return_when=asyncio.FIRST_COMPLETED)
    for task in background:
        if task.done():
            task.result()


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


def run(settings: Settings, cluster: ClusterConfig | None = None) -> int:
    """Serve until a signal; the exit code. What is wrong is one sentence on stderr."""
    log_to_stderr(settings.log_level, settings.log_format)

    def progress(text: str) -> None:
        print(f"brokerhouse: {text}", file=sys.stderr, flush=True)

    try:
        uvloop.run(serve(settings, cluster, progress))
    except StartError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0
