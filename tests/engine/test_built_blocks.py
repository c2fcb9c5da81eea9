"""Blocks that the journal's thread builds and appends: what they have in common with all others."""

from __future__ import annotations

import asyncio
import errno
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brokerhouse.broker.log import lane
from brokerhouse.broker.log.block import Appended, Outcome, PendingAppend, PendingBlock, build_block
from brokerhouse.protocol.compression import compress
from brokerhouse.protocol.errors import KafkaStorageError
from brokerhouse.storage.blocks import block
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import NotSent
from brokerhouse.storage.journal import JournaledEngine
from brokerhouse.storage.journal_drain import DrainLimits
from brokerhouse.storage.journal_files import JournalWriter
from brokerhouse.storage.journal_reading import read_journal
from tests.support.journal_engine import NEVER_MS, journal, journal_of
from tests.support.journal_rows import LOG_ROWS, OFFSET_ROWS, log_row, offset_row
from tests.support.log_parts import (
    append,
    header_of,
    make_appender,
    make_log,
    make_topic,
    numbered,
    plain,
    stored_values,
)
from tests.support.record_batches import Record, batch_of

LARGE = 300 << 10  # bytes that are built in another thread than the event loop's
ROWS = 10_000  # that many rows of `numbered` are no small block


def log_block(*offsets: int) -> bytes:
    return block(LOG_ROWS, [log_row(offset) for offset in offsets])


async def insert(
    opened: JournaledEngine, build: Callable[[], bytes], token: str = "token", size: int = LARGE
) -> bool:
    return await opened.insert_built("messages", LOG_ROWS.column_list, build, size, token)


async def seen(opened: JournaledEngine) -> list[int]:
    return [n for (n,) in await opened.rows("SELECT offset FROM messages ORDER BY offset")]


def unexpected() -> bytes:
    raise AssertionError("nothing should be built")


class FailingWrites:
    """Of the next entries with a block, this many cannot be written: the disk is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        write = JournalWriter.append_block

        def fails(writer: JournalWriter, *arguments: Any) -> int:
            if self.left:
                self.left -= 1
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(writer, *arguments)

        monkeypatch.setattr(JournalWriter, "append_block", fails)


@pytest.fixture
def failing_writes(monkeypatch: pytest.MonkeyPatch) -> FailingWrites:
    return FailingWrites(monkeypatch)


@pytest.fixture
def builders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads in which blocks of the log were built."""
    threads: list[str] = []

    def noted(*arguments: Any, pack: bool) -> PendingBlock:
        threads.append(threading.current_thread().name.partition("_")[0])
        return build_block(*arguments, pack=pack)

    monkeypatch.setattr(lane, "build_block", noted)
    return threads


# --- the journal


@pytest.mark.parametrize("fsync", [False, True])
async def test_a_block_is_built_and_appended_in_the_thread_of_the_journal(
    data_dir: Path, fsync: bool
) -> None:
    threads, data = [], log_block(0, 1)

    def build() -> bytes:
        threads.append(threading.current_thread().name)
        return data

    async with journal(data_dir, fsync=fsync) as opened:
        assert await insert(opened, build)
        assert await opened.knows("messages", "token")
        (entry,) = read_journal(data_dir / "journal").blocks
        assert (entry.table, entry.token, entry.data) == ("messages", "token", data)
        assert await seen(opened) == [0, 1]
    assert [name.partition("_")[0] for name in threads] == ["journal"]


async def test_a_block_with_a_repeated_token_is_stored_once(engine: EmbeddedEngine) -> None:
    async with journal_of(engine) as opened:
        waiting = asyncio.create_task(insert(opened, lambda: log_block(0)))
        await asyncio.sleep(0)  # it has begun now
        assert not await insert(opened, unexpected)
        assert await waiting
        assert not await insert(opened, unexpected)
        await opened.insert_block(0, "messages", LOG_ROWS.column_list, log_block(0), "token")
        assert await seen(opened) == [0]


async def test_a_block_is_appended_although_its_caller_was_cancelled(
    engine: EmbeddedEngine,
) -> None:
    async with journal_of(engine) as opened:
        begun, goes_on = threading.Event(), threading.Event()

        def build() -> bytes:
            begun.set()
            goes_on.wait()
            return log_block(0)

        waiting = asyncio.create_task(insert(opened, build))
        await asyncio.to_thread(begun.wait)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        goes_on.set()
        assert await opened.knows("messages", "token")
        assert await seen(opened) == [0]


async def test_a_block_without_rows_is_not_appended(engine: EmbeddedEngine) -> None:
    async with journal_of(engine) as opened:
        last = opened.writer.last_sequence
        assert await insert(opened, lambda: b"")
        assert opened.writer.last_sequence == last
        assert not await opened.knows("messages", "token")
        assert opened.is_empty


async def test_after_a_block_that_cannot_be_built_others_are_appended(
    engine: EmbeddedEngine,
) -> None:
    def fails() -> bytes:
        raise ValueError("a bug")

    async with journal_of(engine) as opened:
        with pytest.raises(ValueError, match="a bug"):
            await insert(opened, fails)
        assert await insert(opened, lambda: log_block(0))
        assert await seen(opened) == [0]


async def test_the_journal_builds_no_block_for_which_it_has_no_room(engine: EmbeddedEngine) -> None:
    async with journal_of(engine, DrainLimits(1 << 30, 1 << 30, NEVER_MS), 1 << 20) as opened:
        assert await insert(opened, lambda: log_block(0), "first")
        assert not await insert(opened, unexpected, size=1 << 20)
        assert await insert(opened, lambda: log_block(1), "second", size=900 << 10)
        assert await seen(opened) == [0, 1]


async def test_the_journal_builds_no_block_for_a_table_with_a_constraint(data_dir: Path) -> None:
    async with journal(data_dir) as opened:
        await opened.embedded.execute("ALTER TABLE messages ADD CONSTRAINT no CHECK offset = 0")
    async with journal(data_dir) as opened:
        assert not await insert(opened, unexpected)


async def test_the_journal_builds_no_block_while_the_engine_refuses_rows(data_dir: Path) -> None:
    async with journal(data_dir, DrainLimits(1 << 30, 1 << 30, 10)) as opened:
        await opened.embedded.execute("ALTER TABLE messages ADD CONSTRAINT no CHECK offset = 1")
        assert await insert(opened, lambda: log_block(0))
        await asyncio.wait({asyncio.create_task(opened.drained())})
        with pytest.raises(NotSent, match="no"):
            await insert(opened, unexpected, "later")
        rows = block(OFFSET_ROWS, [offset_row(0)])
        assert await opened.insert_built(
            "consumer_offsets", OFFSET_ROWS.column_list, lambda: rows, LARGE, "offsets"
        )
        await opened.embedded.execute("ALTER TABLE messages DROP CONSTRAINT no")


async def test_a_block_that_could_not_be_written_can_be_sent_again(
    engine: EmbeddedEngine, failing_writes: FailingWrites
) -> None:
    async with journal_of(engine) as opened:
        failing_writes.left = 1
        with pytest.raises(NotSent, match="No space left"):
            await insert(opened, lambda: log_block(0))
        assert not await opened.knows("messages", "token")
        assert await insert(opened, lambda: log_block(0))
        assert await seen(opened) == [0]


# --- the lanes


async def test_the_journal_builds_plain_blocks_and_the_lane_compressed_and_transactional_ones(
    engine: EmbeddedEngine, builders: list[str]
) -> None:
    log = make_log()
    plain_batch = batch_of(Record(value=random.Random(1).randbytes(LARGE).hex().encode()))
    packed = compress(4, plain_batch.payload)
    async with journal_of(engine) as opened:
        appender = make_appender(opened, lanes=1)
        for data in (
            plain(b"x").data,
            plain_batch.data,
            replace(plain_batch, payload=packed, attributes=4).data,
            plain(b"x" * (33 << 20)).data,
        ):
            await append(appender, log, data)
        transactional = replace(
            plain_batch, attributes=16, producer_id=1, producer_epoch=0, base_sequence=0
        ).data
        told: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        pending = PendingAppend(log, transactional, header_of(transactional), told.set_result)
        pending.verified = log.verifying.setdefault(1, object())
        appender.append(pending)
        assert isinstance(await told, Appended)
        await appender.close()
        assert builders == ["MainThread", "journal", "lane-0", "lane-0", "lane-0"]
        assert [offset for offset, _ in await stored_values(opened, log)] == list(range(5))


async def test_offsets_are_dense_whichever_thread_builds_a_block(
    engine: EmbeddedEngine, builders: list[str]
) -> None:
    topic = make_topic(partitions=2)
    logs = [make_log(topic, number) for number in range(2)]
    async with journal_of(engine) as opened:
        appender = make_appender(opened, lanes=2)
        sent: list[list[bytes]] = [[], []]
        waiting = []
        for number in range(60):
            values = [f"{number} {'x' * (LARGE // 4)}".encode()] * (number % 8 + 1)
            sent[number % 2] += values
            batch = plain(*values)
            if number % 5 == 0:
                batch = replace(batch, payload=compress(4, batch.payload), attributes=4)
            waiting.append(append(appender, logs[number % 2], batch.data))
            if number % 7 == 0:
                await waiting[-1]
        await asyncio.gather(*waiting)
        await appender.close()
        for log, values in zip(logs, sent, strict=True):
            assert await stored_values(opened, log) == [
                (offset, value.decode()) for offset, value in enumerate(values)
            ]
    assert {"journal", "lane-0", "lane-1"} <= set(builders)


async def test_a_repeated_batch_is_stored_once(engine: EmbeddedEngine, builders: list[str]) -> None:
    log = make_log()
    async with journal_of(engine) as opened:
        appender = make_appender(opened, lanes=1)
        first = await append(appender, log, numbered(0, ROWS, 7).data)
        last = opened.writer.last_sequence
        assert await append(appender, log, numbered(0, ROWS, 7).data) == first
        assert opened.writer.last_sequence == last
        after = await append(appender, log, numbered(ROWS, ROWS, 7).data)
        assert after.base_offset == ROWS
        assert appender.lanes[0].counts.blocks == 2
        assert appender.lanes[0].counts.inserts.cumulative()[-1] == ("+Inf", 2.0)
        await appender.close()
        assert len(await stored_values(opened, log)) == 2 * ROWS
    assert builders == ["journal"] * 3


@pytest.mark.parametrize("failures", [1, 2])
async def test_a_block_that_cannot_be_written_is_tried_again_and_then_refused(
    engine: EmbeddedEngine, failing_writes: FailingWrites, failures: int
) -> None:
    """The second try is that of every block. Offsets of a refused one are those of the next."""
    log = make_log()
    async with journal_of(engine) as opened:
        appender = make_appender(opened, lanes=1)
        failing_writes.left = failures
        refused = failures == 2
        if refused:
            with pytest.raises(KafkaStorageError, match="No space left"):
                await append(appender, log, numbered(0, ROWS, 7).data)
        else:
            await append(appender, log, numbered(0, ROWS, 7).data)
        assert appender.lanes[0].counts.refused == refused
        assert (await append(appender, log, numbered(0, ROWS, 7).data)).base_offset == 0
        assert (await append(appender, log, numbered(ROWS, 1, 7).data)).base_offset == ROWS
        await appender.close()
        assert len(await stored_values(opened, log)) == ROWS + 1
