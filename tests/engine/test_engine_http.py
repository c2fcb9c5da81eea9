"""`brokerhouse engine` over HTTP: a statement does not see others; a disk that fails ends it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from broker.config import Settings
from sql.http.interface import application
from sql.http.trusted import EngineInterface
from storage.block_intake import BlockIntake
from storage.embedded import EmbeddedEngine
from storage.engine import StorageFault
from storage.journal import JournalLimits, open_journal
from storage.journal_drain import DrainLimits
from tests.support.sql_client import ANSWER_LIMIT_S

INSERT = "INSERT INTO rows FORMAT TSV\n1\n"


class FailingDisk:
    """An engine of which every insert may have lost a write, once `fails` is set."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._engine = engine
        self.read_nice = engine.read_nice
        self.fails = False

    def handle(self, *statements: str) -> Any:
        return self._engine.handle(*statements)

    async def drained(self) -> None:
        await self._engine.drained()

    @contextmanager
    def watched_write(self, handle: Any) -> Iterator[None]:
        with self._engine.watched_write(handle):
            yield
        if self.fails:
            raise StorageFault("the disk was full")


@pytest.fixture
def disk(engine: EmbeddedEngine) -> FailingDisk:
    return FailingDisk(engine)


@pytest.fixture
async def interface(
    disk: FailingDisk, engine: EmbeddedEngine, tmp_path: Path
) -> AsyncIterator[EngineInterface]:
    limits = JournalLimits(1 << 20, DrainLimits(1 << 20, 1000, 100))
    journal = await open_journal(engine, limits, fsync=False)
    yield EngineInterface(disk, Settings(data_dir=tmp_path).sql, BlockIntake(journal))
    await journal.close_files()


@pytest.fixture
async def url(interface: EngineInterface) -> AsyncIterator[str]:
    runner = web.AppRunner(application(interface))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    await runner.cleanup()


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=ANSWER_LIMIT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        yield session


async def test_an_insert_that_may_have_lost_a_write_is_not_answered_and_ends_the_engine(
    disk: FailingDisk, interface: EngineInterface, url: str, client: aiohttp.ClientSession
) -> None:
    create = "CREATE TABLE rows (x Int8) ENGINE = MergeTree ORDER BY x"
    async with client.post(url, data=create) as answer:
        assert answer.status == 200
    async with client.post(url, data=INSERT) as answer:
        assert answer.status == 200
    assert not interface.fault.done()
    disk.fails = True
    with pytest.raises(aiohttp.ClientConnectionError):
        await client.post(url, data=INSERT)
    with pytest.raises(StorageFault):
        await interface.fault


async def _answer(client: aiohttp.ClientSession, url: str, sql: str, **settings: str) -> str:
    async with client.post(url, data=sql, params=settings) as answer:
        return await answer.text()


async def test_a_statement_has_its_own_settings_and_no_others(
    url: str, client: aiohttp.ClientSession
) -> None:
    ask = partial(_answer, client, url, "SELECT getSetting('max_block_size')")
    usual = await ask()
    assert await ask(max_block_size="17") == "17\n"
    assert await ask() == usual
    assert await ask(max_block_size="18") == "18\n"
    await _answer(client, url, "SET max_block_size = 19")
    assert await ask() == usual
    await _answer(client, url, "USE system")
    assert await _answer(client, url, "SELECT currentDatabase()") == "default\n"


async def test_only_reads_give_way(
    disk: FailingDisk, url: str, client: aiohttp.ClientSession
) -> None:
    nice = "SELECT toString(getSetting('os_thread_priority')) AS nice"
    for _ in range(2):
        assert await _answer(client, url, nice) == f"{disk.read_nice}\n"
        await _answer(client, url, f"CREATE TABLE made ENGINE = Log AS {nice}")
        assert await _answer(client, url, "SELECT * FROM made") == "0\n"
        await _answer(client, url, "DROP TABLE made")


async def test_a_statement_that_fails_midway_leaves_nothing_to_the_next(
    url: str, client: aiohttp.ClientSession
) -> None:
    fails = "SELECT throwIf(number = 300000) FROM numbers(400000) SETTINGS max_block_size = 100"
    for _ in range(3):
        assert "throwIf" in await _answer(client, url, fails, wait_end_of_query="1")
        assert await _answer(client, url, "SELECT 1", wait_end_of_query="1") == "1\n"
