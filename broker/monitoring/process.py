"""Metrics of the process: what it is, memory, CPU, descriptors, the delay of its event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from importlib.metadata import version

from prometheus_client.core import Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from brokerhouse.broker.broker import Broker
from brokerhouse.broker.monitoring.families import gauge, histogram
from brokerhouse.common.tasks import Periodic
from brokerhouse.common.timings import Timings

_LOOK_EVERY_S = 0.1
_DELAYS_S = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class LoopDelay:
    """How much later than it should something runs on the event loop, looked at ten times a second.

    What blocks the loop for a second delays everybody for a second.
    """

    def __init__(self) -> None:
        self.delays = Timings(_DELAYS_S)
        self.periodic = Periodic("loop-delay", _LOOK_EVERY_S, self._look)
        self._last_s = 0.0

    def start(self) -> None:
        self._last_s = time.perf_counter()
        self.periodic.start()

    def _look(self) -> None:
        now_s = time.perf_counter()
        self.delays.add(max(now_s - self._last_s - _LOOK_EVERY_S, 0.0))
        self._last_s = now_s


class ProcessMetrics:
    """`MetricSource` of the process."""

    def __init__(self, broker: Broker, delay: LoopDelay) -> None:
        self._broker = broker
        self._delay = delay
        self._version = version("brokerhouse")
        registry = CollectorRegistry(auto_describe=False)
        self._standard: Sequence[Collector] = (
            ProcessCollector(registry=registry),
            PlatformCollector(registry=registry),
            GCCollector(registry=registry),
        )

    async def collect(self) -> Iterable[Metric]:
        broker = self._broker
        labels = {
            "version": self._version,
            "cluster_id": broker.cluster_id,
            "node_id": str(broker.node_id),
        }
        return [
            gauge(
                "brokerhouse_build_info",
                "Always 1; the labels say which broker this is",
                [(tuple(labels.values()), 1)],
                tuple(labels),
            ),
            histogram(
                "brokerhouse_event_loop_delay_seconds",
                "Delay of the event loop, measured ten times a second",
                [((), self._delay.delays)],
            ),
            *await asyncio.to_thread(self._collect_standard),
        ]

    def _collect_standard(self) -> list[Metric]:
        return [metric for one in self._standard for metric in one.collect()]
