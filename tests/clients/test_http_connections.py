"""Connections that are held open keep nobody else out, and have deadlines."""

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.clients.conftest import RunServer
from tests.support.broker_process import BrokerProcess
from tests.support.sql_client import PASSWORD, USER, WRITER, running
from tests.support.waiting import until

OPEN, HELD = 50, 60
"""How many connections may be open, and how many are held."""
HEAD = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n"
WRITES = f"Authorization: {WRITER['Authorization']}\r\n".encode()
LONG = "SELECT repeat('x', 10000) FROM numbers(100000) SETTINGS max_block_size = 100"
ANSWER_S = 20.0
OTHER = "127.0.0.2"


def post(sql: str, *, unsent: int = 0, path: str = "/", more: bytes = b"") -> bytes:
    length = len(sql) + unsent
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n"
    return head.encode() + more + b"\r\n" + sql.encode()


def form(*, unsent: int) -> bytes:
    part = '--x\r\nContent-Disposition: form-data; name="query"\r\n\r\nSELECT 1'
    return post(part, unsent=unsent, more=b"Content-Type: multipart/form-data; boundary=x\r\n")


def opened(server: BrokerProcess, source: str = "127.0.0.1") -> socket.socket:
    host, port = server.http.split(":")
    return socket.create_connection((host, int(port)), timeout=ANSWER_S, source_address=(source, 0))


def answer(server: BrokerProcess, request: bytes, source: str = "127.0.0.1") -> bytes:
    """All that comes until the server closes the connection, for which the request asks."""
    with opened(server, source) as connection:
        connection.sendall(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
        received = b""
        while piece := connection.recv(65536):
            received += piece
        return received


@pytest.fixture(scope="module")
def narrow_server(run_server: RunServer) -> Iterator[BrokerProcess]:
    with run_server(http_max_connections=str(OPEN)) as process:
        yield process


@pytest.fixture
def narrow(narrow_server: BrokerProcess) -> BrokerProcess:
    """A broker with few places for connections, where no query of an earlier test runs."""
    until(lambda: not running(narrow_server), "the queries of the test before have ended")
    return narrow_server


@pytest.fixture
def held() -> Iterator[ExitStack]:
    with ExitStack() as connections:
        yield connections


HOLDING = {
    "a head that is not complete": HEAD,
    "a body that is not complete": post("SELECT ", unsent=1000),
    "a form that is not complete": form(unsent=1000),
    "a body for a page that takes none": post("", unsent=1000, path="/ping"),
    "a body of an unknown user": post(
        "SELECT ", unsent=1000, more=b"X-ClickHouse-User: a\r\nX-ClickHouse-Key: b\r\n"
    ),
    "no further request": HEAD + b"\r\n",
    "no request at all": b"",
    "an answer that is not read": post(LONG),
    "a scrape that is not read": HEAD.replace(b"/ping", b"/metrics") + b"\r\n",
}


@pytest.mark.parametrize("sent", HOLDING.values(), ids=HOLDING.keys())
def test_connections_that_are_held_open_keep_nobody_out(
    narrow: BrokerProcess, held: ExitStack, sent: bytes
) -> None:
    server = narrow
    for _ in range(HELD):
        connection = held.enter_context(opened(server))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(sent)
    for source in ("127.0.0.1", OTHER):
        for page in (b"/live", b"/ready", b"/metrics", b"/ping"):
            asked = HEAD.replace(b"/ping", page) + b"\r\n"
            assert answer(server, asked, source).startswith(b"HTTP/1.1 200"), (source, page)
        assert answer(server, post("SELECT 41 + 1", more=WRITES), source).endswith(b"\r\n42\n")
    assert answer(server, post("SELECT 41 + 1"), OTHER).endswith(b"\r\n42\n")
    held.close()
    until(lambda: not running(server), every_s=0.2)


def test_a_connection_that_is_in_use_is_not_given_to_another(
    narrow: BrokerProcess, held: ExitStack
) -> None:
    server = narrow
    used = held.enter_context(opened(server))
    used.sendall(post("SELECT sleepEachRow(0.5) FROM numbers(3) SETTINGS max_block_size = 1"))
    for _ in range(HELD):
        held.enter_context(opened(server)).sendall(HEAD)
    assert used.recv(65536).startswith(b"HTTP/1.1 200")


HEAD_S, READER_PATIENCE_S = 0.4, 1.2
"""Shorter than those of the broker (sql/http/listener.py and body.py)."""
IMPATIENT = f"""
from brokerhouse.broker.cli.main import main
from brokerhouse.sql.http import body, listener

listener.HEAD_S, listener._LOOK_S, body.READER_PATIENCE_S = {HEAD_S}, 0.1, {READER_PATIENCE_S}
main(prog_name="brokerhouse")
"""


class ImpatientBroker(BrokerProcess):
    """A broker that waits less long for what arrives slowly."""

    def command(self) -> Sequence[str]:
        words = super().command()
        module = words.index("-m")
        return [*words[:module], "-c", IMPATIENT, *words[module + 2 :]]


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = {"sql_user": USER, "sql_password": PASSWORD}
    with ImpatientBroker(tmp_path / "data", settings) as process:
        yield process


def test_requests_that_arrive_too_slowly_are_ended_except_of_the_writer(
    impatient: BrokerProcess, held: ExitStack
) -> None:
    """Each connection sends one more byte five times a second, so that none is silent."""
    server = impatient
    limits = {
        "head": (HEAD + b"X: ", HEAD_S),
        "body": (post("SELECT 1", unsent=1000), READER_PATIENCE_S),
        "form": (form(unsent=1000), READER_PATIENCE_S),
        "page": (post("", unsent=1000, path="/ping"), HEAD_S),
        "writer": (post("SELECT 1", unsent=1000, more=WRITES), 0.0),
    }
    connections = {}
    began = time.monotonic()
    for name, (sent, _) in limits.items():
        connections[name] = held.enter_context(opened(server))
        connections[name].sendall(sent)
    ended: dict[str, float] = {}

    def all_are_ended_but_the_writer() -> bool:
        for name, connection in connections.items():
            if name not in ended and not _still_open(connection, b" "):
                ended[name] = time.monotonic() - began
        assert "writer" not in ended  # may take its rows from something slow
        passed_s = time.monotonic() - began
        return len(ended) == len(limits) - 1 and passed_s > 2 * READER_PATIENCE_S

    until(all_are_ended_but_the_writer, every_s=0.2)
    for name, (_, limit_s) in limits.items():
        if limit_s:
            assert ended[name] >= limit_s, (name, ended)


def _still_open(connection: socket.socket, byte: bytes) -> bool:
    """Whether the server has not closed it; what it has answered is read."""
    connection.setblocking(False)
    try:
        while connection.recv(65536):
            pass
    except BlockingIOError:
        pass
    except ConnectionError:
        return False
    else:
        return False
    try:
        connection.send(byte)
    except ConnectionError:
        return False
    return True


def test_queries_of_one_address_leave_a_turn_to_another(
    server: BrokerProcess, held: ExitStack
) -> None:
    sql = "SELECT sum(cityHash64(number)) FROM system.numbers"
    for _ in range(120):  # more than wait for their turn
        held.enter_context(opened(server)).sendall(post(sql))
    until(lambda: len(running(server)) >= 2, every_s=0.2)
    assert answer(server, post("SELECT 41 + 1"), OTHER).endswith(b"\r\n42\n")
    held.close()
    until(lambda: not running(server), every_s=0.2)
