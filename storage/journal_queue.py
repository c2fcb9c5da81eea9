"""The changes of the journal's files, one at a time (storage/journal_files.py)."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from brokerhouse.storage.disk_reserve import NOT_ENOUGH_SPACE
from brokerhouse.storage.engine import NotSent, StorageFault
from brokerhouse.storage.journal_files import FlushError, JournalWriter

log = logging.getLogger(__name__)

T = TypeVar("T")

_IN_THREAD_BYTES = 256 << 10
"""A larger block is written in a thread: it would hold up the event loop for 0.1 ms."""


@dataclass(slots=True)
class _Change:
    """A change of the journal's files that waits for the thread, and who waits for its result."""

    write: Callable[[], Any]
    written: Callable[[Any], None]
    done: asyncio.Future[Any]


def _nothing(_result: object) -> None:
    """A change that nobody else has to know of."""


class JournalQueue:
    """Runs changes of the files one at a time: small ones here and now, others in a thread.

    Of a change, `write` returns a result, in the thread; `written(result)` follows on the event
    loop, in the order of the changes and before anybody is told of a later one.
    """

    def __init__(self, writer: JournalWriter, *, durable: bool) -> None:
        """`durable`: a change is complete when it is on the disk."""
        self.fault: StorageFault | None = None
        self.last_written = writer.last_sequence
        """All entries up to this one are known to the streams."""
        self._writer = writer
        self._durable = durable
        self._queue: deque[_Change] = deque()
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")

    def is_free(self, size: int) -> bool:
        """Whether a change of this size can be run here and now."""
        return self._task is None and not self._durable and size <= _IN_THREAD_BYTES

    def run_now(self, write: Callable[[], T], written: Callable[[T], None] = _nothing) -> T:
        """Raises `NotSent` and `StorageFault`."""
        if self.fault is not None:
            raise self.fault
        try:
            result = write()
        except FlushError as error:
            self.fault = StorageFault(str(error))
            raise self.fault from error
        except OSError as error:
            raise _not_written(error) from error
        written(result)
        self.last_written = self._writer.last_sequence
        return result

    async def run(
        self, write: Callable[[], T], written: Callable[[T], None] = _nothing, size: int = 0
    ) -> T:
        """Returns when the change is written; if durable, to the disk. Raises as `run_now`."""
        if self.fault is not None:
            raise self.fault
        if self.is_free(size):
            return self.run_now(write, written)
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.append(_Change(write, written, done))
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name="journal")
        return await asyncio.shield(done)

    async def close(self) -> None:
        if self._task is not None:
            await self._task
        await asyncio.to_thread(self._thread.shutdown)
        self._writer.close()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._queue:
            changes = list(self._queue)
            self._queue.clear()
            last, outcomes = await loop.run_in_executor(self._thread, self._run_all, changes)
            for change, outcome in zip(changes, outcomes, strict=True):
                self._tell(change, outcome)
            self.last_written = last
        self._task = None

    def _tell(self, change: _Change, outcome: Any) -> None:
        if not isinstance(outcome, Exception):
            try:
                change.written(outcome)
            except Exception as error:
                log.exception("bug: a journal entry was written, but its callback failed")
                outcome = self.fault = StorageFault(
                    f"restart the broker, because the journal failed: {error}"
                )
        if isinstance(outcome, Exception):
            change.done.set_exception(outcome)
            change.done.exception()  # its caller may have gone
        else:
            change.done.set_result(outcome)

    def _run_all(self, changes: Collection[_Change]) -> tuple[int, list[Any]]:
        """In the thread: the outcome of each change, and the last entry that was written."""
        outcomes: list[Any] = []
        try:
            for change in changes:
                try:
                    outcomes.append(change.write())
                except FlushError:
                    raise
                except OSError as error:
                    outcomes.append(_not_written(error))
                except Exception as error:  # a bug: its caller reports it
                    outcomes.append(error)
            if self._durable:
                self._writer.sync()
        except FlushError as error:
            self.fault = StorageFault(str(error))
            outcomes = [self.fault for _ in changes]
        return self._writer.last_sequence, outcomes


def _not_written(error: OSError) -> NotSent:
    code = NOT_ENOUGH_SPACE if error.errno == errno.ENOSPC else 0
    return NotSent(f"the journal cannot be written: {error.strerror}", code)
