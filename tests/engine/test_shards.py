"""Replicas as one shard: which replica is asked, outcomes of inserts, replicas that are away."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing
from itertools import count
from typing import Any
from uuid import uuid4

import pytest

from brokerhouse.storage import shards
from brokerhouse.storage.blocks import INT64, STRING, Table, block
from brokerhouse.storage.clickhouse import ClickHouseServer, ConnectionSettings
from brokerhouse.storage.engine import (
    EngineError,
    InsertOutcomeUnknown,
    InsertRejected,
    NotSent,
    Parameter,
    Row,
    TokenUsed,
)
from brokerhouse.storage.registry import STATEMENT_LIMIT_MS
from brokerhouse.storage.shards import SYNCED_TABLES, AnyServer, Shard
from tests.support.engine_process import EngineProcess
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import LIMIT_S, until_async

AWAY_AFTER_MS = 600
ROWS = Table("", (("name", STRING), ("n", INT64)))
LIMIT_MS = int(LIMIT_S * 1000)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with EngineProcess(tmp_path_factory.mktemp("server") / "data") as process:
        yield process


@pytest.fixture
async def proxies(process: EngineProcess) -> AsyncIterator[list[TcpProxy]]:
    """Two ways to one server: two replicas that are always in sync."""
    async with TcpProxy(process.http) as first, TcpProxy(process.http) as second:
        yield [first, second]


def server(url: str) -> ClickHouseServer:
    """It waits far longer than a busy machine needs: see `stall`."""
    settings = ConnectionSettings(
        user="default",
        password="",
        database="default",
        connect_timeout_ms=LIMIT_MS,
        request_timeout_ms=LIMIT_MS,
        ping_timeout_ms=LIMIT_MS,
    )
    return ClickHouseServer(url, settings)


def limit_waits(shard: Shard, number: int, limit_ms: int) -> None:
    """How long to wait for an answer of this replica."""
    server = shard._replicas[number].server
    server.request_timeout_ms = server.ping_timeout_ms = limit_ms


def stall(shard: Shard, proxies: list[TcpProxy], number: int) -> None:
    """The replica does not answer any more, so nobody needs to wait for it."""
    proxies[number].stall()
    limit_waits(shard, number, 100)


@pytest.fixture
def servers_asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The URL of the server of each statement and block, in order. Pings do not count."""
    urls: list[str] = []

    def written_down(send: Callable[..., Any]) -> Callable[..., Any]:
        def sent(server: ClickHouseServer, *args: Any) -> Any:
            urls.append(server.url)
            return send(server, *args)

        return sent

    for name in ("insert", "rows", "execute", "read_native"):
        monkeypatch.setattr(ClickHouseServer, name, written_down(getattr(ClickHouseServer, name)))
    return urls


@pytest.fixture
async def shard(proxies: list[TcpProxy], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shard]:
    monkeypatch.setattr(shards, "_PING_S", 0.1)  # how often it is looked whom to ping
    servers = [server(proxy.url) for proxy in proxies]
    shard = Shard("one", servers, replicated=False, away_after_ms=AWAY_AFTER_MS)
    await asyncio.gather(*(one.rows("SELECT 1") for one in servers))
    await shard.start()
    yield shard
    await shard.close()


@pytest.fixture
async def direct(process: EngineProcess) -> AsyncIterator[ClickHouseServer]:
    """The server without the proxies."""
    there = server(process.urls[0])
    yield there
    await there.close()


@pytest.fixture
async def table(direct: ClickHouseServer) -> str:
    name = f"t_{uuid4().hex}"
    await direct.execute(
        f"CREATE TABLE {name} (name String, n Int64) ENGINE = MergeTree ORDER BY n"
        " SETTINGS non_replicated_deduplication_window = 100"
    )
    return name


async def begin(trouble: str, shard: Shard, proxies: list[TcpProxy], number: int) -> None:
    """`trouble`: "refuse", "stall" or "lose_answers", of this replica."""
    if trouble == "stall":
        stall(shard, proxies, number)
    elif trouble == "refuse":
        await proxies[number].refuse()
    else:
        proxies[number].lose_answers()


def some_rows(count: int) -> bytes:
    return block(ROWS, [(f"row {n}", n) for n in range(count)])


async def insert(shard: Shard, table: str, token: str, columns: str = ROWS.column_list) -> None:
    await shard.insert_block(0, table, columns, some_rows(10), token)


async def rows_of(engine: ClickHouseServer | Shard | AnyServer, table: str) -> object:
    [[found]] = await engine.rows(f"SELECT count() FROM {table}")
    return found


async def read(shard: Shard, sql: str) -> int:
    return sum([len(part) async for part in shard.read_native(sql, {}, 1 << 20)])


# --- inserts


async def test_a_block_goes_to_the_preferred_replica(
    shard: Shard, proxies: list[TcpProxy], table: str
) -> None:
    await insert(shard, table, "a-1")
    before = proxies[1].to_server
    for number in range(2, 5):
        await insert(shard, table, f"a-{number}")
    assert proxies[1].to_server - before < 1000  # a ping or two
    assert await rows_of(shard, table) == 40


async def test_a_block_goes_to_the_next_replica_when_the_preferred_one_cannot_be_reached(
    shard: Shard, proxies: list[TcpProxy], table: str
) -> None:
    await proxies[0].refuse()
    await insert(shard, table, "a-1")
    assert await rows_of(shard, table) == 10


async def test_a_block_whose_answer_is_lost_goes_to_the_next_replica_and_is_stored_once(
    shard: Shard, proxies: list[TcpProxy], table: str
) -> None:
    await insert(shard, table, "a-1")
    proxies[0].lose_answers()
    with pytest.raises(TokenUsed):
        await insert(shard, table, "a-2")
    assert await rows_of(shard, table) == 20


async def test_a_block_goes_to_the_next_replica_when_the_preferred_one_stalls(
    shard: Shard, proxies: list[TcpProxy], table: str, servers_asked: list[str]
) -> None:
    await insert(shard, table, "a-1")
    stall(shard, proxies, 0)
    with pytest.raises(TokenUsed):
        await insert(shard, table, "a-2")
    servers_asked.clear()
    await insert(shard, table, "a-3")
    assert servers_asked == [proxies[1].url], "a replica that stalls is left alone"
    assert await rows_of(shard, table) == 30


async def test_a_block_fails_as_not_sent_if_no_replica_can_be_reached(
    shard: Shard, proxies: list[TcpProxy], table: str
) -> None:
    for proxy in proxies:
        await proxy.refuse()
    with pytest.raises(NotSent):
        await insert(shard, table, "a-1")


async def test_a_token_in_doubt_stays_in_doubt_until_a_replica_stores_it(
    shard: Shard, proxies: list[TcpProxy], direct: ClickHouseServer, table: str
) -> None:
    await insert(shard, table, "a-1")
    proxies[0].lose_answers()
    await proxies[1].refuse()
    with pytest.raises(InsertOutcomeUnknown):  # the second replica was not even reached
        await insert(shard, table, "a-2")
    await proxies[0].refuse()
    with pytest.raises(InsertOutcomeUnknown):  # now neither was
        await insert(shard, table, "a-2")
    await proxies[1].pass_on()
    await until_async(lambda: not shard.away)
    with pytest.raises(InsertOutcomeUnknown) as refused:  # and one refuses what it is shown
        await insert(shard, table, "a-2", columns="name, missing")
    assert refused.value.code == 16
    with pytest.raises(InsertRejected):  # of another token that is certain
        await insert(shard, table, "a-3", columns="name, missing")
    with pytest.raises(TokenUsed):  # by which attempt?
        await insert(shard, table, "a-2")
    assert await rows_of(direct, table) == 20
    await insert(shard, table, "a-2")
    assert await rows_of(direct, table) == 20
    with pytest.raises(InsertRejected):  # what is known is forgotten
        await insert(shard, table, "a-2", columns="name, missing")


async def test_the_token_of_a_cancelled_insert_is_in_doubt(
    shard: Shard, proxies: list[TcpProxy], table: str
) -> None:
    await insert(shard, table, "a-1")
    proxies[0].stall()
    given = proxies[0].from_clients
    inserting = asyncio.create_task(insert(shard, table, "a-2"))
    await until_async(lambda: proxies[0].from_clients > given)
    inserting.cancel()
    await asyncio.wait([inserting])
    for proxy in proxies:
        await proxy.refuse()
    with pytest.raises(InsertOutcomeUnknown):
        await insert(shard, table, "a-2")


async def test_a_block_refused_for_its_content_is_not_sent_to_the_next_replica(
    shard: Shard, proxies: list[TcpProxy], table: str
) -> None:
    await rows_of(shard, table)
    before = proxies[1].to_server
    with pytest.raises(InsertRejected) as refused:
        await insert(shard, table, "a-1", columns="name, missing")
    assert refused.value.code == 16
    assert proxies[1].to_server - before < 1000


# --- reads


@pytest.mark.parametrize("trouble", ["refuse", "stall", "lose_answers"])
async def test_reads_go_to_the_next_replica_when_the_preferred_one_fails(
    shard: Shard, proxies: list[TcpProxy], table: str, trouble: str
) -> None:
    await insert(shard, table, "a-1")
    await begin(trouble, shard, proxies, 0)
    assert await rows_of(shard, table) == 10
    assert await read(shard, f"SELECT n FROM {table}") > 80


async def test_a_range_that_breaks_midway_fails_and_the_next_one_is_read_from_another_replica(
    shard: Shard, proxies: list[TcpProxy]
) -> None:
    sql = "SELECT cityHash64(number) FROM numbers(1000000)"
    await shard.rows("SELECT 1")
    proxies[0].cut(to_client=3_000_000)
    with pytest.raises(EngineError):
        await read(shard, sql)
    assert await read(shard, sql) > 8_000_000


async def test_a_faulty_statement_is_not_sent_to_the_next_replica(
    shard: Shard, proxies: list[TcpProxy]
) -> None:
    await shard.rows("SELECT 1")
    before = proxies[1].to_server
    with pytest.raises(EngineError) as refused:
        await shard.rows("SELECT no_such_column")
    assert refused.value.code == 47
    assert proxies[1].to_server - before < 1000


async def test_a_statement_is_never_sent_twice(
    shard: Shard, proxies: list[TcpProxy], direct: ClickHouseServer, table: str
) -> None:
    statement = f"INSERT INTO {table} SELECT 'a', 1"
    await shard.execute(statement)
    proxies[0].lose_answers()
    with pytest.raises(EngineError):
        await shard.execute(statement)
    await shard.execute(statement)  # by the other one
    await proxies[0].refuse()
    await shard.execute(statement)
    assert await rows_of(direct, table) == 4


async def test_a_replica_that_failed_is_used_again_when_it_answers(
    shard: Shard, proxies: list[TcpProxy], table: str, servers_asked: list[str]
) -> None:
    stall(shard, proxies, 0)
    with pytest.raises(TokenUsed):
        await insert(shard, table, "a-1")
    limit_waits(shard, 0, LIMIT_MS)
    await proxies[0].pass_on()
    numbers = count(2)

    async def is_asked_first() -> bool:
        servers_asked.clear()
        await insert(shard, table, f"a-{next(numbers)}")
        return servers_asked == [proxies[0].url]

    await until_async(is_asked_first)
    assert not shard.away


# --- away


@pytest.mark.parametrize("trouble", ["refuse", "stall"])
async def test_a_shard_is_away_while_none_of_its_replicas_answers(
    shard: Shard, proxies: list[TcpProxy], table: str, servers_asked: list[str], trouble: str
) -> None:
    await insert(shard, table, "a-1")
    assert not shard.away
    gone_at = time.monotonic()
    for number in range(2):
        await begin(trouble, shard, proxies, number)
    await until_async(lambda: shard.away)
    assert time.monotonic() - gone_at >= AWAY_AFTER_MS / 1000 * 0.9
    servers_asked.clear()
    for ask in (insert(shard, table, "a-2"), rows_of(shard, table), read(shard, "SELECT 1")):
        with pytest.raises(EngineError, match="shard one does not answer"):
            await ask
    assert servers_asked == [], "nobody is waited for"
    limit_waits(shard, 1, LIMIT_MS)
    await proxies[1].pass_on()
    await until_async(lambda: not shard.away)
    await insert(shard, table, "a-2")
    assert await rows_of(shard, table) == 20


async def test_a_shard_is_not_away_while_one_replica_answers(
    shard: Shard, proxies: list[TcpProxy]
) -> None:
    stall(shard, proxies, 0)
    until = time.monotonic() + 3 * AWAY_AFTER_MS / 1000
    while time.monotonic() < until:
        await shard.rows("SELECT 1")
        assert not shard.away


async def test_a_replica_is_pinged_when_an_answer_is_late_or_it_was_silent_for_long(
    shard: Shard, proxies: list[TcpProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    pinged: list[str] = []
    rows = ClickHouseServer.rows
    told = asyncio.Event()

    async def noted(server: ClickHouseServer) -> None:
        pinged.append(server.url)

    async def late(server: ClickHouseServer, sql: str, *rest: Any) -> list[Row]:
        await told.wait()
        return await rows(server, sql, *rest)

    monkeypatch.setattr(ClickHouseServer, "ping", noted)
    monkeypatch.setattr(shards, "_PING_FIRST_S", LIMIT_S * 2)
    monkeypatch.setattr(shards, "_PING_SPARE_S", 0.0)
    await shard.rows("SELECT 1")
    pinged.clear()
    await until_async(lambda: len(pinged) >= 2)
    assert proxies[0].url not in pinged, "it has answered, and owes nothing"
    monkeypatch.setattr(ClickHouseServer, "rows", late)
    asking = asyncio.create_task(shard.rows("SELECT 1"))
    await until_async(lambda: proxies[0].url in pinged, "a ping while its answer is late")
    told.set()
    assert await asking == [[1]]
    first = shard._replicas[0].server
    other = AnyServer([first], int(LIMIT_S * 1000))

    async def heard_by_another() -> bool:
        pinged.clear()
        first.heard.at = float("-inf")
        await other.rows("SELECT 1")
        return first.url not in pinged  # else a ping was faster

    await until_async(heard_by_another)
    await until_async(lambda: len(pinged) >= 5)
    assert proxies[0].url not in pinged, "it has answered somebody else"
    monkeypatch.setattr(shards, "_PING_FIRST_S", 0.0)
    await until_async(lambda: proxies[0].url in pinged)


async def test_closing_a_shard_ends_its_pings(proxies: list[TcpProxy]) -> None:
    shard = Shard("one", [server(proxies[0].url)], replicated=False)
    await shard.start()
    await until_async(lambda: proxies[0].to_server > 0)
    [pings] = shard.background
    await shard.close()
    assert pings.cancelled()
    await until_async(lambda: proxies[0].open == 0)


# --- replication, by servers that do as they are told


class Scripted(ClickHouseServer):
    """Records its calls, and fails with the codes that it is given."""

    def __init__(self, name: str, asked: list[str]) -> None:
        super().__init__(f"http://{name}", ConnectionSettings(user="", password=""))
        self._name = name
        self._asked = asked
        self.failures: dict[str, list[int]] = {}

    def _ask(self, what: str) -> None:
        self._asked.append(f"{self._name}: {what}")
        for prefix, codes in self.failures.items():
            if what.startswith(prefix) and codes and (code := codes.pop(0)):
                outcome = InsertRejected if code == 285 else InsertOutcomeUnknown
                raise outcome(what, code) if prefix == "insert" else EngineError(what, code)

    async def insert(
        self, table: str, columns: str, block: bytes, token: str, settings: Mapping[str, str]
    ) -> None:
        self._ask(f"insert {token} quorum {settings.get('insert_quorum')}")

    async def rows(self, sql: str, params: Mapping[str, Parameter] | None = None) -> list[Row]:
        self._ask(sql)
        return []

    async def execute(self, sql: str, params: Mapping[str, Parameter] | None = None) -> None:
        self._ask(sql)

    async def read_native(
        self, sql: str, params: Mapping[str, Parameter], chunk_bytes: int
    ) -> AsyncGenerator[bytes, None]:
        self._ask(sql)
        yield b"block"


@pytest.fixture
def asked() -> list[str]:
    return []


@pytest.fixture
def replicas(asked: list[str]) -> list[Scripted]:
    return [Scripted("a", asked), Scripted("b", asked)]


def replicated(replicas: list[Scripted]) -> Shard:
    return Shard("one", replicas, replicated=True, quorum=2, quorum_min=1)


def syncs(name: str) -> list[str]:
    return [f"{name}: SYSTEM SYNC REPLICA {table} LIGHTWEIGHT" for table in SYNCED_TABLES]


async def test_a_block_is_stored_on_a_quorum_or_else_on_the_smaller_quorum_of_live_replicas(
    replicas: list[Scripted], asked: list[str]
) -> None:
    shard = replicated(replicas)
    await insert(shard, "t", "a-1")
    replicas[0].failures["insert"] = [285]
    await insert(shard, "t", "a-2")
    await insert(shard, "t", "a-3")
    assert asked == [
        "a: insert a-1 quorum 2",
        "a: insert a-2 quorum 2",
        "a: insert a-2 quorum 0",
        "a: insert a-3 quorum 2",
    ]


async def test_a_block_whose_quorum_was_not_reached_in_time_is_in_doubt(
    replicas: list[Scripted], asked: list[str]
) -> None:
    shard = replicated(replicas)
    replicas[0].failures["insert"] = [319]
    replicas[1].failures["insert"] = [285, 285]
    with pytest.raises(InsertOutcomeUnknown):
        await insert(shard, "t", "a-1")
    assert asked == [
        "a: insert a-1 quorum 2",
        "b: insert a-1 quorum 2",
        "b: insert a-1 quorum 0",
    ]


async def test_a_block_is_refused_if_too_few_replicas_are_alive_for_the_smallest_quorum(
    replicas: list[Scripted],
) -> None:
    shard = Shard("one", replicas, replicated=True, quorum=2, quorum_min=2)
    for replica in replicas:
        replica.failures["insert"] = [285]
    with pytest.raises(InsertRejected) as refused:
        await insert(shard, "t", "a-1")
    assert refused.value.code == 285


async def test_a_replica_catches_up_before_its_first_read(
    replicas: list[Scripted], asked: list[str]
) -> None:
    shard = replicated(replicas)
    await asyncio.gather(shard.rows("one"), shard.rows("two"))
    assert sorted(asked[-2:]) == ["a: one", "a: two"]
    assert asked[:-2] == syncs("a")
    asked.clear()
    await insert(shard, "t", "a-1")
    await shard.rows("three")  # what it took itself it has
    assert asked == ["a: insert a-1 quorum 2", "a: three"]
    asked.clear()
    shard.expect_foreign_writes()
    async with aclosing(shard.read_native("four", {}, 1)) as blocks:
        assert await anext(blocks) == b"block"
    assert asked == [*syncs("a"), "a: four"]


async def test_a_replica_catches_up_before_a_read_after_writes_to_another(
    replicas: list[Scripted], asked: list[str]
) -> None:
    shard = replicated(replicas)
    await shard.rows("one")
    replicas[0].failures["insert"] = [319]
    await insert(shard, "t", "a-1")
    asked.clear()
    await shard.rows("two")
    assert asked == [*syncs("b"), "b: two"]
    asked.clear()
    replicas[1].failures["three"] = [242]
    await shard.rows("three")
    assert asked == ["b: three", *syncs("a"), "a: three"]


async def test_a_replica_that_cannot_catch_up_is_not_read(
    replicas: list[Scripted], asked: list[str]
) -> None:
    shard = replicated(replicas)
    replicas[0].failures["SYSTEM SYNC REPLICA consumer_offsets"] = [159, 159]
    await shard.rows("one")
    assert "a: one" not in asked
    assert asked[-1] == "b: one"
    replicas[1].failures["two"] = [242]
    with pytest.raises(EngineError):
        await shard.rows("two")
    assert "a: two" not in asked


async def test_servers_of_a_shard_without_replication_do_not_catch_up(
    replicas: list[Scripted], asked: list[str]
) -> None:
    shard = Shard("one", replicas, replicated=False)
    await insert(shard, "t", "a-1")
    await shard.rows("one")
    assert asked == ["a: insert a-1 quorum None", "a: one"]


# --- any server


@pytest.fixture
async def any_server(proxies: list[TcpProxy]) -> AsyncIterator[AnyServer]:
    async with AsyncExitStack() as stack:
        servers = [server(proxy.url) for proxy in proxies]
        for one in servers:
            stack.push_async_callback(one.close)
        await asyncio.gather(*(one.rows("SELECT 1") for one in servers))
        yield AnyServer(servers, timeout_ms=int(LIMIT_S * 1000))


@pytest.mark.parametrize("trouble", ["refuse", "stall", "lose_answers"])
async def test_another_server_answers_for_one_that_does_not(
    any_server: AnyServer, proxies: list[TcpProxy], servers_asked: list[str], trouble: str
) -> None:
    assert await any_server.rows("SELECT 1") == [[1]]
    result: Awaitable[None] | None = getattr(proxies[0], trouble)()
    if result is not None:
        await result
    assert await any_server.rows("SELECT 2") == [[2]]
    servers_asked.clear()
    assert await any_server.rows("SELECT 3") == [[3]]
    assert servers_asked[0] == proxies[1].url, "the first one is not asked again at once"


async def test_a_statement_to_any_server_is_sent_once(
    any_server: AnyServer, proxies: list[TcpProxy], table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "_HEDGE_S", LIMIT_S)  # else a slow one is not the only one asked
    statement = f"INSERT INTO {table} SELECT 'a', 1"
    await any_server.execute(statement)
    proxies[0].lose_answers()
    with pytest.raises(EngineError):
        await any_server.execute(statement)
    await proxies[0].refuse()
    await any_server.execute(statement)
    assert await rows_of(any_server, table) == 3
    await proxies[1].refuse()
    with pytest.raises(EngineError):
        await any_server.execute(statement)


async def test_a_server_that_refuses_a_statement_is_asked_again_and_one_that_fails_a_query_is_not(
    replicas: list[Scripted], asked: list[str]
) -> None:
    any_server = AnyServer(replicas, STATEMENT_LIMIT_MS)
    replicas[0].failures["INSERT"] = [999]  # such a key exists
    with pytest.raises(EngineError):
        await any_server.execute("INSERT")
    await any_server.rows("one")
    replicas[0].failures["two"] = [999]  # Keeper is away
    await any_server.rows("two")
    await any_server.rows("three")
    assert asked == ["a: INSERT", "a: one", "a: two", "b: two", "b: three"]
