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
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from brokerhouse.common.counted_lines import counted
from brokerhouse.sql.http.access import Role
from brokerhouse.sql.http.engine import Handle, SqlEngine, run
from brokerhouse.sql.http.errors import SqlError, sql_error
from brokerhouse.sql.http.settings import SqlLimits

log = logging.getLogger(__name__)

T = TypeVar("T")

KILL_AGAIN_S = 0.5
QUERY_WAS_CANCELLED = 394


class Permit:
    """The right to use one thread of the pool. Given back once: by the request that got it, or by
    the statement that it was handed over to.
    """

    def __init__(self, taken: Sequence[asyncio.Semaphore]) -> None:
        self._taken = taken

    def hand_over(self) -> Permit:
        """The same permit for a new owner; giving this one back does nothing from now on."""
        taken, self._taken = self._taken, ()
        return Permit(taken)

    def give_back(self) -> None:
        taken, self._taken = self._taken, ()
        for free in taken:
            free.release()


class StatementPool:
    """Belongs to an event loop; `close` ends it."""

    def __init__(self, engine: SqlEngine, limits: SqlLimits) -> None:
        self._engine = engine
        self._limits = limits
        self._threads = ThreadPoolExecutor(limits.max_queries, thread_name_prefix="sql")
        self._control = ThreadPoolExecutor(1, thread_name_prefix="sql-control")
        self._control_handle: Handle | None = None
        readers = limits.max_queries - limits.kept_for_writer
        self._free = asyncio.Semaphore(limits.max_queries)
        self._for_readers = asyncio.Semaphore(readers)
        self._for_one_origin = max(readers - 1, 1)
        self._by_origin: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._waiting: Counter[Role] = Counter()
        self._waiting_of: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self._reasons: dict[bytes, SqlError] = {}

    async def permit(self, role: Role, origin: str) -> Permit:
        """Wait for a free thread. Raises TOO_MANY_SIMULTANEOUS_QUERIES after the longest wait, or
        at once if too many of this role wait already.

        Readers from one `origin` leave one thread, and a quarter of the queue, to others.
        """
        wait_ms = self._limits.queue.wait_ms
        needed = self._needed(role, origin)
        if self._closing or (
            any(free.locked() for free in needed) and self._is_queue_full(role, origin)
        ):
            raise self._too_many(f"and {self._waiting[role]} wait for their turn")
        self._waiting[role] += 1
        if role is Role.READER:
            self._waiting_of[origin] += 1
        taken: list[asyncio.Semaphore] = []
        try:
            async with asyncio.timeout(wait_ms / 1000):
                for free in needed:
                    await free.acquire()
                    taken.append(free)
        except BaseException as error:
            Permit(taken).give_back()
            if isinstance(error, TimeoutError):
                raise self._too_many(f"and none has ended within {wait_ms} ms") from None
            raise
        finally:
            self._waiting[role] -= 1
            if role is Role.READER:
                self._waiting_of -= Counter({origin: 1})
        return Permit(taken)

    def _needed(self, role: Role, origin: str) -> Sequence[asyncio.Semaphore]:
        if role is Role.WRITER:
            return (self._free,)
        of_origin = self._by_origin.get(origin)
        if of_origin is None:
            of_origin = self._by_origin[origin] = asyncio.Semaphore(self._for_one_origin)
        return (of_origin, self._for_readers, self._free)

    def _is_queue_full(self, role: Role, origin: str) -> bool:
        max_waiting = self._limits.queue.max_waiting
        if self._waiting[role] >= max_waiting:
            return True
        return role is Role.READER and self._waiting_of[origin] >= max(max_waiting * 3 // 4, 1)

    def _too_many(self, why: str) -> SqlError:
        return sql_error(
            202,
            "TOO_MANY_SIMULTANEOUS_QUERIES",
            f"Too many simultaneous queries. Maximum: {self._limits.max_queries}, {why}:"
            " send the query again later",
        )

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

    async def kill_because(self, mark: bytes, reason: SqlError) -> None:
        """Kill the statement that begins with `mark`; its client gets this error."""
        self._reasons[mark] = reason
        await self.kill(mark)

    def reason(self, mark: bytes, error: SqlError) -> SqlError:
        """Why the statement has ended with this error."""
        reason = self._reasons.pop(mark, None)
        return reason if reason is not None and error.code == QUERY_WAS_CANCELLED else error

    async def end(self, mark: bytes, done: asyncio.Future[Any]) -> None:
        """Kill statements that begin with `mark`, until `done`: one may be about to begin."""
        while not done.done():
            await self.kill(mark)
            await asyncio.wait([done], timeout=KILL_AGAIN_S)

    def finish_later(self, ending: Coroutine[Any, Any, None]) -> None:
        """Run `ending` in the background. A failure is logged, and `close` waits for it."""
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(ending)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("stopping a query failed", exc_info=error, extra=counted())

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
