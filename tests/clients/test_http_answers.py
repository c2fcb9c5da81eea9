"""Answers of the HTTP interface: errors and their status, failures in the middle, long results."""

import gzip
import http.client
import re
import urllib.parse

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.sql_client import (
    MIB,
    ask,
    connect,
    held_bytes,
    peak_bytes,
    raw_connection,
    read,
    running,
    send,
    write,
)
from tests.support.waiting import until


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
        (
            "SELECT sum(cityHash64(number)) FROM system.numbers SETTINGS max_execution_time = 1",
            408,
            159,
            "TIMEOUT_EXCEEDED",
        ),
        ("SELECT 1; SELECT 2", 400, 62, "Multi-statements"),
        ("", 400, 62, "empty"),
        (";", 400, 62, "Empty query"),
        ("SELECT '", 400, 62, "Syntax error"),
    ],
)
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


def test_a_failure_in_the_middle_is_reported_in_the_body_and_breaks_the_stream(
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


def test_a_failure_in_the_middle_is_reported_in_an_encoded_body_too(server: BrokerProcess) -> None:
    _, body = broken_off(server, enable_http_compression="1")
    assert b"__exception__" in gzip.decompress(body)


def test_with_wait_end_of_query_a_late_failure_has_its_status(server: BrokerProcess) -> None:
    answer = ask(server, BREAKS, wait_end_of_query="1")
    assert (answer.status, answer.code) == (500, 395)
    assert answer.text.startswith("Code: 395")
    whole = ask(server, "SELECT number FROM numbers(3000000)", wait_end_of_query="1")
    assert whole.body.count(b"\n") == 3_000_000
    assert "x-clickhouse-summary" in whole.headers


@pytest.mark.parametrize("mib", [256, pytest.param(1024, marks=pytest.mark.test_all)])
def test_a_long_answer_goes_through_in_constant_memory(
    fresh_server: BrokerProcess, mib: int
) -> None:
    server = fresh_server
    read(server, "SELECT number FROM numbers(1000000) FORMAT Null")
    before = held_bytes(server)
    connection = connect(server)
    numbers = mib * MIB // 8
    response = send(connection, f"SELECT number FROM numbers({numbers}) FORMAT RowBinary")
    length = last = 0
    while chunk := response.read(4 * MIB):
        length += len(chunk)
        last = int.from_bytes(chunk[-8:], "little")
    connection.close()
    assert length == mib * MIB
    assert last == numbers - 1
    assert peak_bytes(server) - before < 100 * MIB


def test_a_query_waits_for_a_slow_reader(fresh_server: BrokerProcess) -> None:
    server = fresh_server
    connection = connect(server)
    response = send(
        connection,
        "SELECT number AS slow_reader, repeat('x', 1000) FROM system.numbers"
        " SETTINGS max_block_size = 1000",
    )
    response.read(1000)

    def rows_at_each_look() -> set[int]:
        """Rows that the query had read at each of fifty looks; each asks the server."""
        return {rows_read(server, "slow_reader") for _ in range(50)}

    # First it fills what lies between it and its reader. Blocks of 1 MB: on a busy machine one of
    # 65 MB may be in the making during all of the looks.
    until(lambda: len(rows_at_each_look()) == 1, "the query reads no more rows")
    before = held_bytes(server)
    assert len(rows_at_each_look()) == 1
    assert peak_bytes(server) - before < 50 * MIB
    connection.close()
    until(lambda: not any("slow_reader" in query for query in running(server)))


def rows_read(server: BrokerProcess, part: str) -> int:
    """Rows read so far by the one running query whose text has this part."""
    others = "query NOT LIKE '%system.processes%'"
    return int(
        write(
            server,
            f"SELECT read_rows FROM system.processes WHERE query LIKE '%{part}%' AND {others}",
        )
    )


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


def test_an_old_client_gets_its_answer_and_the_end_of_the_connection(server: BrokerProcess) -> None:
    with raw_connection(server) as raw:
        request = b"GET /?query=SELECT+number+FROM+numbers(1000000) HTTP/1.0\r\nHost: localhost\r\n"
        raw.sendall(request + b"\r\n")
        answer = b""
        while piece := raw.recv(MIB):
            answer += piece
    assert answer.count(b"\n") > 1_000_000
    assert b"chunked" not in answer[:1000]
