"""chDB behind the engine interface: outcomes of inserts, abandoned streams, killed processes."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import shutil
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from brokerhouse.protocol.columns import COLUMN_LIST
from brokerhouse.storage.data_directory import DataDirectoryError, refuse_without_tables
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import EngineError, InsertRejected, NativeBlock
from brokerhouse.storage.schema import migrate
from brokerhouse.storage.view_guard import ViewGuard
from tests.support.engine_owner import EngineOwner
from tests.support.log_parts import LANES
from tests.support.message_blocks import block, insert

PROJECT = Path(__file__).resolve().parents[2]
TOPIC_ID = UUID(int=7)
LIMIT_S = 60.0
READERS = 8


@pytest.fixture(autouse=True)
def one_engine_at_a_time(request: pytest.FixtureRequest) -> None:
    """Tests that do not use the shared engine open their own."""
    if "engine" not in request.fixturenames:
        request.getfixturevalue("alone")


async def values(engine: EmbeddedEngine) -> list[str]:
    return [row[0] for row in await engine.rows("SELECT value FROM messages ORDER BY offset")]


class Read:
    """How much a stream gave, also when it fails."""

    size = 0

    async def all(self, engine: EmbeddedEngine, sql: str) -> None:
        async with aclosing(engine.read_native(sql, {}, 1 << 20)) as stream:
            async for chunk in stream:
                self.size += len(chunk)


async def nothing_runs(engine: EmbeddedEngine) -> bool:
    """Whether the query that asks is the only one soon: its threads may still be ending others."""
    for _ in range(100):
        if await engine.rows("SELECT count() FROM system.processes") == [[1]]:
            return True
        await asyncio.sleep(0.05)
    return False


OPEN_AND_HOLD = """
import asyncio, sys
from pathlib import Path
from brokerhouse.storage.embedded import EmbeddedEngine
async def main():
    engine = EmbeddedEngine(Path(sys.argv[1]), 1, fsync=False)
    print("open", flush=True)
    sys.stdin.readline()
asyncio.run(main())
"""

OPEN_AND_INSERT = """
import asyncio, sys
from pathlib import Path
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.schema import migrate
from tests.support.message_blocks import block, insert
async def main():
    engine = EmbeddedEngine(Path(sys.argv[1]), 1, fsync=False)
    await migrate(engine)
    for offset in range(0, 10**9, 10):
        values = (b"%d" % n for n in range(offset, offset + 10))
        await insert(engine, block(offset, *values), f"t{offset}")
        print(offset, flush=True)
asyncio.run(main())
"""


# --- Opening ---


async def test_a_second_process_is_refused_with_the_id_of_the_process_that_uses_the_directory(
    tmp_path: Path,
) -> None:
    owner = EngineOwner(tmp_path / "data", OPEN_AND_HOLD)
    try:
        assert owner.line() == "open"
        with pytest.raises(DataDirectoryError) as refused:
            EmbeddedEngine(tmp_path / "data", 1, fsync=False)
        assert str(refused.value) == (
            f"the data directory {tmp_path}/data is in use by process {owner.process.pid}: "
            "stop that one or give another --data-dir"
        )
    finally:
        owner.kill()
    engine = EmbeddedEngine(tmp_path / "data", 1, fsync=False)  # an owner that died holds nothing
    assert await engine.rows("SELECT 1") == [[1]]
    await engine.close()


async def test_a_second_engine_in_this_process_is_refused_and_the_first_continues(
    engine: EmbeddedEngine,
) -> None:
    with pytest.raises(DataDirectoryError, match=f"in use by process {os.getpid()}"):
        EmbeddedEngine(engine.data_dir, 1, fsync=False)
    assert await engine.rows("SELECT 1") == [[1]]


async def test_a_data_directory_can_be_opened_again_after_it_was_closed(
    tmp_path: Path,
) -> None:
    for _ in range(3):
        engine = EmbeddedEngine(tmp_path / "data", 1, fsync=False)
        assert await engine.rows("SELECT 1") == [[1]]
        await engine.close()


@pytest.mark.parametrize(
    "name", ["a file", "a file/below", "engine?path", "a&b", "no UTF-8: \udcff"]
)
def test_a_path_that_cannot_be_a_data_directory_is_refused_in_a_sentence(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "a file").write_text("not a directory")
    with pytest.raises(DataDirectoryError) as refused:
        EmbeddedEngine(tmp_path / name, 1, fsync=False)
    assert str(tmp_path) in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_a_data_directory_may_have_spaces_quotes_and_other_characters_in_its_name(
    tmp_path: Path,
) -> None:
    for name in ("with space", "é 😀", "quote's \"", "$data <xml> #", "%20+;="):
        engine = EmbeddedEngine(tmp_path / name, 1, fsync=False)
        await engine.execute("CREATE TABLE t (a Int64) ENGINE = MergeTree ORDER BY a AS SELECT 7")
        await engine.close()
        engine = EmbeddedEngine(tmp_path / name, 1, fsync=False)
        assert await engine.rows("SELECT a FROM t") == [[7]], name
        await engine.close()
        assert (tmp_path / name / "clickhouse" / "store").is_dir(), name


# --- Reading ---


async def test_a_start_checks_the_files_of_mergetree_tables_and_of_no_others(
    tmp_path: Path,
) -> None:
    engine = EmbeddedEngine(tmp_path / "data", lanes=1, fsync=False)
    await engine.execute("CREATE TABLE kept (a Int64) ENGINE = MergeTree ORDER BY a")
    await engine.execute(
        "CREATE TABLE forgotten (a Int64 COMMENT 'as in MergeTree') ENGINE = Memory"
        " COMMENT 'line\nENGINE = MergeTree'"
    )
    await engine.execute("CREATE TABLE nothing (`MergeTree` Int64) ENGINE = Null")
    await engine.execute("CREATE TABLE all AS kept ENGINE = Merge(currentDatabase(), '^MergeTree')")
    await engine.close()
    await EmbeddedEngine(tmp_path / "data", lanes=1, fsync=False).close()
    (definition,) = (tmp_path / "data" / "clickhouse" / "metadata").glob("*/kept.sql")
    found = re.search("UUID '(.*?)'", definition.read_text())
    assert found is not None
    shutil.rmtree(tmp_path / "data" / "clickhouse" / "store" / found[1][:3] / found[1])
    with pytest.raises(DataDirectoryError, match="has the rows of kept, was removed"):
        EmbeddedEngine(tmp_path / "data", lanes=1, fsync=False)
    moved = definition.read_text() + "SETTINGS index_granularity = 8192, storage_policy = 'far'\n"
    definition.write_text(moved)
    refuse_without_tables(tmp_path / "data", "default")


async def test_values_in_rows_have_their_python_types(engine: EmbeddedEngine) -> None:
    assert await engine.rows(
        "SELECT toUInt64(18446744073709551615), toInt64(-9223372036854775808), 1.5, 'text',"
        " toUUID('00000000-0000-0000-0000-000000000007'), NULL, true, ['a'], map('k', 'v')"
    ) == [[2**64 - 1, -(2**63), 1.5, "text", str(TOPIC_ID), None, True, ["a"], {"k": "v"}]]
    assert await engine.rows("SELECT 1 WHERE 0") == []
    lines = ["\n", "\r", "\r\n", "\u2028", "\x85"]
    assert await engine.rows("SELECT {lines:Array(String)}", {"lines": lines}) == [[lines]]


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("SELECT * FROM nowhere", 60),
        ("SELECT nothing", 47),
        ("SELEKT 1", 62),
        ("SELECT throwIf(1)", 395),
        ("SELECT {p:Int32}", 456),
        ("SELECT * FROM numbers(1e9) SETTINGS max_execution_time = 0.01, max_block_size = 1", 159),
    ],
)
async def test_an_error_of_a_query_or_a_statement_has_the_code_of_clickhouse(
    engine: EmbeddedEngine, sql: str, code: int
) -> None:
    for run in (engine.rows, engine.execute):
        with pytest.raises(EngineError) as failed:
            await run(sql)
        assert failed.value.code == code
        assert f"Code: {code}." in str(failed.value)
    assert await engine.rows("SELECT 1") == [[1]]


async def test_a_query_that_fails_midway_leaves_no_rows_in_later_answers(
    engine: EmbeddedEngine,
) -> None:
    for _ in range(READERS):
        with pytest.raises(EngineError):
            await engine.rows(
                "SELECT throwIf(number = 600000, 'midway') FROM numbers(800000)"
                " SETTINGS max_block_size = 1000"
            )
    for _ in range(READERS):
        assert await engine.rows("SELECT 1") == [[1]]


async def test_a_stream_that_fails_midway_yields_earlier_rows_and_then_the_error(
    engine: EmbeddedEngine,
) -> None:
    sql = "SELECT number, throwIf(number = 250000) FROM numbers(300000)"
    for _ in range(10):  # more often than there are readers
        read = Read()
        with pytest.raises(EngineError) as failed:
            await read.all(engine, sql)
        assert failed.value.code == 395
        assert read.size > 1 << 20
    assert await nothing_runs(engine)


async def test_chunks_of_a_stream_stay_valid_after_stream_and_engine_are_closed(
    tmp_path: Path,
) -> None:
    engine = EmbeddedEngine(tmp_path / "data", 1, fsync=False)
    kept: list[tuple[NativeBlock, bytes]] = []
    for turn in range(3):
        sql = f"SELECT number + {turn}, toString(number) FROM numbers(200000)"
        async with aclosing(engine.read_native(sql, {}, 1 << 16)) as stream:
            async for chunk in stream:
                kept.append((chunk, bytes(chunk)))
                if turn == 1 and len(kept) % 4 == 0:
                    break  # the query is cancelled
    await engine.rows("SELECT groupArray(number) FROM numbers(100000)")
    await engine.close()
    assert len(kept) > 6
    assert all(chunk == copied for chunk, copied in kept)


async def test_a_stream_yields_all_rows_in_order_and_in_pieces(engine: EmbeddedEngine) -> None:
    sql = "SELECT number FROM numbers(100000) ORDER BY number"
    seen = b""
    pieces = 0
    async with aclosing(engine.read_native(sql, {}, 1 << 16)) as stream:
        async for chunk in stream:
            seen += chunk
            pieces += 1
    numbers = b"".join(number.to_bytes(8, "little") for number in range(100000))
    assert len(numbers) < len(seen) < len(numbers) * 1.01
    assert pieces > 5


async def test_a_stream_of_a_query_without_rows_yields_no_piece(engine: EmbeddedEngine) -> None:
    stream = engine.read_native("SELECT number FROM numbers(0)", {}, 1 << 20)
    assert [chunk async for chunk in stream] == []


async def test_pieces_of_a_stream_with_large_values_stay_near_the_requested_size(
    engine: EmbeddedEngine,
) -> None:
    for n in range(10):
        await insert(engine, block(n * 10, *[os.urandom(1 << 20)] * 10), str(n))
    sql = "SELECT offset, value FROM messages ORDER BY topic, partition, offset"
    async with aclosing(engine.read_native(sql, {}, 1 << 20)) as stream:
        sizes = [len(chunk) async for chunk in stream]
    assert sum(sizes) > 100 << 20
    assert max(sizes) < 16 << 20


async def test_closing_a_stream_early_ends_its_query_and_frees_its_reader(
    engine: EmbeddedEngine,
) -> None:
    for _ in range(10):  # more often than there are readers
        async with asyncio.timeout(LIMIT_S):
            endless = engine.read_native("SELECT number FROM system.numbers", {}, 1 << 20)
            async with aclosing(endless) as stream:
                async for _ in stream:
                    break
    async with asyncio.timeout(LIMIT_S):
        while not await nothing_runs(engine):
            pass


async def test_more_streams_than_readers_take_turns(engine: EmbeddedEngine) -> None:
    async def size(count: int) -> int:
        stream = engine.read_native(f"SELECT 'zzz' AS n FROM numbers({count})", {}, 1 << 20)
        return sum([bytes(chunk).count(b"zzz") async for chunk in stream])

    counts = [100 * n for n in range(1, 21)]
    async with asyncio.timeout(LIMIT_S):
        assert await asyncio.gather(*map(size, counts)) == counts


@pytest.fixture
async def busy(engine: EmbeddedEngine) -> EmbeddedEngine:
    """An engine whose callers were cancelled at any moment of a query or a stream."""

    async def stream() -> None:
        sql = "SELECT number, sleepEachRow(0.0001) FROM numbers(300)"
        async with aclosing(engine.read_native(sql, {}, 1)) as chunks:
            async for _ in chunks:
                pass

    for turn in range(40):
        callers = [
            asyncio.create_task(stream()),
            asyncio.create_task(engine.rows("SELECT sum(sleepEachRow(0.0001)) FROM numbers(300)")),
            asyncio.create_task(engine.execute("SELECT 1")),
        ]
        for _ in range(turn):
            await asyncio.sleep(0)
        await asyncio.wait(callers, timeout=turn / 2000)
        for caller in callers:
            caller.cancel()
        if turn % 3 == 0:
            await asyncio.sleep(0)
            for caller in callers:
                caller.cancel()  # impatient: again, while the first is being obeyed
        await asyncio.gather(*callers, return_exceptions=True)
    return engine


async def test_cancelled_callers_never_mix_up_the_answers_of_others(
    busy: EmbeddedEngine,
) -> None:
    async def ask(number: int) -> bool:
        stream = busy.read_native(f"SELECT {number}::UInt64 AS n", {}, 1 << 20)
        streamed = b"".join([chunk async for chunk in stream])
        return (
            await busy.rows(f"SELECT {number}") == [[number]]
            and number.to_bytes(8, "little") in streamed
        )

    async with asyncio.timeout(LIMIT_S):
        assert await asyncio.gather(*(ask(number) for number in range(1000, 1040))) == [True] * 40
    assert await nothing_runs(busy)


async def test_a_statement_that_fails_after_two_cancellations_does_not_affect_others(
    engine: EmbeddedEngine,
) -> None:
    sql = "SELECT throwIf(number = 300), sleepEachRow(0.0001) FROM numbers(1000)"
    for _ in range(5):
        callers = [
            asyncio.create_task(engine.rows(f"{sql} SETTINGS max_block_size = 100"))
            for _ in range(READERS)
        ]
        await asyncio.wait(callers, timeout=0.001)
        for _ in range(2):
            for caller in callers:
                caller.cancel()
            await asyncio.sleep(0)
        await asyncio.gather(*callers, return_exceptions=True)
        answers = await asyncio.gather(*(engine.rows(f"SELECT {n}") for n in range(8)))
        assert answers == [[[n]] for n in range(8)]


async def test_closing_the_engine_waits_for_running_statements(tmp_path: Path) -> None:
    engine = EmbeddedEngine(tmp_path / "data", 1, fsync=False)
    running = asyncio.create_task(engine.rows("SELECT sum(sleepEachRow(0.01)) FROM numbers(20)"))
    while not await engine.rows("SELECT 1 FROM system.processes WHERE query LIKE '%Each%0.01%'"):
        pass
    await engine.close()
    assert await running == [[0]]


# --- Inserting ---


async def test_a_block_is_stored_once_per_token(engine: EmbeddedEngine) -> None:
    for _ in range(3):
        await insert(engine, block(0, b"a", b"b"), "token")
    assert await values(engine) == ["a", "b"]
    await insert(engine, block(0, b"a", b"b"), "other token")
    assert await values(engine) == ["a", "a", "b", "b"]


async def test_a_repeated_token_is_recognised_in_every_lane(engine: EmbeddedEngine) -> None:
    for lane in range(LANES):
        await insert(engine, block(0, b"a"), "token", lane)
    assert await values(engine) == ["a"]


async def test_a_token_is_still_known_after_a_restart_and_a_merge(tmp_path: Path) -> None:
    for _ in range(2):
        engine = EmbeddedEngine(tmp_path / "data", 1, fsync=False)
        await migrate(engine)
        for n in range(5):
            await insert(engine, block(n, b"%d" % n), f"token {n}")
        await engine.execute("OPTIMIZE TABLE messages FINAL")
        assert await values(engine) == ["0", "1", "2", "3", "4"]
        await engine.close()


@pytest.mark.test_all
async def test_more_than_a_hundred_tokens_are_remembered(engine: EmbeddedEngine) -> None:
    for n in [*range(120), *range(15)]:
        await insert(engine, block(n, b"x"), f"token {n}")
    assert await engine.rows("SELECT count() FROM messages") == [[120]]


async def test_a_large_block_becomes_one_part(engine: EmbeddedEngine) -> None:
    await engine.execute("SYSTEM STOP MERGES messages")
    large = block(0, *[b"x" * 1000] * 20_000)
    await insert(engine, large, "large")
    rows = await engine.rows(
        "SELECT rows FROM system.parts WHERE table = 'messages' AND active AND rows > 0"
    )
    assert rows == [[20_000]]


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda data: b"garbage", id="no block at all"),
        pytest.param(lambda data: data[:-1], id="cut at its end"),
        pytest.param(lambda data: data[: len(data) // 2], id="cut in the middle"),
        pytest.param(lambda data: data.replace(b"offset", b"0ffset"), id="an unknown column"),
        pytest.param(lambda data: data.replace(b"Int64", b"Int63"), id="an unknown type"),
        pytest.param(lambda data: data + b"more", id="garbage behind it"),
    ],
)
async def test_a_malformed_block_is_rejected_completely_and_the_lane_continues(
    engine: EmbeddedEngine, spoil: object
) -> None:
    assert callable(spoil)
    good = block(0, *(b"%d" % n for n in range(100)))
    for _ in range(3):
        with pytest.raises(InsertRejected) as rejected:
            await insert(engine, spoil(good), "bad")
        assert rejected.value.code > 0
    assert await values(engine) == []
    await insert(engine, good, "good")
    assert len(await values(engine)) == 100


async def test_the_token_of_a_rejected_block_can_be_used_again(engine: EmbeddedEngine) -> None:
    with pytest.raises(InsertRejected):
        await insert(engine, block(0, b"a")[:-1], "token")
    await insert(engine, block(0, b"a"), "token")
    assert await values(engine) == ["a"]


async def test_an_insert_into_a_missing_table_is_rejected_with_the_code_of_clickhouse(
    engine: EmbeddedEngine,
) -> None:
    with pytest.raises(InsertRejected) as rejected:
        await engine.insert_block(0, "nowhere", COLUMN_LIST, block(0, b"a"), "token")
    assert rejected.value.code == 60


async def test_a_block_that_violates_a_constraint_is_rejected_whole(engine: EmbeddedEngine) -> None:
    await engine.execute("ALTER TABLE messages ADD CONSTRAINT c CHECK offset != 70")
    with pytest.raises(InsertRejected) as rejected:
        await insert(engine, block(0, *[b"x"] * 100), "token")
    assert rejected.value.code == 469  # VIOLATED_CONSTRAINT
    assert await values(engine) == []
    await insert(engine, block(0, *[b"x"] * 70), "token")
    assert len(await values(engine)) == 70


async def test_inserts_leave_no_file_open(engine: EmbeddedEngine) -> None:
    def open_blocks() -> int:
        found = 0
        for fd in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):  # the engine's own files come and go meanwhile
                found += "memfd:block" in os.readlink(f"/proc/self/fd/{fd}")
        return found

    await insert(engine, block(0, b"x"), "first")
    before = open_blocks()
    for n in range(1, 30):
        await insert(engine, block(n, b"x"), f"token {n}")
        with pytest.raises(InsertRejected):
            await insert(engine, b"garbage", f"bad {n}")
    assert open_blocks() == before


async def test_a_block_without_enough_memory_is_rejected_and_can_be_repeated(
    engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    blocks = [block(0, b"a"), block(1, b"b")]
    with monkeypatch.context() as patch:
        patch.setattr("os.posix_fallocate", no_memory)
        with pytest.raises(
            InsertRejected, match="cannot allocate memory for a block: No space left"
        ):
            await engine.insert_blocks(0, "messages", COLUMN_LIST, blocks, "token")
    assert await values(engine) == []
    await engine.insert_blocks(0, "messages", COLUMN_LIST, blocks, "token")
    assert await values(engine) == ["a", "b"]


async def test_an_insert_is_rejected_while_the_table_has_too_many_parts(
    engine: EmbeddedEngine,
) -> None:
    await insert(engine, block(0, b"a"), "first")
    await engine.execute("ALTER TABLE messages MODIFY SETTING parts_to_throw_insert = 1")
    with pytest.raises(InsertRejected) as rejected:
        await insert(engine, block(1, b"b"), "second")
    assert rejected.value.code == 252  # TOO_MANY_PARTS
    await engine.execute("ALTER TABLE messages RESET SETTING parts_to_throw_insert")
    await insert(engine, block(1, b"b"), "second")
    assert await values(engine) == ["a", "b"]


async def test_a_failing_view_of_a_user_does_not_fail_inserts_into_the_log(
    engine: EmbeddedEngine,
) -> None:
    await engine.execute("CREATE TABLE copy (n UInt8) ENGINE = Memory")
    await engine.execute(
        "CREATE MATERIALIZED VIEW broken TO copy AS SELECT throwIf(1) AS n FROM messages"
    )
    await insert(engine, block(0, b"a"), "token")
    assert await values(engine) == ["a"]


async def test_a_repeated_insert_does_not_fill_a_view_again(
    engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.execute("CREATE TABLE copy (o Int64) ENGINE = MergeTree ORDER BY o")
    await engine.execute(
        "CREATE MATERIALIZED VIEW whole TO copy AS SELECT offset AS o FROM messages"
    )
    look = ViewGuard._look
    failures = iter([EngineError("no memory", 241)])

    def fails_once(self: ViewGuard, *arguments: Any) -> None:
        for failure in failures:
            raise failure
        look(self, *arguments)

    monkeypatch.setattr(ViewGuard, "_look", fails_once)
    await insert(engine, block(0, b"a"), "token")
    assert await engine.rows("SELECT count() FROM copy") == [[1]]


async def test_a_cancelled_insert_is_stored_once_and_the_lane_continues(
    engine: EmbeddedEngine,
) -> None:
    for n in range(20):
        caller = asyncio.create_task(insert(engine, block(n, b"%d" % n), str(n)))
        for _ in range(n % 4 + 1):
            await asyncio.sleep(0)
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        await insert(engine, block(n, b"%d" % n), str(n))
    assert await values(engine) == [str(n) for n in range(20)]


async def test_lanes_insert_at_the_same_time(engine: EmbeddedEngine) -> None:
    async def lane(number: int) -> None:
        for n in range(20):
            await insert(engine, block(number * 100 + n, b"x"), f"{number}/{n}", number)

    await asyncio.gather(*map(lane, range(LANES)))
    assert await engine.rows("SELECT count(), uniq(offset) FROM messages") == [
        [20 * LANES, 20 * LANES]
    ]


# --- Dying ---


@pytest.mark.parametrize("acknowledged", [pytest.param(1, marks=pytest.mark.test_all), 30])
async def test_acknowledged_blocks_survive_kill_9(tmp_path: Path, acknowledged: int) -> None:
    owner = EngineOwner(tmp_path / "data", OPEN_AND_INSERT)
    for _ in range(acknowledged):
        last = int(owner.line())
    owner.kill()
    engine = EmbeddedEngine(tmp_path / "data", 1, fsync=False)
    try:
        stored = [int(value) for value in await values(engine)]
        assert stored == list(range(len(stored)))
        assert len(stored) >= last + 10
        assert len(stored) % 10 == 0, "a block is stored completely or not at all"
        # The dead process's tokens are known: its last block, repeated, is a duplicate.
        last_block = block(len(stored) - 10, *(b"%d" % n for n in stored[-10:]))
        await insert(engine, last_block, f"t{len(stored) - 10}")
        assert await values(engine) == [json.dumps(n) for n in stored]
    finally:
        await engine.close()
