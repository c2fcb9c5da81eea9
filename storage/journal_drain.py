"""Puts the blocks of the journal into the engine: many small ones become one large insert.

A stream is a sequence of blocks that go into the engine in the order in which they were appended:
the log is one, all small tables together are another. Of the small tables, those in `_FIRST` get
their rows before the others of a round, as the calls that write several tables promise
(storage/row_lane.py).

A round is what goes in together: the first blocks of a stream up to a number of bytes and rows. It
begins when so much is waiting, when the oldest block has waited for long enough, or when somebody
asks for the rows. A round that the engine refuses is repeated until it succeeds; meanwhile the
journal takes no further block (`refusal`), so that producers are told. Where a disk has no space
for a round it may have for half of it, so the next attempt is a smaller round.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Protocol

from brokerhouse.common.tasks import Backoff, cancel, event_within
from brokerhouse.common.timings import Timings
from brokerhouse.protocol._packed_blocks import join_packed_into
from brokerhouse.protocol.columns import COLUMN_LIST
from brokerhouse.protocol.packed_blocks import is_packed, native_bytes
from brokerhouse.storage.block_file import Join
from brokerhouse.storage.disk_reserve import NOT_ENOUGH_SPACE
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import EngineError, StorageFault
from brokerhouse.storage.journal_files import JournalBlock

log = logging.getLogger(__name__)

_FIRST = ("group_member_versions", "aborted_transactions")
"""Tables that get their rows first."""
_LARGE = 4
"""A round is large from this part of what goes into one: several MB, also by its age alone."""
_SMALLEST = 6
"""How often a round is halved for lack of space."""
_RETRY_FIRST_S = 0.1
_RETRY_MAX_S = 5.0


class RoundLog(Protocol):
    """Where it is noted which round has begun and which has ended."""

    async def begin_round(self, stream: int, first: int, last: int) -> None: ...

    async def end_round(self, stream: int) -> None: ...

    async def recycle(self) -> None:
        """Blocks were put into the engine: their files may not be needed any more."""

    def large_round(self, stream: int) -> None:
        """The round that has ended was so large that more such rounds may follow at once."""


@dataclass(frozen=True, slots=True)
class DrainLimits:
    """When a round begins, and how much goes into it. A single block may be larger."""

    max_bytes: int
    max_rows: int
    max_age_ms: int
    """Of the block that waits longest."""

    def split(self, blocks: Iterable[JournalBlock]) -> Iterator[list[JournalBlock]]:
        """Blocks that go in together, at least one each time."""
        some: list[JournalBlock] = []
        size = rows = 0
        for block in blocks:
            some.append(block)
            size += insert_bytes(block.data)
            rows += row_count(block.data)
            if size >= self.max_bytes or rows >= self.max_rows:
                yield some
                some, size, rows = [], 0, 0
        if some:
            yield some

    def at_most(self, max_bytes: int | None) -> DrainLimits:
        """As these, and a round has no more than `max_bytes`."""
        return (
            self if max_bytes is None else replace(self, max_bytes=min(self.max_bytes, max_bytes))
        )

    def halved(self, times: int) -> DrainLimits:
        return replace(self, max_bytes=self.max_bytes >> times, max_rows=self.max_rows >> times)

    def is_large(self, blocks: Iterable[JournalBlock]) -> bool:
        """Whether a round has a quarter of what goes into one."""
        size = rows = 0
        for block in blocks:
            size += insert_bytes(block.data)
            rows += row_count(block.data)
        return size * _LARGE >= self.max_bytes or rows * _LARGE >= self.max_rows


@dataclass(frozen=True, slots=True)
class TableInsert:
    """Blocks of one table that become one insert. `join`: as in `EmbeddedEngine.insert_blocks`."""

    table: str
    columns: str
    blocks: tuple[bytes, ...]
    join: Join | None


class FoundInserts(Protocol):
    """Inserts blocks that the last run has left (storage/journal_recovery.py)."""

    async def check_space(self, stream: int, blocks: Collection[JournalBlock]) -> None:
        """Raises `EngineError` if the disk has no space for a round."""

    async def insert(self, stream: int, insert: TableInsert) -> None:
        """Insert what is missing of these blocks. It may be repeated. Raises `EngineError`."""


class DrainStream:
    """One stream: its blocks that are not in the engine, and the task that puts them there."""

    def __init__(
        self,
        number: int,
        engine: EmbeddedEngine,
        rounds: RoundLog,
        limits: DrainLimits,
        identity: str,
        found: FoundInserts,
    ) -> None:
        """`identity` makes the tokens of inserts unique; `found` inserts blocks of the last run."""
        self.number = number
        self.appended = 0
        """The last block of the stream, by its sequence number."""
        self.drained = 0
        """All blocks up to this one are in the engine."""
        self.waiting_bytes = 0
        """In memory."""
        self.waiting_rows = 0
        self.rounds = Timings()
        """How long each round took until the engine had it."""
        self.drained_rows = 0
        self.refusal: EngineError | StorageFault | None = None
        self._engine = engine
        self._rounds = rounds
        self._limits = limits
        self._identity = identity
        self._found = found
        self.found_until = 0
        """Blocks up to this one are of the last run."""
        self._waiting: deque[JournalBlock] = deque()
        self._waiting_insert_bytes = 0
        self._oldest_s = 0.0
        self._wanted = 0
        self._attempts = 0
        self._failed_attempt = 0
        """The last one that failed."""
        self._halvings = 0
        self._due = asyncio.Event()
        self._retry = asyncio.Event()
        self._filled = asyncio.Event()
        self._closing = False
        self._callers: set[asyncio.Future[None]] = set()
        self._last_allowed: int | None = None
        """While the stream is held: later blocks stay in the journal."""
        self._released = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, last: int, found: Sequence[JournalBlock] = ()) -> None:
        """All blocks up to `last` are in the engine, but for those that the last run has left."""
        self.appended = self.drained = last
        if found:
            self.appended = self.drained = found[0].sequence - 1
            self.found_until = found[-1].sequence
            for block in found:
                self.add(block)
        self._task = asyncio.create_task(self._run(), name=f"journal-drain-{self.number}")

    @property
    def oldest_age_s(self) -> float:
        """How long the oldest block has waited; 0 where none waits."""
        if not self._waiting:
            return 0.0
        return asyncio.get_running_loop().time() - self._oldest_s

    @property
    def waits(self) -> bool:
        """Whether a block is not in the engine yet."""
        return bool(self._waiting)

    @property
    def oldest(self) -> int | None:
        """The sequence number of the first block that is not in the engine."""
        return self._waiting[0].sequence if self._waiting else None

    def add(self, block: JournalBlock) -> None:
        """The block was appended to the journal."""
        assert block.sequence > self.appended, "blocks are added in the order of the journal"
        if not self._waiting:
            self._oldest_s = asyncio.get_running_loop().time()
            self._filled.set()
        self._waiting.append(block)
        self.waiting_rows += row_count(block.data)
        self.waiting_bytes += len(block.data)
        self._waiting_insert_bytes += insert_bytes(block.data)
        self.appended = block.sequence
        if self._is_enough():
            self._due.set()

    async def reached(self, sequence: int, *, at_once: bool) -> None:
        """Wait until all blocks up to this one are in the engine.

        `at_once`: do not wait for more blocks. Raises `EngineError` if the engine refuses them in
        an attempt that begins from now on.
        """
        attempts = self._attempts  # what made the last of them fail may be over
        if at_once:
            self._begin_up_to(sequence)
        while self.drained < sequence:
            # A journal that closes tries nothing again.
            is_final = isinstance(self.refusal, StorageFault) or (self._closing and self.refusal)
            if is_final or self._failed_attempt > attempts:
                raise EngineError(
                    f"acknowledged rows cannot be put into the table: {self.refusal}",
                    getattr(self.refusal, "code", 0),
                )
            if at_once:
                self._retry.set()
            caller: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._callers.add(caller)
            try:
                await caller
            finally:
                self._callers.discard(caller)

    def hurry(self) -> None:
        """What waits now goes into the engine without waiting for more."""
        self._begin_up_to(self.appended)

    def hold(self) -> int:
        """From now on only what is appended already goes into the engine; returns its last block.

        Nobody else holds the stream.
        """
        self._last_allowed = self.appended
        self._released.clear()
        return self.appended

    def release(self) -> None:
        self._last_allowed = None
        self._released.set()

    def _begin_up_to(self, sequence: int) -> None:
        self._wanted = max(self._wanted, sequence)
        self._due.set()

    async def stop(self) -> None:
        """Leave what waits in the journal."""
        await cancel(self._task)

    async def close(self) -> None:
        """Put everything that waits into the engine, unless it refuses."""
        self._closing = True
        self.release()
        self._due.set()
        self._retry.set()
        self._filled.set()
        if self._task is not None:
            await self._task

    # --- the loop

    async def _run(self) -> None:
        while True:
            await self._filled.wait()
            if not self._waiting:
                if self._closing:
                    return
                self._filled.clear()
                continue
            await self._until_due()
            allowed = self._allowed()
            if not allowed:
                await self._released.wait()
                continue
            blocks = next(self._limits.halved(self._halvings).split(self._alike(allowed)))
            try:
                with self.rounds.timed():
                    is_drained = await self._drain(blocks)
                if not is_drained:
                    if self._closing:
                        return
                    continue
                self._halvings = max(self._halvings - 1, 0)
                self._forget(blocks)
                if self._limits.is_large(blocks):
                    self._rounds.large_round(self.number)
                await self._rounds.recycle()
            except Exception as error:
                # A bug, or a disk that may have lost a write. What waits is put into the engine at
                # the next start.
                log.exception("bug: the journal is no longer drained: restart the broker")
                self.refusal = StorageFault(f"the journal is not drained any more: {error}")
                self._wake_callers()
                return

    def _allowed(self) -> Sequence[JournalBlock]:
        """The blocks that may go into the engine now, in order."""
        last = self._last_allowed
        if last is None:
            return self._waiting
        return [block for block in self._waiting if block.sequence <= last]

    def _alike(self, blocks: Sequence[JournalBlock]) -> Sequence[JournalBlock]:
        """The first of them: all of the last run, or none."""
        if not self.has_found:
            return blocks
        return [block for block in blocks if block.sequence <= self.found_until]

    @property
    def has_found(self) -> bool:
        """Whether blocks of the last run wait."""
        return self.drained < self.found_until

    async def _until_due(self) -> None:
        self._due.clear()
        age_s = asyncio.get_running_loop().time() - self._oldest_s
        wait_s = self._limits.max_age_ms / 1000 - age_s
        if wait_s <= 0 or self._is_due():
            return
        await event_within(self._due, wait_s)

    def _is_due(self) -> bool:
        return self._closing or self._wanted > self.drained or self._is_enough()

    def _is_enough(self) -> bool:
        """Whether a whole round waits."""
        return (
            self._waiting_insert_bytes >= self._limits.max_bytes
            or self.waiting_rows >= self._limits.max_rows
        )

    async def _drain(self, blocks: Sequence[JournalBlock]) -> bool:
        """Insert a round, however often the engine refuses it.

        False: nothing of it is stored, because the journal is closed, or to try a smaller one.
        """
        first, last = blocks[0].sequence, blocks[-1].sequence
        backoff = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S)
        steps: list[Callable[[], Awaitable[None]]] = [
            lambda: self._rounds.begin_round(self.number, first, last),
            *(
                partial(self._insert, one, f"{self._identity}-{self.number}-{last}-{number}")
                for number, one in enumerate(inserts_of(blocks))
            ),
            lambda: self._rounds.end_round(self.number),
        ]
        steps_with_rows = len(steps) - 1
        if self.has_found:  # an entry needs space, too
            steps.insert(0, partial(self._found.check_space, self.number, blocks))
        while steps:
            self._attempts += 1
            try:
                await steps[0]()
            except EngineError as error:
                self.refusal = error
                self._failed_attempt = self._attempts
                self._retry.clear()
                self._wake_callers()
                if self._closing:
                    log.error("rows stay in the journal until the next start: %s", error)
                    return False
                pause_s = backoff.after(error, log, "rows stay in the journal")
                await event_within(self._retry, pause_s)
                if self._may_halve(error, blocks) and len(steps) >= steps_with_rows:
                    self._halvings += 1
                    return False
            else:
                self.refusal = None
                steps.pop(0)
        return True

    async def _insert(self, one: TableInsert, token: str) -> None:
        if self.has_found:
            await self._found.insert(self.number, one)
            return
        await self._engine.insert_blocks(
            self.number, one.table, one.columns, one.blocks, token, one.join
        )

    def _may_halve(self, error: EngineError, blocks: Sequence[JournalBlock]) -> bool:
        return error.code == NOT_ENOUGH_SPACE and len(blocks) > 1 and self._halvings < _SMALLEST

    def _forget(self, blocks: Iterable[JournalBlock]) -> None:
        """These blocks are in the engine."""
        for block in blocks:
            self._waiting.popleft()
            rows = row_count(block.data)
            self.waiting_rows -= rows
            self.drained_rows += rows
            self.waiting_bytes -= len(block.data)
            self._waiting_insert_bytes -= insert_bytes(block.data)
            self.drained = block.sequence
        self._oldest_s = asyncio.get_running_loop().time()
        self._wake_callers()

    def _wake_callers(self) -> None:
        for caller in self._callers:
            if not caller.done():
                caller.set_result(None)


class Standstill:
    """A moment at which the tables stand still, with all that was acknowledged before it.

    What comes later waits in the journal and is acknowledged as ever. So a copy of the tables that
    is made meanwhile is what a `kill -9` at that moment would have left, in all tables alike.
    """

    def __init__(self, streams: Sequence[DrainStream]) -> None:
        self._streams = streams
        self._over = asyncio.Event()
        self._over.set()

    async def over(self) -> None:
        """Returns when a statement that changes tables may begin."""
        await self._over.wait()

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """The tables stand still within it. One at a time. Raises `EngineError`."""
        assert self._over.is_set(), "the tables stand still already"
        self._over.clear()
        ends = [(stream, stream.hold()) for stream in self._streams]
        try:
            for stream, end in ends:
                await stream.reached(end, at_once=True)
            yield
        finally:
            for stream in self._streams:
                stream.release()
            self._over.set()


def row_count(block: bytes) -> int:
    """The number of rows in a block, Native or packed: the second varint of it."""
    at = 0
    while block[at] & 0x80:
        at += 1
    at += 1
    rows = shift = 0
    while block[at] & 0x80:
        rows |= (block[at] & 0x7F) << shift
        shift += 7
        at += 1
    return rows | block[at] << shift


def insert_bytes(block: bytes) -> int:
    """Its size where the engine reads it."""
    return native_bytes(block) if is_packed(block) else len(block)


def join_of(block: bytes) -> Join | None:
    """How blocks like this one are joined: see `EmbeddedEngine.insert_blocks`."""
    return join_packed_into if is_packed(block) else None


def inserts_of(blocks: Iterable[JournalBlock]) -> Iterator[TableInsert]:
    """The inserts of a round, in order. The same blocks always give the same inserts."""
    tables: dict[str, list[JournalBlock]] = {}
    for block in blocks:
        tables.setdefault(block.table, []).append(block)
    for table in sorted(tables, key=lambda name: name not in _FIRST):
        for (columns, join), group in groupby(
            tables[table], key=lambda block: (block.columns, join_of(block.data))
        ):
            yield TableInsert(
                table,
                columns if join is None else COLUMN_LIST,
                tuple(block.data for block in group),
                join,
            )
