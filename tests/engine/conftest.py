"""Fixtures for tests of one part: a real engine in this process, with the broker's tables."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from storage.embedded import EmbeddedEngine
from storage.schema import migrate
from tests.support.log_parts import LANES, ScriptedEngine


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[EmbeddedEngine]:
    """An embedded ClickHouse of the test's own. A process has one at a time."""
    opened = EmbeddedEngine(tmp_path / "data", LANES, fsync=False)
    try:
        await migrate(opened)
        yield opened
    finally:
        await opened.close()


@pytest.fixture
async def scripted(engine: EmbeddedEngine) -> ScriptedEngine:
    """The test's engine, whose faults and delays the test chooses."""
    return ScriptedEngine(engine)
