"""Log lines that a client can cause as often as it likes: written once a minute, and counted.

    log.info("%s closed: %s", peer, reason, extra=counted(host))

The first line is written at once. Those that follow within a minute are counted; then the last of
them is written, with their number. Lines are alike if they come from the same call and name the
same thing in `counted`. A call has `_NAMES_MAX` such things; all others count as one.

Every other line, also of a library, is written up to `_OTHER_LINES` times a minute: nobody can be
sure to have marked every call. With the level `debug` all lines are written.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

_INTERVAL_S = 60.0
_NAMES_MAX = 20
_OTHER_LINES = 50
_ATTRIBUTE = "counted"
_REST = "..."
"""In the place of a name, once a call has enough of them."""

_Call = tuple[str, int]
"""The file and the line of a call."""


def counted(name: object = "") -> Mapping[str, str]:
    """The `extra` of a log call that a client can cause. `name`: what the line is about."""
    return {_ATTRIBUTE: str(name)}


def mark(record: logging.LogRecord, name: str = "") -> None:
    """As `counted`, for the line of a library."""
    setattr(record, _ATTRIBUTE, name)


@dataclass(slots=True)
class _Alike:
    """Lines that are alike, since one was written."""

    since_s: float
    written: int = 0
    left_out: int = 0
    last: logging.LogRecord | None = None


class CountedLines:
    """Decides about each line. `write` gets the last of those that were left out."""

    def __init__(
        self,
        write: Callable[[logging.LogRecord], object],
        interval_s: float = _INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._interval_s = interval_s
        self._clock = clock
        self._kinds: dict[_Call, dict[str, _Alike]] = {}
        # The collector of garbage may run here, and what it deletes may log.
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None

    def may_pass(self, record: logging.LogRecord) -> bool:
        """Whether this line is written now. Else it is counted."""
        name = getattr(record, _ATTRIBUTE, None)
        with self._lock:
            kind = self._kind_of((record.pathname, record.lineno), name or "")
            if kind.written < (_OTHER_LINES if name is None else 1):
                kind.written += 1
                return True
            kind.left_out += 1
            kind.last = record
            record.msg, record.args = record.getMessage(), None  # arguments may hold much memory
            record.exc_info = record.exc_text = None
            if self._timer is None:
                self._tell_later(kind.since_s + self._interval_s - self._clock())
        return False

    def tell(self, *, everything: bool = False) -> None:
        """Write how many lines were left out, of what is a minute old, or of everything."""
        with self._lock:
            told = self._over(everything)
            for kind in told:
                if kind.last is not None:
                    self._write(self._summary(kind))
            self._timer = None
            waiting = [
                one.since_s for named in self._kinds.values() for one in named.values() if one.last
            ]
            if waiting and not everything:
                self._tell_later(min(waiting) + self._interval_s - self._clock())

    def _kind_of(self, call: _Call, name: str) -> _Alike:
        named = self._kinds.setdefault(call, {})
        kind = named.get(name)
        now_s = self._clock()
        if kind is None:
            if len(named) >= _NAMES_MAX:
                self._forget_quiet(named, now_s)
            if len(named) >= _NAMES_MAX:
                name = _REST
            kind = named.setdefault(name, _Alike(now_s))
        if kind.last is None and now_s - kind.since_s >= self._interval_s:
            kind.since_s, kind.written = now_s, 0
        return kind

    def _forget_quiet(self, named: dict[str, _Alike], now_s: float) -> None:
        for name, kind in tuple(named.items()):
            if kind.last is None and now_s - kind.since_s >= self._interval_s:
                del named[name]

    def _over(self, everything: bool) -> list[_Alike]:
        """The kinds whose minute is over. Those that were quiet are forgotten."""
        now_s = self._clock()
        over = []
        for call, named in tuple(self._kinds.items()):
            self._forget_quiet(named, now_s)
            if not named:
                del self._kinds[call]
            over += [
                kind
                for kind in named.values()
                if everything or now_s - kind.since_s >= self._interval_s
            ]
        return over

    def _summary(self, kind: _Alike) -> logging.LogRecord:
        """The last line, with the number of those that were left out. A new minute begins."""
        record, now_s = kind.last, self._clock()
        assert record is not None, "a line was left out"
        if kind.left_out > 1:
            record.msg += f" ({kind.left_out} lines like this in {now_s - kind.since_s:.0f} s)"
        kind.since_s, kind.last, kind.left_out = now_s, None, 0
        return record

    def _tell_later(self, seconds: float) -> None:
        timer = threading.Timer(max(seconds, 0.0), self.tell)
        timer.daemon = True
        with suppress(RuntimeError):  # no thread can be started; the next line tries again
            timer.start()
            self._timer = timer


class CountingHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes lines to stderr; those that repeat, as this module says."""

    def __init__(self) -> None:
        super().__init__()
        self._lines = CountedLines(super().handle)

    def handle(self, record: logging.LogRecord) -> bool:
        writes_all = logging.getLogger().isEnabledFor(logging.DEBUG)
        return (writes_all or self._lines.may_pass(record)) and bool(super().handle(record))

    def close(self) -> None:
        self._lines.tell(everything=True)
        super().close()
