"""A clock that a test sets by hand."""

from common import clock


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
