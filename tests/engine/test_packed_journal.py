"""Packed blocks in the journal: their rows, rounds and refusals beside those of Native blocks."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from brokerhouse.protocol.columns import COLUMN_LIST
from brokerhouse.protocol.compression import compress
from brokerhouse.protocol.packed_blocks import is_packed, native_bytes
from brokerhouse.storage.blocks import block
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import InsertRejected, Row
from brokerhouse.storage.journal import JournaledEngine
from brokerhouse.storage.journal_drain import DrainLimits, inserts_of
from brokerhouse.storage.journal_files import JournalBlock
from brokerhouse.storage.journal_reading import read_journal
from brokerhouse.storage.journal_statements import LOG, ROWS
from tests.support.journal_engine import NEVER_MS, journal, journal_of
from tests.support.journal_rows import (
    LOG_ROWS,
    OFFSET_ROWS,
    log_builder,
    log_row,
    offset_row,
    packed_row,
)
from tests.support.log_parts import append, make_appender, make_log, numbered, plain, stored_values
from tests.support.record_batches import Record, batch_of
from tests.support.waiting import until_async


async def insert(opened: JournaledEngine, data: bytes, token: str) -> None:
    columns = COLUMN_LIST if is_packed(data) else LOG_ROWS.column_list
    await opened.insert_block(0, "messages", columns, data, token)


async def offsets(find: Callable[[str], Awaitable[list[Row]]]) -> list[int]:
    return [offset for (offset,) in await find("SELECT offset FROM messages ORDER BY offset")]


async def test_a_packed_block_gives_the_same_rows_as_its_native_block(
    engine: EmbeddedEngine,
) -> None:
    batches = [
        batch_of(
            Record(key=b"k", value=b"\0\xff", headers=((b"h", b"x"), (b"i", None))),
            Record(value=None),
            Record(key=b"", value=b"x" * 70_000, timestamp_delta=5),
        ),
        numbered(2**31 - 2, 5, 7, 3),
        replace(numbered(0, 2, 9), attributes=16),
    ]
    async with journal_of(engine) as opened:
        for topic in ("native", "packed"):
            builder = log_builder(*batches, topic=topic, append_time_ms=1_700_000_000_123)
            data = builder.pack() if topic == "packed" else builder.finish()
            await opened.insert_block(0, "messages", COLUMN_LIST, data, topic)
        rows = {
            topic: await opened.rows(
                "SELECT * EXCEPT (topic, key, value), hex(key), hex(value) FROM messages"
                " WHERE topic = {topic:String} ORDER BY offset",
                {"topic": topic},
            )
            for topic in ("native", "packed")
        }
    assert rows["packed"] == rows["native"]
    assert len(rows["packed"]) == 10


async def test_native_and_packed_blocks_can_alternate_in_the_journal(data_dir: Path) -> None:
    """The journal of an older version has Native blocks, and new ones follow them."""
    async with journal(data_dir) as opened:
        for offset in range(20):
            is_native = offset in (3, 4, 10, 19)
            data = block(LOG_ROWS, [log_row(offset)]) if is_native else packed_row(offset)
            await insert(opened, data, f"token-{offset}")
        assert await offsets(opened.embedded.rows) == []
        assert await offsets(opened.rows) == list(range(20))


def test_consecutive_blocks_of_one_kind_become_one_insert() -> None:
    native = block(LOG_ROWS, [log_row(0)])
    kinds = [packed_row(0), packed_row(1), native, native, packed_row(2)]
    blocks = [
        JournalBlock(number, 0, "messages", "topic, offset", f"{number}", data)
        for number, data in enumerate(kinds)
    ]
    found = [(one.columns, len(one.blocks), one.join is not None) for one in inserts_of(blocks)]
    assert found == [(COLUMN_LIST, 2, True), ("topic, offset", 2, False), (COLUMN_LIST, 1, True)]


async def test_the_size_of_a_round_is_counted_in_bytes_of_native_blocks(data_dir: Path) -> None:
    batch = batch_of(*[Record(value=b"x" * 10)] * 100)
    one = log_builder(batch).pack()
    assert native_bytes(one) > 3 * len(one)
    async with journal(data_dir, DrainLimits(3 * native_bytes(one), 1 << 30, NEVER_MS)) as opened:
        await insert(opened, one, "1")
        await insert(opened, log_builder(batch, first_offset=100).pack(), "2")
        assert opened.streams[0].waiting_bytes == 2 * len(one)
        assert not opened.streams[0].rounds.cumulative()[-1][1]
        await insert(opened, log_builder(batch, first_offset=200).pack(), "3")
        await until_async(lambda: _drained(opened))
        assert opened.streams[0].waiting_bytes == 0
        assert await offsets(opened.embedded.rows) == list(range(300))
        # What is counted comes back to nothing, so that the next round begins as late.
        ended = read_journal(data_dir / "journal").streams[LOG]
        await insert(opened, log_builder(batch, first_offset=300).pack(), "4")
        await insert(opened, log_builder(batch, first_offset=400).pack(), "5")
        # A round that begins too early is in the files before that of another stream.
        rows = block(OFFSET_ROWS, [offset_row(0)])
        await opened.insert_block(0, "consumer_offsets", OFFSET_ROWS.column_list, rows, "offset")
        await opened.drained((ROWS,))
        assert read_journal(data_dir / "journal").streams[LOG] == ended
        assert await offsets(opened.rows) == list(range(500))


async def _drained(opened: JournaledEngine) -> bool:
    return not opened.streams[0].waits


async def test_blocks_of_a_table_with_a_constraint_are_inserted_one_by_one(data_dir: Path) -> None:
    async with journal(data_dir) as opened:
        await opened.embedded.execute("ALTER TABLE messages ADD CONSTRAINT few CHECK offset < 2")
    async with journal(data_dir) as opened:
        await insert(opened, packed_row(0), "1")
        with pytest.raises(InsertRejected, match="few"):
            await insert(opened, packed_row(2), "2")
        await insert(opened, packed_row(1), "3")
        assert await offsets(opened.embedded.rows) == [0, 1]


async def test_every_block_of_a_lane_is_packed_in_the_journal(data_dir: Path) -> None:
    log = make_log()
    large = batch_of(Record(value=random.Random(1).randbytes(300_000).hex().encode()))
    batches = [
        plain(b"small").data,
        large.data,
        replace(large, payload=compress(4, large.payload), attributes=4).data,
    ]
    async with journal(data_dir) as opened:
        appender = make_appender(opened, lanes=1)
        for data in batches:
            await append(appender, log, data)
        entries = read_journal(data_dir / "journal").blocks
        assert [is_packed(entry.data) for entry in entries] == [True] * 3
        without_journal = make_appender(opened.embedded, lanes=1)
        await append(without_journal, make_log(), plain(b"native").data)
        for one in (appender, without_journal):
            await one.close()
        assert [offset for offset, _ in await stored_values(opened, log)] == [0, 1, 2]
