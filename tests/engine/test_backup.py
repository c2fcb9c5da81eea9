"""The moment at which a backup is taken: the tables stand still, the journal goes on."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from brokerhouse.storage.blocks import block
from brokerhouse.storage.journal import JournaledEngine
from tests.support.journal_engine import journal
from tests.support.journal_rows import LOG_ROWS, OFFSET_ROWS, log_row, offset_row

A_WHILE_S = 0.2


async def append(opened: JournaledEngine, offset: int) -> None:
    """A record, and a commit of its offset."""
    record, commit = block(LOG_ROWS, [log_row(offset)]), block(OFFSET_ROWS, [offset_row(offset)])
    await opened.insert_block(0, "messages", LOG_ROWS.column_list, record, f"log-{offset}")
    await opened.insert_block(
        0, "consumer_offsets", OFFSET_ROWS.column_list, commit, f"offset-{offset}"
    )


async def stored(opened: JournaledEngine) -> list[int]:
    """How many rows the tables have, without what is in the journal alone."""
    counts = "SELECT (SELECT count() FROM messages), (SELECT count() FROM consumer_offsets)"
    (row,) = await opened.embedded.rows(counts)
    return row


async def test_during_a_standstill_the_tables_hold_exactly_the_acknowledged_rows(
    data_dir: Path,
) -> None:
    async with journal(data_dir) as opened:
        await append(opened, 0)
        async with opened.standstill.hold():
            assert await stored(opened) == [1, 1]
            await append(opened, 1)
            asking = asyncio.create_task(opened.rows("SELECT count() FROM messages"))
            await asyncio.sleep(A_WHILE_S)
            assert await stored(opened) == [1, 1]
            assert not asking.done(), "it would miss a row that was acknowledged"
        assert await asking == [[2]]


async def test_statements_that_change_tables_wait_for_the_end_of_a_standstill(
    data_dir: Path,
) -> None:
    insert = "INSERT INTO cluster_state SELECT 'a', 1, 'b'"
    async with journal(data_dir) as opened:
        async with opened.standstill.hold():
            changes = [
                asyncio.create_task(opened.execute(insert)),
                asyncio.create_task(opened.patient.execute(insert)),
            ]
            await asyncio.sleep(A_WHILE_S)
            assert not any(change.done() for change in changes)
            assert await opened.rows("SELECT count() FROM cluster_state") == [[0]]
        await asyncio.gather(*changes)
        assert await opened.rows("SELECT count() FROM cluster_state") == [[2]]


async def test_an_error_inside_a_standstill_ends_it(data_dir: Path) -> None:
    async with journal(data_dir) as opened:
        with suppress(TimeoutError):
            async with opened.standstill.hold():
                await append(opened, 0)
                raise TimeoutError
        await opened.drained()
        assert await stored(opened) == [1, 1]


async def test_closing_the_journal_during_a_standstill_stores_the_waiting_rows(
    data_dir: Path,
) -> None:
    async with journal(data_dir) as opened:
        holding = opened.standstill.hold()
        await holding.__aenter__()
        await append(opened, 0)
    async with journal(data_dir) as opened:
        assert await stored(opened) == [1, 1]
