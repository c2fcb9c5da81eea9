"""ClickHouse's JDBC driver as DBeaver and Metabase use it, with its defaults and with a login."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import tools
from tests.support.broker_process import BrokerProcess
from tests.support.helper_process import HelperError, HelperProcess
from tests.support.sql_client import PASSWORD, USER, read, running
from tests.support.waiting import until

BREAKS = (
    "SELECT throwIf(number = 30000, 'bang'), randomPrintableASCII(1000) FROM numbers(100000)"
    " SETTINGS max_block_size = 1000"
)
LONG = "SELECT count() AS from_jdbc FROM numbers(1000000000000) WHERE NOT ignore(sipHash64(number))"
LOGIN = {"user": USER, "password": PASSWORD}


class Jdbc:
    """The driver in a JVM. `open` gives it a connection, the other calls use it."""

    def __init__(self, process: HelperProcess, http: str) -> None:
        self._process = process
        self._http = http

    def open(self, database: str = "", **properties: str) -> Jdbc:
        url = f"jdbc:clickhouse://{self._http}/{database}"
        self._process.ask("open", url=url, properties=properties)
        return self

    def query(self, sql: str, *parameters: object, max_rows: int = 0) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._process.ask(
            "query", sql=sql, parameters=parameters, max_rows=max_rows
        )
        return rows

    def metadata(self, method: str, *arguments: object) -> Any:
        return self._process.ask("metadata", method=method, arguments=arguments)

    def ask(self, verb: str, **arguments: Any) -> Any:
        return self._process.ask(verb, **arguments)


@pytest.fixture(scope="module")
def jdbc(server: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jdbc]:
    process = HelperProcess(tools.jdbc_command(), tmp_path_factory.mktemp("jdbc") / "java.log")
    yield Jdbc(process, server.http)
    process.close()


COMPRESSION: list[dict[str, str]] = [
    {},
    {"compress": "false"},
    {"decompress": "true"},
    {"client.use_http_compression": "true"},
    {"client.use_http_compression": "true", "decompress": "true"},
]


@pytest.mark.parametrize("properties", COMPRESSION, ids=str)
def test_the_log_is_read_with_every_compression(jdbc: Jdbc, properties: dict[str, str]) -> None:
    jdbc.open(**properties)
    assert jdbc.ask("is_valid") is True
    rows = jdbc.query("SELECT * FROM brokerhouse.messages WHERE topic = ? ORDER BY offset", "kept")
    assert [(row["topic"], row["offset"], row["value"]) for row in rows] == [
        ("kept", str(n), str(n)) for n in range(10)
    ]
    many = jdbc.query("SELECT sum(x), count() FROM (SELECT number AS x FROM numbers(300000))")
    assert list(many[0].values()) == [str(sum(range(300_000))), "300000"]
    numbers = jdbc.query("SELECT number AS n, toString(number) AS text FROM numbers(30000)")
    assert numbers[-1] == {"n": "29999", "text": "29999"}
    assert len(numbers) == 30_000


@pytest.mark.parametrize(
    "properties",
    [{}, {"user": "default"}, {"user": "default", "password": ""}, {"password": ""}],
    ids=str,
)
def test_without_a_password_the_default_user_reads(jdbc: Jdbc, properties: dict[str, str]) -> None:
    jdbc.open("brokerhouse", **properties)
    (row,) = jdbc.query(
        "SELECT currentUser() AS user, timezone() AS zone, toString(currentRoles()) AS roles"
    )
    assert (row["user"], row["roles"]) == ("default", "['reader']")
    with pytest.raises(HelperError, match=r"Code: 497\. DB::Exception: .* SQL is read-only"):
        jdbc.query("INSERT INTO messages (topic) VALUES ('x')")


@pytest.mark.parametrize("properties", [{"password": "wrong"}, {**LOGIN, "password": ""}], ids=str)
def test_a_wrong_password_is_refused(jdbc: Jdbc, properties: dict[str, str]) -> None:
    with pytest.raises(HelperError, match=r"Code: 516\. DB::Exception: .*Authentication failed"):
        jdbc.open(**properties).query("SELECT 1")


def test_dbeavers_tree_shows_databases_tables_and_columns(jdbc: Jdbc) -> None:
    jdbc.open()
    assert jdbc.metadata("getDatabaseProductName") == "ClickHouse"
    assert int(jdbc.metadata("getDatabaseProductVersion").split(".")[0]) >= 26
    schemas = {row["TABLE_SCHEM"] for row in jdbc.metadata("getSchemas")}
    assert {"brokerhouse", "default", "system"} <= schemas
    jdbc.metadata("getCatalogs")
    for kinds in None, ["TABLE", "VIEW"]:
        tables = jdbc.metadata("getTables", None, "brokerhouse", "%", kinds)
        assert {"messages", "topics", "consumer_lag"} <= {row["TABLE_NAME"] for row in tables}
    columns = jdbc.metadata("getColumns", None, "brokerhouse", "messages", "%")
    assert {("topic", "LowCardinality(String)"), ("offset", "Int64")} <= {
        (row["COLUMN_NAME"], row["TYPE_NAME"]) for row in columns
    }
    keys = jdbc.metadata("getPrimaryKeys", None, "brokerhouse", "messages")
    assert {row["COLUMN_NAME"] for row in keys} == {"topic", "partition", "offset"}


CALLS: list[tuple[Any, ...]] = [
    ("getTypeInfo",),
    ("getTableTypes",),
    ("getClientInfoProperties",),
    ("getFunctions", None, None, "%"),
    ("getTables", None, None, "%", None),
    ("getColumns", None, None, "%", "%"),
]
EMPTY: list[tuple[Any, ...]] = [
    ("getProcedures", None, None, "%"),
    ("getIndexInfo", None, "brokerhouse", "messages", False, True),
    ("getImportedKeys", None, "brokerhouse", "messages"),
    ("getExportedKeys", None, "brokerhouse", "messages"),
    ("getColumnPrivileges", None, "brokerhouse", "messages", "%"),
    ("getTablePrivileges", None, "brokerhouse", "%"),
    ("getVersionColumns", None, "brokerhouse", "messages"),
    ("getFunctionColumns", None, None, "%", "%"),
]


@pytest.mark.parametrize("call", [*CALLS, *EMPTY], ids=lambda call: call[0])
def test_metadata_is_answered(jdbc: Jdbc, call: tuple[Any, ...]) -> None:
    rows = jdbc.open().metadata(*call)
    assert bool(rows) == (call in CALLS)


def test_rows_are_limited_and_parameters_are_values(jdbc: Jdbc) -> None:
    jdbc.open("brokerhouse")
    assert len(jdbc.query("SELECT number FROM numbers(1000)", max_rows=10)) == 10
    text = 'o\'clock \\ "x" ?'
    (row,) = jdbc.query(
        "SELECT ? AS a, ? AS b, count() AS c FROM messages WHERE topic = ?", 5, text, "kept"
    )
    assert row == {"a": "5", "b": text, "c": "10"}


def test_errors_have_the_code_and_text_of_the_server(jdbc: Jdbc) -> None:
    jdbc.open()
    with pytest.raises(HelperError, match=r"Code: 60\. DB::Exception: Unknown table .*nosuch"):
        jdbc.query("SELECT * FROM nosuch")
    with pytest.raises(HelperError, match=r"Code: 62\. DB::Exception: Syntax error"):
        jdbc.query("SELECT 1/")


def test_an_error_within_a_result_is_raised(jdbc: Jdbc) -> None:
    jdbc.open()
    with pytest.raises(HelperError, match=r"Failed to read|Premature end"):
        jdbc.query(BREAKS)
    assert jdbc.query("SELECT 1 AS one") == [{"one": "1"}]


def test_a_statement_is_cancelled(jdbc: Jdbc, server: BrokerProcess) -> None:
    jdbc.open()
    jdbc.ask("start", sql=LONG)
    until(lambda: any("from_jdbc" in query for query in running(server)))
    assert "Code: 394. DB::Exception: " in jdbc.ask("cancel")
    until(lambda: not any("from_jdbc" in query for query in running(server)))


@pytest.mark.parametrize("properties", COMPRESSION, ids=str)
def test_a_user_who_may_write_inserts_rows(
    jdbc: Jdbc, server: BrokerProcess, table: str, properties: dict[str, str]
) -> None:
    jdbc.open(**LOGIN, **properties)
    rows = [[n, f"row '{n}'"] for n in range(1000)]
    assert jdbc.ask("insert", sql=f"INSERT INTO {table} (a, b) VALUES (?, ?)", rows=rows) == 1000
    stored = read(
        server, f"SELECT count(), sum(a), any(b = concat('row \\'', a, '\\'')) FROM {table}"
    )
    assert stored == f"1000\t{sum(range(1000))}\ttrue\n".replace("true", "1")
