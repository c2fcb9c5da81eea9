"""clickhouse-connect, unmodified: its sync and its async client."""

import asyncio
import datetime
from typing import Any

import clickhouse_connect
import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError, StreamFailureError
from clickhouse_connect.driver.external import ExternalData

from tests.support.broker_process import BrokerProcess
from tests.support.pairwise import also_in_test_all
from tests.support.sql_client import PASSWORD, USER

WHEN = datetime.datetime(2024, 2, 29, 12, 30, 15, 123000, datetime.UTC)
FAILS_LATE = "SELECT throwIf(number = 3000000, 'bang') FROM numbers(100000000)"


def client(server: BrokerProcess, **options: Any) -> Client:
    host, port = server.http.split(":")
    # With zones, so that the test's own time zone does not count.
    made: Client = clickhouse_connect.get_client(
        host=host, port=int(port), tz_mode="aware", **options
    )
    return made


@pytest.fixture
def reader(server: BrokerProcess) -> Client:
    return client(server)


@pytest.fixture
def writer(server: BrokerProcess) -> Client:
    return client(server, username=USER, password=PASSWORD, database="default")


@pytest.fixture
def table(writer: Client, request: pytest.FixtureRequest) -> str:
    name = "".join(c if c.isalnum() else "_" for c in request.node.name)
    writer.command(f"DROP TABLE IF EXISTS {name}")
    writer.command(
        f"CREATE TABLE {name} (a Int64, b Nullable(String), c Array(DateTime64(3, 'UTC')))"
        " ENGINE = MergeTree ORDER BY a"
    )
    return name


def test_clickhouse_connect_reads_the_servers_version_and_database(reader: Client) -> None:
    assert reader.command("SELECT version()") == reader.server_version
    assert reader.ping()
    assert reader.command("SELECT currentDatabase()") == "brokerhouse"
    assert reader.get_client_setting("session_id")


def test_a_query_is_read_in_each_shape(reader: Client) -> None:
    sql = "SELECT number AS n, toString(number) AS s FROM numbers(3) ORDER BY n"
    assert reader.query(sql).result_rows == [(0, "0"), (1, "1"), (2, "2")]
    assert reader.query(sql, column_oriented=True).result_set == [[0, 1, 2], ["0", "1", "2"]]
    assert reader.query(f"{sql} LIMIT 0").column_names == ("n", "s")
    assert b"ARROW1" in reader.raw_query(sql, fmt="Arrow")
    assert reader.raw_query(sql, fmt="CSV") == b'0,"0"\n1,"1"\n2,"2"\n'
    assert reader.command("SELECT 7") == 7
    assert int(reader.query(sql).summary["read_rows"]) == 3


def test_wide_rows_and_all_kinds_of_types_are_read(reader: Client) -> None:
    rows = reader.query(
        "SELECT toInt256(-1), 1.5::Float32, '2020-01-01'::Date, [1, NULL], map('a', 1), (1, 'x'),"
        " toUUID('00112233-4455-6677-8899-aabbccddeeff'), toLowCardinality('l'), NULL, true,"
        " toDecimal128('1.23', 2), '1.2.3.4'::IPv4, '{\"a\": 1}'::JSON"
    ).result_rows
    assert rows[0][:6] == (-1, 1.5, datetime.date(2020, 1, 1), [1, None], {"a": 1}, (1, "x"))
    wide = reader.query("SELECT " + ", ".join(f"{n} AS c{n}" for n in range(100)))
    assert wide.result_rows == [tuple(range(100))]


@pytest.mark.parametrize("form", [False, True])
def test_parameters_are_bound_on_the_server(server: BrokerProcess, form: bool) -> None:
    values = {"s": 'it\'s \\ "x"\n\t ünï \x00', "l": ["q'\\\n", ""], "d": WHEN, "n": None}
    sql = "SELECT {s:String}, {l:Array(String)}, {d:DateTime64(3, 'UTC')}, {n:Nullable(Int8)}"
    answer = client(server, form_encode_query_params=form).query(sql, parameters=values)
    assert answer.result_rows == [(values["s"], values["l"], WHEN, None)]


def test_a_stream_gives_a_result_in_blocks(reader: Client) -> None:
    sql = "SELECT number, toString(number) FROM numbers(2000000)"
    with reader.query_row_block_stream(sql) as stream:
        assert sum(len(block) for block in stream) == 2_000_000
    with reader.raw_stream("SELECT 1", fmt="CSV") as raw:
        assert raw.read() == b"1\n"


def test_a_stream_may_be_left_early(reader: Client) -> None:
    with reader.query_row_block_stream("SELECT number FROM numbers(50000000)") as stream:
        next(iter(stream))
    assert reader.command("SELECT 1") == 1


@pytest.mark.parametrize(
    "compress", also_in_test_all(["lz4", "gzip"], [False, "lz4", "zstd", "gzip"])
)
def test_rows_are_inserted_and_read_in_each_compression(
    server: BrokerProcess, writer: Client, table: str, compress: Any
) -> None:
    squeezed = client(
        server, username=USER, password=PASSWORD, database="default", compress=compress
    )
    rows = [[n, None if n % 3 else f"it's {n}\n", [WHEN] * (n % 4)] for n in range(100_000)]
    assert squeezed.insert(table, rows).written_rows == 100_000
    assert [
        list(row) for row in squeezed.query(f"SELECT * FROM {table} ORDER BY a").result_rows
    ] == rows


def test_a_deflated_result_is_read(server: BrokerProcess) -> None:
    deflated = client(server, compress="deflate")
    assert len(deflated.query("SELECT number FROM numbers(1000000)").result_rows) == 1_000_000


def test_rows_are_inserted_in_each_shape(writer: Client, table: str) -> None:
    writer.insert(table, [[1, "x", [WHEN]]])
    writer.insert(table, [[2, 3], [None, "z"]], column_names=["a", "b"], column_oriented=True)
    writer.raw_insert(table, ["a", "b"], "4,w\n", fmt="CSV")
    writer.raw_insert(table, ["a", "b"], (line for line in (b"5,v\n", b"6,u\n")), fmt="CSV")
    writer.command(f"INSERT INTO {table} (a, b) VALUES", data="(7, 't')")
    writer.command(f"INSERT INTO {table} (a, b) SELECT 8, 's'")
    assert writer.query(f"SELECT a, b FROM {table} ORDER BY a").result_rows == [
        (1, "x"),
        (2, None),
        (3, "z"),
        (4, "w"),
        (5, "v"),
        (6, "u"),
        (7, "t"),
        (8, "s"),
    ]


def test_a_refused_insert_is_an_exception(writer: Client, table: str) -> None:
    with pytest.raises(DatabaseError, match="code: 117"):
        writer.raw_insert(table, ["a"], "x\n", fmt="CSV")
    with pytest.raises(DatabaseError, match="ACCESS_DENIED"):
        writer.insert("brokerhouse.messages", [["x", 1]], column_names=["topic", "offset"])
    assert writer.command(f"SELECT count() FROM {table}") == 0


def test_errors_carry_clickhouses_code(reader: Client) -> None:
    for sql, code in (
        ("SELECT nosuch", 47),
        ("SELECT * FROM nosuch", 60),
        ("SELEC", 62),
        (FAILS_LATE, 395),
    ):
        with pytest.raises(DatabaseError) as failed:
            reader.query(sql)
        assert failed.value.code == code
    with pytest.raises(DatabaseError, match="ACCESS_DENIED"):
        reader.command("CREATE TABLE x (a Int8) ENGINE = Memory")


def test_an_error_within_a_stream_is_raised(reader: Client) -> None:
    with (
        pytest.raises(StreamFailureError, match="bang"),
        reader.query_row_block_stream(FAILS_LATE) as stream,
    ):
        for _ in stream:
            pass


def test_wrong_credentials_are_refused(server: BrokerProcess) -> None:
    with pytest.raises(DatabaseError, match="AUTHENTICATION_FAILED"):
        client(server, username=USER, password="wrong")


def test_a_session_keeps_settings_and_temporary_tables(writer: Client) -> None:
    writer.command("CREATE TEMPORARY TABLE tmp (x Int8)")
    writer.insert("tmp", [[1], [2]])
    assert writer.query("SELECT sum(x) FROM tmp").result_rows == [(3,)]
    writer.command("SET max_block_size = 77")
    sql = "SELECT getSetting('max_block_size')"
    assert writer.query(sql, settings={"max_block_size": 5}).result_rows == [(5,)]
    assert writer.command(sql) == 77


def test_external_data_is_a_table_of_the_query(reader: Client) -> None:
    data = ExternalData(
        file_name="films", data=b"a,1\nb,2\n", fmt="CSV", structure=["name String", "n Int32"]
    )
    assert reader.query("SELECT sum(n) FROM films", external_data=data).result_rows == [(3,)]
    evil = ExternalData(
        file_name="x", data=b"\n", fmt="CSV", structure="a String DEFAULT file('/etc/passwd')"
    )
    with pytest.raises(DatabaseError, match="ACCESS_DENIED"):
        reader.query("SELECT * FROM x", external_data=evil)


async def test_the_async_client_runs_queries_at_once_and_raises_errors(
    server: BrokerProcess,
) -> None:
    host, port = server.http.split(":")
    reader = await clickhouse_connect.get_async_client(host=host, port=int(port))
    try:
        assert (await reader.query("SELECT 1")).result_rows == [(1,)]
        answers = await asyncio.gather(
            *(reader.command(f"SELECT {n} + sleep(0.01)") for n in range(30))
        )
        assert answers == list(range(30))
        count = 0
        async with await reader.query_row_block_stream(
            "SELECT number FROM numbers(1000000)"
        ) as stream:
            async for block in stream:
                count += len(block)
        assert count == 1_000_000
        with pytest.raises(DatabaseError) as failed:
            await reader.query("SELECT nosuch")
        assert failed.value.code == 47
        with pytest.raises(StreamFailureError, match="bang"):
            await _read_all(reader, FAILS_LATE)
    finally:
        await reader.close()


async def _read_all(reader: Any, sql: str) -> None:
    async with await reader.query_row_block_stream(sql) as stream:
        async for _ in stream:
            pass


async def test_the_async_client_inserts(server: BrokerProcess, table: str) -> None:
    host, port = server.http.split(":")
    writer = await clickhouse_connect.get_async_client(
        host=host, port=int(port), username=USER, password=PASSWORD, database="default"
    )
    try:
        rows = [[n, f"{n}", []] for n in range(50_000)]
        assert (await writer.insert(table, rows)).written_rows == 50_000
        assert await writer.command(f"SELECT sum(a) FROM {table}") == sum(range(50_000))
    finally:
        await writer.close()
