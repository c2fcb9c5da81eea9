"""`brokerhouse engine` does what a broker needs of a ClickHouse server."""

import asyncio
import concurrent.futures
import http.client
import itertools
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import clickhouse_connect
import lz4.frame
import pytest
from aiochclient import ChClient, ChClientError
from click.testing import CliRunner, Result
from clickhouse_connect.driver.exceptions import DatabaseError

from brokerhouse.broker.cli import engine as cli_engine
from brokerhouse.common.zstd import zstd
from brokerhouse.storage.blocks import STRING, UINT64, Table, block
from tests.support.engine_process import EngineProcess
from tests.support.server_process import PROJECT, free_port
from tests.support.sql_client import Answer, basic, send
from tests.support.sql_rows import SqlError
from tests.support.waiting import LOOK_AGAIN_S, until
from tests.support.zookeeper import Keeper

DATABASE = "brokerhouse_shard"
ROWS = Table("rows", (("number", UINT64), ("text", STRING)))
USER, PASSWORD = "broker", "of the cluster"
INSERT = "INSERT INTO rows (number, text) FORMAT Native"
COMMAND_LIMIT_S = 60.0
CONDITION_LIMIT_S = 30.0
MANY = 8  # brokers times lanes


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keeper]:
    with Keeper(tmp_path_factory.mktemp("engine") / "keeper") as process:
        yield process


@pytest.fixture(scope="module")
def engine(keeper: Keeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    remote_servers = "<clickhouse><remote_servers><both>{}</both></remote_servers></clickhouse>"
    shard = "<shard><replica><host>127.0.0.1</host><port>9000</port></replica></shard>"
    process = EngineProcess(
        tmp_path_factory.mktemp("engine") / "data",
        replicas=2,
        keepers=[keeper.address],
        shard="east",
        config={"remote_servers.xml": remote_servers.format(shard * 2)},
    )
    with process:
        process.sql(f"CREATE DATABASE {DATABASE}")
        yield process


@pytest.fixture
def table(engine: EngineProcess) -> Iterator[EngineProcess]:
    """The engine with a new table `rows`."""
    make_table(engine)
    yield engine
    engine.sql("DROP TABLE rows SYNC", database=DATABASE)


def make_table(engine: EngineProcess, **options: Any) -> None:
    engine.sql(
        "CREATE TABLE rows (number UInt64, text String) ENGINE = MergeTree ORDER BY number"
        " SETTINGS non_replicated_deduplication_window = 100",
        database=DATABASE,
        **options,
    )


def request(
    engine: EngineProcess,
    body: bytes | str,
    *,
    replica: int = 0,
    headers: dict[str, str] | None = None,
    **parameters: str,
) -> Answer:
    """One request, as it came back; `parameters` go into the URL."""
    connection = http.client.HTTPConnection(engine.addresses[replica], timeout=COMMAND_LIMIT_S)
    try:
        response = send(connection, body, headers=headers, **parameters)
        names = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, names, response.read())
    finally:
        connection.close()


def insert(engine: EngineProcess, data: bytes, token: str, **options: Any) -> Answer:
    return request(
        engine, data, query=INSERT, database=DATABASE, insert_deduplication_token=token, **options
    )


def count(engine: EngineProcess, what: str = "count()") -> int:
    (row,) = engine.sql(f"SELECT {what} AS n FROM rows", database=DATABASE)
    return int(row["n"])


def place(address: str) -> tuple[str, int]:
    host, port = address.split(":")
    return host, int(port)


def rows(numbers: range) -> bytes:
    return block(ROWS, [(number, f"row {number}") for number in numbers])


def test_a_block_is_stored_once_per_token_whichever_replica_takes_it(table: EngineProcess) -> None:
    for replica in (0, 1, 0):
        answer = insert(table, rows(range(3)), "session-1-1", replica=replica)
        assert (answer.status, answer.text) == (200, "")
    assert count(table) == 3
    insert(table, rows(range(3)), "session-1-2")
    assert count(table) == 6


def test_a_block_with_a_known_token_is_not_stored_again_after_a_kill(tmp_path: Path) -> None:
    with EngineProcess(tmp_path / "data") as own:
        own.sql(f"CREATE DATABASE {DATABASE}")
        make_table(own)
        insert(own, rows(range(3)), "once")
        addresses = list(own.addresses)
        own.kill()
        own.start()
        assert own.addresses == addresses
        insert(own, rows(range(3)), "once")
        assert count(own) == 3


def test_a_block_of_200_000_rows_is_stored_as_one_part(table: EngineProcess) -> None:
    assert insert(table, rows(range(200_000)), "large").status == 200
    assert count(table, "uniqExact(_part)") == 1
    assert count(table) == 200_000


@pytest.mark.parametrize(
    ("coding", "compress"),
    [("lz4", lz4.frame.compress), ("zstd", zstd.compress)],
)
def test_a_block_may_come_compressed(table: EngineProcess, coding: str, compress: Any) -> None:
    body = compress(rows(range(10_000)))
    assert insert(table, body, coding, headers={"Content-Encoding": coding}).status == 200
    assert count(table, "sum(number)") == sum(range(10_000))


def test_quorum_settings_of_replicated_tables_are_ignored(table: EngineProcess) -> None:
    answer = insert(table, rows(range(3)), "a", insert_quorum="2", insert_quorum_parallel="1")
    assert answer.status == 200
    assert count(table) == 3


def test_half_a_block_is_refused_and_not_stored(table: EngineProcess) -> None:
    data = rows(range(1000))
    with socket.create_connection(place(table.http)) as connection:
        head = f"POST /?database={DATABASE}&query={INSERT.replace(' ', '+')} HTTP/1.1\r\n"
        head += f"Host: {table.http}\r\nContent-Length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data[: len(data) // 2])
    refused = insert(table, data[: len(data) // 2], "half")
    assert (refused.status, refused.code) == (500, 33)  # CANNOT_READ_ALL_DATA
    assert insert(table, data, "half").status == 200
    assert count(table) == 1000


def test_errors_carry_clickhouses_code(table: EngineProcess) -> None:
    for statement, status, code in (
        ("SELECT nosuch FROM rows", 404, 47),
        ("SELECT * FROM nosuch", 404, 60),
        ("SELEC", 400, 62),
        ("SELECT throwIf(1)", 500, 395),
        ("SELECT 1 SETTINGS nosuch = 1", 404, 115),
        ("INSERT INTO nosuch SELECT 1", 404, 60),
        ("CREATE TABLE rows (x Int8) ENGINE = MergeTree ORDER BY x", 500, 57),
    ):
        answer = request(table, statement, database=DATABASE)
        assert (answer.code, answer.status) == (code, status), statement
        assert answer.text.startswith(f"Code: {code}. DB::Exception: ")
    assert request(table, "SELECT 1", database="nosuch").code == 81
    nowhere = request(table, rows(range(1)), query=INSERT.replace("rows", "nosuch", 1))
    assert (nowhere.status, nowhere.code) == (404, 60)
    table.sql("ALTER TABLE rows ADD CONSTRAINT small CHECK number < 10", database=DATABASE)
    violated = insert(table, rows(range(20)), "violates")
    assert (violated.status, violated.code) == (500, 469)
    assert count(table) == 0


def test_every_kind_of_statement_runs(table: EngineProcess) -> None:
    insert(table, rows(range(10)), "a")
    for statement in (
        "ALTER TABLE rows UPDATE text = 'changed' WHERE number = 1",
        "ALTER TABLE rows DELETE WHERE number = 2",
        "DELETE FROM rows WHERE number = 3",
        "OPTIMIZE TABLE rows FINAL",
        "CREATE VIEW few AS SELECT * FROM rows WHERE number < 5",
        "CREATE TABLE copy AS rows",
        "INSERT INTO copy SELECT * FROM few",
        "RENAME TABLE copy TO other",
        "SYSTEM FLUSH LOGS",
        "TRUNCATE TABLE other",
        "DROP TABLE other SYNC",
    ):
        answer = request(table, statement, database=DATABASE, mutations_sync="1")
        assert answer.status == 200, answer.text
    found = table.sql("SELECT number, text FROM few ORDER BY number", database=DATABASE)
    assert [row["number"] for row in found] == [0, 1, 4]
    assert found[1]["text"] == "changed"
    table.sql("DROP VIEW few", database=DATABASE)


def test_parameters_of_a_query_are_bound(engine: EngineProcess) -> None:
    text = "it's {x:String} é"
    assert engine.sql("SELECT {x:String} AS x", {"param_x": text}) == [{"x": text}]


def test_keeper_map_tables_work_through_every_replica(engine: EngineProcess) -> None:
    strict = {"keeper_map_strict_mode": "1"}
    engine.sql(
        "CREATE TABLE registry (key String, value String)"
        " ENGINE = KeeperMap('/of_this_test') PRIMARY KEY key"
    )
    engine.sql("INSERT INTO registry SELECT 'a', 'first'", strict, replica=1)
    with pytest.raises(SqlError, match="Node exists") as refused:
        engine.sql("INSERT INTO registry SELECT 'a', 'second'", strict)
    assert refused.value.code == 999
    change = (
        "ALTER TABLE registry UPDATE value = {value:String}"
        " WHERE key = 'a' AND _version = {version:Int32}"
    )
    for version in ("5", "0"):
        expected = {"param_value": f"expected {version}", "param_version": version}
        engine.sql(change, expected | strict)
    assert engine.sql("SELECT value, _version FROM registry") == [
        {"value": "expected 0", "_version": 1}
    ]


def test_tables_of_a_cluster_can_be_made_and_planned(engine: EngineProcess) -> None:
    engine.sql(
        "CREATE TABLE replicated (x Int8)"
        " ENGINE = ReplicatedMergeTree('/clickhouse/tables/{shard}/replicated', '{replica}')"
        " ORDER BY x"
    )
    assert engine.sql("SELECT replica_path, is_readonly FROM system.replicas") == [
        {
            "replica_path": "/clickhouse/tables/east/replicated/replicas/1",
            "is_readonly": 1,  # the embedded engine does not replicate
        }
    ]
    engine.sql(
        "CREATE TABLE everywhere AS replicated"
        " ENGINE = Distributed('both', currentDatabase(), replicated)"
    )
    plan = engine.sql("EXPLAIN SELECT count() FROM everywhere")
    assert any("ReadFromRemote" in row["explain"] for row in plan)


def test_many_inserts_and_reads_run_at_once(table: EngineProcess) -> None:
    table.sql("ALTER TABLE rows ADD COLUMN slowly UInt8 DEFAULT sleepEachRow(2)", database=DATABASE)
    slow_read = "SELECT sleep(2)"

    def at_once() -> int:
        (seen,) = table.sql(
            "SELECT countIf(position(query, concat('INSERT', ' INTO rows')) > 0) AS inserts"
            " FROM system.processes"
        )
        return int(seen["inserts"])

    def most_at_once(round_: int) -> int:
        """The most inserts of a round that one look has seen."""
        tokens = [f"{round_}-{n}" for n in range(MANY)]
        answers = [pool.submit(insert, table, rows(range(1)), token) for token in tokens]
        answers += [pool.submit(request, table, slow_read, database=DATABASE) for _ in tokens]
        looks = [at_once()]
        while concurrent.futures.wait(answers, LOOK_AGAIN_S).not_done:
            looks.append(at_once())
        assert [answer.result().status for answer in answers] == [200] * 2 * MANY
        return max(looks)

    rounds = itertools.count(1)
    with concurrent.futures.ThreadPoolExecutor(2 * MANY) as pool:
        until(lambda: most_at_once(next(rounds)) == MANY, "a look sees all inserts of a round")
    assert count(table) == (next(rounds) - 1) * MANY


def test_both_addresses_answer_with_the_same_tables(table: EngineProcess) -> None:
    insert(table, rows(range(3)), "a", replica=1)
    for address in table.addresses:
        connection = http.client.HTTPConnection(address, timeout=COMMAND_LIMIT_S)
        connection.request("GET", "/ping")
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, b"Ok.\n")
        connection.close()
    assert [
        table.sql("SELECT count() AS n FROM rows", replica=n, database=DATABASE) for n in (0, 1)
    ] == [[{"n": 3}]] * 2


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """An engine with a user and a password."""
    settings = {"sql_user": USER, "sql_password": PASSWORD}
    with EngineProcess(tmp_path_factory.mktemp("guarded") / "data", settings=settings) as process:
        process.sql(f"CREATE DATABASE {DATABASE}", user=USER, password=PASSWORD)
        make_table(process, user=USER, password=PASSWORD)
        yield process


@pytest.mark.parametrize(
    "credentials", [{}, basic(USER, "wrong"), basic("default", ""), basic("someone", PASSWORD)]
)
def test_an_engine_with_a_password_refuses_everybody_else(
    guarded: EngineProcess, credentials: dict[str, str]
) -> None:
    for body in ("SELECT 1", "DROP TABLE rows", rows(range(1))):
        query = INSERT if isinstance(body, bytes) else ""
        answer = request(guarded, body, headers=credentials, query=query)
        assert (answer.code, answer.status in (401, 403)) == (516, True)


def test_an_engine_without_a_password_refuses_a_web_page(engine: EngineProcess) -> None:
    """Its own name may point at this machine (DNS rebinding)."""
    answer = request(engine, "SELECT 1", headers={"Host": "evil.example:8123"})
    assert answer.code == 516


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}]
)
def test_a_page_of_another_site_is_refused_even_with_the_password(
    guarded: EngineProcess, headers: dict[str, str]
) -> None:
    answer = request(guarded, "SELECT 1", headers={**headers, **basic(USER, PASSWORD)})
    assert (answer.status, answer.code) == (403, 497)
    by_name = {"Host": "engine.example:8123", **basic(USER, PASSWORD)}
    assert request(guarded, "SELECT 1", headers=by_name).status == 200


@pytest.fixture
async def connected(guarded: EngineProcess) -> AsyncIterator[Any]:
    host, port = guarded.http.split(":")
    client = await clickhouse_connect.get_async_client(
        host=host, port=int(port), username=USER, password=PASSWORD, database=DATABASE
    )
    yield client
    await client.close()


async def test_clickhouse_connect_inserts_queries_and_gets_errors(connected: Any) -> None:
    await connected.command("TRUNCATE TABLE rows")
    for _ in range(2):
        await connected.raw_insert(
            "rows",
            ["number", "text"],
            rows(range(1000)),
            settings={"insert_deduplication_token": "from clickhouse-connect"},
            fmt="Native",
        )
    await connected.insert("rows", [[1000, "last"]], column_names=["number", "text"])
    found = await connected.query(
        "SELECT max(number), count() FROM rows WHERE number >= {least:UInt64}",
        parameters={"least": 500},
    )
    assert found.result_rows == [(1000, 501)]
    async with await connected.query_row_block_stream("SELECT * FROM rows") as stream:
        assert sum([len(part) async for part in stream]) == 1001
    with pytest.raises(DatabaseError) as failed:
        await connected.query("SELECT * FROM nosuch")
    assert failed.value.code == 60


async def test_aiochclient_inserts_queries_and_gets_errors(guarded: EngineProcess) -> None:
    async with aiohttp.ClientSession() as session:
        client = ChClient(
            session, url=f"{guarded.urls[0]}/", user=USER, password=PASSWORD, database=DATABASE
        )
        assert await client.is_alive()
        await client.execute("CREATE TABLE small (a Int64, b String) ENGINE = MergeTree ORDER BY a")
        await client.execute("INSERT INTO small VALUES", (1, "it's"), (2, "two"))
        found = await client.fetch("SELECT * FROM small ORDER BY a")
        assert [tuple(row.values()) for row in found] == [(1, "it's"), (2, "two")]
        answers = await asyncio.gather(*(client.fetchval(f"SELECT {n}") for n in range(20)))
        assert answers == list(range(20))
        with pytest.raises(ChClientError, match="UNKNOWN_TABLE"):
            await client.fetch("SELECT * FROM nosuch")


def ask_for_ever(connection: socket.socket) -> None:
    statement = "SELECT 'for ever', sum(number) FROM numbers(1000000000000)"
    head = f"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(statement)}\r\n\r\n"
    connection.sendall((head + statement).encode())


def runs_for_ever(engine: EngineProcess) -> bool:
    (running,) = engine.sql(
        "SELECT count() AS n FROM system.processes WHERE query LIKE '%for ever\\', sum(%'"
    )
    return bool(running["n"])


def test_a_client_that_leaves_ends_its_query(engine: EngineProcess) -> None:
    with socket.create_connection(place(engine.http)) as connection:
        ask_for_ever(connection)
        until(lambda: runs_for_ever(engine))
    until(lambda: not runs_for_ever(engine))


def test_a_stop_ends_cleanly_while_a_statement_runs(tmp_path: Path) -> None:
    with (
        EngineProcess(tmp_path / "data") as own,
        socket.create_connection(place(own.http)) as connection,
    ):
        ask_for_ever(connection)
        until(lambda: runs_for_ever(own))
        own.stop()


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "brokerhouse", "engine", *arguments],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=COMMAND_LIMIT_S,
        check=False,
    )


def assert_one_sentence(ended: subprocess.CompletedProcess[str] | Result, what: str) -> None:
    assert ended.stdout == ""
    said = [line for line in ended.stderr.splitlines() if line.startswith("Error: ")]
    assert len(said) == 1, ended.stderr
    assert re.search(what, said[0]), said[0]
    assert "Traceback" not in ended.stderr


def test_a_taken_port_or_data_directory_ends_it_with_one_sentence(
    engine: EngineProcess, tmp_path: Path
) -> None:
    data, free, taken = str(tmp_path / "data"), ("--http", "127.0.0.1:0"), engine.addresses[1]
    ended = command("--data-dir", data, *free, "--http", taken)
    assert ended.returncode == 1
    assert_one_sentence(ended, f"cannot listen for HTTP on {taken}: .*address already in use")
    ended = command("--data-dir", str(engine.data_dir), *free)
    assert ended.returncode == 1
    assert_one_sentence(ended, f"in use by process {engine.pid}")


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--data-dir", "/dev/null/data"), "cannot be written"),
        (("--data-dir", "data", "--keeper", "nonsense"), "--keeper.*HOST:PORT"),
        (("--data-dir", "data", "--keeper", "127.0.0.1:port"), "--keeper.*number"),
        (("--data-dir", "data", "--keeper", "127.0.0.1:0"), "--keeper.*port"),
        (("--data-dir", "data", "--http", "8123"), "--http.*HOST:PORT"),
        (("--data-dir", "data", "--sql-user", "someone"), "sql_password"),
        ((), "--data-dir"),
    ],
)
def test_wrong_settings_end_it_with_one_sentence(arguments: tuple[str, ...], what: str) -> None:
    ended = CliRunner().invoke(cli_engine.engine, arguments)
    assert ended.exit_code == 2
    assert_one_sentence(ended, what)


def test_an_engine_without_its_keeper_starts_and_logs_it(tmp_path: Path) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    with EngineProcess(tmp_path / "data", keepers=[nowhere]) as own:
        assert f"no Keeper answers at {nowhere}" in own.log()
        assert own.sql("SELECT 1 AS one") == [{"one": 1}]
        with pytest.raises(SqlError) as refused:
            own.sql("CREATE TABLE t (k String) ENGINE = KeeperMap('/t') PRIMARY KEY k")
        assert refused.value.code == 999
        own.stop()
