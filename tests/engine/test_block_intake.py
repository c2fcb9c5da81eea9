"""Blocks of other processes in front of the journal: which go in, and that a token counts once."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from brokerhouse.broker.log.checkpoints import CHECKPOINTS
from brokerhouse.broker.log.producer_states import PRODUCER_STATES
from brokerhouse.common.clock import wall_ms
from brokerhouse.coordinator.tables import GROUPS, HEARTBEATS, MEMBERS, OFFSETS
from brokerhouse.protocol._decode_batches import BlockBuilder
from brokerhouse.protocol.columns import COLUMN_LIST
from brokerhouse.storage import block_intake
from brokerhouse.storage._merge_blocks import block_columns
from brokerhouse.storage.block_intake import BlockIntake
from brokerhouse.storage.blocks import DATETIME64_MS, INT32, INT64, STRING, Table, Type, block
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import NotSent
from brokerhouse.storage.journal import JournaledEngine, JournalLimits, open_journal
from brokerhouse.storage.journal_files import STREAMS
from tests.support import journal_engine
from tests.support.journal_rows import LOG_ROWS, log_row
from tests.support.log_parts import header_of, plain
from tests.support.waiting import LIMIT_S

COLUMNS = LOG_ROWS.column_list


@pytest.fixture(name="journal")
async def a_journal(engine: EmbeddedEngine) -> AsyncIterator[JournaledEngine]:
    async with journal_engine.journal_of(engine) as found:
        yield found


@pytest.fixture
def intake(journal: JournaledEngine) -> BlockIntake:
    return BlockIntake(journal)


def rows(*offsets: int) -> bytes:
    return block(LOG_ROWS, [log_row(offset) for offset in offsets])


async def append(intake: BlockIntake, offset: int, token: str | None = None) -> bool:
    return await intake.append("messages", COLUMNS, rows(offset), token or f"1-1-{offset}")


async def seen(journal: JournaledEngine) -> list[int]:
    return [n for (n,) in await journal.rows("SELECT offset FROM messages ORDER BY offset")]


def log_block() -> tuple[str, bytes]:
    """A block as a lane sends it."""
    batch = plain(b"value")
    builder = BlockBuilder(1_700_000_000_000)
    builder.append("t", bytes(16), 0, 0, 0, header_of(batch.data), batch.data[61:], None)
    return COLUMN_LIST, builder.finish()


@pytest.mark.parametrize(
    "table",
    [GROUPS, MEMBERS, HEARTBEATS, OFFSETS, CHECKPOINTS, PRODUCER_STATES],
    ids=lambda table: table.name,
)
async def test_rows_of_groups_and_checkpoints_go_into_the_journal(
    journal: JournaledEngine, intake: BlockIntake, table: Table
) -> None:
    values = [wall_ms() if kind is DATETIME64_MS else kind.default for _, kind in table.columns]
    data = block(table, [values])
    assert await intake.append(table.name, table.column_list, data, "a-1")
    assert not journal.is_empty
    await journal.drained()
    assert await journal.rows(f"SELECT count() FROM {table.name}") == [[1]]


async def test_blocks_of_a_lane_go_into_the_journal(
    journal: JournaledEngine, intake: BlockIntake
) -> None:
    columns, data = log_block()
    for number in range(3):
        assert await intake.append("messages", columns, data, f"1-1-{number}")
    assert not journal.is_empty
    assert await journal.rows("SELECT count() FROM messages") == [[3]]


def changed(**types: Type) -> Table:
    """The table of the log with other types of some columns."""
    columns = tuple((name, types.get(name, kind)) for name, kind in LOG_ROWS.columns)
    return Table("messages", columns)


def unfit() -> Iterator[Any]:
    good = rows(1)
    yield pytest.param("messages", COLUMNS, good[:-1], id="cut")
    yield pytest.param("messages", COLUMNS, good + b"\0", id="too long")
    yield pytest.param("messages", COLUMNS, good + good, id="two blocks")
    yield pytest.param("messages", COLUMNS, b"", id="nothing")
    yield pytest.param("messages", COLUMNS, os.urandom(300), id="noise")
    yield pytest.param("messages", COLUMNS, b"offset\n1\n", id="text")
    yield pytest.param("messages", f"{COLUMNS}, value", good, id="fewer columns")
    yield pytest.param("messages", COLUMNS.replace("topic,", "topics,"), good, id="other names")
    yield pytest.param("consumer_offsets", COLUMNS, good, id="another table")
    yield pytest.param("lag_history", COLUMNS, good, id="a table that brokers do not fill")
    yield pytest.param("nosuch", COLUMNS, good, id="no table")
    text = block(changed(partition=STRING), [("t", log_row(0)[1], "one", 0, 0)])
    yield pytest.param("messages", COLUMNS, text, id="another type")
    wide = block(changed(partition=INT64), [("t", log_row(0)[1], 1 << 40, 0, 0)])
    yield pytest.param("messages", COLUMNS, wide, id="a wider type")
    unknown = Table("messages", (*LOG_ROWS.columns, ("nosuch", INT32)))
    yield pytest.param(
        "messages", unknown.column_list, block(unknown, [(*log_row(0), 1)]), id="unknown column"
    )
    twice = Table("messages", (*LOG_ROWS.columns, ("topic", STRING)))
    yield pytest.param(
        "messages", twice.column_list, block(twice, [(*log_row(0), "t")]), id="a column twice"
    )
    alias = Table("messages", (*LOG_ROWS.columns, ("timestamp", LOG_ROWS.columns[-1][1])))
    yield pytest.param(
        "messages", alias.column_list, block(alias, [(*log_row(0), 1)]), id="an alias"
    )


@pytest.mark.parametrize(("table", "columns", "data"), list(unfit()))
@pytest.mark.parametrize("first", [True, False], ids=["first", "after a good one"])
async def test_a_block_that_the_engine_may_refuse_does_not_go_into_the_journal(
    journal: JournaledEngine,
    intake: BlockIntake,
    table: str,
    columns: str,
    data: bytes,
    first: bool,
) -> None:
    if not first:
        assert await append(intake, 0)
        await journal.drained()
    assert not await intake.append(table, columns, data, "2-1-1")
    assert journal.is_empty
    assert await append(intake, 1)
    assert await seen(journal) == [1] if first else [0, 1]


async def test_a_block_without_rows_does_not_go_into_the_journal(
    journal: JournaledEngine, intake: BlockIntake
) -> None:
    assert await append(intake, 0)
    parts = [(name, kind.name) for name, kind in LOG_ROWS.columns]
    empty = bytes([len(parts), 0]) + b"".join(
        bytes([len(text)]) + text.encode() for pair in parts for text in pair
    )
    assert not await intake.append("messages", COLUMNS, empty, "2-1-1")


async def test_blocks_of_a_table_with_a_constraint_bypass_the_journal(
    journal: JournaledEngine, intake: BlockIntake
) -> None:
    async with intake.tables_may_change():
        await journal.execute("ALTER TABLE messages ADD CONSTRAINT c CHECK offset < 10")
    assert not await append(intake, 0)
    async with intake.tables_may_change():
        await journal.execute("ALTER TABLE messages DROP CONSTRAINT c")
    assert await append(intake, 0)


# --- statements that change tables


async def test_while_tables_change_the_journal_is_empty_and_inserts_are_direct(
    journal: JournaledEngine, intake: BlockIntake
) -> None:
    assert await append(intake, 0)
    async with intake.tables_may_change():
        assert journal.is_empty
        assert not await append(intake, 1)
        assert await append(intake, 0)  # it is known
        async with intake.tables_may_change():
            assert not await append(intake, 1)
        assert not await append(intake, 1)
    assert await append(intake, 1)


async def test_the_check_of_a_block_is_void_if_tables_change_after_it_began(
    journal: JournaledEngine, intake: BlockIntake, monkeypatch: pytest.MonkeyPatch
) -> None:
    checking, go_on = asyncio.Event(), asyncio.Event()
    inner = EmbeddedEngine.rows

    async def slow(self: EmbeddedEngine, *arguments: Any) -> Any:
        found = await inner(self, *arguments)
        checking.set()
        await go_on.wait()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(EmbeddedEngine, "rows", slow)
        appending = asyncio.create_task(append(intake, 0))
        await checking.wait()
    async with intake.tables_may_change():
        await journal.embedded.execute("ALTER TABLE messages ADD CONSTRAINT c CHECK offset = 1")
    go_on.set()
    assert not await appending
    assert not await append(intake, 0)


async def test_the_check_of_a_block_is_void_if_it_began_while_tables_changed(
    journal: JournaledEngine, intake: BlockIntake, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, go_on = threading.Event(), threading.Event()
    checked, finish = asyncio.Event(), asyncio.Event()
    inner = EmbeddedEngine.rows

    def slow_columns(data: bytes) -> list[tuple[str, str]]:
        reading.set()
        go_on.wait(LIMIT_S)
        return block_columns(data)

    async def slow_rows(self: EmbeddedEngine, *arguments: Any) -> Any:
        found = await inner(self, *arguments)
        if "system.columns" in arguments[0]:
            checked.set()
            await finish.wait()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(block_intake, "block_columns", slow_columns)
        patch.setattr(EmbeddedEngine, "rows", slow_rows)
        appending = asyncio.create_task(append(intake, 0))
        await asyncio.to_thread(reading.wait, LIMIT_S)
        async with intake.tables_may_change():
            go_on.set()
            await checked.wait()
            await journal.embedded.execute("ALTER TABLE messages ADD CONSTRAINT c CHECK offset = 1")
        finish.set()
        assert not await appending
    assert not await append(intake, 0)


async def test_log_rows_without_the_columns_of_recovery_are_inserted_directly(
    intake: BlockIntake,
) -> None:
    names = ("topic_id", "topic", "partition", "offset")
    some = Table("messages", tuple(one for one in LOG_ROWS.columns if one[0] in names))
    values = [
        value
        for one, value in zip(LOG_ROWS.columns, log_row(0), strict=True)
        if one in some.columns
    ]
    assert not await intake.append("messages", some.column_list, block(some, [values]), "1-1-0")


async def test_after_a_change_of_columns_blocks_are_checked_against_the_new_columns(
    journal: JournaledEngine, intake: BlockIntake
) -> None:
    assert await append(intake, 0)
    async with intake.tables_may_change():
        await journal.execute("ALTER TABLE messages MODIFY COLUMN leader_epoch Int64")
        await journal.execute("ALTER TABLE messages DROP COLUMN value")
    columns, data = log_block()
    assert not await intake.append("messages", columns, data, "2-1-1")
    assert await append(intake, 1)
    assert await seen(journal) == [0, 1]


# --- tokens of blocks that go both ways


async def test_a_block_whose_token_is_in_the_journal_is_not_inserted_directly(
    journal: JournaledEngine, intake: BlockIntake
) -> None:
    assert await append(intake, 0, "1-1-1")
    assert not await intake.begin_direct("messages", "1-1-1")
    await journal.drained()
    assert not await intake.begin_direct("messages", "1-1-1")
    assert await intake.begin_direct("consumer_offsets", "1-1-1")


async def test_a_token_inserted_directly_is_never_journaled(data_dir: Path) -> None:
    async with journal_engine.journal(data_dir) as journal:
        intake = BlockIntake(journal)
        assert await intake.begin_direct("messages", "1-1-1")
        assert await intake.begin_direct("messages", "1-1-1")
        assert not await append(intake, 0, "1-1-1")
        assert await append(intake, 0, "1-1-2")
    for _ in range(2):
        async with journal_engine.journal(data_dir) as journal:
            intake = BlockIntake(journal)
            assert not await append(intake, 0, "1-1-1")
            assert await append(intake, 0, "1-1-2")
            assert journal.is_empty


async def test_a_token_whose_direct_insert_is_being_announced_does_not_go_into_the_journal(
    data_dir: Path,
) -> None:
    """With fsync the announcement takes a while."""
    async with journal_engine.journal(data_dir, fsync=True) as journal:
        intake = BlockIntake(journal)
        assert await append(intake, 0)
        direct = asyncio.create_task(intake.begin_direct("messages", "1-1-1"))
        await asyncio.sleep(0)
        assert not direct.done()
        assert not await append(intake, 1, "1-1-1")
        assert await direct


async def test_a_token_that_is_being_appended_to_the_journal_is_not_inserted_directly(
    data_dir: Path,
) -> None:
    async with journal_engine.journal(data_dir, fsync=True) as journal:
        intake = BlockIntake(journal)
        assert await append(intake, 0)
        appending = asyncio.create_task(append(intake, 1, "1-1-1"))
        await asyncio.sleep(0)
        assert not appending.done()
        assert not await intake.begin_direct("messages", "1-1-1")
        assert await appending


async def test_a_token_whose_announcement_failed_can_go_into_the_journal(
    journal: JournaledEngine, intake: BlockIntake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    assert await append(intake, 0)
    with monkeypatch.context() as patch:
        patch.setattr("os.pwritev", full)
        with pytest.raises(NotSent, match="No space left"):
            await intake.begin_direct("messages", "1-1-1")
        with pytest.raises(NotSent, match="No space left"):
            await append(intake, 1, "1-1-1")
    assert await append(intake, 1, "1-1-1")
    assert await seen(journal) == [0, 1]


async def test_the_notes_of_direct_inserts_do_not_fill_the_disk(data_dir: Path) -> None:
    engine = EmbeddedEngine(data_dir, STREAMS, fsync=False)
    limits = JournalLimits(1 << 20, journal_engine.PATIENT)
    journal = await open_journal(engine, limits, fsync=False, segment_bytes=4096)
    intake = BlockIntake(journal)
    for number in range(1000):
        assert await intake.begin_direct("messages", f"1-1-{number}")
    files = list((data_dir / "journal").iterdir())
    assert sum(path.stat().st_size for path in files) <= 4 * 4096
    assert not await append(intake, 0, "1-1-0")
    await journal.close()
