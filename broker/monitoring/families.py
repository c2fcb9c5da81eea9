"""Metrics as prometheus_client has them, made of plain numbers.

Names follow https://prometheus.io/docs/practices/naming/: base units, `_total` for what only grows.
A label without a value is as good as absent: a single broker has one shard, whose name is "".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from brokerhouse.common.timings import Timings

Values = Iterable[tuple[Sequence[str], float]]
"""Values of labels, and the number that belongs to them."""


class MetricSource(Protocol):
    async def collect(self) -> Iterable[Metric]:
        """The metrics of one subject, now. Holds the event loop for a few milliseconds at most."""


def gauge(
    name: str, meaning: str, values: Values | float, labels: Sequence[str] = ()
) -> GaugeMetricFamily:
    """What goes up and down."""
    family = GaugeMetricFamily(name, meaning, labels=labels)
    for label_values, value in _values(values):
        family.add_metric(label_values, value)
    return family


def counter(
    name: str, meaning: str, values: Values | float, labels: Sequence[str] = ()
) -> CounterMetricFamily:
    """What only grows; begins anew when the broker starts. The name ends with `_total`."""
    family = CounterMetricFamily(name, meaning, labels=labels)
    for label_values, value in _values(values):
        family.add_metric(label_values, value)
    return family


def histogram(
    name: str,
    meaning: str,
    timings: Iterable[tuple[Sequence[str], Timings]],
    labels: Sequence[str] = (),
) -> HistogramMetricFamily:
    """Durations; the name ends with `_seconds`."""
    family = HistogramMetricFamily(name, meaning, labels=labels)
    for label_values, counted in timings:
        family.add_metric(label_values, counted.cumulative(), counted.sum_s)
    return family


def _values(values: Values | float) -> Values:
    return [((), values)] if isinstance(values, (int, float)) else values
