"""Time in whole milliseconds, for the whole package.

Pure code never calls these functions; its callers pass it the time or a clock.
"""

from __future__ import annotations

import time
from typing import NamedTuple

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


def wall_ms() -> int:
    """Milliseconds since 1970, for stored times. The clock may be set back."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Milliseconds since an arbitrary moment, for time-outs. The clock is never set back."""
    return time.monotonic_ns() // 1_000_000


class Moment(NamedTuple):
    """One moment on both clocks: `monotonic_ms` for time-outs, `wall_ms` for stored times."""

    monotonic_ms: int
    wall_ms: int


class Clock:
    """The clocks of this machine as an object, so that a test can replace them."""

    def wall_ms(self) -> int:
        return wall_ms()

    def monotonic_ms(self) -> int:
        return monotonic_ms()

    def now(self) -> Moment:
        return Moment(self.monotonic_ms(), self.wall_ms())
