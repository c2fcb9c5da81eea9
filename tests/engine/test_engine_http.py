"""`brokerhouse engine` over HTTP: statements are apart; what a broker learns of faults."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from brokerhouse.broker.settings.config import Settings
from brokerhouse.sql.http.access import Role
from brokerhouse.sql.http.block_connections import EngineListeners
from brokerhouse.sql.http.engine_interface import EngineInterface
from brokerhouse.sql.http.handles import StatementContext
from brokerhouse.sql.http.interface import application
from brokerhouse.sql.http.trusted_gateway import is_small
from brokerhouse.storage import journal_drain
from brokerhouse.storage.block_intake import BlockIntake
from brokerhouse.storage.blocks import block
from brokerhouse.storage.clickhouse import ClickHouseServer, ConnectionSettings
from brokerhouse.storage.cluster_sql import SHARD_DATABASE
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import (
    EngineError,
    InsertOutcomeUnknown,
    InsertRejected,
    NotSent,
    StorageFault,
)
from brokerhouse.storage.journal import JournaledEngine, JournalLimits, open_journal
from brokerhouse.storage.journal_drain import DrainLimits
from tests.support.journal_engine import NEVER_MS
from tests.support.journal_rows import LOG_ROWS, log_row
from tests.support.sql_client import ANSWER_LIMIT_S
from tests.support.waiting import until_async

INSERT = "INSERT INTO rows FORMAT TSV\n1\n"


class FailingDisk:
    """An engine of which every insert may have lost a write, once `fails` is set."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._engine = engine
        self.read_nice = engine.read_nice
        self.failed_views = engine.failed_views
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
def engine(own_engine: EmbeddedEngine) -> EmbeddedEngine:
    """These tests put a journal in front of it."""
    return own_engine


@pytest.fixture
def disk(engine: EmbeddedEngine) -> FailingDisk:
    return FailingDisk(engine)


@pytest.fixture
def max_age_ms() -> int:
    """How long a block waits in the journal. A test may be parametrized with another one."""
    return 100


@pytest.fixture
async def journal(engine: EmbeddedEngine, max_age_ms: int) -> AsyncIterator[JournaledEngine]:
    """In front of the table `messages` of a shard."""
    await engine.execute(f"CREATE DATABASE {SHARD_DATABASE}")
    await engine.execute(f"CREATE TABLE {SHARD_DATABASE}.messages AS messages")
    engine.database = SHARD_DATABASE
    limits = JournalLimits(1 << 20, DrainLimits(1 << 20, 1000, max_age_ms))
    opened = await open_journal(engine, limits, fsync=False)
    yield opened
    await opened.close_files()


@pytest.fixture
async def interface(disk: FailingDisk, journal: JournaledEngine, tmp_path: Path) -> EngineInterface:
    return EngineInterface(disk, Settings(data_dir=tmp_path).sql, BlockIntake(journal))


@pytest.fixture
async def url(interface: EngineInterface) -> AsyncIterator[str]:
    runner = web.AppRunner(application(interface))
    await runner.setup()
    assert runner.server is not None
    listeners = EngineListeners(interface, runner.server)
    yield f"http://127.0.0.1:{await listeners.listen('127.0.0.1', 0)}/"
    await listeners.close()
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


@pytest.fixture
async def server(url: str) -> AsyncIterator[ClickHouseServer]:
    """The engine as a broker sees it."""
    settings = ConnectionSettings(user="default", password="")
    connected = ClickHouseServer(url, settings)
    yield connected
    await connected.close()


async def insert(server: ClickHouseServer, offset: int) -> None:
    data = block(LOG_ROWS, [log_row(offset)])
    await server.insert_block(0, "messages", LOG_ROWS.column_list, data, f"1-1-{offset}")


@pytest.mark.parametrize(
    ("failure", "outcome", "code"),
    [
        (NotSent("the journal is full"), InsertRejected, 252),
        (NotSent("Code: 469. DB::Exception: no. (VIOLATED_CONSTRAINT)", 469), InsertRejected, 469),
        (NotSent("not enough space on the disk", 243), InsertOutcomeUnknown, 243),
        (NotSent("Code: 241. DB::Exception: no. (MEMORY_LIMIT)", 241), InsertOutcomeUnknown, 241),
    ],
    ids=str,
)
async def test_a_broker_gets_the_reason_for_which_the_journal_refuses_a_block(
    journal: JournaledEngine,
    server: ClickHouseServer,
    monkeypatch: pytest.MonkeyPatch,
    failure: EngineError,
    outcome: type[EngineError],
    code: int,
) -> None:
    """A refusal is sure only if the code is one that a ClickHouse server raises before a write."""

    def refuse(*_: object) -> None:
        raise failure

    await insert(server, 1)
    with monkeypatch.context() as patch:
        patch.setattr(journal._admission, "check", refuse)
        with pytest.raises(EngineError) as refused:
            await insert(server, 2)
    assert type(refused.value) is outcome
    assert refused.value.code == code
    await insert(server, 2)
    assert await server.rows("SELECT count() FROM messages") == [[2]]


@pytest.mark.parametrize("max_age_ms", [NEVER_MS])  # no round before the constraint is there
async def test_while_the_tables_refuse_rows_statements_that_read_them_fail(
    journal: JournaledEngine,
    engine: EmbeddedEngine,
    server: ClickHouseServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal_drain, "_RETRY_MAX_S", 0.1)
    await insert(server, 1)
    # As nobody can do over HTTP, where the journal would be emptied first.
    await engine.execute("ALTER TABLE brokerhouse_shard.messages ADD CONSTRAINT c CHECK offset < 0")
    with pytest.raises(EngineError) as failed:
        await server.rows("SELECT count() FROM messages")
    assert failed.value.code == 469
    with pytest.raises(InsertRejected) as refused:
        await insert(server, 2)
    assert refused.value.code == 469
    assert await server.rows("SELECT 1") == [[1]]
    with pytest.raises(EngineError):
        await server.execute("CREATE TABLE copy ENGINE = Log AS SELECT * FROM messages")
    with pytest.raises(EngineError):
        await server.execute("ALTER TABLE messages DELETE WHERE offset = 1")
    await server.execute("ALTER TABLE messages DROP CONSTRAINT c")
    await until_async(lambda: journal.is_empty)
    await insert(server, 2)
    assert await server.rows("SELECT count() FROM messages") == [[2]]


async def test_a_journal_that_may_have_lost_a_write_ends_the_engine(
    journal: JournaledEngine,
    interface: EngineInterface,
    server: ClickHouseServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object) -> None:
        raise StorageFault("the journal cannot be flushed to the disk")

    await insert(server, 1)
    monkeypatch.setattr(journal._admission, "check", fails)
    with pytest.raises(InsertOutcomeUnknown):
        await insert(server, 2)
    with pytest.raises(StorageFault):
        await interface.fault


async def _answer(client: aiohttp.ClientSession, url: str, sql: str, **settings: str) -> str:
    async with client.post(url, data=sql, params=settings) as answer:
        return await answer.text()


async def test_settings_of_a_statement_do_not_apply_to_the_next_one(
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


async def test_reads_have_a_lower_priority_than_inserts(
    disk: FailingDisk, url: str, client: aiohttp.ClientSession
) -> None:
    nice = "SELECT toString(getSetting('os_thread_priority')) AS nice"
    for _ in range(2):
        assert await _answer(client, url, nice) == f"{disk.read_nice}\n"
        await _answer(client, url, f"CREATE TABLE made ENGINE = Log AS {nice}")
        assert await _answer(client, url, "SELECT * FROM made") == "0\n"
        await _answer(client, url, "DROP TABLE made")


async def test_a_statement_that_fails_midway_leaves_no_rows_in_the_next_answer(
    url: str, client: aiohttp.ClientSession
) -> None:
    fails = "SELECT throwIf(number = 300000) FROM numbers(400000) SETTINGS max_block_size = 100"
    for _ in range(3):
        assert "throwIf" in await _answer(client, url, fails, wait_end_of_query="1")
        assert await _answer(client, url, "SELECT 1", wait_end_of_query="1") == "1\n"


@pytest.mark.parametrize(
    ("sql", "small"),
    [
        ("SELECT 1", True),
        ("SELECT key, value FROM registry SETTINGS keeper_max_retries = 0", True),
        ("ALTER TABLE brokerhouse_shard.topic_registry UPDATE value = 'a' WHERE key = 'b'", True),
        ("SELECT number FROM system.numbers", False),
        ("SELECT key FROM registry, numbers(1000000000)", False),
        ("SELECT key FROM registry WHERE key IN (SELECT topic FROM messages)", False),
        ("SELECT key FROM registry INTO OUTFILE '/tmp/keys'", False),
        ("SELECT count() FROM messages", False),
    ],
)
def test_pings_and_statements_on_the_registry_count_as_small_and_no_others(
    sql: str, small: bool
) -> None:
    context = StatementContext(Role.WRITER, SHARD_DATABASE, {}, {}, read_only=False)
    assert is_small(context, sql.encode()) is small
    assert not is_small(replace(context, read_only=True), sql.encode())
