"""The threads that people's statements run in, and how a statement is stopped.

What must hold:
* The event loop never waits for the engine: every call into it is made in a thread of a bounded
  pool. A statement keeps its permit until its thread is free again, however the statement ends.
* A statement that nobody waits for any longer is killed: the engine does not notice by itself that
  nobody reads its result.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from sql.http.engine import Handle, SqlEngine, run
from sql.http.errors import SqlError, sql_error

log = logging.getLogger(__name__)

T = TypeVar("T")

QUEUE_WAIT_S = 10.0
QUEUED_PER_RUNNING = 25


class Permit:
    """The right to use one thread of the pool. Given back once: by the request that got it, or by
    the statement that it was handed over to.
    """

    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free = free
        self._held = True

    def hand_over(self) -> Permit:
        """The same permit for a new owner; giving this one back does nothing from now on."""
        self._held = False
        return Permit(self._free)

    def give_back(self) -> None:
        if self._held:
            self._held = False
            self._free.release()


class StatementPool:
    """Belongs to an event loop; `close` ends it."""

    def __init__(self, engine: SqlEngine, max_queries: int) -> None:
        self._engine = engine
        self._max_queries = max_queries
        self._threads = ThreadPoolExecutor(max_queries, thread_name_prefix="sql")
        self._control = ThreadPoolExecutor(1, thread_name_prefix="sql-control")
        self._control_handle: Handle | None = None
        self._free = asyncio.Semaphore(max_queries)
        self._queued = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    async def permit(self) -> Permit:
        """Wait for a free thread. Raises TOO_MANY_SIMULTANEOUS_QUERIES after QUEUE_WAIT_S, or at
        once if too many wait already.
        """
        if self._closing or self._queued >= self._max_queries * QUEUED_PER_RUNNING:
            raise self._too_many()
        self._queued += 1
        try:
            async with asyncio.timeout(QUEUE_WAIT_S):
                await self._free.acquire()
        except TimeoutError:
            raise self._too_many() from None
        finally:
            self._queued -= 1
        return Permit(self._free)

    def _too_many(self) -> SqlError:
        return sql_error(
            202, "TOO_MANY_SIMULTANEOUS_QUERIES",
            f"Too many simultaneous queries. Maximum: {self._max_queries}",
        )  # fmt: skip

    # --- running

    def submit(self, function: Callable[..., T], *args: Any) -> Future[T]:
        """Run in a thread. The caller holds a permit."""
        return self._threads.submit(function, *args)

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """Run in a thread to the end: a cancelled caller waits until the engine is done."""
        future = asyncio.wrap_future(self.submit(function, *args))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            with suppress(SqlError):
                await future
            raise

    async def call_control(self, function: Callable[[Handle], T]) -> T:
        """Run on a handle with every grant, in a thread that no statement of a client occupies."""

        def call() -> T:
            if self._control_handle is None:
                self._control_handle = self._engine.handle()
            return function(self._control_handle)

        return await asyncio.get_running_loop().run_in_executor(self._control, call)

    def close_handle(self, handle: Handle) -> None:
        """Close it, without waiting for that."""
        self._control.submit(handle.close)

    # --- ending

    async def kill(self, mark: bytes) -> bool:
        """Make the engine stop statements that begin with `mark`. Returns if there are any."""
        statement = b"KILL QUERY WHERE startsWith(query, '" + mark + b"') ASYNC"
        return await self.call_control(
            lambda handle: bool(run(handle, statement, "TabSeparated").bytes())
        )

    def finish_later(self, ending: Coroutine[Any, Any, None]) -> None:
        """Run `ending` in the background. A failure is logged, and `close` waits for it."""
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(ending)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("stopping a query failed", exc_info=error)

    async def stop(self) -> None:
        """Give no permits any more, and wait for what is being stopped."""
        self._closing = True
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Wait for what runs. Nobody may read a result any more."""
        await self.stop()
        if self._control_handle is not None:
            self.close_handle(self._control_handle)
        await asyncio.to_thread(self._threads.shutdown)
        await asyncio.to_thread(self._control.shutdown)
