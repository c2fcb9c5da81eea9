"""ClickHouse's client for Node.js (@clickhouse/client), with its defaults and with compression."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import tools
from tests.support.broker_process import BrokerProcess
from tests.support.helper_process import HelperError, HelperProcess
from tests.support.sql_client import PASSWORD, USER, read, running
from tests.support.waiting import until

LOGIN = {"username": USER, "password": PASSWORD}
COMPRESSION: list[dict[str, Any]] = [
    {},
    {"compression": {"response": True}},
    {"compression": {"response": True, "request": True}},
]
BREAKS = (
    "SELECT throwIf(number = 30000, 'bang') AS x, randomPrintableASCII(1000) AS text"
    " FROM numbers(100000) SETTINGS max_block_size = 1000"
)


class Js:
    """The client in a process of Node.js; `options` are those of createClient."""

    def __init__(self, process: HelperProcess, url: str) -> None:
        self._process = process
        self._url = url

    def ask(self, verb: str, options: dict[str, Any], **arguments: Any) -> Any:
        return self._process.ask(verb, url=self._url, options=options, **arguments)


@pytest.fixture(scope="module")
def js(server: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Js]:
    log = tmp_path_factory.mktemp("js") / "node.log"
    process = HelperProcess(tools.node_command("clickhouse.js"), log)
    yield Js(process, server.http_url)
    process.close()


@pytest.mark.parametrize("options", COMPRESSION, ids=str)
def test_a_reader_queries_without_options(js: Js, options: dict[str, Any]) -> None:
    assert js.ask("ping", options) == {"success": True}
    assert js.ask("ping", options, select=True) == {"success": True}
    sql = "SELECT offset, value FROM brokerhouse.messages WHERE topic = {topic: String} LIMIT 2"
    rows = js.ask("query", options, sql=sql, query_params={"topic": "kept"})
    assert rows == [{"offset": 0, "value": "0"}, {"offset": 1, "value": "1"}]
    whole = js.ask("query", options, sql="SELECT currentUser() AS who, 1 AS one", format="JSON")
    assert whole["data"] == [{"who": "default", "one": 1}]
    assert whole["rows"] == 1
    assert js.ask("stream", options, sql="SELECT number FROM numbers(300000)") == 300_000


def test_parameters_are_values(js: Js) -> None:
    given = {"a": 1, "s": "o'clock \\ \t\n\"", "l": ["p", "q'"], "n": None}
    sql = (
        "SELECT {a: UInt8} AS a, {s: String} AS s, {l: Array(String)} AS l,"
        " {n: Nullable(String)} AS n"
    )
    assert js.ask("query", {}, sql=sql, query_params=given) == [given]


def test_settings_of_the_http_interface_are_accepted(js: Js) -> None:
    settings = {
        "wait_end_of_query": 1,
        "send_progress_in_http_headers": 1,
        "max_result_rows": "1000",
        "http_headers_progress_interval_ms": "100",
        "output_format_json_quote_64bit_integers": 1,
        "http_write_exception_in_output_format": 0,
    }
    rows = js.ask("query", {}, sql="SELECT toUInt64(7) AS n", clickhouse_settings=settings)
    assert rows == [{"n": "7"}]


@pytest.mark.parametrize("options", COMPRESSION, ids=str)
def test_errors_have_the_code_and_text_of_the_server(js: Js, options: dict[str, Any]) -> None:
    with pytest.raises(HelperError, match=r"60 UNKNOWN_TABLE: Unknown table .*nosuch"):
        js.ask("query", options, sql="SELECT * FROM nosuch")
    with pytest.raises(HelperError, match=r"497 ACCESS_DENIED: .*read-only"):
        js.ask("insert", options, table="brokerhouse.messages", values=[{"topic": "x"}])
    with pytest.raises(HelperError, match="516 AUTHENTICATION_FAILED"):
        js.ask("query", {**options, "password": "wrong"}, sql="SELECT 1")


@pytest.mark.parametrize("options", COMPRESSION, ids=str)
def test_an_error_within_a_result_is_raised(js: Js, options: dict[str, Any]) -> None:
    with pytest.raises(HelperError, match=r"395 .*: bang|ECONNRESET"):
        js.ask("stream", options, sql=BREAKS)


def test_a_session_keeps_its_settings(js: Js) -> None:
    options = {"session_id": "of the js client"}
    then = "SELECT toString(getSetting('max_result_rows')) AS rows"
    rows = js.ask("session", options, sql="SET max_result_rows = 77", then=then)
    assert rows == [{"rows": "77"}]


def test_a_client_can_ask_for_the_role_that_it_has(js: Js) -> None:
    sql = "SELECT currentRoles() AS roles"
    assert js.ask("query", {"role": "reader"}, sql=sql) == [{"roles": ["reader"]}]
    with pytest.raises(HelperError, match="512 SET_NON_GRANTED_ROLE"):
        js.ask("query", {"role": "writer"}, sql=sql)


def test_an_aborted_query_ends(js: Js, server: BrokerProcess) -> None:
    sql = "SELECT count() AS from_js FROM numbers(1000000000000) WHERE NOT ignore(rand(number))"
    runs = (
        "SELECT 1 FROM system.processes WHERE query LIKE '%from_js%'"
        " AND query NOT LIKE '%system.processes%'"
    )
    with pytest.raises(HelperError, match="aborted"):
        js.ask("abort", LOGIN, sql=sql, until=runs)
    until(lambda: not any("from_js" in query for query in running(server)))


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("options", COMPRESSION, ids=str)
def test_a_user_who_may_write_inserts_rows(
    js: Js, server: BrokerProcess, table: str, options: dict[str, Any], streamed: bool
) -> None:
    values = [{"a": n, "b": f"row '{n}'"} for n in range(5000)]
    options = {**options, **LOGIN}
    assert js.ask("insert", options, table=table, values=values, streamed=streamed) is True
    assert read(server, f"SELECT count(), sum(a) FROM {table}") == f"5000\t{sum(range(5000))}\n"
    with pytest.raises(HelperError, match="27 CANNOT_PARSE_INPUT"):
        js.ask("insert", options, table=table, values=[{"a": "x"}])
