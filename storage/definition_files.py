"""The files that hold the definitions of tables, and copies of those that are being changed.

ClickHouse writes the definition of a table, view or database to a new file and renames it over the
old one. chDB ignores a write that fails (free_space.py), so on a full disk an empty or cut file can
take the place of a definition, and the engine does not open such a directory again. So:

* `definitions/` in the data directory has a copy of every definition that a statement is changing
  (definition_guard.py), and is empty otherwise. A copy is a hard link to the file before the
  change: it needs no space, and it cannot be older than that file. File systems keep the order of
  renames and links, so nothing is flushed.
* A start, before the engine opens the directory, puts a copy in the place of a damaged file. A
  damaged file without a copy is set aside in `definitions/damaged/` if no row can depend on it;
  otherwise the start is refused, with the name of the file.
* A mutation that is damaged was never stored. Its file is set aside, too: the process ended before
  whoever asked for it got an answer (definition_guard.py). The broker asks again: a deleted topic
  stays in the state "deleting" until its deletion is stored, and what is below the start of a log
  is counted at each start.

A definition ends with a line feed. On a full disk a write stops at the end of a block, so only a
file of whole blocks can be cut and still look complete: if there is a copy of such a file, the copy
is used.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from brokerhouse.storage.cluster_sql import SHARD_DATABASE
from brokerhouse.storage.engine import DATABASE

log = logging.getLogger(__name__)

_COPIES, _SET_ASIDE = "definitions", "damaged"
_UNFINISHED = ".new"
_BLOCK_BYTES = 512
"""Blocks of a file system are multiples of this."""
_UUID = re.compile(rb"UUID '([0-9a-f-]{36})'")
_NOT_A_WORD = re.compile(rb"\W")
# What the directory of a table has before its first row.
_NO_ROWS = re.compile(r"format_version\.txt|deduplication_logs|mutation_\d+\.txt|(delete_)?tmp_.*")
_FORMAT_VERSION = "1"
"""What ClickHouse writes into each `format_version.txt`."""
_NO_LINKS = frozenset({errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK})


class DefinitionError(Exception):
    """The engine could not open the directory. The message says in one sentence why."""


def is_whole(definition: bytes) -> bool:
    return definition.endswith(b"\n")


def may_be_cut(definition: bytes) -> bool:
    """Whether it is damaged or could be: it may have ended with another block."""
    return not is_whole(definition) or len(definition) % _BLOCK_BYTES == 0


def is_stored(mutation: bytes) -> bool:
    """Whether the file of a mutation is whole: the commands are its last line."""
    return b"\ncommands: " in mutation and mutation.endswith(b"\n")


def file_name(name: str) -> str:
    """The name of a table or database as ClickHouse spells it in names of files."""
    return _NOT_A_WORD.sub(lambda found: b"%%%02X" % found[0][0], name.encode()).decode()


class DefinitionFiles:
    """The definitions below one data directory. A definition is named by the path of its file."""

    def __init__(self, data_dir: Path) -> None:
        clickhouse = data_dir / "clickhouse"
        self._metadata = clickhouse / "metadata"
        self._dropped = clickhouse / "metadata_dropped"
        self._tables = clickhouse / "data"
        self._store = clickhouse / "store"
        self._copies = data_dir / _COPIES

    # --- at the start

    def recover(self) -> None:
        """Leave nothing that the engine cannot open. Raises `DefinitionError`."""
        try:
            self._recover()
        except OSError as error:
            raise DefinitionError(
                f"{error.filename} cannot be read or written: {error.strerror}"
            ) from error

    def _recover(self) -> None:
        self._copies.mkdir(exist_ok=True)
        for part in self._copies.glob(f"*{_UNFINISHED}"):
            part.unlink()
        for copy in sorted(self._copies.glob("*.sql")):
            self._use(copy)
        for path in (*self._metadata.glob("*.sql"), *self._metadata.glob("*/*.sql")):
            definition = path.read_bytes()
            if is_whole(definition):
                self._link(path, definition)
            else:
                self._remove(path)
        for path in self._tables.glob("*/*/mutation_*.txt"):
            if not is_stored(path.read_bytes()):
                table = path.parent
                self._set_aside(path, f"{table.parent.name}.{table.name}.{path.name}")
                log.error(
                    "disk full while storing a change of rows of %s: the change was not made, and"
                    " its file %s was set aside",
                    self.readable(table),
                    path.name,
                )
        for path in self._tables.glob("*/*/format_version.txt"):
            if path.stat().st_size == 0:
                path.write_text(_FORMAT_VERSION)
                log.warning("disk full while creating %s", self.readable(path.parent))

    def _link(self, path: Path, definition: bytes) -> None:
        """Link the table's name to its rows, as ClickHouse does when a statement creates a table.

        Without the link nobody finds the rows of a damaged definition. ClickHouse makes none for
        the tables that a data directory begins with (new_directory.py), and leaves one that leads
        elsewhere if it is killed within DROP or EXCHANGE.
        """
        found = _UUID.search(definition)
        if found is None or self.is_of_a_database(path):
            return
        link, table_id = self._directory(path), found[1].decode()
        rows = self._store / table_id[:3] / table_id
        is_right = link.exists() and (not link.is_symlink() or link.samefile(rows))
        if is_right or not rows.is_dir():
            return
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(rows, link.parent.resolve()), target_is_directory=True)

    def _use(self, copy: Path) -> None:
        """Put the copy into its place, if the change that it was made for has damaged the file."""
        database, _, table = copy.stem.partition(".")
        path = self._metadata / database / f"{table}.sql" if table else self._metadata / copy.name
        if (
            not path.exists()  # dropped
            or path.samefile(copy)
            or not may_be_cut(path.read_bytes())
        ):
            copy.unlink()
            return
        copy.replace(path)
        # The table may have been replaced by another: the engine would remove its rows later.
        for dropped in self._dropped.glob(f"*.{_table_id(path)}.sql"):
            dropped.unlink()
        log.warning(
            "disk full while changing the definition of %s: the change was undone",
            self.readable(path),
        )

    def _remove(self, path: Path) -> None:
        """Set a damaged file without a copy aside. Raises `DefinitionError` if rows need it."""
        if self._is_needed(path):
            raise DefinitionError(
                f"the definition of {self.readable(path)} is damaged and there is no copy of it:"
                f" restore a backup, or put the definition into {path}"
            )
        self._set_aside(path, self._copy_of(path).name)
        log.error(
            "disk full while creating %s, so it does not exist: create it again",
            self.readable(path),
        )

    def _is_needed(self, path: Path) -> bool:
        if path.parent == self._metadata:
            return any((self._metadata / path.stem).glob("*.sql"))
        table = self._directory(path)
        if not table.is_dir():  # a view, or a table that was not complete
            return False
        if path.parent.name in (DATABASE, SHARD_DATABASE):  # `schema_migrations` may have it
            return True
        return any(
            not _NO_ROWS.fullmatch(one.name) and (one.name != "detached" or any(one.iterdir()))
            for one in table.iterdir()
        )

    def _set_aside(self, path: Path, name: str) -> None:
        (self._copies / _SET_ASIDE).mkdir(exist_ok=True)
        path.rename(self._copies / _SET_ASIDE / name)

    # --- while the engine runs

    def named(self, names: Iterable[str]) -> set[Path]:
        """The definitions of everything that has one of these names, in any database."""
        files = {f"{file_name(name)}.sql" for name in names}
        found: set[Path] = set()
        # Listed, not looked up one by one: a statement has a hundred words that may be names.
        for folder in (self._metadata, *(one for one in self._metadata.glob("*") if one.is_dir())):
            with suppress(FileNotFoundError):  # the database was dropped, or there is none yet
                found.update(folder / file for file in files.intersection(os.listdir(folder)))
        return found

    def keep(self, path: Path) -> None:
        """Make a copy of the definition as it is now, in place of an earlier one. Raises `OSError`.

        An earlier copy stays if the file is damaged.
        """
        if self.is_unchanged(path):
            return
        copy = self._copy_of(path)
        part = copy.with_suffix(_UNFINISHED)
        part.unlink(missing_ok=True)
        try:
            part.hardlink_to(path.resolve())
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with part.open("wb") as file:
                file.write(path.read_bytes())
                file.flush()
                os.fsync(file.fileno())
        if is_whole(part.read_bytes()):
            part.rename(copy)
        else:
            part.unlink()

    def put_back(self, path: Path) -> None:
        """Put the copy into its place, and keep it."""
        self._copy_of(path).replace(path)
        self.keep(path)

    def forget(self, path: Path) -> None:
        """The copy is not needed any more."""
        self._copy_of(path).unlink(missing_ok=True)

    def is_unchanged(self, path: Path) -> bool:
        """Whether the file is the one that was copied."""
        try:
            return path.samefile(self._copy_of(path))
        except FileNotFoundError:
            return False

    def table_id(self, path: Path) -> str | None:
        """The UUID in the copy."""
        return _table_id(self._copy_of(path))

    def inner_table(self, path: Path) -> Path | None:
        """The definition of the table in which a materialized view has its rows, if it made one."""
        inner = path.with_name(f"{file_name(f'.inner_id.{_table_id(path)}')}.sql")
        return inner if inner.exists() else None

    def unstored_mutations(self, path: Path) -> Iterator[Path]:
        """The files of mutations of a table that are damaged."""
        for mutation in self._directory(path).glob("mutation_*.txt"):
            with suppress(FileNotFoundError):  # the engine removes old ones
                if not is_stored(mutation.read_bytes()):
                    yield mutation

    def is_of_a_database(self, path: Path) -> bool:
        return path.parent == self._metadata

    def _directory(self, path: Path) -> Path:
        """Where a table's rows are."""
        return self._tables / path.parent.name / path.stem

    def names(self, path: Path) -> list[str]:
        """Its database, and the table or view."""
        escaped = [path.stem] if self.is_of_a_database(path) else [path.parent.name, path.stem]
        return [unquote(name) for name in escaped]

    def readable(self, path: Path) -> str:
        """Also of the directory of a table: its name has no dot either."""
        return ".".join(self.names(path))

    def _copy_of(self, path: Path) -> Path:
        # Neither name has a dot: ClickHouse spells it %2E.
        database = "" if self.is_of_a_database(path) else f"{path.parent.name}."
        return self._copies / f"{database}{path.name}"


def _table_id(definition: Path) -> str | None:
    try:
        found = _UUID.search(definition.read_bytes())
    except FileNotFoundError:  # it was dropped
        return None
    return found[1].decode() if found else None
