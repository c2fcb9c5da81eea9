"""A clock that a test sets by hand."""

from datetime import UTC, datetime

from brokerhouse.common import clock

NOON = int(datetime(2096, 11, 20, 12, tzinfo=UTC).timestamp() * 1000)
"""A day, in ms, on which no TTL has an effect yet: the engine's own clock is the machine's."""


class Clock(clock.Clock):
    """Milliseconds, by the wall and monotonic, that change only where a test changes `now_ms`."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_ms(self) -> int:
        return self.now_ms
