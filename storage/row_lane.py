"""Group commit for the small tables: what waits while a block is stored becomes the next one.

A call of `store` gives rows of one table or of several, which are inserted in the order given: a
reader may find the first table's without the second's, never the other way round. All calls that
wait go in one round, with one block per table. A block that is refused fails the calls that have
rows in it, and nothing more of those calls is inserted; the others of the round do not notice.

An insert whose outcome is unknown is repeated with its token until it is known.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from storage.blocks import Table, block
from storage.engine import Engine, EngineError, InsertOutcomeUnknown, StorageFault

log = logging.getLogger(__name__)

_ROWS_MAX = 8192
"""A round takes no further call once it has this many rows: to encode them takes the loop 16 ms."""
_GATHER_PER_CALL_S = 0.002
_GATHER_MAX_S = 0.02
"""How long after a round the next one gathers: the longer, the more came together in the last. A
round costs the engine 4 ms and its merges as much again, whether it has 10 rows or 100 (measured:
1,000 commits of 10 rows a second take 0.6 of a core like this, and 1.1 without). Who is alone
hardly waits."""
_RETRY_FIRST_S = 0.05
_RETRY_MAX_S = 5.0


class PartlyStored(EngineError):
    """The first tables of the call are stored, the others are not."""


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows for one table, each with a value for every column of it."""

    table: Table
    rows: Sequence[Sequence[Any]]


@dataclass(slots=True)
class _Call:
    writes: tuple[TableRows, ...]
    done: asyncio.Future[None]
    stored_tables: int = 0


class RowLane:
    """Inserts through one lane of the engine."""

    def __init__(
        self, engine: Engine, lane: int, instance: UUID, lease: Callable[[], bool] | None = None
    ) -> None:
        """`instance` is unique to this start of the process; it makes insert tokens unique.

        `lease`: whether this broker may still write; asked before every attempt.
        """
        self._engine = engine
        self._lane = lane
        self._identity = f"{instance}-rows"
        self._lease = lease
        self._block_number = 0
        self._queue: deque[_Call] = deque()
        self._wake = asyncio.Event()
        self._closing = asyncio.Event()
        self._refusal: str | None = None
        self._damaged = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="row-lane")

    @property
    def background(self) -> Collection[asyncio.Task[None]]:
        """Tasks that end before `close` only by a defect."""
        return () if self._task is None else (self._task,)

    async def store(self, *writes: TableRows) -> None:
        """Returns when all rows are stored. Raises `EngineError`: nothing is, or `PartlyStored`.

        A table comes once in a call.

        Rows of a caller that is cancelled are stored all the same.
        """
        await asyncio.shield(self.put(*writes))

    def put(self, *writes: TableRows) -> asyncio.Future[None]:
        """As `store`, for those who must know the outcome even if their own caller leaves.

        Calls end in the order in which they were made, unless they fail.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        filled = tuple(write for write in writes if write.rows)
        if self._refusal is not None:
            done.set_exception(EngineError(self._refusal))
        else:
            self._queue.append(_Call(filled, done))
            self._wake.set()
        return done

    async def close(self) -> None:
        """Store what is queued, then stop."""
        self._refusal = self._refusal or "the broker is shutting down"
        self._closing.set()
        self._wake.set()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        gather_until = loop.time()
        while True:
            await self._wake.wait()
            if self._damaged:
                self._refuse_all()
            if not self._queue:
                if self._closing.is_set():
                    return
                self._wake.clear()
                continue
            await self._gather(gather_until - loop.time())
            calls, tables = self._take()
            for table in tables:
                await self._store(table, calls)
            for call in calls:
                if not call.done.done():
                    call.done.set_result(None)
            gather_until = loop.time() + min(_GATHER_PER_CALL_S * len(calls), _GATHER_MAX_S)

    async def _gather(self, seconds: float) -> None:
        if seconds <= 0 or self._closing.is_set():
            return
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return

    def _take(self) -> tuple[list[_Call], list[Table]]:
        """The calls of a round, and the order of their tables that suits them all."""
        calls: list[_Call] = []
        order: dict[Table, int] = {}
        rows = 0
        while self._queue and rows < _ROWS_MAX:
            call = self._queue[0]
            places = [order.get(write.table, len(order)) for write in call.writes]
            if places != sorted(places):
                break
            for write in call.writes:
                order.setdefault(write.table, len(order))
                rows += len(write.rows)
            calls.append(self._queue.popleft())
        return calls, list(order)

    async def _store(self, table: Table, calls: Iterable[_Call]) -> None:
        here = [
            (call, write)
            for call in calls
            if not call.done.done()
            for write in call.writes
            if write.table is table
        ]
        if not here:
            return
        try:
            if self._damaged:
                raise EngineError(str(self._refusal))
            await self._insert(table, [row for _, write in here for row in write.rows])
        except EngineError as error:
            log.error("rows of %s refused: %s", table.name, error)
            _fail(here, str(error), error.code)
        except Exception as error:
            # A defect of those who made the rows, or a disk that may have lost a write.
            log.exception("rows of %s cannot be stored", table.name)
            if isinstance(error, StorageFault):
                self._damaged, self._refusal = True, str(error)
            _fail(here, f"rows of {table.name} cannot be stored; see the broker's log", 0)
        else:
            for call, _ in here:
                call.stored_tables += 1

    async def _insert(self, table: Table, rows: list[Sequence[Any]]) -> None:
        """Insert until the outcome is known. Raises `EngineError` when nothing is stored."""
        data = block(table, rows)
        self._block_number += 1
        token = f"{self._identity}-{self._block_number}"
        delay = _RETRY_FIRST_S
        while True:
            if self._lease is not None and not self._lease():
                raise EngineError("the lease of this broker is over")
            try:
                await self._engine.insert_block(
                    self._lane, table.name, table.column_list, data, token
                )
                return
            except InsertOutcomeUnknown as error:
                log.warning("outcome of block %s unknown, again in %.2f s: %s", token, delay, error)
                await asyncio.sleep(delay)
                delay = min(delay * 2, _RETRY_MAX_S)

    def _refuse_all(self) -> None:
        while self._queue:
            self._queue.popleft().done.set_exception(EngineError(str(self._refusal)))


def _fail(writes: Iterable[tuple[_Call, TableRows]], reason: str, code: int) -> None:
    for call, _ in writes:
        kind = PartlyStored if call.stored_tables else EngineError
        if not call.done.done():
            call.done.set_exception(kind(reason, code))
