"""chDB: ClickHouse inside this process, one data directory per process.

The directory holds `LOCK` (flock, so that a second process is refused), `engine.xml` with
`engine.d/` (the engine's configuration, rendered at each start; other .xml files in `engine.d/` are
kept and merged into it), `clickhouse/` (its own files) and `definitions/` (definition_files.py).

A chDB handle runs one statement at a time and blocks its thread, with the GIL released. Each lane
of inserts has its own handle and thread, and a few more serve reads. A process with the engine must
not be forked (https://clickhouse.com/docs/chdb): child processes are started with exec.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import string
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar
from xml.sax.saxutils import escape

from brokerhouse.common.counted_lines import counted
from brokerhouse.sql.queries import query
from brokerhouse.storage._result_bytes import result_bytes
from brokerhouse.storage.backup_files import BACKUP_FOLDER
from brokerhouse.storage.block_file import BlockFile, Join
from brokerhouse.storage.chdb_library import chdb_connect
from brokerhouse.storage.data_directory import (
    DataDirectoryError,
    lock_directory,
    refuse_without_tables,
)
from brokerhouse.storage.definition_files import DefinitionError, DefinitionFiles
from brokerhouse.storage.definition_guard import DefinitionGuard, Handle
from brokerhouse.storage.disk_reserve import KEEP_FREE_BYTES, DiskReserve
from brokerhouse.storage.engine import (
    DATABASE,
    EngineError,
    FileQuery,
    InsertRejected,
    NativeBlock,
    Parameter,
    PeopleBounds,
    Row,
    parsed_rows,
)
from brokerhouse.storage.free_space import PEOPLE_KEEP_FREE_BYTES, FreeSpace
from brokerhouse.storage.parameters import literal, parameter_texts
from brokerhouse.storage.view_guard import FailedViews, ViewGuard

log = logging.getLogger(__name__)

T = TypeVar("T")

# Reads of a range of the log run in one thread, with a lower priority than inserts (measured: a
# heavy query beside inserts takes their p99 from 3 ms to 11 ms, with these settings to 4 ms). They
# read lazily, so that a reader that has enough bytes does not pay for more. 64-bit numbers in small
# results are numbers in their JSON, not strings.
_READ_SETTINGS = (
    "SET max_threads = 1, optimize_read_in_order = 1, read_in_order_use_buffering = 0,"
    " max_block_size = 8192, output_format_json_quote_64bit_integers = 0"
)
_READ_NICE = 10
# A block is one part: it is never split, never merged with another before it is written, and never
# missing a column. A materialized view that a user adds to the log must not fail an append; the
# view guard looks after those that fail.
INSERT_SETTINGS = (
    "SET max_insert_block_size = 1000000000, min_insert_block_size_rows = 0,"
    " min_insert_block_size_bytes = 0, async_insert = 0, insert_deduplicate = 1,"
    " input_format_skip_unknown_fields = 0,"
    " materialized_views_ignore_errors = 1, max_threads = 1, max_insert_threads = 1"
)
# Many blocks of the journal are one insert; each of them may be of another day.
_MERGED_BLOCK_SETTINGS = "max_partitions_per_insert_block = 0"
_ERROR_CODE = re.compile(r"Code: (\d+)\. ")
_TRANSIENT_CODES = frozenset({241, 242, 252})  # MEMORY_LIMIT, TABLE_IS_READ_ONLY, TOO_MANY_PARTS
_INSERT_ATTEMPTS = 3
_PART_MAX_BYTES = 150 << 30  # ClickHouse's default
_TO_START_BYTES = 1 << 20
"""For the engine's configuration and its own small files."""
_READERS = 8
"""More than cold reads keep open when they do not read (`OpenReads` of broker/log/reader.py)."""


@dataclass(frozen=True, slots=True)
class ClusterPlace:
    """The place of an engine in a cluster: its Keepers (host, port) and its macros."""

    keepers: Sequence[tuple[str, int]]
    shard: str
    replica: str


class EmbeddedEngine:
    """`storage.engine.Engine` on chDB."""

    def __init__(
        self,
        data_dir: Path,
        lanes: int,
        fsync: bool,
        people: PeopleBounds | None = None,
        place: ClusterPlace | None = None,
        database: str = DATABASE,
        reserve_bytes: int = 0,
    ) -> None:
        """Open or create the engine's files in `data_dir`. Raises `DataDirectoryError`.

        `people`: bounds of what people's SQL may use. `place`: None outside a cluster.
        Keeper need not answer; KeeperMap tables fail until it does. `database`: the tables of
        `insert_block` are there. `reserve_bytes`: of the disk, for deleting.
        """
        self.data_dir = data_dir
        self.database = database
        self.read_nice = _READ_NICE if _may_renice() else 0
        self._lock_fd = lock_directory(data_dir)
        try:
            self.reserve = _reserve(data_dir, reserve_bytes)
            if self.reserve.free_bytes() < _TO_START_BYTES:
                self.reserve.release("the start")
            refuse_without_tables(data_dir, DATABASE, database)
            self._connection_string = _prepare(
                data_dir,
                fsync,
                people or PeopleBounds(),
                self.read_nice,
                place,
                self.reserve.part_max_bytes,
            )
            definitions = _whole_definitions(data_dir)
            self._connect = chdb_connect()
            self._guard = DefinitionGuard(
                definitions, partial(self._connect, self._connection_string)
            )
            base = self._open(self._connection_string)
            base.query(f"CREATE DATABASE IF NOT EXISTS {DATABASE} ENGINE = Atomic", "Null")
        except BaseException:
            os.close(self._lock_fd)
            raise
        self._base = base
        self._view_guard = ViewGuard(database, _query_with)
        self.failed_views = FailedViews(
            self._view_guard, partial(self.handle, f"SET {_MERGED_BLOCK_SETTINGS}")
        )
        lane_settings = f"{INSERT_SETTINGS}, {_MERGED_BLOCK_SETTINGS}"
        self._lanes = [
            _Lane(f"insert-{n}", partial(self.handle, lane_settings)) for n in range(lanes)
        ]
        # The one used last comes first, so that a quiet broker has few threads.
        self._readers: asyncio.LifoQueue[_Worker] = asyncio.LifoQueue()
        read_settings = f"{_READ_SETTINGS}, os_thread_priority = {self.read_nice}"
        self._all_readers = [
            _Worker(f"read-{n}", partial(self.handle, read_settings)) for n in range(_READERS)
        ]
        for reader in self._all_readers:
            self._readers.put_nowait(reader)
        self._free_space = FreeSpace(data_dir, self.handle(), self.reserve)

    def handle(self, *statements: str) -> Handle:
        """A new connection to the engine, in the broker's database, with all privileges.

        It runs one statement at a time. Handles are cheap (0.15 ms, measured).
        """
        handle = self._open(self._connection_string)
        for statement in (f"USE {DATABASE}", *statements):
            handle.query(statement, "Null")
        return handle

    def session(
        self, name: str, drained: Callable[[], Awaitable[None]] | None = None
    ) -> EngineSession:
        """Statements in a thread of this name, with the priority of reads.

        `drained`: of the journal in front of this engine.
        """
        settings = f"{_READ_SETTINGS}, os_thread_priority = {self.read_nice}"
        return EngineSession(name, partial(self.handle, settings), drained or self.drained)

    def _open(self, connection_string: str) -> Handle:
        try:
            return self._guard.wrap(self._connect(connection_string))
        except (RuntimeError, ValueError) as error:
            raise DataDirectoryError(
                f"the embedded ClickHouse cannot open {self.data_dir}: {error}"
            ) from error

    async def insert_block(
        self, lane: int, table: str, columns: str, block: bytes, token: str
    ) -> None:
        await self.insert_blocks(lane, table, columns, [block], token)

    async def insert_blocks(
        self,
        lane: int,
        table: str,
        columns: str,
        blocks: Sequence[bytes],
        token: str,
        join: Join | None = None,
    ) -> None:
        """As `insert_block`, of the block that `BlockFile.fill` makes of these. Raises as both."""
        worker = self._lanes[lane]
        into = f"INSERT INTO {self.database}.{table} ({columns}) FROM INFILE '{worker.file.path}'"
        statement = f"{into} SETTINGS insert_deduplication_token = '{token}' FORMAT Native"
        fill = partial(worker.file.fill, blocks, join)
        guard = self._view_guard if table == "messages" else None
        for attempt in range(1, _INSERT_ATTEMPTS + 1):
            try:
                await worker.run(self._insert, worker, statement, fill, guard)
                return
            except EngineError as error:
                # The engine is in this process, so nothing is in flight once the call has returned:
                # the outcome is known. The same token makes the repetition safe in any case.
                if error.code not in _TRANSIENT_CODES or attempt == _INSERT_ATTEMPTS:
                    raise InsertRejected(str(error), error.code) from error
                log.warning(
                    "ClickHouse refused insert %s (attempt %d); retrying: %s",
                    token,
                    attempt,
                    error,
                    extra=counted(),
                )

    def _insert(
        self, lane: _Lane, statement: str, fill: Callable[[], None], guard: ViewGuard | None
    ) -> None:
        # Not by chDB's streaming insert: it reports malformed bytes, but returns normally when the
        # table refuses them (4.4: a full disk, a constraint). The engine reads the block from a
        # file in memory instead, at the same speed (measured: 1 row to 60,000).
        try:
            fill()
        except OSError as error:
            raise EngineError(f"cannot allocate memory for a block: {error.strerror}") from error
        with self.watched_write(lane.handle):
            if guard is None:
                _guarded(lane.handle.query, statement, "Null")
            else:
                guard.insert(lane.handle, statement, lane.file.path)

    async def drained(self) -> None:
        """Every acknowledged row is in its table: without a journal they always are."""

    @contextmanager
    def watched_write(self, handle: Handle) -> Iterator[None]:
        """Wraps an insert; blocking. Raises `StorageFault` if one of its writes may have failed."""
        failed_before = self._free_space.failed_writes(handle)
        yield
        self._free_space.check_insert(handle, failed_before)

    async def read_native(
        self, sql: str, params: Mapping[str, Parameter], chunk_bytes: int
    ) -> AsyncGenerator[NativeBlock, None]:
        reader = await self._readers.get()
        try:
            statement = f"{sql} SETTINGS preferred_block_size_bytes = {int(chunk_bytes)}"
            stream = await reader.run(
                _guarded,
                reader.handle.send_query,
                statement,
                "Native",
                params=parameter_texts(params),
            )
            handle = reader.handle
            try:
                while chunk := await reader.run(_next_chunk, handle, stream):
                    yield chunk
            finally:
                if reader.handle is handle:  # otherwise it failed, and is closed with its stream
                    await reader.run(_guarded, handle.streaming_cancel_query, stream)
        finally:
            self._readers.put_nowait(reader)

    async def rows(self, sql: str, params: Mapping[str, Parameter] | None = None) -> list[Row]:
        text = await self._run(sql, "JSONCompactEachRow", params)
        return await parsed_rows(text)

    async def execute(self, sql: str, params: Mapping[str, Parameter] | None = None) -> None:
        await self._run(sql, "Null", params)

    async def _run(self, sql: str, fmt: str, params: Mapping[str, Parameter] | None) -> bytes:
        reader = await self._readers.get()
        try:
            return await reader.run(_query, reader.handle, sql, fmt, parameter_texts(params))
        finally:
            self._readers.put_nowait(reader)

    async def damaged_parts(self) -> list[str]:
        """Paths of the parts that the engine has detached because they are damaged."""
        rows = await self.rows(query("damaged_parts"), {"database": self.database})
        return [path for (path,) in rows]

    async def close(self) -> None:
        await asyncio.to_thread(self._free_space.close)
        workers = [*self._lanes, *self._all_readers]
        for worker in workers:
            await asyncio.to_thread(worker.close)
        await asyncio.to_thread(self._base.close)
        os.close(self._lock_fd)


class _Worker:
    """A handle, and the only thread that uses it."""

    def __init__(self, name: str, open_handle: Callable[[], Handle]) -> None:
        self._open_handle = open_handle
        self.handle = open_handle()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def run(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run in the thread. A caller that is cancelled, however often, waits for the end first.

        Otherwise the next user of the handle could mix two statements, or close the handle while
        the second one runs, and chDB would wait forever.
        """
        future = asyncio.wrap_future(self._executor.submit(self._work, function, *args, **kwargs))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            while not future.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([future])
            if not future.cancelled() and (error := future.exception()) is not None:
                log.info("a statement that was cancelled failed: %s", error, extra=counted())
            raise

    def _work(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        try:
            return function(*args, **kwargs)
        except EngineError:
            # A statement that fails midway leaves rows behind in its handle. The next statement
            # would return them before its own (chDB 4.4).
            self.handle.close()
            self.handle = self._open_handle()
            raise

    def close(self) -> None:
        self._executor.shutdown(wait=True)
        self.handle.close()


class EngineSession:
    """Statements one after the other on one handle: they see the same temporary tables.

    After an `EngineError` the handle is a new one, and its temporary tables are gone.
    """

    def __init__(
        self, name: str, open_handle: Callable[[], Handle], readable: Callable[[], Awaitable[None]]
    ) -> None:
        """`readable` returns when acknowledged records are rows."""
        self._worker = _Worker(name, open_handle)
        self._readable = readable

    async def readable(self) -> None:
        await self._readable()

    async def rows(self, sql: str, params: Mapping[str, Parameter] | None = None) -> list[Row]:
        text = await self._run(sql, "JSONCompactEachRow", params)
        return await parsed_rows(text)

    async def execute(self, sql: str, params: Mapping[str, Parameter] | None = None) -> None:
        await self._run(sql, "Null", params)

    reads_files = True

    async def save(self, query: FileQuery, params: Mapping[str, Parameter]) -> None:
        place = f"{literal(query.path)}, {literal(query.format)}, {literal(query.structure)}"
        await self._run(
            f"INSERT INTO FUNCTION file({place}) {query.sql}"
            " SETTINGS engine_file_truncate_on_insert = 1, max_threads = 1",
            "Null",
            params,
        )

    async def send(self, table: str, path: str) -> None:
        place = f"{literal(path)}"
        await self._run(f"INSERT INTO {table} FROM INFILE {place} FORMAT RowBinary", "Null", None)

    async def settle(self, table: str) -> None:
        """There are no replicas."""

    async def _run(self, sql: str, fmt: str, params: Mapping[str, Parameter] | None) -> bytes:
        worker = self._worker
        return await worker.run(_query, worker.handle, sql, fmt, parameter_texts(params))

    async def close(self) -> None:
        await asyncio.to_thread(self._worker.close)


class _Lane(_Worker):
    """A worker that inserts, and the file that the engine reads its blocks from."""

    def __init__(self, name: str, open_handle: Callable[[], Handle]) -> None:
        super().__init__(name, open_handle)
        self.file = BlockFile()

    def close(self) -> None:
        super().close()
        self.file.close()


def _guarded(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    try:
        return function(*args, **kwargs)
    except (RuntimeError, UnicodeDecodeError) as error:  # the latter: a message that is not UTF-8
        match = _ERROR_CODE.search(str(error))
        raise EngineError(str(error), int(match[1]) if match else 0) from error


def _query(handle: Handle, sql: str, fmt: str, params: dict[str, str]) -> bytes:
    result: bytes = _guarded(handle.query, sql, fmt, params=params).bytes()
    return result


def _query_with(handle: Handle, sql: str, fmt: str, params: Mapping[str, Parameter]) -> bytes:
    return _query(handle, sql, fmt, parameter_texts(params))


def _next_chunk(handle: Handle, stream: Any) -> NativeBlock:
    chunk = _guarded(handle.streaming_fetch_result, stream)
    return b"" if chunk is None or chunk.rows_read() == 0 else result_bytes(chunk)


def _reserve(data_dir: Path, size: int) -> DiskReserve:
    try:
        disk = os.statvfs(data_dir)
        if size > disk.f_blocks * disk.f_frsize // 2:
            raise DataDirectoryError(
                f"disk_reserve_bytes = {size} is more than half of the disk of {data_dir}: lower it"
            )
        return DiskReserve(data_dir, size)
    except OSError as error:
        raise DataDirectoryError(
            f"the data directory {data_dir} cannot be written: {error.strerror}"
        ) from error


def _whole_definitions(data_dir: Path) -> DefinitionFiles:
    definitions = DefinitionFiles(data_dir)
    try:
        definitions.recover()
    except DefinitionError as error:
        raise DataDirectoryError(str(error)) from error
    return definitions


def _may_renice() -> bool:
    """Whether a thread may lower its priority and raise it again.

    Only root and CAP_SYS_NICE may lower a nice value again, and the engine ends a process that may
    not (chDB 4.4). Without this right, reads and inserts share the processor evenly.
    """
    allowed = False

    def lower_and_raise_priority() -> None:
        nonlocal allowed
        thread = threading.get_native_id()
        before = os.getpriority(os.PRIO_PROCESS, thread)
        try:
            os.setpriority(os.PRIO_PROCESS, thread, before + 1)
            os.setpriority(os.PRIO_PROCESS, thread, before)
        except PermissionError:
            return
        allowed = before == 0  # the engine returns to 0, whatever the value was

    thread = threading.Thread(target=lower_and_raise_priority)
    thread.start()
    thread.join()
    return allowed


def _prepare(
    data_dir: Path,
    fsync: bool,
    people: PeopleBounds,
    read_nice: int,
    place: ClusterPlace | None,
    part_max_bytes: int | None,
) -> str:
    """Write the engine's configuration, and return the connection string that opens it."""
    base = data_dir.resolve()
    engine_dir, config = base / "clickhouse", base / "engine.xml"
    if re.search(r"[?&\ud800-\udfff]", str(base)):
        raise DataDirectoryError(
            f"the path {str(base)!a} must be UTF-8 and have no '?' or '&' in it"
        )
    try:
        engine_dir.mkdir(exist_ok=True)
        (base / "engine.d").mkdir(exist_ok=True)
        config.write_text(
            _render(
                "engine_config.xml",
                fsync=int(fsync),
                new_part_codec="lz4" if fsync else "none",
                config=escape(str(config)),
                backup=escape(str(base / BACKUP_FOLDER)),
                keep_free_bytes=KEEP_FREE_BYTES,
                part_max_bytes=part_max_bytes or _PART_MAX_BYTES,
            ),
            "utf-8",
        )
        (base / "engine.d" / "sql_access.xml").write_text(
            _render(
                "sql_access.xml",
                sql_max_memory_bytes=people.max_memory_bytes,
                sql_max_threads=people.max_threads,
                sql_max_execution_s=people.max_execution_ms / 1000,
                sql_temporary_bytes=people.temporary_bytes,
                sql_min_free_bytes=PEOPLE_KEEP_FREE_BYTES,
                sql_threads=os.cpu_count() or 1,
                sql_iceberg=_iceberg_grants(people.iceberg_warehouse),
                sql_nice=f"<min>{read_nice}</min><max>19</max>" if read_nice else "<const/>",
            ),
            "utf-8",
        )
        cluster = base / "engine.d" / "cluster_place.xml"
        if place is None:
            cluster.unlink(missing_ok=True)
        else:
            cluster.write_text(_render_place(place), "utf-8")
    except OSError as error:
        raise DataDirectoryError(
            f"the data directory {data_dir} cannot be written: {error.strerror}"
        ) from error
    return f"{engine_dir}?config-file={config}"


def _iceberg_grants(warehouse: str | None) -> str:
    """Rights for `icebergLocal` below the directory; the engine resolves paths before it compares.

    ClickHouse, GRANT: "source filter grants". The second one is for table functions that reach
    outside; sql/http/access.py lets nobody make temporary tables by it who may not already.
    """
    if warehouse is None:
        return ""
    below = literal(f"{re.escape(warehouse.rstrip('/'))}/.*")
    return "".join(
        f"<query>GRANT {rights}</query>"
        for rights in (f"READ ON FILE({escape(below)})", "CREATE TEMPORARY TABLE ON *.*")
    )


def _render_place(place: ClusterPlace) -> str:
    nodes = "".join(
        f"<node><host>{escape(host)}</host><port>{port}</port></node>"
        for host, port in place.keepers
    )
    return _render(
        "cluster_place.xml",
        nodes=nodes,
        shard=escape(place.shard),
        replica=escape(place.replica),
    )


def _render(name: str, **values: object) -> str:
    text = files("brokerhouse.storage").joinpath(name).read_text("utf-8")
    return string.Template(text).substitute(values)
