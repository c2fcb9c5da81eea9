"""How long something takes, counted where it happens: what a histogram of /metrics is made of.

To count costs 0.3 us. broker/monitoring/ reads the counts when somebody asks for them.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

_BELOW_A_SECOND = 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5
SHORT_S = (*_BELOW_A_SECOND, 1.0, 2.5, 5.0, 10.0, 30.0)
"""From what memory answers to what a time-out ends."""


class Timings:
    """Counts durations by size: `counts[n]` of them were at most `bounds_s[n]`, the last longer."""

    __slots__ = ("bounds_s", "counts", "sum_s")

    def __init__(self, bounds_s: Sequence[float] = SHORT_S) -> None:
        self.bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds_s, seconds)] += 1
        self.sum_s += seconds

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count how long the body takes, also if it fails."""
        began_s = time.perf_counter()
        try:
            yield
        finally:
            self.add(time.perf_counter() - began_s)

    def cumulative(self) -> list[tuple[str, float]]:
        """Pairs of an upper bound and how many were at most as long, as Prometheus wants them."""
        bounds = [*(str(bound) for bound in self.bounds_s), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self.counts)), strict=True))
