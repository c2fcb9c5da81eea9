"""Closes connections whose clients do not read their responses.

Every connection with unsent bytes is watched. Its client makes progress when it reads 64 KB, or all
of its responses. Without progress the connection is closed after `response_send_timeout_ms`. While
more than half of the memory for responses is used, it is closed after one second, and connections
with the largest responses are closed first.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Protocol

from broker.response_memory import ResponseMemory
from common.counted_lines import counted

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.5
_PATIENCE_WHEN_TIGHT_S = 1.0
_PROGRESS_BYTES = 64 << 10


class Receiver(Protocol):
    """A connection with responses that its client has not taken."""

    peer: str

    @property
    def held_bytes(self) -> int:
        """What its responses hold."""

    @property
    def sent_bytes(self) -> int:
        """What the socket has taken so far: a number that only grows."""

    def drop(self) -> None:
        """Close it now, and free what it holds. The caller logs it."""


@dataclass(slots=True)
class _Progress:
    sent_bytes: int
    since: float


class SlowClients:
    """The connections with unsent bytes."""

    def __init__(self, memory: ResponseMemory, timeout_s: float) -> None:
        self._memory = memory
        self._timeout_s = timeout_s
        self._watched: dict[Receiver, _Progress] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, receiver: Receiver) -> None:
        """It has unsent bytes from now on."""
        if receiver in self._watched:
            return
        loop = asyncio.get_running_loop()
        self._watched[receiver] = _Progress(receiver.sent_bytes, loop.time())
        if self._timer is None:
            self._timer = loop.call_later(_LOOK_EVERY_S, self._look)

    def forget(self, receiver: Receiver) -> None:
        """All is sent, or it is closed."""
        self._watched.pop(receiver, None)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        closed: list[str] = []
        stalled: list[tuple[int, Receiver]] = []
        for receiver, progress in tuple(self._watched.items()):
            sent = receiver.sent_bytes
            if sent - progress.sent_bytes >= _PROGRESS_BYTES:
                progress.sent_bytes, progress.since = sent, now
            elif now - progress.since >= self._timeout_s:
                closed.append(_drop(receiver, now - progress.since))
            elif now - progress.since >= _PATIENCE_WHEN_TIGHT_S:
                stalled.append((receiver.held_bytes, receiver))
        if self._memory.is_tight:
            stalled.sort(key=lambda one: one[0], reverse=True)
            for _, receiver in stalled:
                if not self._memory.is_tight:
                    break
                closed.append(_drop(receiver, now - self._watched[receiver].since))
        for line in closed:
            log.info("%s", line, extra=counted())
        self._timer = loop.call_later(_LOOK_EVERY_S, self._look) if self._watched else None


def _drop(receiver: Receiver, stalled_s: float) -> str:
    size = receiver.held_bytes
    receiver.drop()
    return (
        f"{receiver.peer} closed: its client has read nothing for {stalled_s:.1f} s"
        f" and holds {size} bytes of responses"
    )
