"""Background tasks: repeated work, waits with a limit, back-off.

The code that creates a task owns it. A task runs until it is closed or a bug ends it. The exception
is never swallowed: it stays in the task, for the owner to raise.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar

from brokerhouse.common.counted_lines import counted

T = TypeVar("T")

PER_TURN = 1000
"""So many simple things are done before other work has its turn: about a millisecond."""


async def in_turns(things: Iterable[T], per_turn: int = PER_TURN) -> AsyncIterator[T]:
    """All of them, with a turn for other tasks after every few. They must not change meanwhile."""
    for number, one in enumerate(things, 1):
        yield one
        if number % per_turn == 0:
            await asyncio.sleep(0)


async def event_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait until the event is set, for `seconds` at most. Returns whether it was set."""
    try:
        async with asyncio.timeout(seconds):  # wait_for may swallow a cancellation (Python 3.11)
            await event.wait()
    except TimeoutError:
        return False
    return True


async def cancel(task: asyncio.Task[None] | None) -> None:
    """Cancel a task and wait until it has ended. Its exception stays in it."""
    if task is not None:
        task.cancel()
        await asyncio.wait([task])


class Periodic:
    """Runs `work`, a function or a coroutine function, every `every_s` seconds.

    `work` handles the errors that it expects; any other ends `task`. `every_s` may be a function,
    called before each pause. With `at_once`, the first run does not wait for the first pause.
    """

    def __init__(
        self,
        name: str,
        every_s: float | Callable[[], float],
        work: Callable[[], Awaitable[None] | None],
        *,
        at_once: bool = False,
    ) -> None:
        self._name = name
        self._every_s = every_s
        self._work = work
        self._at_once = at_once
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start. `task` runs until `close`; an error that `work` does not handle ends it."""
        self.task = asyncio.create_task(self._run(), name=self._name)

    async def close(self) -> None:
        """Stop, in the middle of a run if need be. Does nothing before `start`."""
        await cancel(self.task)

    @property
    def background(self) -> list[asyncio.Task[None]]:
        """The task, once it has started, for the owner who watches that no task ends."""
        return [] if self.task is None else [self.task]

    async def _run(self) -> None:
        if self._at_once:
            await self._once()
        while True:
            await asyncio.sleep(self._every_s() if callable(self._every_s) else self._every_s)
            await self._once()

    async def _once(self) -> None:
        pending = self._work()
        if pending is not None:
            await pending


class Backoff:
    """Pauses that double, from `first_s` to `max_s`, until `reset`."""

    def __init__(self, first_s: float, max_s: float) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._next_s = first_s

    @property
    def next_s(self) -> float:
        """The length of the next pause, in seconds."""
        return self._next_s

    def after(self, error: Exception, log: logging.Logger, failing: str) -> float:
        """`advance`, and log a warning: what is `failing`, and when it is retried."""
        log.warning(
            "%s; retrying in %.2f s: %s", failing, self._next_s, error, extra=counted(log.name)
        )
        return self.advance()

    def advance(self) -> float:
        """The length of the pause to make now, in seconds; the one after it is twice as long."""
        pause_s = self._next_s
        self._next_s = min(pause_s * 2, self._max_s)
        return pause_s

    def reset(self) -> None:
        self._next_s = self._first_s


class Outage:
    """Logs an outage once when it starts, however long it lasts, and once when it is over."""

    def __init__(self, log: logging.Logger, failing: str, recovered: str) -> None:
        """`failing`: a sentence to which the error is added; `recovered`: a whole sentence."""
        self._log = log
        self._failing = failing
        self._recovered = recovered
        self._lasts = False

    def failed(self, error: Exception) -> None:
        if not self._lasts:
            self._log.warning("%s: %s", self._failing, error, extra=counted(self._failing))
        self._lasts = True

    def worked(self) -> None:
        if self._lasts:
            self._log.info("%s", self._recovered, extra=counted(self._recovered))
        self._lasts = False
