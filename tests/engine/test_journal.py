"""The journal in front of a real engine: what is acknowledged, seen, and found after a crash."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from brokerhouse.storage.blocks import block
from brokerhouse.storage.data_directory import DataDirectoryError
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import EngineError, NotSent, StorageFault
from brokerhouse.storage.journal import JournaledEngine
from brokerhouse.storage.journal_drain import DrainLimits, inserts_of
from brokerhouse.storage.journal_files import JournalBlock, JournalWriter
from brokerhouse.storage.journal_register import register_path
from brokerhouse.storage.journal_statements import LOG, ROWS, streams_of
from brokerhouse.storage.view_doubts import InDoubt
from tests.support.journal_engine import NEVER_MS, journal, journal_of
from tests.support.journal_rows import LOG_ROWS, OFFSET_ROWS, log_row, offset_row
from tests.support.server_process import PROJECT
from tests.support.waiting import LIMIT_S, until_async


async def append(opened: JournaledEngine, *offsets: int, token: str | None = None) -> None:
    rows = [log_row(offset) for offset in offsets]
    await opened.insert_block(
        0, "messages", LOG_ROWS.column_list, block(LOG_ROWS, rows), token or f"log-{offsets[0]}"
    )


async def commit(opened: JournaledEngine, *offsets: int) -> None:
    data = block(OFFSET_ROWS, [offset_row(offset) for offset in offsets])
    token = f"offset-{offsets[0]}"
    await opened.insert_block(0, "consumer_offsets", OFFSET_ROWS.column_list, data, token)


async def fill(opened: JournaledEngine, megabytes: int) -> None:
    data = block(LOG_ROWS, [("x" * (1 << 20), *log_row(0)[1:])])
    for number in range(megabytes):
        await opened.insert_block(0, "messages", LOG_ROWS.column_list, data, f"big-{number}")


async def stored(opened: JournaledEngine) -> list[int]:
    """The offsets that are in the engine, without asking the journal for more."""
    return [n for (n,) in await opened.embedded.rows("SELECT offset FROM messages ORDER BY offset")]


async def seen(opened: JournaledEngine) -> list[int]:
    return [n for (n,) in await opened.rows("SELECT offset FROM messages ORDER BY offset")]


async def until_stored(opened: JournaledEngine, enough: Callable[[list[int]], bool]) -> None:
    async def found() -> bool:
        return enough(await stored(opened))

    await until_async(found)


async def parts(opened: JournaledEngine, table: str = "messages") -> int:
    sql = "SELECT count() FROM system.parts WHERE active AND table = {table:String} AND rows > 0"
    ((count,),) = await opened.embedded.rows(sql, {"table": table})
    return int(count)


# --- what is seen


async def test_a_statement_sees_all_rows_that_were_acknowledged_before_it(
    engine: EmbeddedEngine,
) -> None:
    async with journal_of(engine) as opened:
        for offset in range(50):
            await append(opened, offset)
        assert await stored(opened) == []
        assert await seen(opened) == list(range(50))
        assert await parts(opened) == 1


async def test_a_statement_drains_only_the_tables_that_it_reads(engine: EmbeddedEngine) -> None:
    async with journal_of(engine) as opened:
        await append(opened, 0)
        await commit(opened, 0)
        await opened.rows("SELECT * FROM latest_offsets")
        assert await stored(opened) == []
        await opened.rows("SELECT 1")
        assert await stored(opened) == []
        await opened.rows("SELECT count() FROM topic_minutes")
        assert await stored(opened) == [0]


def test_the_tables_of_a_statement_are_found_through_views() -> None:
    assert streams_of("SELECT 1") == ()
    assert streams_of("SELECT * FROM topics") == (ROWS,)
    assert streams_of("SELECT offset FROM brokerhouse.messages") == (LOG,)
    assert streams_of("SELECT * FROM consumer_lag") == (LOG, ROWS)


async def test_patient_statements_wait_for_the_next_regular_round(engine: EmbeddedEngine) -> None:
    async with journal_of(engine, DrainLimits(1 << 30, 2, NEVER_MS)) as opened:
        await append(opened, 0)
        asking = asyncio.create_task(opened.patient.rows("SELECT count() FROM messages"))
        await asyncio.sleep(0.1)
        assert await stored(opened) == []
        assert not asking.done()
        await append(opened, 1)
        assert await asking == [[2]]
        assert await parts(opened) == 1


async def test_a_deletion_includes_rows_that_were_acknowledged_before_it(
    engine: EmbeddedEngine,
) -> None:
    async with journal_of(engine) as opened:
        await append(opened, 0, 1, 2)
        await opened.execute("DELETE FROM messages WHERE offset < 2")
        assert await seen(opened) == [2]


# --- when rows go into the engine


async def test_many_small_blocks_become_one_part(engine: EmbeddedEngine) -> None:
    async with journal_of(engine, DrainLimits(1 << 30, 1 << 30, 200)) as opened:
        for offset in range(500):
            await append(opened, offset)
        await until_stored(opened, lambda found: len(found) == 500)
        assert await parts(opened) <= 3


@pytest.mark.parametrize("limits", [(2_000, 1 << 30), (1 << 30, 10)], ids=["bytes", "rows"])
async def test_a_round_begins_when_enough_bytes_or_rows_wait(
    engine: EmbeddedEngine, limits: tuple[int, int]
) -> None:
    async with journal_of(engine, DrainLimits(*limits, NEVER_MS)) as opened:
        await append(opened, 0)
        await asyncio.sleep(0.2)
        assert await stored(opened) == []
        for offset in range(1, 20):
            await append(opened, offset)
        await until_stored(opened, lambda found: len(found) >= 10)


async def test_inserts_wait_while_the_journal_is_full(engine: EmbeddedEngine) -> None:
    async with journal_of(engine, max_bytes=5_000) as opened:
        for offset in range(200):  # about 200 bytes each
            await append(opened, offset)
            waiting = sum(stream.waiting_bytes for stream in opened.streams)
            assert waiting <= 5_000
        assert len(await stored(opened)) > 150
        assert await seen(opened) == list(range(200))


def test_members_are_inserted_before_their_group() -> None:
    """As the calls that write both promise: the version of a group covers its members."""
    groups, members = "consumer_group_versions", "group_member_versions"
    blocks = [
        JournalBlock(number, ROWS, table, "a", str(number), b"%d" % number)
        for number, table in enumerate((groups, members, groups, "consumer_offsets", members))
    ]
    assert [(one.table, one.blocks) for one in inserts_of(blocks)] == [
        (members, (b"1", b"4")),
        (groups, (b"0", b"2")),
        ("consumer_offsets", (b"3",)),
    ]


def test_blocks_with_different_columns_are_inserted_separately() -> None:
    blocks = [
        JournalBlock(number, LOG, "messages", columns, str(number), b"%d" % number)
        for number, columns in enumerate(("a, b", "a, b", "a", "a, b"))
    ]
    assert [(one.columns, one.blocks) for one in inserts_of(blocks)] == [
        ("a, b", (b"0", b"1")),
        ("a", (b"2",)),
        ("a, b", (b"3",)),
    ]


# --- tokens


async def test_a_block_with_a_repeated_token_is_stored_once(engine: EmbeddedEngine) -> None:
    async with journal_of(engine) as opened:
        await asyncio.gather(*(append(opened, 0, token="same") for _ in range(5)))
        await opened.drained()
        await append(opened, 1, token="same")
        assert await seen(opened) == [0]


async def test_a_token_is_known_after_a_crash_while_its_block_was_in_the_journal(
    data_dir: Path,
) -> None:
    assert run_until_killed(data_dir, 0, 3, "begin_round:before:1")
    async with journal(data_dir) as opened:
        before = await seen(opened)
        await append(opened, 1000, token="l0")
        assert await seen(opened) == before


# --- refusals


async def test_while_the_engine_refuses_rows_inserts_are_refused(data_dir: Path) -> None:
    async with journal(data_dir, DrainLimits(1 << 30, 1 << 30, 10)) as opened:
        await append(opened, 0)
        await opened.drained()
        await opened.embedded.execute("ALTER TABLE messages ADD CONSTRAINT no CHECK offset = 0")
        await append(opened, 1)
        with pytest.raises(EngineError, match="no"):
            await opened.drained()
        with pytest.raises(NotSent, match="no"):
            await append(opened, 2)
        with pytest.raises(EngineError, match="acknowledged rows cannot be put into the table"):
            await opened.rows("SELECT count() FROM messages")
        assert await opened.rows("SELECT 1") == [[1]]
        await commit(opened, 0)  # other tables are not affected
        assert await opened.rows("SELECT count() FROM latest_offsets") == [[1]]
        await opened.embedded.execute("ALTER TABLE messages DROP CONSTRAINT no")
        log_stream = opened.streams[LOG]
        await until_async(lambda: log_stream.drained == log_stream.appended)
        assert await stored(opened) == [0, 1]
        await append(opened, 2, token="again")
        assert await seen(opened) == [0, 1, 2]


async def test_rows_refused_until_the_shutdown_are_stored_by_the_next_start_that_succeeds(
    data_dir: Path,
) -> None:
    async with journal(data_dir) as opened:
        await opened.embedded.execute("ALTER TABLE messages ADD CONSTRAINT no CHECK offset < 0")
        await append(opened, 0)
    with pytest.raises(DataDirectoryError, match=r"until a start succeeds: .*no"):
        async with journal(data_dir):
            pass
    engine = EmbeddedEngine(data_dir, 1, fsync=False)
    await engine.execute("ALTER TABLE messages DROP CONSTRAINT no")
    await engine.close()
    async with journal(data_dir) as opened:
        assert await stored(opened) == [0]


async def test_a_statement_retries_a_round_that_began_before_it_and_was_refused(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What made it fail may be over, so it is tried once more, and at once."""
    async with journal(data_dir) as opened:
        begun, goes_on = asyncio.Event(), asyncio.Event()
        insert = opened.embedded.insert_blocks

        async def refuse_once(*arguments: Any) -> None:
            if not begun.is_set():
                begun.set()
                await goes_on.wait()
                raise EngineError("not yet")
            await insert(*arguments)

        monkeypatch.setattr(opened.embedded, "insert_blocks", refuse_once)
        await append(opened, 0)
        log_stream = opened.streams[LOG]
        log_stream.hurry()
        await begun.wait()
        statement = asyncio.create_task(log_stream.reached(log_stream.appended, at_once=True))
        await asyncio.sleep(0)  # it has begun, and waits for the rows
        goes_on.set()
        await statement
        assert await stored(opened) == [0]


async def test_a_journal_that_cannot_grow_refuses_a_large_insert_and_accepts_later_ones(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate = os.posix_fallocate

    def full(fd: int, offset: int, size: int) -> None:
        if "journal" not in os.readlink(f"/proc/self/fd/{fd}"):
            return allocate(fd, offset, size)
        raise OSError(28, "No space left on device")

    async with journal(data_dir) as opened:
        await append(opened, 0)
        monkeypatch.setattr("os.posix_fallocate", full)
        big = block(LOG_ROWS, [("x" * (20 << 20), *log_row(1)[1:])])
        with pytest.raises(NotSent, match="No space left"):
            await opened.insert_block(0, "messages", LOG_ROWS.column_list, big, "big")
        await append(opened, 1)
        assert await seen(opened) == [0, 1]


async def test_a_table_that_refuses_rows_does_not_let_the_journal_grow_without_limit(
    data_dir: Path,
) -> None:
    small = DrainLimits(1 << 20, 1 << 30, 10)
    async with journal(data_dir, small, max_bytes=4 << 20) as opened:
        await opened.embedded.execute(
            "ALTER TABLE consumer_offsets ADD CONSTRAINT no CHECK offset < 0"
        )
        await commit(opened, 0)
        with pytest.raises(NotSent, match="the journal is full, because ClickHouse refuses"):
            await fill(opened, megabytes=1000)
        files = (data_dir / "journal").iterdir()
        assert sum(path.stat().st_size for path in files) < 128 << 20
        await opened.embedded.execute("ALTER TABLE consumer_offsets DROP CONSTRAINT no")
        await opened.rows("SELECT count() FROM latest_offsets")
        await append(opened, 5000)


async def test_a_table_that_is_drained_rarely_does_not_let_the_journal_grow(data_dir: Path) -> None:
    small, seldom = DrainLimits(1 << 20, 1 << 30, 10), DrainLimits(1 << 20, 1 << 30, NEVER_MS)
    async with journal(data_dir, small, max_bytes=4 << 20, small_tables=seldom) as opened:
        await commit(opened, 0)
        await append(opened, 0)
        await until_stored(opened, lambda offsets: offsets == [0])
        assert await parts(opened, "consumer_offsets") == 0
        await fill(opened, megabytes=100)
        assert await parts(opened, "consumer_offsets") == 1


async def test_a_large_block_gets_its_turn_among_small_ones(data_dir: Path) -> None:
    limits = DrainLimits(1 << 16, 1 << 30, 10)
    async with journal(data_dir, limits, max_bytes=1 << 20) as opened:
        stop = False

        async def small(number: int) -> None:
            n = 0
            while not stop:
                await append(opened, *range(n, n + 50), token=f"{number}-{n}")
                n += 50
                await asyncio.sleep(0)

        others = [asyncio.create_task(small(number)) for number in range(8)]
        log_stream = opened.streams[LOG]
        await until_async(lambda: log_stream.drained > 0)
        data = block(LOG_ROWS, [("x" * 1_000_000, *log_row(0)[1:])])
        await asyncio.wait_for(
            opened.insert_block(0, "messages", LOG_ROWS.column_list, data, "large"), LIMIT_S
        )
        stop = True
        await asyncio.gather(*others)


# --- order


@pytest.mark.parametrize("fsync", [False, True])
async def test_blocks_are_drained_in_the_order_of_the_journal(data_dir: Path, fsync: bool) -> None:
    """Large blocks are written by the thread, small ones at once, and both wait for each other.

    `DrainStream.add` asserts the order.
    """
    limits = DrainLimits(1 << 20, 1 << 30, 20)
    async with journal(data_dir, limits, fsync=fsync) as opened:
        large = "x" * 300_000

        async def producer(number: int) -> None:
            for n in range(60):
                if number < 2:
                    data = block(LOG_ROWS, [(large, *log_row(n, number)[1:])])
                else:
                    data = block(LOG_ROWS, [log_row(n, number)])
                await opened.insert_block(
                    0, "messages", LOG_ROWS.column_list, data, f"{number}-{n}"
                )
                assert opened.appended >= opened.in_engine
                if number == 5:
                    await commit(opened, n)

        await asyncio.gather(*(producer(number) for number in range(6)))
        found = await opened.rows(
            "SELECT partition, count(), uniqExact(offset) FROM messages GROUP BY partition"
        )
        assert sorted(found) == [[number, 60, 60] for number in range(6)]


# --- fsync


async def test_with_fsync_waiting_appends_share_one_flush(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushes = 0
    sync = JournalWriter.sync

    def counted(self: JournalWriter) -> None:
        nonlocal flushes
        flushes += 1
        sync(self)

    monkeypatch.setattr(JournalWriter, "sync", counted)
    async with journal(data_dir, fsync=True) as opened:
        flushes = 0
        await asyncio.gather(*(append(opened, offset) for offset in range(100)))
        assert 1 <= flushes <= 3
        assert await seen(opened) == list(range(100))


async def test_a_failed_flush_ends_the_journal(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(fd: int) -> None:
        raise OSError(5, "Input/output error")

    async with journal(data_dir, fsync=True) as opened:
        await append(opened, 0)
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", fails)
            with pytest.raises(StorageFault, match="cannot be flushed"):
                await append(opened, 1)
        with pytest.raises(StorageFault):
            await append(opened, 2)


async def test_a_failed_flush_of_a_full_segment_ends_the_journal(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux reports the error once: the next flush of the same file succeeds."""
    failures = iter([OSError(5, "Input/output error")])
    flush = os.fsync

    def fails_once(fd: int) -> None:
        for failure in failures:
            raise failure
        flush(fd)

    async with journal(data_dir, fsync=True) as opened:
        await append(opened, 0)
        data = block(LOG_ROWS, [("x" * (15 << 20), *log_row(1)[1:])])
        monkeypatch.setattr("os.fsync", fails_once)
        with pytest.raises(StorageFault, match="cannot be flushed"):
            await asyncio.gather(
                *(
                    opened.insert_block(0, "messages", LOG_ROWS.column_list, data, str(n))
                    for n in range(3)
                )
            )
        with pytest.raises(StorageFault):
            await append(opened, 2)


# --- crashes


def run_until_killed(
    data_dir: Path, first: int, count: int, step: str, mode: str = "small", age_ms: int = 20
) -> list[int]:
    """The offsets that were acknowledged before the process ended at this step."""
    command = [sys.executable, "-m", "tests.support.journal_process", str(data_dir)]
    done = subprocess.run(
        [*command, str(first), str(count), step, mode, str(age_ms)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode in (0, 9), done.stderr
    assert (done.returncode == 9) == (step != "none"), f"{step} was not reached"
    return [int(line) for line in done.stdout.split()]


STEPS = [
    f"{name}:{when}:{number}"
    for name, numbers in {
        "append_block": (1, 20),
        "begin_round": (1, 2, 5),
        "insert_blocks": (1, 2, 6),
        "end_round": (1, 2, 5),
        "recycle": (1, 3),
        "_begin_segment": (1, 2, 5),
    }.items()
    for number in numbers
    for when in ("before", "after")
]


ALWAYS = (
    "append_block:before:20",
    "begin_round:after:2",
    "insert_blocks:before:2",
    "insert_blocks:after:2",
    "end_round:after:2",
    "recycle:before:3",
    "_begin_segment:after:2",
)
"""`make test` kills at these, in one mode, and `make test-all` at all of them."""
IN_THE_JOURNAL = [
    pytest.param(
        step,
        mode,
        marks=[]
        if (mode == "packed") == (":after:" in step) and step in ALWAYS
        else [pytest.mark.test_all],
    )
    for step in STEPS
    for mode in ("small", "packed")
]


@pytest.mark.parametrize(("step", "mode"), IN_THE_JOURNAL)
async def test_a_crash_at_any_step_loses_and_duplicates_no_acknowledged_row(
    data_dir: Path, step: str, mode: str
) -> None:
    acknowledged = run_until_killed(data_dir, 0, 40, step, mode)
    await check_all_there(data_dir, acknowledged)


BESIDE_THE_THREAD = [
    # The other half takes the same steps, and 20 s: only in long runs.
    pytest.param(
        step,
        mode,
        marks=pytest.mark.test_all
        if (mode == "fsync") == (":after:" in step)
        else pytest.mark.slow,
    )
    for step in STEPS
    if not step.endswith(":1")
    for mode in ("large", "fsync")
]


@pytest.mark.parametrize(("step", "mode"), BESIDE_THE_THREAD)
async def test_a_crash_while_the_thread_writes_loses_and_duplicates_no_acknowledged_row(
    data_dir: Path, step: str, mode: str
) -> None:
    acknowledged = run_until_killed(data_dir, 0, 40, step, mode)
    await check_all_there(data_dir, acknowledged)


RECOVERY_STEPS = [
    pytest.param(
        step,
        marks=[]
        if step in ("insert_blocks:after:1", "recycle:after:1")
        else [pytest.mark.test_all],
    )
    for step in STEPS
    if step.endswith(":1") and "append" not in step
]


@pytest.mark.parametrize("step", RECOVERY_STEPS)
async def test_a_crash_during_the_recovery_loses_and_duplicates_no_acknowledged_row(
    data_dir: Path, step: str
) -> None:
    acknowledged = run_until_killed(data_dir, 0, 30, "end_round:before:2")
    assert run_until_killed(data_dir, 1000, 0, step) == []
    await check_all_there(data_dir, acknowledged)


async def check_all_there(data_dir: Path, acknowledged: Sequence[int]) -> None:
    async with journal(data_dir) as opened:
        found = await stored(opened)
        assert len(found) == len(set(found)), "rows are there twice"
        assert set(acknowledged) <= set(found)
        # Of each producer one more may be stored, without having been told.
        assert len(set(found) - set(acknowledged)) <= 3
        rows = await opened.rows("SELECT DISTINCT offset FROM consumer_offsets ORDER BY offset")
        assert set(acknowledged) <= {offset for (offset,) in rows}
        await append(opened, 5000)
        assert await seen(opened) == [*found, 5000]


async def test_a_view_that_fails_does_not_stop_the_recovery(data_dir: Path) -> None:
    """As it does not stop an insert: a view on the log is its owner's affair."""
    acknowledged = run_until_killed(data_dir, 0, 30, "end_round:before:2")
    engine = EmbeddedEngine(data_dir, 1, fsync=False)
    await engine.execute("CREATE TABLE counted (n UInt64) ENGINE = MergeTree ORDER BY n")
    await engine.execute(
        "CREATE MATERIALIZED VIEW failing TO counted AS SELECT throwIf(1) AS n FROM messages"
    )
    await engine.close()
    await check_all_there(data_dir, acknowledged)


async def add_view(data_dir: Path) -> None:
    engine = EmbeddedEngine(data_dir, 1, fsync=False)
    await engine.execute("CREATE TABLE seen (n Int64) ENGINE = MergeTree ORDER BY n")
    await engine.execute(
        "CREATE MATERIALIZED VIEW of_log TO seen AS SELECT offset AS n FROM messages"
    )
    await engine.close()


async def doubts(opened: JournaledEngine) -> list[int]:
    """The offsets that the view may lack."""
    rows = await opened.embedded.rows(
        "SELECT arrayJoin(in_doubt) AS one, one.3, one.4 FROM failed_views WHERE view = 'of_log'"
    )
    return sorted(offset for _, first, end in rows for offset in range(first, end))


IN_DOUBT_STEPS = [
    pytest.param("insert_log:before:1", False, marks=pytest.mark.test_all),
    pytest.param("insert_log:after:1", True, marks=pytest.mark.test_all),
    ("insert_log:before:2", False),
    ("insert_log:after:2", True),
]


@pytest.mark.parametrize(("step", "is_doubted"), IN_DOUBT_STEPS)
async def test_after_a_crash_a_view_is_in_doubt_only_of_the_rows_being_written(
    data_dir: Path, step: str, is_doubted: bool
) -> None:
    await add_view(data_dir)
    acknowledged = run_until_killed(data_dir, 0, 40, step)
    async with journal(data_dir) as opened:
        found = await doubts(opened)
        assert bool(found) == is_doubted
        rows = await opened.rows("SELECT n FROM seen ORDER BY n")
        assert [n for (n,) in rows] == await stored(opened)  # the insert had ended
        assert set(found) <= set(await stored(opened))
        assert set(acknowledged) <= set(await stored(opened))
        assert len(found) < len(acknowledged), "the last round alone is in doubt"


async def test_rows_in_doubt_after_another_kill_are_added_to_the_earlier_ones(
    data_dir: Path,
) -> None:
    await add_view(data_dir)
    run_until_killed(data_dir, 0, 40, "insert_log:after:1")
    async with journal(data_dir) as opened:
        first = await doubts(opened)
    run_until_killed(data_dir, 1000, 40, "insert_log:after:1")
    async with journal(data_dir) as opened:
        both = await doubts(opened)
        assert [offset for offset in both if offset < 1000] == first
        second = [offset for offset in both if offset >= 1000]
        assert second
        await opened.embedded.execute("TRUNCATE TABLE seen")
        filled = await opened.failed_views.repair("brokerhouse", "of_log", None, InDoubt.FILL)
        assert filled == len(both)
        rows = await opened.rows("SELECT n FROM seen ORDER BY n")
        assert [n for (n,) in rows] == both
        assert await doubts(opened) == []


async def test_after_a_crash_a_view_that_was_being_stopped_is_stopped_with_the_rows_it_misses(
    data_dir: Path,
) -> None:
    """It has failed, and the process was killed before it was stored what it misses."""
    await add_view(data_dir)
    run_until_killed(data_dir, 0, 40, "insert_log:after:1")
    engine = EmbeddedEngine(data_dir, 1, fsync=False)
    await engine.execute(
        "INSERT INTO failed_view_versions (database, view, definition, query, target, state, error)"
        " SELECT database, name, create_table_query, as_select, '', 'stopping', 'bad'"
        " FROM system.tables WHERE name = 'of_log'"
    )
    await engine.close()
    async with journal(data_dir) as opened:
        assert await doubts(opened) == []
        ((state, missed),) = await opened.rows(
            "SELECT state, missed FROM failed_views JOIN failed_view_versions FINAL USING (view)"
        )
        assert state == "stopped"
        assert missed == [{"topic": "orders", "partition": 0, "first_offset": 0}]
        found = await opened.rows("SELECT count() FROM system.tables WHERE name = 'of_log'")
        assert found == [[0]], "it is detached"


async def test_tokens_of_rounds_differ_after_each_start(data_dir: Path) -> None:
    """The numbers of entries may come again: after a copy of the journal was restored."""
    async with journal(data_dir) as opened:
        await append(opened, 0)
        await opened.drained()
    shutil.rmtree(data_dir / "journal")
    async with journal(data_dir) as opened:
        await append(opened, 1, token="another")
        assert await seen(opened) == [0, 1]


async def test_a_start_with_a_damaged_journal_fails_and_names_the_option_to_skip_damage(
    data_dir: Path,
) -> None:
    assert run_until_killed(data_dir, 0, 10, "begin_round:before:1", age_ms=NEVER_MS)
    files = sorted((data_dir / "journal").glob("*.journal"))  # later ones know the token, too
    path = next(
        one for one in files if b"messages" in one.read_bytes() and b"l2" in one.read_bytes()
    )
    path.write_bytes(path.read_bytes().replace(b"l2", b"lX"))
    with pytest.raises(DataDirectoryError, match="--journal-skip-damage") as error:
        async with journal(data_dir):
            pass
    assert "blocks of records after it" in str(error.value)
    async with journal(data_dir, skip_damage=True) as opened:
        found = await stored(opened)
        assert 2 not in found
        assert {0, 1, 3} <= set(found)
    assert (data_dir / "journal" / "damaged" / path.name).exists()


async def test_damage_is_skipped_once_even_if_no_row_is_appended_then(data_dir: Path) -> None:
    async with journal(data_dir) as opened:
        await append(opened, 0)
    register_path(data_dir / "journal").unlink()
    with pytest.raises(DataDirectoryError, match="start once with --journal-skip-damage"):
        async with journal(data_dir):
            pass
    async with journal(data_dir, skip_damage=True):
        pass
    async with journal(data_dir) as opened:
        assert await stored(opened) == [0]
        await append(opened, 9, token="log-0")
        assert await seen(opened) == [0], "tokens are known as before"


async def test_a_journal_that_cannot_recycle_its_files_accepts_further_inserts(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(writer: JournalWriter, needed_from: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with journal(data_dir) as opened:
        with monkeypatch.context() as patch:
            patch.setattr(JournalWriter, "recycle", refused)
            await append(opened, 0)
            await opened.drained()
            await append(opened, 1)
            await opened.drained()
        assert opened.refused_records() is None
        assert await stored(opened) == [0, 1]
