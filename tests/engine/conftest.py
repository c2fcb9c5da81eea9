"""Fixtures for tests of one part: a real engine in this process, with the broker's tables.

Opening an engine costs 0.15 s of CPU, emptying its tables a tenth of that. So the tests of one file
share an engine, and each begins with empty tables. A process has one engine at a time: a test that
opens one of its own asks for `data_dir` or `own_engine`, which close the shared one first.
"""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.schema import migrate
from tests.support.log_parts import LANES, ScriptedEngine

BROKERS_OWN = "database = 'brokerhouse'"
# What emptying does not restore: definitions that a test has changed, tables that it has added, and
# views of other databases, which the engine may remember. The engine tells the time of a definition
# in seconds, so `made_tables` makes all of them old.
LEFT_BEHIND = (
    f"SELECT countIf({BROKERS_OWN} AND metadata_modification_time > toDateTime(100000000)),"
    f" countIf({BROKERS_OWN} OR database = 'default'),"
    f" countIf(NOT {BROKERS_OWN} AND engine LIKE '%View') FROM system.tables"
    " WHERE database NOT IN ('system', 'INFORMATION_SCHEMA', 'information_schema')"
)
OTHER_DATABASES = (
    "SELECT name FROM system.databases WHERE name NOT IN"
    " ('brokerhouse', 'default', 'system', 'INFORMATION_SCHEMA', 'information_schema')"
)
# Tables of a test. A view, of which the engine may remember something, is none of them.
ADDED_TABLES = (
    "SELECT database, name FROM system.tables WHERE database IN ('brokerhouse', 'default')"
    " AND NOT (database = 'brokerhouse' AND has({made:Array(String)}, name))"
    " AND engine NOT LIKE '%View'"
)
BROKERS_TABLES = f"SELECT name FROM system.tables WHERE {BROKERS_OWN}"
TABLES_WITH_PARTS = (
    f"SELECT DISTINCT table FROM system.parts WHERE {BROKERS_OWN} AND table != 'schema_migrations'"
)


@pytest.fixture(scope="session")
def made_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with the broker's tables and no rows, to be copied: 64 small files.

    Making the tables costs more than twice as much (0.3 s of CPU a test, measured).
    """
    directory = tmp_path_factory.mktemp("tables") / "data"

    async def make() -> None:
        opened = EmbeddedEngine(directory, 1, fsync=False)
        await migrate(opened)
        await opened.close()

    asyncio.run(make())
    for path in directory.rglob("*.sql"):
        os.utime(path, (0, 0))
    return directory


class SharedEngine:
    """The engine of the tests of one file, as long as none of them needs one of its own."""

    def __init__(self, tables: Path, directory: Path) -> None:
        self._tables = tables
        self._directory = directory
        self._opened: EmbeddedEngine | None = None
        self._left: list[int] = []
        self._made: list[str] = []

    async def emptied(self) -> EmbeddedEngine:
        """The engine, with the broker's tables, in which there are no rows."""
        if self._opened is None or not await self._restored(self._opened):
            await self.close()
            data_dir = shutil.copytree(self._tables, self._directory, symlinks=True)
            self._opened = EmbeddedEngine(Path(data_dir), LANES, fsync=False)
            self._left = await left_behind(self._opened)
            self._made = [str(name) for (name,) in await self._opened.rows(BROKERS_TABLES)]
        return self._opened

    async def _restored(self, engine: EmbeddedEngine) -> bool:
        """Empties the engine. False if a test changed what emptying does not restore."""
        idle = engine._readers
        if idle.qsize() < len(engine._all_readers):
            return False  # a test has left a stream open
        engine._readers = asyncio.LifoQueue()  # each test has an event loop of its own
        while not idle.empty():
            engine._readers.put_nowait(idle.get_nowait())
        if await left_behind(engine) != self._left:
            for database, name in await engine.rows(ADDED_TABLES, {"made": self._made}):
                await engine.execute(f"DROP TABLE {database}.`{name}` SYNC")
            if await left_behind(engine) != self._left:
                return False
        await engine.execute("SYSTEM START MERGES")
        if await engine.rows("SELECT 1 FROM system.mutations LIMIT 1"):  # those that are done, too
            await engine.execute(f"KILL MUTATION WHERE {BROKERS_OWN} SYNC")
        for (name,) in await engine.rows(OTHER_DATABASES):
            await engine.execute(f"DROP DATABASE `{name}` SYNC")
        for (name,) in await engine.rows(TABLES_WITH_PARTS):
            await engine.execute(f"TRUNCATE TABLE {name} SYNC")
        return True

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()
            self._opened = None
            shutil.rmtree(self._directory)


async def left_behind(engine: EmbeddedEngine) -> list[int]:
    (row,) = await engine.rows(LEFT_BEHIND)
    return row


@pytest.fixture(scope="module")
def shared_engine(
    made_tables: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SharedEngine]:
    shared = SharedEngine(made_tables, tmp_path_factory.mktemp("shared") / "data")
    yield shared
    asyncio.run(shared.close())


@pytest.fixture
async def alone(shared_engine: SharedEngine) -> None:
    """No engine is open in this process: the test opens its own."""
    await shared_engine.close()


@pytest.fixture
def data_dir(made_tables: Path, tmp_path: Path, alone: None) -> Path:
    """A data directory of the test's own, with the broker's tables."""
    return Path(shutil.copytree(made_tables, tmp_path / "data", symlinks=True))


@pytest.fixture
async def engine(shared_engine: SharedEngine) -> EmbeddedEngine:
    """An embedded ClickHouse with the broker's tables, which are empty."""
    return await shared_engine.emptied()


@pytest.fixture
async def own_engine(data_dir: Path) -> AsyncIterator[EmbeddedEngine]:
    """An embedded ClickHouse of the test's own."""
    opened = EmbeddedEngine(data_dir, LANES, fsync=False)
    try:
        yield opened
    finally:
        await opened.close()


@pytest.fixture
async def scripted(engine: EmbeddedEngine) -> ScriptedEngine:
    """The test's engine, whose faults and delays the test chooses."""
    return ScriptedEngine(engine)
