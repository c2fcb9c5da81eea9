"""What a backup is: a directory that is complete, or that nobody takes for a backup.

* `clickhouse/`: what ClickHouse's BACKUP wrote, for its RESTORE. `engine.d/`: the configuration
  that people have added to the engine's.
* `backup.json`: `BackupInfo`. `SHA256SUMS`: the sum of every other file; `sha256sum --check` reads
  it, too. It is written last.

A backup is made in `NAME.unfinished` beside its place and renamed when it is complete. So a kill
leaves a directory without that name and without its sums.

The engine reads and writes backups only below `BACKUP_FOLDER` of its data directory. There is
nothing but a link, to the backup that is being made or restored.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

BACKUP_FOLDER = "backup"
LINK = "current"
CLICKHOUSE, ENGINE_D, INFO, SUMS = "clickhouse", "engine.d", "backup.json", "SHA256SUMS"
OWN_CONFIG = frozenset({"sql_access.xml", "cluster_place.xml"})
"""Files of `engine.d/` that each start writes."""
_UNFINISHED = ".unfinished"
_FORMAT = 1
_CONTENTS = ".backup"
"""ClickHouse's list of the files in its backup."""


class BackupError(Exception):
    """A backup cannot be made or restored. The message says in one sentence why."""


@dataclass(frozen=True, slots=True)
class BackupInfo:
    """`schema`: the last file of sql/schema/ that was applied. `made_at`: ISO 8601, UTC."""

    version: str
    schema: int
    cluster_id: str
    made_at: str
    size_bytes: int
    """Of the files, without `backup.json` and `SHA256SUMS`."""
    format: int = _FORMAT


@contextmanager
def unfinished_backup(destination: Path) -> Iterator[Path]:
    """An empty directory that becomes `destination`, or is removed after an error.

    Raises `BackupError`. What a kill has left of an earlier backup is removed first.
    """
    if os.path.lexists(destination):
        raise BackupError(f"{destination} exists: name a directory that does not exist")
    path = destination.with_name(destination.name + _UNFINISHED)
    with _file_errors(f"the backup {destination} cannot be written"):
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            _take(descriptor, path)
            try:
                yield path
                if os.path.lexists(destination):
                    raise BackupError(f"{destination} was created by somebody else meanwhile")
                path.rename(destination)
            except BaseException:
                shutil.rmtree(path, ignore_errors=True)
                raise
        finally:
            os.close(descriptor)


def _take(descriptor: int, path: Path) -> None:
    """Lock the directory, and remove what a killed backup has left in it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BackupError(f"another backup is being written to {path}") from error
    found = {entry.name for entry in path.iterdir()}
    if strange := found - {CLICKHOUSE, ENGINE_D, INFO, SUMS}:
        raise BackupError(f"{path} is in the way: {min(strange)} in it is not part of a backup")
    for name in found:
        shutil.rmtree(path / name) if (path / name).is_dir() else (path / name).unlink()


def refuse_inside(path: Path, other: Path, what: str) -> None:
    """Raises `BackupError` if `path` is `other`, or in it."""
    if path.resolve().is_relative_to(other.resolve()):
        raise BackupError(f"{path} is inside {what} {other}: name another place")


@contextmanager
def linked(data_dir: Path, target: Path) -> Iterator[str]:
    """Let the engine reach a directory outside; yields its name for the engine's `File`."""
    folder = data_dir / BACKUP_FOLDER
    with _file_errors(f"the data directory {data_dir} cannot be written"):
        folder.mkdir(exist_ok=True)
        link = folder / LINK
        link.unlink(missing_ok=True)
        link.symlink_to(target.resolve())
    try:
        yield LINK
    finally:
        link.unlink(missing_ok=True)


def files_in(backup: Path) -> list[Path]:
    """Every file of a backup but its sums, in order."""
    found = [Path(directory, name) for directory, _, names in os.walk(backup) for name in names]
    return sorted(path for path in found if path != backup / SUMS)


def sum_of(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_sums(backup: Path, sums: dict[Path, str]) -> None:
    """Write `SHA256SUMS`: the backup is complete."""
    lines = [f"{digest}  {path.relative_to(backup)}\n" for path, digest in sums.items()]
    (backup / SUMS).write_text("".join(lines), "utf-8")


def write_info(backup: Path, info: BackupInfo) -> None:
    (backup / INFO).write_text(json.dumps(asdict(info), indent=2) + "\n", "utf-8")


def copy_config(source: Path, target: Path) -> None:
    """Copy what people have added to the engine's configuration. Raises OSError."""
    for path in sorted(source.glob("*.xml")) if source.is_dir() else ():
        if path.name not in OWN_CONFIG:
            target.mkdir(exist_ok=True)
            shutil.copyfile(path, target / path.name)


def size_of(backup: Path) -> int:
    return sum(path.stat().st_size for path in files_in(backup))


def check_written(clickhouse: Path) -> None:
    """Raises `BackupError` if a file is shorter than ClickHouse believes.

    chDB does not notice a write that fails (storage/free_space.py).
    """
    for entry in ElementTree.parse(clickhouse / _CONTENTS).iterfind("contents/file"):
        size, name = int(entry.findtext("size", "0")), entry.findtext("name", "")
        path = clickhouse / entry.findtext("data_file", name)
        if size and path.stat().st_size != size:
            raise BackupError(f"{path} is not complete: is the disk full?")


def check_backup(source: Path) -> BackupInfo:
    """Read every file of a backup. Raises `BackupError` unless it is complete and undamaged."""
    with _file_errors(f"the backup {source} cannot be read"):
        if not source.is_dir():
            raise BackupError(f"there is no backup at {source}")
        if not (source / SUMS).is_file():
            raise BackupError(
                f"{source} is not a complete backup: it has no {SUMS}, which is written last"
            )
        sums = _sums(source)
        for path in files_in(source):
            name = str(path.relative_to(source))
            if name not in sums:
                raise BackupError(f"the backup {source} is damaged: {name} does not belong to it")
            if sum_of(path) != sums.pop(name):
                raise BackupError(f"the backup {source} is damaged: {name} has changed")
        if sums:
            raise BackupError(f"the backup {source} is damaged: {min(sums)} is missing")
        return _info(source)


def _sums(source: Path) -> dict[str, str]:
    sums = {}
    for line in (source / SUMS).read_text("utf-8", "replace").splitlines():
        digest, gap, name = line.partition("  ")
        if len(digest) != 64 or not gap:
            raise BackupError(f"the backup {source} is damaged: {SUMS} has changed")
        sums[name] = digest
    return sums


def _info(source: Path) -> BackupInfo:
    if not (source / INFO).is_file():
        raise BackupError(f"the backup {source} is damaged: {INFO} is missing")
    content = json.loads((source / INFO).read_text("utf-8"))
    if content.get("format") != _FORMAT:
        raise BackupError(
            f"the backup {source} was made by brokerhouse {content.get('version')}, in a form that"
            " this version does not know: restore it with that version"
        )
    return BackupInfo(**content)


@contextmanager
def _file_errors(failing: str) -> Iterator[None]:
    """Turns an error of the file system into a sentence."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise BackupError(f"{failing}: {error.strerror or error}{where}") from error
