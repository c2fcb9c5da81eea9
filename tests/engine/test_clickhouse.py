"""A ClickHouse server over HTTP: outcomes of inserts, ranges, connections that break."""

import asyncio
import re
import ssl
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pytest
from clickhouse_connect.driver.exceptions import ClickHouseError

from brokerhouse.storage import clickhouse, insert_client
from brokerhouse.storage.blocks import INT64, STRING, Table, block
from brokerhouse.storage.clickhouse import ClickHouseServer, ConnectionSettings
from brokerhouse.storage.engine import (
    EngineError,
    InsertOutcomeUnknown,
    InsertRejected,
    NotSent,
    Parameter,
)
from brokerhouse.storage.native_stream import BlockStream, NotNative
from tests.support.engine_process import EngineProcess
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import LIMIT_S, until_async

ROWS = Table("", (("name", STRING), ("n", INT64)))
LIMIT_MS = int(LIMIT_S * 1000)

Connect = Callable[..., ClickHouseServer]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    settings = {"sql_user": "people", "sql_password": "secret"}
    directory = tmp_path_factory.mktemp("server") / "data"
    with EngineProcess(directory, settings=settings) as process:
        yield process


@pytest.fixture
async def connect(process: EngineProcess) -> AsyncIterator[Connect]:
    """`connect(url)`: a server that is closed when the test ends.

    It waits far longer than a busy machine needs; a test of a time-out makes that short.
    """
    servers: list[ClickHouseServer] = []

    def make(
        url: str = process.urls[0],
        *,
        password: str = "secret",
        tls_ca: Path | None = None,
    ) -> ClickHouseServer:
        settings = ConnectionSettings(
            user="people",
            password=password,
            database="default",
            lanes=2,
            tls_ca=tls_ca,
            connect_timeout_ms=LIMIT_MS,
            request_timeout_ms=LIMIT_MS,
            ping_timeout_ms=LIMIT_MS,
        )
        server = ClickHouseServer(url, settings)
        servers.append(server)
        return server

    yield make
    for server in servers:
        await server.close()


@pytest.fixture
async def proxy(process: EngineProcess) -> AsyncIterator[TcpProxy]:
    async with TcpProxy(process.http) as proxy:
        yield proxy


@pytest.fixture
async def table(connect: Connect) -> str:
    """An empty table of ROWS with a deduplication window; also a look at it past any proxy."""
    name = f"t_{uuid4().hex}"
    await connect().execute(
        f"CREATE TABLE {name} (name String, n Int64, CONSTRAINT small CHECK n < 1000000)"
        " ENGINE = MergeTree ORDER BY n SETTINGS non_replicated_deduplication_window = 100"
    )
    return name


def some_rows(count: int, first: int = 0) -> bytes:
    return block(ROWS, [(f"row {n}", n) for n in range(first, first + count)])


async def insert(server: ClickHouseServer, table: str, data: bytes, token: str) -> None:
    await server.insert_block(0, table, ROWS.column_list, data, token)


async def count(server: ClickHouseServer, table: str) -> object:
    [[found]] = await server.rows(f"SELECT count() FROM {table}")
    return found


async def begun(server: ClickHouseServer, sql: str) -> AsyncGenerator[bytes, None]:
    """A range of which one block has come.

    With a short time-out that may take more than one attempt on a busy machine. The connection is
    opened without it: on such a machine that takes too long each time.
    """
    streams: list[AsyncGenerator[bytes, None]] = []

    async def begins() -> bool:
        with suppress(EngineError, ClickHouseError):
            server._client = server._client or await server._open()
            stream = server.read_native(sql, {}, 1 << 20)
            await anext(stream)
            streams.append(stream)
        return bool(streams)

    await until_async(begins)
    return streams[0]


async def read_blocks(server: ClickHouseServer, sql: str) -> list[bytes]:
    """What a range yields; each piece is one whole block."""
    found = []
    async for part in server.read_native(sql, {}, 1 << 20):
        assert BlockStream().feed(part) == [part]
        found.append(part)
    return found


# --- rows and statements


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        ("String", "", ""),
        ("String", "tab\t line\n return\r zero\0 quote' back\\slash \\N {x:String} %s é", ...),
        ("String", "long " * 20_000, ...),
        ("Int64", -(2**63), ...),
        ("UInt64", 2**64 - 1, ...),
        ("UUID", "c8f3ed64-9d0b-4d3a-8a3c-7d3a31d7f2b5", ...),
        ("Array(String)", ["a'b", "c\\d", "", "[,]"], ...),
        ("Array(String)", [], ...),
        ("Map(String, String)", {"k'": "v\n", "": "{:}"}, ...),
    ],
)
async def test_the_server_receives_parameters_unchanged(
    connect: Connect, kind: str, value: Parameter, found: object
) -> None:
    rows = await connect().rows(f"SELECT {{value:{kind}}}", {"value": value})
    assert rows == [[value if found is ... else found]]


async def test_numbers_in_rows_are_numbers_and_not_text(connect: Connect) -> None:
    sql = "SELECT toInt64(9007199254740993), toUInt64(18446744073709551615), 0.5, NULL"
    assert await connect().rows(sql) == [[9007199254740993, 18446744073709551615, 0.5, None]]


async def test_an_insert_sent_as_a_query_for_rows_is_refused(connect: Connect, table: str) -> None:
    with pytest.raises(EngineError) as refused:
        await connect().rows(f"INSERT INTO {table} SELECT 'a', 1")
    assert refused.value.code == 164
    assert await count(connect(), table) == 0


async def test_the_error_of_a_refused_statement_has_the_code_of_the_server(
    connect: Connect,
) -> None:
    with pytest.raises(EngineError, match=r"^http://127\.0\.0\.1:\d+: Code: 60\. ") as refused:
        await connect().execute("TRUNCATE TABLE no_such_table")
    assert refused.value.code == 60


async def test_every_request_with_a_wrong_password_reports_failed_authentication(
    connect: Connect, table: str
) -> None:
    server = connect(password="wrong")
    with pytest.raises(EngineError, match=r"people: Authentication failed") as refused:
        await server.rows("SELECT 1")
    assert refused.value.code == 516
    with pytest.raises(EngineError, match=r"Authentication failed"):
        await server.ping()
    with pytest.raises(InsertRejected, match=r"Authentication failed"):
        await insert(server, table, some_rows(1), "a-1")


async def test_requests_to_a_server_that_cannot_be_reached_fail_as_not_sent(
    connect: Connect, proxy: TcpProxy, table: str
) -> None:
    await proxy.refuse()
    server = connect(proxy.url)
    with pytest.raises(NotSent):
        await server.rows("SELECT 1")
    with pytest.raises(NotSent):
        await insert(server, table, some_rows(1), "a-1")
    with pytest.raises(EngineError):
        await server.ping()
    await proxy.pass_on()
    await insert(server, table, some_rows(1), "a-1")
    assert await count(server, table) == 1


# --- inserts


async def test_a_block_with_a_repeated_token_is_stored_once(connect: Connect, table: str) -> None:
    server = connect()
    for token in ("a-1", "a-1", "a-2", "a-1"):
        await insert(server, table, some_rows(10), token)
    assert await count(server, table) == 20


async def test_a_repeated_block_enters_a_view_once_if_its_table_has_a_deduplication_window(
    connect: Connect, table: str
) -> None:
    server = connect()
    for name, window in (("with_window", 100), ("without", 0)):
        await server.execute(
            f"CREATE TABLE {name} (n Int64) ENGINE = MergeTree ORDER BY n"
            f" SETTINGS non_replicated_deduplication_window = {window}"
        )
        await server.execute(
            f"CREATE MATERIALIZED VIEW to_{name} TO {name} AS SELECT n FROM {table}"
        )
    for _ in range(2):
        await insert(server, table, some_rows(3), "7-1")
    assert await count(server, table) == 3
    assert await count(server, "with_window") == 3
    await insert(server, table, some_rows(3, first=10), "7-2")
    assert await count(server, "with_window") == 6
    assert await count(server, "without") == 9, "as docs/sql.md says"


async def test_a_block_is_sent_compressed_and_becomes_one_part(
    connect: Connect, proxy: TcpProxy, table: str
) -> None:
    server = connect(proxy.url)
    data = some_rows(300_000)
    await insert(server, table, data, "a-1")
    parts = f"SELECT rows FROM system.parts WHERE table = '{table}' AND active"
    assert await server.rows(parts) == [[300_000]]
    assert proxy.to_server < len(data) / 2


@pytest.mark.parametrize(
    ("columns", "data", "code"),
    [
        ("name, missing", some_rows(1), 16),
        ("name", some_rows(1), 117),
        ("name, n", some_rows(1, first=1_000_000), 469),
    ],
)
async def test_a_block_with_wrong_columns_or_against_a_constraint_is_rejected(
    connect: Connect, table: str, columns: str, data: bytes, code: int
) -> None:
    server = connect()
    with pytest.raises(InsertRejected) as refused:
        await server.insert_block(0, table, columns, data, "a-1")
    assert refused.value.code == code
    assert await count(server, table) == 0


async def test_an_insert_whose_answer_is_lost_has_an_unknown_outcome_and_is_stored_once_if_repeated(
    connect: Connect, proxy: TcpProxy, table: str
) -> None:
    server, direct = connect(proxy.url), connect()
    await server.rows("SELECT 1")
    proxy.lose_answers()
    with pytest.raises(InsertOutcomeUnknown):
        await insert(server, table, some_rows(10), "a-1")

    async def stored() -> bool:
        return await count(direct, table) == 10

    await until_async(stored)
    await proxy.pass_on()
    await insert(server, table, some_rows(10), "a-1")
    assert await count(direct, table) == 10


async def test_the_client_never_repeats_an_insert_by_itself(
    connect: Connect, proxy: TcpProxy
) -> None:
    server, direct = connect(proxy.url), connect()
    await direct.execute("CREATE TABLE all_come (name String, n Int64) ENGINE = Memory")
    await insert(server, "all_come", some_rows(1), "a-0")
    proxy.lose_answers()
    for number in range(5):
        with pytest.raises(InsertOutcomeUnknown):
            await insert(server, "all_come", some_rows(1), f"a-{number}")

    async def stored() -> bool:
        return await count(direct, "all_come") == 6

    await until_async(stored)
    await proxy.pass_on()
    await insert(server, "all_come", some_rows(1), "a-6")
    assert await count(direct, "all_come") == 7


async def test_an_insert_that_is_cut_off_has_an_unknown_outcome_and_stores_no_row(
    connect: Connect, proxy: TcpProxy, table: str
) -> None:
    server, direct = connect(proxy.url), connect()
    await server.rows("SELECT 1")
    proxy.cut(to_server=100_000)
    with pytest.raises(InsertOutcomeUnknown):
        await insert(server, table, some_rows(200_000), "a-1")
    await proxy.pass_on()
    assert await count(direct, table) == 0
    await insert(server, table, some_rows(200_000), "a-1")
    assert await count(direct, table) == 200_000


async def test_an_insert_without_an_answer_has_an_unknown_outcome_after_the_timeout(
    connect: Connect, proxy: TcpProxy, table: str
) -> None:
    server, patient = connect(proxy.url), connect(proxy.url)
    for one in (server, patient):
        await insert(one, table, some_rows(1), "a-1")
    proxy.stall()
    server.request_timeout_ms = 100
    waiting = asyncio.create_task(insert(patient, table, some_rows(1), "a-2"))
    # Small enough for the buffers on the way, and too big for them.
    for data in (some_rows(1), bytes(100_000_000)):
        with pytest.raises(InsertOutcomeUnknown, match="did not answer in time"):
            await insert(server, table, data, "a-2")
    assert not waiting.done(), "who has a longer time-out waits for longer"
    waiting.cancel()


async def test_the_rest_of_a_cancelled_insert_is_not_sent(
    connect: Connect, proxy: TcpProxy, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (clickhouse, insert_client):  # connections that are not used are closed soon
        monkeypatch.setattr(module, "KEEP_ALIVE_S", 0.1)
    server, direct = connect(proxy.url), connect()
    await insert(server, table, some_rows(1), "a-1")
    sent, given = proxy.to_server, proxy.from_clients
    proxy.stall()
    data = block(ROWS, [(str(hash((n, "x"))) * 20, n) for n in range(100_000)])
    task = asyncio.create_task(insert(server, table, data, "a-2"))
    await until_async(lambda: proxy.from_clients - given > 1000)
    task.cancel()
    await asyncio.wait([task])
    await proxy.pass_on()

    async def closed() -> bool:
        return proxy.open == 0

    await until_async(closed)
    assert proxy.to_server - sent < len(data) / 4
    assert await count(direct, table) == 1


NO_ANSWERS = {
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Len",
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n",
    "somebody else's": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "of another query": b"HTTP/1.1 200 OK\r\nX-ClickHouse-Query-Id: 1\r\nContent-Length: 0\r\n\r\n",
    "a page": b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>",
    "a cut page": b"HTTP/1.1 200 OK\r\nContent-Length: 60\r\n\r\n<html>",
    "moved": b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n",
    "a balancer's 502": b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
    "a balancer's 503": b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
    **{
        f"code {code}": b"HTTP/1.1 500 Internal Server Error\r\nX-ClickHouse-Exception-Code: %d\r\n"
        b"Content-Length: 0\r\n\r\n" % code
        for code in (159, 209, 241, 242, 243, 252_000, 286, 319, 394, 999)
    },
    "an exception after the head": b"HTTP/1.1 200 OK\r\nX-ClickHouse-Exception-Tag: abcd\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n11\r\n\r\n__exception__\r\n\r\n",
    "an exception in the head of a 200": b"HTTP/1.1 200 OK\r\nX-ClickHouse-Exception-Code: 319\r\n"
    b"Content-Length: 0\r\n\r\n",
}


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    """The address of a server that gives one answer to every request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = re.search(rb"Content-Length: (\d+)", head)
        await reader.readexactly(int(size[1]) if size else 0)
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("answer", NO_ANSWERS.values(), ids=NO_ANSWERS)
async def test_an_insert_with_a_wrong_answer_has_an_unknown_outcome(
    connect: Connect, process: EngineProcess, proxy: TcpProxy, answer: bytes
) -> None:
    server = connect(proxy.url)
    await server.rows("SELECT 1")
    async with answering(answer) as address:
        await proxy.lead_to(address)
        for _ in range(2):  # by the old connection, which is broken, and by a new one
            with pytest.raises(InsertOutcomeUnknown):
                await insert(server, "t", some_rows(1), "a-1")


async def test_an_answer_that_comes_twice_is_not_taken_for_the_answer_to_the_next_insert(
    connect: Connect, proxy: TcpProxy, table: str
) -> None:
    server, direct = connect(proxy.url), connect()
    await server.rows("SELECT 1")
    proxy.answer_twice()
    for number in range(5):
        with suppress(InsertOutcomeUnknown):
            await insert(server, table, some_rows(1, first=number), f"a-{number}")
            mine = f"SELECT count() FROM {table} WHERE n = {number}"
            assert await direct.rows(mine) == [[1]]
    with pytest.raises((InsertRejected, InsertOutcomeUnknown)):
        await insert(server, "no_such_table", some_rows(1), "a-9")


# --- ranges


async def test_a_range_is_read_in_whole_blocks(connect: Connect) -> None:
    sql = (
        "SELECT number AS n, toString(number) AS s, repeat('x', n % 300) AS long,"
        " if(n % 3 = 0, NULL, s) AS maybe, [(s, maybe), ('h', NULL)] AS headers,"
        " arrayResize([toInt16(1)], n % 5) AS list, map(s, n) AS names, toFixedString('abc', 3) AS"
        " fixed, toUUID('c8f3ed64-9d0b-4d3a-8a3c-7d3a31d7f2b5') AS id, n % 2 = 0 AS even,"
        " toDateTime64(n, 3, 'UTC') AS at, toDate(n) AS day,"
        " CAST('a', 'Enum8(\\'a\\' = 1, \\'b, (\\' = 2)') AS e"
        " FROM numbers({count:UInt64})"
    )
    blocks = [part async for part in connect().read_native(sql, {"count": 20_000}, 1 << 20)]
    assert len(blocks) > 1
    for part in blocks:
        assert BlockStream().feed(part) == [part]
    slowly = BlockStream()
    first = blocks[-1]
    found = [part for n in range(len(first)) for part in slowly.feed(first[n : n + 1])]
    slowly.finish()
    assert found == [first]
    slowly.feed(first[:-1])
    with pytest.raises(NotNative):
        slowly.finish()


async def test_an_insert_of_a_truncated_block_is_not_reported_as_stored(
    connect: Connect, table: str
) -> None:
    server = connect()
    with pytest.raises((InsertRejected, InsertOutcomeUnknown)):
        await insert(server, table, some_rows(10)[:-20], "a-1")
    assert await count(server, table) == 0


async def test_an_empty_range_has_no_block(connect: Connect) -> None:
    blocks = connect().read_native("SELECT 1 WHERE 0", {}, 1 << 20)
    assert [part async for part in blocks] == []


async def test_a_range_that_fails_midway_yields_whole_blocks_and_then_the_error(
    connect: Connect,
) -> None:
    sql = (
        "SELECT number, repeat('x', 100) FROM numbers(10000000) WHERE NOT throwIf(number > 500000)"
    )
    with pytest.raises(EngineError) as failed:
        await read_blocks(connect(), sql)
    assert failed.value.code == 395


async def test_reading_a_range_fails_when_the_connection_is_cut(
    connect: Connect, proxy: TcpProxy
) -> None:
    server = connect(proxy.url)
    await server.rows("SELECT 1")
    proxy.cut(to_client=2_000_000)
    sql = "SELECT number, toString(cityHash64(number)) FROM numbers(1000000)"
    with pytest.raises(EngineError):
        await read_blocks(server, sql)
    await proxy.pass_on()
    blocks = await read_blocks(server, sql)
    assert sum(map(len, blocks)) > 20_000_000


async def test_reading_a_range_fails_after_the_timeout_when_no_answer_comes(
    connect: Connect, proxy: TcpProxy
) -> None:
    server = connect(proxy.url)
    server.request_timeout_ms = 500
    stream = await begun(server, "SELECT number FROM system.numbers")
    proxy.stall()
    with pytest.raises(EngineError, match="did not answer in time"):
        async for _ in stream:
            pass
    with pytest.raises(EngineError, match="did not answer in time"):
        await anext(server.read_native("SELECT 1", {}, 1 << 20))
    with pytest.raises(EngineError, match="did not answer in time"):
        await server.rows("SELECT 1")


async def test_closing_a_range_ends_the_query(connect: Connect) -> None:
    server = connect()

    async def running() -> bool:
        found = await server.rows(
            "SELECT count() FROM system.processes"
            " WHERE query LIKE '%AS left_alone%' AND query NOT LIKE '%system.processes%'"
        )
        return found != [[0]]

    async def ended() -> bool:
        return not await running()

    sql = "SELECT number AS left_alone FROM system.numbers"
    async with aclosing(server.read_native(sql, {}, 1 << 20)) as stream:
        await anext(stream)
        assert await running()
    await until_async(ended)
    reading = asyncio.create_task(
        anext(server.read_native(f"{sql} WHERE cityHash64(number) = 1", {}, 1 << 20))
    )
    await until_async(running)
    reading.cancel()
    await asyncio.wait([reading])
    await until_async(ended)


# --- connections


async def test_requests_reuse_connections(
    connect: Connect, proxy: TcpProxy, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (clickhouse, insert_client):  # no rest on a busy machine is too long
        monkeypatch.setattr(module, "KEEP_ALIVE_S", LIMIT_S)
    server = connect(proxy.url)
    for number in range(50):
        await insert(server, table, some_rows(10), f"a-{number}")
        await server.rows("SELECT 1")
        async for _ in server.read_native("SELECT 1", {}, 1 << 20):
            pass
    assert proxy.accepted <= 2


async def test_requests_succeed_though_the_server_closes_idle_connections(
    connect: Connect, proxy: TcpProxy, table: str
) -> None:
    server = connect(proxy.url)
    for number in range(20):
        await insert(server, table, some_rows(1), f"a-{number}")
        await proxy.close_idle()
        assert await count(server, table) == number + 1
        await proxy.close_idle()


async def test_a_read_whose_connection_is_closed_meanwhile_is_repeated(
    connect: Connect, proxy: TcpProxy
) -> None:
    server = connect(proxy.url)
    await server.rows("SELECT 1")
    proxy.stall()
    given = proxy.from_clients
    asked = asyncio.create_task(server.rows("SELECT 2"))
    await until_async(lambda: proxy.from_clients > given)
    await proxy.reset()
    await proxy.pass_on()
    assert await asked == [[2]]


# --- TLS


def certificate(directory: Path, name: str) -> tuple[Path, ssl.SSLContext]:
    """A certificate that signs itself, and a server that shows it."""
    key, cert = directory / f"{name}.key", directory / f"{name}.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-nodes",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-keyout",
            key,
            "-out",
            cert,
            "-days",
            "2",
            "-subj",
            f"/CN={name}",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return cert, context


async def test_a_server_is_accepted_only_with_a_certificate_of_the_configured_authority(
    connect: Connect, process: EngineProcess, table: str, tmp_path: Path
) -> None:
    right, context = certificate(tmp_path, "right")
    wrong, _ = certificate(tmp_path, "wrong")
    async with TcpProxy(process.http, context) as proxy:
        server = connect(proxy.url, tls_ca=right)
        await insert(server, table, some_rows(5), "a-1")
        assert await count(server, table) == 5
        for ca in (wrong, None):
            other = connect(proxy.url, tls_ca=ca)
            with pytest.raises(EngineError, match="certificate verify failed"):
                await other.rows("SELECT 1")
            with pytest.raises(NotSent):
                await insert(other, table, some_rows(5), "a-2")
        await server.close()
