"""The data directory of an engine: one process uses it, and nobody else reads it.

It is 0700 and its files are 0600, whatever the umask was: the journal and the tables hold what
clients sent. The engine makes files, too, so the umask of the whole process is set
(`keep_files_private`). A directory of an older version is changed at its next start.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import stat
from pathlib import Path

from brokerhouse.storage.journal_register import register_path

log = logging.getLogger(__name__)

LOCK = "LOCK"
RESTORE_MARKER = "RESTORE"
"""In a data directory into which a backup is being restored (storage/restore.py)."""
_UUID = re.compile(rb"ATTACH TABLE _ UUID '([0-9a-f-]{36})'")
_HAS_FILES = re.compile(rb"^ENGINE = \w*MergeTree\b", re.MULTILINE)
_ON_ANOTHER_DISK = re.compile(rb"^SETTINGS .*\b(?:disk|storage_policy) = ", re.MULTILINE)
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class DataDirectoryError(Exception):
    """The data directory cannot be used. The message says in one sentence what to change."""


def keep_files_private() -> None:
    """From now on nobody but this user can read what this process creates."""
    os.umask(_OTHERS)


def refuse_unfinished(data_dir: Path) -> None:
    """Raises `DataDirectoryError` if not everything of a backup was restored there."""
    if (data_dir / RESTORE_MARKER).exists():
        raise DataDirectoryError(
            f"the restore into {data_dir} has not finished: run `brokerhouse restore` again"
        )


def lock_directory(data_dir: Path) -> int:
    """Take the lock of a data directory, which is created if needed: a descriptor to close.

    Raises `DataDirectoryError`.
    """
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(data_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DataDirectoryError(
            f"the data directory {data_dir} cannot be used: {error.strerror}"
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.pread(fd, 32, 0).decode(errors="replace").strip()
        os.close(fd)
        raise DataDirectoryError(
            f"the data directory {data_dir} is in use by process {owner or 'unknown'}: "
            "stop that one or give another --data-dir"
        ) from error
    os.ftruncate(fd, 0)
    try:
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:  # a full disk: nobody needs it
        log.info("the process id is not in %s: %s", data_dir / LOCK, error.strerror)
    make_private(data_dir)
    return fd


def refuse_without_tables(data_dir: Path, *databases: str) -> None:
    """Raises `DataDirectoryError` if files of tables were removed: they would begin anew, empty.

    A journal is made after the first of these `databases`, which may have got the name of another
    (shard_directory.py), and the directory of a table before its definition.
    """
    clickhouse = data_dir / "clickhouse"
    needed = [clickhouse / "metadata" / f"{database}.sql" for database in databases]
    if register_path(data_dir / "journal").exists() and not any(one.exists() for one in needed):
        raise _removed(needed[0])
    for definition in sorted(clickhouse.glob("metadata/*/*.sql")):
        text = definition.read_bytes()
        found = _UUID.search(text)
        if found is None or not _HAS_FILES.search(text) or _ON_ANOTHER_DISK.search(text):
            continue
        table_id = found[1].decode()
        folder = clickhouse / "store" / table_id[:3] / table_id
        if not folder.exists():
            raise _removed(folder, f", which has the rows of {definition.stem},")


def _removed(path: Path, what: str = "") -> DataDirectoryError:
    return DataDirectoryError(
        f"{path}{what} was removed, and its records with it: put it back, or restore a backup into"
        " another directory"
    )


def make_private(data_dir: Path) -> None:
    """Take the rights of other users from a directory and all in it, if it has any.

    Where that is not possible, the log says so, and the start goes on.
    """
    try:
        if not _is_open_to_others(data_dir):
            return
        for folder, folders, names in os.walk(data_dir):
            for name in (*folders, *names):
                _take_from_others(os.path.join(folder, name))
        _take_from_others(data_dir)  # last: a start that is killed before does it all again
        if _is_open_to_others(data_dir):  # some file systems ignore it
            raise PermissionError(0, "its file system stores no modes")
    except OSError as error:
        log.warning(
            "cannot change the mode of %s (%s), so other users of this machine may be able to read"
            " it: make this user its owner, on a file system that stores modes",
            data_dir,
            error.strerror,
        )
    else:
        log.info(
            "other users could read %s: changed its mode to 0700 and those of its files to 0600",
            data_dir,
        )


def _is_open_to_others(path: Path) -> bool:
    return bool(path.stat().st_mode & _OTHERS)


def _take_from_others(path: str | Path) -> None:
    mode = os.lstat(path).st_mode
    if mode & _OTHERS and (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        os.chmod(path, stat.S_IMODE(mode) & ~_OTHERS)
