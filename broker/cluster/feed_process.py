"""Runs `brokerhouse feed` until a signal."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from broker.cluster.beside import BesideFeedHost
from broker.cluster.config import ClusterConfig
from broker.config import Settings, schema_registry_url
from broker.feeds import TableFeeds


async def serve(settings: Settings, cluster: ClusterConfig, say: Callable[[str], None]) -> None:
    """Says `ready` once it feeds."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    host = BesideFeedHost(cluster, schema_registry_url(settings))
    feeds = TableFeeds(host)
    stopped = loop.create_task(stop.wait())
    try:
        await host.start()
        feeds.start()
        say("ready feeds")
        background = [*host.background, *feeds.background]
        await asyncio.wait([stopped, *background], return_when=asyncio.FIRST_COMPLETED)
        for task in background:
            if task.done():
                task.result()
    finally:
        stopped.cancel()
        await feeds.close()
