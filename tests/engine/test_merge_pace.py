"""Merges of the log wait while large rounds of the journal follow each other."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from brokerhouse.storage import merge_pace
from brokerhouse.storage.blocks import block
from brokerhouse.storage.disk_reserve import LOW_BYTES
from brokerhouse.storage.engine import EngineError
from brokerhouse.storage.journal import JournaledEngine
from brokerhouse.storage.journal_drain import DrainLimits
from brokerhouse.storage.merge_pace import SETTING, MergePace
from tests.support.journal_engine import NEVER_MS, journal
from tests.support.journal_rows import LOG_ROWS, OFFSET_ROWS, log_row, offset_row
from tests.support.waiting import until_async

ROUNDS_OF_FOUR = DrainLimits(1 << 30, 4, NEVER_MS)
"""A round goes into the table when it has four rows; one row is a quarter of it."""
ROUNDS_OF_EIGHT = DrainLimits(1 << 30, 8, NEVER_MS)


@pytest.fixture
def long_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_pace, "_PAUSE_S", 1e6)


@pytest.fixture
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_pace, "_PAUSE_S", 0.05)


async def append(opened: JournaledEngine, first: int, rows: int) -> None:
    """One block, which is in the table when this returns."""
    data = block(LOG_ROWS, [log_row(offset) for offset in range(first, first + rows)])
    await opened.insert_block(0, "messages", LOG_ROWS.column_list, data, f"log-{first}")
    await opened.drained()


async def has_setting(opened: JournaledEngine) -> bool:
    ((found,),) = await opened.embedded.rows(
        "SELECT position(create_table_query, {setting:String}) > 0 FROM system.tables"
        " WHERE database = currentDatabase() AND name = 'messages'",
        {"setting": SETTING},
    )
    return bool(found)


async def until_setting(opened: JournaledEngine, expected: bool) -> None:
    async def found() -> bool:
        return await has_setting(opened) == expected

    await until_async(found)


async def levels(opened: JournaledEngine) -> list[int]:
    """How often each part was merged."""
    sql = "SELECT level FROM system.parts WHERE active AND table = 'messages' AND rows > 0"
    return [level for (level,) in await opened.embedded.rows(sql)]


@pytest.mark.usefixtures("long_pause")
async def test_parts_of_large_rounds_are_not_merged_until_the_load_ends(data_dir: Path) -> None:
    async with journal(data_dir, ROUNDS_OF_FOUR) as opened:
        await append(opened, 0, 4)
        await until_setting(opened, True)
        for number in range(1, 20):
            await append(opened, 4 * number, 4)
        assert await levels(opened) == [0] * 20
    async with journal(data_dir) as opened:
        assert not await has_setting(opened)
        await append(opened, 80, 1)  # an insert makes the engine look for merges

        async def merged() -> bool:
            return any(await levels(opened))

        await until_async(merged)


@pytest.mark.usefixtures("long_pause")
async def test_merges_resume_after_a_pause_and_wait_again_at_the_next_large_round(
    data_dir: Path,
) -> None:
    async with journal(data_dir, ROUNDS_OF_FOUR) as opened:
        for first in (0, 8):
            await append(opened, first, 4)
            await until_setting(opened, True)
            with pytest.MonkeyPatch.context() as shorter:
                shorter.setattr(merge_pace, "_PAUSE_S", 0.05)
                await append(opened, first + 4, 4)  # the pause begins anew, and is short
                await until_setting(opened, False)


async def test_large_rounds_of_the_log_delay_merges_and_other_rounds_do_not(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[None] = []
    monkeypatch.setattr(MergePace, "large_round", lambda _: told.append(None))
    async with journal(data_dir, ROUNDS_OF_EIGHT) as opened:
        await append(opened, 0, 1)
        data = block(OFFSET_ROWS, [offset_row(offset) for offset in range(8)])
        await opened.insert_block(0, "consumer_offsets", OFFSET_ROWS.column_list, data, "offsets")
        await opened.drained()
        assert not told
        await append(opened, 1, 2)
        assert len(told) == 1


@pytest.mark.usefixtures("long_pause")
async def test_rows_can_be_deleted_while_merges_wait(data_dir: Path) -> None:
    async with journal(data_dir, ROUNDS_OF_FOUR) as opened:
        await append(opened, 0, 4)
        await until_setting(opened, True)
        await opened.execute("DELETE FROM messages WHERE offset < 3")
        await opened.execute(
            "ALTER TABLE messages UPDATE timestamp_ms = 7 WHERE offset = 3"
            " SETTINGS mutations_sync = 1"
        )
        assert await opened.rows("SELECT offset, timestamp_ms FROM messages") == [[3, 7]]


async def test_a_merge_setting_left_by_a_crash_is_removed_at_the_next_start(data_dir: Path) -> None:
    async with journal(data_dir) as opened:
        await opened.execute(f"ALTER TABLE messages MODIFY SETTING {SETTING} = 100")
    async with journal(data_dir) as opened:
        assert not await has_setting(opened)


@pytest.mark.usefixtures("long_pause")
async def test_an_engine_that_refuses_the_merge_setting_causes_a_warning_and_no_error(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with journal(data_dir) as opened:
        asked: list[str] = []

        async def refuse(sql: str) -> None:
            asked.append(sql)
            raise EngineError("no")

        monkeypatch.setattr(opened.embedded, "execute", refuse)
        pace = MergePace(opened.embedded)

        async def refused() -> bool:
            return bool(asked)

        with caplog.at_level(logging.WARNING):
            pace.large_round()
            await until_async(refused)
            await pace.close()
        assert [sql.split()[3] for sql in asked] == ["MODIFY", "RESET"]
        assert "cannot change how many parts are merged: no" in caplog.text
        monkeypatch.undo()


@pytest.mark.usefixtures("short_pause")
async def test_on_a_low_disk_the_definition_of_the_log_is_not_written(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with journal(data_dir) as opened:
        asked: list[str] = []
        looked = 0

        async def note(sql: str) -> None:
            asked.append(sql)

        def free_bytes() -> int:
            nonlocal looked
            looked += 1
            return 0 if looked < 5 else 2 * LOW_BYTES

        monkeypatch.setattr(opened.embedded, "execute", note)
        monkeypatch.setattr(opened.embedded, "reserve", SimpleNamespace(free_bytes=free_bytes))
        pace = MergePace(opened.embedded)
        pace.large_round()
        await until_async(lambda: bool(asked))
        assert looked > 5
        await pace.close()
        assert [sql.split()[3] for sql in asked] == ["RESET"]
        monkeypatch.undo()
