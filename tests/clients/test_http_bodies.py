"""Bodies of the HTTP interface: inserts with their data, and content codings both ways."""

import gzip
import random
import zlib
from collections.abc import Callable, Iterator
from functools import partial

import lz4.frame
import pytest

from brokerhouse.common.zstd import zstd
from tests.support.broker_process import BrokerProcess
from tests.support.sql_client import (
    MIB,
    WRITER,
    ask,
    escaped,
    held_bytes,
    peak_bytes,
    raw_connection,
    read,
    running,
    write,
)
from tests.support.waiting import until


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
        '1,"it\'s"',
        '2,"ab"',
        '3,"c"',
        '4,"d"',
        '5,"e"',
        '6,"f"',
        '7,"g"',
    ]


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


def test_a_chunked_body_of_any_length_is_streamed_in(fresh_server: BrokerProcess) -> None:
    server, table = fresh_server, "default.streamed"
    write(server, f"CREATE TABLE {table} (a Int64, b String) ENGINE = MergeTree ORDER BY a")

    def body() -> Iterator[bytes]:
        yield f"INSERT INTO {table} FOR".encode()
        yield b"MAT CSV\n"
        for start in range(0, 1_000_000, 10_000):
            yield b"".join(b"%d,%s\n" % (n, b"x" * 50) for n in range(start, start + 10_000))

    before = held_bytes(server)
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


def test_bad_data_is_refused_and_nothing_of_it_is_stored(server: BrokerProcess, table: str) -> None:
    answer = ask(server, f"INSERT INTO {table} FORMAT CSV\n1,a\nx,b\n", headers=WRITER)
    assert (answer.status, answer.code) == (400, 27)
    answer = ask(server, f"INSERT INTO {table} FORMAT Nosuch\n1,a\n", headers=WRITER)
    assert answer.code == 73
    answer = ask(server, "INSERT INTO default.nosuch FORMAT CSV\n1,a\n", headers=WRITER)
    assert answer.code == 60
    assert ask(server, f"INSERT INTO {table}", headers=WRITER).code == 62
    assert read(server, f"SELECT count() FROM {table}") == "0\n"


def test_rows_that_the_table_refuses_are_an_error(server: BrokerProcess) -> None:
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
def test_an_encoded_body_is_decoded(server: BrokerProcess, table: str, coding: str) -> None:
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
def test_a_body_that_does_not_match_its_content_encoding_is_refused(
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


FASTEST: dict[str, Callable[[bytes], bytes]] = {
    **ENCODE,
    "gzip": partial(gzip.compress, compresslevel=1),
    "deflate": partial(zlib.compress, level=1),
}


@pytest.mark.parametrize("coding", ENCODE)
def test_a_compression_bomb_costs_no_memory(fresh_server: BrokerProcess, coding: str) -> None:
    server = fresh_server
    bomb = FASTEST[coding](b"SELECT " + b" " * (250 * MIB) + b"1")
    before = held_bytes(server)
    answer = ask(server, bomb, headers={"Content-Encoding": coding})
    assert (answer.status, answer.code) == (400, 62)
    assert "Max query size" in answer.text
    assert peak_bytes(server) - before < 150 * MIB


@pytest.mark.parametrize("coding", ["br", "xz", "bz2", "snappy", "nosuch", "gzip, gzip"])
def test_an_unknown_encoding_is_refused(server: BrokerProcess, coding: str) -> None:
    answer = ask(server, "SELECT 1", headers={"Content-Encoding": coding})
    assert (answer.status, answer.code) == (501, 48)


@pytest.mark.parametrize("coding", DECODE)
@pytest.mark.parametrize("rows", [1, 300_000])  # more than two pieces of a MiB
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
