"""Wraps the handles of the engine: a statement that changes definitions leaves whole files.

Before such a statement, the definitions of all that it may name are copied (definition_files.py),
and their files are read behind it. If the disk was full while one was written:

* the file from before the change is put back at once, so the engine can be started after a kill at
  any moment. The engine that runs has made the change; the next start does not know it;
* what was created is dropped, even if it has replaced a table: the rows of that one are gone;
* the statement fails with NOT_ENOUGH_SPACE, whoever sent it.

A statement that deletes or updates rows fails, too, if its mutation was not stored. The engine
would not know of that mutation after a kill, so it is killed at once, and the sender has to repeat
the statement.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from brokerhouse.common.counted_lines import counted
from brokerhouse.storage.definition_files import DefinitionFiles, is_whole, may_be_cut
from brokerhouse.storage.disk_reserve import NOT_ENOUGH_SPACE
from brokerhouse.storage.free_space import FAILED_WRITES
from brokerhouse.storage.parameters import literal, quoted

log = logging.getLogger(__name__)

Handle = Any  # chdb._chdb.connect: a native class without type stubs

_HEAD_CHARS = 1 << 16
"""Data of an insert may follow."""
_NAMES_CHARS = 1 << 11
"""What a statement changes is named at its beginning; then come columns, conditions, queries."""
_CHANGES = re.compile(
    r"(?:\s|--[^\n]*|#[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)*"
    r"(?:ALTER|ATTACH|CREATE(?!\s+(?:OR\s+REPLACE\s+)?TEMPORARY\b)|DELETE|EXCHANGE|RENAME|REPLACE"
    r"|UNDROP|UPDATE)\b",
    re.IGNORECASE,
)
_NAME = re.compile(r"\w+|`((?:[^`\\]|``|\\.)+)`|\"((?:[^\"\\]|\"\"|\\.)+)\"", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)|``|\"\"", re.DOTALL)


def names_changed(sql: str | bytes, params: Mapping[str, str]) -> set[str]:
    """Names of what the statement may change, among others; none if it changes no definition."""
    head = sql[:_HEAD_CHARS]
    text = head.decode("utf-8", "replace") if isinstance(head, bytes) else head
    change = _CHANGES.match(text)
    if change is None:
        return set()
    names = set()
    for name in _NAME.finditer(text, change.end(), change.end() + _NAMES_CHARS):
        in_quotes = name[1] or name[2]
        names.add(_ESCAPED.sub(_unescaped, in_quotes) if in_quotes else name[0])
    if "Identifier" in names:
        names.update(params.values())
    return names


def _unescaped(found: re.Match[str]) -> str:
    return found[1] or found[0][0]


class GuardedHandle:
    """A chDB connection whose statements leave whole definitions."""

    def __init__(self, handle: Handle, guard: DefinitionGuard) -> None:
        self._handle = handle
        self._guard = guard

    def query(self, sql: str | bytes, *args: Any, **options: Any) -> Any:
        """As that of the connection. Raises `RuntimeError`, as that does."""
        names = names_changed(sql, options.get("params", {}))
        if not names:
            return self._handle.query(sql, *args, **options)
        with self._guard.change(names):
            return self._handle.query(sql, *args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)


class DefinitionGuard:
    """Of one engine. Methods block their thread."""

    def __init__(self, files: DefinitionFiles, connect: Callable[[], Handle]) -> None:
        """`connect`: opens a connection with all privileges."""
        self._files = files
        self._connect = connect
        self._lock = threading.Lock()
        self._changing: Counter[Path] = Counter()
        """The definitions that have a copy, and how many statements may be changing each."""
        self._lost_mutations: Counter[Path] = Counter()

    def wrap(self, handle: Handle) -> GuardedHandle:
        return GuardedHandle(handle, self)

    @contextmanager
    def change(self, names: Collection[str]) -> Iterator[None]:
        """Wraps a statement that may change what has these names. Raises `RuntimeError`."""
        with self._lock, _as_engine_errors("cannot be copied before the change"):
            held = self._hold(names)
            lost = {path: self._lost_mutations[path] for path in held}
        try:
            yield
        except BaseException:
            self._end(names, held)
            raise
        damaged = [
            f"the definition of {self._files.readable(path)}" for path in self._end(names, held)
        ]
        damaged += (
            f"a change of rows of {self._files.readable(path)}"
            for path, before in lost.items()
            if self._lost_mutations[path] > before
        )
        if damaged:
            raise _no_space(
                f"The disk was full while {' and '.join(damaged)} was written:"
                " make room and repeat the statement"
            )

    def _hold(self, names: Collection[str]) -> set[Path]:
        """Make copies of definitions. Raises `OSError`."""
        held: set[Path] = set()
        try:
            for path in self._files.named(names):
                if path not in self._changing:
                    self._files.keep(path)
                self._changing[path] += 1
                held.add(path)
        except OSError:
            self._let_go(held)
            raise
        return held

    def _let_go(self, held: Collection[Path]) -> None:
        for path in held:
            self._changing[path] -= 1
            if not self._changing[path]:
                del self._changing[path]
                self._files.forget(path)
            elif path.exists():
                self._files.keep(path)  # another statement changes it as it is now

    def _end(self, names: Collection[str], held: Collection[Path]) -> list[Path]:
        """Returns the definitions that were damaged. All are whole then."""
        with self._lock, _as_engine_errors("cannot be checked after the change"):
            damaged = [path for path in self._files.named(names) if not self._is_complete(path)]
            for path in damaged:
                self._repair(path)
            for path in held:
                for mutation in self._files.unstored_mutations(path):
                    self._kill(path, mutation)
            self._let_go(held)
        return damaged

    def _is_complete(self, path: Path) -> bool:
        if not self._is_whole(path):
            return False
        inner = None if path in self._changing else self._files.inner_table(path)
        return inner is None or self._is_whole(inner)

    def _is_whole(self, path: Path) -> bool:
        if self._files.is_unchanged(path):
            return True
        try:
            definition = path.read_bytes()
        except FileNotFoundError:  # it was dropped meanwhile
            return True
        # One of 512 definitions has whole blocks. It counts as cut if any write has failed.
        return not may_be_cut(definition) or (is_whole(definition) and not self._failed_writes())

    def _repair(self, path: Path) -> None:
        """Leave a whole definition in place of a damaged one, or nothing."""
        kind, table_id = self._in_engine(path)
        if path in self._changing and table_id in ("", self._files.table_id(path)):
            self._files.put_back(path)
            log.warning(
                "disk full while changing the definition of %s: the change was undone",
                self._files.readable(path),
                extra=counted(),
            )
            return
        name = ".".join(quoted(name) for name in self._files.names(path))
        self._run(f"DROP {kind} IF EXISTS {name} SYNC")
        log.warning(
            "disk full while creating %s: dropped it",
            self._files.readable(path),
            extra=counted(),
        )

    def _in_engine(self, path: Path) -> tuple[str, str]:
        """What the engine has of this name, and its UUID, or "" if no rows depend on that."""
        if self._files.is_of_a_database(path):
            return "DATABASE", ""
        found = self._run(
            f"SELECT engine, toString(uuid) FROM system.tables WHERE {self._named(path)}"
        )
        engine, _, table_id = found.strip().partition("\t")
        if engine == "Dictionary":
            return "DICTIONARY", ""
        return "TABLE", "" if engine == "View" else table_id

    def _kill(self, path: Path, mutation: Path) -> None:
        """The engine would not find the mutation at its next start."""
        self._run(
            f"KILL MUTATION WHERE {self._named(path, 'table')}"
            f" AND mutation_id = {literal(mutation.name)}"
        )
        self._lost_mutations[path] += 1
        log.warning(
            "disk full: the change of rows of %s was not made",
            self._files.readable(path),
            extra=counted(),
        )

    def _failed_writes(self) -> bool:
        return self._run(FAILED_WRITES).strip() != "0"

    def _run(self, sql: str) -> str:
        with closing(self._connect()) as handle:
            result: str = handle.query(sql, "TSV").bytes().decode()
            return result

    def _named(self, path: Path, column: str = "name") -> str:
        """A condition for tables of the engine."""
        database, table = self._files.names(path)
        return f"database = {literal(database)} AND {column} = {literal(table)}"


@contextmanager
def _as_engine_errors(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _no_space(f"A definition {what}: {error.strerror} ({error.filename})") from error


def _no_space(sentence: str) -> RuntimeError:
    return RuntimeError(f"Code: {NOT_ENOUGH_SPACE}. DB::Exception: {sentence} (NOT_ENOUGH_SPACE)")
