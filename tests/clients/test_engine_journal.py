"""`brokerhouse engine` acknowledges blocks of brokers in its journal: seen at once, stored once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import product
from operator import gt
from pathlib import Path

import aiohttp
import pytest

from brokerhouse.broker.log.fence import block_token, fence
from brokerhouse.common.clock import DAY_MS, wall_ms
from brokerhouse.storage.blocks import STRING, Table, block
from brokerhouse.storage.clickhouse import ClickHouseServer, ConnectionSettings
from brokerhouse.storage.cluster_sql import (
    SHARD_DATABASE,
    ClusterLayout,
    foundation,
    shard_migrations,
)
from brokerhouse.storage.engine import EngineError, InsertOutcomeUnknown, InsertRejected, NotSent
from tests.support.engine_process import EngineProcess
from tests.support.journal_rows import LOG_ROWS, OFFSET_ROWS, log_row, offset_row
from tests.support.pairwise import also_in_test_all
from tests.support.waiting import LIMIT_S, until, until_async

COLUMNS = LOG_ROWS.column_list
LAYOUT = ClusterLayout("test", replicated=False, distributed=False)
LATE_MS = "3600000"
"""Nothing goes into the tables but what is asked for."""


class Session:
    """Of a broker. Each test that shares the engine has one of its own: it remembers tokens."""

    number = 41


def numbered(number: int) -> str:
    """The token of a block."""
    return f"{Session.number}-1-{number}"


def make_tables(engine: EngineProcess) -> None:
    engine.sql(foundation(LAYOUT)[0].statement)
    for one in shard_migrations(LAYOUT):
        engine.sql(one.statement)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """An engine with two listeners. A test may kill it."""
    settings = {"journal_insert_ms": LATE_MS}
    data_dir = tmp_path_factory.mktemp("engine") / "data"
    with EngineProcess(data_dir, replicas=2, settings=settings) as process:
        make_tables(process)
        yield process


@pytest.fixture
def running(engine: EngineProcess) -> EngineProcess:
    """The engine with the tables of a shard, which are empty for each test."""
    Session.number += 1
    if not engine.running:
        engine.start()
    engine.sql("TRUNCATE TABLE messages", database=SHARD_DATABASE)
    engine.sql("TRUNCATE TABLE consumer_offsets", database=SHARD_DATABASE)
    return engine


@asynccontextmanager
async def connected(engine: EngineProcess, replica: int = 0) -> AsyncIterator[ClickHouseServer]:
    settings = ConnectionSettings(
        user="default", password="", request_timeout_ms=int(LIMIT_S * 1000)
    )
    server = ClickHouseServer(engine.urls[replica], settings)
    try:
        yield server
    finally:
        await server.close()


async def insert(server: ClickHouseServer, *offsets: int, token: str) -> None:
    data = block(LOG_ROWS, [log_row(offset) for offset in offsets])
    await server.insert_block(0, "messages", COLUMNS, data, token)


def seen(engine: EngineProcess, replica: int = 0) -> list[int]:
    rows = engine.sql(
        "SELECT offset FROM messages WHERE topic != '' ORDER BY offset",
        database=SHARD_DATABASE,
        replica=replica,
    )
    return [int(row["offset"]) for row in rows]


def journaled(engine: EngineProcess, token: str) -> bool:
    """Whether the journal has a block with this token."""
    files = (engine.data_dir / "journal").glob("*.journal")
    return any(f"{COLUMNS}{token}".encode() in file.read_bytes() for file in files)


async def test_a_block_is_seen_at_once_through_every_listener(running: EngineProcess) -> None:
    async with connected(running) as first, connected(running, 1) as second:
        for offset, server in enumerate((first, second, first, second)):
            await insert(server, offset, token=numbered(offset))
            assert journaled(running, numbered(offset))
            assert await second.rows("SELECT count() FROM messages") == [[offset + 1]]
            assert seen(running) == list(range(offset + 1))
        await insert(first, 9, token=numbered(9))
        assert [one async for one in second.read_native("SELECT offset FROM messages", {}, 1000)]
        found = await first.rows("SELECT max(offset) FROM messages")
        assert found == [[9]]


@pytest.mark.test_all
async def test_many_blocks_become_few_parts(running: EngineProcess) -> None:
    async with connected(running) as server:
        for offset in range(100):
            await insert(server, offset, token=numbered(offset))
        assert seen(running) == list(range(100))
    (row,) = running.sql(
        "SELECT count() AS n FROM system.parts WHERE active AND table = 'messages' AND rows > 0"
    )
    assert int(row["n"]) <= 2


@pytest.mark.test_all
async def test_journaled_rows_reach_their_table_without_a_query(tmp_path: Path) -> None:
    settings = {"journal_insert_ms": "200"}
    with EngineProcess(tmp_path / "data", settings=settings) as engine:
        make_tables(engine)
        async with connected(engine) as server:
            await insert(server, 1, token=numbered(1))
        running_view = "SELECT name, value FROM system.settings"  # it does not ask for the rows
        engine.sql(running_view)
        folder = engine.data_dir / "clickhouse"

        def has_part() -> bool:
            return any(path.name.startswith("20") for path in folder.glob("store/*/*/*"))

        until(has_part)


@pytest.mark.test_all
async def test_journaled_rows_of_small_tables_are_seen_at_once(running: EngineProcess) -> None:
    async with connected(running) as server:
        for offset in range(3):
            data = block(OFFSET_ROWS, [offset_row(offset)])
            await server.insert_block(
                0, "consumer_offsets", OFFSET_ROWS.column_list, data, f"rows-{offset}"
            )
            found = await server.rows("SELECT max(offset) FROM consumer_offsets")
            assert found == [[offset]]
        await server.insert_block(0, "consumer_offsets", OFFSET_ROWS.column_list, data, "rows-2")
        assert await server.rows("SELECT count() FROM consumer_offsets") == [[3]]


async def test_a_view_that_fails_is_stopped_and_repaired_as_with_a_single_broker(
    running: EngineProcess,
) -> None:
    running.sql("CREATE TABLE default.small (n Int64) ENGINE = MergeTree ORDER BY n")
    running.sql(
        "CREATE MATERIALIZED VIEW default.smalls TO default.small AS"
        f" SELECT offset + throwIf(offset = 2) AS n FROM {SHARD_DATABASE}.messages"
    )
    async with connected(running) as server:
        for offset in (1, 2, 3):
            await insert(server, offset, token=numbered(offset))
            assert journaled(running, numbered(offset))
            assert seen(running) == list(range(1, offset + 1))
    (failed,) = running.sql("SELECT view, missed FROM failed_views", database=SHARD_DATABASE)
    assert failed["view"] == "smalls"
    assert [int(one["first_offset"]) for one in failed["missed"]] == [2]
    query = f"SELECT offset AS n FROM {SHARD_DATABASE}.messages"
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"{running.urls[0]}/views/repair?database=default&view=smalls", data=query
        ) as answer,
    ):
        assert (answer.status, await answer.text()) == (200, '{"missed": 2}')
    rows = running.sql("SELECT n FROM default.small ORDER BY n")
    assert [int(row["n"]) for row in rows] == [1, 2, 3]
    running.sql("DROP VIEW default.smalls")


@pytest.mark.test_all
@pytest.mark.parametrize(("end", "fsync"), list(product(["stop", "kill"], ["false", "true"])))
async def test_a_block_with_a_known_token_is_not_stored_again_after_a_restart(
    tmp_path: Path, fsync: str, end: str
) -> None:
    settings = {"journal_insert_ms": LATE_MS, "fsync": fsync}
    with EngineProcess(tmp_path / "data", settings=settings) as engine:
        make_tables(engine)
        async with connected(engine) as server:
            await insert(server, 1, token=numbered(1))
            await insert(server, 1, token=numbered(1))
            assert seen(engine) == [1]
            await insert(server, 1, token=numbered(1))
            await insert(server, 2, token=numbered(2))
        for _ in range(2):
            engine.stop() if end == "stop" else engine.kill()
            engine.start()
            async with connected(engine) as server:
                await insert(server, 1, token=numbered(1))
                await insert(server, 2, token=numbered(2))
                assert seen(engine) == [1, 2]
        async with connected(engine) as server:
            await insert(server, 3, token=numbered(3))
        assert seen(engine) == [1, 2, 3]


async def test_sigterm_moves_all_journaled_rows_into_their_tables(running: EngineProcess) -> None:
    async with connected(running) as server:
        for offset in range(20):
            await insert(server, offset, token=numbered(offset))
    running.stop()
    for path in (running.data_dir / "journal").glob("*.journal"):
        path.unlink()
    running.start()
    assert seen(running) == list(range(20))


# --- fences


def session_block(number: int, lane: int = 0) -> tuple[bytes, str]:
    rows = [("t", log_row(0)[1], lane, number, wall_ms())]
    return block(LOG_ROWS, rows), block_token(Session.number, lane, number)


async def send(server: ClickHouseServer, number: int) -> None:
    data, of_block = session_block(number)
    await server.insert_block(0, "messages", COLUMNS, data, of_block)


@pytest.mark.parametrize("restart", also_in_test_all(["kill"], ["", "stop", "kill"]))
async def test_a_block_that_arrives_after_the_fence_is_acknowledged_and_not_stored(
    running: EngineProcess, restart: str
) -> None:
    began = wall_ms() // DAY_MS  # of the session, which may last until the next day
    async with connected(running) as server:
        for number in (1, 2, 3):
            await send(server, number)
    if restart:
        getattr(running, restart)()
        running.start()
    async with connected(running, 1) as successor:
        await fence(successor, Session.number, [1], began)

        async def rows_are_hidden() -> bool:
            found = await successor.rows("SELECT count() FROM messages WHERE topic = ''")
            return found == [[0]]

        await until_async(rows_are_hidden)
    if restart:
        getattr(running, restart)()
        running.start()
    async with connected(running) as server:
        await send(server, 4)  # as ClickHouse: success, without a row
        assert seen(running) == [1, 2, 3]
        await send(server, 3)
        assert seen(running) == [1, 2, 3]
    async with connected(running, 1) as another:
        await fence(another, Session.number, [1], began)
    assert seen(running) == [1, 2, 3]


# --- what does not go into the journal


async def test_a_malformed_block_is_refused_with_the_engines_error(running: EngineProcess) -> None:
    data, token = session_block(1)
    async with connected(running) as server:
        with pytest.raises(InsertOutcomeUnknown) as cut:
            await server.insert_block(0, "messages", COLUMNS, data[:-3], token)
        assert cut.value.code == 33  # CANNOT_READ_ALL_DATA
        with pytest.raises(EngineError) as wrong:
            await server.insert_block(0, "messages", "nosuch", data, numbered(7))
        assert isinstance(wrong.value, InsertRejected)
        with pytest.raises(InsertRejected):
            await server.insert_block(0, "messages_of_nobody", COLUMNS, data, numbered(8))
        for one in (token, numbered(7), numbered(8)):
            assert not journaled(running, one)
        assert seen(running) == []
        await server.insert_block(0, "messages", COLUMNS, data, token)
        await server.insert_block(0, "messages", COLUMNS, data, token)
        assert seen(running) == [1]


@pytest.mark.test_all
async def test_clickhouse_can_remember_a_token_without_its_rows_after_a_crash(
    running: EngineProcess,
) -> None:
    """The reason for `TokenUsed`: a token is noted before its part is there."""
    running.sql("ALTER TABLE messages ADD CONSTRAINT c CHECK 1", database=SHARD_DATABASE)
    async with connected(running) as server:  # with the constraint, each block is a part at once
        await insert(server, 1, token=numbered(1))
        await insert(server, 2, token=numbered(2))
    running.kill()
    (table,) = {
        path.parents[1] for path in running.data_dir.glob("clickhouse/store/*/*/20*/data.bin")
    }
    part = max(table.glob("20*_*_*_0"), key=lambda path: int(path.name.split("_")[1]))
    part.rename(table / f"tmp_insert_{part.name}")
    running.start()
    async with connected(running) as server:
        await insert(server, 2, token=numbered(2))
        assert seen(running) == [1], "if ClickHouse has mended it, nobody needs TokenUsed"
        await insert(server, 2, token=numbered(3))
        assert seen(running) == [1, 2]


async def test_a_block_that_its_table_may_refuse_is_not_journaled(
    running: EngineProcess,
) -> None:
    as_text = Table("messages", (("offset", STRING), ("topic", STRING)))
    async with connected(running) as server:
        for text, token in (
            ("7", numbered(1)),
            ("seven", numbered(2)),
            ("8", numbered(3)),
            ("7", numbered(1)),
        ):
            data = block(as_text, [(text, "t")])
            try:
                await server.insert_block(0, "messages", as_text.column_list, data, token)
            except EngineError:
                assert text == "seven"
            else:
                assert text != "seven"
            assert not journaled(running, token)
        assert seen(running) == [7, 8]


# --- statements that change tables


@pytest.mark.parametrize("restart", also_in_test_all(["kill"], ["", "stop", "kill"]))
async def test_a_block_is_stored_once_through_the_journal_or_past_it(
    running: EngineProcess, restart: str
) -> None:
    def restarted() -> None:
        if restart:
            getattr(running, restart)()
            running.start()

    async def again(*offsets: int) -> None:
        async with connected(running) as server:
            for offset in offsets:
                await insert(server, offset, token=numbered(offset))

    await again(1)
    assert journaled(running, numbered(1))
    running.sql(
        "ALTER TABLE messages ADD CONSTRAINT small CHECK offset < 10", database=SHARD_DATABASE
    )
    restarted()
    await again(1, 2)
    assert not journaled(running, numbered(2))
    with pytest.raises(InsertRejected) as refused:
        await again(11)
    assert refused.value.code == 469
    restarted()
    running.sql("ALTER TABLE messages DROP CONSTRAINT small", database=SHARD_DATABASE)
    await again(1, 2, 3, 11)
    assert journaled(running, numbered(3))
    assert not journaled(running, numbered(2))
    restarted()
    await again(1, 2, 3, 11)
    assert seen(running) == [1, 2, 3, 11]


async def test_columns_may_change_between_two_blocks(running: EngineProcess) -> None:
    async with connected(running) as server:
        await insert(server, 1, token=numbered(1))
        running.sql("ALTER TABLE messages ADD COLUMN more String", database=SHARD_DATABASE)
        await insert(server, 2, token=numbered(2))
        running.sql("ALTER TABLE messages DROP COLUMN more", database=SHARD_DATABASE)
        await insert(server, 3, token=numbered(3))
        assert seen(running) == [1, 2, 3]
        running.sql("RENAME TABLE messages TO elsewhere", database=SHARD_DATABASE)
        with pytest.raises(InsertRejected):
            await insert(server, 4, token=numbered(4))
        running.sql("RENAME TABLE elsewhere TO messages", database=SHARD_DATABASE)
        await insert(server, 4, token=numbered(4))
        assert seen(running) == [1, 2, 3, 4]


@pytest.mark.test_all
async def test_a_view_of_a_user_sees_acknowledged_rows(running: EngineProcess) -> None:
    running.sql(f"CREATE VIEW default.mine AS SELECT count() AS n FROM {SHARD_DATABASE}.messages")
    async with connected(running) as server:
        for number in range(1, 4):
            await insert(server, number, token=numbered(number))
            assert running.sql("SELECT n FROM mine") == [{"n": number}]
    assert running.sql("SELECT count() AS n FROM merge('brokerhouse_shard', '^messages$')") == [
        {"n": 3}
    ]


# --- many at once, and crashes


async def test_a_block_that_many_send_at_once_is_stored_once(running: EngineProcess) -> None:
    async with connected(running) as one, connected(running, 1) as other:
        await asyncio.gather(
            *(
                insert(server, offset, token=numbered(offset))
                for offset in range(20)
                for server in (one, other, one)
            )
        )
    assert seen(running) == list(range(20))


LANES = 6
ROUNDS = 6


@pytest.mark.test_all
async def test_kills_of_the_engine_lose_and_double_no_block(tmp_path: Path) -> None:
    """Lanes that repeat what they are not sure of; statements that make blocks change their way.

    As in a broker, a block that is accepted after doubt is looked for: see `TokenUsed`.
    """
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    settings = {"journal_insert_ms": "30", "journal_insert_rows": "40"}
    engine = EngineProcess(tmp_path / "data", settings=settings)
    acknowledged: list[set[int]] = [set() for _ in range(LANES)]
    ended = asyncio.Event()

    async def stored(server: ClickHouseServer, number: int, offset: int) -> bool:
        while True:
            try:
                found = await server.rows(
                    "SELECT count() FROM messages WHERE topic = 't'"
                    f" AND partition = {number} AND offset = {offset}"
                )
            except EngineError:
                await asyncio.sleep(0.01)
            else:
                return found != [[0]]

    async def lane(number: int) -> None:
        async with connected(engine) as server:
            offset = 0
            while not ended.is_set():
                offset += 1
                rows = [("t", log_row(0)[1], number, offset, wall_ms())]
                data = block(LOG_ROWS, rows)
                token, in_doubt = f"1-{number}-{offset}", False
                while True:
                    try:
                        await server.insert_block(0, "messages", COLUMNS, data, token)
                    except (InsertOutcomeUnknown, NotSent) as error:
                        in_doubt |= isinstance(error, InsertOutcomeUnknown)
                        await asyncio.sleep(0.01)
                        continue
                    if not in_doubt or await stored(server, number, offset):
                        break
                    token, in_doubt = f"{token}-again", False
                acknowledged[number].add(offset)

    async def change_tables() -> None:
        async with connected(engine) as server:
            statements: Sequence[str] = ("ADD CONSTRAINT c CHECK 1", "DROP CONSTRAINT c")
            turn = 0
            while not ended.is_set():
                try:
                    await server.execute(f"ALTER TABLE messages {statements[turn % 2]}")
                except EngineError as error:
                    if error.code:  # it was there, or was gone, already
                        turn += 1
                else:
                    turn += 1
                await asyncio.sleep(chance.uniform(0, 0.3))

    with engine:
        make_tables(engine)
        tasks = [asyncio.create_task(lane(number)) for number in range(LANES)]
        tasks.append(asyncio.create_task(change_tables()))
        for _ in range(ROUNDS):
            await asyncio.sleep(chance.uniform(0.2, 1.2))
            await asyncio.to_thread(engine.kill)
            await asyncio.to_thread(engine.start)
        before = [len(of_lane) for of_lane in acknowledged]
        await until_async(lambda: all(map(gt, map(len, acknowledged), before)))
        ended.set()
        await asyncio.gather(*tasks)
        rows = engine.sql(
            "SELECT partition, offset, count() AS n FROM messages GROUP BY partition, offset",
            database=SHARD_DATABASE,
        )
        found: list[set[int]] = [set() for _ in range(LANES)]
        for row in rows:
            assert int(row["n"]) == 1, row
            found[int(row["partition"])].add(int(row["offset"]))
        for of_lane, known in zip(found, acknowledged, strict=True):
            assert not of_lane ^ known
        assert all(acknowledged)
        engine.stop()
