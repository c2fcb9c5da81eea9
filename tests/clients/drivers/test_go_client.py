"""ClickHouse's Go driver over HTTP, with its defaults and with every compression that it has.

test_go_driver.py has the details of its handshake.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import tools
from tests.support.broker_process import BrokerProcess
from tests.support.helper_process import HelperError, HelperProcess
from tests.support.sql_client import PASSWORD, USER, read

pytestmark = pytest.mark.test_all  # the driver is built

LOGIN = {"User": USER, "Password": PASSWORD}
COMPRESSION = ("", "none", "lz4", "zstd", "gzip", "deflate", "br")
BREAKS = "SELECT throwIf(number = 3000000, 'bang'), repeat('x', 20) FROM numbers(100000000)"


class Go:
    """The driver in a process of Go."""

    def __init__(self, process: HelperProcess, address: str) -> None:
        self._process = process
        self._address = address

    def ask(self, verb: str, sql: str = "", **arguments: Any) -> Any:
        return self._process.ask(verb, Address=self._address, SQL=sql, **arguments)


@pytest.fixture(scope="module")
def go(server: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Go]:
    process = HelperProcess(tools.go_driver_command(), tmp_path_factory.mktemp("go") / "go.log")
    yield Go(process, server.http)
    process.close()


@pytest.mark.parametrize("compression", COMPRESSION)
def test_a_reader_queries_without_options(go: Go, compression: str) -> None:
    assert "server version 26." in go.ask("version", Compression=compression)
    rows = go.ask(
        "query",
        "SELECT offset, value, timestamp_type, headers FROM brokerhouse.messages WHERE topic = ?"
        " ORDER BY offset",
        Parameters=["kept"],
        Compression=compression,
    )
    assert rows == [[n, str(n), "CreateTime", []] for n in range(10)]
    numbers = go.ask("query", "SELECT number FROM numbers(200000)", Compression=compression)
    assert numbers == [[n] for n in range(200_000)]


@pytest.mark.parametrize("compression", COMPRESSION)
def test_errors_have_the_code_and_text_of_the_server(go: Go, compression: str) -> None:
    with pytest.raises(HelperError, match=r"code: 60, message: Unknown table .*'nosuch'"):
        go.ask("query", "SELECT * FROM nosuch", Compression=compression)
    with pytest.raises(HelperError, match=r"code: 497, message: .* SQL is read-only"):
        go.ask("query", "DROP TABLE brokerhouse.messages", Compression=compression)
    with pytest.raises(HelperError, match=r"code: 516, message: .*Authentication failed"):
        go.ask("version", Password="wrong", Compression=compression)


@pytest.mark.parametrize("compression", COMPRESSION)
def test_an_error_within_a_result_is_raised(go: Go, compression: str) -> None:
    with pytest.raises(HelperError, match=r"code: 395, message: bang: while executing"):
        go.ask("query", BREAKS, Compression=compression)


@pytest.mark.parametrize("compression", [one for one in COMPRESSION if one != "br"])
def test_a_user_who_may_write_inserts_a_batch(
    go: Go, server: BrokerProcess, table: str, compression: str
) -> None:
    rows = [[n, f"row '{n}'"] for n in range(50_000)]
    go.ask("insert", f"INSERT INTO {table}", Rows=rows, Compression=compression, **LOGIN)
    counts = read(server, f"SELECT count(), sum(a), uniqExact(b) FROM {table}")
    assert counts == f"50000\t{sum(range(50_000))}\t50000\n"


def test_a_batch_in_brotli_is_refused_by_name(go: Go, table: str) -> None:
    with pytest.raises(HelperError, match="code: 48, message: Unknown Content-Encoding br"):
        go.ask("insert", f"INSERT INTO {table}", Rows=[[1, "x"]], Compression="br", **LOGIN)
