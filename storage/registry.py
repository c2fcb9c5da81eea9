"""The registry: metadata changed by compare-and-set, small keys with a version that only grows.

With the embedded engine there is one process, so a lock and a table are enough. In a cluster the
same interface uses KeeperMap, ClickHouse's table engine on Keeper. Keys hold text of a few bytes,
never data of clients.

What must hold: if several brokers change a key at once, one of them succeeds, and each learns
correctly whether it did. If that cannot be found out, the call raises `EngineError`, and the caller
reads the key again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from brokerhouse.sql.queries import query
from brokerhouse.storage.engine import Engine, EngineError, Parameter, Row

LOOK_ANYWAY_S: Final = 30.0
"""Readers that wait for a new version of what is in the registry read it again after this long all
the same: a broker may have died between a change and the new version."""


@dataclass(frozen=True, slots=True)
class Versioned:
    value: str
    version: int
    """1 for a new key, and one more after every change."""


class RegistryServer(Protocol):
    """What a registry needs of a ClickHouse; every `Engine` has it."""

    async def rows(self, sql: str, params: Mapping[str, Parameter] | None = None) -> list[Row]:
        """As `Engine.rows`."""

    async def execute(self, sql: str, params: Mapping[str, Parameter] | None = None) -> None:
        """As `Engine.execute`."""


class Registry(Protocol):
    """Every call raises `EngineError` when no server answers."""

    async def get(self, key: str) -> Versioned | None:
        """The current value of a key, or None if there is no such key."""

    async def list(self, prefix: str) -> dict[str, Versioned]:
        """Every key that begins with `prefix`. Not a snapshot: others may change keys meanwhile."""

    async def compare_and_set(self, key: str, expected: Versioned | None, value: str) -> bool:
        """Set `key` if it is still as `expected`. False if another broker was faster.

        Raises `EngineError` also if the outcome cannot be found out: then read the key again.
        """

    async def create(self, values: Mapping[str, str]) -> dict[str, Versioned]:
        """Create keys in one change. Returns those that are new; the others existed and stay.

        Raises `EngineError` also if the outcome cannot be found out: then read the keys again.
        """

    async def attempt(self, key: str, expected: Versioned | None, value: str) -> None:
        """As `compare_and_set`, sent once. Whether it has succeeded is for the caller to read."""

    async def delete(self, key: str, expected: Versioned) -> bool:
        """Delete `key` if it is still as `expected`. True when the key does not exist any more."""


async def announce(state: Registry, key: str) -> int:
    """Add one to the number under `key`, which other brokers watch. Raises `EngineError`."""
    while True:
        version = await state.get(key)
        number = version_number(version) + 1
        if await state.compare_and_set(key, version, str(number)):
            return number


def version_number(version: Versioned | None) -> int:
    """The number under a key that other brokers watch. Raises `EngineError`."""
    try:
        return 0 if version is None else int(version.value)
    except ValueError as error:
        raise EngineError(f"a version in the registry is not a number: {error}") from error


class TableRegistry:
    """The registry of a single process: table `cluster_state` of the embedded engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = asyncio.Lock()

    async def get(self, key: str) -> Versioned | None:
        rows = await self._engine.rows(
            "SELECT value, version FROM cluster_state WHERE key = {key:String}"
            " ORDER BY version DESC LIMIT 1",
            {"key": key},
        )
        return Versioned(*rows[0]) if rows else None

    async def list(self, prefix: str) -> dict[str, Versioned]:
        rows = await self._engine.rows(query("list_cluster_state"), {"prefix": prefix})
        return {key: Versioned(value, version) for key, value, version in rows}

    async def compare_and_set(self, key: str, expected: Versioned | None, value: str) -> bool:
        async with self._lock:
            if await self.get(key) != expected:
                return False
            await self._engine.execute(
                "INSERT INTO cluster_state SELECT {key:String}, {version:UInt64}, {value:String}",
                {"key": key, "version": expected.version + 1 if expected else 1, "value": value},
            )
            return True

    async def create(self, values: Mapping[str, str]) -> dict[str, Versioned]:
        async with self._lock:
            found = await self.list("")
            new = {key: value for key, value in values.items() if key not in found}
            if new:
                await self._engine.execute(
                    query("create_in_cluster_state"),
                    {"keys": list(new), "values": list(new.values())},
                )
            return {key: Versioned(value, 1) for key, value in new.items()}

    async def attempt(self, key: str, expected: Versioned | None, value: str) -> None:
        await self.compare_and_set(key, expected, value)

    async def delete(self, key: str, expected: Versioned) -> bool:
        async with self._lock:
            found = await self.get(key)
            if found == expected:
                await self._engine.execute(
                    "DELETE FROM cluster_state WHERE key = {key:String}", {"key": key}
                )
            return found in (None, expected)


# A stored value begins with the marks of the writes that made it, the newest first. So a broker can
# tell whether its write has happened, even if the answer was lost and others have written since.
_MARK_CHARS = 16
_MARKS = 8
_HEADER_CHARS = _MARK_CHARS * _MARKS
_NO_MARKS = "0" * (_HEADER_CHARS - _MARK_CHARS)
_ATTEMPTS = 4

# Without strict mode an INSERT overwrites, and an UPDATE does not check the version again when it
# writes. Attempts are repeated here, not by ClickHouse: on its own it retries for a minute and a
# half when Keeper hangs (measured, 26.9).
_KEEPER_SETTINGS = (
    "SETTINGS keeper_map_strict_mode = 1, keeper_max_retries = 0, insert_keeper_max_retries = 0"
)


ANSWER_LIMIT_MS = 5000
"""How long a broker waits for the registry: well below the lease of its session."""
STATEMENT_LIMIT_MS = 1500
"""How long it waits for one server with one statement of that."""


class KeeperRegistry:
    """The registry of a cluster: a table `(key String, value String)` with engine KeeperMap.

    Writes are linearizable. The reads of one server never go back in time, but a server may lag
    behind another, so what is read after a failed attempt is trusted only if it proves something.
    Measured with chDB 26.9 and ZooKeeper: 2 ms for a read, 5 ms for a write and its check.
    """

    def __init__(
        self, engine: RegistryServer, table: str, timeout_ms: int = ANSWER_LIMIT_MS
    ) -> None:
        """`table` is in the engine's default database. `timeout_ms` bounds every call."""
        self._engine = engine
        self._table = table
        self._timeout_s = timeout_ms / 1000

    async def get(self, key: str) -> Versioned | None:
        async with self._limit():
            stored = await self._read(key)
        return stored.content if stored else None

    async def list(self, prefix: str) -> dict[str, Versioned]:
        async with self._limit():
            # Without a condition if all are wanted: that is read often, and this costs 0.7 ms.
            where = "WHERE startsWith(key, {prefix:String})" if prefix else ""
            rows = await self._engine.rows(
                f"SELECT key, value, _version FROM {self._table} {where} {_KEEPER_SETTINGS}",
                {"prefix": prefix},
            )
        return {key: _stored(rest).content for key, *rest in rows}

    async def compare_and_set(self, key: str, expected: Versioned | None, value: str) -> bool:
        mark = secrets.token_hex(_MARK_CHARS // 2)
        statement, params = self._setting(key, expected, value, mark)
        return await self._change(
            key,
            expected,
            statement,
            params,
            has_happened=lambda found: found is not None and mark in found.marks,
        )

    async def create(self, values: Mapping[str, str]) -> dict[str, Versioned]:
        mark = secrets.token_hex(_MARK_CHARS // 2)
        left, created = dict(values), dict[str, Versioned]()
        error: EngineError | None = None
        async with self._limit():
            for _ in range(_ATTEMPTS):
                try:
                    # Keeper creates all of them or none.
                    await self._engine.execute(
                        query("create_in_registry", table=self._table, settings=_KEEPER_SETTINGS),
                        {
                            "mark": mark,
                            "no_marks": _NO_MARKS,
                            "keys": list(left),
                            "values": list(left.values()),
                        },
                    )
                except EngineError as failed:
                    error = failed  # also raised if one of the keys exists
                for key, found in (await self._read_all(left)).items():
                    del left[key]
                    if mark in found.marks:
                        created[key] = found.content
                if not left:
                    return created
        raise EngineError(
            f"it is unknown whether {len(left)} keys were created:"
            f" {error or 'the server has not seen the write yet'}",
            error.code if error else 0,
        )

    async def _read_all(self, keys: Iterable[str]) -> dict[str, _Stored]:
        rows = await self._engine.rows(
            query("read_from_registry", table=self._table, settings=_KEEPER_SETTINGS),
            {"keys": list(keys)},
        )
        return {key: _stored(rest) for key, *rest in rows}

    async def attempt(self, key: str, expected: Versioned | None, value: str) -> None:
        mark = secrets.token_hex(_MARK_CHARS // 2)
        async with self._limit():
            await self._engine.execute(*self._setting(key, expected, value, mark))

    def _setting(
        self, key: str, expected: Versioned | None, value: str, mark: str
    ) -> tuple[str, Mapping[str, Parameter]]:
        """A statement that sets `key` if it is as `expected`, and its parameters."""
        if expected is None:
            statement = query(
                "create_key_in_registry", table=self._table, settings=_KEEPER_SETTINGS
            )
        else:
            statement = query(
                "change_key_in_registry",
                table=self._table,
                kept=str(len(_NO_MARKS)),
                as_expected=_AS_EXPECTED,
                settings=_KEEPER_SETTINGS,
            )
        params = {"mark": mark, "no_marks": _NO_MARKS, "value": value, **_where(key, expected)}
        return statement, params

    async def delete(self, key: str, expected: Versioned) -> bool:
        return await self._change(
            key,
            expected,
            f"ALTER TABLE {self._table} DELETE WHERE {_AS_EXPECTED} {_KEEPER_SETTINGS}",
            _where(key, expected),
            has_happened=lambda found: found is None,
        )

    async def _change(
        self,
        key: str,
        expected: Versioned | None,
        statement: str,
        params: Mapping[str, Parameter],
        has_happened: Callable[[_Stored | None], bool],
    ) -> bool:
        """Run a statement until it is known whether it changed the key. Raises `EngineError`."""
        error: EngineError | None = None
        async with self._limit():
            for _ in range(_ATTEMPTS):
                try:
                    await self._engine.execute(statement, params)
                except EngineError as failed:
                    # Also raised if the key exists, or was changed between the check and the write.
                    error = failed
                found = await self._read(key)
                if has_happened(found):
                    return True
                if _is_past(found, expected):
                    return False
                # The write has not happened, or this server has not seen it yet. Repeating it is
                # safe, and brings the server up to date.
        raise EngineError(
            f"it is unknown whether the key {key!r} was changed:"
            f" {error or 'the server has not seen the write yet'}",
            error.code if error else 0,
        )

    async def _read(self, key: str) -> _Stored | None:
        rows = await self._engine.rows(
            f"SELECT value, _version FROM {self._table} WHERE key = {{key:String}}"
            f" {_KEEPER_SETTINGS}",
            {"key": key},
        )
        return _stored(rows[0]) if rows else None

    @asynccontextmanager
    async def _limit(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except TimeoutError as error:
            raise EngineError(f"the registry did not answer in {self._timeout_s:g} s") from error


_AS_EXPECTED = (
    "key = {key:String} AND _version = {version:Int32}"
    f" AND substring(value, {_HEADER_CHARS + 1}) = {{expected:String}}"
)


@dataclass(frozen=True, slots=True)
class _Stored:
    content: Versioned
    marks: tuple[str, ...]


def _stored(row: Row) -> _Stored:
    text, version = row
    marks = tuple(text[at : at + _MARK_CHARS] for at in range(0, _HEADER_CHARS, _MARK_CHARS))
    # Keeper counts from 0.
    return _Stored(Versioned(text[_HEADER_CHARS:], version + 1), marks)


def _where(key: str, expected: Versioned | None) -> dict[str, Parameter]:
    if expected is None:
        return {"key": key}
    return {"key": key, "version": expected.version - 1, "expected": expected.value}


def _is_past(found: _Stored | None, expected: Versioned | None) -> bool:
    """Whether others have changed the key since `expected`, without any write of this broker."""
    if found is None:
        return expected is not None
    before = expected.version if expected else 0
    version = found.content.version
    if version == before:
        return found.content != expected
    return before < version <= before + _MARKS
