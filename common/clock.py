"""Time as every room counts it: whole milliseconds.

Nothing here is a default argument of pure code: that takes its clock as an argument.
"""

from __future__ import annotations

import time
from typing import NamedTuple

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


def wall_ms() -> int:
    """Milliseconds since 1970: for what is stored. It may be set back."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Milliseconds since some moment: for time-outs. It is never set back."""
    return time.monotonic_ns() // 1_000_000


class Moment(NamedTuple):
    """One moment on both clocks: `monotonic_ms` for time-outs, `wall_ms` for what is stored."""

    monotonic_ms: int
    wall_ms: int


class Clock:
    """The clocks of this machine as an object, so that a test can put its own in their place."""

    def wall_ms(self) -> int:
        return wall_ms()

    def monotonic_ms(self) -> int:
        return monotonic_ms()

    def now(self) -> Moment:
        return Moment(self.monotonic_ms(), self.wall_ms())
