"""A journal in front of the embedded engine: an insert is acknowledged when it is in a file.

ClickHouse makes a part of every insert, which costs some milliseconds and is merged several times
later. So a block is appended to the journal (storage/journal_files.py), which takes microseconds,
and many blocks go into the engine together (storage/journal_drain.py). Everybody else sees the
engine's contract (storage/engine.py), with one addition: before `rows` and `execute`, the tables
that the statement reads get what the journal has for them. So a statement that starts after an
acknowledgement finds its rows.

* `read_native` does not wait. It reads ranges of the log, whose newest part the tail cache keeps
  until it is in the engine.
* `patient` is the same engine for work in the background, which can wait until rows are in the
  engine of their own accord.
* What waits is also in memory, up to `max_bytes`; beyond it, inserts wait. While the engine refuses
  rows of the journal, inserts are refused.

Nothing is lost by `kill -9`: the next start puts into the engine what is not there. A crash may
have come after rows were inserted and before the journal knew, so rows of the log are compared
with those of the table. A row of a small table may be there twice then. The broker and the views
see no difference, as these rows have versions.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from uuid import uuid4

from brokerhouse.common.counted_lines import counted
from brokerhouse.sql.queries import query
from brokerhouse.storage.data_directory import DataDirectoryError
from brokerhouse.storage.disk_reserve import NOT_ENOUGH_SPACE, DiskReserve
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import (
    EngineError,
    NativeBlock,
    NotSent,
    Parameter,
    Row,
    StorageFault,
)
from brokerhouse.storage.journal_drain import DrainLimits, DrainStream, Standstill, join_of
from brokerhouse.storage.journal_files import (
    JournalBlock,
    JournalContents,
    JournalError,
    JournalTokens,
    JournalWriter,
)
from brokerhouse.storage.journal_queue import JournalQueue
from brokerhouse.storage.journal_reading import keep_copies, read_journal, settle_names
from brokerhouse.storage.journal_recovery import Recovery
from brokerhouse.storage.journal_statements import ALL, LOG, LOG_TABLE, ROWS, streams_of
from brokerhouse.storage.merge_pace import MergePace
from brokerhouse.storage.slot_map import EMBEDDED

log = logging.getLogger(__name__)

SEGMENT_BYTES = 16 << 20
_SPACE_LASTS_S = 0.01
"""How long the disk is taken to have space after it had enough. Asking costs as much as a block."""
_FOR_DELETING = frozenset({"partition_checkpoints", "producer_states"})
"""Tables whose rows say what is deleted: to insert them releases the reserve of the disk."""
_LOOK_AGAIN_S = 0.005
"""How often room is looked for while everything that takes it is on its way to the file."""
_FILES_PER_LIMIT = 2
"""Limit of the files' size, as a multiple of `max_bytes`. Files hold entries of both streams, so a
stream that drains slowly also keeps the other one's."""


@dataclass(frozen=True, slots=True)
class JournalLimits:
    """`max_bytes`: of blocks that are not in the engine. The others: when they go there."""

    max_bytes: int
    drain: DrainLimits
    drain_small_tables: DrainLimits | None = None  # None: as the log


class _Rounds:
    """`RoundLog` of the streams."""

    def __init__(
        self, queue: JournalQueue, writer: JournalWriter, files_max_bytes: int, pace: MergePace
    ) -> None:
        self.streams: list[DrainStream] = []
        self._pace = pace
        self._queue = queue
        self._writer = writer
        self._files_max_bytes = files_max_bytes

    async def begin_round(self, stream: int, first: int, last: int) -> None:
        await self._queue.run(lambda: self._writer.begin_round(stream, first, last))

    async def end_round(self, stream: int) -> None:
        await self._queue.run(lambda: self._writer.end_round(stream))

    def large_round(self, stream: int) -> None:
        if stream == LOG:
            self._pace.large_round()

    @property
    def may_recycle(self) -> bool:
        return self._writer.may_recycle(self._needed_from())

    async def recycle(self) -> None:
        """Where the disk refuses it, the files stay until the next round."""
        needed_from = self._needed_from()
        try:
            await self._queue.run(lambda: self._writer.recycle(needed_from))
        except NotSent as error:
            log.warning("cannot reuse files of the journal yet: %s", error, extra=counted())
        if self._writer.file_bytes > self._files_max_bytes // 2:
            for stream in self.streams:  # the one that drains less often keeps files of the other
                stream.hurry()

    def _needed_from(self) -> int:
        waiting = [stream.oldest for stream in self.streams if stream.oldest is not None]
        return min([*waiting, self._queue.last_written + 1])


class _Room:
    """For blocks that are not in the engine. Those that wait for it are served in order."""

    def __init__(self, streams: Sequence[DrainStream], max_bytes: int) -> None:
        self._streams = streams
        self._max_bytes = max_bytes
        self._in_flight_bytes = 0  # on their way into a stream
        self._full: deque[asyncio.Future[None]] = deque()
        """Appends that wait, in order."""

    def is_there(self, size: int) -> bool:
        """Whether a block of this size need not wait."""
        return not self._full and self._has(size)

    @asynccontextmanager
    async def taken(self, size: int) -> AsyncGenerator[None, None]:
        """Wait for room, which is taken until the block is in a stream.

        Raises `NotSent` if the engine refuses what takes the room.
        """
        if not self.is_there(size):
            await self._wait(size)
        self._in_flight_bytes += size
        try:
            yield
        finally:
            self._in_flight_bytes -= size

    def _has(self, size: int) -> bool:
        waiting = self._in_flight_bytes + sum(stream.waiting_bytes for stream in self._streams)
        return waiting == 0 or waiting + size <= self._max_bytes

    async def _wait(self, size: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._full.append(turn)
        try:
            if len(self._full) > 1:
                await turn
            while not self._has(size):
                await self._wait_for_some()
        finally:
            self._full.popleft()
            if self._full:
                self._full[0].set_result(None)

    async def _wait_for_some(self) -> None:
        fullest = max(self._streams, key=lambda stream: stream.waiting_bytes)
        if fullest.oldest is None:  # all is in flight to the file
            await asyncio.sleep(_LOOK_AGAIN_S)
            return
        try:
            await fullest.reached(fullest.oldest, at_once=True)
        except EngineError as error:
            raise NotSent(str(error), error.code) from error


@dataclass(slots=True)
class _Append:
    """A block on its way into the journal; `write` and `written` as in `JournalQueue`.

    `build`: returns the block, or no bytes if it has no rows.
    """

    stream: DrainStream
    table: str
    columns: str
    block: bytes
    token: str
    writer: JournalWriter
    tokens: JournalTokens
    build: Callable[[], bytes] | None = None

    def write(self) -> int:
        """The number of the entry; 0 if there is none."""
        if self.build is not None:
            self.block = self.build()
            if not self.block:
                return 0
        return self.writer.append_block(
            self.stream.number, self.table, self.columns, self.token, self.block
        )

    def written(self, sequence: int) -> None:
        if not sequence:
            return
        self.tokens.journaled.add(self.table, self.token)
        self.stream.add(
            JournalBlock(
                sequence, self.stream.number, self.table, self.columns, self.token, self.block
            )
        )


class _Admission:
    """Says whether the journal takes a block at the moment."""

    def __init__(self, writer: JournalWriter, reserve: DiskReserve, files_max_bytes: int) -> None:
        self._writer = writer
        self._reserve = reserve
        self._files_max_bytes = files_max_bytes
        self._space_until_s = 0.0

    def check(self, append: _Append) -> None:
        """Raises `NotSent` or `StorageFault` if it does not take this one."""
        if append.table not in _FOR_DELETING:
            self.check_stream(append.stream)
        elif isinstance(append.stream.refusal, StorageFault):
            raise append.stream.refusal

    def check_stream(self, stream: DrainStream) -> None:
        """As `check`, for any block that deletes nothing."""
        refusal = stream.refusal
        if isinstance(refusal, StorageFault):
            raise refusal
        if refusal is not None:
            if refusal.code == NOT_ENOUGH_SPACE:
                raise self._reserve.is_full()
            raise NotSent(str(refusal), refusal.code)
        if self._writer.file_bytes > self._files_max_bytes:
            # One stream is refused, and its blocks keep the files of the other one.
            raise NotSent(
                "the journal is full, because ClickHouse refuses rows of another table; the log of"
                " the broker says which and why"
            )
        now_s = time.monotonic()
        if now_s >= self._space_until_s:
            self._reserve.check()
            self._space_until_s = now_s + _SPACE_LASTS_S


class JournaledEngine:
    """`storage.engine.BuildingEngine`: the embedded engine behind its journal.

    It is also the only shard of a single broker: always there, and nobody else writes to it.
    """

    name = EMBEDDED
    away = False
    failures_ms: Mapping[str, int] = {}

    def __init__(
        self, embedded: EmbeddedEngine, writer: JournalWriter, limits: JournalLimits, *, fsync: bool
    ) -> None:
        """`embedded` has a lane for each stream. `open_journal` makes one of these."""
        self.embedded = embedded
        self.patient = PatientEngine(self)
        self.failed_views = embedded.failed_views
        self.handle = embedded.handle
        """Call `drained` before statements that read tables."""
        self._limits = limits
        self.writer = writer
        self._queue = JournalQueue(writer, durable=fsync)
        files_max_bytes = _FILES_PER_LIMIT * limits.max_bytes + 4 * SEGMENT_BYTES
        self._admission = _Admission(writer, embedded.reserve, files_max_bytes)
        self._pace = MergePace(embedded)
        self._rounds = _Rounds(self._queue, writer, files_max_bytes, self._pace)
        # Not the journal's id: its numbers may come again, after an older copy was restored.
        identity = str(uuid4())
        small_tables = limits.drain_small_tables or limits.drain
        # A part of the log that is full of deleted records must fit into the reserve.
        self._log_limits = limits.drain.at_most(embedded.reserve.part_max_bytes)
        self.recovery = Recovery(embedded)
        found = self.recovery
        self.streams = [
            DrainStream(LOG, embedded, self._rounds, self._log_limits, identity, found),
            DrainStream(ROWS, embedded, self._rounds, small_tables, identity, found),
        ]
        self._rounds.streams = self.streams
        self.standstill = Standstill(self.streams)
        self._one_by_one: frozenset[str] = frozenset()
        self._in_flight: dict[tuple[str, str], asyncio.Task[None]] = {}
        """Blocks that are being appended, by table and token."""
        self._room = _Room(self.streams, limits.max_bytes)
        self._tokens = JournalTokens()
        self._announced: Counter[tuple[str, str]] = Counter()
        """Tokens that are being written by `note_direct`, by table and token."""

    # --- start and stop

    async def recover(self, contents: JournalContents, *, skipped_damage: bool = False) -> None:
        """Put what the files hold into the engine. Before anything else; raises `EngineError`.

        On a full disk some of it may stay in the journal. `skipped_damage`: the files may be
        damaged, and are not read again.
        """
        self._tokens = contents.tokens.copy()  # these are the writer's, which has a thread
        for stream in self.streams:
            found = [one for one in contents.blocks if one.stream == stream.number]
            if found:
                log.info("inserting %d blocks of the journal into their tables", len(found))
            stream.start(contents.last_sequence, found)
        for stream in reversed(self.streams):  # small tables need little space, and a start all
            await self.recovery.drain(stream)
        blocks = [one for one in contents.blocks if one.stream == LOG]
        await self.recovery.keep_readable(self.streams, blocks, self._log_limits)
        if skipped_damage:
            with suppress(NotSent):  # then the next start finds the damage again
                await self._queue.run(self.writer.begin_anew)
        await self._rounds.recycle()
        await self._pace.recover()
        constrained = await self.embedded.rows(
            query("tables_with_constraint"), {"database": self.embedded.database}
        )
        self._one_by_one = frozenset(name for (name,) in constrained)

    async def close(self) -> None:
        """Put everything into the engine, and close both."""
        for stream in self.streams:
            await stream.close()
        await self.close_files()
        await self.embedded.close()

    async def close_files(self) -> None:
        """Close the journal alone; what waits stays in it."""
        await self.recovery.close()
        for stream in self.streams:
            await stream.stop()
        await self._pace.close()
        await self._queue.close()

    # --- inserts

    async def insert_block(
        self, lane: int, table: str, columns: str, block: bytes, token: str
    ) -> None:
        """Append the block to the journal. `lane` has no meaning here.

        A table that had a constraint at the start may refuse rows, so it gets each block itself.
        Raises `InsertRejected`, and `StorageFault`, after which only a restart helps.
        """
        if table in _FOR_DELETING:
            self.embedded.reserve.release()
        if table in self._one_by_one:
            number = LOG if table == LOG_TABLE else ROWS
            await self.embedded.insert_blocks(
                number, table, columns, [block], token, join_of(block)
            )
            return
        await self.append_block(table, columns, block, token)

    async def insert_built(
        self, table: str, columns: str, build: Callable[[], bytes], size: int, token: str
    ) -> bool:
        """See `BuildingEngine`. False also while others wait for room."""
        if table in self._one_by_one or not self._room.is_there(size):
            return False
        if (table, token) in self._in_flight or self._tokens.journaled.has(table, token):
            return False
        append = _Append(
            self._stream_of(table), table, columns, b"", token, self.writer, self._tokens, build
        )
        await asyncio.shield(self._begun(append, size))
        return True

    async def append_block(self, table: str, columns: str, block: bytes, token: str) -> None:
        """As `insert_block`, for a table that cannot refuse the block."""
        if self._tokens.journaled.has(table, token):
            return
        task = self._in_flight.get((table, token))
        if task is None:
            stream = self._stream_of(table)
            append = _Append(stream, table, columns, block, token, self.writer, self._tokens)
            if self._room.is_there(len(block)) and self._queue.is_free(len(block)):
                self._admission.check(append)
                self._queue.run_now(append.write, append.written)
                return
            task = self._begun(append, len(block))
        await asyncio.shield(task)

    async def knows(self, table: str, token: str) -> bool:
        """Whether a block with this token is in the journal, or was. Raises as `insert_block`.

        Waits for one that is being appended.
        """
        task = self._in_flight.get((table, token))
        if task is not None:
            await asyncio.shield(task)
        return self._tokens.journaled.has(table, token)

    def is_direct(self, table: str, token: str) -> bool:
        """Whether a block with this token was, or is being, announced by `note_direct`."""
        return (table, token) in self._announced or self._tokens.direct.has(table, token)

    async def note_direct(self, table: str, token: str) -> None:
        """Remember that the caller will send the block with this token to the engine by itself.

        Raises as `insert_block`.
        """
        if self._tokens.direct.has(table, token):
            return
        self._announced[table, token] += 1  # at once: nobody may append it meanwhile
        try:
            await self._queue.run(
                lambda: self.writer.note_direct(table, token),
                lambda _: self._tokens.direct.add(table, token),
            )
        finally:
            self._announced[table, token] -= 1
            self._announced += Counter()  # without those that are 0
        if self._rounds.may_recycle:  # perhaps there is never a round
            await self._rounds.recycle()

    async def appended_all(self) -> None:
        """Wait until no block is being appended."""
        while self._in_flight:
            await asyncio.wait(self._in_flight.values())

    def _stream_of(self, table: str) -> DrainStream:
        return self.streams[LOG if table == LOG_TABLE else ROWS]

    def _begun(self, append: _Append, size: int) -> asyncio.Task[None]:
        """It goes on if nobody waits for it any more. `size`: of the block, or about that."""
        place = append.table, append.token
        task = asyncio.create_task(self._append_in_turn(append, size))
        self._in_flight[place] = task
        task.add_done_callback(lambda _: self._in_flight.pop(place))
        return task

    async def _append_in_turn(self, append: _Append, size: int) -> None:
        """Append when there is room, after those that wait already."""
        async with self._room.taken(size):
            self._admission.check(append)
            await self._queue.run(append.write, append.written, size)

    def expect_foreign_writes(self) -> None:
        """Nobody else writes here."""

    def refused_records(self) -> str | None:
        """Why records are refused at the moment; None if they are not."""
        try:
            self._admission.check_stream(self.streams[LOG])
        except (EngineError, StorageFault) as error:
            return str(error)
        return None

    # --- statements

    async def drained(self, streams: Collection[int] = ALL, *, at_once: bool = True) -> None:
        """Wait until the engine has what these streams hold now.

        `at_once`: put it there now. Otherwise it may take as long as a block may wait. Raises
        `EngineError` if the engine refuses the rows.
        """
        for stream in (self.streams[number] for number in streams):
            if stream.waits:
                await stream.reached(stream.appended, at_once=at_once)

    async def drained_for(self, sql: str, *, at_once: bool) -> None:
        """As `drained`, for the tables that a statement of the broker names."""
        if not self.is_empty:
            await self.drained(streams_of(sql), at_once=at_once)

    @property
    def is_empty(self) -> bool:
        """Whether the engine has everything that was appended."""
        return not any(stream.waits for stream in self.streams)

    @property
    def appended(self) -> int:
        """The last block of the log, as a number that only grows."""
        return self.streams[LOG].appended

    @property
    def in_engine(self) -> int:
        """The last block of the log that is in the engine, with all before it."""
        return self.streams[LOG].drained

    @property
    def read_nice(self) -> int:
        return self.embedded.read_nice

    def read_native(
        self, sql: str, params: Mapping[str, Parameter], chunk_bytes: int
    ) -> AsyncGenerator[NativeBlock, None]:
        """Without what is only in the journal."""
        return self.embedded.read_native(sql, params, chunk_bytes)

    async def rows(self, sql: str, params: Mapping[str, Parameter] | None = None) -> list[Row]:
        try:
            await self.drained_for(sql, at_once=True)
        except EngineError:
            unplaced = self.recovery.unplaced
            with_all = None if unplaced is None else unplaced.with_all(sql)
            if with_all is None:
                raise
            sql = with_all
        return await self.embedded.rows(sql, params)

    async def execute(self, sql: str, params: Mapping[str, Parameter] | None = None) -> None:
        await self.drained_for(sql, at_once=True)
        await self.standstill.over()
        await self.embedded.execute(sql, params)


class PatientEngine:
    """`Engine` for work in the background: its statements do not make the journal drain earlier."""

    def __init__(self, journaled: JournaledEngine) -> None:
        self._journaled = journaled

    async def insert_block(
        self, lane: int, table: str, columns: str, block: bytes, token: str
    ) -> None:
        await self._journaled.insert_block(lane, table, columns, block, token)

    def read_native(
        self, sql: str, params: Mapping[str, Parameter], chunk_bytes: int
    ) -> AsyncGenerator[NativeBlock, None]:
        return self._journaled.read_native(sql, params, chunk_bytes)

    async def rows(self, sql: str, params: Mapping[str, Parameter] | None = None) -> list[Row]:
        await self._journaled.drained_for(sql, at_once=False)
        return await self._journaled.embedded.rows(sql, params)

    async def execute(self, sql: str, params: Mapping[str, Parameter] | None = None) -> None:
        await self._journaled.drained_for(sql, at_once=False)
        await self._journaled.standstill.over()
        await self._journaled.embedded.execute(sql, params)

    async def settled(self) -> None:
        """Wait until the tables have what was acknowledged before. Raises `EngineError`."""
        await self._journaled.drained(at_once=False)

    async def close(self) -> None:
        """The journal is closed by its owner."""


async def open_journal(
    embedded: EmbeddedEngine,
    limits: JournalLimits,
    *,
    fsync: bool,
    skip_damage: bool = False,
    segment_bytes: int = SEGMENT_BYTES,
) -> JournaledEngine:
    """The engine behind its journal; what the files hold is in the engine then.

    Raises `DataDirectoryError` if the files are damaged (and not `skip_damage`) or cannot be used,
    or if the engine refuses what they hold.
    """
    directory = embedded.data_dir / "journal"

    def files() -> tuple[JournalContents, JournalWriter]:
        directory.mkdir(exist_ok=True)
        contents = read_journal(directory, skip_damage=skip_damage)
        if skip_damage:
            keep_copies(directory)
        settle_names(directory, contents)
        return contents, JournalWriter(directory, segment_bytes, contents, durable=fsync)

    try:
        contents, writer = await asyncio.to_thread(files)
    except JournalError as error:
        raise DataDirectoryError(str(error)) from error
    except OSError as error:
        raise DataDirectoryError(
            f"the journal in {directory} cannot be written: {error.strerror}"
        ) from error
    engine = JournaledEngine(embedded, writer, limits, fsync=fsync)
    try:
        await engine.recover(contents, skipped_damage=skip_damage)
    except EngineError as error:
        await engine.close_files()
        raise DataDirectoryError(
            f"acknowledged rows in {directory} cannot be put into their tables; they stay there"
            f" until a start succeeds: {error}"
        ) from error
    except BaseException:
        await engine.close_files()
        raise
    return engine
