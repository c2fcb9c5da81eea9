"""Fixtures for tests of one part: a real engine in this process, with the broker's tables."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from storage.embedded import EmbeddedEngine
from storage.schema import migrate
from tests.support.log_parts import LANES, ScriptedEngine


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with the broker's tables and no rows, to be copied: 64 small files.

    Making the tables costs more than twice as much (0.3 s of CPU a test, measured).
    """
    directory = tmp_path_factory.mktemp("tables") / "data"

    async def make() -> None:
        opened = EmbeddedEngine(directory, 1, fsync=False)
        await migrate(opened)
        await opened.close()

    asyncio.run(make())
    return directory


@pytest.fixture
def data_dir(tables: Path, tmp_path: Path) -> Path:
    """A data directory of the test's own, with the broker's tables."""
    return Path(shutil.copytree(tables, tmp_path / "data", symlinks=True))


@pytest.fixture
async def engine(data_dir: Path) -> AsyncIterator[EmbeddedEngine]:
    """An embedded ClickHouse of the test's own. A process has one at a time."""
    opened = EmbeddedEngine(data_dir, LANES, fsync=False)
    try:
        yield opened
    finally:
        await opened.close()


@pytest.fixture
async def scripted(engine: EmbeddedEngine) -> ScriptedEngine:
    """The test's engine, whose faults and delays the test chooses."""
    return ScriptedEngine(engine)
