"""ClickHouse's own compression over HTTP: answers with compress=1, bodies with decompress=1."""

import gzip
import http.client

import pytest

from brokerhouse.sql.http.compressed_blocks import BLOCK_BYTES, BlockDecoder, BlockEncoder
from tests.support.broker_process import BrokerProcess
from tests.support.sql_client import (
    MIB,
    WRITER,
    ask,
    connect,
    held_bytes,
    peak_bytes,
    read,
    send,
    write,
)

METHODS = {"LZ4": 0x82, "ZSTD": 0x90, "NONE": 0x02}
BREAKS = "SELECT throwIf(number = 3000000, 'bang') FROM numbers(100000000)"


def in_blocks(data: bytes, method: str = "LZ4") -> bytes:
    return BlockEncoder(method).compress(data)


def out_of(body: bytes) -> bytes:
    decoder = BlockDecoder(2 * BLOCK_BYTES, lambda _: None)
    content = b"".join(decoder.decompress(body))
    decoder.finish()
    return content


@pytest.mark.parametrize("waits", ["0", "1"])
@pytest.mark.parametrize("rows", [0, 1, 500_000])  # four blocks
def test_the_blocks_of_an_answer_decompress_to_its_bytes(
    server: BrokerProcess, rows: int, waits: str
) -> None:
    sql = f"SELECT number FROM numbers({rows}) FORMAT RowBinary"
    plain = ask(server, sql)
    answer = ask(server, sql, compress="1", wait_end_of_query=waits)
    assert answer.status == 200
    assert "content-encoding" not in answer.headers
    assert out_of(answer.body) == plain.body
    assert len(answer.body) < max(len(plain.body), 100)


@pytest.mark.parametrize("method", METHODS)
def test_an_answer_has_the_method_that_the_client_names(server: BrokerProcess, method: str) -> None:
    sql = "SELECT number FROM numbers(100000) FORMAT RowBinary"
    answer = ask(server, sql, compress="1", network_compression_method=method)
    assert answer.body[16] == METHODS[method]
    assert out_of(answer.body) == ask(server, sql).body


def test_blocks_are_encoded_again_by_the_content_coding(server: BrokerProcess) -> None:
    answer = ask(
        server,
        "SELECT 1",
        compress="1",
        headers={"Accept-Encoding": "gzip"},
        enable_http_compression="1",
    )
    assert answer.headers["content-encoding"] == "gzip"
    assert out_of(gzip.decompress(answer.body)) == b"1\n"


def test_an_error_comes_in_blocks_unless_the_login_or_the_rights_refuse(
    server: BrokerProcess,
) -> None:
    plain = ask(server, "SELECT * FROM nosuch")
    answer = ask(server, "SELECT * FROM nosuch", compress="1")
    assert (answer.status, answer.code) == (plain.status, plain.code) == (404, 60)
    assert out_of(answer.body) == plain.body
    for refused in (
        ask(server, "SELECT 1", user="nobody", compress="1"),
        ask(server, "DROP TABLE messages", compress="1"),
    ):
        assert refused.status == 403
        assert refused.text.startswith("Code: ")


@pytest.mark.parametrize("method", METHODS)
def test_an_error_within_a_result_is_the_last_block_and_can_be_read_in_it(
    server: BrokerProcess, method: str
) -> None:
    connection = connect(server)
    response = send(connection, BREAKS, compress="1", network_compression_method=method)
    assert response.status == 200
    with pytest.raises(http.client.IncompleteRead) as broken:
        response.read()
    connection.close()
    body = broken.value.partial
    rows, _, told = out_of(body).partition(b"\r\n__exception__\r\n")
    assert set(rows) == set(b"0\n")
    assert told.endswith(b"\r\n__exception__\r\n")
    assert b"\r\n__exception__\r\n" + told in body


@pytest.mark.test_all
@pytest.mark.parametrize("mib", [256, 1024])
def test_a_long_answer_goes_out_in_constant_memory(fresh_server: BrokerProcess, mib: int) -> None:
    server = fresh_server
    read(server, "SELECT number FROM numbers(1000000) FORMAT Null")
    before = held_bytes(server)
    connection = connect(server)
    sql = f"SELECT number FROM numbers({mib * MIB // 8}) FORMAT RowBinary"
    response = send(connection, sql, compress="1")
    length = 0
    decoder = BlockDecoder(2 * BLOCK_BYTES, lambda _: None)
    while chunk := response.read(4 * MIB):
        length += sum(map(len, decoder.decompress(chunk)))
    connection.close()
    decoder.finish()
    assert length == mib * MIB
    assert peak_bytes(server) - before < 100 * MIB


@pytest.mark.parametrize("method", METHODS)
def test_a_body_in_blocks_is_inserted(server: BrokerProcess, table: str, method: str) -> None:
    rows = b"".join(b"%d,row %d\n" % (n, n) for n in range(300_000))
    insert = f"INSERT INTO {table} FORMAT CSV"
    for body, query in (
        (in_blocks(f"{insert}\n".encode() + rows, method), {}),
        (in_blocks(rows, method), {"query": insert}),
    ):
        assert len(rows) > 2 * BLOCK_BYTES
        pieces = [body[start : start + 50_000] for start in range(0, len(body), 50_000)]
        answer = ask(server, pieces, headers=WRITER, decompress="1", **query)
        assert answer.status == 200, answer.text
    counts = read(server, f"SELECT count(), uniqExact(a), uniqExact(b) FROM {table}")
    assert counts == "600000\t300000\t300000\n"
    assert ask(server, in_blocks(b"SELECT 1", method), decompress="1").body == b"1\n"


def test_blocks_within_a_content_encoding_are_decoded(server: BrokerProcess) -> None:
    body = gzip.compress(in_blocks(b"SELECT 1"))
    answer = ask(server, body, headers={"Content-Encoding": "gzip"}, decompress="1")
    assert answer.body == b"1\n"


def damaged(position: int) -> bytes:
    body = bytearray(in_blocks(b"1,a\n2,b\n"))
    body[position] ^= 1
    return bytes(body)


DAMAGED = {
    "first byte of the checksum": (damaged(0), 40, "checksum of a compressed block does not match"),
    "last byte": (damaged(-1), 40, "checksum of a compressed block does not match"),
    "method": (damaged(16), 89, "0x83 is not a method of compression"),
    "compressed size": (damaged(20), 33, "the last compressed block has only"),
    "cut off": (in_blocks(b"1,a\n")[:-1], 33, "the last compressed block has only"),
    "not compressed": (b"1,a\n" * 100, 89, "not a method of compression"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_block_is_refused_and_nothing_is_stored(
    server: BrokerProcess, table: str, damage: str
) -> None:
    body, code, words = DAMAGED[damage]
    query = f"INSERT INTO {table} FORMAT CSV"
    answer = ask(server, body, headers=WRITER, query=query, decompress="1")
    assert (answer.status, answer.code) == (400, code)
    assert words in answer.text
    assert read(server, f"SELECT count() FROM {table}") == "0\n"


def test_a_block_larger_than_allowed_is_refused_by_its_head(server: BrokerProcess) -> None:
    block = in_blocks(b"SELECT 1")
    for headers, size in ({}, 2 * MIB + 1), (WRITER, 256 * MIB + 1):
        head = block[:21] + size.to_bytes(4, "little")
        answer = ask(server, head, headers=headers, decompress="1")
        assert (answer.status, answer.code) == (400, 261)
        assert "smaller blocks" in answer.text


def test_a_bomb_of_blocks_costs_no_memory(fresh_server: BrokerProcess) -> None:
    server = fresh_server
    bomb = in_blocks(b"SELECT " + b" " * (400 * MIB) + b"1", "ZSTD")
    before = held_bytes(server)
    answer = ask(server, bomb, decompress="1")
    assert (answer.status, answer.code) == (400, 62)
    assert peak_bytes(server) - before < 150 * MIB


def test_compression_may_be_turned_off(server: BrokerProcess) -> None:
    assert write(server, "SELECT 1", compress="0", decompress="0") == "1\n"
