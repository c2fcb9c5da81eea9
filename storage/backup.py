"""Makes a backup of a data directory, while its broker takes records.

BACKUP notes the parts of every table first, one table after the other, and copies them then
(https://clickhouse.com/docs/operations/backup/overview). Parts never change, so only the first step
needs tables that stand still (`Standstill`): some tens of milliseconds, in which the journal
acknowledges records as ever. The step is over when BACKUP creates its first file, because
ClickHouse collects the entries of all tables before it writes one (BackupsWorker::doBackup).

What must hold: a backup has what a `kill -9` at that moment would have left, in all tables alike.
So every record, commit, group, transaction and topic that was acknowledged before is in it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

from brokerhouse.sql.queries import query
from brokerhouse.storage.backup_files import (
    CLICKHOUSE,
    ENGINE_D,
    BackupError,
    BackupInfo,
    check_written,
    copy_config,
    files_in,
    linked,
    refuse_inside,
    size_of,
    sum_of,
    unfinished_backup,
    write_info,
    write_sums,
)
from brokerhouse.storage.disk_reserve import KEEP_FREE_BYTES
from brokerhouse.storage.engine import DATABASE, EngineError
from brokerhouse.storage.journal import JournaledEngine
from brokerhouse.storage.parameters import quoted

log = logging.getLogger(__name__)

T = TypeVar("T")

_LOOK_EVERY_S = 0.002
"""How often the first file of a backup is looked for."""
_STANDSTILL_MAX_S = 30.0
"""For BACKUP to collect the tables. At full speed the journal has room for some seconds; then
producers wait."""
_KILL_AGAIN_S = 0.2
_WRITTEN_AT_ONCE = frozenset({".lock", ".backup"})
"""Files that BACKUP makes before it has collected the tables."""


class Backups:
    """Makes backups of one engine, one at a time."""

    def __init__(self, engine: JournaledEngine, *, durable: bool) -> None:
        """`durable`: a backup is on the disk when `make` returns."""
        self._engine = engine
        self._durable = durable
        self._running = False

    async def make(self, destination: Path) -> BackupInfo:
        """A backup of what was acknowledged until now, and perhaps a moment longer.

        Raises `BackupError`; then, or if the caller is cancelled, nothing of it stays.
        """
        if self._running:
            raise BackupError("this broker is making another backup: wait until that has ended")
        self._running = True
        try:
            return await self._make(destination)
        except EngineError as error:
            raise BackupError(f"the backup {destination} failed: {_first_line(error)}") from error
        finally:
            self._running = False

    async def _make(self, destination: Path) -> BackupInfo:
        data_dir = self._engine.embedded.data_dir
        refuse_inside(destination, data_dir, "the data directory")
        began = time.monotonic()
        schema, cluster_id = await self._identity()
        async with _in_threads(unfinished_backup(destination)) as path:
            await self._check_space(path)
            with linked(data_dir, path) as link:
                standstill_s = await self._run_backup(link, path / CLICKHOUSE)
            await asyncio.to_thread(copy_config, data_dir / "engine.d", path / ENGINE_D)
            await asyncio.to_thread(check_written, path / CLICKHOUSE)
            info = BackupInfo(
                version=version("brokerhouse"),
                schema=schema,
                cluster_id=cluster_id,
                made_at=datetime.now(UTC).isoformat(timespec="seconds"),
                size_bytes=await asyncio.to_thread(size_of, path),
            )
            await asyncio.to_thread(write_info, path, info)
            sums = {
                file: await asyncio.to_thread(sum_of, file)
                for file in await asyncio.to_thread(files_in, path)
            }
            await asyncio.to_thread(write_sums, path, sums)
        if self._durable:
            await asyncio.to_thread(os.sync)
        log.info(
            "backup %s: %d MB in %.1f s; inserts into tables waited for %.0f ms",
            destination,
            info.size_bytes >> 20,
            time.monotonic() - began,
            standstill_s * 1000,
        )
        return info

    async def _identity(self) -> tuple[int, str]:
        """The last migration that was applied, and the id of the cluster."""
        try:
            ((schema, cluster_id),) = await self._engine.rows(
                query("schema_and_cluster_id", database=DATABASE)
            )
        except EngineError as error:
            raise BackupError(
                f"{self._engine.embedded.data_dir} is not the data directory of a single broker:"
                f" {_first_line(error)}"
            ) from error
        return schema, cluster_id

    async def _check_space(self, path: Path) -> None:
        """Raises `BackupError` if the disk would be full."""
        ((needed,),) = await self._engine.embedded.rows(
            "SELECT sum(bytes_on_disk) FROM system.parts WHERE active AND database != 'system'"
        )
        disk = shutil.disk_usage(path)
        if disk.free < needed + KEEP_FREE_BYTES:
            raise BackupError(
                f"the disk of {path.parent} is too full for a backup: {needed >> 20} MB are needed,"
                f" {disk.free >> 20} MB are free, and {KEEP_FREE_BYTES >> 20} MB of them are kept"
            )

    async def _run_backup(self, link: str, clickhouse: Path) -> float:
        """Run BACKUP. Returns how many seconds the tables stood still."""
        engine = self._engine.embedded
        databases = await engine.rows(query("databases_to_back_up"))
        names = ", ".join(f"DATABASE {quoted(name)}" for (name,) in databases)
        statement = f"BACKUP {names} TO File('{link}/{CLICKHOUSE}')"
        backup: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(_STANDSTILL_MAX_S), self._engine.standstill.hold():
                began = time.monotonic()
                backup = asyncio.create_task(engine.execute(statement))
                while not backup.done() and not await asyncio.to_thread(_is_written, clickhouse):
                    await asyncio.wait([backup], timeout=_LOOK_EVERY_S)
                stood_s = time.monotonic() - began
            await asyncio.wait([backup])
            backup.result()
            return stood_s
        except TimeoutError as error:
            raise BackupError(
                f"ClickHouse has not collected the tables within {_STANDSTILL_MAX_S:.0f} s:"
                " try again when the broker has less to do"
            ) from error
        finally:
            while backup is not None and not backup.done():
                with suppress(EngineError):
                    await engine.execute("KILL QUERY WHERE query_kind = 'Backup'")
                await asyncio.wait([backup], timeout=_KILL_AGAIN_S)
            if backup is not None:
                backup.exception()  # where something else has ended the backup


def _is_written(clickhouse: Path) -> bool:
    """Whether BACKUP writes what it has collected."""
    with suppress(FileNotFoundError):
        return not _WRITTEN_AT_ONCE.issuperset(os.listdir(clickhouse))
    return False


def _first_line(error: EngineError) -> str:
    return str(error).partition("\n")[0]


@asynccontextmanager
async def _in_threads(manager: AbstractContextManager[T]) -> AsyncIterator[T]:
    """A context manager that blocks, on an event loop."""
    value = await asyncio.to_thread(manager.__enter__)
    try:
        yield value
    except BaseException as error:
        leaving = asyncio.to_thread(manager.__exit__, type(error), error, error.__traceback__)
        await asyncio.shield(asyncio.ensure_future(leaving))
        raise
    await asyncio.to_thread(manager.__exit__, None, None, None)
