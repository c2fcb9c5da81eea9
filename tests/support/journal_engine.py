"""The journal in front of a real engine, in the process of the tests."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.journal import JournaledEngine, JournalLimits, open_journal
from brokerhouse.storage.journal_drain import DrainLimits
from brokerhouse.storage.journal_files import STREAMS
from brokerhouse.storage.journal_register import register_path

NEVER_MS = 86_400_000
PATIENT = DrainLimits(1 << 30, 1 << 30, NEVER_MS)
"""Nothing goes into the engine but what is asked for."""
_SMALL_SEGMENT = 1 << 20
"""Files of the usual size are 16 times as large, and each of them is allocated."""


@asynccontextmanager
async def journal(
    data_dir: Path,
    drain: DrainLimits = PATIENT,
    max_bytes: int = 1 << 30,
    *,
    fsync: bool = False,
    skip_damage: bool = False,
    small_tables: DrainLimits | None = None,
) -> AsyncIterator[JournaledEngine]:
    engine = EmbeddedEngine(data_dir, STREAMS, fsync=fsync)
    try:
        opened = await open_journal(
            engine,
            JournalLimits(max_bytes, drain, small_tables),
            fsync=fsync,
            skip_damage=skip_damage,
        )
    except BaseException:
        await engine.close()
        raise
    try:
        yield opened
    finally:
        await opened.close()


@asynccontextmanager
async def journal_of(
    engine: EmbeddedEngine,
    drain: DrainLimits = PATIENT,
    max_bytes: int = 1 << 30,
    *,
    small_tables: DrainLimits | None = None,
) -> AsyncIterator[JournaledEngine]:
    """A journal in front of an engine that stays open; its files are gone afterwards."""
    limits = JournalLimits(max_bytes, drain, small_tables)
    opened = await open_journal(engine, limits, fsync=False, segment_bytes=_SMALL_SEGMENT)
    try:
        yield opened
    finally:
        for stream in opened.streams:
            await stream.close()
        await opened.close_files()
        shutil.rmtree(engine.data_dir / "journal")
        register_path(engine.data_dir / "journal").unlink(missing_ok=True)
