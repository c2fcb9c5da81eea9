"""One answer to `/metrics`: asks every source, and encodes what they say in a thread.

Requests that come meanwhile share what is being collected. Between two sources the event loop does
other work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from brokerhouse.broker.monitoring.families import MetricSource

_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class _Collected(Collector):
    """What an encoder of prometheus_client reads."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


class Scraper:
    """Collects metrics of all sources."""

    def __init__(self, sources: Sequence[MetricSource]) -> None:
        self._sources = sources
        self._running: asyncio.Task[_Collected] | None = None

    async def scrape(self, accept: str) -> tuple[bytes, str]:
        """The metrics in the format that this Accept header asks for, and their content type."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._collect(), name="metrics")
        collected = await asyncio.shield(self._running)
        asked = {kind.partition(";")[0].strip().lower() for kind in accept.split(",")}
        if "application/openmetrics-text" in asked:
            text = await asyncio.to_thread(openmetrics.generate_latest, collected)
            return text, openmetrics.CONTENT_TYPE_LATEST
        return await asyncio.to_thread(generate_latest, collected), _TEXT

    async def _collect(self) -> _Collected:
        metrics: list[Metric] = []
        for source in self._sources:
            metrics += await source.collect()
            await asyncio.sleep(0)
        return _Collected(metrics)
