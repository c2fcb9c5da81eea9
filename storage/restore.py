"""Restores a backup into a new data directory.

Until everything is there, the directory has the file `RESTORE_MARKER`. A broker does not start on
such a directory, and a restore begins anew in it. So a restore that was killed is never taken for
a whole one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from pathlib import Path

from brokerhouse.storage.backup_files import (
    CLICKHOUSE,
    ENGINE_D,
    BackupError,
    BackupInfo,
    check_backup,
    copy_config,
    linked,
    refuse_inside,
)
from brokerhouse.storage.data_directory import (
    LOCK,
    RESTORE_MARKER,
    DataDirectoryError,
    lock_directory,
)
from brokerhouse.storage.disk_reserve import KEEP_FREE_BYTES
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import DATABASE, EngineError
from brokerhouse.storage.free_space import FAILED_WRITES
from brokerhouse.storage.journal_files import STREAMS
from brokerhouse.storage.log_views import View, target_of
from brokerhouse.storage.schema import migrations

log = logging.getLogger(__name__)

_NO_CONTENTS = frozenset({LOCK, "lost+found"})
"""What an empty directory may have: the second is in each new file system."""


def checked(source: Path) -> BackupInfo:
    """Read all of a backup. Raises `BackupError` unless this version can restore it."""
    info = check_backup(source)
    known = migrations()[-1].number
    if info.schema > known:
        raise BackupError(
            f"the backup {source} was made by a newer version of brokerhouse ({info.version}; its"
            f" tables are at {info.schema}, this version knows {known}): restore it with that one"
        )
    return info


async def restore(source: Path, data_dir: Path) -> BackupInfo:
    """Raises `BackupError` and `DataDirectoryError`; `data_dir` is as it was, or unfinished."""
    refuse_inside(data_dir, source, "the backup")
    info = await asyncio.to_thread(checked, source)
    await asyncio.to_thread(_prepare, source, data_dir, info)
    engine = await asyncio.to_thread(EmbeddedEngine, data_dir, STREAMS, fsync=False)
    try:
        with linked(data_dir, source) as link:
            await engine.execute(
                f"RESTORE ALL FROM File('{link}/{CLICKHOUSE}')"
                " SETTINGS allow_different_database_def = 1"  # of `default`, which chDB makes
            )
        await _make_failed_views(engine)
        ((failed,),) = await engine.rows(FAILED_WRITES)
        if failed:
            raise BackupError(f"the disk of {data_dir} is full: add space and restore again")
    except EngineError as error:
        reason = str(error).partition("\n")[0]
        raise BackupError(f"the backup {source} cannot be restored: {reason}") from error
    finally:
        await engine.close()
    await asyncio.to_thread(_finish, data_dir)
    return info


async def _make_failed_views(engine: EmbeddedEngine) -> None:
    """Make the views again that had failed (storage/view_guard.py).

    They were detached, so BACKUP has left them out. One with a table of its own would get a new,
    empty one; people have to make it again.
    """
    for database, name, definition in await engine.rows(
        f"SELECT database, view, definition FROM {DATABASE}.failed_view_versions FINAL"
        " WHERE state != 'ended'"
    ):
        if target_of(definition) is None:
            log.warning(
                "the view %s.%s had failed before the backup, so it is not restored", database, name
            )
            continue
        await engine.execute(definition)
        await engine.execute(f"DETACH TABLE {View(database, name).quoted} PERMANENTLY")


def _prepare(source: Path, data_dir: Path, info: BackupInfo) -> None:
    """Mark the directory, and empty it of what an earlier restore has left."""
    lock = lock_directory(data_dir)
    try:
        marker = data_dir / RESTORE_MARKER
        found = set(os.listdir(data_dir)) - _NO_CONTENTS
        if found and RESTORE_MARKER not in found:
            raise BackupError(
                f"the data directory {data_dir} is not empty: a backup is restored into a new one"
            )
        marker.write_text(f"{source}\n", "utf-8")
        for name in found - {RESTORE_MARKER}:
            path = data_dir / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        free = shutil.disk_usage(data_dir).free
        if free < info.size_bytes + KEEP_FREE_BYTES:
            marker.unlink()
            raise BackupError(
                f"the disk of {data_dir} is too full: {info.size_bytes >> 20} MB are needed,"
                f" {free >> 20} MB are free, and {KEEP_FREE_BYTES >> 20} MB of them are kept"
            )
        copy_config(source / ENGINE_D, data_dir / ENGINE_D)
    except OSError as error:
        raise DataDirectoryError(
            f"the data directory {data_dir} cannot be written: {error.strerror}"
        ) from error
    finally:
        os.close(lock)


def _finish(data_dir: Path) -> None:
    """Everything is there; also after a power failure."""
    os.sync()
    (data_dir / RESTORE_MARKER).unlink()
