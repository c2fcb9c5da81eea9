"""ClickHouse's HTTP interface, spoken by hand."""

import concurrent.futures
import gzip
import http.client
import json
import random
import re
import socket
import subprocess
import sys
import time
import urllib.parse
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lz4.frame
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sql.http.text import literal
from tests.support.adapters import KafkaPython
from tests.support.broker_process import BrokerProcess
from tests.support.records import Record
from tests.support.sql_client import (
    ANSWER_LIMIT_S,
    PASSWORD,
    USER,
    WRITER,
    Answer,
    ask,
    basic,
    broker_with_writer,
    connect,
    read,
    send,
    write,
)
from tests.support.waiting import until

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = broker_with_writer(
        tmp_path_factory.mktemp("sql") / "data", sql_max_memory_bytes="1073741824"
    )
    yield process
    process.stop()


@pytest.fixture
def own_server(own_broker: Callable[..., BrokerProcess]) -> Callable[..., BrokerProcess]:
    """A broker for one test alone, with these settings."""
    return partial(own_broker, sql_user=USER, sql_password=PASSWORD)


@pytest.fixture
def table(server: BrokerProcess, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"\W", "_", request.node.name)[:100]
    write(server, f"CREATE TABLE default.{name} (a Int64, b String) ENGINE = MergeTree ORDER BY a")
    return f"default.{name}"


def raw_connection(server: BrokerProcess) -> socket.socket:
    host, port = server.http.split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def running(server: BrokerProcess) -> list[str]:
    """The queries that run now, without the one that asks."""
    text = write(
        server,
        "SELECT query FROM system.processes WHERE query NOT LIKE '%system.processes%' FORMAT TSV",
    )
    return text.splitlines()


# --- being there


@pytest.mark.parametrize("path", ["/ping", "/replicas_status", "/"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_it_says_that_it_is_alive(server: BrokerProcess, path: str, method: str) -> None:
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


def test_options_tells_the_methods(server: BrokerProcess) -> None:
    answer = ask(server, method="OPTIONS")
    assert answer.status == 204
    assert answer.headers["allow"] == "GET, HEAD, POST, OPTIONS"


# --- asking


def test_a_query_in_the_url_in_the_body_or_in_both(server: BrokerProcess) -> None:
    assert ask(server, method="GET", query="SELECT 1").body == b"1\n"
    assert ask(server, "SELECT 1").body == b"1\n"
    assert ask(server, query="SELECT 1").body == b"1\n"
    assert ask(server, " + 1", query="SELECT 1").body == b"2\n"


def test_head_gives_the_headers_of_a_query(server: BrokerProcess) -> None:
    answer = ask(server, method="HEAD", query="SELECT 1 FORMAT CSV")
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["x-clickhouse-format"] == "CSV"
    assert ask(server, method="HEAD", query="SELECT nosuch").code == 47


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


def test_an_unknown_format_is_clickhouses_error(server: BrokerProcess) -> None:
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


def test_the_database_is_the_brokers_unless_told_otherwise(server: BrokerProcess) -> None:
    sql = "SELECT currentDatabase()"
    assert read(server, sql) == "brokerhouse\n"
    assert read(server, sql, database="system") == "system\n"
    assert ask(server, sql, headers={"X-ClickHouse-Database": "default"}).body == b"default\n"
    assert read(server, "SELECT count() FROM messages") == "10\n"


def test_an_unknown_database_is_clickhouses_error(server: BrokerProcess) -> None:
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


def escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")


@pytest.mark.parametrize("value", AWKWARD)
def test_a_bound_parameter_is_the_value_that_was_sent(server: BrokerProcess, value: str) -> None:
    sql = "SELECT hex({x:String})"
    for answer in (
        ask(server, sql, param_x=escaped(value)),
        ask(server, method="GET", query=sql, param_x=escaped(value)),
    ):
        assert bytes.fromhex(answer.text) == value.encode()


def test_parameters_of_other_types(server: BrokerProcess) -> None:
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


def test_bytes_that_are_no_text_pass_through_a_query(server: BrokerProcess) -> None:
    blob = bytes(range(256))
    assert ask(server, b"SELECT " + literal(blob) + b" FORMAT RawBLOB").body == blob
    url = "/?query=SELECT+hex('%FF%00%27%27')"
    assert ask(server, method="GET", path=url).body == b"FF0027\n"


def test_every_answer_tells_the_query_id_and_the_server(server: BrokerProcess) -> None:
    answer = ask(server, "SELECT 1", query_id="my id")
    assert answer.headers["x-clickhouse-query-id"] == "my id"
    assert answer.headers["x-clickhouse-timezone"] == read(server, "SELECT timezone()").strip()
    assert answer.headers["x-clickhouse-server-display-name"]
    ids = {ask(server, "SELECT 1").headers["x-clickhouse-query-id"] for _ in range(2)}
    assert len(ids) == 2
    assert ask(server, "SELECT 1", query_id="a\r\nX-Injected: 1").code == 36
    assert ask(server, "SELECT nosuch", query_id="q2").headers["x-clickhouse-query-id"] == "q2"


def test_the_summary_holds_what_the_engine_counted(server: BrokerProcess, table: str) -> None:
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
)  # fmt: skip
def test_statements_with_a_result(server: BrokerProcess, sql: str, result: str) -> None:
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


# --- curl


def curl(*arguments: str, stdin: bytes = b"") -> bytes:
    command = ["curl", "--silent", "--show-error", "--fail-with-body", "--globoff", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=True).stdout


def test_curl_asks(server: BrokerProcess) -> None:
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


def test_curl_writes_compressed_and_chunked(server: BrokerProcess, table: str) -> None:
    url = f"{server.http_url}/?query=INSERT+INTO+{table}+FORMAT+CSV"
    rows = b"".join(b"%d,x\n" % n for n in range(300_000))
    who = ("--user", f"{USER}:{PASSWORD}")
    gzipped = ("--header", "Content-Encoding: gzip", "--data-binary", "@-")
    curl(url, *who, *gzipped, stdin=gzip.compress(rows))
    curl(url, *who, "--header", "Transfer-Encoding: chunked", "--data-binary", "@-", stdin=rows)
    assert read(server, f"SELECT count(), uniqExact(a) FROM {table}") == "600000\t300000\n"


# --- writing


def test_an_insert_with_its_data_in_any_place(server: BrokerProcess, table: str) -> None:
    write(server, f"INSERT INTO {table} VALUES (1, 'it''s'), (1 + 1, concat('a', 'b'))")
    write(server, f"INSERT INTO {table} FORMAT CSV\n3,c\n")
    write(server, "4,d\n", query=f"INSERT INTO {table} FORMAT CSV")
    write(server, "(5, 'e')", query=f"INSERT INTO {table} VALUES")
    write(server, f"INSERT INTO {table} SELECT 6, 'f'")
    write(
        server,
        f'INSERT INTO {table} (b, a) SETTINGS max_threads = 1 FORMAT JSONEachRow {{"a": 7,'
        f' "b": "g"}}',
    )
    assert read(server, f"SELECT * FROM {table} ORDER BY a FORMAT CSV").split() == [
        '1,"it\'s"', '2,"ab"', '3,"c"', '4,"d"', '5,"e"', '6,"f"', '7,"g"'
    ]  # fmt: skip


def test_binary_data_follows_its_statement_in_one_body(server: BrokerProcess, table: str) -> None:
    block = ask(server, "SELECT number AS a, '\\n' AS b FROM numbers(1000) FORMAT Native").body
    write(server, f"INSERT INTO {table} FORMAT Native\n".encode() + block)
    rows = bytes([7, 0, 0, 0, 0, 0, 0, 0, 2, 10, 39])
    write(server, f"INSERT INTO {table} FORMAT RowBinary\n".encode() + rows)
    assert (
        read(server, f"SELECT count(), sum(a), any(hex(b)) FROM {table} WHERE length(b) = 2")
        == "1\t7\t0A27\n"
    )
    assert read(server, f"SELECT count() FROM {table}") == "1001\n"


def test_a_chunked_body_of_any_length_is_streamed_in(server: BrokerProcess, table: str) -> None:
    def body() -> Iterator[bytes]:
        yield f"INSERT INTO {table} FOR".encode()
        yield b"MAT CSV\n"
        for start in range(0, 1_000_000, 10_000):
            yield b"".join(b"%d,%s\n" % (n, b"x" * 50) for n in range(start, start + 10_000))

    before = peak_bytes(server)
    write(server, body())  # type: ignore[arg-type]
    assert read(server, f"SELECT count(), sum(a) FROM {table}") == "1000000\t499999500000\n"
    assert peak_bytes(server) - before < 300 * MIB


def test_parameters_are_bound_in_an_insert(server: BrokerProcess, table: str) -> None:
    database, name = table.split(".")
    write(
        server,
        "INSERT INTO {d:Identifier}.{t:Identifier} FORMAT CSV\n1,x",
        param_d=database,
        param_t=name,
    )
    write(server, f"INSERT INTO {table} SELECT 2, {{v:String}}", param_v=escaped("it's\\"))
    assert read(server, f"SELECT b FROM {table} ORDER BY a FORMAT TSVRaw") == "x\nit's\\\n"


def test_bad_data_is_refused_and_nothing_of_it_is_kept(server: BrokerProcess, table: str) -> None:
    answer = ask(server, f"INSERT INTO {table} FORMAT CSV\n1,a\nx,b\n", headers=WRITER)
    assert (answer.status, answer.code) == (400, 27)
    answer = ask(server, f"INSERT INTO {table} FORMAT Nosuch\n1,a\n", headers=WRITER)
    assert answer.code == 73
    answer = ask(server, "INSERT INTO default.nosuch FORMAT CSV\n1,a\n", headers=WRITER)
    assert answer.code == 60
    assert ask(server, f"INSERT INTO {table}", headers=WRITER).code == 62
    assert read(server, f"SELECT count() FROM {table}") == "0\n"


def test_what_the_table_refuses_is_an_error(server: BrokerProcess) -> None:
    write(
        server,
        "CREATE OR REPLACE TABLE default.bounded (a Int64, CONSTRAINT small CHECK a < 10)"
        " ENGINE = MergeTree ORDER BY a",
    )
    answer = ask(server, "INSERT INTO default.bounded VALUES (1), (11)", headers=WRITER)
    assert (answer.status, answer.code) == (500, 469)
    assert read(server, "SELECT count() FROM default.bounded") == "0\n"


def test_a_client_that_leaves_in_the_middle_of_its_data_inserts_nothing(
    server: BrokerProcess, table: str
) -> None:
    who = WRITER["Authorization"]
    head = f"POST / HTTP/1.1\r\nHost: x\r\nAuthorization: {who}\r\nContent-Length: 99999\r\n\r\n"
    with raw_connection(server) as raw:
        raw.sendall(head.encode() + f"INSERT INTO {table} FORMAT CSV\n1,a\n2,b\n".encode())
        until(lambda: any(table in query for query in running(server)))
    until(lambda: not any(table in query for query in running(server)))
    assert read(server, f"SELECT count() FROM {table}") == "0\n"


# --- encodings

ENCODE: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstd.compress,
    "lz4": lz4.frame.compress,
}
DECODE: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.decompress,
    "deflate": zlib.decompress,
    "zstd": zstd.decompress,
    "lz4": lz4.frame.decompress,
}


@pytest.mark.parametrize("coding", ENCODE)
def test_a_request_may_be_encoded(server: BrokerProcess, table: str, coding: str) -> None:
    rows = b"".join(b"%d,%d\n" % (n, random.getrandbits(64)) for n in range(50_000))
    body = ENCODE[coding](f"INSERT INTO {table} FORMAT CSV\n".encode() + rows)
    headers = {**WRITER, "Content-Encoding": coding}
    answer = ask(server, body, headers=headers)
    assert answer.status == 200, answer.text
    body = ENCODE[coding](rows[: len(rows) // 2]) + ENCODE[coding](rows[len(rows) // 2 :])
    query = f"INSERT INTO {table} FORMAT CSV"
    assert ask(server, [body[:1000], body[1000:]], headers=headers, query=query).status == 200
    assert read(server, f"SELECT count(), uniqExact(a) FROM {table}") == "100000\t50000\n"


@pytest.mark.parametrize("coding", ENCODE)
@pytest.mark.parametrize("damage", ["garbage", "cut", "trailing"])
def test_a_body_that_is_not_what_it_says_is_refused(
    server: BrokerProcess, table: str, coding: str, damage: str
) -> None:
    rows = b"".join(b"%d,%d\n" % (n, random.getrandbits(64)) for n in range(50_000))
    whole = ENCODE[coding](rows)
    body = {"garbage": b"SELECT 1" * 100, "cut": whole[:-30], "trailing": whole + b"rubbish"}[
        damage
    ]
    query = f"INSERT INTO {table} FORMAT CSV"
    answer = ask(server, body, headers={**WRITER, "Content-Encoding": coding}, query=query)
    assert answer.status == 400
    assert answer.code == 354
    assert ask(server, "SELECT 1").body == b"1\n"


@pytest.mark.parametrize("coding", ENCODE)
def test_a_bomb_costs_no_memory(server: BrokerProcess, coding: str) -> None:
    bomb = ENCODE[coding](b"SELECT " + b" " * (400 * MIB) + b"1")
    before = peak_bytes(server)
    answer = ask(server, bomb, headers={"Content-Encoding": coding})
    assert (answer.status, answer.code) == (400, 62)
    assert "Max query size" in answer.text
    assert peak_bytes(server) - before < 150 * MIB


@pytest.mark.parametrize("coding", ["br", "xz", "bz2", "snappy", "nosuch", "gzip, gzip"])
def test_an_unknown_encoding_is_refused(server: BrokerProcess, coding: str) -> None:
    answer = ask(server, "SELECT 1", headers={"Content-Encoding": coding})
    assert (answer.status, answer.code) == (501, 48)


@pytest.mark.parametrize("coding", DECODE)
@pytest.mark.parametrize("rows", [1, 2_000_000])
def test_an_answer_is_encoded_when_both_sides_want_it(
    server: BrokerProcess, coding: str, rows: int
) -> None:
    sql = f"SELECT number FROM numbers({rows}) FORMAT RowBinary"
    headers = {"Accept-Encoding": f"nosuch, {coding};q=0.5"}
    plain = ask(server, sql, headers=headers, enable_http_compression="0")
    assert "content-encoding" not in plain.headers
    for waits in ("0", "1"):
        answer = ask(
            server, sql, headers=headers, enable_http_compression="1", wait_end_of_query=waits
        )
        assert answer.headers["content-encoding"] == coding
        assert DECODE[coding](answer.body) == plain.body
    refused = {"Accept-Encoding": f"{coding};q=0"}
    assert (
        "content-encoding"
        not in ask(server, sql, headers=refused, enable_http_compression="1").headers
    )


@pytest.mark.parametrize("name", ["compress", "decompress"])
def test_clickhouses_own_block_compression_is_refused_clearly(
    server: BrokerProcess, name: str
) -> None:
    answer = ask(server, "SELECT 1", path=f"/?{name}=1")
    assert (answer.status, answer.code) == (501, 48)
    assert "Accept-Encoding" in answer.text


# --- failing


@pytest.mark.parametrize(
    ("sql", "status", "code", "words"),
    [
        ("SELEC 1", 400, 62, "failed at position 1 (SELEC)"),
        ("SELECT 1 +\n\n+ )", 400, 62, "failed at position 15 ()) (line 3, col 3)"),
        ("SELECT * FROM nosuch", 404, 60, "nosuch"),
        ("SELECT nosuch", 404, 47, "nosuch"),
        ("SELECT nosuch()", 404, 46, "nosuch"),
        ("SELECT CAST(1, 'Nosuch')", 404, 50, "Nosuch"),
        ("SELECT toInt8('x')", 400, 6, "Cannot parse"),
        ("SELECT throwIf(1, 'bang')", 500, 395, "bang"),
        ("SELECT 1 SETTINGS nosuch = 1", 404, 115, "nosuch"),
        ("SELECT groupArray(number) FROM numbers(1000000000)", 500, 241, "memory limit"),
        ("SELECT sum(cityHash64(number)) FROM system.numbers SETTINGS max_execution_time = 1",
         408, 159, "TIMEOUT_EXCEEDED"),
        ("SELECT 1; SELECT 2", 400, 62, "Multi-statements"),
        ("", 400, 62, "empty"),
        (";", 400, 62, "Empty query"),
        ("SELECT '", 400, 62, "Syntax error"),
    ],
)  # fmt: skip
def test_sql_that_fails_is_answered_as_clickhouse_answers(
    server: BrokerProcess, sql: str, status: int, code: int, words: str
) -> None:
    answer = ask(server, sql)
    assert (answer.status, answer.code) == (status, code), answer.text
    assert answer.text.startswith(f"Code: {code}. DB::Exception: ")
    assert words in answer.text
    assert re.search(r"\([A-Z_]+\) \(version [\d.]+\)\n$", answer.text)
    assert answer.text.count("DB::Exception") == 1


BREAKS = "SELECT throwIf(number = 3000000, 'bang') FROM numbers(100000000)"


def broken_off(server: BrokerProcess, **parameters: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = connect(server)
    response = send(connection, BREAKS, headers={"Accept-Encoding": "gzip"}, **parameters)
    with pytest.raises(http.client.IncompleteRead) as broken:
        response.read()
    connection.close()
    return response, broken.value.partial


def test_a_failure_in_the_middle_is_told_in_the_body_and_breaks_the_stream(
    server: BrokerProcess,
) -> None:
    response, body = broken_off(server, enable_http_compression="0")
    tag = response.headers["X-ClickHouse-Exception-Tag"]
    assert response.status == 200
    assert re.fullmatch(r"\w{16}", tag)
    rows, _, told = body.partition(b"\r\n__exception__\r\n")
    assert set(rows) == set(b"0\n")
    match = re.fullmatch(
        rb"(\w+)\r\n(Code: 395.*bang.*\n)(\d+) (\w+)\r\n__exception__\r\n", told, re.DOTALL
    )
    assert match is not None
    assert match[1] == match[4] == tag.encode()
    assert int(match[3]) == len(match[2])


def test_a_failure_in_the_middle_is_told_in_an_encoded_body_too(server: BrokerProcess) -> None:
    _, body = broken_off(server, enable_http_compression="1")
    assert b"__exception__" in gzip.decompress(body)


def test_who_waits_for_the_end_gets_the_status_of_a_late_failure(server: BrokerProcess) -> None:
    answer = ask(server, BREAKS, wait_end_of_query="1")
    assert (answer.status, answer.code) == (500, 395)
    assert answer.text.startswith("Code: 395")
    whole = ask(server, "SELECT number FROM numbers(3000000)", wait_end_of_query="1")
    assert whole.body.count(b"\n") == 3_000_000
    assert "x-clickhouse-summary" in whole.headers


def test_the_query_may_be_as_long_as_max_query_size_says(server: BrokerProcess) -> None:
    numbers = ",".join(str(n) for n in range(200_000))
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
def test_a_bad_url_is_answered(server: BrokerProcess, url: str) -> None:
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
)  # fmt: skip
def test_what_is_no_http_is_refused(server: BrokerProcess, garbage: bytes) -> None:
    with raw_connection(server) as raw:
        raw.sendall(garbage)
        raw.shutdown(socket.SHUT_WR)
        while raw.recv(65536):
            pass
    assert ask(server, "SELECT 1").body == b"1\n"


# --- long answers, many clients


def peak_bytes(server: BrokerProcess) -> int:
    """The most memory that the process ever held."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert match is not None
    return int(match[1]) * 1024


def test_a_gigabyte_goes_through_in_constant_memory(server: BrokerProcess) -> None:
    read(server, "SELECT number FROM numbers(1000000) FORMAT Null")
    before = peak_bytes(server)
    connection = connect(server)
    response = send(connection, "SELECT number FROM numbers(134217728) FORMAT RowBinary")
    length = last = 0
    while chunk := response.read(4 * MIB):
        length += len(chunk)
        last = int.from_bytes(chunk[-8:], "little")
    connection.close()
    assert length == 1024 * MIB
    assert last == 134217727
    assert peak_bytes(server) - before < 100 * MIB


def test_a_slow_reader_holds_the_query_back(server: BrokerProcess) -> None:
    connection = connect(server)
    response = send(
        connection, "SELECT number AS slow_reader, repeat('x', 1000) FROM system.numbers"
    )
    response.read(1000)
    before = peak_bytes(server)
    for _ in range(50):  # each asks the server, so time passes
        assert any("slow_reader" in query for query in running(server))
    assert peak_bytes(server) - before < 50 * MIB
    connection.close()
    until(lambda: not any("slow_reader" in query for query in running(server)))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT sum(cityHash64(number)) AS left_alone FROM system.numbers",
        "SELECT number AS left_alone FROM system.numbers",
        "SELECT count() AS left_alone FROM numbers(100000000000) GROUP BY number % 10",
    ],
)
@pytest.mark.parametrize("waits", ["0", "1"])
def test_a_client_that_leaves_ends_its_query(server: BrokerProcess, sql: str, waits: str) -> None:
    connection = connect(server)
    url = "/?" + urllib.parse.urlencode({"wait_end_of_query": waits})
    connection.request("POST", url, sql)
    until(lambda: any("left_alone" in query for query in running(server)))
    connection.close()
    until(lambda: not any("left_alone" in query for query in running(server)))


def test_places_are_given_back_however_a_query_ends(
    own_server: Callable[..., BrokerProcess],
) -> None:
    server = own_server(sql_max_queries="2")
    for _ in range(6):
        assert ask(server, "SELECT nosuch").status == 404
        assert ask(server, "SELECT throwIf(1)").status == 500
        assert ask(server, "x", headers={"Content-Encoding": "gzip"}).status == 400
        assert ask(server, "INSERT INTO default.nosuch VALUES (1)", headers=WRITER).status == 404
        assert ask(server, "SELECT 1", database="nosuch").status == 404
        connection = connect(server)
        send(connection, "SELECT number FROM system.numbers").read(10)
        connection.close()
        connection = connect(server)
        connection.request("POST", "/", "SELECT sum(number) FROM system.numbers")
        connection.close()
    assert read(server, "SELECT 1") == "1\n"


def test_more_queries_than_places_wait_for_their_turn(
    own_server: Callable[..., BrokerProcess],
) -> None:
    server = own_server(sql_max_queries="2")
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda n: ask(server, f"SELECT {n} + sleep(0.2)"), range(12)))
    assert [answer.text for answer in answers] == [f"{n}\n" for n in range(12)]


def test_too_many_queries_are_refused_and_pings_still_answered(
    own_server: Callable[..., BrokerProcess],
) -> None:
    server = own_server(sql_max_queries="1")
    with concurrent.futures.ThreadPoolExecutor(40) as pool:
        asked = [
            pool.submit(
                ask, server, "SELECT sleepEachRow(1) FROM numbers(3) SETTINGS max_block_size = 1"
            )
            for _ in range(40)
        ]
        refused = next(
            f for f in concurrent.futures.as_completed(asked) if f.result().status != 200
        )
        assert (refused.result().status, refused.result().code) == (500, 202)
        assert ask(server, method="GET", path="/ping").status == 200
        for future in asked:
            assert future.result().code in (0, 202)
    assert read(server, "SELECT 1") == "1\n"


def test_producers_and_consumers_go_on_while_heavy_queries_run(
    own_server: Callable[..., BrokerProcess], topic: str
) -> None:
    server = own_server()
    connections = [connect(server) for _ in range(3)]
    heavy = [
        "SELECT number FROM system.numbers FORMAT RowBinary",
        "SELECT sum(sipHash64(number)) FROM system.numbers",
        "SELECT number, toString(number) FROM system.numbers FORMAT JSONEachRow",
    ]
    records = [Record(b"key", b"%d" % n, timestamp_ms=n) for n in range(1000)]
    client = KafkaPython()
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for connection, sql in zip(connections, heavy, strict=True):
            connection.request(
                "POST", "/?enable_http_compression=1", sql, {"Accept-Encoding": "zstd"}
            )
        readers = [pool.submit(_read_much, connections[n]) for n in (0, 2)]
        client.produce(server.kafka, topic, records)
        read_back = client.read_from_offset(server.kafka, topic, 0, len(records))
        assert [record.value for record in read_back] == [record.value for record in records]
        for reader in readers:
            reader.result(ANSWER_LIMIT_S)
        assert len(running(server)) == len(heavy), "they have run all the time"
        for connection in connections:
            connection.close()
    until(lambda: not running(server))


def _read_much(connection: http.client.HTTPConnection) -> None:
    response = connection.getresponse()
    for _ in range(20):
        assert response.read(MIB)


def test_many_clients_at_once_get_their_own_answers(server: BrokerProcess) -> None:
    def client(n: int) -> bool:
        connection = connect(server)
        good = True
        for k in range(10):
            response = send(connection, f"SELECT {n}, {k}, number FROM numbers(1000) FORMAT CSV")
            lines = response.read().decode().splitlines()
            good &= lines == [f"{n},{k},{i}" for i in range(1000)]
        connection.close()
        return good

    with concurrent.futures.ThreadPoolExecutor(30) as pool:
        assert all(pool.map(client, range(30)))


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


def test_an_old_client_gets_its_answer_and_the_end_of_the_connection(server: BrokerProcess) -> None:
    with raw_connection(server) as raw:
        raw.sendall(b"GET /?query=SELECT+number+FROM+numbers(1000000) HTTP/1.0\r\n\r\n")
        answer = b""
        while piece := raw.recv(MIB):
            answer += piece
    assert answer.count(b"\n") > 1_000_000
    assert b"chunked" not in answer[:1000]


def test_a_stop_ends_queries_that_run_and_readers_that_are_slow(
    own_server: Callable[..., BrokerProcess],
) -> None:
    server = own_server()
    write(server, "CREATE TABLE default.hole (n UInt64) ENGINE = Null")
    connections = [connect(server) for _ in range(5)]
    for connection, sql in zip(
        connections,
        (
            "SELECT sum(cityHash64(number)) FROM system.numbers",
            "SELECT number FROM system.numbers",
            "SELECT number FROM system.numbers",
            "SELECT 1",
            "INSERT INTO default.hole SELECT number FROM system.numbers",
        ),
        strict=True,
    ):
        session = connections.index(connection)
        connection.request("POST", f"/?session_id={session}", sql, headers=WRITER)
    connections[1].getresponse().read(100)
    assert connections[3].getresponse().read() == b"1\n"
    insert = connect(server)
    insert.putrequest("POST", "/?query=INSERT+INTO+default.nosuch+FORMAT+CSV")
    insert.putheader("Content-Length", "1000")
    insert.endheaders(b"1,2\n")
    until(lambda: len(running(server)) >= 3)
    start = time.monotonic()
    server.stop()
    assert time.monotonic() - start < 15
    for connection in connections:
        connection.close()


# --- sessions


def test_a_session_keeps_settings_database_and_temporary_tables(server: BrokerProcess) -> None:
    def say(sql: str, **parameters: str) -> str:
        return write(server, sql, session_id="keeps", **parameters)

    say("SET max_block_size = 77")
    say("USE system")
    say("CREATE TEMPORARY TABLE t (a Int8)")
    say("INSERT INTO t VALUES (1), (2)")
    assert (
        say("SELECT sum(a), getSetting('max_block_size'), currentDatabase() FROM t")
        == "3\t77\tsystem\n"
    )
    assert read(server, "SELECT getSetting('max_block_size') != 77") == "1\n"
    assert ask(server, "SELECT * FROM t", session_id="other", headers=WRITER).code == 60
    assert ask(server, "SELECT * FROM t", session_id="keeps").code == 60, "another user's session"


def test_settings_of_one_request_are_not_the_sessions(server: BrokerProcess) -> None:
    sql = "SELECT getSetting('max_block_size'), currentDatabase()"
    for headers in ({}, WRITER):
        session = f"one-request-{len(headers)}"
        ask(server, "SET max_block_size = 77", session_id=session, headers=headers)
        told = ask(
            server, sql, session_id=session, headers=headers, max_block_size="5", database="system"
        )
        assert told.text == "5\tsystem\n"
        assert ask(server, sql, session_id=session, headers=headers).text == "77\tbrokerhouse\n"


def test_a_query_that_fails_leaves_its_session_clean(server: BrokerProcess) -> None:
    ask(server, "SET max_block_size = 100", session_id="clean")
    answer = ask(server, "SELECT throwIf(number = 5000) FROM numbers(10000)", session_id="clean")
    assert answer.code == 395
    assert ask(server, "SELECT 1", session_id="clean").text == "1\n"
    assert ask(server, "EXPLAIN AST SELECT nosuch(", session_id="clean").code == 62
    assert ask(server, "SELECT 1", session_id="clean").text == "1\n"


def test_a_session_takes_one_query_at_a_time(server: BrokerProcess) -> None:
    connection = connect(server)
    url = "/?" + urllib.parse.urlencode({"session_id": "busy"})
    connection.request("POST", url, "SELECT sum(number) AS in_busy FROM system.numbers")
    until(lambda: any("in_busy" in query for query in running(server)))
    answer = ask(server, "SELECT 1", session_id="busy")
    assert (answer.status, answer.code) == (500, 373)
    connection.close()
    until(lambda: ask(server, "SELECT 1", session_id="busy").text == "1\n")


def test_a_session_has_to_be_there_when_the_client_says_so(server: BrokerProcess) -> None:
    assert ask(server, "SELECT 1", session_id="absent", session_check="1").code == 372
    ask(server, "SELECT 1", session_id="present")
    assert ask(server, "SELECT 1", session_id="present", session_check="1").status == 200
    ask(server, "SELECT 1", session_id="present", close_session="1")
    assert ask(server, "SELECT 1", session_id="present", session_check="1").code == 372
    ask(server, "SELECT 1", session_id="short", session_timeout="0")
    until(
        lambda: (
            ask(server, "SELECT 1", session_id="short", session_check="1", session_timeout="0").code
            == 372
        )
    )


@pytest.mark.parametrize("timeout", ["x", "-1", "3601", "", "9" * 30])
def test_a_wrong_session_timeout_is_refused(server: BrokerProcess, timeout: str) -> None:
    assert ask(server, "SELECT 1", session_id="t", session_timeout=timeout).code == 374


def test_sessions_are_bounded(own_server: Callable[..., BrokerProcess]) -> None:
    server = own_server()
    for n in range(210):
        assert ask(server, "SELECT 1", session_id=f"empty{n}").status == 200
    codes = [ask(server, "SET max_threads = 1", session_id=f"full{n}").code for n in range(201)]
    assert codes == [0] * 200 + [202]


# --- who may do what


def test_credentials_are_taken_from_everywhere(server: BrokerProcess) -> None:
    sql = "SELECT currentRoles()"
    ways: list[Answer] = [
        ask(server, sql, headers=WRITER),
        ask(server, sql, headers={"X-ClickHouse-User": USER, "X-ClickHouse-Key": PASSWORD}),
        ask(server, sql, user=USER, password=PASSWORD),
    ]
    assert [answer.text for answer in ways] == ["['writer']\n"] * 3
    for headers in ({}, basic("default", ""), {"X-ClickHouse-User": "default"}):
        assert ask(server, sql, headers=headers).text == "['reader']\n"


@pytest.mark.parametrize(
    "headers",
    [
        basic(USER, "wrong"),
        basic(USER, ""),
        basic("nobody", ""),
        basic("default", PASSWORD),
        basic("ädmin", "pässword"),
        {"X-ClickHouse-User": USER},
        {"X-ClickHouse-Key": PASSWORD},
        {"Authorization": "Bearer abc"},
        {"Authorization": "Basic !!!"},
        {"Authorization": "Basic /////w=="},
        {"Authorization": ""},
        {**WRITER, "X-ClickHouse-User": USER},
    ],
)
def test_wrong_credentials_are_refused_whatever_is_asked(
    server: BrokerProcess, headers: dict[str, str]
) -> None:
    answer = ask(server, "SELECT 1", headers=headers)
    assert (answer.status, answer.code) == (403, 516)
    assert "AUTHENTICATION_FAILED" in answer.text
    assert PASSWORD not in answer.text


def test_without_anonymous_access_credentials_are_needed(
    own_server: Callable[..., BrokerProcess],
) -> None:
    server = own_server(sql_anonymous="never")
    answer = ask(server, "SELECT 1")
    assert (answer.status, answer.code) == (401, 516)
    assert answer.headers["www-authenticate"].startswith("Basic ")
    assert ask(server, "SELECT 1", headers=WRITER).text == "1\n"
    assert ask(server, method="GET", path="/ping").status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:8123"},
        {"X-Forwarded-For": "203.0.113.7"},
        {"Forwarded": "for=203.0.113.7"},
        {"Via": "1.1 proxy"},
    ],
)
def test_what_comes_through_a_browser_or_a_proxy_is_not_of_this_machine(
    server: BrokerProcess, headers: dict[str, str]
) -> None:
    answer = ask(server, "SELECT 1", headers=headers)
    assert (answer.status, answer.code) == (401, 516)
    assert ask(server, "SELECT 1", headers={**headers, **WRITER}).text == "1\n"


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:1", "app.localhost", "127.0.0.1", "[::1]"]
)
def test_names_of_this_machine_are_of_this_machine(server: BrokerProcess, host: str) -> None:
    assert ask(server, "SELECT 1", headers={"Host": host}).text == "1\n"


def test_a_name_is_no_way_into_the_statement(server: BrokerProcess) -> None:
    for name in ("param_x = 1, readonly", "param_", "param_a'b", "max_threads = 1, readonly", "é"):
        answer = ask(server, "SELECT 1", path="/?" + urllib.parse.urlencode({name: "0"}))
        assert answer.code == 115 or answer.text == "1\n"
        sql = "INSERT INTO default.nosuch VALUES (1)"
        answer = ask(server, sql, headers=WRITER, path="/?" + urllib.parse.urlencode({name: "0"}))
        assert answer.code in (115, 60, 36)


def test_a_get_changes_nothing(server: BrokerProcess, table: str) -> None:
    for sql in (
        f"INSERT INTO {table} VALUES (1, 'x')",
        f"INSERT INTO {table} SELECT 1, 'x'",
        f"DROP TABLE {table}",
    ):
        answer = ask(server, method="GET", headers=WRITER, query=sql)
        assert (answer.status, answer.code) == (500, 164), sql
    assert read(server, f"SELECT count() FROM {table}") == "0\n"


def test_a_line_break_in_a_name_does_not_hide_what_follows(server: BrokerProcess) -> None:
    sql = (
        "CREATE TABLE default.x (`a\nSelectQuery\n Fake` String)"
        " AS url('http://127.0.0.1:1/', CSV, 'a String')"
    )
    assert ask(server, sql, headers=WRITER).code == 497
    assert read(server, "SELECT 'a\nSelectQuery\n Fake'") == "a\\nSelectQuery\\n Fake\n"


FILE = "/etc/passwd"
READS_OUTSIDE = [
    f"SELECT file('{FILE}')",
    f"SELECT/**/`file`/**/('{FILE}')",
    f"SELECT \"f\\x69le\"('{FILE}')",
    f"SELECT * APPLY(file) FROM (SELECT '{FILE}')",
    f"SELECT COLUMNS('x') APPLY file FROM (SELECT '{FILE}' AS x)",
    f"SELECT arrayMap(file, ['{FILE}'])",
    f"WITH file AS f SELECT arrayMap(f, ['{FILE}'])",
    f"WITH x -> file(x) AS f SELECT f('{FILE}')",
    f"SELECT arrayMap({{f:Identifier}}, ['{FILE}'])",
    f"SELECT arrayMap({{g:Identifier}}, ['{FILE}'])",
    f"SELECT arrayMap({{h:Identifier}}, ['{FILE}'])",
    f"SELECT * FROM view(SELECT file('{FILE}'))",
    f"SELECT * FROM viewExplain('EXPLAIN', '', (SELECT file('{FILE}')))",
    f"EXPLAIN SELECT file('{FILE}')",
    f"DESCRIBE (SELECT file('{FILE}'))",
    f"SELECT (SELECT * FROM file('{FILE}', LineAsString))",
    f"SELECT * FROM `{FILE}`",
    f"SELECT * FROM default.`{FILE}`",
    f"DESCRIBE TABLE default.`{FILE}`",
    f"SELECT 1 SETTINGS additional_result_filter = 'throwIf(1, file(\\'{FILE}\\'))'",
    f"SELECT * FROM messages SETTINGS additional_table_filters = {{'messages': 'throwIf(1,"
    f" file(\\'{FILE}\\'))'}}",
    f"SELECT 1 FORMAT Template SETTINGS format_template_row = '{FILE}'",
    f"SELECT 1 FORMAT Template SETTINGS format_template_resultset = '{FILE}'",
    f"SELECT 1 AS a FORMAT Protobuf SETTINGS format_schema = '{FILE}:x'",
    "SELECT 1 AS a FORMAT Protobuf SETTINGS output_format_schema = '/tmp/written_by_sql'",
    f"SELECT 1 SETTINGS profile = 'default', format_template_row = '{FILE}'",
    f"SELECT * FROM format(Values, 'a String', '(file(\\'{FILE}\\'))')",
    "SELECT * FROM eval('SELECT 1') SETTINGS allow_experimental_eval_table_function = 1",
    "SELECT 1 SETTINGS dialect = 'kusto'",
    "SELECT * FROM python(settings)",
    "SELECT * FROM filesystem('/etc')",
    "SELECT * FROM executable('id', LineAsString)",
    "SELECT * FROM url('http://127.0.0.1:1/', LineAsString)",
    "SELECT * FROM s3('http://127.0.0.1:1/x')",
    "SELECT * FROM hdfs('hdfs://127.0.0.1:1/x', 'CSV', 'a String')",
    "SELECT * FROM mysql('127.0.0.1:1', 'a', 'b', 'c', 'd')",
    "SELECT * FROM postgresql('127.0.0.1:1', 'a', 'b', 'c', 'd')",
    "SELECT * FROM redis('127.0.0.1:1', 'k', 'k String')",
    "SELECT * FROM mongodb('127.0.0.1:1', 'a', 'b', 'c', 'd', 'e String')",
    "SELECT * FROM sqlite('/tmp/x', 'a')",
    "SELECT * FROM remote('127.0.0.1', 'system', 'one')",
    "SELECT * FROM cluster('a', system.one)",
    "SELECT * FROM deltaLakeLocal('/tmp')",
    "DESCRIBE TABLE url('http://127.0.0.1:1/')",
    "SELECT 1 INTO OUTFILE '/tmp/written_by_sql'",
    "SELECT 1 INTO/**/outfile '/tmp/written_by_sql' FORMAT CSV",
    "INSERT INTO FUNCTION file('/tmp/written_by_sql', CSV, 'a Int8') VALUES (1)",
]  # fmt: skip


@pytest.mark.parametrize("headers", [{}, WRITER], ids=["reader", "writer"])
@pytest.mark.parametrize("sql", READS_OUTSIDE)
def test_no_spelling_reaches_out_of_the_tables(
    server: BrokerProcess, sql: str, headers: dict[str, str]
) -> None:
    answer = ask(
        server, sql, headers=headers, param_f="file", param_g="f\\x69le", session_id="outside"
    )
    assert answer.status >= 400, answer.text
    assert answer.code in (497, 452, 60, 456), answer.text
    assert "root:" not in answer.text
    assert not Path("/tmp/written_by_sql").exists()


def test_a_parameter_of_the_session_names_no_function(server: BrokerProcess) -> None:
    ask(server, "SET param_h = 'file'", session_id="param")
    answer = ask(server, f"SELECT arrayMap({{h:Identifier}}, ['{FILE}'])", session_id="param")
    assert answer.code == 497


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO messages VALUES ('x', 1)",
        "INSERT INTO messages SELECT 'x', 1",
        "CREATE TABLE default.x (a Int8) ENGINE = Memory",
        "CREATE TEMPORARY TABLE x (a Int8)",
        "DROP TABLE messages",
        "TRUNCATE TABLE messages",
        "ALTER TABLE messages DELETE WHERE 1",
        "DELETE FROM messages WHERE 1",
        "OPTIMIZE TABLE messages",
        "SYSTEM STOP MERGES",
        "SYSTEM SHUTDOWN",
        "KILL QUERY WHERE 1",
        "DETACH TABLE messages",
        "RENAME TABLE messages TO x",
        "BACKUP TABLE messages TO File('/tmp/written_by_sql')",
        "GRANT ALL ON *.* TO default",
        "CREATE USER x",
        "CREATE FUNCTION f AS x -> x",
        "SET ROLE engine",
        "SET/**/role/**/ALL",
        "SET DEFAULT ROLE engine TO default",
        "EXECUTE AS default SELECT 1",
        "BEGIN TRANSACTION",
        "SELECT * FROM system.processes",
        "WITH p AS (SELECT * FROM system.`processes`) SELECT * FROM p",
        "SELECT * FROM merge('system', 'process')",
        "SHOW PROCESSLIST",
        "SELECT * FROM system.errors",
        "SELECT * FROM system.stack_trace",
        "SELECT * FROM system.users",
    ],
)
def test_a_reader_only_reads(server: BrokerProcess, sql: str) -> None:
    answer = ask(server, sql)
    assert (answer.status, answer.code) == (403, 497), answer.text
    assert read(server, "SELECT count(), sum(offset) FROM messages") == "10\t45\n"


def test_a_reader_cannot_see_hidden_tables_by_the_database_alone(server: BrokerProcess) -> None:
    assert ask(server, "SELECT * FROM processes", database="system").code == 497
    ask(server, "USE system", session_id="hidden")
    assert ask(server, "SELECT * FROM processes", session_id="hidden").code == 497


@pytest.mark.parametrize(
    "setting",
    [
        "readonly=0",
        "max_memory_usage=0",
        "max_memory_usage=99999999999",
        "max_threads=100000",
        "os_thread_priority=0",
    ],
)
def test_limits_cannot_be_lifted(server: BrokerProcess, setting: str) -> None:
    if not setting.startswith("readonly"):
        assert ask(server, "SELECT 1", headers=WRITER, path=f"/?{setting}").code == 452
    for answer in (
        ask(server, "SELECT 1", path=f"/?{setting}"),
        ask(server, f"SELECT 1 SETTINGS {setting}"),
        ask(server, f"SET {setting}", session_id="lift"),
    ):
        assert answer.code in (452, 164), answer.text


def test_limits_can_be_tightened(server: BrokerProcess) -> None:
    sql = "SELECT getSetting('max_memory_usage'), getSetting('max_threads')"
    assert read(server, sql, max_memory_usage="50000000", max_threads="1") == "50000000\t1\n"
    assert read(server, f"{sql}, getSetting('os_thread_priority')").split()[2] == "10"


THE_LOG = [
    "INSERT INTO messages VALUES ('x', 1)",
    "INSERT INTO brokerhouse.messages FORMAT CSV\nx,1\n",
    "INSERT INTO messages SELECT 'x', 1",
    "CREATE TABLE brokerhouse.x (a Int8) ENGINE = Memory",
    "CREATE VIEW brokerhouse.x AS SELECT 1",
    "CREATE OR REPLACE TABLE brokerhouse.messages (a Int8) ENGINE = Memory",
    "DROP TABLE messages",
    "DROP DATABASE brokerhouse",
    "TRUNCATE TABLE messages",
    "TRUNCATE DATABASE brokerhouse",
    "ALTER TABLE messages DELETE WHERE 1",
    "ALTER TABLE messages ADD COLUMN x Int8",
    "ALTER TABLE messages MODIFY COMMENT 'x'",
    "DELETE FROM messages WHERE 1",
    "OPTIMIZE TABLE messages FINAL",
    "RENAME TABLE messages TO default.messages",
    "RENAME DATABASE brokerhouse TO x",
    "EXCHANGE TABLES brokerhouse.messages AND brokerhouse.messages",
    "DETACH TABLE messages",
    "ALTER TABLE messages FREEZE",
    "CREATE MATERIALIZED VIEW default.log_mv TO brokerhouse.messages AS SELECT topic, offset"
    " FROM default.src",
    "CREATE TABLE default.log_buffer AS messages ENGINE = Buffer('brokerhouse', 'messages', 1,"
    " 0, 0, 0, 0, 0, 0)",
    "CREATE TABLE default.log_alias ENGINE = Alias('brokerhouse', 'messages')",
    "CREATE TABLE default.log_dist AS messages ENGINE = Distributed('x', 'brokerhouse',"
    " 'messages')",
    "CREATE TABLE default.log_merge AS messages ENGINE = Merge('brokerhouse', 'messages',"
    " 'brokerhouse.messages')",
    "CREATE VIEW default.log_v DEFINER = default SQL SECURITY DEFINER AS SELECT 1",
    "CREATE VIEW default.log_v SQL SECURITY NONE AS SELECT 1",
    "SET ROLE engine",
    "SYSTEM STOP MERGES",
    "KILL QUERY WHERE 1",
]  # fmt: skip


@pytest.mark.parametrize("sql", THE_LOG)
def test_even_who_may_write_cannot_touch_the_log(server: BrokerProcess, sql: str) -> None:
    write(
        server, "CREATE TABLE IF NOT EXISTS default.src (topic String, offset Int64) ENGINE = Null"
    )
    answer = ask(server, sql, headers=WRITER)
    assert (answer.status, answer.code) == (403, 497), answer.text
    assert read(server, "SELECT count(), sum(offset) FROM messages") == "10\t45\n"


ALERT = (
    "(kind, group_id, began_at, evaluated_until)"
    " SELECT 'records', 'g', '2026-11-21 12:00:00', '2026-11-21 12:00:00'"
)
ALERTS = "SELECT count() FROM lag_alerts FINAL WHERE group_id = 'g'"


def test_who_may_write_adds_rows_to_the_tables_of_jobs(server: BrokerProcess) -> None:
    for name in ("lag_alerts", "brokerhouse.lag_alerts"):
        write(server, f"INSERT INTO {name} {ALERT}")
    assert read(server, ALERTS) == "1\n"
    assert ask(server, f"INSERT INTO lag_alerts {ALERT}").code == 497
    write(server, "CREATE TABLE default.lag_history (a Int8) ENGINE = MergeTree ORDER BY a")
    write(server, "ALTER TABLE default.lag_history ADD COLUMN b Int8")


OTHER_WAYS_IN = [
    "DELETE FROM lag_alerts WHERE 1",
    "ALTER TABLE lag_alerts DELETE WHERE 1",
    "ALTER TABLE lag_alerts UPDATE value = 1 WHERE 1",
    "UPDATE lag_alerts SET value = 1 WHERE 1",
    "ALTER TABLE lag_alerts ADD COLUMN x Int8",
    "ALTER TABLE lag_alerts MODIFY TTL began_at + INTERVAL 1 DAY",
    "ALTER TABLE lag_alerts MODIFY SETTING old_parts_lifetime = 1",
    "ALTER TABLE lag_alerts DROP PARTITION 202611",
    "ALTER TABLE lag_alerts DETACH PARTITION 202611",
    "ALTER TABLE lag_alerts ATTACH PARTITION 202611",
    "ALTER TABLE brokerhouse.lag_alerts ATTACH PARTITION 202611 FROM default.alike",
    "ALTER TABLE `lag_alerts` REPLACE PARTITION 202611 FROM default.alike",
    "ALTER TABLE default.alike MOVE PARTITION 202611 TO TABLE brokerhouse.lag_alerts",
    "ALTER TABLE default.alike MOVE PARTITION 202611 TO TABLE `lag\\x5falerts`",
    "ALTER TABLE {name:Identifier} ATTACH PARTITION 202611",
    "ALTER TABLE lag_alerts FREEZE",
    "TRUNCATE TABLE lag_alerts",
    "DROP TABLE lag_alerts",
    "DETACH TABLE lag_alerts",
    "OPTIMIZE TABLE lag_alerts FINAL",
    "RENAME TABLE lag_alerts TO default.lag_alerts",
    "EXCHANGE TABLES default.alike AND brokerhouse.lag_alerts",
    "CREATE OR REPLACE TABLE lag_alerts (a Int8) ENGINE = Memory",
    "CREATE TABLE brokerhouse.compaction_removals_2 (a Int8) ENGINE = Memory",
    "CREATE MATERIALIZED VIEW default.alerts_mv TO brokerhouse.lag_alerts AS SELECT 'x' AS group_id"
    " FROM brokerhouse.messages",
    "CREATE MATERIALIZED VIEW default.alerts_mv TO lag_alerts AS SELECT group_id FROM"
    " default.alike",
    "CREATE MATERIALIZED VIEW default.alerts_mv REFRESH EVERY 1 HOUR APPEND TO lag_alerts AS SELECT"
    " 'x' AS group_id",
    "CREATE TABLE default.alerts_buffer AS lag_alerts ENGINE = Buffer('brokerhouse', 'lag_alerts',"
    " 1, 0, 0, 0, 0, 0, 0)",
    f"INSERT INTO lag_alerts (group_id) SELECT file('{FILE}')",
    f"INSERT INTO lag_alerts (group_id) SELECT * FROM file('{FILE}', LineAsString, 'a String')",
    "INSERT INTO lag_alerts (group_id) SELECT * FROM url('http://127.0.0.1:1/', LineAsString)",
    f"INSERT INTO lag_alerts (group_id) FROM INFILE '{FILE}' FORMAT LineAsString",
    "INSERT INTO FUNCTION merge('brokerhouse', 'lag_alerts') (group_id) SELECT 'x'",
    "INSERT INTO partition_checkpoints SELECT generateUUIDv4(), 0, 9, 9",
    "INSERT INTO consumer_offsets (group_id) SELECT 'x'",
    "INSERT INTO partition_minutes (topic) SELECT 'x'",
]


@pytest.mark.parametrize("sql", OTHER_WAYS_IN)
def test_nothing_but_insert_reaches_the_tables_of_jobs(server: BrokerProcess, sql: str) -> None:
    write(server, "CREATE TABLE IF NOT EXISTS default.alike AS brokerhouse.lag_alerts")
    write(server, f"INSERT INTO lag_alerts {ALERT}")
    answer = ask(server, sql, headers=WRITER, param_name="lag_alerts")
    assert (answer.status, answer.code) == (403, 497), answer.text
    assert read(server, "SELECT count() FROM lag_alerts FINAL") == "1\n"


@pytest.mark.parametrize(
    "sql",
    [
        f"CREATE TABLE default.f (a String) ENGINE = File(LineAsString, '{FILE}')",
        "CREATE TABLE default.f (a String) ENGINE = URL('http://127.0.0.1:1/', CSV)",
        "CREATE TABLE default.f (a String) ENGINE = Executable('x.sh', CSV)",
        f"CREATE TABLE default.f (a String DEFAULT file('{FILE}')) ENGINE = Memory",
        f"CREATE VIEW default.f AS SELECT file('{FILE}')",
        "CREATE VIEW default.f (a String) AS SELECT * FROM url('http://127.0.0.1:1/', CSV, 'a"
        " String')",
        "CREATE TABLE default.f AS url('http://127.0.0.1:1/', CSV, 'a String')",
        "CREATE TABLE default.f (a Int8) ENGINE = MergeTree ORDER BY a SETTINGS disk ="
        " disk(type = local, path = '/tmp/x/')",
        "CREATE DATABASE f ENGINE = Filesystem('/etc')",
        "CREATE DICTIONARY default.f (a Int64) PRIMARY KEY a SOURCE(EXECUTABLE(COMMAND 'id'"
        " FORMAT TSV)) LAYOUT(FLAT()) LIFETIME(1)",
        f"INSERT INTO default.src2 FROM INFILE '{FILE}' FORMAT CSV",
        f"INSERT INTO default.src2 SELECT length(file('{FILE}'))",
    ],
)  # fmt: skip
def test_who_may_write_cannot_reach_files_or_other_hosts(server: BrokerProcess, sql: str) -> None:
    write(server, "CREATE TABLE IF NOT EXISTS default.src2 (a Int64) ENGINE = Null")
    answer = ask(server, sql, headers=WRITER)
    assert (answer.status, answer.code) == (403, 497), answer.text


@pytest.mark.parametrize("value", [f"length(file('{FILE}'))", f"length(`fil\\x65`('{FILE}'))"])
@pytest.mark.parametrize(
    "settings", ["", "SETTINGS input_format_values_interpret_expressions = 1 "]
)
def test_values_evaluate_no_file(
    server: BrokerProcess, table: str, value: str, settings: str
) -> None:
    answer = ask(server, f"INSERT INTO {table} (a) {settings}VALUES ({value})", headers=WRITER)
    assert answer.code in (344, 497), answer.text
    assert read(server, f"SELECT count() FROM {table}") == "0\n"


def test_who_may_write_has_a_database_of_their_own(server: BrokerProcess) -> None:
    for sql in (
        "CREATE DATABASE lab",
        "CREATE TABLE lab.per_topic (topic String, n UInt64) ENGINE = SummingMergeTree ORDER"
        " BY topic",
        "CREATE MATERIALIZED VIEW lab.mv TO lab.per_topic AS SELECT topic, 1 AS n FROM"
        " brokerhouse.messages",
        "INSERT INTO lab.per_topic SELECT topic, count() FROM brokerhouse.messages GROUP BY topic",
        "CREATE VIEW lab.v AS SELECT topic, sum(n) AS n FROM lab.per_topic GROUP BY topic",
        "ALTER TABLE lab.per_topic ADD COLUMN x Int8",
        "OPTIMIZE TABLE lab.per_topic FINAL",
    ):
        write(server, sql)
    assert read(server, "SELECT * FROM lab.v") == "kept\t10\n"
    write(server, "DROP DATABASE lab")


def test_a_column_called_file_is_read_by_its_full_name(server: BrokerProcess) -> None:
    sql = "SELECT t.file FROM (SELECT 1 AS x) AS t"
    assert ask(server, sql).code == 47
    assert ask(server, sql.replace("t.file", "file")).code == 497
