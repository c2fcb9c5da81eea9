"""ClickHouse's HTTP interface, with raw requests: parameters, headers, bodies."""

import gzip
import json
import socket
import subprocess
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brokerhouse.sql.http.text import literal
from tests.support.broker_process import BrokerProcess
from tests.support.sql_client import (
    MIB,
    PASSWORD,
    USER,
    WRITER,
    Answer,
    ask,
    connect,
    escaped,
    raw_connection,
    read,
    running,
    send,
)
from tests.support.waiting import until


@pytest.mark.parametrize("path", ["/ping", "/replicas_status", "/"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_ping_and_the_root_answer_ok(server: BrokerProcess, path: str, method: str) -> None:
    answer = ask(server, method=method, path=path)
    assert answer.status == 200
    assert answer.body == (b"Ok.\n" if method == "GET" else b"")


def test_an_unknown_path_is_not_found(server: BrokerProcess) -> None:
    answer = ask(server, method="GET", path="/nope")
    assert answer.status == 404
    assert "/ping" in answer.text


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE"])
def test_a_method_that_is_not_served_is_refused(server: BrokerProcess, method: str) -> None:
    answer = ask(server, "SELECT 1", method=method)
    assert answer.status == 405
    assert "POST" in answer.headers["allow"]


def test_options_lists_the_methods(server: BrokerProcess) -> None:
    answer = ask(server, method="OPTIONS")
    assert answer.status == 204
    assert answer.headers["allow"] == "GET, HEAD, POST, OPTIONS"


def test_a_query_may_stand_in_the_url_in_the_body_or_in_both(server: BrokerProcess) -> None:
    assert ask(server, method="GET", query="SELECT 1").body == b"1\n"
    assert ask(server, "SELECT 1").body == b"1\n"
    assert ask(server, query="SELECT 1").body == b"1\n"
    assert ask(server, " + 1", query="SELECT 1").body == b"2\n"


def test_head_gives_the_headers_of_a_query(server: BrokerProcess) -> None:
    answer = ask(server, method="HEAD", query="SELECT 1 FORMAT CSV")
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["x-clickhouse-format"] == "CSV"
    assert ask(server, method="HEAD", query="SELECT nosuch").code == 47


def test_the_summary_counts_the_rows_of_the_result(server: BrokerProcess) -> None:
    """ClickHouse's Kafka Connect sink takes its state for missing where `result_rows` is 0."""
    sql = "SELECT number FROM numbers(1000) WHERE number % 100 = 0"
    for wait in ("0", "1"):
        answer = ask(server, sql, default_format="RowBinary", wait_end_of_query=wait)
        summary = json.loads(answer.headers["x-clickhouse-summary"])
        assert (summary["read_rows"], summary["result_rows"]) == ("1000", "10")
        assert summary["result_bytes"] == "80"
    nothing = ask(server, "SELECT 1 WHERE 0").headers["x-clickhouse-summary"]
    assert json.loads(nothing)["result_rows"] == "0"


def test_head_of_a_long_answer_ends_the_query(server: BrokerProcess) -> None:
    sql = "SELECT number AS head_of_long FROM system.numbers"
    assert ask(server, method="HEAD", query=sql).status == 200
    until(lambda: not any("head_of_long" in q for q in running(server)))


def test_the_format_comes_from_the_query_the_parameter_or_the_header(server: BrokerProcess) -> None:
    def fmt(sql: str, header: str = "", **parameters: Any) -> str:
        headers = {"X-ClickHouse-Format": header} if header else {}
        answer = ask(server, sql, headers=headers, **parameters)
        return answer.headers["x-clickhouse-format"] + " " + answer.text

    assert fmt("SELECT 1 AS a") == "TabSeparated 1\n"
    assert fmt("SELECT 1 AS a", default_format="CSVWithNames") == 'CSVWithNames "a"\n1\n'
    assert fmt("SELECT 1 AS a", "JSONEachRow") == 'JSONEachRow {"a":1}\n'
    assert fmt("SELECT 1 AS a FORMAT Values", "JSONEachRow", default_format="CSV") == "Values (1)"


def test_an_unknown_format_is_answered_with_clickhouses_error(server: BrokerProcess) -> None:
    for answer in (
        ask(server, "SELECT 1", default_format="No;'such"),
        ask(server, "SELECT 1 FORMAT X"),
    ):
        assert (answer.status, answer.code) == (404, 73)


def test_every_format_is_served_with_its_content_type(server: BrokerProcess) -> None:
    rows = read(
        server,
        "SELECT name, content_type FROM system.formats WHERE is_output AND NOT"
        " has_external_schema FORMAT JSONCompactEachRow",
    )
    formats = dict(json.loads(line) for line in rows.splitlines())
    assert len(formats) > 60
    failed = {}
    for name, content_type in formats.items():
        columns = {"Npy": "1 AS a", "RawBLOB": "'x' AS a", "PNG": "1 AS v"}.get(
            name, "1 AS a, 'x' AS b"
        )
        answer = ask(server, f"SELECT {columns} FORMAT {name}")
        if answer.status != 200 or answer.headers["content-type"] != content_type:
            failed[name] = answer
    # These need settings or rows of their own; the engine says so.
    assert {name for name, answer in failed.items() if answer.code == 0} == set()
    assert set(failed) <= {
        "GeoJSON",
        "PNG",
        "Template",
        "AvroConfluent",
        "HiveText",
        "PostgreSQLWire",
        "Prometheus",
    }


def test_the_default_database_is_that_of_the_broker(server: BrokerProcess) -> None:
    sql = "SELECT currentDatabase()"
    assert read(server, sql) == "brokerhouse\n"
    assert read(server, sql, database="system") == "system\n"
    assert ask(server, sql, headers={"X-ClickHouse-Database": "default"}).body == b"default\n"
    assert read(server, "SELECT count() FROM messages") == "10\n"


def test_an_unknown_database_is_answered_with_clickhouses_error(server: BrokerProcess) -> None:
    answer = ask(server, "SELECT 1", database="no`such'\\")
    assert (answer.status, answer.code) == (404, 81)


def test_settings_are_parameters_of_the_url(server: BrokerProcess) -> None:
    sql = "SELECT getSetting('max_block_size')"
    assert read(server, sql, max_block_size="77") == "77\n"
    assert read(server, sql) != "77\n"
    assert ask(server, sql, nosuch_setting="1").code == 115
    assert ask(server, sql, path="/?a%20b;+SET+readonly=0").code == 115
    assert ask(server, sql, max_block_size="x").status == 400


AWKWARD = [
    "it's",
    'say "x"',
    "back\\slash",
    "a\nb\tc\rd",
    "\\n is not a newline",
    "ünïcödé 💥",
    "nul\x00nul",
    "",
    "{x:String}",
    "'; DROP TABLE messages; --",
    "\b\f\x1b",
]


@pytest.mark.parametrize("value", AWKWARD)
def test_a_bound_parameter_is_the_value_that_was_sent(server: BrokerProcess, value: str) -> None:
    sql = "SELECT hex({x:String})"
    for answer in (
        ask(server, sql, param_x=escaped(value)),
        ask(server, method="GET", query=sql, param_x=escaped(value)),
    ):
        assert bytes.fromhex(answer.text) == value.encode()


def test_bound_parameters_may_be_arrays_nulls_times_and_identifiers(server: BrokerProcess) -> None:
    sql = (
        "SELECT {a:Array(String)}, {n:Nullable(Int8)}, {d:DateTime}, {t:Identifier}"
        " FROM (SELECT 7 AS q)"
    )
    values: dict[str, Any] = {
        "param_a": "['x\\'y','z']",
        "param_n": "\\N",
        "param_d": "2020-01-02 03:04:05",
        "param_t": "q",
    }
    assert read(server, sql, **values) == "['x\\'y','z']\t\\N\t2020-01-02 03:04:05\t7\n"


def test_a_missing_or_unreadable_parameter_is_an_error(server: BrokerProcess) -> None:
    assert ask(server, "SELECT {x:Int8}").code == 456
    assert ask(server, "SELECT {x:Int8}", param_x="y").code == 457
    assert ask(server, "SELECT {x:String}", param_x=b"\xff").code == 36


def test_bytes_that_are_not_utf8_pass_through_a_query(server: BrokerProcess) -> None:
    blob = bytes(range(256))
    assert ask(server, b"SELECT " + literal(blob) + b" FORMAT RawBLOB").body == blob
    url = "/?query=SELECT+hex('%FF%00%27%27')"
    assert ask(server, method="GET", path=url).body == b"FF0027\n"


def test_every_answer_has_the_query_id_the_time_zone_and_the_server(server: BrokerProcess) -> None:
    answer = ask(server, "SELECT 1", query_id="my id")
    assert answer.headers["x-clickhouse-query-id"] == "my id"
    assert answer.headers["x-clickhouse-timezone"] == read(server, "SELECT timezone()").strip()
    assert answer.headers["x-clickhouse-server-display-name"]
    ids = {ask(server, "SELECT 1").headers["x-clickhouse-query-id"] for _ in range(2)}
    assert len(ids) == 2
    assert ask(server, "SELECT 1", query_id="a\r\nX-Injected: 1").code == 36
    assert ask(server, "SELECT nosuch", query_id="q2").headers["x-clickhouse-query-id"] == "q2"


def test_the_summary_counts_rows_written_and_read(server: BrokerProcess, table: str) -> None:
    def summary(answer: Answer) -> dict[str, str]:
        found: dict[str, str] = json.loads(answer.headers["x-clickhouse-summary"])
        return found

    wrote = summary(ask(server, f"INSERT INTO {table} VALUES (1, 'x'), (2, 'y')", headers=WRITER))
    assert wrote["written_rows"] == "2"
    done = summary(ask(server, f"SELECT * FROM {table}"))
    assert done["read_rows"] == "2"
    assert int(done["elapsed_ns"]) > 0


COLUMNS = st.lists(
    st.one_of(
        st.binary(max_size=12).map(lambda value: (literal(value), value)),
        st.binary(max_size=12)
        .filter(lambda value: b"$" not in value)
        .map(lambda value: (b"$x$" + value + b"$x$", value)),
        st.integers(0, 10**9).map(lambda n: (b"toString(%d)" % n, str(n).encode())),
        st.just((b"/* ' */ concat('FORMAT', ' JSON') -- \"\n", b"FORMAT JSON")),
    ),
    min_size=1,
    max_size=4,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    COLUMNS,
    st.sampled_from(
        [
            b"",
            b" FORMAT RowBinary",
            b"\nformat/**/`RowBinary`\n",
            b" FORMAT RowBinary SETTINGS max_threads = 1",
        ]
    ),
    st.sampled_from([b"", b";", b" -- end", b" ; /* end */"]),
)
def test_any_spelling_of_a_query_gives_its_values(
    server: BrokerProcess, columns: list[tuple[bytes, bytes]], fmt: bytes, end: bytes
) -> None:
    """The lexer against the engine's own parser: a wrong place for the output would show here."""
    sql = b"SELECT " + b", ".join(text for text, _ in columns) + fmt + end
    answer = ask(server, sql, default_format="RowBinary")
    wanted = b"".join(bytes([len(value)]) + value for _, value in columns)
    assert (answer.status, answer.body) == (200, wanted)


@pytest.mark.parametrize(
    ("sql", "result"),
    [
        ("SELECT format b FROM (SELECT 5 AS format)", "5\n"),
        ("SELECT 1 AS format", "1\n"),
        ("(SELECT 1) FORMAT CSV", "1\n"),
        ("SELECT 1 UNION ALL SELECT 1 FORMAT CSV", "1\n1\n"),
        ("FROM numbers(2) SELECT number", "0\n1\n"),
        ("WITH 'FORMAT x' AS f SELECT f FORMAT TSV;;", "FORMAT x\n"),
        ("SELECT 1 SETTINGS max_threads = 1 FORMAT CSV SETTINGS max_block_size = 7", "1\n"),
        ("EXISTS TABLE messages", "1\n"),
        ("EXPLAIN AST USE x", "UseQuery x (children 1)\n Identifier x\n"),
        ("EXPLAIN SYNTAX SELECT 1 FORMAT TSVRaw", "SELECT 1\nFROM system.one\n"),
        ("SHOW TABLES LIKE 'messages'", "messages\n"),
        ("DESCRIBE (SELECT 1 AS a) FORMAT CSV", '"a","UInt8","","","","",""\n'),
        ("SELECT 1 FORMAT Null", ""),
        ("SELECT 1 WHERE 0", ""),
        ("-- nothing\n/* but /* nested */ */ SELECT 1", "1\n"),
    ],
)
def test_every_kind_of_statement_returns_its_result(
    server: BrokerProcess, sql: str, result: str
) -> None:
    assert read(server, sql) == result


def test_a_form_can_bring_the_query_its_parameters_and_tables(server: BrokerProcess) -> None:
    boundary = "xxx"
    parts = {
        'name="query"': "SELECT n, {p:String} FROM t ORDER BY n FORMAT CSV",
        'name="param_p"': "it's",
        'name="t_structure"': "n Int8",
        'name="t_format"': "CSV",
        'name="t"; filename="t"': "2\n1\n",
    }
    body = "".join(
        f"--{boundary}\r\nContent-Disposition: form-data; {name}\r\n\r\n{value}\r\n"
        for name, value in parts.items()
    )
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    answer = ask(server, f"{body}--{boundary}--\r\n", headers=headers)
    assert (answer.status, answer.text) == (200, '1,"it\'s"\n2,"it\'s"\n')
    assert ask(server, "no form", headers=headers).status == 400
    assert ask(server, body, headers=headers).status in (200, 400), "cut off"


def curl(*arguments: str, stdin: bytes = b"") -> bytes:
    command = ["curl", "--silent", "--show-error", "--fail-with-body", "--globoff", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=True).stdout


def test_curl_queries_by_get_post_and_form(server: BrokerProcess) -> None:
    url = server.http_url
    assert curl(f"{url}/ping") == b"Ok.\n"
    assert curl(f"{url}/?query=SELECT+1") == b"1\n"
    assert curl(url, "--data-binary", "SELECT 'a b'") == b"a b\n"
    assert curl(url, "--get", "--data-urlencode", "query=SELECT 1 + 1 FORMAT CSV") == b"2\n"
    assert curl(url, "--data-binary", "@-", stdin=b"SELECT 2") == b"2\n"
    bound = curl(
        f"{url}/?param_x=7", "--form", "query=SELECT {x:Int8} + {y:Int8}", "--form", "param_y=1"
    )
    assert bound == b"8\n"
    numbers = curl(url, "--compressed", "--data-binary", "SELECT number FROM numbers(1000000)")
    assert numbers.count(b"\n") == 1_000_000


def test_curl_inserts_compressed_and_chunked_bodies(server: BrokerProcess, table: str) -> None:
    url = f"{server.http_url}/?query=INSERT+INTO+{table}+FORMAT+CSV"
    rows = b"".join(b"%d,x\n" % n for n in range(300_000))
    who = ("--user", f"{USER}:{PASSWORD}")
    gzipped = ("--header", "Content-Encoding: gzip", "--data-binary", "@-")
    curl(url, *who, *gzipped, stdin=gzip.compress(rows))
    curl(url, *who, "--header", "Transfer-Encoding: chunked", "--data-binary", "@-", stdin=rows)
    assert read(server, f"SELECT count(), uniqExact(a) FROM {table}") == "600000\t300000\n"


def test_the_query_may_be_as_long_as_max_query_size_says(server: BrokerProcess) -> None:
    numbers = ",".join(str(n) for n in range(50_000))  # more than 256 KiB
    sql = f"SELECT count() FROM numbers(10) WHERE number IN ({numbers})"
    answer = ask(server, sql)
    assert (answer.status, answer.code) == (400, 62)
    assert "Max query size exceeded" in answer.text
    assert read(server, sql, max_query_size="10000000") == "10\n"


def test_a_long_url_is_taken_up_to_a_megabyte(server: BrokerProcess) -> None:
    sql = f"SELECT length('{'x' * 200_000}')"
    assert ask(server, method="GET", query=sql).body == b"200000\n"
    assert ask(server, method="GET", query="x" * (2 * MIB)).status in (400, 414)
    assert ask(server, "SELECT 1").body == b"1\n"


@pytest.mark.parametrize(
    "url",
    [
        "/?query",
        "/?query=%ZZ%",
        "/?%00=%00",
        "/?=&&==&",
        "/?query=%F0%28",
        "/?a=b?c=d#e",
        "//",
        "/%2e%2e/etc",
    ],
)
def test_a_bad_url_is_answered_and_the_server_goes_on(server: BrokerProcess, url: str) -> None:
    assert ask(server, method="GET", path=url).status in (200, 400, 404)
    assert ask(server, "SELECT 1").body == b"1\n"


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00" * 100,
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"GET /\r\n" * 1000,
    ],
)
def test_bytes_that_are_not_http_are_refused(server: BrokerProcess, garbage: bytes) -> None:
    with raw_connection(server) as raw:
        raw.sendall(garbage)
        raw.shutdown(socket.SHUT_WR)
        while raw.recv(65536):
            pass
    assert ask(server, "SELECT 1").body == b"1\n"


def test_a_connection_serves_one_request_after_another(server: BrokerProcess) -> None:
    connection = connect(server)
    send(connection, "SELECT 1").read()
    local = connection.sock.getsockname()
    for sql, body in (("SELECT 2", b"2\n"), ("SELECT nosuch", None), ("SELECT 3", b"3\n")):
        answer = send(connection, sql).read()
        assert body in (None, answer)
        send(connection, method="GET", path="/ping").read()
        send(connection, "SELECT number FROM numbers(1000000)").read()
    assert connection.sock.getsockname() == local
    connection.close()
